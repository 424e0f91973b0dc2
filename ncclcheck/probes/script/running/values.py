"""What is known of a value without running anything: where it was made, and what it depends on."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

# What a value depends on. rank, local, world: numbers of the job. first: a test of the rank. own: made of the
# samples of one rank. live: it keeps the graph of a forward pass. share: as many samples as a division left to it.
# some: it is there on some ranks only.
RANK, LOCAL, WORLD, FIRST, OWN, LIVE, SHARE = "rank", "local", "world", "first", "own", "live", "share"
SOME = "some"
MAY_LACK = "maylack"  # it is None, or false, on the others
CLOCK = "clock"  # of this process's clock
CHANCE = "chance"  # drawn without a seed that is known
DRAWN = "drawn"  # of a generator that nothing seeds: other numbers on each rank
ON_CPU = "oncpu"  # a tensor in the CPU's memory
BY_RANK = "byrank"  # made of the rank, or of a test of it, in some way
AGREED = "agreed"  # exchanged by all ranks
MEAN, SUMMED = "mean", "summed"  # an average over samples of this rank; such averages, added over ranks
ORDERED = "ordered"  # in an order that each rank has drawn from a seed of its own
UNEVEN = "uneven"  # a range whose length differs by rank
GPU_0 = "gpu0"  # the device that is taken where no number is given
CPU = "cpu"
DEFAULT = "default"  # of an option, which the command line may change
NUMBERED = "numbered"  # what a loop over it gives begins with a count
_LONG = 160  # characters of a symbol
# What goes over to a result: the loader that its samples came from, the model that its parameters are of.
_CARRIED = ("from:", "params:", "via:", "past:", "state:", "loaded:")
_PROPERTIES = {DEFAULT, CLOCK, BY_RANK, AGREED, WORLD, OWN, LIVE, SHARE, CHANCE, DRAWN, MEAN, SUMMED, ORDERED}


class AbstractValue(NamedTuple):
    """tags: properties, and objects (KIND@FILE:LINE), functions (fn:FILE:NAME) that it may be. symbol: the same
    text for the same value, such as a path; empty where it is not known. items: of a tuple or a list. each: what
    it is on each rank (each.py), where that differs.
    """

    tags: frozenset[str] = frozenset()
    symbol: str = ""
    items: tuple[AbstractValue, ...] | None = None
    each: tuple[object, ...] | None = None

    @property
    def objects(self) -> list[str]:
        """Those that it may be."""
        return sorted(tag for tag in self.tags if "@" in tag and ":" not in tag.partition("@")[0])

    def of(self, *kinds: str) -> list[str]:
        """Its objects of these kinds."""
        return [thing for thing in self.objects if thing.partition("@")[0] in kinds]

    def but(self, *tags: str) -> AbstractValue:
        """The same without some properties, in its parts too."""
        if self.items is None and self.tags.isdisjoint(tags):
            return self
        items = None if self.items is None else tuple(part.but(*tags) for part in self.items)
        return self._replace(tags=self.tags - {*tags}, items=items)

    def with_(self, *tags: str) -> AbstractValue:
        """The same with more."""
        return self._replace(tags=self.tags | {*tags})

    def agreed(self, *unlike: str) -> AbstractValue:
        """What it is once ranks have exchanged it."""
        items = None if self.items is None else tuple(part.agreed(*unlike) for part in self.items)
        return AbstractValue((self.tags - {*unlike}) | {AGREED}, self.symbol, items)

    @property
    def all_tags(self) -> frozenset[str]:
        """Those of its parts too."""
        return self.tags.union(*(part.all_tags for part in self.items)) if self.items else self.tags


NOTHING = AbstractValue()


def constant(value: object) -> AbstractValue:
    """A number or a text as it is written."""
    device = {GPU_0} if value in ("cuda", "cuda:0") else {CPU} if value == "cpu" else ()
    return AbstractValue(frozenset(device), repr(value)[:_LONG])


def join(values: Iterable[AbstractValue]) -> AbstractValue:
    """Any one of them."""
    choices = [*values]
    if not choices:
        return NOTHING
    first = choices[0]
    if all(choice == first for choice in choices):
        return first
    items = None
    if first.items is not None and all(
        choice.items is not None and len(choice.items) == len(first.items) for choice in choices
    ):
        items = tuple(join(parts) for parts in zip(*(choice.items or () for choice in choices), strict=True))
    symbols = {choice.symbol for choice in choices}
    each = [choice.tags if items is not None else choice.all_tags for choice in choices]
    tags = frozenset().union(*each) - frozenset(
        tag for tag in (CHANCE, SUMMED, ON_CPU) if not all(tag in marks for marks in each)
    )
    if not all(marks & {GPU_0, CPU} for marks in each):
        tags -= {GPU_0}  # another GPU may be meant
    if AGREED in tags:
        tags -= {OWN}  # one way it was exchanged: it is not known to be a rank's own
    return AbstractValue(tags, symbols.pop() if len(symbols) == 1 else "", items)


def may_lack(values: Iterable[AbstractValue]) -> frozenset[str]:
    """Whether one of them is none: None, or false."""
    return frozenset({MAY_LACK} if any(value.symbol in ("None", "False", "0") for value in values) else ())


def carried(*values: AbstractValue) -> frozenset[str]:
    """What a result of these depends on; it is none of them."""
    every = frozenset().union(*(value.all_tags for value in values))
    tags = frozenset(tag for tag in every if tag in _PROPERTIES or tag.startswith(_CARRIED))
    return tags | {BY_RANK} if every & {RANK, LOCAL, FIRST} else tags


def symbol(head: str, *parts: AbstractValue) -> str:
    """How something made of parts is called; empty where one of them is not known."""
    if not all(part.symbol for part in parts):
        return ""
    return f"{head}({','.join(part.symbol for part in parts)})"[:_LONG]


@dataclass
class Thing:
    """An object that the script has made. cls: FILE:CLASS of its own. fields: what it was given."""

    kind: str
    cls: str = ""
    fields: dict[str, AbstractValue] = field(default_factory=dict)
    written: dict[str, ast.expr] = field(default_factory=dict)  # of a table: its values as they are written


@dataclass
class Function:
    """A function of the script. owner: FILE:CLASS around it."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    file: str
    owner: str = ""

    @property
    def parameters(self) -> list[str]:
        """By position."""
        given = self.node.args
        return [argument.arg for argument in [*given.posonlyargs, *given.args]]


