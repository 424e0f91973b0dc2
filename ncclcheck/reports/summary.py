"""The first lines and the last line of a report."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from ncclcheck.probes.facts import Interface, Node, Unread, at, value_or, variables
from ncclcheck.reports import launching, log_text, trial
from ncclcheck.reports.choice import Choice, gloo_choice, nccl_choice
from ncclcheck.reports.findings import Culprit, State, Where
from ncclcheck.reports.fold import fold_names, size
from ncclcheck.reports.jsondoc import Document
from ncclcheck.reports.lan import network_of
from ncclcheck.reports.variables import nccl_version, values
from ncclcheck.reports.wiring import choice

_SIGNALS = {1: "SIGHUP", 2: "^C (SIGINT)", 15: "SIGTERM"}
_LINKS = 3
_BASELINE = ("BEN006", "VER015", "VER016")
_SHOWN = ("NCCL_", "TORCH_NCCL_", "GLOO_", "CUDA_VISIBLE_DEVICES")


def head(document: Document) -> str:
    """What ran, on what, and which launcher was chosen by what."""
    if document.command == "logs":
        return title(document)
    return f"{title(document)}   launcher {document.job.launcher}: {document.job.chosen_by}"


def title(document: Document) -> str:
    """What ran, and on what."""
    job = document.job
    if document.command == "logs":
        return f"ncclcheck {document.version}   logs   {log_text.size(document)}"
    names = fold_names([*(entry.name for entry in document.nodes), *job.missing])
    if job.simulated:
        where = f"{job.nodes_asked} nodes SIMULATED on this machine"
    elif job.nodes_asked == 1:
        where = names or "this machine"
    else:
        where = f"{names}: {job.nodes_asked} nodes asked, {job.nodes_answered} answered"
    faults = f"   WITH INJECTED FAULTS {', '.join(job.injected)}" if job.injected else ""
    return f"ncclcheck {document.version}   {document.command}   {where}{faults}"


def facts(document: Document, width: int) -> str:
    """The facts a person asks for first; what is the same on all nodes is said once."""
    lines: list[str] = []
    for label, words, names in folded(document):
        only = "" if len(names) == len(document.nodes) else f"  (on {fold_names(names)})"
        lines += textwrap.wrap(
            words + only, width, initial_indent=f"  {label:11}", subsequent_indent=" " * 13,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)


def folded(document: Document) -> list[tuple[str, str, list[str]]]:
    """Label, words, and the nodes of which they are true."""
    said: dict[str, dict[str, list[str]]] = {}
    alone = len(document.nodes) == 1 or document.job.simulated
    for entry in document.nodes:
        for label, words in _rows(entry.facts, document.command, alone=alone):
            said.setdefault(label, {}).setdefault(words, []).append(entry.name)
    return [(label, words, names) for label, told in said.items() for words, names in told.items()]


def _rows(node: Node, command: str, *, alone: bool) -> Iterator[tuple[str, str]]:
    """What differs between any two nodes, such as an address, is told of a lone one only."""
    yield "host", _host(node)
    if command == "data":  # needs neither GPU nor network
        yield "software", _software(node)
        return
    yield "gpu", _gpu(node)
    yield from _hcas(node)
    yield from _network(node, alone=alone)
    yield "software", _software(node)
    yield "variables", _variables(node)


def _variables(node: Node) -> str:
    env, read = variables(node), at(node, "job.variables")
    if isinstance(read, Unread):
        return f"unread: {read.why}"
    shown = [f"{name}={env[name]}" for name in sorted(env) if name.startswith(_SHOWN)]
    return "  ".join(shown) if shown else "no NCCL_*, TORCH_NCCL_* or GLOO_* is set"


def _host(node: Node) -> str:
    if isinstance(node.host, Unread):
        return f"unread: {node.host.why}"
    cores = at(node, "host.usable_cores")
    memory = at(node, "host.memory")
    return ", ".join(
        (
            value_or(at(node, "host.system"), "system unread"),
            f"kernel {value_or(at(node, 'host.kernel'), 'unread')}",
            "cores unread" if isinstance(cores, Unread) else f"{cores:g} core{'' if cores == 1 else 's'}",
            "memory unread" if isinstance(memory, Unread) else size(memory),
        )
    )


def _gpu(node: Node) -> str:
    usable, seen = at(node, "gpus.usable"), at(node, "gpus.pci")
    if isinstance(usable, Unread):
        return "none here" if usable.kind == "absent" else f"unread: {usable.why}"
    there = "" if isinstance(seen, Unread) else f", {len(seen)} on the PCI bus"
    driver = value_or(at(node, "stack.driver"), "unread")
    return f"{usable} usable by CUDA{there}, driver {driver}{_models(node)}"


def _models(node: Node) -> str:
    """Model and memory of the GPUs that the job may use, as NVML tells."""
    cards = value_or(at(node, "gpus.cards"), [])
    told = Counter((value_or(card.model, "model unread"), value_or(card.memory_total, 0)) for card in cards)
    listed = (f"{n} x {model}{f', {size(memory)}' if memory else ''}" for (model, memory), n in told.items())
    return "".join(f"; {one}" for one in listed)


def _hcas(node: Node) -> Iterator[tuple[str, str]]:
    """The ports that NCCL's InfiniBand transport would take, where there is any HCA."""
    if not value_or(at(node, "rdma.devices"), []):
        return
    taken = choice(node)
    rates = Counter(value_or(one.port.rate_gbit, 0.0) for one in taken.used)
    speeds = ", ".join(f"{count} x {rate:g} Gb/s" for rate, count in rates.items() if rate)
    words = f"{fold_names(taken.names) or 'none'} for NCCL" + (f" ({speeds})" if speeds else "")
    yield "HCAs", f"{words}: {taken.reason}"


