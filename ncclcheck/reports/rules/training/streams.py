"""TRN: a metric that is summed up over ranks is that of the whole, and generators of ranks differ."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training import Generators, Metric, SharedGenerator
from ncclcheck.reports.judgement.findings import Finding, State, Where, fail, fine, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.training.trained import agrees, checked, number, place, ranks

_JOBS = ("smoke",)


@rule(
    "TRN008",
    "a metric reduced over ranks equals that of the whole",
    worst=State.FAIL,
    over="",
    ground=(
        "TRN002",
        "TRN012",
        "TRN030",
        "TRN032",
        "TRN034",
        "TRN027",
    ),
    commands=_JOBS,
)
@checked("metric")
def the_metric_of_the_whole(cluster: Cluster, metric: Metric) -> Iterator[Finding]:
    """
    ## What
    The mean loss of the trained model: each rank on its own batch, summed up by all_reduce, and one process on the
    batches of all ranks.

    ## Why it matters
    Validation decides when training stops and which checkpoint is kept. Ranks whose models or buffers have drifted
    apart report the mean of several models, of which none is the one that is saved.

    ## Seen as
    wrong results

    ## How we know
    Loss times samples and samples are summed up in float64, with the model in `eval()`. More than 1e-4 apart
    (`TRN008.relative`) is a failure. Not checked with FSDP and for more than 16 ranks.

    ## Fix
    - **you** TRN003 and TRN004 name ranks with other weights. With BatchNorm, use SyncBatchNorm or hand out rank
      0's statistics before validation.
    - **you** sum up sums and counts, never means: the last batches of ranks differ in size.

    ## Source
    PyTorch, torch.distributed.all_reduce; PyTorch, SyncBatchNorm; pytorch/pytorch#25162.
    """
    values = (
        f"{number(metric.reduced)} by all_reduce, {number(metric.whole)} in one process, {metric.samples} samples"
    )
    if agrees(cluster, metric):
        yield fine(Where(), f"mean loss: {values}", seen("mean loss", values))
        return
    yield fail(
        Where(),
        f"the mean loss over ranks is not that of the whole: {values}",
        why="The ranks hold different models, or one of them returns NaN: the metric describes no model.",
        owner="job",
        evidence=[seen("mean loss", values)],
        fix=[
            you("See TRN003 and TRN004 for the rank; sum up sums and counts.", "dist.all_reduce(total_and_count)")
        ],
    )


@rule(
    "TRN009",
    "each rank draws its own random numbers",
    worst=State.WARN,
    over="",
    ground=("TRN027",),
    commands=_JOBS,
)
@checked("generators")
def own_random_numbers(cluster: Cluster, generators: Generators) -> Iterator[Finding]:
    """
    ## What
    The states of Python's, numpy's and torch's global generators on all ranks, after the data were made and after
    training steps.

    ## Why it matters
    With the same stream on every rank all draw the same augmentation and the same dropout mask: W ranks see one
    augmented batch W times, not W different ones.

    ## Seen as
    wrong results

    ## How we know
    Every rank is given a seed of its own before your data factory is called. A state that is then the same on
    several ranks was set by the factory, or, after steps, by the loop of dataset and model. Workers of the loader
    draw their seed from torch's generator, so they share what ranks share. States are hashed, nothing is drawn.

    ## Fix
    - **you** seed by rank where data are made: `torch.manual_seed(seed + rank)`; the same seed on all ranks is for
      the making of the model only.

    ## Source
    huggingface/transformers#37932; PyTorch, Reproducibility; PyTorch, torch.utils.data, Randomness in
    multi-process data loading.
    """
    if cluster.job.ranks == 1:
        raise NothingToJudge("one rank has no peers")
    reported: set[tuple[str, tuple[int, ...]]] = set()
    for stream in generators.shared:
        if (stream.generator, tuple(stream.ranks)) not in reported:
            reported.add((stream.generator, tuple(stream.ranks)))
            yield _shared(cluster, stream)


def _shared(cluster: Cluster, stream: SharedGenerator) -> Finding:
    when = "after the data were made" if stream.when == "made" else "after training steps"
    call = {"python": "random.seed", "numpy": "numpy.random.seed"}.get(stream.generator, "torch.manual_seed")
    return warn(
        place(cluster, stream.ranks[-1]),
        f"{ranks(stream.ranks, stream.count)} have the same state of {stream.generator}'s generator {when}",
        why="They draw the same augmentation and the same dropout masks.",
        owner="job",
        evidence=[
            seen(f"state of {stream.generator}'s generator", f"the same on {ranks(stream.ranks, stream.count)}")
        ],
        fix=[you("Seed by rank where data are made.", f"{call}(seed + rank)")],
    )
