"""The parent's side of `glance`: children one after the other, what they could not read, and what time is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from ncclcheck.probes.dataloader.children import child
from ncclcheck.probes.dataloader.children.child import ChildEnd
from ncclcheck.probes.dataloader.children.notes import ReadingMark
from ncclcheck.probes.dataloader.children.pristine import Pristine
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.samples.read import glance
from ncclcheck.probes.dataloader.samples.read.glance import Pass, ReadingOrder
from ncclcheck.probes.facts.data.content import UnreadableSample
from ncclcheck.probes.job.context import DataPlan

T = TypeVar("T")

_MOST_TRIES = 3  # passes, each without what could not be read in the one before: chosen
_HANG_S = 4.0  # for one sample: chosen, a cold read over a network takes less
_FIRST_S = 1.0  # for a first order of a dataset whose pace is not known
_MOST_STACKS = 4000  # characters: chosen, some dozen frames of each thread


@dataclass
class SampleReader:
    """Reads a dataset in children that all start from the same state.

    unreadable: by index, never read again where it ends or hangs its reader. stuck: whatever is read, it hangs.
    each: seconds of a read, once it is known. has_read: a sample was read. troubles: what failed beside that.
    """

    made: FactoryLoader
    plan: DataPlan
    limit: float
    begun: float = field(default_factory=time.monotonic)
    mark: ReadingMark = field(default_factory=ReadingMark)
    unreadable: dict[int, UnreadableSample] = field(default_factory=dict)
    stuck: UnreadableSample | None = None
    each: float = 0.0
    has_read: bool = False
    troubles: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pristine = Pristine(self.made)

    @property
    def left(self) -> float:
        """Seconds until all must be done."""
        return self.begun + self.limit - time.monotonic()

    @property
    def patience(self) -> float:
        """How long one sample may take before it counts as hanging."""
        return max(0.5, min(_HANG_S, self.limit / 3))

    def in_child(self, work: Callable[[], T], result: type[T], seconds: float) -> ChildEnd[T]:
        """One child from the pristine state."""
        self.pristine.restore()
        self.mark.clear()
        ended = child.run(work, result, seconds + self.patience)
        if ended.error:
            self.troubles.append(f"{ended.error} ({ended.place})")
        return ended

    def passes(self, order: ReadingOrder) -> list[Pass]:
        """All passes of an order; empty where nothing can be read.

        A sample that ends or hangs its reader is noted, and the rest is read without it.
        """
        for _ in range(_MOST_TRIES):
            order = self.without_unreadable(order)
            if not order.indices or self.left <= 0 or self.stuck:
                break
            expected = 4 * self.each * len(order.indices) * order.passes + 0.3
            bounded = replace(order, seconds=min(order.seconds, self.left, expected if self.each else _FIRST_S))
            ended = self.in_child(partial(glance.read, self.made, bounded, self.mark), list[Pass], bounded.seconds)
            if ended.ok and ended.value is not None:
                self.has_read = True
                self.note_raised(ended.value)
                return ended.value
            self.note_end(ended, self.mark.last(order.worker))
        return []

    def without_unreadable(self, order: ReadingOrder) -> ReadingOrder:
        """The same order without the samples that are known to end or hang their reader."""
        kept = [index for index in order.indices if not self.is_fatal(index)]
        warm = order.warm
        if warm is not None and self.is_fatal(warm):
            warm = next(iter(kept), None)
        return replace(order, indices=kept, warm=warm)

    def is_fatal(self, index: int) -> bool:
        """Whether reading this sample ends or hangs the reader."""
        return index in self.unreadable and self.unreadable[index].kind != "raised"

    def note_raised(self, passes: Iterable[Pass]) -> None:
        """Exceptions of single samples."""
        for samples in passes:
            for index, sample in samples.items():
                if sample.error and not self._is_past_the_end(sample.error):
                    unreadable = UnreadableSample(
                        index=index, kind="raised", error=sample.error, place=sample.place
                    )
                    self.unreadable.setdefault(index, unreadable)

    def _is_past_the_end(self, error: str) -> bool:
        """A dataset without a length was asked for more than it has."""
        return self.made.length is None and error.startswith(("IndexError", "KeyError", "StopIteration"))

    def note_end(self, ended: ChildEnd[Any], index: int | None) -> None:
        """A child that did not answer, while it read this sample; None: before it read any.

        A hang is the dataset's way, not the sample's, before any was read, or where threads were at the fork.
        """
        unreadable = UnreadableSample(
            index=index or 0,
            kind="raised" if ended.error else "hung" if ended.timed_out else "signal" if ended.signal else "left",
            error=ended.how,
            place=ended.place,
            stacks=ended.stacks[:_MOST_STACKS],
            busy_s=ended.busy_s,
        )
        if index is None or (ended.timed_out and self._hangs_always):
            self.stuck = unreadable
        else:
            self.unreadable[index] = unreadable

    @property
    def _hangs_always(self) -> bool:
        hung = sum(unreadable.kind == "hung" for unreadable in self.unreadable.values())
        return not self.has_read or threading.active_count() > 1 or hung > 1
