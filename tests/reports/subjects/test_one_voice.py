"""Where fixes of one page give a variable several values, one of them keeps its command."""

from __future__ import annotations

from ncclcheck.reports.judgement.findings import Finding, State, Verdict, Where, seen, you
from ncclcheck.reports.subjects.nodes.fixes import one_voice
from tests.helpers import pages


def _verdict(code: str, state: State, *fixes: tuple[str | None, str]) -> Verdict:
    findings = [
        Finding(state=state, where=Where(node=node), what="x", why="x", owner="job", evidence=[seen("x", 1)],
                remedies=[you("Do it.", "env | grep A", command)])
        for node, command in fixes
    ]  # fmt: skip
    return Verdict(code=code, title="x", state=state, findings=findings)


def _values(*verdicts: Verdict) -> dict[str, set[str | None]]:
    fitted = one_voice.fitted(verdicts)
    assert not pages.contradictions(fitted, [])
    return {name: {*values} for name, values in pages.variables(fitted, []).items()}


def test_the_graver_finding_keeps_its_word() -> None:
    note = _verdict("NCC006", State.NOTE, ("n1", "unset A"))
    bad = _verdict("FAB002", State.WARN, ("n1", "export A=1"))
    assert _values(note, bad) == {"A": {"1"}}
    kept, other = one_voice.fitted([note, bad])
    assert kept.findings[0].remedies[0].commands == ["env | grep A"]
    assert kept.findings[0].remedies[0].text == "Do it. A is set by the fix of FAB002."
    assert other == bad


def test_among_equals_the_one_of_more_nodes() -> None:
    verdict = _verdict("RDM009", State.WARN, ("n1", "export A=1"), ("n2", "export A=2"), ("n3", "export A=2"))
    assert _values(verdict) == {"A": {"2"}}


def test_the_node_that_differs_takes_what_most_have() -> None:
    differ = _verdict("NCC005", State.WARN, ("n2", "unset A"))
    wrong = _verdict("NCC061", State.FAIL, ("n2", "export A=2000"))
    assert _values(differ, wrong) == {"A": {None}}


def test_what_most_have_may_be_wrong_itself() -> None:
    differ = _verdict("NCC005", State.WARN, ("n2", "export A=1"))
    wrong = _verdict("NCC018", State.WARN, ("n1", "unset A"), ("n3", "unset A"))
    assert _values(differ, wrong) == {"A": {None}}


def test_other_variables_of_a_line_stay() -> None:
    note = _verdict("NCC006", State.NOTE, ("n1", "unset A B"), ("n1", "export C=1 D=2   # on n1"))
    bad = _verdict("NET010", State.WARN, ("n1", "export A=1 C=3"))
    assert _values(note, bad) == {"A": {"1"}, "B": {None}, "C": {"3"}, "D": {"2"}}


def test_a_page_that_agrees_is_left_as_it_is() -> None:
    page = [_verdict("NCC006", State.NOTE, ("n1", "unset A")), _verdict("NCC018", State.WARN, ("n1", "unset A"))]
    assert one_voice.fitted(page) == page
