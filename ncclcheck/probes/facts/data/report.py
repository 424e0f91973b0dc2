"""One node's examination of the user's dataset; its aspects are told one by one, as they are finished."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from ncclcheck.probes.facts.data.content import Content
from ncclcheck.probes.facts.data.made import Made
from ncclcheck.probes.facts.data.resources import DataResources
from ncclcheck.probes.facts.data.sharding import Sharding
from ncclcheck.probes.facts.data.speed import Speed
from ncclcheck.probes.facts.data.streams import Streams
from ncclcheck.probes.facts.data.structure import Structure


class Unseen(Struct, frozen=True, kw_only=True):
    """An aspect that was not looked at, and why: `the time budget was used up`, `it is an IterableDataset`.

    defect: the traceback, where an exception of ncclcheck itself ended it.
    """

    aspect: str
    why: str
    defect: str = ""


class DataReport(Struct, frozen=True, kw_only=True):
    """What one node saw of the dataset that `factory` gives; None: that aspect was not reached (see `unseen`)."""

    node: str
    factory: str
    made: Made | None = None
    content: Content | None = None
    streams: Streams | None = None
    structure: Structure | None = None
    sharding: Sharding | None = None
    resources: DataResources | None = None
    speed: Speed | None = None
    unseen: list[Unseen] = field(default_factory=list)


def by_node(reports: Iterable[DataReport]) -> list[DataReport]:
    """The parts that each node told, as one report a node."""
    merged: dict[str, DataReport] = {}
    for part in reports:
        whole = merged.get(part.node, part)
        aspects = {name: value for name in _ASPECTS if (value := getattr(part, name)) is not None}
        unseen = {entry.aspect: entry for entry in (*whole.unseen, *part.unseen)}
        merged[part.node] = replace(whole, **aspects, unseen=[*unseen.values()])
    return [*merged.values()]


_ASPECTS = tuple(n for n in DataReport.__struct_fields__ if n not in ("node", "factory", "unseen"))
