"""What the factory gave, and what it left open, running or initialised in the process that called it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole


class Handle(Struct, frozen=True, kw_only=True):
    """A descriptor that was open after the factory and not before. target: a path, or `socket:[...]`."""

    number: Count
    kind: Literal["file", "socket", "pipe", "device", "other"]
    target: str
    access: Literal["r", "w", "rw"]


class LibraryHandle(Struct, frozen=True, kw_only=True):
    """An open handle of a library, found in the dataset: its path there (`self.f`) and type (`h5py.File`)."""

    path: str
    type: str


class FactoryFailure(Struct, frozen=True, kw_only=True):
    """Why nothing came of the factory. place: the user's own last line; stacks: where a hang or a crash was.

    killed: the kernel ended it though its process held little of the memory, at most so many bytes; 0: it did not.
    """

    error: str
    place: str = ""
    stacks: str = ""
    killed: Count = 0


class Method(Struct, frozen=True, kw_only=True):
    """A function as it is written. place: `loaders.py:12`; parameters: without self; returns: the expressions that
    it returns, in order, empty where one is too long to be repeated.
    """

    name: str
    place: str = ""
    parameters: list[str] = field(default_factory=list)
    returns: list[str] = field(default_factory=list)


class Assigned(Struct, frozen=True, kw_only=True):
    """`self.NAME = VALUE`, in __init__ or where it is made at the first read. needs: names of the function's own
    that the value uses, such as an argument `path`.
    """

    name: str
    value: str
    needs: list[str] = field(default_factory=list)


RewriteKind = Literal["changed", "entropy", "interpreter", "listing", "order", "seed"]


class Rewrite(Struct, frozen=True, kw_only=True):
    """A line of the user's as it would be without the fault. place: `loaders.py:12`; call: what it calls there.

    kind: changed, what a read gives is changed in place; entropy, seeded by the system; interpreter, changes with
    PYTHONHASHSEED; listing, in the file system's order; order, drawn without a seed; seed, the same on all ranks.
    """

    kind: RewriteKind
    place: str
    call: str
    new: str


class Code(Struct, frozen=True, kw_only=True):
    """The user's class and collate function, where their text could be read.

    owner: the name of the class; item, length: its `__getitem__` and `__len__`; reads: what `__getitem__` asks the
    dataset for by the bare index (`self.records[index]`, `self._load(index)`). assigned: the attributes that it
    gives itself, in order. rewrites: lines of its file that may be what a rule sees the effect of.
    """

    owner: str = ""
    item: Method | None = None
    length: Method | None = None
    collate: Method | None = None
    reads: list[str] = field(default_factory=list)
    assigned: list[Assigned] = field(default_factory=list)
    rewrites: list[Rewrite] = field(default_factory=list)


class Made(Struct, frozen=True, kw_only=True):
    """What the factory gave. dataset: its type; options: the loader's keywords as text.

    threads: Python threads that the factory started and that still run; thread_owners: of each the path
    of the object whose method it runs. natives: other threads beside them.
    locks: objects of multiprocessing.synchronize in the dataset, by path: what they guard is safe to share.
    frameworks: those imported by then that share samples out among ranks themselves. code: None in older results.
    """

    failure: FactoryFailure | None = None
    seconds: Amount = 0.0
    dataset: str = ""
    given: Literal["dataset", "loader", "tuple", "module"] = "dataset"
    iterable: bool = False
    length: Whole | None = None
    options: dict[str, str] = field(default_factory=dict)
    handles: list[Handle] = field(default_factory=list)
    libraries: list[LibraryHandle] = field(default_factory=list)
    locks: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    thread_owners: list[str] = field(default_factory=list)
    natives: Count = 0
    cuda: bool = False
    frameworks: list[str] = field(default_factory=list)
    code: Code | None = None
