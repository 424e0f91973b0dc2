"""NCC005, NCC006: settings that differ between nodes, and settings that were left on."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, StrayLine, Unread, at, value_or
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    fail,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nccl import profiles, wiring
from ncclcheck.reports.subjects.nccl.variables import (
    Known,
    as_version,
    assigned,
    effective,
    nccl_version,
    parse,
    parsed_value,
    reference,
    values,
)
from ncclcheck.reports.subjects.nodes.cards import peers
from ncclcheck.reports.text.words.fold import fold_names

_COMPARED = (
    "NCCL_",
    "TORCH_NCCL_",
    "TORCH_FR_",
    "TORCH_DIST",
    "TORCH_GLOO_",
    "GLOO_",
    "FI_",
    "OFI_NCCL_",
    "CUDA_LAUNCH_BLOCKING",
)
# What Megatron asserts with expandable segments, and asks for to be deterministic; NVLS_ENABLE=1 is what 2 does.
_OF_FRAMEWORKS = {"NCCL_GRAPH_REGISTER": ("0",), "NCCL_ALGO": ("Ring",), "NCCL_NVLS_ENABLE": ("1",)}
_SLOW = {
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_CHECK_POINTERS",
    "CUDA_LAUNCH_BLOCKING",
    "TORCH_DISTRIBUTED_DEBUG",
}


@rule(
    "NCC005",
    "NCCL_* variables are the same on all nodes",
    worst=State.FAIL,
    needs=("job.variables",),
    at_least=2,
    gates_job="where a finding says so",
    of_most=True,
)
def settings_agree(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Variables of NCCL, torch and the network plugins have the same meaning on every node. Unset and set to the
    default are the same, and so are 16 and 0x10. Names of interfaces and devices may differ.

    ## Why it matters
    Each rank picks algorithms, buffer sizes and transports from its own environment and assumes that the others
    did the same. Where they did not, the job hangs while it connects, fails with `wrong type` or `Message
    truncated`, or computes on damaged data. A launcher that hands over the environment of only one node, or an
    /etc/nccl.conf of one image, is enough.

    ## Seen as
    hangs, wrong results

    ## How we know
    The effective value (environment first, then nccl.conf) of each node is parsed as its reader parses it, and the
    results are compared. FAIL: the value decides what both sides do. warn: it may. note: it only changes what is
    printed or measured. NVIDIA documents this for few variables; the rest is read from NCCL's source. No job is
    started where some nodes only have TORCH_DISTRIBUTED_DEBUG=DETAIL, or TORCH_GLOO_LAZY_INIT: it would hang or
    crash; INFO on some is a note.

    ## Fix
    - **you** Export the variable in the job script and let the launcher hand it to all nodes, or unset it.
    - **admin** Make /etc/nccl.conf the same on all nodes.

    ## Source
    NCCL user guide, Environment Variables; NVIDIA/nccl#626, NVIDIA/nccl#1328, NVIDIA/nccl#2190,
    NVIDIA/nccl-tests#188; pytorch/pytorch#129672 (DETAIL on one machine).
    """
    settings = {node.name: values(node) for node in cluster.nodes}
    names = {name for of_node in settings.values() for name in of_node if name.startswith(_COMPARED)}
    for name in sorted(names):
        entry = reference().get(name) or Known(name=name, component="nccl", type="text", mismatch="harmless")
        groups: dict[object, list[str]] = defaultdict(list)
        for node in cluster.nodes:
            groups[parsed_value(name, settings[node.name].get(name), nccl_version(node))].append(node.name)
        if len(groups) > 1 and entry.mismatch != "per-node-ok":
            written = {node: of_node.get(name) for node, of_node in settings.items()}
            yield from _differing(entry, sorted(groups.values(), key=len, reverse=True), written)


def _differing(entry: Known, groups: list[list[str]], written: dict[str, str | None]) -> Iterator[Finding]:
    """One finding for each group of nodes outside of the majority; one for all where there is none."""
    evidence = [seen(fold_names(group), _shown(entry.name, written[group[0]])) for group in groups]
    most = written[groups[0][0]]
    if len(groups[0]) == len(groups[1]):
        listed = "; ".join(f"{item.value} on {item.source}" for item in evidence)
        yield _difference(entry, Where(), f"{entry.name} differs between nodes: {listed}", evidence, most)
        return
    for group in groups[1:]:
        where = Where(node=group[0] if len(group) == 1 else None)
        on = "" if len(group) == 1 else f" on {fold_names(group)}"
        what = f"{_shown(entry.name, written[group[0]])}{on}, but {_shown(entry.name, most)} on most nodes"
        yield _difference(entry, where, what, evidence, most)


