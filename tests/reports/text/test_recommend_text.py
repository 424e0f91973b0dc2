"""The recommended settings in the text report: three lists, and when nothing is said."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import Job, Node, Unread, replace
from ncclcheck.reports.judgement.jsondoc import Document, NodeEntry, Recommendation
from ncclcheck.reports.text import recommend_text
from tests.helpers import stories


def _document(*recommendations: Recommendation, **changes: Any) -> Document:
    return replace(stories.document("healthy"), recommendations=[*recommendations], **changes)


def _rec(action: Any, variable: str, value: str | None = None) -> Recommendation:
    return Recommendation(
        variable=variable, action=action, value=value, why="It is so.", evidence=["first", "second", "third"],
        source="a page", basis="rule", gain="speed", risk="none", valid_for="every NCCL", undo="unset X",
    )  # fmt: skip


FOUND = (
    _rec("try", "NCCL_A", "4"),
    _rec("unset", "NCCL_B"),
    _rec("set", "NCCL_C", "=eth0,eth1"),
    _rec("try", "NCCL_D"),
    _rec("try", "CUDA_E", "1"),
    _rec("try", "NCCL_F", "1"),
)


def test_three_lists_in_their_order() -> None:
    lines = recommend_text.text(_document(*FOUND), 80).splitlines()
    heads = [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")]
    assert heads == ["SET", "UNSET", "TRY"]
    assert "    export NCCL_C='=eth0,eth1'" in lines
    assert "    unset NCCL_B" in lines
    assert "    ncclcheck bench --with NCCL_A=4" in lines
    assert "    ncclcheck bench --with NCCL_D=" in lines
    assert "    CUDA_E=1 ncclcheck smoke --baseline before.json" in lines
    assert "    and 1 more to try (-v shows all)" in lines


def test_it_is_short_and_with_v_it_is_whole() -> None:
    short, whole = (recommend_text.text(_document(*FOUND), 80, verbose=verbose) for verbose in (False, True))
    assert "third" not in short
    assert "a page" not in short
    assert whole.count("third") == len(FOUND)
    assert "undo  unset X" in whole


@pytest.mark.parametrize("name", stories.NAMES)
def test_it_keeps_the_width_where_nothing_is_to_be_pasted(name: str) -> None:
    document = stories.document(name)
    for width in (80, 100):
        lines = recommend_text.text(document, width, verbose=True).splitlines()
        long = [line.strip() for line in lines if len(line) > width]
        assert [line for line in long if " " in line and not line.startswith(("export", "unset", "NCCL_"))] == []


def test_that_nothing_is_to_be_set_is_said_where_all_was_seen() -> None:
    assert recommend_text.NOTHING in recommend_text.text(_document(), 80)


def _all(document: Document, **changes: Any) -> list[NodeEntry]:
    return [NodeEntry(name=node.name, facts=replace(node.facts, **changes)) for node in document.nodes]


UNSEEN = Unread("denied", "not for this user")
HEALTHY = stories.document("healthy")
UNSURE: list[tuple[str, dict[str, Any]]] = [
    ("simulated", {"job": replace(HEALTHY.job, simulated=True)}),
    ("gloo", {"job": replace(HEALTHY.job, backend="gloo")}),
    ("a node is missing", {"job": replace(HEALTHY.job, missing=["gpu-a19"])}),
    ("a failure", {"state": "fail"}),
    ("not finished", {"state": "incomplete"}),
    ("no nodes", {"nodes": []}),
    ("no NCCL", {"nodes": _all(HEALTHY, nccl=UNSEEN)}),
    ("variables unread", {"nodes": _all(HEALTHY, job=UNSEEN)}),
    ("interfaces unread", {"nodes": _all(HEALTHY, network=UNSEEN)}),
    ("HCAs unread", {"nodes": _all(HEALTHY, rdma=UNSEEN)}),
    ("no GPU", {"nodes": _all(HEALTHY, gpus=Unread("absent", "none"))}),
]


@pytest.mark.parametrize("changes", [changes for _, changes in UNSURE], ids=[name for name, _ in UNSURE])
def test_it_is_not_said_where_something_was_not_seen(changes: dict[str, Any]) -> None:
    assert recommend_text.text(_document(**changes), 80) == ""


def test_env_speaks_of_what_is_certain_and_of_trying_only_with_v() -> None:
    trying, certain = _document(FOUND[0], command="env"), _document(FOUND[1], command="env")
    assert recommend_text.text(trying, 80) == ""
    assert "NCCL_A=4" in recommend_text.text(trying, 80, verbose=True)
    assert "unset NCCL_B" in recommend_text.text(certain, 80)


def test_a_laptop_is_told_nothing() -> None:
    laptop = _document(command="bench", job=Job(), nodes=[NodeEntry(name="a", facts=Node(name="a"))])
    assert recommend_text.text(laptop, 80) == ""
