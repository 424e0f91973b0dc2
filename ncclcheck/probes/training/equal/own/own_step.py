"""The user's own step, with its optimizer, scheduler, clipping and averages: over ranks, and in one process."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ncclcheck.probes.facts import replace
from ncclcheck.probes.facts.training import Checks, OwnStep, Unchecked
from ncclcheck.probes.training import given
from ncclcheck.probes.training.course import accumulation
from ncclcheck.probes.training.course.averaged import Averaged
from ncclcheck.probes.training.course.calls import StepCalls
from ncclcheck.probes.training.course.optimizers import Mood, Optimizers
from ncclcheck.probes.training.course.reseeded import ReseededSteps
from ncclcheck.probes.training.course.scaled import Scaled
from ncclcheck.probes.training.course.schedules import cosine, floored
from ncclcheck.probes.training.course.unreduced import UNREDUCED
from ncclcheck.probes.training.course.watch import StepWatch
from ncclcheck.probes.training.equal import joined
from ncclcheck.probes.training.equal.alike import MOST, agreement, of_all_ranks
from ncclcheck.probes.training.equal.own.alone import ANSWERS, alone
from ncclcheck.probes.training.equal.own.beside import FollowedValues
from ncclcheck.probes.training.equal.own.entered import Parted, agreed
from ncclcheck.probes.training.equal.own.own_state import aliased, apart
from ncclcheck.probes.training.equal.own.unchanged import StillAverages
from ncclcheck.probes.training.equal.seeds import SEED, own_generators
from ncclcheck.probes.training.equal.state import (
    Alone,
    added,
    fingerprint,
    fingerprints,
    lasting,
    of_16_bits,
    plain,
)
from ncclcheck.probes.training.feed import Batch, moved, samples_of
from ncclcheck.probes.training.loop import TrainingSetting, bare, stream, wrap

_STEPS, _LEAST_STEPS = 20, 6  # chosen: schedulers and averages show within them; six, however slow a step is
_STEPS_SHARE = 0.2  # of the time box, for steps beyond the least
_MOST_RATES, _MOST_REACHED = 64, 50  # learning rates and names that are kept: chosen
_MOST_JOINED = 8  # micro-batches of a step that are joined over ranks; each is sent to all of them
_TOLERANCE, _IN_AUTOCAST = 1e-3, 5e-2  # of the norm; clipping and unscaling round once more than TRN004 does

_RANDOM = "the step draws random numbers: another seed, rank or order of samples gives other gradients"

_NO_STEP = "its optimizer was given no gradient in the calls that were tried"
_BY_ITSELF = "it takes no step of an optimizer of torch's, and changes the weights by itself"

Step = Callable[[nn.Module, Batch, dict[str, Any]], Any]
Grads = dict[str, Tensor]


def seen(setting: TrainingSetting) -> Checks:
    """Steps on all ranks, then the first one again in one process that has the batches of all."""
    step = given.step(setting.plan)
    if step is None:
        return Checks(unchecked=[Unchecked(check="own_step", why="no step was given: --step MODULE:FUNCTION")])
    return _seen(setting, step)


def _seen(setting: TrainingSetting, step: Step) -> Checks:
    model, state, batches = wrap(setting, setting.fresh_model()), dict[str, Any](), stream(setting)
    begun, wrapped, there = fingerprints(bare(model)), _trained(model), [*model.parameters()]
    calls, watch, mood = StepCalls(), StepWatch(model, {"state": state, "step": step}), Mood(bare(model))
    beside, through = FollowedValues(setting, bare(model), state), list[int]()
    entering = model.register_forward_pre_hook(lambda _, batch: through.append(_rows(batch)))
    scaled, reseeded = Scaled(model), ReseededSteps(setting.device, setting.peers.rank)
    averaged, still = Averaged(model), StillAverages()
    try:
        first = watch.step(setting.first[0])
        with agreed(setting.peers) as called, first, calls.watched(), scaled.watched(), averaged.watched():
            ours = _first_gradients(setting, step, model, state, setting.first[:1])
    except Parted as parted:
        return _parted(setting, parted, 1)
    entering.remove()
    still.look(state)
    past_wrap = not any(of_all_ranks(setting.peers, bool(through))) and bool(ours)
    unaveraged, passes = _unaveraged(setting, ours), watch.passes
    altered = bool(unaveraged.get("unaveraged")) and _alike(setting, averaged)
    optimizers = Optimizers(model, stepped=bool(ours))
    new = _everywhere(setting, added(model, there))
    try:
        steps = _go_on(setting, step, model, state, batches, watch, mood, reseeded, optimizers, still)
    except Parted as parted:
        return _parted(setting, parted, watch.steps)
    except RuntimeError as error:
        if not new or UNREDUCED not in str(error):
            raise
        return _replaced(setting, model, watch.steps, new, optimizers)
    finally:
        optimizers.end()
        evaluating = mood.end()
    idle = of_all_ranks(setting.peers, begun == fingerprints(bare(model))) == [True] * setting.peers.world
    unheld, share = optimizers.unheld()
    verdict = OwnStep(
        steps=steps,
        parameters=agreement(setting.peers, bare(model), lasting(bare(model))),
        clipped_scaled=calls.clipped_scaled(),
        clipped=calls.clipped(),
        wiped=calls.wiped() and idle,
        tolerance=_IN_AUTOCAST if "autocast" in calls.called or _rounds(model) else _TOLERANCE,
        idle=idle,
        idle_why=optimizers.idle() if idle else "",
        stale=any(of_all_ranks(setting.peers, optimizers.reused)),
        lost=min(of_all_ranks(setting.peers, optimizers.lost())),
        past_wrap=past_wrap,
        **unaveraged,
        optimizer=optimizers.call_of_one(),
        remade=optimizers.remade(),
        skipped=_only_some(setting, optimizers.calls),
        altered=altered,
        taken=taken if len({*(taken := of_all_ranks(setting.peers, optimizers.steps + bool(ours)))}) > 1 else [],
        state=apart(setting, model, state),
        written=watch.writes.lines(setting.peers),
        zero=_everywhere(setting, optimizers.zero())[:MOST],
        unheld=unheld[:MOST],
        unheld_share=share,
        evaluating=evaluating[:MOST],
        evaluating_since=mood.since,
        aliased=aliased(bare(model), state),
        still=[] if idle else still.lost(step),
        factors=_factors(setting, scaled),
        rates=optimizers.rates[:_MOST_RATES],
        floored=floored(),
        cosine=cosine(state, steps, setting.feed.least),
        reseeded=_everywhere(setting, reseeded.always()),
        seeded_at=calls.seeded_at,
        unfrozen=[name for name in _trained(model) if name not in wrapped][:MOST],
        reached=[name for name in setting.unused if name in optimizers.got][:_MOST_REACHED],
        plateaus=[name for name, scheduler in state.items() if isinstance(scheduler, ReduceLROnPlateau)][:MOST],
    )
    course = watch.course(setting, own=True)
    if "scale" in calls.called:  # a scaler that skips its first step raises this warning too
        course = replace(course, warned=[warning for warning in course.warned if "lr_scheduler" not in warning])
    kept, fed = beside.changes(steps, _after_one(setting, step)), setting.first[:1]
    if not any(of_all_ranks(setting.peers, bool(ours))):
        calls_taken, undivided = accumulation.look(setting, step)
        verdict = replace(verdict, calls=calls_taken, undivided=undivided, idle=verdict.idle and calls_taken < 2)
        if 1 < calls_taken <= _MOST_JOINED and setting.plan.strategy == "ddp":
            fed = [*islice(stream(setting), calls_taken)]
            ours = _first_gradients(setting, step, wrap(setting, setting.fresh_model()), {}, fed)
            verdict = replace(verdict, **_unaveraged(setting, ours))
    verdict = _by_pieces(setting, through, passes, ours, verdict)
    if why := _not_joined(setting, passes, called, verdict):
        verdict = replace(verdict, not_joined=why)
    else:
        verdict = _against_one(setting, step, fed, ours, verdict)
    return Checks(own_step=verdict, courses=[course], beside=kept)


def _by_pieces(
    setting: TrainingSetting, through: Sequence[int], passes: int, ours: Grads, verdict: OwnStep
) -> OwnStep:
    """Whether a step divides the losses of the pieces that it makes of its batch. through: samples of each forward
    pass.
    """
    apiece = len(through) == passes and sum(through) == samples_of(setting.first[0])
    pieces = of_all_ranks(setting.peers, passes if apiece else 0)
    if len({*pieces}) > 1 or pieces[0] < 2:
        return verdict
    return replace(verdict, undivided=accumulation.of_pieces(setting, ours, pieces[0]))


def _rows(batch: Any) -> int:
    """Samples that a forward pass is called with, by its first tensor."""
    return next((len(part) for part in batch if isinstance(part, Tensor) and part.dim()), 0)


def _not_joined(setting: TrainingSetting, passes: int, called: Sequence[str], step: OwnStep) -> str:
    """Why its gradients cannot be compared with those of one process."""
    if any(of_all_ranks(setting.peers, passes > 1)):  # what one gives may go into the next, as in a GAN or SAM
        return "the step has several backward passes"
    if others := [name for name in called if name not in ANSWERS]:
        return f"the step calls {others[0]}"
    if setting.plan.strategy != "ddp":
        return "ranks hold pieces of gradients"
    return "the step sets its own seeds" if step.reseeded else ""


def _parted(setting: TrainingSetting, parted: Parted, step: int) -> Checks:
    """Some rank is about to enter another collective: no further step can be taken."""
    setting.parted = parted.fact(step)
    why = "ranks enter different collectives in it (TRN028)"
    return Checks(entered=setting.parted, unchecked=[Unchecked(check="own_step", why=why)])


def _replaced(
    setting: TrainingSetting, model: nn.Module, step: int, new: list[str], optimizers: Optimizers
) -> Checks:
    """DDP, which still waits for the parameters that were there before, has ended this step on all ranks."""
    same = agreement(setting.peers, bare(model), lasting(bare(model)))
    made = optimizers.call_of_one()
    return Checks(own_step=OwnStep(steps=step, parameters=same, optimizer=made, added=new[:MOST]))


def _rounds(model: nn.Module) -> bool:
    """Whether gradients are rounded to 16 bits: weights are, or DDP has a communication hook that compresses."""
    return bool(getattr(model, "_comm_hooks", ())) or of_16_bits(model)


def _trained(model: nn.Module) -> list[str]:
    return [plain(name) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _factors(setting: TrainingSetting, scaled: Scaled) -> list[float]:
    """By which each rank scaled its pieces of the gradients, where these are not the same number."""
    if setting.plan.strategy == "ddp":
        return []
    factors = of_all_ranks(setting.peers, scaled.factor())
    uneven = None not in factors and max(factors) - min(factors) > _TOLERANCE * max(factors)
    return factors[:MOST] if uneven else []


def _only_some(setting: TrainingSetting, mine: set[int]) -> list[int]:
    """Calls of the step in which the optimizers of some ranks take a step, and those of others do not."""
    ranks = [{*names} for names in of_all_ranks(setting.peers, sorted(mine))]
    return sorted(set.union(*ranks) - set.intersection(*ranks))[:MOST]


def _alike(setting: TrainingSetting, averaged: Averaged) -> bool:
    """Whether all ranks had the same gradients after their last backward pass."""
    ranks = of_all_ranks(setting.peers, averaged.prints)
    return bool(ranks[0]) and all(rank == ranks[0] for rank in ranks)


def _everywhere(setting: TrainingSetting, mine: list[str]) -> list[str]:
    """Those of these that all ranks have."""
    ranks = of_all_ranks(setting.peers, mine)
    return [name for name in mine if all(name in rank for rank in ranks)]


def _go_on(
    setting: TrainingSetting,
    step: Step,
    model: nn.Module,
    state: dict[str, Any],
    batches: Iterator[Batch],
    watch: StepWatch,
    mood: Mood,
    reseeded: ReseededSteps,
    optimizers: Optimizers,
    still: StillAverages,
) -> int:
    """Further steps, as many as a fifth of the time box allows; how many were taken in all."""
    begun, taken = setting.share_left(), 1
    while taken < min(setting.plan.steps, _STEPS):
        if taken >= _LEAST_STEPS and setting.share_left() < begun - _STEPS_SHARE:
            break
        setting.context.tick()
        batch = moved(next(batches), setting.device)
        mood.next()
        optimizers.call += 1
        reseeded.begin()
        with agreed(setting.peers) if setting.plan.strategy == "ddp" else nullcontext(), watch.step(batch):
            step(model, batch, state)
        reseeded.end()
        still.look(state)
        taken += 1
    return taken


def _first_gradients(
    setting: TrainingSetting,
    step: Step,
    model: nn.Module,
    state: dict[str, Any],
    batches: Sequence[Batch],
    seed: int = SEED,
) -> Grads:
    """What the optimizer was given in its first step on these batches: after clipping and unscaling."""
    gradients: Grads = {}

    def keep(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and plain(name) not in gradients:
                gradients[plain(name)] = parameter.grad.detach().to_dense().float().clone()

    handle = register_optimizer_step_pre_hook(keep)
    try:
        with own_generators(setting.device, seed):
            for batch in batches:
                step(model, moved(batch, setting.device), state)
    finally:
        handle.remove()
    return gradients


def _unaveraged(setting: TrainingSetting, ours: Grads) -> dict[str, Any]:
    """Whether ranks gave their optimizers different gradients, and of which parameters, where it is not all.

    FSDP's pieces differ by design.
    """
    if setting.plan.strategy != "ddp":
        return {}
    prints = of_all_ranks(setting.peers, {name: fingerprint(tensor) for name, tensor in ours.items()})
    if not all(prints):
        return {}
    apart = [name for name, digest in prints[0].items() if any(other.get(name) != digest for other in prints)]
    some = apart if len(apart) < len(prints[0]) else []
    return {"unaveraged": bool(apart), "unaveraged_only": some[:MOST]}


def _against_one(
    setting: TrainingSetting, step: Step, batches: Sequence[Batch], ours: Grads, verdict: OwnStep
) -> OwnStep:
    if not all(of_all_ranks(setting.peers, bool(ours))):
        why = f"its optimizer takes a step with each {verdict.calls} calls" if verdict.calls > 1 else _NO_STEP
        why = why if verdict.idle or verdict.calls != 0 else _BY_ITSELF
        return replace(verdict, not_joined=why)
    whole, why = joined.over_ranks(setting, batches)
    if why:
        return replace(verdict, not_joined=why)
    off, ratio, random = 0.0, 0.0, 0.0
    if setting.peers.rank == 0:
        try:
            with alone():
                wanted = _first_gradients(setting, step, Alone(setting.fresh_model()), {}, whole)
            off, ratio = _compared(ours, wanted)
            if off > verdict.tolerance:
                random = _compared(_otherwise(setting, step, whole), wanted)[0]
        except Exception as error:  # it ran on all ranks: what it wants of a job is not there for one process
            why = f"the step cannot be run by one process ({type(error).__name__})"
    off, ratio, random, why = of_all_ranks(setting.peers, [off, ratio, random, why])[0]
    if why or random > verdict.tolerance:
        return replace(verdict, not_joined=why or _RANDOM)
    verdict = replace(verdict, off=off, ratio=ratio)
    return (
        verdict
        if off <= verdict.tolerance
        else replace(verdict, of_rank=_of_rank(setting, step, batches, ours, verdict))
    )


def _of_rank(
    setting: TrainingSetting, step: Step, batches: Sequence[Batch], ours: Grads, verdict: OwnStep
) -> int | None:
    """The only rank whose own batch gives these gradients, which all ranks have."""
    same = False
    with contextlib.suppress(Exception), alone():  # it ran on all ranks: what it wants of a job may not be there
        own = _first_gradients(setting, step, Alone(setting.fresh_model()), {}, batches)
        same = _compared(ours, own)[0] <= verdict.tolerance
    ranks = [rank for rank, agrees in enumerate(of_all_ranks(setting.peers, same)) if agrees]
    return ranks[0] if len(ranks) == 1 and not verdict.unaveraged else None


def _after_one(setting: TrainingSetting, step: Step) -> Callable[[Any], list[Tensor]]:
    """The gradients and parameters that one more step comes to, with copies of model and state, in one process."""

    def of(roots: Any) -> list[Tensor]:
        model, state = roots
        with alone(setting.peers.rank):
            grads = _first_gradients(setting, step, Alone(model), state, setting.first[:1])
        return [*grads.values(), *(parameter.detach().float() for parameter in model.parameters())]

    return of


def _otherwise(setting: TrainingSetting, step: Step, whole: Sequence[Batch]) -> Grads:
    """What one process gets with another seed, as another rank, and with the samples in reverse."""
    with alone(rank=1):
        for given in ([*map(joined.backwards, whole)], whole):
            with contextlib.suppress(Exception):
                return _first_gradients(setting, step, Alone(setting.fresh_model()), {}, given, SEED + 1)
    return {}


def _compared(ours: Grads, wanted: Grads) -> tuple[float, float]:
    """The difference as a share of the norm wanted, and by which factor ours are those wanted."""
    names = ours.keys() & wanted.keys()
    dot = sum(float((ours[name] * wanted[name]).sum()) for name in names)
    square = sum(float(wanted[name].square().sum()) for name in names)
    off = sum(float((ours[name] - wanted[name]).square().sum()) for name in names)
    if not square or not math.isfinite(dot + square + off):
        return 0.0, 1.0
    return math.sqrt(off / square), dot / square
