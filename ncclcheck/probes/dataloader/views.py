"""What one emulated rank is asked, and what it answers."""

from __future__ import annotations

from msgspec import Struct, field

from ncclcheck.probes.facts.data.sharding import Dry, Given
from ncclcheck.probes.job.context import DataPlan


class EmulatedRank(Struct, frozen=True, kw_only=True):
    """One emulated rank. folder: where the ranks meet and leave their indices.

    fresh: in an interpreter of its own. entropy: it seeds itself from the
    kernel, as a process does that has just been started. listing_reversed: directories are listed backwards.
    count: samples to look at; where the ranks' differ, as many as fit into `seconds`, which bounds each reading.
    """

    plan: DataPlan
    rank: int
    world: int
    folder: str
    fresh: bool = False
    entropy: bool = True
    listing_reversed: bool = False
    count: int = 16
    seconds: float = 0.4


class Epoch(Struct, frozen=True, kw_only=True):
    """One epoch of the sampler. file: its indices, 64 bits each; ended: they are all there."""

    name: str
    file: str
    samples: int
    batches: int
    ended: bool


class StreamPass(Struct, kw_only=True):
    """One reading of a stream: the leaves of each item, the worker (of how many) that gave it, the generators that
    moved.
    """

    items: list[dict[str, str]]
    workers: list[int]
    ended: bool
    of: int = 0
    drawn_from: list[str] = field(default_factory=list)


class RankView(Struct, kw_only=True):
    """What a rank saw. content: index -> leaf -> digest, of the leaves that do not change from reading to reading.

    table: where the dataset is a Subset, the file of its indices, below: the length of what it is a part of.
    starts: generator -> digest of the state that a worker (or the rank itself) starts with.
    seed, as_rank: those that the sampler holds. setter: where set_epoch stands, `loader.sampler`; own_batches: a
    class of the user's makes the batches.
    sampled: global generator -> its state before the sampler gave an epoch, and after it.
    unseen: starts, order or content -> why that look failed. defect: the traceback of a defect of ours.
    cut: why this rank was not seen, where that says nothing of the factory: a limit of ours, or of the machine.
    """

    rank: int
    group: str = ""
    error: str = ""
    place: str = ""
    defect: str = ""
    cut: str = ""
    given: Given = ""
    iterable: bool = False
    length: int | None = None
    seconds: float = 0.0
    asked: list[str] = field(default_factory=list)
    sampler: str = ""
    batch: int | None = None
    replicas: int | None = None
    seed: int | None = None
    as_rank: int | None = None
    workers: int | None = None
    drop_last: bool = False
    replacement: bool = False
    own_batches: bool = False
    table: str = ""
    below: int | None = None
    epochs: list[Epoch] = field(default_factory=list)
    set_epoch: bool = False
    setter: str = ""
    unseen: dict[str, str] = field(default_factory=dict)
    content: dict[int, dict[str, str]] = field(default_factory=dict)
    briefs: dict[int, dict[str, str]] = field(default_factory=dict)
    passes: dict[str, StreamPass] = field(default_factory=dict)
    dry: Dry | None = None
    where: str = ""
    starts: dict[str, str] = field(default_factory=dict)
    drawn_from: list[str] = field(default_factory=list)
    sampled: dict[str, tuple[str, str]] = field(default_factory=dict)

    def epoch(self, name: str) -> Epoch | None:
        """The epoch of that name, if the sampler gave it."""
        return next((epoch for epoch in self.epochs if epoch.name == name), None)
