"""TRN: what ranks read in an epoch: every sample once, in another order with the next, equally many batches."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training import Contents, EpochSamples, EpochsDiffer, Lengths
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    fail,
    fine,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.training.trained import checked, place, ranks

_JOBS = ("smoke",)
_BY_CHANCE = ("WeightedRandomSampler",)
_SHARE = "DataLoader(dataset, sampler=DistributedSampler(dataset), batch_size=B)"


@rule("TRN006", "every sample is read once per epoch across all ranks", worst=State.FAIL, over="", commands=_JOBS)
@checked("samples")
def every_sample_once(cluster: Cluster, samples: EpochSamples) -> Iterator[Finding]:
    """
    ## What
    The indices that the samplers of all ranks give in one epoch, counted over all ranks.

    ## Why it matters
    Without a sampler that shares out, every rank reads all: W GPUs do the work of one, and the loss seems normal.
    Shards that leave samples out train on less than was collected.

    ## Seen as
    wrong results

    ## How we know
    Each rank's sampler is asked for an epoch without reading data, and the counts are summed up. Padding (fewer
    repeats than a global batch) and `drop_last` (fewer missing than a global batch and one a rank) are named.
    Four samples are read on every rank as well: where the same index is another sample, the datasets
    differ, and up to 256 samples of each are compared by their contents. Ranks with disjoint parts are a note.
    Streams have no indices: `ncclcheck data` reads them. A dataset gets a DistributedSampler here, as Lightning,
    Accelerate and the Hugging Face Trainer give it one. So does a plain DataLoader whose own file, or the model's,
    imports Accelerate or Lightning; any other DataLoader is taken as it is.

    ## Fix
    - **you** give the loader a `DistributedSampler`, or a sampler that knows rank and world size.
    - **you** where Accelerate or Lightning shares the loader out, and no file named here imports them, give
      `--data` the dataset instead of the loader.

    ## Source
    PyTorch, torch.utils.data.distributed.DistributedSampler; huggingface/datasets#5360,
    Lightning-AI/pytorch-lightning#15734, pytorch/pytorch#25162.
    """
    apart = samples.contents if samples.contents and samples.contents.ranks else None
    if apart and (apart.common or apart.sizes):
        yield _other_samples(cluster, apart)
        return
    if apart:
        text = f"each rank has a dataset of its own; none of {apart.followed} samples is in two of them"
        yield note(Where(), text, evidence=[seen("samples of all ranks, by their contents", text)])
        return
    if samples.sampler in _BY_CHANCE:
        yield note(Where(), f"{samples.sampler} draws with replacement: repeats are meant")
        return
    shared, lost = (
        samples.repeated >= max(samples.ranks, samples.batch),
        samples.missing > samples.batch + samples.ranks,
    )
    if shared:
        yield _repeated(cluster, samples)
    if lost:
        yield _missing(samples)
    if shared or lost:
        return
    if not samples.repeated and not samples.missing:
        text = f"{samples.dataset} samples, {samples.sampler}, {samples.ranks} ranks"
        yield fine(Where(), f"every sample is read once: {text}", seen("indices of an epoch", text))
    else:
        yield _left_over(samples)


def _other_samples(cluster: Cluster, contents: Contents) -> Finding:
    """The datasets differ, and a sampler or a loop that shares out indices does not know it."""
    sizes = f" ({', '.join(f'{size} on rank {rank}' for rank, size in enumerate(contents.sizes[:4]))})"
    first = f"index {contents.index} is another sample on {ranks(contents.ranks)}"
    difference = f"their sizes differ{sizes}" if contents.sizes else first
    common = f"{contents.common} of {contents.followed} samples are in the datasets of two ranks"
    return fail(
        place(cluster, contents.ranks[0]),
        f"the ranks have other datasets: {difference}",
        why="Each rank drew a split of its own: samples are read twice or never, and one rank trains on what "
        "another validates with.",
        owner="job",
        evidence=[seen("samples at the same indices", difference), seen("by their contents", common)],
        fix=[
            you(
                "Draw the split with the same seed on all ranks.",
                "random_split(dataset, [0.9, 0.1], generator=torch.Generator().manual_seed(0))",
                "torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))",
            )
        ],
    )


def _counted(samples: EpochSamples) -> list[Evidence]:
    counts = f"{samples.read} reads of {samples.dataset} samples on {samples.ranks} ranks"
    twice = [seen(f"sample {twice.index}", f"is read by {ranks(twice.ranks)}") for twice in samples.twice[:3]]
    absent = [seen("read by nobody", ", ".join(map(str, samples.absent)))] if samples.absent else []
    return [seen("an epoch by the samplers", counts), *twice, *absent]


def _repeated(cluster: Cluster, samples: EpochSamples) -> Finding:
    times = samples.read / samples.dataset if samples.dataset else 0.0
    whole = samples.ranks > 1 and abs(times - samples.ranks) < 0.01 * samples.ranks
    what = "every rank reads all samples" if whole else f"{samples.repeated} samples are read again"
    sharers = [rank for twice in samples.twice for rank in twice.ranks]
    return fail(
        Where() if whole or not sharers else place(cluster, sharers[-1]),
        f"{what} in one epoch ({samples.sampler}): {times:.2f} reads of each on average",
        why="The ranks repeat each other's work: more GPUs make an epoch no shorter.",
        owner="job",
        evidence=_counted(samples),
        fix=[you("Share the samples out over ranks.", _SHARE)],
    )


def _missing(samples: EpochSamples) -> Finding:
    return warn(
        Where(),
        f"{samples.missing} of {samples.dataset} samples are read by no rank in one epoch ({samples.sampler})",
        why="They were collected and are not trained on; dropping the last batch explains only a few.",
        owner="job",
        evidence=_counted(samples),
        fix=[you("Let the shards of all ranks together be the whole dataset.", _SHARE)],
    )


def _left_over(samples: EpochSamples) -> Finding:
    counts = f"{samples.repeated} samples again and {samples.missing} not at all, of {samples.dataset}"
    return fine(Where(), f"an epoch reads {counts}: padding or drop_last", *_counted(samples))


@rule("TRN007", "each epoch is shuffled differently", worst=State.FAIL, over="", commands=_JOBS)
@checked("orders")
def another_order(cluster: Cluster, orders: EpochsDiffer) -> Iterator[Finding]:
    """
    ## What
    The indices that each rank's sampler gives for epoch 0 and for epoch 1, with `set_epoch` called in between.

    ## Why it matters
    With the same order in every epoch the same samples share a batch for ever; the model is worse, and nothing
    shows it. Where only some ranks go on to a new order, shards overlap.

    ## Seen as
    hangs, slow, wrong results

    ## How we know
    Both orders are compared by rank, without reading data. A loader that does not shuffle is not judged. Some
    ranks only: a failure; all ranks: a warning.

    ## Fix
    - **you** `sampler.set_epoch(epoch)` at the beginning of each epoch, before the loader is iterated.
    - **you** an own sampler: mix the epoch into its seed; don't make its generator anew in `__iter__`.

    ## Source
    PyTorch, DistributedSampler (the warning in its documentation); pytorch/pytorch#31232, pytorch/pytorch#31771,
    huggingface/transformers#4398.
    """
    if not orders.shuffled:
        raise NothingToJudge(f"{orders.sampler} does not shuffle")
    if not orders.count:
        return
    of = cluster.measurements.smoke.checks.samples if cluster.measurements.smoke.checks else None  # type: ignore[union-attr]
    some = of is not None and orders.count < of.ranks
    who = ranks(orders.same, orders.count) if some else "all ranks"
    yield (fail if some else warn)(
        place(cluster, orders.same[0]) if some else Where(),
        f"{who} read epoch 1 in the order of epoch 0 ({orders.sampler})",
        why="Some ranks use another order, so shards overlap."
        if some
        else "The same samples share a batch again.",
        owner="job",
        evidence=[seen("indices of epochs 0 and 1", f"the same on {who}")],
        fix=[you("Tell the sampler which epoch it is, before each.", "loader.sampler.set_epoch(epoch)")],
    )


@rule("TRN011", "all ranks have the same number of batches", worst=State.FAIL, over="", commands=_JOBS)
@checked("lengths")
def equally_many_batches(cluster: Cluster, lengths: Lengths) -> Iterator[Finding]:
    """
    ## What
    How many batches the loader of each rank has in an epoch.

    ## Why it matters
    The rank that has fewer leaves the loop first; the others wait in their next collective until the timeout. It
    is like a network that hangs at the end of an epoch.

    ## Seen as
    hangs, wrong results

    ## How we know
    Ranks exchange the lengths of their loaders before the first step, which takes milliseconds. A stream
    without a length is read, up to the steps of this run. Training then stops at the least, so nobody waits.

    ## Fix
    - **you** cut or pad the shards to one length (`drop_last=True` in the sampler), or end the epoch where an
      all_reduce says that one rank has no more.
    - **you** `torch.distributed.algorithms.Join` around the loop lets ranks run out of data.

    ## Source
    PyTorch, Distributed Training with Uneven Inputs Using the Join Context Manager; pytorch/pytorch#38174,
    Lightning-AI/pytorch-lightning#20404.
    """
    if not lengths.count:
        batches = f"at least {lengths.upto}" if lengths.least == lengths.upto else str(lengths.least)
        yield fine(
            Where(), f"every rank has {batches} batches in an epoch", seen("length of the loaders", batches)
        )
        return
    first = lengths.short[0]
    batches = ", ".join(f"rank {loader.rank}: {loader.batches}" for loader in lengths.short[:8])
    verb = "has" if lengths.count == 1 else "have"
    yield fail(
        place(cluster, first.rank),
        f"{ranks([loader.rank for loader in lengths.short], lengths.count)} {verb} fewer batches than the others "
        f"({batches}); the most is {lengths.most}",
        why="Without those batches the others wait in their next collective until the timeout.",
        owner="job",
        evidence=[seen("length of the loaders", f"{batches}; the most {lengths.most}")],
        fix=[_equally_many(lengths)],
    )


def _equally_many(lengths: Lengths) -> Remedy:
    """A stream has no sampler: its end has to be agreed on."""
    if lengths.upto:
        return you(
            "End the epoch on all ranks when one has no more batches.",
            "dist.all_reduce(more, op=dist.ReduceOp.MIN)  # more: 1 while this rank has a batch",
        )
    return you("Give all ranks equally many.", "DistributedSampler(dataset, drop_last=True)")
