"""What follows from the facts of a node, a cluster or logs: worked out once, though rules ask again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, cast

from ncclcheck.probes.facts import Cluster, Logs, Node

S = TypeVar("S", Node, Cluster, Logs)
T = TypeVar("T")


def derived(function: Callable[[S], T]) -> Callable[[S], T]:
    """Keep what a function makes of its subject with that subject, as functools.cached_property would.

    Facts are frozen, so it stays true; it goes when its subject goes. Nobody may change what is returned.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(subject: S) -> T:
        found = subject.__dict__
        if name not in found:
            found[name] = function(subject)
        return cast(T, found[name])

    return kept
