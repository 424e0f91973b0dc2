"""What shows that a node is a container, for rules that say so."""

from __future__ import annotations

from ncclcheck.probes.facts import Node, at, value_or


def runtimes(node: Node) -> list[str]:
    """The container runtimes of which something was seen; empty on a machine, or where nothing was read."""
    return [sign.name for sign in value_or(at(node, "container.runtimes"), [])]


def has_own_processes(node: Node) -> bool:
    """Whether it is known to see its own processes alone (a pid namespace of its own)."""
    spaces = value_or(at(node, "container.namespaces"), [])
    return any(space.name == "pid" and space.host is False for space in spaces)


def told_by(node: Node) -> str:
    """Each runtime with the sign of it."""
    signs = value_or(at(node, "container.runtimes"), [])
    return ", ".join(f"{sign.name} by {sign.source}" for sign in signs) or "none"
