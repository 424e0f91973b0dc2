"""`-v`: everything that a person would otherwise look up by hand with ip, ldconfig and find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ncclcheck.probes.facts import Interface, Library, Node, Unread, at, value_or
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document, NodeEntry
from ncclcheck.reports.text.words.fold import fold_ranks

_MOST_TRACES = 4  # tracebacks that differ, of all ranks: chosen, each has some twenty lines
_MOST_NODES = 32  # of which -v lists interfaces and libraries, some 35 lines each on a DGX


def text(document: Document) -> str:
    """Interfaces, default routes, copies of libnccl, plugins and conf files of every node."""
    shown = _worth_a_look(document)
    lines = [line for entry in shown for line in _node(entry.facts)]
    if left := len(document.nodes) - len(shown):
        lines.append(f"  and {left:,} more nodes: --json has all")
    lines += _tracebacks(document)
    return "\n".join(lines)


def _tracebacks(document: Document) -> Iterator[str]:
    """Lines of the tracebacks that the user's code raised in ranks, each once."""
    by_trace: dict[str, list[int]] = {}
    for rank in document.run.ranks:
        if rank.trace:
            by_trace.setdefault(rank.trace, []).append(rank.rank)
    for trace, ranks in [*by_trace.items()][:_MOST_TRACES]:
        yield f"  {fold_ranks(ranks)} raised"
        yield from (f"    {line}" for line in trace.splitlines())


def _worth_a_look(document: Document) -> list[NodeEntry]:
    """All of a few nodes; of many the first ones, those before the others that rules found at fault."""
    if len(document.nodes) <= _MOST_NODES:
        return document.nodes
    states = (State.FAIL, State.WARN)
    counter = Counter(f.where.node for v in document.verdicts for f in v.findings if f.state in states)
    return sorted(document.nodes, key=lambda entry: -counter[entry.name])[:_MOST_NODES]


def _node(node: Node) -> Iterator[str]:
    yield f"  {node.name}"
    for label, path, line in (
        ("interface", "network.interfaces", _interface),
        ("libnccl", "nccl.others", _library),
        ("plugin", "nccl.plugins", str),
    ):
        listed = at(node, path)
        if isinstance(listed, Unread):
            yield f"    {label:10} unread: {listed.why}"
        else:
            yield from (f"    {label:10} {line(item)}" for item in listed)
    routes, files = at(node, "network.routes"), at(node, "nccl.conf_files")
    for route in [] if isinstance(routes, Unread) else routes:
        if route.destination in ("default", "0.0.0.0/0", "::/0"):
            yield f"    {'default':10} by {route.gateway or 'no gateway'} on {route.interface}"
    for file in [] if isinstance(files, Unread) else files:
        count = "unread" if isinstance(file.lines, Unread) else f"{len(file.lines)} lines"
        yield f"    {'conf file':10} {file.path}: {count}"


def _interface(interface: Interface) -> str:
    addresses = [f"{a.address}/{a.prefix}" for a in value_or(interface.addresses, [])]
    speed = interface.speed_mbit
    words = (
        f"{interface.name:10}",
        value_or(interface.kind, "virtual"),
        "up" if interface.up is True else "down" if interface.up is False else "state unread",
        f"mtu {value_or(interface.mtu, 0)}",
        "" if isinstance(speed, Unread) else f"{speed} Mb/s",
        *addresses,
        *(f"member {name}" for name in value_or(interface.members, [])),
    )
    return " ".join(word for word in words if word)


def _library(library: Library) -> str:
    return f"{library.path} {value_or(library.version, 'of unread version')} ({library.origin})"
