"""What follows from the facts of a node, a cluster or logs: worked out once, though rules ask again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar, cast

from ncclcheck.probes.facts import Cluster, Interface, Logs, Node, at

S = TypeVar("S", Node, Cluster, Interface, Logs)
T = TypeVar("T")
_KINDS = 64  # of nodes whose results are kept; a cluster has a few kinds


def derived(function: Callable[[S], T]) -> Callable[[S], T]:
    """Keep what a function makes of its subject with that subject, as functools.cached_property would.

    Facts are frozen, so it stays true; it goes when its subject goes. Nobody may change what is returned.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(subject: S) -> T:
        values = subject.__dict__
        if name not in values:
            values[name] = function(subject)
        return cast(T, values[name])

    return kept


class _Same:
    """A key that is equal only to itself of the very same facts, which it keeps alive."""

    def __init__(self, node: Node, parts: tuple[object, ...]) -> None:
        self.node, self._parts = node, parts
        self._ids = tuple(map(id, parts))

    def __hash__(self) -> int:
        return hash(self._ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._ids == other._ids


def derived_from(*names: str) -> Callable[[Callable[[Node], T]], Callable[[Node], T]]:
    """The same for what follows from these facts of a node alone: nodes that share them share it, too.

    names: fields of a node, or dotted paths below it.

    A test takes all other fields away and looks whether the result stays.
    """

    def mark(function: Callable[[Node], T]) -> Callable[[Node], T]:
        known = lru_cache(maxsize=_KINDS)(lambda same: function(same.node))

        def of_kind(node: Node) -> T:
            return known(_Same(node, tuple(at(node, name) for name in names)))

        kept = derived(wraps(function)(of_kind))
        SOURCES[kept] = names
        return kept

    return mark


SOURCES: dict[Callable[[Node], object], tuple[str, ...]] = {}
