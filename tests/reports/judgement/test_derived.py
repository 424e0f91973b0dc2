"""What is kept for nodes that share their facts follows from these facts alone."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import NOT_RECORDED, Node, NotKnown, Unread, replace
from ncclcheck.reports.judgement.derived import SOURCES, derived_from
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers import dgx, stories


def _outcome(function: Any, node: Node) -> object:
    """Worked out anew: what is kept would be the same by its key."""
    try:
        return function.__wrapped__.__wrapped__(node)
    except NotKnown as missing:
        return str(missing)


def _left(node: Node, name: str, names: tuple[str, ...]) -> Any:
    """A field of a node, of which nothing is left but what was named."""
    whole, inner = getattr(node, name), [path.partition(".")[2] for path in names if path.startswith(f"{name}.")]
    if name in names:
        return whole
    if not inner or isinstance(whole, Unread):
        return NOT_RECORDED
    return replace(whole, **{field: NOT_RECORDED for field in whole.__struct_fields__ if field not in inner})


@pytest.mark.parametrize("node", [dgx.cluster(3).nodes[1], *stories.load("healthy").cluster.nodes[:1]])
def test_nothing_else_is_looked_at(node: Node) -> None:
    assert all_rules()
    assert len(SOURCES) > 4
    for function, names in SOURCES.items():
        others = {name: _left(node, name, names) for name in node.__struct_fields__ if name != "name"}
        bare = replace(node, **others | {"simulated": node.simulated, "probes": []})
        assert _outcome(function, bare) == _outcome(function, replace(node)), function


def test_it_is_worked_out_once_for_the_same_facts_and_anew_for_equal_ones_of_another() -> None:
    calls: list[str] = []

    @derived_from("host")
    def name(node: Node) -> str:
        calls.append(node.name)
        return node.name

    machine, other = dgx.cluster(5).nodes[3:]
    assert [name(machine), name(replace(machine, name="b")), name(other)] == [
        machine.name,
        machine.name,
        other.name,
    ]
    assert calls == [machine.name, other.name]
    del SOURCES[name]
