"""Faults in what no parameter and no state_dict holds, trained by two real ranks; the printed fixes pass."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ncclcheck.reports.judgement.findings import State, Verdict
from tests.jobs.training_job import Case
from tests.probes.training.test_recipes import bad, case, judged_of, shown

pytestmark = pytest.mark.timeout(300)  # a job of two ranks, each of which imports torch


def given(name: str, **more: Any) -> Case:
    return case(name, file="hidden_parts.py", **{"steps": 8, "budget_s": 180.0, **more})


SOUND = [
    given("experts registered", model="RegisteredExperts"),
    given("scale registered", model="RegisteredScaled"),
    given("a teacher in a list", model="Taught"),
    given("priors of all", step="by_priors_of_all"),
    given("logs in globals", step="logs_in_globals", save="save", load="load"),
    given("warm-up restored", step="warms_up", save="save", load="load_all"),
    given("averages in place", step="averages_in_place"),
    given("gathers as much", step="gathers_as_much"),
    given("reset alike", step="resets_alike"),
    given("critic wrapped", step="rivals_wrapped"),
]
FAULTY: dict[str, tuple[Case, str, State, str]] = {
    each.name: (each, code, state, words)
    for each, code, state, words in (
        (given("experts", model="Experts"), "TRN035", State.FAIL, "self.experts = nn.ModuleList(self.experts)"),
        (given("scale", model="Scaled"), "TRN035", State.FAIL, "self.heads = nn.ModuleDict(self.heads)"),
        (
            given("of the class", model="OfClass"),
            "TRN035",
            State.FAIL,
            "layers[0].weight and 3 more get gradients",
        ),
        (given("priors", step="by_priors"), "TRN034", State.WARN, "hidden_parts.PRIORS, a global variable,"),
        (
            given("warm-up", step="warms_up", save="save", load="load"),
            "TRN029",
            State.WARN,
            "saved['DONE'] = DONE",
        ),
        (
            given("read on main", step="warms_up", save="save", load="load_on_main"),
            "TRN029",
            State.FAIL,
            "restores nothing on rank 1",
        ),
        (
            given("gathers", step="gathers_what_it_has"),
            "TRN028",
            State.FAIL,
            "ranks enter all_gather with different sizes",
        ),
        (given("averages a name", step="averages_a_name"), "TRN027", State.WARN, "e.copy_(0.9 * e + 0.1 * p)"),
        (given("reset", step="resets_by_rank"), "TRN027", State.FAIL, "in resets_by_rank, with values of its own"),
        (
            given("critic", step="rivals"),
            "TRN027",
            State.FAIL,
            "critic.weight is trained beside the wrapped model",
        ),
    )
}


@cache
def judged(*, sound: bool) -> dict[str, list[Verdict]]:
    return judged_of(SOUND if sound else [each for each, *_ in FAULTY.values()])


@pytest.mark.parametrize("name", [each.name for each in SOUND])
def test_what_is_sound_has_no_failure_and_no_warning(name: str) -> None:
    assert bad(judged(sound=True)[name]) == []


@pytest.mark.parametrize("name", FAULTY)
def test_what_is_faulty_is_reported_with_its_cause_first(name: str) -> None:
    _, code, state, words = FAULTY[name]
    (first, finding), *_ = bad(judged(sound=False)[name])
    assert (first, finding.state, words in shown(finding)) == (code, state, True), shown(finding)
