"""What samples contain, read in several orders and by several workers at once."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole

# fixed: the same whatever the order and the seed. random: set by the seeds of the global generators. private: by a
# generator of the dataset's own. hidden: by what was read before. uncontrolled: two equal processes differ.
Kind = Literal["fixed", "random", "private", "hidden", "uncontrolled"]


class Differs(Struct, frozen=True, kw_only=True):
    """One sample of two contents. first, second: the first values of the leaf, or what was raised."""

    index: Whole
    first: str
    second: str


class LeafKind(Struct, frozen=True, kw_only=True):
    """A leaf of the samples (path `image`, `meta.id`; empty: the sample itself), and what its content depends on.

    reread: it is another one when a process reads the same sample again. example: of what makes it hidden or
    uncontrolled. differing: of how many samples that is so.
    """

    leaf: str
    dtype: str
    kind: Kind
    bytes: Whole = 0
    reread: bool = False
    differing: Count = 0
    of: Count = 0
    example: Differs | None = None


class UnreadableSample(Struct, frozen=True, kw_only=True):
    """A sample that could not be read. kind: how the attempt ended; place: the user's own last line.

    busy_s: processor seconds of one that hung: none where it waited for something.
    """

    index: Whole
    kind: Literal["raised", "signal", "left", "hung"]
    error: str
    place: str = ""
    stacks: str = ""
    busy_s: Amount = 0.0


class Wrong(Struct, frozen=True, kw_only=True):
    """A read by one of several workers that gave what the same read alone does not give.

    of_index: the sample whose content came instead, where it is known; error: it raised.
    """

    index: Whole
    worker: Count
    leaf: str = ""
    alone: str = ""
    got: str = ""
    of_index: Whole | None = None
    error: str = ""


class Contest(Struct, frozen=True, kw_only=True):
    """Several workers reading at once. stuck: workers that gave no answer, or died, and their stacks."""

    workers: Count = 0
    reads: Whole = 0
    wrong: Whole = 0
    examples: list[Wrong] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)


class WrittenFile(Struct, frozen=True, kw_only=True):
    """A file that several workers read, and that was written meanwhile, in place, under the name that all read.

    writers: workers that were seen to write it; 0 where C code did.
    """

    path: str
    readers: Count
    writers: Count = 0


class Overwritten(Struct, frozen=True, kw_only=True):
    """A sample that was changed while its reader still held it, by the reading of others."""

    index: Whole
    leaf: str
    before: str
    after: str


class Inherited(Struct, frozen=True, kw_only=True):
    """What was opened before the fork and is used by the workers.

    offset: reading moved the file's offset, which all workers share. socket, process (a child that answers over
    pipes), library: without it, reading fails.
    """

    how: Literal["offset", "socket", "process", "library"]
    what: str
    path: str = ""
    index: Whole = 0


class Fallback(Struct, frozen=True, kw_only=True):
    """A sample that is another one, after an error that was swallowed, or (no error) by reading that one itself.

    of_index: None where it is a random one. placeholder: that other one had such an error too, and holds the same.
    """

    index: Whole
    of_index: Whole | None
    error: str
    place: str = ""
    placeholder: bool = False


class Beyond(Struct, frozen=True, kw_only=True):
    """Samples behind the end that len() tells. told: an attribute of the dataset is that number too.

    holder: an attribute of the dataset (`self.names`) that holds as many things as there are samples.
    """

    length: Whole
    end: Whole
    told: bool
    holder: str = ""


class NotFinite(Struct, frozen=True, kw_only=True):
    """A part of the samples that is no number (NaN) or infinite in some of those that were swept.

    count: how many; examples: which. meant: the file of the dataset's class asks itself for such values.
    """

    leaf: str
    count: Whole
    nan: Whole = 0
    examples: list[Whole] = field(default_factory=list)
    meant: bool = False


class Memory(Struct, frozen=True, kw_only=True):
    """Memory that forked processes share: its path in the dataset (`self.scratch`), and the type that holds it."""

    path: str
    type: str


class Content(Struct, frozen=True, kw_only=True):
    """What samples contain, read in several orders and by several workers at once.

    indices: samples that were compared; complete: in all orders. swept: samples that were only read; read_s: of
    one. shared, memory: what all workers share and reading changes. entropy: calls that no seed controls, made
    while reading. dropped: swept samples that are None after an error was swallowed; dropped_first: one of them.
    in_worker: samples of the dataset in a worker, where its worker_init_fn leaves another number than there were.
    threads: that reading starts. raced: leaves that two threads of one process disturb.
    """

    seed: int = 0
    indices: Count = 0
    complete: bool = True
    swept: Whole = 0
    read_s: Amount = 0.0
    leaves: list[LeafKind] = field(default_factory=list)
    unreadable: list[UnreadableSample] = field(default_factory=list)
    unreadable_count: Whole = 0
    in_worker: Whole | None = None
    stuck: UnreadableSample | None = None
    first_touch: Contest | None = None
    stress: Contest | None = None
    written: list[WrittenFile] = field(default_factory=list)
    overwritten: list[Overwritten] = field(default_factory=list)
    inherited: list[Inherited] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    dropped: Whole = 0
    dropped_first: Fallback | None = None
    not_finite: list[NotFinite] = field(default_factory=list)
    beyond: Beyond | None = None
    shared: list[str] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    entropy: list[str] = field(default_factory=list)
    threads: Count = 0
    raced: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