def _shown(name: str, value: str | None) -> str:
    return f"{name} is not set" if value is None else assigned(name, value)


def _hangs(entry: Known, evidence: list[Evidence]) -> bool:
    """Ranks with DETAIL check every collective with the others first: with ranks that do not, nothing ends.

    Ranks that connect lazily leave nothing in the store for those that connect at once: these crash.
    """
    detail = entry.name == "TORCH_DISTRIBUTED_DEBUG" and any("DETAIL" in item.value.upper() for item in evidence)
    return detail or entry.name == "TORCH_GLOO_LAZY_INIT"


def _difference(entry: Known, where: Where, what: str, evidence: list[Evidence], most: str | None) -> Finding:
    command = f"unset {entry.name}" if most is None else f"export {entry.name}={shlex.quote(most)}"
    fix = [you("Give every node the same value, in the job script or in nccl.conf.", command)]
    if entry.name == "TORCH_DISTRIBUTED_DEBUG" and not _hangs(entry, evidence):
        return note(where, what, why="Only DETAIL changes what a rank does.", evidence=evidence, fix=fix)
    if entry.mismatch == "must-match":
        why = "Both sides of a connection act on this value: the job can hang, fail or compute on damaged data."
        hangs = _hangs(entry, evidence)
        return fail(where, what, why=why, owner="job", evidence=evidence, fix=fix, blocks_job=hangs)
    if entry.mismatch == "risky":
        why = "Nodes with different values can wait for each other longer, or behave differently on an error."
        return warn(where, what, why=why, owner="job", evidence=evidence, fix=fix)
    return note(where, what, why="It changes no result.", evidence=evidence, fix=fix)


