"""Which rank reads which samples, epoch by epoch; seen on emulated ranks that called the factory themselves."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole

Given = Literal["", "dataset", "loader", "tuple", "module"]
Cause = Literal["", "listing", "entropy", "interpreter"]


class Share(Struct, frozen=True, kw_only=True):
    """One emulated rank. error: why the factory failed there; asked: how it asked for its rank (`RANK`,
    `dist.get_rank`, `rank=`), empty where it never did. samples, batches: of one epoch, None where not counted.
    seed, as_rank: the seed and the rank that its sampler holds. cut: why the rank was not seen, where that says
    nothing of the factory: the time, the memory or the processes that were left.
    """

    rank: Count
    error: str = ""
    place: str = ""
    cut: str = ""
    length: Whole | None = None
    asked: list[str] = field(default_factory=list)
    samples: Whole | None = None
    batches: Whole | None = None
    seconds: Amount = 0.0
    seed: Whole | None = None
    as_rank: int | None = None


class ReadBy(Struct, frozen=True, kw_only=True):
    """An example: this sample (an index, or what its leaves hold) was read by these ranks or workers."""

    sample: str
    by: list[Count]


class Account(Struct, frozen=True, kw_only=True):
    """One epoch over all ranks. there: samples that there are; read: reads of all ranks together; distinct:
    different samples among them; shared: samples that several ranks read. slack: samples that `drop_last` may
    leave out. by: what a sample is told by. everywhere: every rank read all.
    """

    by: Literal["index", "content"]
    there: Whole
    read: Whole
    distinct: Whole
    shared: Whole = 0
    slack: Whole = 0
    everywhere: bool = False
    examples: list[ReadBy] = field(default_factory=list)
    missing: list[Whole] = field(default_factory=list)


class Dry(Struct, frozen=True, kw_only=True):
    """An epoch without a sample, after one that had some. source: what is used up, `self.rows` or the sampler's
    type; function: of the generator that stands there, with its arguments' names; method: of the dataset.

    counters: whole numbers of a dataset that is its own iterator, as they were before it was read.
    """

    source: str = ""
    function: str = ""
    arguments: list[str] = field(default_factory=list)
    method: bool = False
    counters: dict[str, int] = field(default_factory=dict)


class EpochOrder(Struct, frozen=True, kw_only=True):
    """The order of two epochs, as the sampler of rank 0 gave it. sequential: it is that of the indices.

    repeats: the second epoch is the first again, as given; with_set_epoch: and with set_epoch(0) and (1), None
    where nothing has a set_epoch; with_keyword: and with the factory called for epoch 0 and 1, None where it takes
    no epoch. made_alike: another process, with other seeds, made a loader with the same order. callers: files of
    the user that call set_epoch; loops: those with a training loop over what the factory gives. setter: where
    set_epoch stands, `loader.sampler`. dry: the second epoch has no sample.
    """

    samples: Whole
    sequential: bool
    repeats: bool
    with_set_epoch: bool | None = None
    with_keyword: bool | None = None
    made_alike: bool = False
    callers: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    setter: str = ""
    dry: Dry | None = None


class Stream(Struct, frozen=True, kw_only=True):
    """An IterableDataset, read on all ranks without workers and with two. ended: it was read to its end.

    told_by: the leaves by which samples are told apart; compared: samples a rank that could be. between_ranks,
    between_workers: samples that two of them read. lost_to_workers: read without workers, and by no worker.
    whole, lost_to_ranks: samples in a world of one rank, and those of them that no rank read; None: not compared.
    workers: num_workers that the user gave, None where no loader was given. ranks_alike, workers_alike: what two
    of them read came in one order; of a stream that ended this was not compared. by_worker: samples that each
    worker of rank 0 read. groups: of ranks that read the same samples in one order, where others read other ones.
    dry: without workers the second epoch has no sample. own_orders: each rank takes its part of an order of its
    own, which has no seed: with the same seeds no two of them read the same sample.
    """

    items: list[Whole]
    worker_items: list[Whole]
    by_worker: list[Whole] = field(default_factory=list)
    ended: bool
    told_by: list[str] = field(default_factory=list)
    compared: Whole = 0
    between_ranks: Whole = 0
    between_workers: Whole = 0
    lost_to_workers: Whole = 0
    whole: Whole | None = None
    lost_to_ranks: Whole | None = None
    workers: Count | None = None
    ranks_alike: bool = True
    workers_alike: bool = True
    groups: list[list[Count]] = field(default_factory=list)
    examples: list[ReadBy] = field(default_factory=list)
    dry: Dry | None = None
    own_orders: bool = False
    unjudged: str = ""


class Print(Struct, frozen=True, kw_only=True):
    """What an index holds, on emulated rank 0: a digest of each leaf that is the same whenever it is read."""

    index: Whole
    leaves: dict[str, str]


class DifferingSample(Struct, frozen=True, kw_only=True):
    """An index that holds one sample on rank 0, another on `rank`. there: where rank 0 has that other sample."""

    index: Whole
    rank: Count
    leaf: str
    one: str
    other: str
    there: Whole | None = None


class IndexMap(Struct, frozen=True, kw_only=True):
    """Whether emulated ranks agree on what an index holds. Rank 1 was a fresh interpreter with another
    PYTHONHASHSEED, seeds of its own, and directories listed in reverse.

    relabelled: a part of the samples, such as their class, has other values there, one for one. moved: differing
    indices whose sample was found at another index. own: the contents were looked for, and occur
    nowhere on the other rank: each makes its own. by_design: the factory asked for its rank and gave it a part.
    unseen: why contents were not compared. cause: what alone makes it differ; interpreter: neither of the others.
    """

    compared: Count
    differing: Count = 0
    moved: Count = 0
    relabelled: bool = False
    own: bool = False
    by_design: bool = False
    lengths: list[Whole] = field(default_factory=list)
    cause: Cause = ""
    examples: list[DifferingSample] = field(default_factory=list)
    unseen: str = ""


class SharedStream(Struct, frozen=True, kw_only=True):
    """A generator that samples are drawn from, and that started alike on several ranks. where: `a worker` or
    `the rank itself`; private: it belongs to the user's objects.
    """

    generator: str
    where: str
    ranks: list[Count]
    private: bool = False


class Randomness(Struct, frozen=True, kw_only=True):
    """Generators that reading a sample draws from, and those of them that started alike on several ranks.

    by_sampler: global ones that the sampler brings into one state on all ranks.
    """

    drawn_from: list[str] = field(default_factory=list)
    shared: list[SharedStream] = field(default_factory=list)
    by_sampler: list[str] = field(default_factory=list)


class Sharding(Struct, frozen=True, kw_only=True):
    """Which rank reads which samples. ranks: emulated ones, wanted: those of the job. given: what the factory
    gave. sampler: the class that chooses indices, own_batches: it makes whole batches, and is the user's own;
    replicas: the world size that it holds. group: why the ranks had
    no process group, empty where they had. unjudged: why samples were not accounted for. drawn_alike: ranks whose
    sampler draws at random, and draws the same samples in one order as another rank's.
    """

    ranks: Count
    wanted: Count = 0
    given: Given = ""
    iterable: bool = False
    sampler: str = ""
    own_batches: bool = False
    batch: Count | None = None
    replicas: Count | None = None
    group: str = ""
    shares: list[Share] = field(default_factory=list)
    account: Account | None = None
    order: EpochOrder | None = None
    stream: Stream | None = None
    index_map: IndexMap | None = None
    randomness: Randomness | None = None
    prints: list[Print] = field(default_factory=list)
    unjudged: str = ""
    resumed: Whole = 0
    drawn_alike: list[list[Count]] = field(default_factory=list)