def _network(node: Node, *, alone: bool) -> Iterator[tuple[str, str]]:
    interfaces = at(node, "network.interfaces")
    if isinstance(interfaces, Unread):
        yield "network", f"unread: {interfaces.why}"
        return
    env, own_name = values(node), at(node, "host.own_name")
    places = {} if alone else _subnets(interfaces)
    yield "NCCL uses", _chosen(nccl_choice(interfaces, env, nccl_version(node)), places)
    words = _chosen(gloo_choice(interfaces, env, own_name), places)
    name = "" if isinstance(own_name, Unread) or alone else f" {own_name.name}"
    yield "gloo uses", words.replace(f"the own name{name} ", "the own name ")


def _subnets(interfaces: list[Interface]) -> dict[str, str]:
    """Where each address stands."""
    held = [address for interface in interfaces for address in value_or(interface.addresses, [])]
    return {address.address: str(network_of(address) or address.address) for address in held}


def _chosen(choice: Choice, places: Mapping[str, str]) -> str:
    names = ", ".join(f"{chosen.name} {places.get(chosen.address, chosen.address)}" for chosen in choice.used)
    reason = choice.reason
    for chosen in choice.used:
        reason = reason.replace(f"resolves to {chosen.address}", "resolves to it")
    return f"{names}: {reason}" if names and not choice.problem else f"nothing: {choice.problem}"


def _software(node: Node) -> str:
    torch, cuda = at(node, "stack.torch"), at(node, "stack.torch_cuda")
    library = at(node, "nccl.loaded")
    parts = [f"Python {value_or(at(node, 'stack.python'), 'unread')}"]
    if isinstance(torch, Unread):
        parts.append("no torch" if torch.kind == "absent" else f"torch unread: {torch.why}")
    else:
        parts.append(f"torch {torch}" + (" without CUDA" if isinstance(cuda, Unread) else f" for CUDA {cuda}"))
    if isinstance(library, Unread):
        parts.append("no NCCL in use" if library.kind == "absent" else f"NCCL unread: {library.why}")
    else:
        parts.append(f"NCCL {value_or(library.version, 'of unread version')} from {library.path}")
    return ", ".join(parts)


def culprits(document: Document) -> list[str]:
    """Who is to blame, one line each, the surest first."""
    told = {finding.what for verdict in document.verdicts for finding in verdict.findings}
    return [
        f"Culprit: {_named(one)} (confidence {one.confidence:.2f}): {_brief(one.why, told)}"
        for one in document.culprits
    ]


def _brief(why: str, told: Collection[str]) -> str:
    """The first clause is enough where a finding above says all of it."""
    return why.partition("; ")[0] if any(why in what for what in told) else why


def _named(one: Culprit) -> str:
    names = " to ".join(one.names) if one.kind == "link" else fold_names(one.names)
    return names if names.startswith(one.kind) else f"{one.kind} {names}"


def compared(document: Document) -> list[str]:
    """What was held against a saved result and is no worse, and what was tried; all else is a finding."""
    verdicts = [verdict for verdict in document.verdicts if verdict.code in _BASELINE]
    told = [finding.what for v in verdicts for finding in v.findings if finding.state is State.OK]
    if told and document.command == "bench":
        told += [f"no bandwidth was compared: {v.reason}" for v in verdicts if v.code == "BEN006" and v.reason]
    baseline = [f"Baseline: {'; '.join(told)}."] if told else []
    return baseline + [f"Tried: {trial.said(one)}." for one in [document.measurements.trial] if one]


