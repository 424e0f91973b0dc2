"""Losses that end, state that grows, and other steps, trained by two real gloo ranks: each is named, or sound."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from ncclcheck.probes.facts.training import Agreement, OwnStep
from ncclcheck.probes.training.course.optimizers import Optimizers
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.subjects.training import own_loop
from tests.jobs.training_job import Case
from tests.probes.training.test_recipes import bad, case, judged_of, shown

pytestmark = pytest.mark.timeout(300)  # a job of two ranks, each of which imports torch


def step(name: str, **more: Any) -> Case:
    return case(name, file="loops.py", step=name, **{"steps": 8, **more})


def loss(name: str, **more: Any) -> Case:
    return case(name, file="loops.py", loss=name, **more)


SOUND = [
    step("rebuilt", model="Auto", data="alone"),
    step("skips_bad"),
    step("noted"),
    step("skips_nan_together"),
    step("head_reset"),
    step("evaluated", model_kwargs={"drop": 0.3}),
    loss("against_zero"),
    step("noise_by_rank"),
    step("accumulates"),
    step("second_order"),
    step("sharded_optimizer"),
    step("logs_alike"),
    step("by_plateau"),
    step("in_phases", model="Phases", find_unused=True),
    step("seeds_in_a_fork"),
    step("shadowed"),
    step("scheduled"),
    step("annealed"),
    step("annealed_within_an_epoch"),
    step("comes_back", model_kwargs={"drop": 0.3}),
    step("clips_whole", strategy="fsdp"),
    loss("of_tokens", model="Tied", data="masked"),
    loss("makes_loss"),
    step("looks_at_copy"),
    step("divided_pieces"),
    step("hooked_and_removed"),
    step("clamped"),
]
FAULTY: dict[str, tuple[Case, str, State, str]] = {
    given.name: (given, code, state, words)
    for given, code, state, words in (
        (step("decaying"), "TRN030", State.FAIL, "log() gives the first number that is not finite, at loops.py:"),
        (step("entropy"), "TRN030", State.FAIL, "log() gives the first number that is not finite, at loops.py:"),
        (step("too_fast"), "TRN030", State.FAIL, "lower the learning rate"),
        (step("rooted"), "TRN030", State.FAIL, "A root of a number below 0, or of 0 in backward. See loops.py:"),
        (step("kept_losses"), "TRN031", State.WARN, "state['losses'] grows"),
        (step("kept_global"), "TRN031", State.WARN, "loops.py: HISTORY grows"),
        (step("kept_outputs"), "TRN031", State.WARN, "state['outputs'] grows"),
        (step("hooked_again"), "TRN031", State.WARN, "the hooks of model.net.0 become 1 more with each step"),
        (step("summed_up"), "TRN031", State.WARN, "state['total'] += loss.item()"),
        (step("looks_at_average"), "TRN027", State.FAIL, "Rank 0 alone changes weights outside of the"),
        (step("back_to_best"), "TRN027", State.FAIL, "in back_to_best"),
        (step("scaled_by_batch"), "TRN027", State.FAIL, "in scaled_by_batch, with values of its own"),
        (step("head_forgotten"), "TRN027", State.WARN, "net.3.weight, net.3.bias get gradients"),
        (step("head_replaced"), "TRN027", State.FAIL, "came into the model after DDP had wrapped it"),
        (
            step("skips_nan_alone"),
            "TRN028",
            State.FAIL,
            "rank 1 calls no backward() in step 3, while the others do",
        ),
        (step("left_in_eval", model_kwargs={"drop": 0.3}), "TRN027", State.WARN, "in eval(): net.2"),
        (step("rate_of_zero"), "TRN027", State.WARN, "learning rate is 0"),
        (step("wiped"), "TRN027", State.FAIL, "zero_grad() comes between"),
        (step("clipped_first"), "TRN027", State.WARN, "before its backward pass"),
        (step("undivided"), "TRN027", State.WARN, "adds up 4 micro-batches without dividing"),
        (step("undivided_pieces"), "TRN027", State.WARN, "adds up 4 micro-batches without dividing"),
        (step("synced_too_early"), "TRN027", State.FAIL, "not averaged over ranks"),
        (step("averages_weights_only"), "TRN027", State.FAIL, "net.0.bias, net.3.bias are not averaged"),
        (step("decays_on_main"), "TRN027", State.FAIL, "some ranks change theirs in between"),
        (step("skips_in_turn", steps=7), "TRN027", State.FAIL, "In calls 2, 3, 4, 5 of the step"),
        (
            step("made_anew"),
            "TRN027",
            State.WARN,
            "state['optimizer'] = torch.optim.Adam(model.parameters(), lr=0.01)",
        ),
        (step("logs_on_main"), "TRN028", State.FAIL, "Let all ranks call mean_over_ranks at loops.py:"),
        (step("by_own_plateau", steps=16), "TRN027", State.FAIL, "dist.all_reduce(metric)"),
        (step("in_phases", model="Phases"), "TRN010", State.FAIL, "another pass reaches it"),
        (
            step("thawed", model="HalfFrozen"),
            "TRN027",
            State.FAIL,
            "were frozen or not there when DDP wrapped the model",
        ),
        (step("teacher_is_student"), "TRN027", State.WARN, "copy.deepcopy(model)"),
        (step("summed_gradients"), "TRN027", State.WARN, "larger by the number of ranks (2)"),
        (step("seeds_again"), "TRN027", State.WARN, "sets the seed of torch to the same in every step"),
        (step("shadow_is_model"), "TRN027", State.WARN, "self.shadow = {k: v.detach().clone()"),
        (
            step("annealed_by_epochs"),
            "TRN027",
            State.WARN,
            "CosineAnnealingLR(T_max=3) is stepped with each batch",
        ),
        (case("dropped", "LayerDrop", file="loops.py"), "TRN010", State.FAIL, "is drawn at random in the forward"),
        (case("branch", "Branch", file="loops.py"), "TRN010", State.FAIL, "depends on the batch"),
        (step("floored", steps=12), "TRN027", State.WARN, "divides by `//`, at loops.py:"),
        (
            step("evaluates_once", model_kwargs={"drop": 0.3}),
            "TRN027",
            State.WARN,
            "from step 6 on the given step",
        ),
        (step("two_heads"), "TRN027", State.FAIL, "centers.weight is trained beside the wrapped model"),
        (step("clips_pieces", strategy="fsdp"), "TRN027", State.WARN, "scales the pieces of one gradient"),
        (
            case("tied", "Tied", "masked", file="loops.py", loss="of_tokens", model_kwargs={"by_data": True}),
            "TRN033",
            State.WARN,
            "self.write.weight = self.read.weight",
        ),
        (loss("softmax_twice"), "TRN032", State.WARN, "probabilities instead of scores, at loops.py:"),
        (loss("pairs"), "TRN032", State.WARN, "8x1 against 8 gives 8x8"),
        (loss("column_minus_row"), "TRN032", State.WARN, "compares each output with the target of every sample"),
        (loss("scores_as_logs"), "TRN032", State.WARN, "log_softmax"),
        (loss("one_class"), "TRN032", State.WARN, "single class"),
        (loss("sigmoid_twice"), "TRN032", State.WARN, "come out of a sigmoid"),
    )
}


@cache
def judged(*, sound: bool, half: int = 0) -> dict[str, list[Verdict]]:
    """The faulty ones in two jobs, each of which ends within its time on a busy machine."""
    return judged_of(SOUND if sound else [given for given, *_ in FAULTY.values()][half::2])


@pytest.mark.parametrize("name", [loop.name for loop in SOUND])
def test_a_sound_loop_has_no_failure_and_no_warning(name: str) -> None:
    assert bad(judged(sound=True)[name]) == []


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_loop_is_reported_with_its_cause_first(name: str) -> None:
    _, code, state, words = FAULTY[name]
    half = [*FAULTY].index(name) % 2
    (first, finding), *_ = bad(judged(sound=False, half=half)[name])
    assert (first, finding.state, words in shown(finding)) == (code, state, True), shown(finding)


@pytest.mark.parametrize("rounded", [True, False])
def test_gradients_that_are_always_0_are_a_note(rounded: bool) -> None:
    first, last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    torch.nn.init.ones_(first.weight)  # sums that round to 4; at 0 the last layer has no gradient
    model = torch.nn.Sequential(first, last)
    optimizer, looks = torch.optim.SGD(model.parameters(), lr=0.1), Optimizers(model, stepped=False)
    for _ in range(4):
        optimizer.zero_grad()
        out = first(torch.ones(2, 4))
        last(torch.round(out) if rounded else out).sum().backward()
        optimizer.step()
    looks.end()
    assert looks.zero() == (["0.bias", "0.weight"] if rounded else [])
    findings = [*own_loop.wrong(OwnStep(steps=4, parameters=Agreement(tensors=4), zero=looks.zero()))]
    assert [finding.state for finding in findings] == ([State.NOTE] if rounded else [])


@pytest.mark.parametrize(
    ("made", "call"),
    [
        (
            lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            "SGD(model.parameters(), lr=0.1, momentum=0.9)",
        ),
        (lambda model: torch.optim.AdamW(model.parameters()), "AdamW(model.parameters())"),
    ],
)
def test_a_fix_makes_the_optimizer_of_the_step_again(
    made: Callable[[torch.nn.Module], torch.optim.Optimizer], call: str
) -> None:
    """Its class and what it was given, whatever a schedule has made of its learning rate since."""
    model = torch.nn.Linear(4, 1)
    optimizer, looks = made(model), Optimizers(model, stepped=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        schedule.step()
    looks.end()
    assert looks.call_of_one() == f"torch.optim.{call}"
    step = OwnStep(steps=4, parameters=Agreement(tensors=2), optimizer=looks.call_of_one(), remade=4)
    assert f"state['optimizer'] = torch.optim.{call}" in str(next(iter(own_loop.wrong(step))).remedies)
