"""What samples and workers take: descriptors, memory, shared memory."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole
from ncclcheck.probes.facts.guard.unread import NOT_RECORDED, Unread
from ncclcheck.probes.facts.machine.host import Limits, Space

Grown = Annotated[int, Meta(ge=-(2**60), le=2**60)]


class Growth(Struct, frozen=True, kw_only=True, tag="growth"):
    """How much more one process held after so many reads, in equal runs; memory and copied have bytes run by run.

    descriptors: open at the end and not before; opened: on what, some of them. memory: new private memory.
    copied: memory that was shared with the process which made the dataset, and that reading made private
    (copy-on-write; a count of references is written into each Python object that is read). growing: lists,
    dicts and sets of the dataset that got longer with the reads, by path: `self.memory`; kinds: what each is.
    """

    reads: Count
    descriptors: Grown = 0
    opened: list[str] = field(default_factory=list)
    memory: list[Grown] = field(default_factory=list)
    copied: list[Grown] = field(default_factory=list)
    growing: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)


class ObjectContainer(Struct, frozen=True, kw_only=True):
    """A large container of Python objects below the dataset. path: `files`; kind: `list of dict`; bytes: estimated
    from some of its items.
    """

    path: str
    kind: str
    items: Whole
    bytes: Whole


class CollatedBatch(Struct, frozen=True, kw_only=True, tag="batch"):
    """What the loader's collate function made of the first `samples` samples, as a worker would send it.

    size: samples of the loader's own batch; 0: it does not batch (batch_size=None). tensors: memory segments of
    their own, each a descriptor; used: bytes of the tensors' elements; held: bytes of the memory behind them,
    which all goes to /dev/shm; piped: bytes that go through a pipe. collate: its name, empty for torch's own.
    views: parts of a sample (`0`, `image`; empty: the sample itself) that are small views of large memory.
    """

    samples: Count
    size: Whole
    tensors: Count
    used: Whole
    held: Whole
    piped: Whole
    collate: str = ""
    views: list[str] = field(default_factory=list)


class Pickled(Struct, frozen=True, kw_only=True):
    """What a worker is given when it is not forked. what: dataset, collate_fn, worker_init_fn.

    bytes: without those of tensors, which are shared. error: `TypeError: cannot pickle ...`; attribute: the
    smallest part of it that cannot be pickled (`handle`, `transform.fn`), where it was found.
    """

    what: str
    bytes: Whole = 0
    seconds: Amount = 0.0
    error: str = ""
    attribute: str = ""


class Start(Struct, frozen=True, kw_only=True, tag="start"):
    """How workers are started. asked: by the loader or by the user's code, else it is Python's own default."""

    method: str
    asked: bool
    pickled: list[Pickled]


class Cpu(Struct, frozen=True, kw_only=True, tag="cpu"):
    """What one reading process does to the cores. share: of the time of a read that is spent on a core, of all its
    threads; threads: that it started while it read.
    """

    share: Amount
    threads: Count


class DataResources(Struct, frozen=True, kw_only=True):
    """What samples and workers take: descriptors, memory, shared memory; and what this node gives them.

    workers, prefetch: of the loader; asked: the loader says how many workers, else `workers` is our own choice.
    again: the same samples, read once more after two times. fresh: samples not read before, in short runs spread
    over the index. inherited: private memory of the process that made the dataset. descriptors: open before the
    first read. cores: by affinity and quota; memory: available, within the control group's limit.
    """

    length: Whole | None = None
    workers: Count = 0
    asked: bool = False
    prefetch: Count = 2
    ranks_per_node: Count = 1
    again: Growth | Unread = NOT_RECORDED
    fresh: Growth | Unread = NOT_RECORDED
    inherited: Whole = 0
    descriptors: Count = 0
    containers: list[ObjectContainer] = field(default_factory=list)
    batch: CollatedBatch | Unread = NOT_RECORDED
    start: Start | Unread = NOT_RECORDED
    cpu: Cpu | Unread = NOT_RECORDED
    shm: Space | Unread = NOT_RECORDED
    nofile: Limits | Unread = NOT_RECORDED
    cores: Amount | Unread = NOT_RECORDED
    memory: Whole | Unread = NOT_RECORDED
