"""Which nodes go on a list: only for faults of their own, and never all of them for one fault."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import Run, Silence, replace
from ncclcheck.reports.judgement import selection
from ncclcheck.reports.judgement.findings import (
    Culprit,
    Finding,
    Owner,
    State,
    Verdict,
    Where,
    fail,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.jsondoc import Document
from tests.helpers import stories

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
    assert selection.exclude_file(["node rank 2", "a1"]) == "a1\n"
    assert selection.out_of_service({"node rank 2": "RUN001"}) == []
    assert selection.out_of_service({"a1": "NET001", "a2": "NET001"}) == [
        "scontrol update NodeName='a[1-2]' State=DRAIN Reason='ncclcheck NET001'",
        "kubectl cordon a1 a2",
    ]


def _document(verdicts: list[Verdict], culprits: list[Culprit], silent: tuple[str, ...] = ()) -> Document:
    """Three nodes of which that was said."""
    document = stories.document("healthy")
    entry = document.nodes[0]
    return replace(
        document,
        nodes=[replace(entry, name=name) for name in _NAMES],
        job=replace(document.job, nodes_asked=len(_NAMES)),
        run=Run(silent=[Silence(node=name, last_step="", since_s=1.0, detail="") for name in silent]),
        verdicts=verdicts,
        culprits=culprits,
    )


def _state(code: str, state: State, node: str | None) -> Verdict:
    make = {State.WARN: warn, State.FAIL: fail}.get(state)
    if make is None:
        finding = unknown(Where(node=node), "not seen", why="so")
    else:
        finding = make(
            Where(node=node), "bad", why="so", owner="site", evidence=[seen("x", "y")], fix=[you("mend")]
        )
    return Verdict(code=code, title="", state=state, findings=[finding])


_NODE_A2 = _failed("NET001", ["a2"])


@pytest.mark.parametrize(
    ("verdicts", "culprits", "strict", "against"),
    [
        ([_NODE_A2], [], False, ""),
        ([_NODE_A2, _state("STO001", State.FAIL, "a2")], [], False, ""),
        ([_NODE_A2, _state("STO001", State.FAIL, None)], [], False, "STO001"),
        ([_failed("NET001", _NAMES)], [], False, "NET001"),
        ([_state("BEN002", State.FAIL, None)], [_slow("nic", "a2/eth0", "BEN002")], False, ""),
        ([_state("BEN002", State.FAIL, None)], [_slow("fabric", "a2", "BEN002")], False, "BEN002"),
        ([_NODE_A2, _state("RUN001", State.UNKNOWN, "a2")], [], False, ""),
        ([_NODE_A2, _state("RUN002", State.UNKNOWN, None)], [], False, "RUN002"),
        ([_NODE_A2, _state("GPU009", State.UNKNOWN, "a1")], [], False, ""),
        ([_NODE_A2, _state("GPU009", State.UNKNOWN, "a1")], [], True, "GPU009"),
        ([_NODE_A2, _state("NET007", State.WARN, "a3")], [], False, ""),
        ([_NODE_A2, _state("NET007", State.WARN, "a3")], [], True, "NET007"),
    ],
)
def test_what_speaks_against_the_nodes_that_are_left(
    verdicts: list[Verdict], culprits: list[Culprit], strict: bool, against: str
) -> None:
    document = _document(verdicts, culprits)
    _, bad = selection.of_document(document)
    assert selection.against_the_rest(document, bad, strict=strict) == against


def test_nodes_that_all_fell_silent_are_no_fit_ones() -> None:
    """No list has them, for what ails all is no node's fault; and yet nothing may start there."""
    verdict = replace(
        _state("RUN001", State.UNKNOWN, "a1"), findings=[unknown(Where(node=n), "-", why="") for n in _NAMES]
    )
    document = _document([verdict], [], silent=(*_NAMES,))
    healthy, bad = selection.of_document(document)
    assert (healthy, bad) == (_NAMES, {})
    assert selection.against_the_rest(document, bad, strict=False) == "RUN001"


def test_nodes_that_nothing_names_are_chosen_first() -> None:
    document = _document([_state("NET007", State.WARN, "a1")], [])
    assert selection.best(document, _NAMES, 2) == ["a2", "a3"]
    assert selection.best(document, _NAMES, 3) == _NAMES
