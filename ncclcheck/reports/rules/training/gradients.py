"""TRN: gradients are those of one process, every parameter gets one, and all are finite in the precision."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training import Gradients, NotFiniteStep, Precision, RankError, Unused, UnusedParameter
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, fail, fine, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.training import operations
from ncclcheck.reports.subjects.training.trained import (
    SLIGHT,
    agrees,
    builtin,
    checked,
    number,
    partly,
    place,
    ranks,
    rounding,
    steps_itself,
    strategy,
)
from ncclcheck.reports.text.words.fold import first_of, many

_JOBS = ("smoke",)
_SHOWN = 3  # ranks, names or hooks in one finding, then a count: chosen, three names fit a heading of 80 columns


@rule(
    "TRN004",
    "gradients equal those of one process on the combined batch",
    worst=State.FAIL,
    over="",
    ground=(
        "TRN002",
        "TRN012",
        "TRN032",
    ),
    commands=_JOBS,
)
@checked("gradients")
def gradients_of_one_process(cluster: Cluster, gradients: Gradients) -> Iterator[Finding]:
    """
    ## What
    The gradients of the wrapped model after one backward pass on every rank, against the mean of what the ranks
    compute alone, and against one process that has the batches of all ranks as one.

    ## Why it matters
    A rank whose gradients are not averaged with the others trains a model of its own. A loss that is a sum instead
    of a mean makes the step grow with the number of ranks. Both train without an error, and learn something else.

    ## Seen as
    wrong results

    ## How we know
    The same model, batch and seed with and without the wrap; the mean is made by plain all_reduce. Differences are
    given as a share of the norm: up to 1e-4 in fp32 with TF32 off, 5e-2 in bf16 and fp16. The joined batch is
    compared where the model has no BatchNorm and draws no random numbers (dropout), and for up to 16 ranks; a note
    names what stands in the way. It is a note as well where ranks have different numbers of tokens that are not
    masked by a negative label, and the mean by tokens is the gradient of the joined batch. With `--step`, which
    need not use the given loss, TRN027 compares those of the step instead. A model that does not repeat its own
    gradient is skipped.

    ## Fix
    - **you** call the wrapped model, not `model.module`; leave `no_sync()` before the last micro-batch; keep all
      parameters known to DDP when it is made.
    - **you** only the joined batch differs: let the loss be a mean over all samples (tokens), not a sum, and not a
      mean of means where ranks have different numbers of tokens. DDP divides by the number of ranks: with `tokens`
      summed up over ranks, `losses.sum() * world_size / tokens`.
    - **you** the model computes otherwise by rank (TRN008), or clips in hooks of parameters: fix that.

    ## Source
    PyTorch, DistributedDataParallel; deepspeedai/DeepSpeed#5583, Lightning-AI/pytorch-lightning#20882,
    karpathy/build-nanogpt#30.
    """
    yield from _wrong_ranks(cluster, gradients, "after one backward pass")
    if not gradients.wrong:
        yield from _joined(cluster, gradients, "the joined batch of all ranks")


@rule(
    "TRN005",
    "accumulated micro-batches equal the full batch",
    worst=State.FAIL,
    over="",
    ground=(
        "TRN012",
        "TRN032",
    ),
    commands=_JOBS,
)
@checked("accumulation")
def micro_batches_add_up(cluster: Cluster, gradients: Gradients) -> Iterator[Finding]:
    """
    ## What
    Two micro-batches, the first under `no_sync()`, against the mean over ranks of what each computes alone, and
    against the two as one batch.

    ## Why it matters
    Gradient accumulation that synchronises the wrong pass, or divides by the wrong number, trains with gradients
    of another batch size than the one that is written in the paper.

    ## Seen as
    wrong results

    ## How we know
    As TRN004, with the same tolerances; the joined batch holds both micro-batches of the rank.

    ## Fix
    - **you** `no_sync()` around all micro-batches but the last, forward pass included; divide the loss by their
      number, or by the tokens of all of them.

    ## Source
    PyTorch, DistributedDataParallel.no_sync; Hugging Face, Gradient accumulation (Accelerate documentation).
    """
    yield from _wrong_ranks(cluster, gradients, f"over {gradients.micro_batches} micro-batches with no_sync")
    if not gradients.wrong:
        yield from _joined(cluster, gradients, "its micro-batches as one batch")


def _wrong_ranks(cluster: Cluster, gradients: Gradients, when: str) -> Iterator[Finding]:
    wrong = [
        rank_error
        for rank_error in gradients.errors
        if rank_error.error is None or rank_error.error > gradients.tolerance
    ]
    for error in wrong[:_SHOWN]:
        yield _wrong(cluster, error, gradients, when)


def _wrong(cluster: Cluster, error: RankError, gradients: Gradients, when: str) -> Finding:
    share = f"{number(error.error)} of the norm"
    more = f" (and {many(gradients.wrong - 1, 'other rank')})" if gradients.wrong > 1 else ""
    return fail(
        place(cluster, error.rank),
        f"rank {error.rank} has other gradients than the mean of all ranks {when}: off by {share}{more}",
        why="Its gradients are not synchronised with those of the others: it trains its own model.",
        owner="job",
        evidence=[
            seen("difference, as a share of the norm", f"{share}; up to {gradients.tolerance:g} is rounding"),
            seen("the parameter that adds most", error.parameter),
        ],
        fix=[
            you("Call the wrapped model, and leave no_sync() before the last micro-batch.", "loss = ddp_model(x)")
        ],
    )


def _joined(cluster: Cluster, gradients: Gradients, what: str) -> Iterator[Finding]:
    if gradients.joined is None:
        yield partly(f"not compared with {what}", gradients.not_joined)
    elif gradients.joined <= gradients.tolerance:
        difference = f"off by {gradients.joined:.2g} of the norm, {gradients.samples} samples"
        yield fine(
            Where(), f"gradients are those of one process on {what}: {difference}", seen("difference", difference)
        )
    elif gradients.tokens:
        counts, parts = (
            ", ".join(map(str, gradients.tokens[:4])),
            "micro-batches" if gradients.micro_batches > 1 else "ranks",
        )
        yield note(
            Where(),
            f"{parts} have different numbers of tokens ({counts}), and each has the same weight: off by "
            f"{gradients.joined:.3g} of the norm",
            evidence=[seen("the mean by numbers of tokens", f"is the gradient of {what}")],
            why="Usual where the loss is a mean over tokens of a batch; the mean over those of all is exact.",
        )
    elif gradients.joined < SLIGHT and not builtin(cluster) and not gradients.hooked:
        difference = f"{gradients.joined:.2g} of the norm"
        if gradients.joined <= rounding(cluster):
            of = f"gradients are those of {what} but for the rounding of the given step: off by {difference}"
            yield fine(Where(), of, seen("difference", difference))
            return
        yield note(
            Where(),
            f"gradients are almost those of {what}: off by {difference}",
            why="A part of the loss is no mean over samples, as one that balances experts over the batch.",
            evidence=[seen("difference", f"{difference}; up to {gradients.tolerance:g} is rounding")],
        )
    elif steps_itself(cluster):
        raise NothingToJudge("TRN027 judges the gradients that the given step gives its optimizer")
    else:
        why, fix = _why_not_joined(cluster, gradients)
        difference = f"{gradients.joined:.3g} of the norm"
        hooks = (
            [seen("hooks on the gradients of", ", ".join(gradients.hooked[:_SHOWN]))] if gradients.hooked else []
        )
        yield (fail if builtin(cluster) else warn)(
            Where(),
            f"gradients are the mean over ranks, but not those of {what}: off by {difference}",
            why=why,
            owner="job",
            evidence=[seen("difference", f"{difference}; up to {gradients.tolerance:g} is rounding"), *hooks],
            fix=[fix],
        )


def _why_not_joined(cluster: Cluster, gradients: Gradients) -> tuple[str, Remedy]:
    """By what else was seen: a model that differs by rank, hooks that change gradients, else the loss."""
    checks = cluster.measurements.smoke.checks if cluster.measurements.smoke else None
    if checks and checks.metric and not agrees(cluster, checks.metric):
        return (
            "The model computes something else on each rank for the same samples (TRN008), or the loss is no mean "
            "over samples.",
            you(
                "Fix TRN008 first. What ranks must have alike belongs in a buffer, which DDP hands out, not in an "
                "attribute.",
                "self.register_buffer('scale', scale)",
            ),
        )
    if gradients.hooked:
        return (
            "Hooks on parameters change the gradients of each rank before they are averaged, or the loss is no "
            "mean over samples.",
            you(
                "Clip or scale after backward(), when gradients are averaged, not in hooks.",
                "loss.backward(); torch.nn.utils.clip_grad_norm_(ddp_model.parameters(), 1.0)",
            ),
        )
    return (
        "The loss is not a mean over samples: the step depends on how many ranks share the batch.",
        you(
            "Let the loss be a mean over all samples (tokens) of all ranks; DDP divides by the number of ranks.",
            "dist.all_reduce(tokens); loss = losses.sum() * dist.get_world_size() / tokens",
        ),
    )


@rule("TRN010", "every parameter gets a gradient", worst=State.FAIL, over="", commands=_JOBS)
@checked("unused")
def every_parameter_gets_a_gradient(cluster: Cluster, fact: Unused) -> Iterator[Finding]:
    """
    ## What
    Parameters that require a gradient and have none after a backward pass on the first batch, by rank.

    ## Why it matters
    DDP waits for the gradient of every parameter. With one that never comes it stops in the next step, and names a
    number instead of a parameter; where only some ranks lack it, the others wait until the timeout.

    ## Seen as
    hangs, wrong results

    ## How we know
    One pass of the model before the wrap, on every rank's own batch; nobody waits. Where one has no gradient,
    some more passes show whether that changes with random numbers (LayerDrop) or with the batch. The rest of the
    run then goes on with `find_unused_parameters=True`. A note where that was asked for, and with FSDP, which does
    not wait.

    ## Fix
    - **you** take the layer out, use it, or freeze it (`requires_grad_(False)`) before the wrap.
    - **you** it depends on the batch: `DistributedDataParallel(..., find_unused_parameters=True)`; TRN022 says
      what that costs.

    ## Source
    PyTorch, DistributedDataParallel, find_unused_parameters; PyTorch, Autograd mechanics, requires_grad.
    """
    setup = cluster.measurements.smoke.setup if cluster.measurements.smoke else None
    harmless = strategy(cluster) != "ddp" or (setup is not None and setup.find_unused)
    later = _reached_later(cluster)
    for kind in ("dice", "batch"):
        if (varying := [parameter for parameter in fact.unused if parameter.varies == kind]) and not harmless:
            yield _varying(varying, fact)
    always = [parameter for parameter in fact.unused if not parameter.varies]
    for reached in (False, True):
        for somewhere in (False, True):
            unused = [
                parameter
                for parameter in always
                if (parameter.name in later, not parameter.everywhere) == (reached, somewhere)
            ]
            # DDP knows nothing of a pass that reaches none of them, as of a discriminator beside the wrap.
            apart = reached and fact.count == fact.parameters and not somewhere
            if unused and not (harmless and reached) and not apart:
                yield _tolerated(cluster, unused) if harmless else _unused(cluster, fact, unused, reached)


def _reached_later(cluster: Cluster) -> set[str]:
    """Parameters that another pass of the given step reaches, as the generator of a GAN."""
    checks = cluster.measurements.smoke.checks if cluster.measurements.smoke else None
    return {*checks.own_step.reached} if checks and checks.own_step else set()


def _said(unused: list[UnusedParameter]) -> str:
    names = first_of((parameter.name for parameter in unused), _SHOWN)
    return f"{names} {'get' if len(unused) > 1 else 'gets'} no gradient"


def _tolerated(cluster: Cluster, unused: list[UnusedParameter]) -> Finding:
    which = "on any rank" if unused[0].everywhere else f"on {ranks(unused[0].ranks)}"
    where = Where() if unused[0].everywhere else place(cluster, unused[0].ranks[0])
    return note(where, f"{_said(unused)} {which}; nothing waits for it here", evidence=[seen("gradient", "none")])


def _varying(unused: list[UnusedParameter], totals: Unused) -> Finding:
    """Each rank goes its own way in each step: no rank needs the same layers as another, if DDP searches."""
    dice = unused[0].varies == "dice"
    return fail(
        Where(),
        f"{_said(unused)} in some passes: which layers take part "
        + ("is drawn at random in the forward pass" if dice else "depends on the batch"),
        why="DDP waits for the gradient of every parameter: the step after a pass that left one out stops with an "
        "error, or the other ranks wait until the timeout.",
        owner="job",
        evidence=[
            seen(
                "other passes on the same batch, with other random numbers"
                if dice
                else "passes on other batches, with the same random numbers",
                f"reach {unused[0].name}",
            ),
            seen("parameters without a gradient in the first passes", f"{totals.count} of {totals.parameters}"),
        ],
        fix=[
            you(
                "Let DDP search for what a pass leaves out, on each rank by itself.",
                "model = DistributedDataParallel(model, find_unused_parameters=True)",
            ),
            you(
                "Or run every layer and multiply what it gives by 0 or 1: then all take part in each pass."
                if dice
                else "Or run both branches and choose between their results: then all take part in each pass.",
                "x = x + keep * layer(x)  # keep = float(torch.rand(()) >= p)"
                if dice
                else "out = torch.where(condition, branch(x), other(x))",
            ),
        ],
    )


def _unused(cluster: Cluster, totals: Unused, unused: list[UnusedParameter], reached: bool) -> Finding:
    first = unused[0]
    if first.everywhere and totals.count == totals.parameters and not reached:
        return _cut_off(totals)
    which = "on any rank" if first.everywhere else f"on {ranks(first.ranks)}, and others do"
    which += " in the first backward pass of the step; another pass reaches it" if reached else ""
    return fail(
        Where() if first.everywhere else place(cluster, first.ranks[0]),
        f"{_said(unused)} {which}",
        why="DDP waits for it: the next step stops with an error"
        + ("." if first.everywhere else ", or the other ranks wait until the timeout."),
        owner="job",
        evidence=[
            seen("gradient after a backward pass of the bare model", f"none for {first.name}"),
            seen("parameters without one", f"{totals.count} of {totals.parameters}"),
        ],
        fix=[
            you(
                "Wrap what each pass trains by itself; or let DDP search for what a pass does not reach."
                if reached
                else "Take it out or freeze it; or let DDP search for it.",
                "model = DistributedDataParallel(model, find_unused_parameters=True)",
            )
        ],
    )


def _cut_off(totals: Unused) -> Finding:
    return fail(
        Where(),
        "no parameter gets a gradient: the loss does not depend on the model",
        why="Nothing is learned, or backward() ends with an error.",
        owner="job",
        evidence=[seen("parameters without a gradient", f"{totals.count} of {totals.parameters}")],
        fix=[
            you(
                "Search for .detach(), .item(), .data and torch.no_grad() between the parameters and the loss.",
                "print(loss.grad_fn)",
            )
        ],
    )


@rule("TRN012", "loss and gradients are finite in the chosen precision", worst=State.FAIL, over="", commands=_JOBS)
@checked("precision")
def finite_in_the_precision(cluster: Cluster, precision: Precision) -> Iterator[Finding]:
    """
    ## What
    Loss and gradients of the first batch in the precision that was asked for (`--precision`), on every rank.

    ## Why it matters
    An infinity or NaN on one rank reaches all of them with the next all_reduce; from then on every weight is NaN.

    ## Seen as
    wrong results

    ## How we know
    One forward and backward pass in autocast; fp16 with a constant loss scale of 1024. All gradients are seen.
    The loss is compared with that in fp32: more than 5 % apart (`TRN012.percent`) is a warning.

    ## Fix
    - **you** fp16: bf16 where the GPU has it (Ampere and later), which has the range of fp32; else a GradScaler.
    - **you** keep softmax, norms and losses in fp32 (autocast does so unless `.half()` was called on the model).
    - **you** in fp32 too: check the named rank's batch for NaN and for divisions by zero.

    ## Source
    PyTorch, Automatic Mixed Precision package; NVIDIA, Train With Mixed Precision.
    """
    for finite in precision.bad[:_SHOWN]:
        yield _infinite(cluster, precision, finite)
    if precision.bad or precision.loss is None or precision.full is None:
        return
    apart = abs(precision.loss - precision.full) / max(abs(precision.full), 1e-12)
    losses = f"{number(precision.loss)} in {precision.precision}, {number(precision.full)} in fp32"
    if apart <= cluster.policy.thresholds.get("TRN012.percent", 5.0) / 100:
        yield fine(Where(), f"loss and gradients are finite; the loss is {losses}", seen("loss", losses))
        return
    yield warn(
        Where(),
        f"the loss is {losses}",
        why="The precision changes the result more than rounding does: some value is out of its range.",
        owner="job",
        evidence=[seen("loss of rank 0's first batch", losses)],
        fix=[you("Keep softmax, norms and the loss in fp32.", "with torch.autocast('cuda', enabled=False): ...")],
    )


def _infinite(cluster: Cluster, precision: Precision, finite: NotFiniteStep) -> Finding:
    names = ", ".join(finite.parameters[:_SHOWN])
    what = "the loss" if finite.loss else f"the gradient of {names}"
    more = f" (so on {precision.count - 1} other ranks)" if precision.count > 1 else ""
    came = (
        ""
        if not finite.origin
        else f": {finite.origin} of the batch"
        if finite.of_batch
        else f", first in {finite.origin}"
    )
    return fail(
        place(cluster, finite.rank),
        f"in {precision.precision} {what} is infinite or NaN on rank {finite.rank}{more}{came}",
        why="The next all_reduce spreads it to all ranks, and every weight becomes NaN.",
        owner="job",
        evidence=[seen("not finite", f"{'loss; ' if finite.loss else ''}{names or 'no gradient'}")],
        fix=[_fix_infinite(precision, finite)],
    )


def _fix_infinite(precision: Precision, finite: NotFiniteStep) -> Remedy:
    if finite.of_batch:
        return you(
            "Find the sample that holds it, and repair it or leave it out.", "ncclcheck data MODULE:FACTORY"
        )
    if precision.precision == "fp16":
        return you("Take bf16, or a GradScaler with fp16.", "ncclcheck smoke --precision bf16")
    operation, _, line = finite.origin.partition(" at ")
    return operations.fix(operation, line)
