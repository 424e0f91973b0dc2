"""Name servers that are mute, of a node whose own name found no answer in time."""

from __future__ import annotations

from ncclcheck.probes.facts import Node, Unread, at


def mute(node: Node) -> list[str]:
    """Those that are asked for its own name and do not answer: they are why the lookup took too long."""
    sources, own = at(node, "host.own_sources"), at(node, "host.own_name")
    if isinstance(sources, Unread) or not (isinstance(own, Unread) and own.kind == "timed_out"):
        return []
    if sources.files and not _asks_servers_first(sources.order):
        return []
    return [server.address for server in sources.servers if not server.answered]


def _asks_servers_first(order: str) -> bool:
    """Whether /etc/hosts comes after the servers, or not at all."""
    words = order.split()
    asked = [words.index(word) for word in ("dns", "resolve") if word in words]
    return bool(asked) and ("files" not in words or min(asked) < words.index("files"))
