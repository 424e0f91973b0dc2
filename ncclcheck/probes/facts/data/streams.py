"""The random streams of workers and epochs, as a real DataLoader shows them, and how its workers ended."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count
from ncclcheck.probes.facts.guard.unread import Unread


class Dependence(Struct, frozen=True, kw_only=True):
    """Leaves that change with the state of a generator: "python", "numpy", "torch", or the path of a private one.

    kind: the type of a private one. index, leaf, values: one sample as it was, and with this generator elsewhere.
    order: only the order of the samples of a stream changes with it, not what they contain.
    """

    generator: str
    private: bool = False
    kind: str = ""
    leaves: list[str] = field(default_factory=list)
    index: int = 0
    values: list[str] = field(default_factory=list)
    order: bool = False


class Shared(Struct, frozen=True, kw_only=True):
    """Workers of one epoch whose generator was in the same state. samples: the same samples came of it."""

    generator: str
    workers: list[int]
    state: str
    indices: list[str] = field(default_factory=list)
    samples: bool = False


class Repeated(Struct, frozen=True, kw_only=True):
    """A generator that was in the second epoch where it had been in the first, in these workers."""

    generator: str
    workers: list[int]
    state: str
    of: Count = 0


class ReseededGenerator(Struct, frozen=True, kw_only=True):
    """A global generator whose state after a read does not depend on the one before: it was seeded in between.

    constant: after different samples it was the same. count, of: samples read.
    """

    generator: str
    index: int
    constant: bool
    count: Count
    of: Count


class MadeAlike(Struct, frozen=True, kw_only=True):
    """A generator that the user's line makes anew for each sample (or batch), from one and the same seed.

    call: `numpy.random.default_rng`; place: `train.py:20 in __call__`; count: samples or batches that were read.
    """

    call: str
    place: str
    seed: int
    count: Count
    batch: bool = False


class Frozen(Struct, frozen=True, kw_only=True):
    """Random leaves that stay what they were first, in a process that reads them again under another seed.

    other: what a process that begins with that seed reads.
    """

    leaf: str
    index: int
    value: str
    other: str
    count: Count
    of: Count


class WorkerStop(Struct, frozen=True, kw_only=True):
    """How a worker ended, or the loader. worker: -1 where no worker is known.

    during: what was going on: "sample", "worker_init_fn", "collate_fn", "start", "queue". alone: the same happens
    outside of workers; together: only beside other workers. signal: its name. seconds: how long was waited for it;
    usual: how long samples took before this one; busy: it was computing all the while.
    """

    kind: Literal["crashed", "left", "hung", "raised"]
    during: Literal["sample", "worker_init_fn", "collate_fn", "start", "queue"] = "sample"
    worker: int = -1
    index: str = ""
    signal: str = ""
    exit: int = 0
    error: str = ""
    place: str = ""
    stack: str = ""
    seconds: Amount = 0.0
    alone: bool = False
    together: bool = False
    usual: Amount | None = None
    busy: bool = False


class Option(Struct, frozen=True, kw_only=True):
    """A keyword of DataLoader as the user gave it."""

    name: str
    value: str


class RefusedOptions(Struct, frozen=True, kw_only=True):
    """What DataLoader said to the user's options."""

    options: list[Option]
    error: str


class NewEpoch(Struct, frozen=True, kw_only=True):
    """Whether persistent workers saw the epoch that the dataset was told. told: `set_epoch(1)`.

    old, new: the leaf as a process reads it that was told the first and the second epoch; got: what the worker
    read in the second. count: samples that kept the old value, of all that should have changed.
    """

    told: str
    leaf: str
    index: int
    old: str
    new: str
    got: str
    count: Count
    of: Count


class Streams(Struct, frozen=True, kw_only=True):
    """What a real DataLoader over this dataset did in two epochs, and which generators its samples depend on.

    asked: the user's num_workers, None where not given; workers: those that were used. batches: len(loader).
    """

    asked: int | None = None
    workers: Count = 0
    persistent: bool = False
    context: str = "fork"
    epochs: Count = 0
    samples: Count = 0
    batches: Count | None = None
    batch_size: int | None = None
    depends: list[Dependence] | Unread = field(default_factory=list)
    shared: list[Shared] | Unread = field(default_factory=list)
    repeated: list[Repeated] | Unread = field(default_factory=list)
    reseeded: list[ReseededGenerator] = field(default_factory=list)
    frozen: list[Frozen] = field(default_factory=list)
    made_alike: list[MadeAlike] = field(default_factory=list)
    stops: list[WorkerStop] = field(default_factory=list)
    refused: RefusedOptions | None = None
    new_epoch: list[NewEpoch] | Unread = field(default_factory=list)
