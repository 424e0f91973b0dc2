"""Agreement between nodes: the odd one out by majority, and a draw said as such."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ncclcheck.reports.judgement.findings import Evidence, Finding, Owner, Remedy, Where, fine, seen
from ncclcheck.reports.text.words.fold import fold_names

T = TypeVar("T")


@dataclass(frozen=True)
class ValueGroups(Generic[T]):
    """Nodes by their value, the largest group first."""

    groups: list[tuple[T, list[str]]]

    @property
    def agree(self) -> bool:
        """Whether there is at most one value."""
        return len(self.groups) < 2

    @property
    def majority(self) -> T | None:
        """The value of the one largest group; None for a draw."""
        sizes = [len(nodes) for _, nodes in self.groups]
        draw = not sizes or sizes[1:2] == sizes[:1]
        return None if draw else self.groups[0][0]

    @property
    def odd(self) -> list[tuple[str, T]]:
        """Nodes outside the largest group, with their values."""
        return [(node, value) for value, nodes in self.groups[1:] for node in nodes]

    def __str__(self) -> str:
        return "; ".join(f"{value} on {fold_names(nodes)}" for value, nodes in self.groups)


def group(values: Mapping[str, T]) -> ValueGroups[T]:
    """Put the nodes of each value together."""
    by_value: dict[T, list[str]] = {}
    for node, value in values.items():
        by_value.setdefault(value, []).append(node)
    return ValueGroups(sorted(by_value.items(), key=lambda item: -len(item[1])))


def disagreements(
    values: Mapping[str, T],
    subject: str,
    source: str,
    *,
    level: Callable[..., Finding],
    why: str,
    owner: Owner,
    fix: list[Remedy],
) -> Iterator[Finding]:
    """One finding a node that stands against the majority, one for a draw, a fine one where all agree.

    subject: what they should agree on, as in "torch 2.13 on 16 nodes". level: fail, warn or note.
    """
    groups = group(values)
    evidence: list[Evidence] = [seen(source, f"{value} on {fold_names(nodes)}") for value, nodes in groups.groups]
    if groups.agree:
        yield fine(Where(), f"{subject} {groups.groups[0][0]} on all {len(values)} nodes", *evidence)
        return
    if groups.majority is None:
        what = f"{subject} differs and no value has the majority: {groups}"
        yield level(Where(), what, why=why, owner=owner, evidence=evidence, fix=fix)
        return
    most = f"{len(groups.groups[0][1])} of {len(values)} nodes have {groups.majority}"
    for node, value in groups.odd:
        what = f"{subject} is {value}; {most}"
        yield level(Where(node=node), what, why=why, owner=owner, evidence=evidence, fix=fix)
