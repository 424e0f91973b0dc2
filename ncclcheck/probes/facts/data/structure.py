"""What a sample looks like, and whether samples stack."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.data.streams import WorkerStop
from ncclcheck.probes.facts.guard.bounds import Count, Whole


class Shape(Struct, frozen=True, kw_only=True):
    """Samples that look alike: leaf by leaf `image: float32 [3, 32, 32]`. indices: the first of them."""

    leaves: list[str]
    count: Count
    indices: list[int] = field(default_factory=list)


class Mixed(Struct, frozen=True, kw_only=True):
    """A leaf that is not alike in all samples. usual, other: how it looks in most, and in `count` of them."""

    leaf: str
    kind: Literal["missing", "type", "dimensions", "shape", "dtype"]
    usual: str
    other: str
    count: Count
    indices: list[int] = field(default_factory=list)


class Unstacked(Struct, frozen=True, kw_only=True):
    """A batch that the collate function refused. alike: its samples look alike, so no batch would do.

    certain: the loader itself makes this batch; else two samples that a shuffled loader may bring together.
    """

    indices: list[int]
    error: str
    place: str = ""
    alike: bool = False
    certain: bool = False


class Unpaired(Struct, frozen=True, kw_only=True):
    """A row of a batch of the user's own collate function that holds parts of two samples.

    rows: so many of the batch's `of`. first, second: the parts (`0`, `label`); first_of, second_of: the indices of
    the samples that they are of, the lowest where several have an equal part.
    """

    row: Count
    rows: Count
    of: Count
    first: str
    first_of: Whole
    second: str
    second_of: Whole


class Structure(Struct, frozen=True, kw_only=True):
    """What samples look like. read: how many were looked at; length: of the dataset, where it has one.

    collate: name of the function; custom: it is the user's own. batch_size: as given, 0: DataLoader does not
    batch, None: the user gave none. collated: what it makes of samples that differ. raised: samples that raised;
    died: those at which the process that read them ended, or gave no answer. unpaired: None where each row of a
    batch is known to be of one sample, or nothing is known. overwritten: parts of a batch of the user's own
    collate function that were others once the next batch was made.
    """

    read: Count = 0
    length: Whole | None = None
    collate: str = "default_collate"
    custom: bool = False
    batch_size: int | None = None
    shapes: list[Shape] = field(default_factory=list)
    mixed: list[Mixed] = field(default_factory=list)
    unstacked: list[Unstacked] = field(default_factory=list)
    collated: list[str] = field(default_factory=list)
    raised: Count = 0
    died: list[WorkerStop] = field(default_factory=list)
    unpaired: Unpaired | None = None
    overwritten: list[str] = field(default_factory=list)
