"""What is kept for nodes that share their facts follows from these facts alone."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import NOT_RECORDED, Node, NotKnown, replace
from ncclcheck.reports.judgement.derived import SOURCES, derived_from
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers import dgx, stories


def _outcome(function: Any, node: Node) -> object:
    """Worked out anew: what is kept would be the same by its key."""
    try:
        return function.__wrapped__.__wrapped__(node)
    except NotKnown as missing:
        return str(missing)


@pytest.mark.parametrize("node", [dgx.cluster(3).nodes[1], *stories.load("healthy").cluster.nodes[:1]])
def test_nothing_else_is_looked_at(node: Node) -> None:
    assert all_rules()
    assert len(SOURCES) > 4
    for function, names in SOURCES.items():
        others = {name: NOT_RECORDED for name in node.__struct_fields__ if name not in (*names, "name")}
        bare = replace(node, **others | {"simulated": node.simulated, "probes": []})
        assert _outcome(function, bare) == _outcome(function, replace(node)), function


def test_it_is_worked_out_once_for_the_same_facts_and_anew_for_equal_ones_of_another() -> None:
    calls: list[str] = []

    @derived_from("host")
    def name(node: Node) -> str:
        calls.append(node.name)
        return node.name

    one, other = dgx.cluster(5).nodes[3:]
    assert [name(one), name(replace(one, name="b")), name(other)] == [one.name, one.name, other.name]
    assert calls == [one.name, other.name]
    del SOURCES[name]
