"""TRN: weights are equal on all ranks before the wrap and after steps, and a fixed batch is learned."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training import Agreement, DifferingTensor, Doubles, FixedBatch, TakenSteps, Trained
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, Where, fail, fine, seen, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.training.trained import (
    builtin,
    checked,
    number,
    partly,
    place,
    ranks,
    steps_itself,
    strategy,
)

_JOBS = ("smoke",)
_SHOWN = 5  # tensors in one finding, then a count: chosen; the total is told beside them


@rule(
    "TRN001",
    "the model can overfit one fixed batch",
    worst=State.FAIL,
    over="",
    ground=(
        "TRN012",
        "TRN030",
        "TRN032",
        "TRN010",
    ),
    commands=_JOBS,
)
@checked("fixed_batch")
def a_batch_is_learned(cluster: Cluster, seen_loss: FixedBatch) -> Iterator[Finding]:
    """
    ## What
    The loss of one batch that the model is trained on ten times, on all ranks, with the wrap and precision given.

    ## Why it matters
    A model that cannot learn one batch by heart learns nothing: gradients do not arrive, the optimizer holds other
    parameters than the model, or the precision loses the update. Days of training would show only a flat curve.

    ## Seen as
    wrong results

    ## How we know
    On fresh data the loss of a healthy model may rise within some steps; on a batch that comes again it falls. For
    the built-in models it must fall below 0.8 of the first (`TRN001.ratio`). For your own any fall will do, and
    none is a warning: AdamW at 1e-3 may be wrong for it. A loss that is NaN is a failure.

    ## Fix
    - **you** see TRN004, TRN010 and TRN012 first: they name what is wrong with the gradients.
    - **you** your own model: see that the optimizer holds the parameters of the model that is trained, that
      nothing is detached, and that the loss fits the output.

    ## Source
    PyTorch Lightning documentation, Trainer, overfit_batches; PyTorch, Automatic Mixed Precision.
    """
    losses = f"{number(seen_loss.first)} before, {number(seen_loss.last)} after {seen_loss.steps} steps"
    if seen_loss.first is not None and seen_loss.last is not None:
        ratio = cluster.policy.thresholds.get("TRN001.ratio", 0.8) if builtin(cluster) else 1.0
        if seen_loss.last < ratio * seen_loss.first:
            yield fine(Where(), f"the loss of one batch: {losses}", seen("loss of a fixed batch", losses))
            return
    lost = seen_loss.last is None or seen_loss.first is None
    if steps_itself(cluster) and not lost:
        yield partly(
            f"with AdamW at 1e-3 the loss of one batch does not fall: {losses}",
            "the given step has its own optimizer",
        )
        return
    yield (fail if builtin(cluster) or lost else warn)(
        Where(),
        f"the loss of one batch that comes again and again does not fall: {losses}",
        why="A model that cannot learn one batch learns nothing from many.",
        owner="job",
        evidence=[seen("loss of a fixed batch, the worst rank's", losses)],
        fix=[you("See whether gradients are finite and reach all parameters: TRN004, TRN010, TRN012.")],
    )


@rule("TRN002", "all ranks start with the same weights", worst=State.FAIL, over="", commands=_JOBS)
@checked("before_wrap")
def the_same_weights_before_the_wrap(cluster: Cluster, agreement: Agreement) -> Iterator[Finding]:
    """
    ## What
    A hash of each parameter and buffer on every rank, before the model is wrapped by DDP or FSDP.

    ## Why it matters
    DDP hands out rank 0's weights without a word, so a seed that differs by rank stays unseen: until an average of
    weights is kept that was made before the wrap, or FSDP takes DDP's place, which hands out nothing.

    ## Seen as
    wrong results, setting without effect

    ## How we know
    The model's factory is called on every rank with the same seeds of Python, numpy and torch. Hashes of the bits
    are compared by minimum and maximum over ranks; where they differ, the ranks that differ from the majority are
    named. A warning with DDP, a failure with FSDP and ZeRO-3. Parameters that a rank lacks, freezes or has in
    another shape are a failure with each, and nothing is trained then.

    ## Fix
    - **you** seed alike on all ranks while the model is made, and by rank only afterwards.
    - **you** load a checkpoint on every rank, or on rank 0 with `sync_module_states=True` (FSDP).

    ## Source
    PyTorch, DistributedDataParallel (module states are broadcast from rank 0); pytorch/pytorch#32426,
    pytorch/pytorch#68803.
    """
    if not agreement.differ:
        yield fine(
            Where(), f"{agreement.tensors} tensors are the same on all ranks, bit for bit", seen("hashes", "equal")
        )
        return
    first = agreement.differing[0]
    if first.how:
        yield _other_parameters(cluster, agreement)
        return
    say = warn if strategy(cluster) == "ddp" else fail
    yield say(
        place(cluster, first.ranks[0]),
        f"{ranks(first.ranks, first.count)} began with other weights than {_others(agreement)}: "
        f"{_tensors(agreement)}",
        why="DDP silently overwrites them with rank 0's weights; whatever was derived before keeps the difference."
        if say is warn
        else "Nothing broadcasts rank 0's weights here: the ranks train pieces of different models.",
        owner="job",
        evidence=_evidence(agreement),
        fix=[
            you(
                "Hand out rank 0's tensors before the wrap, or seed every generator that the model is made with "
                "(random, numpy and torch) alike on all ranks.",
                "for tensor in (*model.parameters(), *model.buffers()):\n    dist.broadcast(tensor.data, src=0)",
            )
        ],
    )


def _other_parameters(cluster: Cluster, agreement: Agreement) -> Finding:
    first = agreement.differing[0]
    return fail(
        place(cluster, first.ranks[0]),
        f"ranks have different parameters: {_tensors(agreement)} ({first.how})",
        why="DDP takes the same parameters on all ranks for granted: it hangs, or averages gradients of different "
        "layers. Nothing was trained.",
        owner="job",
        evidence=[seen(differing.name, differing.how) for differing in agreement.differing[:_SHOWN]],
        fix=[
            you("Make and freeze the same layers on all ranks, whatever the rank; save and log by rank instead.")
        ],
    )


@rule(
    "TRN003",
    "all ranks keep the same weights",
    worst=State.FAIL,
    over="",
    ground=(
        "TRN002",
        "TRN012",
        "TRN030",
        "TRN004",
        "TRN034",
        "TRN027",
    ),
    commands=_JOBS,
)
@checked("trained")
def the_same_weights_after_steps(cluster: Cluster, trained: Trained) -> Iterator[Finding]:
    """
    ## What
    Parameters and buffers of all ranks, compared bit by bit after every few steps of a training on own batches.

    ## Why it matters
    Ranks that have drifted apart train several models and average their gradients. No error appears; the loss is a
    little worse, and the checkpoint is rank 0's alone.

    ## Seen as
    wrong results

    ## How we know
    A hash of each tensor's bits, compared over ranks; and how many steps the optimizer of each rank took.
    Equal gradients and equal steps give equal bits on equal hardware. Running statistics of BatchNorm belong to
    their rank and are left out. A buffer that differs is a warning, a parameter a failure.

    ## Fix
    - **you** every rank must take every step: no `continue` for a loss that one rank alone dislikes; agree on it
      by an all_reduce. Change parameters only by the optimizer.
    - **you** gradients that differ: TRN004 names the rank.
    - **admin** neither of both: that node computes otherwise. Compare GPU models and versions, and test its memory
      (`dcgmi diag -r 3`).

    ## Source
    PyTorch, DistributedDataParallel; Megatron-LM, check_param_hashes_across_dp_replicas; ROCm/aorta#210.
    """
    fewer = trained.taken
    for steps in fewer:
        yield _skipped(cluster, trained, steps)
    apart = [differing for differing in trained.agreement.differing if not differing.local]
    if not apart:
        count = f"{trained.agreement.tensors} tensors after {trained.steps} steps"
        yield fine(Where(), f"{count} are the same on all ranks, bit for bit", seen("hashes", "equal"))
    elif not fewer:
        yield _drifted(cluster, trained, apart)


def _skipped(cluster: Cluster, trained: Trained, steps: TakenSteps) -> Finding:
    differ = f"; {_tensors(trained.agreement)} differ since" if trained.agreement.differ else ""
    return fail(
        place(cluster, steps.rank),
        f"rank {steps.rank} took {steps.steps} of {trained.steps} steps of its optimizer{differ}",
        why="Its weights are older than those of the others, and its gradients belong to another model.",
        owner="job",
        evidence=[seen("steps in the optimizer's state", f"{steps.steps} of {trained.steps}")],
        fix=[
            you(
                "Let all ranks decide alike whether a step is taken.",
                "dist.all_reduce(skip, op=dist.ReduceOp.MAX)",
            )
        ],
    )


def _drifted(cluster: Cluster, trained: Trained, apart: list[DifferingTensor]) -> Finding:
    first, agreement = apart[0], trained.agreement
    who, say = (
        ranks(first.ranks, first.count),
        fail if any(differing.kind == "parameter" for differing in apart) else warn,
    )
    return say(
        place(cluster, first.ranks[0]),
        f"after {trained.steps} steps {who} and {_others(agreement)} have other weights: {_tensors(agreement)}",
        why="The ranks train different models from here on, without an error.",
        owner="job",
        evidence=_evidence(agreement),
        fix=[
            you("See TRN004: a rank whose gradients differ takes other steps. Else find what writes to weights.")
        ],
    )


def _others(agreement: Agreement) -> str:
    return "rank 0" if agreement.tied else "the others"


def _tensors(agreement: Agreement) -> str:
    names = ", ".join(differing.name for differing in agreement.differing[:3])
    return f"{names}{f' and {agreement.differ - 3} more' if agreement.differ > 3 else ''}"


def _evidence(agreement: Agreement) -> list[Evidence]:
    all_evidence = [
        seen(f"bits of {differing.name}", f"differ on {ranks(differing.ranks, differing.count)}")
        for differing in agreement.differing
    ]
    return [*all_evidence[:_SHOWN], seen("tensors that differ", f"{agreement.differ} of {agreement.tensors}")]


@rule("TRN033", "tied weights are one parameter", worst=State.WARN, over="", commands=_JOBS)
@checked("doubles")
def tied_weights_are_one(_cluster: Cluster, doubles: Doubles) -> Iterator[Finding]:
    """
    ## What
    Parameters of the model that begin at the same address in memory.

    ## Why it matters
    `head.weight.data = embedding.weight.data` leaves two parameters on one memory: each has a gradient and moments
    of its own, and each step of the optimizer updates the same numbers twice, weight decay included. After
    `load_state_dict(assign=True)`, a move to another device or sharding they come apart.

    ## Seen as
    wrong results

    ## How we know
    Addresses are compared before the wrap. A parameter that is used at several places is one, and is no fault.

    ## Fix
    - **you** tie the parameter, not its data: `self.head.weight = self.embedding.weight`.

    ## Source
    PyTorch, torch.nn.Module.named_parameters (remove_duplicate); Hugging Face, tie_weights.
    """
    for names in doubles.groups:
        first, second = names[0], names[1]
        yield warn(
            Where(),
            f"{second} and {first} are two parameters on the same memory",
            why="Each has a gradient and moments of its own: every step updates the same numbers twice.",
            owner="job",
            evidence=[seen(f"address of {second}", f"that of {first}")],
            fix=[
                you("Tie the parameter itself, not its .data.", f"self.{second} = self.{first}"),
            ],
        )
    if not doubles.groups:
        text = f"each of {doubles.parameters} parameters has memory of its own"
        yield fine(Where(), text, seen("addresses of parameters", text))