@rule(
    "NCC006",
    "no debugging or stale setting is left on",
    worst=State.WARN,
    needs=("job.variables",),
)
def nothing_left_on(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The environment of the job holds no setting that is meant for debugging, none that is deprecated, and no
    login file sets an NCCL_* variable that never reached the job.

    ## Why it matters
    A setting that once helped somebody to find a fault stays in a script for years and makes every job slower:
    NCCL_P2P_DISABLE=1 sends data over the network that could use NVLink, CUDA_LAUNCH_BLOCKING=1 lets nothing
    overlap. Values of NVIDIA's debugging section can break with the next version. A line in ~/.bashrc that a batch
    job never reads makes people believe that a value is set.

    ## Seen as
    slow

    ## How we know
    The effective variables (environment, then nccl.conf) of the user, not the ones that ncclcheck sets for its own
    job, compared with the list of debugging variables and with the login files. A variable at its default is fine.
    NCCL_P2P_DISABLE switches nothing off where NVML says that no GPU can read another one, as of gaming cards, nor
    NCCL_IB_DISABLE on one node alone, or where no HCA has an address that others could reach.

    ## Fix
    - **you** Remove it from the job script, or keep it knowingly: `--ignore NCC006`.
    - **admin** Remove it from /etc/nccl.conf, /etc/environment and /etc/profile.d.

    ## Source
    NCCL user guide, Environment Variables, Debugging; PyTorch documentation, Distributed communication package;
    environment(5), bash(1).
    """
    for node in cluster.nodes:
        yield from _left_on(node, several=len(cluster.nodes) > 1)
        yield from _deprecated(node)
        lines = [line for line in value_or(at(node, "nccl.stray_lines"), []) if not line.reached]
        if lines:
            yield _stray(node, lines)


def _left_on(node: Node, *, several: bool) -> Iterator[Finding]:
    """Slow settings one by one; the other ones for debugging in one note."""
    others: list[Evidence] = []
    kept = profiles.keeps([node])
    for name, setting in effective(node).items():
        entry = reference().get(name)
        if entry is None or name in kept or not _is_debugging(node, entry, setting.value):
            continue
        item = seen(setting.source, assigned(name, setting.value) + (f" ({entry.effect})" if entry.effect else ""))
        if _is_slow(node, entry, setting.value, several=several):
            yield _slow(node, entry, setting.value, item)
        else:
            others.append(item)
    if others:
        listed = ", ".join(item.value.partition(" (")[0] for item in others)
        why = "They are meant for finding a fault, not for production."
        fix = [_remove([item.value.partition("=")[0] for item in others])]
        what = f"set, and meant for debugging: {listed}"
        yield note(Where(node=node.name), what, why=why, evidence=others, fix=fix)


def _is_debugging(node: Node, entry: Known, value: str) -> bool:
    if entry.name == "NCCL_DEBUG":
        return value.upper() in ("INFO", "TRACE", "ABORT")
    if entry.name == "TORCH_DISTRIBUTED_DEBUG":
        return value.upper() in ("INFO", "DETAIL")
    own = parsed_value(entry.name, value, nccl_version(node))
    if entry.name in _OF_FRAMEWORKS and value in _OF_FRAMEWORKS[entry.name]:
        return False
    if entry.name == "NCCL_IB_DISABLE" and wiring.of_hypervisor(node) and not wiring.has_rdma(node):
        return False  # it keeps NCCL from a port that leads nowhere: RDM013 asks for it
    if entry.name == "NCCL_IB_QPS_PER_CONNECTION":  # NVIDIA lists it there, and sites and clouds set it for good
        return False
    if entry.name == "NCCL_ALGO" and value.startswith("^"):  # it leaves something out, and pins nothing
        return False
    return entry.debugging and own not in (parsed_value(entry.name, None), None)


def _is_slow(node: Node, entry: Known, value: str, *, several: bool) -> bool:
    if entry.name == "NCCL_DEBUG":
        return value.upper() == "TRACE"
    if entry.name == "TORCH_DISTRIBUTED_DEBUG":
        return value.upper() == "DETAIL"
    if entry.name == "NCCL_IB_DISABLE" and not (several and _may_have_rdma(node)):
        return False
    if entry.name == "NCCL_P2P_DISABLE" and _has_no_peer_access(node):
        return False
    return entry.name in _SLOW and parse(entry, value).value not in (0, "0", None, "")


def _may_have_rdma(node: Node) -> bool:
    """Whether something is switched off: an HCA that could carry data, as far as that is known."""
    if isinstance(at(node, "rdma.devices"), Unread):
        return bool(value_or(at(node, "rdma.hcas"), []))
    return wiring.has_rdma(node)


def _has_no_peer_access(node: Node) -> bool:
    """Whether no GPU of the node can read another one, as of gaming cards: then nothing is switched off."""
    by_gpu = peers(node)
    return bool(by_gpu) and all(
        isinstance(peer.p2p, str) and peer.p2p != "ok" for some in by_gpu.values() for peer in some
    )


def _slow(node: Node, entry: Known, value: str, evidence: Evidence) -> Finding:
    return warn(
        Where(node=node.name),
        f"{entry.name}={value} is on: {entry.effect}",
        why="It was made for finding a fault and makes the whole job slower.",
        owner="job",
        evidence=[evidence],
        fix=[_remove([entry.name])],
    )


def _remove(names: list[str]) -> Remedy:
    """Without NCCL_DEBUG NCCL would print no warning either."""
    gone = " ".join(name for name in names if name != "NCCL_DEBUG")
    commands = [
        *([f"unset {gone}"] if gone else []),
        *(["export NCCL_DEBUG=WARN"] if "NCCL_DEBUG" in names else []),
    ]
    return you("Remove what nobody needs any more, unless you are looking for a fault right now.", *commands)


def _deprecated(node: Node) -> Iterator[Finding]:
    torch = as_version(at(node, "stack.torch"))
    for name, setting in effective(node).items():
        entry = reference().get(name)
        since = as_version(entry.deprecated) if entry and not entry.until else None
        version = torch if entry and entry.component == "torch" else nccl_version(node)
        if entry and since and version and version >= since:
            instead = f"; use {entry.instead}" if entry.instead else ""
            what = f"{name} is deprecated since {entry.deprecated}{instead}"
            evidence = [seen(setting.source, assigned(name, setting.value))]
            why = "A later version will not read it any more."
            yield note(Where(node=node.name), what, why=why, evidence=evidence)


def _stray(node: Node, lines: list[StrayLine]) -> Finding:
    names = ", ".join(dict.fromkeys(line.name for line in lines))
    return note(
        Where(node=node.name),
        f"set in a login file, but not in this process: {names}",
        why="A batch step or a service does not read login files: the values have no effect on the job.",
        evidence=[seen(f"{line.path}:{line.line}", f"{line.name}={line.value}") for line in lines],
        fix=[you("Export them in the job script if they are meant, else remove the lines.")],
    )