@dataclass
class CallFrame:
    """A function that is being followed, or a file's own lines."""

    file: str
    scope: str
    owner: str = ""
    variables: dict[str, AbstractValue] = field(default_factory=dict)
    around: CallFrame | None = None
    returned: list[AbstractValue] = field(default_factory=list)
    split: bool = False  # whether some ranks return where others go on
    yielded: list[AbstractValue] = field(default_factory=list)
    loops: int = 0  # those of its own that are around
    born: dict[str, int] = field(default_factory=dict)  # name -> loops around where it is given a value anew
    reduced: set[str] = field(default_factory=set)  # names whose tensor was summed in place

    def look(self, name: str) -> AbstractValue | None:
        """A variable of it, or of what is around it."""
        frame: CallFrame | None = self
        while frame is not None:
            if name in frame.variables:
                return frame.variables[name]
            frame = frame.around
        return None


def functions(file: str, tree: ast.Module) -> Iterator[Function]:
    """All of one file, by their place in it; those of classes under the class."""

    def inside(body: list[ast.stmt], scope: str, owner: str) -> Iterator[Function]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{scope}.{node.name}" if scope else node.name
                yield Function(f"{file}:{name}", node, file, owner)
                yield from inside(node.body, name, "")
            elif isinstance(node, ast.ClassDef):
                name = f"{scope}.{node.name}" if scope else node.name
                yield from inside(node.body, name, f"{file}:{name}")
            elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
                yield from inside([*node.body, *getattr(node, "orelse", [])], scope, owner)

    return inside(tree.body, "", "")
