"""A fact that a bound needs and that was not read: then BEN002 is `unknown`, and the report says which fact."""

from __future__ import annotations

from ncclcheck.probes.facts import Node, NotKnown, Unread


def unseen(node: Node, what: str, fact: Unread) -> NotKnown:
    """What to raise for it."""
    return NotKnown(Unread(fact.kind, f"{what} of {node.name} could not be read ({fact.why})"))
