"""What samples contain: read first by all workers at once, then alone in several orders, then by all again."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ncclcheck.probes.dataloader.children.child import ChildEnd
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.indices import chosen
from ncclcheck.probes.dataloader.races import altered, contest, inherited, overwritten, written
from ncclcheck.probes.dataloader.races.contest import Touched
from ncclcheck.probes.dataloader.randomness import entropy
from ncclcheck.probes.dataloader.randomness.oracle import Oracle, ask
from ncclcheck.probes.dataloader.ranks import beyond
from ncclcheck.probes.dataloader.samples import finite
from ncclcheck.probes.dataloader.samples.read import glance, sweep
from ncclcheck.probes.dataloader.samples.read.glance import ReadingOrder
from ncclcheck.probes.dataloader.samples.read.reader import SampleReader
from ncclcheck.probes.facts.data import Content
from ncclcheck.probes.facts.data.content import Fallback, Memory, NotFinite
from ncclcheck.probes.job.context import DataPlan

_MOST = 64  # samples that are read in every order: chosen, more take time and show the same race
_LEAST = 3  # samples: two may be swapped for each other, three have an order
_FEW = 16  # samples where a read takes no time that was measured: chosen
_READS = 16  # of every sample, in all orders together
_TOUCH_S = 0.6  # for the first read by all workers at once: chosen, a race at the first touch is over with it
# for reads by all workers at once: chosen, little of the budget of 30 s that `data` has by default
_STRESS_S = 0.8
_SWEEP_S = 0.4  # for a look at as many samples as possible: chosen, as above
_EXAMPLES = 10  # in a finding, the rest is counted: chosen


def look(made: FactoryLoader, plan: DataPlan, limit: float) -> Content:
    """All of it, within the limit."""
    reader = SampleReader(made, plan, limit)
    indices = chosen(made, _MOST, plan.seed)
    if not indices:
        return Content(seed=plan.seed, unseen=["the dataset is empty"])
    since = written.now()
    touched = _touch(reader, indices)
    writes = written.in_place([touched.writes for touched in _done(touched)], since) if touched else []
    indices = _affordable(reader, indices, _done(touched))
    content = Content(seed=plan.seed, read_s=reader.each, written=writes[:_EXAMPLES])
    if reader.stuck is None:
        content = _in_orders(reader, content, indices, touched)
    if not made.iterable and reader.stuck is None:
        content = _all(reader, content)
    return _with_unreadable(reader, content)


def _touch(reader: SampleReader, indices: Sequence[int]) -> list[ChildEnd[Touched]]:
    """The first read of all. Not through a socket: what is left unread in it would spoil all later reads."""
    if any(handle.kind in ("socket", "pipe") for handle in reader.made.handles):
        return []
    seconds = min(_TOUCH_S, reader.limit / 10)
    touched = contest.first_touch(reader, indices, reader.plan.seed, seconds)
    reader.has_read = any(reader.mark.count(number) > 1 for number in range(len(touched)))
    begun = [reader.mark.last(number) for number, ended in enumerate(touched) if not ended.ok]
    for index in {index for index in begun if index is not None}:
        reader.passes(
            ReadingOrder([index], reader.plan.seed, workers=reader.plan.workers, whole=reader.made.iterable)
        )
    return touched


def _done(touched: Sequence[ChildEnd[Touched]]) -> list[Touched]:
    return [ended.value for ended in touched if ended.ok and ended.value]


def _affordable(reader: SampleReader, indices: Sequence[int], touched: Sequence[Touched]) -> list[int]:
    """As many as can be read in every order within the limit."""
    reader.each = min((touched.seconds / len(touched.read) for touched in touched if touched.read), default=0.0)
    if not reader.each:
        return list(indices[:_FEW])
    return list(indices[: max(_LEAST, min(_MOST, int(reader.left * 0.6 / _READS / reader.each)))])


def _in_orders(
    reader: SampleReader, content: Content, indices: Sequence[int], touched: Sequence[ChildEnd[Touched]]
) -> Content:
    content = replace(content, inherited=inherited.moved_offsets(reader, indices))
    oracle = ask(reader, indices, reader.plan.seed)
    if oracle is None:
        return content
    content = _alone(reader, content, oracle)
    if reader.left < 1.0:
        return replace(content, unseen=["several workers at once: the time budget was used up"])
    return _together(reader, content, oracle, touched)


def _alone(reader: SampleReader, content: Content, oracle: Oracle) -> Content:
    """What one reader finds."""
    indices = list(oracle.truth)
    memory = _shared(reader, oracle)
    causes = entropy.find(reader, indices) if oracle.unsettled else entropy.EntropyCalls([], 0)
    return replace(
        content,
        indices=len(indices),
        leaves=oracle.leaves,
        complete=oracle.complete,
        entropy=causes.calls,
        threads=causes.threads,
        raced=entropy.settles_in_one_thread(reader, oracle) if causes.threads else [],
        overwritten=overwritten.look(reader, indices)[:_EXAMPLES],
        shared=[memory.path.removeprefix("self.") for memory in memory],
        memory=memory,
        altered=_altered(reader, oracle),
    )


def _altered(reader: SampleReader, oracle: Oracle) -> list[str]:
    """Looked for only where content depends on what was read before."""
    hidden = any(leaf.kind == "hidden" or leaf.reread for leaf in oracle.leaves)
    return altered.look(reader, list(oracle.truth)) if hidden and not reader.made.iterable else []


def _shared(reader: SampleReader, oracle: Oracle) -> list[Memory]:
    """Memory shared by all workers that a pass over the samples changes."""
    if not reader.pristine.has_memory:
        return []
    reader.passes(oracle.order)
    return reader.pristine.changed()[:_EXAMPLES]


def _together(
    reader: SampleReader, content: Content, oracle: Oracle, touched: Sequence[ChildEnd[Touched]]
) -> Content:
    """What several readers find."""
    needed = inherited.needed(reader, oracle)
    first = contest.compare_touched(touched, oracle) if touched else None
    stress = contest.stress(reader, oracle, min(_STRESS_S, reader.left / 3))
    content = replace(content, inherited=[*content.inherited, *needed])
    if not needed and (stress.wrong or (first and first.wrong)) and contest.has_drifted(reader, oracle):
        return replace(content, unseen=["several workers at once: the content changes with time"])
    return replace(content, first_touch=first, stress=stress)


def _all(reader: SampleReader, content: Content) -> Content:
    """What a look at as many samples as possible finds."""
    if reader.left < 0.5:
        return replace(content, unseen=[*content.unseen, "rare samples: the time budget was used up"])
    swept = sweep.sweep(reader, min(_SWEEP_S, reader.left / 3))
    reader.unreadable = {**{unreadable.index: unreadable for unreadable in swept.raised}, **reader.unreadable}
    return replace(
        content,
        swept=swept.count,
        unreadable_count=swept.raised_count,
        not_finite=_not_finite(reader, swept),
        dropped=swept.dropped,
        dropped_first=_dropped(swept),
        fallbacks=sweep.fallbacks(reader, swept) if reader.left > 0.5 else [],
        beyond=beyond.look(reader) if reader.made.length and reader.left > 0.5 else None,
    )


def _dropped(swept: sweep.Swept) -> Fallback | None:
    swallowed = swept.dropped_first
    return (
        None
        if swallowed is None
        else Fallback(index=swallowed.index, of_index=None, error=swallowed.error, place=swallowed.place)
    )


def _not_finite(reader: SampleReader, swept: sweep.Swept) -> list[NotFinite]:
    meant = bool(swept.not_finite) and finite.meant(reader.made.dataset)
    return [replace(leaf, meant=meant) for leaf in swept.not_finite.values()][:_EXAMPLES]


class _Length(Struct):
    of: int


def _in_worker(reader: SampleReader) -> int | None:
    """What len() says once worker_init_fn has run, where it said something else before."""
    made = reader.made
    if made.length is None or not made.loader.get("worker_init_fn"):
        return None

    def length() -> _Length:
        glance.be_worker(made, ReadingOrder([], reader.plan.seed, workers=reader.plan.workers))
        return _Length(len(made.dataset))

    ended = reader.in_child(length, _Length, 0.5)
    return ended.value.of if ended.ok and ended.value and 0 <= ended.value.of != made.length else None


def _with_unreadable(reader: SampleReader, content: Content) -> Content:
    unreadables = sorted(
        reader.unreadable.values(), key=lambda unreadable: (unreadable.kind == "raised", unreadable.index)
    )
    return replace(
        content,
        in_worker=_in_worker(reader) if unreadables else None,
        unreadable=unreadables[:_EXAMPLES],
        unreadable_count=max(content.unreadable_count, len(unreadables)),
        stuck=reader.stuck,
        unseen=[*content.unseen, *dict.fromkeys(reader.troubles)][:_EXAMPLES],
    )
