"""Which nodes go on a list: only for faults of their own, and never all of them for one fault."""

from __future__ import annotations

import pytest

from ncclcheck.reports import selection
from ncclcheck.reports.findings import Culprit, Finding, Owner, State, Verdict, Where, fail, seen, you

_NAMES = ["a1", "a2", "a3"]


def _failed(code: str, nodes: list[str], owner: Owner = "node") -> Verdict:
    return Verdict(code=code, title="", state=State.FAIL, findings=[_finding(node, owner) for node in nodes])


def _finding(node: str, owner: Owner) -> Finding:
    return fail(Where(node=node), "bad", why="so", owner=owner, evidence=[seen("x", "y")], fix=[you("mend it")])


def _slow(kind: str, name: str, code: str) -> Culprit:
    return Culprit(kind=kind, names=[name], where=[], confidence=0.9, explains=[code], why="")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdicts", "culprits", "expected"),
    [
        ([_failed("NET001", ["a2"])], [], {"a2": "NET001"}),
        ([_failed("NET001", ["a1", "a3"])], [], {"a1": "NET001", "a3": "NET001"}),
        ([_failed("NET001", _NAMES)], [], {}),
        ([_failed("NCC005", ["a2"], "job")], [], {}),
        ([_failed("BEN004", ["a9"], "site")], [_slow("nic", "a3/eth0", "BEN004")], {"a3": "BEN004"}),
        ([], [_slow("nic", "a3/eth0", "BEN004")], {}),
        ([_failed("BEN004", ["a1"], "site")], [_slow("link", "a1", "BEN004")], {}),
    ],
)
def test_bad_nodes(verdicts: list[Verdict], culprits: list[Culprit], expected: dict[str, str]) -> None:
    assert selection.bad_nodes(verdicts, culprits, _NAMES) == expected


def test_a_lone_node_may_be_bad() -> None:
    assert selection.bad_nodes([_failed("GPU001", ["a1"])], [], ["a1"]) == {"a1": "GPU001"}


def test_the_forms_of_lists() -> None:
    assert selection.healthy_file(["a1", "a2"]) == "a1\na2\n"
    assert selection.exclude_file(["a1", "a2", "b"]) == "a[1-2],b\n"
    assert selection.exclude_file([]) == ""
    assert selection.out_of_service({"a1": "NET001", "a2": "NET001"}) == [
        "scontrol update NodeName='a[1-2]' State=DRAIN Reason='ncclcheck NET001'",
        "kubectl cordon a1 a2",
    ]