def decision(document: Document) -> str:
    """One sentence with the decision and the first thing to do; the exit code says the same."""
    if faults := document.job.injected:
        return (
            f"{_decision(document)} These faults were injected: {', '.join(faults)}; leave out --inject to judge."
        )
    return _decision(document)


def _decision(document: Document) -> str:
    if document.exit_code > 128:
        number = document.exit_code - 128
        return f"Not finished: {_SIGNALS.get(number, f'signal {number}')} ended it; what was gathered is above."
    if document.command == "logs":
        return log_text.decision(document)
    if any(v.state is State.FAIL for v in document.verdicts):
        return f"Not ready: mend {_first_failed(document)} first."
    if document.state == "incomplete":
        return f"Not finished. {_unfinished(document)}"
    return " ".join([_ready(document), *_caveats(document)])


def _ready(document: Document) -> str:
    if document.exit_code:
        return "Not ready: --strict counts warnings and unknowns as failures."
    rows = document.measurements.collectives
    if rows and all(row.state == "skipped" for row in rows):
        return "Nothing failed, but nothing was measured either: see BEN001."
    states = {verdict.state for verdict in document.verdicts if verdict.code.startswith("DAT")}
    if document.command == "data" and not states - {State.SKIPPED}:
        return "The dataset was not judged."
    clean = document.command == "data" and not states & {State.WARN, State.UNKNOWN}
    return "Ready: nothing wrong was seen in the dataset." if clean else "Ready."


def _first_failed(document: Document) -> str:
    """The first failure that is a cause, and where."""
    failed = [v for v in document.verdicts if v.state is State.FAIL]
    causes = [v for v in failed if v.code[:3] not in ("RUN", "BEN")]
    first = (causes or failed)[0]
    places = [f.where for f in first.findings if f.state is State.FAIL and f.where.node]
    if not places:
        return first.code
    links = _links(places) if first.code.startswith("BEN") else ""
    return f"{first.code} on {links or fold_names(place.node or '' for place in places)}"


def _links(places: Sequence[Where]) -> str:
    """Both ends of what was measured between two nodes; empty where other places are among them."""
    ends = [(place.node or "", place.peer) for place in places if place.peer and place.rank is None]
    if len(ends) < len(places):
        return ""
    links = list(dict.fromkeys(" - ".join(sorted(pair)) for pair in ends))
    more = f" and {len(links) - _LINKS} more" if len(links) > _LINKS else ""
    return f"the link{'s' if len(links) > 1 else ''} {', '.join(links[:_LINKS])}{more}"


def _unfinished(document: Document) -> str:
    if document.job.missing and not launching.hurried(document.run):
        return f"{fold_names(document.job.missing)} did not answer."
    for verdict in document.verdicts:
        for finding in verdict.findings:
            if verdict.code.startswith("RUN") and finding.state is State.UNKNOWN:
                return " ".join(part for part in (verdict.code, str(finding.where), finding.what) if part) + "."
    return "The run was cut short."


def _caveats(document: Document) -> Iterator[str]:
    if document.command == "data":
        return
    nodes = [entry.facts for entry in document.nodes]
    if document.job.simulated:
        yield (
            "No second machine was tested. On two machines type, with the first one's address for HOST: "
            f"ncclcheck {document.command} --nodes 2 --node-rank 0 --rdzv-endpoint HOST:29500 there, and the "
            f"same with --node-rank 1 on the other; in a Slurm allocation just ncclcheck {document.command}."
        )
    elif nodes and all(_has_no_gpu(node) for node in nodes):
        yield from _without_gpus(document, nodes)


def _has_no_gpu(node: Node) -> bool:
    usable = at(node, "gpus.usable")
    return usable == 0 or (isinstance(usable, Unread) and usable.kind == "absent")


def _without_gpus(document: Document, nodes: list[Node]) -> Iterator[str]:
    login = document.job.launcher == "local" and any(
        "srun" in value_or(at(node, "job.launcher_programs"), []) and "SLURM_JOB_ID" not in variables(node)
        for node in nodes
    )
    if login:
        yield (
            "This looks like a login node: no GPU node was judged. Type: "
            f"salloc -N 2 --gpus-per-node=8 ncclcheck {document.command}"
        )
    else:
        yield "No GPU here: NCCL itself was not judged."
