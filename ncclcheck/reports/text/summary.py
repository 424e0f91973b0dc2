"""The first lines of a report: what ran, on what, and the facts that a person asks for first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ncclcheck.probes.facts import Interface, Node, Unread, at, value_or, variables
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.rule import OWN_FAMILIES
from ncclcheck.reports.subjects.box import page
from ncclcheck.reports.subjects.live import running_text
from ncclcheck.reports.subjects.logs.answer import story_text
from ncclcheck.reports.subjects.nccl import carrying
from ncclcheck.reports.subjects.nccl.choice import InterfaceChoice
from ncclcheck.reports.subjects.nccl.lan import choice_of_gloo, choice_of_nccl, network_of
from ncclcheck.reports.subjects.nccl.variables import assigned
from ncclcheck.reports.subjects.nccl.wiring import efa
from ncclcheck.reports.text.groups import MOST, MOST_KINDS
from ncclcheck.reports.text.words.fold import fold_names, fold_some, size
from ncclcheck.reports.text.words.likeness import Likeness
from ncclcheck.reports.text.words.wrapping import wrapped

_SHOWN = ("NCCL_", "TORCH_NCCL_", "TORCH_GLOO_", "GLOO_", "PET_", "CUDA_VISIBLE_DEVICES")


def head(document: Document) -> str:
    """What ran, on what, and which launcher was chosen by what."""
    if document.command in OWN_FAMILIES:
        return title(document)
    return f"{title(document)}   launcher {document.job.launcher}: {document.job.chosen_by}"


def title(document: Document) -> str:
    """What ran, and on what."""
    job = document.job
    if document.command == "logs":
        return f"ncclcheck {document.version}   logs   {story_text.size(document)}"
    if document.command == "hang":
        return f"ncclcheck {document.version}   hang   {running_text.size(document)}"
    if document.command == "watch":
        return page.title(document)
    if document.command == "script":
        files = document.measurements.script.files if document.measurements.script else []
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        return f"ncclcheck {document.version}   script   {files[0].name if files else ''}{more}"
    names = fold_some([*(entry.name for entry in document.nodes), *job.missing])
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
        only = "" if len(names) == len(document.nodes) else f"  (on {fold_some(names)})"
        lines += wrapped(
            words + only, width, first=f"  {label:11}", rest=" " * 13,
        )  # fmt: skip
    return "\n".join(lines)


def folded(document: Document) -> list[tuple[str, str, list[str]]]:
    """Label, words, and the nodes of which they are true."""
    by_label: dict[str, dict[str, list[str]]] = {}
    alone = len(document.nodes) == 1 or document.job.simulated
    for entry in document.nodes:
        for label, words in _rows(entry.facts, document.command, alone=alone):
            by_label.setdefault(label, {}).setdefault(words, []).append(entry.name)
    likeness = Likeness(entry.facts for entry in document.nodes)
    return [(label, *row) for label, rows in by_label.items() for row in _few(rows, likeness)]


def _few(by_words: dict[str, list[str]], likeness: Likeness) -> list[tuple[str, list[str]]]:
    """The rarest first where there are many; what differs in each node's own addresses or numbers is said once."""
    if len(by_words) <= MOST:
        return [*by_words.items()]
    kinds = _kinds(by_words, likeness, numbers=False)
    if len(kinds) > MOST:
        kinds = _kinds(by_words, likeness, numbers=True)
    rows = []
    for kind in sorted(kinds, key=lambda kind: sum(map(len, kind.values()))):
        words, names = next(iter(kind.items()))
        alike = "; the others alike, with their own names and numbers" if len(kind) > 1 else ""
        rows.append((words + alike, [name for names in kind.values() for name in names] if alike else names))
    if rest := [name for _, names in rows[MOST_KINDS:] for name in names]:
        rows[MOST_KINDS:] = [(f"{len(rows) - MOST_KINDS:,} other kinds (--json has all)", rest)]
    return rows


def _kinds(by_words: dict[str, list[str]], likeness: Likeness, *, numbers: bool) -> list[dict[str, list[str]]]:
    by_kind: dict[str, dict[str, list[str]]] = {}
    for words, names in by_words.items():
        by_kind.setdefault(likeness.of_node(names[0], words, numbers=numbers), {})[words] = names
    return [*by_kind.values()]


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
    shown = [assigned(name, env[name]) for name in sorted(env) if name.startswith(_SHOWN)]
    return "  ".join(shown) if shown else "none of NCCL_*, TORCH_NCCL_*, GLOO_* or PET_* is set"


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
    driver = value_or(at(node, "stack.driver"), "") or value_or(at(node, "gpus.nvml_driver"), "") or "unread"
    return f"{usable} usable by CUDA{there}, driver {driver}{_models(node)}"


def _models(node: Node) -> str:
    """Model and memory of the GPUs that the job may use, as NVML tells."""
    cards = value_or(at(node, "gpus.cards"), [])
    counter = Counter((value_or(card.model, "model unread"), value_or(card.memory_total, 0)) for card in cards)
    listed = (f"{n} x {model}{f', {size(memory)}' if memory else ''}" for (model, memory), n in counter.items())
    return "".join(f"; {model}" for model in listed)


def _hcas(node: Node) -> Iterator[tuple[str, str]]:
    """The ports that NCCL would send data over, or the EFA devices of its plugin, where there is any HCA."""
    if not value_or(at(node, "rdma.devices"), []):
        return
    taken = carrying.choice(node)
    rates = Counter(value_or(port.port.rate_gbit, 0.0) for port in taken.used)
    speeds = ", ".join(f"{count} x {rate:g} Gb/s" for rate, count in rates.items() if rate)
    words = f"{fold_names(taken.names) or 'none'} for NCCL" + (f" ({speeds})" if speeds else "")
    if not taken.used and efa(node):
        plugin = "" if value_or(at(node, "nccl.plugins"), []) else ", none found"
        yield "HCAs", f"{len(efa(node))} EFA by the plugin{plugin}"
        return
    yield "HCAs", f"{words}: {taken.reason}"


def _network(node: Node, *, alone: bool) -> Iterator[tuple[str, str]]:
    interfaces = at(node, "network.interfaces")
    if isinstance(interfaces, Unread):
        yield "network", f"unread: {interfaces.why}"
        return
    own_name = at(node, "host.own_name")
    places = {} if alone else _subnets(interfaces)
    yield "NCCL uses", _chosen(choice_of_nccl(node), places)
    words = _chosen(choice_of_gloo(node), places)
    name = "" if isinstance(own_name, Unread) or alone else f" {own_name.name}"
    yield "gloo uses", words.replace(f"the own name{name} ", "the own name ")


def _subnets(interfaces: list[Interface]) -> dict[str, str]:
    """Where each address stands."""
    addresses = [address for interface in interfaces for address in value_or(interface.addresses, [])]
    return {address.address: str(network_of(address) or address.address) for address in addresses}


def _chosen(choice: InterfaceChoice, places: Mapping[str, str]) -> str:
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
