"""Real gloo ranks train: sound trainings give no warning, and each injected or own defect is named."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ncclcheck.probes.facts.training import Checks
from ncclcheck.probes.job.context import TrainingPlan
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.run.plan import faults
from tests.jobs.training_job import ROOT, Case, Outcome, cluster_of, outcomes_of

pytestmark = pytest.mark.timeout(300)  # three jobs, of which each imports torch on every rank
RULES = [rule for rule in all_rules() if "TRN001" <= rule.code <= "TRN012" or rule.code == "TRN027"]
TROUBLE = (State.WARN, State.FAIL, State.UNKNOWN)


def case(name: str, *injected: str, ranks: int = 2, **plan: Any) -> Case:
    given = {"steps": 4, "budget_s": 90.0, "directory": str(ROOT / "tests/samples"), "batch": 4, **plan}
    return Case(
        name=name,
        plan=TrainingPlan(**given),
        injected=faults.injections(faults.read(injected, training=True), ["sim0"], ranks, []),
    )


def users(name: str, model: str, data: str, **plan: Any) -> Case:
    return case(name, model=f"trainees.py:{model}", data=f"trainees.py:{data}", **plan)


# By case: the rules that must not be ok, with the ranks that their findings name, in order (None: no rank).
Expected = dict[str, tuple[State, list[int | None]]]
FAIL, WARN = State.FAIL, State.WARN


def _typed(*cases: tuple[Case, Expected]) -> tuple[tuple[Case, Expected], ...]:
    return cases


SOUND: list[Case] = [
    case("transformer"),
    case("conv", model="conv", accumulate=2),
    case("half", model="conv", precision="bf16"),
    case("sixteen", model="conv", precision="fp16"),
    case("sharded", strategy="fsdp"),
    users("own", "Net", "dataset"),
    users("own loader", "Net", "sharing", loss="torch.nn:CrossEntropyLoss"),
    users("normalised", "Net", "dataset", model_kwargs={"norm": True}),
    users("dropping", "Net", "dataset", model_kwargs={"drop": 0.5}),
    users("named", "WithLoss", "with_workers"),
    users("stepping", "Net", "dataset", step="trainees.py:stepping"),
    users("sparse", "Sparse", "words"),
    users("restless", "Restless", "dataset", find_unused=True),
]
FAULTY: dict[str, tuple[Case, Expected]] = {
    training.name: (training, expected)
    for training, expected in _typed(
        (case("init", "rank-init=1", model="conv"), {"TRN002": (WARN, [1])}),
        (case("epoch", "no-set-epoch", model="conv"), {"TRN007": (WARN, [None])}),
        (case("skip", "skip-step=1@2", model="conv"), {"TRN003": (FAIL, [1]), "TRN008": (FAIL, [None])}),
        (
            case("alone", "no-sync=1", model="conv"),
            {"TRN003": (FAIL, [1]), "TRN004": (FAIL, [1]), "TRN005": (FAIL, [1]), "TRN008": (FAIL, [None])},
        ),
        (case("unused", "unused", model="conv"), {"TRN010": (FAIL, [None])}),
        (case("uneven", "uneven=1", model="conv"), {"TRN011": (FAIL, [1])}),
        *(
            (users(name, "Net", "dataset", step=f"trainees.py:{name}"), {"TRN027": (state, [rank])})
            for name, state, rank in (
                ("divided", WARN, None),
                ("clipped_early", WARN, None),
                ("scheduled_on_rank_0", FAIL, 1),
                ("averaged_on_rank_0", WARN, 1),
            )
        ),
        (users("frozen", "Frozen", "dataset"), {"TRN002": (FAIL, [1])}),
        (users("seeded", "Seeded", "dataset"), {"TRN002": (WARN, [1])}),
        (users("unshared", "Net", "loader"), {"TRN006": (FAIL, [None])}),
        (users("deaf", "Net", "deaf"), {"TRN007": (WARN, [None])}),
        (users("reseeding", "Net", "reseeding"), {"TRN009": (WARN, [1, 1])}),
        (
            users("summed", "Net", "dataset", loss="trainees.py:summed"),
            {"TRN004": (WARN, [None]), "TRN005": (WARN, [None])},
        ),
        (users("scaled", "Scaled", "dataset"), {"TRN004": (WARN, [None]), "TRN008": (FAIL, [None])}),
        (users("clipping", "Clipping", "dataset"), {"TRN004": (WARN, [None]), "TRN005": (WARN, [None])}),
        (users("stream", "Net", "Stream", steps=20), {"TRN011": (FAIL, [1])}),
        (users("no number", "NoNumber", "dataset"), {"TRN001": (FAIL, [None]), "TRN012": (FAIL, [1])}),
        (users("branching", "Branching", "dataset"), {"TRN010": (FAIL, [1])}),
    )
}
OF_FOUR: dict[str, tuple[Case, Expected]] = {
    training.name: (training, expected)
    for training, expected in _typed(
        (case("sound"), {}),
        (case("init", "rank-init=2", ranks=4, model="conv"), {"TRN002": (WARN, [2])}),
        (
            case("all", "skip-step=3@2", "uneven=1", "no-set-epoch", ranks=4, model="conv"),
            {
                "TRN003": (FAIL, [3]),
                "TRN007": (WARN, [None]),
                "TRN008": (FAIL, [None]),
                "TRN011": (FAIL, [1]),
            },
        ),
        (
            case("alone", "no-sync=2", "unused", ranks=4, model="conv"),
            {
                "TRN003": (FAIL, [2]),
                "TRN004": (FAIL, [2]),
                "TRN005": (FAIL, [2]),
                "TRN008": (FAIL, [None]),
                "TRN010": (FAIL, [None]),
            },
        ),
    )
}


@cache
def sound() -> dict[str, list[Outcome]]:
    return outcomes_of(SOUND, 2)


@cache
def faulty() -> dict[str, list[Outcome]]:
    return outcomes_of([training for training, _ in FAULTY.values()], 2)


@cache
def of_four() -> dict[str, list[Outcome]]:
    return outcomes_of([training for training, _ in OF_FOUR.values()], 4)


def verdicts(training: Case, outcomes: list[Outcome]) -> dict[str, Verdict]:
    return {v.code: v for v in judge(cluster_of(training, len(outcomes), outcomes[0].told), RULES)}


def troubles(judged: dict[str, Verdict]) -> Expected:
    bad = {code: [f for f in verdict.findings if f.state in TROUBLE] for code, verdict in judged.items()}
    return {code: (judged[code].state, [f.where.rank for f in those]) for code, those in bad.items() if those}


def checks_of(name: str) -> Checks:
    smoke = sound()[name][0].told.smoke
    assert smoke
    assert smoke.checks
    return smoke.checks


@pytest.mark.parametrize("training", SOUND, ids=lambda training: training.name)
def test_a_sound_training_gives_no_warning(training: Case) -> None:
    judged = verdicts(training, sound()[training.name])
    assert troubles(judged) == {}
    assert judged["TRN003"].state is State.OK


@pytest.mark.parametrize("name", FAULTY)
def test_a_defect_is_named(name: str) -> None:
    training, expected = FAULTY[name]
    assert troubles(verdicts(training, faulty()[name])) == expected


@pytest.mark.nightly
@pytest.mark.parametrize("name", OF_FOUR)
def test_four_ranks_tell_who_it_is(name: str) -> None:
    training, expected = OF_FOUR[name]
    assert troubles(verdicts(training, of_four()[name])) == expected


def test_gradients_of_the_built_in_models_are_those_of_one_process() -> None:
    for name in ("transformer", "conv"):
        for gradients in (checks_of(name).gradients, checks_of(name).accumulation):
            assert gradients
            assert gradients.joined is not None
            assert gradients.joined < 1e-5
            assert [error.rank for error in gradients.errors] == [0, 1]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("normalised", "BatchNorm sees the batch of its rank only (between.0)"),
        ("dropping", "the model draws random numbers (between.2)"),
    ],
)
def test_what_cannot_be_joined_is_named(name: str, why: str) -> None:
    gradients = checks_of(name).gradients
    assert gradients
    assert (gradients.not_joined, gradients.joined, gradients.wrong) == (why, None, 0)


def test_a_model_that_does_not_repeat_itself_is_not_compared() -> None:
    reasons = {unchecked.check: unchecked.why for unchecked in checks_of("restless").unchecked}
    assert "for the same batch and seed" in reasons["gradients"]
    assert "another loss each time" in reasons["metric"]


@pytest.mark.parametrize(
    "training", [*SOUND, *(training for training, _ in FAULTY.values())], ids=lambda training: training.name
)
def test_every_rank_ends_with_the_same_steps(training: Case) -> None:
    ranks = {**sound(), **faulty()}[training.name]
    assert ranks[0].steps == ranks[1].steps
    if training.name not in (
        "normalised",
        "skip",
        "alone",
    ):  # statistics, or what was asked for, are each rank's own
        assert ranks[0].digest == ranks[1].digest
