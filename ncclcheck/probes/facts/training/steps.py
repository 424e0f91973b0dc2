"""Where the time of a training step goes, rank by rank, and what was measured beside it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole, Word
from ncclcheck.probes.facts.measured.bench import Times


class Phases(Struct, frozen=True, kw_only=True):
    """The parts of one rank's steps, microseconds, medians over the steps.

    data: waiting for the next batch. backward: with collectives also what of them it does not hide.
    """

    data: Amount = 0.0
    to_device: Amount = 0.0
    forward: Amount = 0.0
    backward: Amount = 0.0
    optimizer: Amount = 0.0


class Timed(Struct, frozen=True, kw_only=True):
    """One kind of step of one rank. step_us: the whole step; core_us: median of the time in a step in which a
    thread of the rank could have run and had no core (/proc/self/task/*/schedstat, of the thread that waited
    longest), null where the kernel does not tell; own_us: the step less that time.
    """

    step_us: Times
    own_us: Times
    phases: Phases
    core_us: Amount | None = None


class StepTimes(Struct, frozen=True, kw_only=True):
    """One rank's steps. samples: that it takes in a step, all micro-batches together; device: cpu or cuda:N.

    full: with collectives. twin: the same model, loop and data without collectives, all ranks at once. solo: the
    twin again, one rank of a node at a time.
    """

    rank: Count
    node: str
    device: str = "cpu"
    steps: Count = 0
    samples: Whole = 0
    full: Timed | None = None
    twin: Timed | None = None
    solo: Timed | None = None


class Communication(Struct, frozen=True, kw_only=True):
    """What a step has to communicate. buckets: bytes of each of DDP's; alone_us: all of them, one after the other,
    all-reduced with nothing beside it, the slowest rank of each time.
    """

    buckets: list[Whole] = field(default_factory=list)
    alone_us: Times


class FindUnused(Struct, frozen=True, kw_only=True):
    """Steps with find_unused_parameters and without, the slowest rank of each; without_us: null where the model
    does not train without. asked: whether the user wants it. unused: names of parameters that get no gradient on
    some rank, the first ones; count: how many.
    """

    asked: bool = False
    with_us: Times | None = None
    without_us: Times | None = None
    unused: list[str] = field(default_factory=list)
    count: Count = 0


class BatchNorms(Struct, frozen=True, kw_only=True):
    """Layers that normalise over the batch. layers: those over the local one, synced: SyncBatchNorm; samples: that
    such a layer saw at once, the smallest. off: how far the means over a rank's batch lay from those over the
    batch of all ranks, in standard deviations, root mean square over channels and layers.
    """

    layers: Count = 0
    synced: Count = 0
    names: list[str] = field(default_factory=list)
    samples: Whole | None = None
    off: Amount | None = None


class WorkerStart(Struct, frozen=True, kw_only=True):
    """One loader worker, from the iterator's making to its first batch. error: why it came to none."""

    method: Word
    seconds: Amount
    error: str = ""


class LoaderWorkers(Struct, frozen=True, kw_only=True):
    """How workers of the loader start. used: the start method that the loader would take, count: its workers (0:
    it reads in the process itself). pickled: bytes that spawn and forkserver hand over, null where the dataset
    cannot be pickled (`error` says why); pickle_s: how long that took.
    """

    used: Word = ""
    count: Count = 0
    starts: list[WorkerStart] = field(default_factory=list)
    pickled: Whole | None = None
    pickle_s: Amount = 0.0
    error: str = ""


class DataParallels(Struct, frozen=True, kw_only=True):
    """One process that drives several GPUs. wrapped: names of the modules that are nn.DataParallel, "model" for
    the model itself. gpus: that a rank can see, ranks: on its node. one_us: a step of a process with one GPU;
    all_us: of one that drives all of them, with as many samples for each.
    """

    wrapped: list[str] = field(default_factory=list)
    gpus: Count = 0
    ranks: Count = 1
    one_us: Amount | None = None
    all_us: Amount | None = None


class UnseenStep(Struct, frozen=True, kw_only=True):
    """What was not measured beside the steps, and why."""

    what: Literal["communication", "solo", "find_unused", "batch_norms", "workers", "data_parallel"]
    why: str


class Side(Struct, frozen=True, kw_only=True):
    """What was measured beside the steps; one aspect a field, None: not reached."""

    communication: Communication | None = None
    find_unused: FindUnused | None = None
    batch_norms: BatchNorms | None = None
    workers: LoaderWorkers | None = None
    data_parallel: DataParallels | None = None
    unseen: list[UnseenStep] = field(default_factory=list)
