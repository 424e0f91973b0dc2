"""TRN: the user's own step keeps ranks alike, and its gradients are those of one process."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training import DifferingTensor, OwnStep, WrittenWeights
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, fail, fine, note, seen, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.training import own_loop, written
from ncclcheck.reports.subjects.training.trained import SLIGHT, checked, partly, place, ranks
from ncclcheck.reports.text.words.fold import first_of

_COUNTERS = ("n_averaged", "last_epoch", "_step_count", "step", "num_updates")  # of what some ranks update only


@rule(
    "TRN027",
    "the given step keeps all ranks in sync",
    worst=State.FAIL,
    over="",
    ground=(
        "TRN012",
        "TRN030",
        "TRN032",
    ),
    commands=("smoke",),
)
@checked("own_step")
def own_step(cluster: Cluster, step: OwnStep) -> Iterator[Finding]:
    """
    ## What
    The function given with `--step`, called as `step(model, batch, state)` with the wrapped model: some steps with
    its own optimizer, scheduler, clipping, GradScaler and averages, which it keeps in the dict `state`.

    ## Why it matters
    A scheduler that steps on rank 0 only, a loss divided by the world size, or gradients that are clipped before
    they are averaged raise no error: the ranks train different models, or with another learning rate than is set.

    ## Seen as
    wrong results

    ## How we know
    Parameters are compared bit by bit over ranks, and the entries of whatever in `state` has a state_dict() and is
    there on all ranks (an average kept on rank 0 alone is left out, and so are BatchNorm's statistics). The
    gradients that its optimizer is given in the first step are compared with those of the same step in one process
    on the batches of all ranks, where the world has one rank: up to 1e-3 of the norm is rounding, in autocast
    5e-2.

    Calls of torch's clipping, `scaler.unscale_`, `backward`, `zero_grad` and of optimizers are seen by name. A
    step that takes several micro-batches is given one batch until its optimizer steps: what it gets is compared
    with the gradient of the given loss. They are not compared where another seed, rank or order of the samples
    gives one process other gradients: then the step draws noise. Every generator is given another seed before each
    step: one that is in the same state after all of them was set by the step. Of sharded parameters (FSDP) the
    norm after backward() is compared with that at the step. Parameters that get gradients and stand in no
    optimizer are a note where they are most of the model, as where a head alone is trained. Where parameters
    differ, the user's lines that change weights outside of an optimizer are named, and the ranks that come to
    them. Parameters are known by identity: one of the same name that came after the wrap is named where DDP raises
    for the one that is gone.

    ## Fix
    - **you** step optimizer, scheduler, scaler and averages on every rank.
    - **you** DDP divides by the number of ranks: don't divide the loss again; clip after backward().

    ## Source
    PyTorch, DistributedDataParallel; PyTorch, Automatic Mixed Precision examples, Gradient clipping.
    """
    if step.added:
        yield _added(step)
        return
    apart = [parameter for parameter in step.parameters.differing if not parameter.local]
    if apart:
        first, line = apart[0], _line(step)
        yield fail(
            place(cluster, ((line.ranks if line else []) or first.ranks)[0]),
            f"after {step.steps} of the given steps {_who_differs(step, first)}: "
            f"{', '.join(parameter.name for parameter in apart[:3])}",
            why=_why_apart(step),
            owner="job",
            evidence=[
                *(seen(f"bits of {parameter.name}", _where(step, parameter)) for parameter in apart[:3]),
                *(
                    seen(part.name, f"differs on {ranks(part.ranks, part.count)}")
                    for part in _first_to_differ(step)
                ),
                *(seen("optimizer steps by rank", ", ".join(map(str, step.taken[:8]))) for _ in step.taken[:1]),
                *([written.evidence(line)] if line else []),
            ],
            fix=[_fix_apart(step)],
        )
    elif beside := [parameter for parameter in step.state if parameter.kind == "parameter"]:
        yield _beside(cluster, beside)
    elif step.state:
        differing = step.state[0]
        yield warn(
            place(cluster, differing.ranks[0]),
            f"after {step.steps} of the given steps {differing.name} of the step's state is another on "
            f"{ranks(differing.ranks, differing.count)}",
            why=_of_plateau(fed)
            if (fed := _plateau(step))
            else "It was made or updated otherwise there, and is wrong where that rank reads or saves it.",
            owner="job",
            evidence=[seen(each.name, f"differs on {ranks(each.ranks, each.count)}") for each in step.state[:5]],
            fix=[_feed_the_mean(fed) if fed else _alike(differing)],
        )
    wrong = [*own_loop.wrong(step)]
    yield from wrong
    if step.not_joined and not step.taken:
        yield partly("its gradients were not compared with those of one process", step.not_joined)
    elif _by_tokens(cluster):
        yield partly("its gradients were not compared with those of one process", "TRN004: ranks differ in tokens")
    elif step.reached and step.off is not None and step.off > step.tolerance:
        yield partly("its gradients were not compared with those of one process", "TRN010: passes differ")
    elif step.off is not None and step.off > step.tolerance and not step.unaveraged and not step.state:
        slight = step.off < SLIGHT
        yield _slightly(step.off) if slight else _other_gradients(cluster, step)
    elif not apart and not step.state and not wrong:
        text = f"{step.steps} steps; gradients off by {step.off or 0.0:.2g} of the norm"
        yield fine(Where(), text, seen("the given step", text))


def _alike(differing: DifferingTensor) -> Remedy:
    name, counter = differing.name.partition(".")[0], differing.name.rpartition(".")[2]
    if counter in _COUNTERS:
        return you("Update it on every rank, or make it on rank 0 only.")
    return you(
        f"Make {name} alike on all ranks, a copy of the model or by one broadcast, and update it on all of them.",
        f"for tensor in state['{name}'].state_dict().values():  # once, when it has been made",
        "    dist.broadcast(tensor, src=0)",
    )


def _slightly(off: float) -> Finding:
    return note(
        Where(),
        f"the optimizer of the given step gets almost the gradients of one process: off by {off:.2g} of the norm",
        why="A part of the loss is no mean over samples, as one that balances experts over the batch.",
        evidence=[seen("gradients at optimizer.step()", f"off by {off:.2g} of the norm")],
    )


def _added(step: OwnStep) -> Finding:
    """find_unused_parameters=True ends DDP's exception, and what was added stays untrained then."""
    names = first_of(step.added, 3)
    layer = step.added[0].rpartition(".")[0] or step.added[0]
    return fail(
        Where(),
        f"{names} came into the model after DDP had wrapped it, and DDP raises in step {step.steps}: it waits "
        "for parameters that are gone",
        why="DDP averages only the parameters that it found when it wrapped the model; an optimizer made before "
        "does not hold the new ones either. find_unused_parameters=True hides this, and they stay untrained.",
        owner="job",
        evidence=[
            seen("parameters of the model that DDP does not know", names),
            seen(f"step {step.steps}, all ranks", "Expected to have finished reduction in the prior iteration"),
        ],
        fix=[
            you(
                f"Replace {layer} first, then wrap the model, then make the optimizer.",
                f"model.{layer} = ...\nmodel = DistributedDataParallel(model)\n"
                f"optimizer = {own_loop.optimizer_of(step)}",
            )
        ],
    )


def _by_tokens(cluster: Cluster) -> bool:
    """Whether TRN004 says that ranks have different numbers of tokens."""
    smoke = cluster.measurements.smoke
    gradients = smoke.checks.gradients if smoke and smoke.checks else None
    return gradients is not None and bool(gradients.tokens)


def _beside(cluster: Cluster, apart: list[DifferingTensor]) -> Finding:
    """Trained by an optimizer of the step, and no part of the model that was wrapped."""
    parameter, module = apart[0], apart[0].name.partition(".")[0]
    return fail(
        place(cluster, parameter.ranks[0]),
        f"{parameter.name} is trained beside the wrapped model, and is another on "
        f"{ranks(parameter.ranks, parameter.count)}",
        why="DDP hands out and averages only what is in the model that it wraps: each rank trains its own, and a "
        "checkpoint holds that of rank 0.",
        owner="job",
        evidence=[seen(each.name, f"differs on {ranks(each.ranks, each.count)}") for each in apart[:5]],
        fix=[
            you(
                f"Put {module} into the model that is wrapped, or wrap it as well.",
                f"state['{module}'] = DistributedDataParallel({module})",
            )
        ],
    )


def _line(step: OwnStep) -> WrittenWeights | None:
    """The line outside of an optimizer that made parameters differ, where nothing else did."""
    if step.taken or step.skipped or step.unaveraged or _unfrozen(step) or _plateau(step):
        return None
    return written.by_some(step) or (None if _cause(step) else written.by_all(step))


def _where(step: OwnStep, differing: DifferingTensor) -> str:
    tied = step.parameters.tied
    return "differ between ranks" if tied else f"differ on {ranks(differing.ranks, differing.count)}"


def _who_differs(step: OwnStep, first: DifferingTensor) -> str:
    """Of as many ranks as others none is known to be wrong, but by what it does."""
    line = _line(step)
    if line and line.ranks:
        return f"{ranks(line.ranks)} {'has' if len(line.ranks) == 1 else 'have'} other parameters"
    if step.parameters.tied:
        return "ranks have different parameters"
    return f"{ranks(first.ranks, first.count)} {'has' if first.count == 1 else 'have'} other parameters"


def _cause(step: OwnStep) -> str:
    """The first thing of the step's state that differs and is not a consequence of other parameters."""
    names = [
        differing.name
        for differing in step.state
        if ".state." not in differing.name and ".module." not in differing.name
    ]
    return min(names, key=lambda name: "sched" not in name, default="")


def _plateau(step: OwnStep) -> str:
    """The scheduler that steps on every rank, and is fed another metric on each."""
    apart = {differing.name for differing in step.state}
    fed = [
        scheduler
        for scheduler in step.plateaus
        if f"{scheduler}.best" in apart and f"{scheduler}.last_epoch" not in apart
    ]
    return next(iter(fed), "")


def _of_plateau(name: str) -> str:
    return (
        f"{name} is fed the loss of each rank's own batches: ReduceLROnPlateau lowers the learning rate of one "
        "rank earlier than that of another."
    )


def _feed_the_mean(name: str) -> Remedy:
    return you(
        f"Feed {name} the mean over ranks, which is the same on all of them.",
        "metric = loss.detach().clone()\ndist.all_reduce(metric)\n"
        f"state['{name}'].step(metric.item() / dist.get_world_size())",
    )


def _why_apart(step: OwnStep) -> str:
    if step.taken:
        counts = ", ".join(f"{steps} on rank {rank}" for rank, steps in enumerate(step.taken[:4]))
        return f"The optimizers of ranks took different numbers of steps: {counts}."
    if _unfrozen(step):
        return (
            f"{', '.join(_unfrozen(step)[:3])} were frozen or not there when DDP wrapped the model: it averages "
            "only what is trained then."
        )
    if step.unaveraged:
        return _why_unaveraged(step)
    if step.skipped:
        calls = ", ".join(map(str, step.skipped[:4]))
        return (
            f"In calls {calls} of the step the optimizers of some ranks take a step, and those of others do not."
        )
    if fed := _plateau(step):
        return _of_plateau(fed)
    if line := _line(step):
        return written.why(line)
    if cause := _cause(step):
        return f"{cause} differs as well: the ranks train different models from here on, without an error."
    return (
        "The ranks train different models from here on. Gradients were not seen to differ first, so look for what "
        "changes weights by rank: an initialisation after the wrap, a learning rate, noise."
    )


def _why_unaveraged(step: OwnStep) -> str:
    if step.altered:
        return (
            "Gradients are the same on all ranks after the backward pass, and not at the optimizer's step: some "
            "ranks change theirs in between."
        )
    if step.unaveraged_only:
        return (
            f"Gradients of {', '.join(step.unaveraged_only[:3])} are not averaged over ranks, and those of other "
            "parameters are: what averages them leaves these out."
        )
    return "Gradients are not averaged over ranks: each optimizer was given those of its own rank."


def _unfrozen(step: OwnStep) -> list[str]:
    """Of the parameters that differ those that DDP does not know."""
    apart = {differing.name for differing in step.parameters.differing}
    return [name for name in step.unfrozen if name in apart]


def _fix_apart(step: OwnStep) -> Remedy:
    if step.taken or (step.skipped and not step.unaveraged):
        return you(
            "Let all ranks decide alike whether to skip a step.",
            "bad = torch.tensor(float(skip), device=loss.device)\n"
            "dist.all_reduce(bad, op=dist.ReduceOp.MAX)\nif not bad:\n    optimizer.step()",
        )
    if _unfrozen(step):
        return you(
            "Wrap the model after the last change of requires_grad and of its layers, or wrap it anew with each.",
            "model = DistributedDataParallel(model.module)  # after requires_grad_(True)",
        )
    if step.unaveraged:
        return _fix_unaveraged(step)
    if line := _line(step):
        return written.fix(line)
    return _fix_state(step)


def _fix_unaveraged(step: OwnStep) -> Remedy:
    if step.calls > 1:
        return you(
            "Leave no_sync() in the call whose optimizer steps, forward pass included: one condition for both.",
            f"sync = step % {step.calls} == 0  # as of optimizer.step()\n"
            "with contextlib.nullcontext() if sync else model.no_sync():\n"
            f"    (loss_fn(model(x), y) / {step.calls}).backward()\n"
            "if sync:\n    optimizer.step()\n    optimizer.zero_grad()",
        )
    if step.altered:
        return you(
            "Change gradients between backward() and the step on every rank, by the same numbers: not under a "
            "condition on the rank or its data.",
            "loss.backward()\nchange(model)  # outside of `if rank == 0`\noptimizer.step()",
        )
    if step.unaveraged_only:
        return you(
            "Average the gradients of all parameters, or leave it to DDP: call the wrapped model itself.",
            "for parameter in model.parameters():\n    if parameter.grad is not None:\n"
            "        dist.all_reduce(parameter.grad)\n        parameter.grad /= dist.get_world_size()",
        )
    return you(
        "Call the wrapped model itself, and leave no_sync() before the last backward pass of a step.",
        "loss = loss_fn(model(x), y)  # not model.module(x)",
    )


def _fix_state(step: OwnStep) -> Remedy:
    """By what of the state differs and is the cause."""
    if fed := _plateau(step):
        return _feed_the_mean(fed)
    name = _cause(step).partition(".")[0]
    if name and "sched" in name:
        return you(f"Step {name} on every rank.", f"state['{name}'].step()  # outside of `if rank == 0`")
    if _cause(step).endswith(".lr"):
        return you(
            f"Give {name} the same learning rate on every rank.",
            f"print([group['lr'] for group in state['{name}'].param_groups])  # on each rank",
        )
    if name:
        return you(f"Step {name} on every rank, with the same values.")
    return you(
        "Draw what changes weights on rank 0 and hand it out, or seed its generator alike on all ranks.",
        "dist.broadcast(noise, src=0)\nweight.add_(noise)",
    )


def _first_to_differ(step: OwnStep) -> list[DifferingTensor]:
    """What is not the optimizer's own moments comes first: these follow from whatever else differs."""
    return sorted(step.state, key=lambda differing: ".state." in differing.name)[:3]


def _of_one_rank(rank: int) -> Finding:
    return fail(
        Where(),
        f"all ranks train with the gradients of rank {rank}'s batch alone",
        why=f"What the others compute is thrown away: the gradients of rank {rank} are handed out, not averaged.",
        owner="job",
        evidence=[
            seen("gradients at optimizer.step()", f"those of rank {rank}'s batch in one process, on all ranks")
        ],
        fix=[
            you(
                "Average over ranks, or leave it to DDP: call the wrapped model outside of no_sync().",
                "for parameter in model.parameters():\n    dist.all_reduce(parameter.grad)  # not broadcast\n"
                "    parameter.grad /= dist.get_world_size()",
            )
        ],
    )


def _other_gradients(cluster: Cluster, step: OwnStep) -> Finding:
    world, ratio = cluster.job.ranks, step.ratio or 0.0
    if step.of_rank is not None:
        return _of_one_rank(step.of_rank)
    scaled = abs(ratio * world - 1) < 0.01 and step.off is not None and abs(step.off - abs(1 - ratio)) < 0.01
    if scaled:
        why = (
            f"They are smaller by the number of ranks ({world}): the loss is divided by it, or by the number of "
            "samples of all ranks, and DDP averages."
        )
        fix = you(
            "Divide by the number of this rank's samples only.", "loss = losses.mean()  # not loss / world_size"
        )
    elif abs(ratio / world - 1) < 0.01 and step.off is not None and abs(step.off - abs(1 - ratio)) < 0.01 * world:
        why = f"They are larger by the number of ranks ({world}): they are summed up over ranks, not averaged."
        fix = you(
            "DDP averages: leave the factor and any all_reduce of your own out, or divide by the number of ranks.",
            "loss.backward()  # not loss * world_size; no dist.all_reduce(p.grad) on top of DDP",
        )
    else:
        why = "Gradients are clipped or scaled before they are averaged, or the loss is no mean over samples."
        fix = you(
            "Clip after backward(), when DDP has averaged; let the loss be a mean over the samples of all ranks.",
            "loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        )
    difference = f"off by {step.off:.3g} of the norm, {ratio:.3g} times as large"
    return warn(
        Where(),
        f"the optimizer of the given step gets other gradients than in one process: {difference}",
        why=why,
        owner="job",
        evidence=[seen("gradients at optimizer.step()", difference)],
        fix=[fix],
    )
