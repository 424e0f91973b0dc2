"""What changed on a node between two results: parts that are gone, slower links, versions, settings, counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from ncclcheck.probes.facts import Node, Unread, at, replace, variables
from ncclcheck.reports.compare.counters import counted, named, xids
from ncclcheck.reports.compare.watched import NODE, PARTS, Part, WatchedFact
from ncclcheck.reports.compare.words import shown
from ncclcheck.reports.subjects.nccl.variables import values

Verdict = Literal["worse", "better", "changed", "unseen"]

_SETTINGS = (
    *("NCCL_", "TORCH_", "PYTORCH_", "CUDA_", "GLOO_", "UCX_", "FI_", "OFI_NCCL_", "OMP_"),
    "LD_LIBRARY_PATH",
)


class FactChange(Struct, frozen=True, kw_only=True):
    """One fact that changed, and the nodes on which it changed alike.

    part: what of the node, empty for the node itself. unseen: one of the two could not be read. counter: it counts
    errors. grave: a job cannot run, or not rightly, like this.
    """

    nodes: list[str]
    part: str
    fact: str
    before: str
    after: str
    verdict: Verdict
    counter: bool = False
    grave: bool = False

    def __str__(self) -> str:
        about = " ".join(word for word in (self.part, self.fact) if word)
        return f"{about}: {self.before} -> {self.after}"


def changes(before: Node, after: Node) -> Iterator[FactChange]:
    """Of one node, in the order of its parts."""
    rebooted = _both(before, after, "host.boot_id") and at(before, "host.boot_id") != at(after, "host.boot_id")
    comparison = _NodeComparison(after.name, rebooted=rebooted)
    if rebooted:
        yield comparison.change("", "machine", "up", "restarted", "changed")
    given = [variables(side).get("CUDA_VISIBLE_DEVICES") for side in (before, after)]
    watches = [watch for watch in NODE if given[0] == given[1] or watch.path != "gpus.usable"]
    yield from comparison.facts(watches, "", before, after)
    for part in PARTS:
        yield from comparison.listed(part, "", before, after)
    yield from comparison.errors_of_the_driver(before, after)
    yield from comparison.settings(before, after)


def together(all_changes: Iterable[FactChange]) -> list[FactChange]:
    """The same change of many nodes is one; the worst first."""
    groups: dict[tuple[str, ...], list[FactChange]] = {}
    for change in all_changes:
        key = (change.part, change.fact, change.before, change.after, change.verdict)
        groups.setdefault(key, []).append(change)
    listed = [replace(alike[0], nodes=[n for change in alike for n in change.nodes]) for alike in groups.values()]
    order = ("worse", "changed", "better", "unseen")
    return sorted(listed, key=lambda change: (order.index(change.verdict), not change.grave))


def _both(before: Node, after: Node, path: str) -> bool:
    return type(at(before, path)) is not Unread and type(at(after, path)) is not Unread


class _NodeComparison:
    """Two results of one node. rebooted: most of its counters began anew."""

    def __init__(self, node: str, *, rebooted: bool) -> None:
        self.nodes, self.rebooted = [node], rebooted

    def change(self, part: str, fact: str, before: str, after: str, verdict: Verdict, **more: bool) -> FactChange:
        """A change on this node."""
        nodes = self.nodes
        return FactChange(nodes=nodes, part=part, fact=fact, before=before, after=after, verdict=verdict, **more)

    def facts(self, watches: Sequence[WatchedFact], part: str, before: Any, after: Any) -> Iterator[FactChange]:
        """Single facts below a node or a part of it."""
        for watch in watches:
            old, new = at(before, watch.path), at(after, watch.path)
            if old != new and (verdict := _verdict(watch, old, new)):
                words = shown(old, watch.unit), shown(new, watch.unit)
                yield self.change(part, watch.words, *words, verdict, grave=watch.grave and verdict == "worse")

    def listed(self, part: Part, above: str, before: Any, after: Any) -> Iterator[FactChange]:
        """The items of a list: which are gone or new, and what of the others changed."""
        old, new = at(before, part.path), at(after, part.path)
        if _lost_sight(old) or _lost_sight(new):
            if type(old) is not type(new):
                yield self.change(above, f"{part.noun}s", shown(old), shown(new), "unseen")
            return
        olds, news = _by_key(part, old), _by_key(part, new)
        if part.key != "pci":  # cards that another job may use are no news; the list of the PCI bus has them all
            yield from self._gone_and_new(part, above, olds, news)
        for key in [key for key in olds if key in news and (self.rebooted or olds[key] != news[key])]:
            name = f"{above} {part.noun} {key}".strip()
            yield from self._item(part, name, olds[key], news[key])

    def _gone_and_new(
        self, part: Part, above: str, olds: dict[str, Any], news: dict[str, Any]
    ) -> Iterator[FactChange]:
        """One that is gone while another came may have a new name only."""
        fewer, more = len(news) < len(olds), len(news) > len(olds)
        for key in [key for key in olds if key not in news]:
            name = f"{above} {part.noun} {key}".strip()
            yield self.change(
                name, "", "there", "gone", "worse" if fewer else "changed", grave=part.grave and fewer
            )
        for key in [key for key in news if key not in olds]:
            name = f"{above} {part.noun} {key}".strip()
            yield self.change(name, "", "not there", "there", "better" if more else "changed")

    def _item(self, part: Part, name: str, old: Any, new: Any) -> Iterator[FactChange]:
        if part.key:
            yield from self.facts(part.watches, name, old, new)
            for rise in [
                *counted(part.counts, old, new, rebooted=self.rebooted),
                *named(part.counters, old, new, rebooted=self.rebooted),
            ]:
                verdict: Verdict = "worse" if rise.bad else "changed"
                grave = rise.grave and rise.bad
                yield self.change(name, rise.words, rise.before, rise.after, verdict, counter=True, grave=grave)
        for below in part.parts:
            yield from self.listed(below, name, old, new)

    def errors_of_the_driver(self, before: Node, after: Node) -> Iterator[FactChange]:
        """Xid lines of the kernel log that were not there."""
        for rise in xids(before, after):
            verdict: Verdict = "worse" if rise.bad else "changed"
            grave = rise.grave and rise.bad
            yield self.change(rise.part, rise.words, rise.before, rise.after, verdict, counter=True, grave=grave)

    def settings(self, before: Node, after: Node) -> Iterator[FactChange]:
        """Variables that NCCL, torch and their like read, from the environment and from nccl.conf."""
        if not _both(before, after, "job.variables"):
            return
        old, new = values(before), values(after)
        for name in sorted(old.keys() | new.keys()):
            if name.startswith(_SETTINGS) and old.get(name) != new.get(name):
                yield self.change("", name, old.get(name, "not set"), new.get(name, "not set"), "changed")


def _lost_sight(fact: Any) -> bool:
    return type(fact) is Unread and fact.kind != "absent"


def _by_key(part: Part, listed: Any) -> dict[str, Any]:
    if type(listed) is Unread:
        return {}
    if not part.key:
        return {str(item): item for item in listed}
    keys = [(getattr(item, part.key), item) for item in listed if part.of(item)]
    return {str(key): item for key, item in keys if type(key) is not Unread}


def _verdict(watch: WatchedFact, old: Any, new: Any) -> Verdict | None:
    """How two values that are not equal compare; None where there is nothing to say."""
    if type(old) is Unread or type(new) is Unread:
        return _half_known(watch, old, new)
    if watch.near and abs(new - old) <= watch.near * max(abs(old), abs(new)):
        return None
    if watch.good is not None:
        return "worse" if old == watch.good else "better" if new == watch.good else "changed"
    if watch.worse == "other":
        return "changed"
    fell = len(new) < len(old) if isinstance(new, list) else new < old
    return "worse" if fell == (watch.worse == "less") else "better"


def _half_known(watch: WatchedFact, old: Any, new: Any) -> Verdict | None:
    if type(old) is type(new):
        return None
    if _lost_sight(old) or _lost_sight(new):
        unread = old if type(old) is Unread else new
        return None if unread.kind == "recorded" else "unseen"
    return "changed" if watch.none else None
