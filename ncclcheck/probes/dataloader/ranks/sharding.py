"""Which rank reads which samples: ranks are emulated, and each imports and calls the factory itself.

`look` runs in a process without the user's code. Rank 1 differs from rank 0 in all that differs between two
processes of a job: the hash seed, the seeds that come from the kernel, the order in which a directory is listed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from array import array
from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from ncclcheck.probes.dataloader.children.interpreter import Interpreter
from ncclcheck.probes.dataloader.randomness.draws import PRIVATE
from ncclcheck.probes.dataloader.ranks import accounting, agreement
from ncclcheck.probes.dataloader.ranks.orders import read_indices
from ncclcheck.probes.dataloader.ranks.streams import streams_shared
from ncclcheck.probes.dataloader.ranks.worlds import World
from ncclcheck.probes.dataloader.source.callers import set_epoch_callers
from ncclcheck.probes.dataloader.views import RankView
from ncclcheck.probes.facts.data.sharding import (
    Account,
    EpochOrder,
    Print,
    Randomness,
    Sharding,
    Share,
    SharedStream,
)
from ncclcheck.probes.job.context import DataPlan

_MOST_RANKS = 8  # that are emulated: chosen, a node's worth; what goes wrong with the world size shows with these
_MOST_PRINTS = 16  # samples of a rank in JSON: chosen
_ONCE = "the factory failed there once, and was not seen to fail there twice: {}"
_DRAWN = "{} repeats or leaves out samples for one rank alone, too: it draws them"


def look(plan: DataPlan, limit: float, interpreter: Interpreter | None = None) -> Sharding:
    """Emulate the ranks, factories and all, within so many seconds. interpreter: one that was started early."""
    folder = tempfile.mkdtemp(prefix="ncclcheck-ranks-", dir=plan.scratch or None)
    try:
        return _look(
            World(plan, min(max(1, plan.ranks), _MOST_RANKS), folder, time.monotonic() + limit, interpreter)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _look(world: World) -> Sharding:
    views = _without_chance(world, world.views(fresh=True, entropy=True, listing_reversed=True))
    first = views[0]
    seen = Sharding(
        ranks=world.size,
        wanted=world.plan.nodes * world.plan.ranks_per_node,
        given=first.given,
        iterable=first.iterable,
        sampler=first.sampler,
        own_batches=first.own_batches,
        batch=first.batch,
        replicas=first.replicas,
        group=next((view.group for view in views if view.group), ""),
        shares=_shares(views),
    )
    if cut := next((view for view in views if view.cut), None):
        return replace(seen, unjudged=f"rank {cut.rank} could not be emulated: {cut.cut}")
    if any(view.error for view in views):
        return replace(seen, unjudged="the factory failed on an emulated rank")
    if first.iterable:
        return _of_streams(world, views, seen)
    return _of_indices(world, views, seen)


def _without_chance(world: World, views: list[RankView]) -> list[RankView]:
    """What fails on some ranks only is called once more: only what fails there again, the same way, does so for
    its rank.
    """
    failed = {view.rank: _kind(view) for view in views if view.error}
    if not failed or any(view.cut for view in views) or len(failed) == len(views):
        return views
    if not world.has_time:
        return [replace(view, error="", cut=_ONCE.format(view.error)) if view.error else view for view in views]
    again = world.views(fresh=True, entropy=True, listing_reversed=True)
    if any(view.cut for view in again) or {view.rank: _kind(view) for view in again if view.error} == failed:
        return again
    if not any(view.error for view in again):
        return again
    return [
        replace(view, error="", cut=_ONCE.format(view.error)) if view.rank in failed and view.error else view
        for view in views
    ]


def _kind(view: RankView) -> str:
    return view.error.partition(":")[0]


def _of_streams(world: World, views: list[RankView], seen: Sharding) -> Sharding:
    if any(len(view.passes) < 2 for view in views):
        why = next((view.unseen["order"] for view in views if "order" in view.unseen), "it is empty")
        return replace(seen, unjudged=why)
    ended = all(view.passes["alone"].ended for view in views)
    whole = world.whole() if ended and world.size > 1 and any(view.asked for view in views) else None
    stream = streams_shared.stream(views, whole)
    if stream.between_ranks and not stream.groups and ended and any(view.asked for view in views):
        stream = replace(stream, own_orders=world.apart_with_one_seed(whole))
    return replace(seen, stream=stream, randomness=_randomness(views))


def _of_indices(world: World, views: list[RankView], seen: Sharding) -> Sharding:
    shared_out = accounting.disjoint(views)
    index_map = agreement.index_map(views)
    if why := next((view.unseen["content"] for view in views if "content" in view.unseen), ""):
        index_map = replace(index_map, unseen=why)
    unlike = index_map.differing > 0 or len(set(index_map.lengths)) > 1
    by_design = unlike and not shared_out and all(view.asked for view in views) and not world.alike_with_one_seed()
    if unlike and not by_design:
        index_map = world.why(index_map)
    account = _by_content(world, views) if by_design else accounting.by_index(views)
    account, resumed = _whole_epoch(views, account)
    drawn = account is not None and not by_design and _draws(world, views, account)
    return replace(
        seen,
        resumed=resumed,
        drawn_alike=[] if by_design else _drawn_alike(views, account),
        account=None if drawn else account,
        order=_order(world.plan, views),
        index_map=replace(index_map, by_design=by_design),
        randomness=_randomness(views),
        prints=_prints(views[0]),
        unjudged=_DRAWN.format(views[0].sampler) if drawn else _unjudged(views, account),
    )


def _drawn_alike(views: list[RankView], account: Account | None) -> list[list[int]]:
    """Not where each rank was given a rank's number that is not its own: that is told by the samples left out."""
    if account is not None and (account.everywhere or views[0].replicas == len(views)):
        return []
    return accounting.drawn_alike(views)


def _whole_epoch(views: list[RankView], account: Account | None) -> tuple[Account | None, int]:
    """The account of an epoch, and how many samples of it had been read before, where the first one goes on."""
    if account is None or account.by != "index" or not account.read or account.distinct >= account.there:
        return account, 0
    second = accounting.by_index(views, "second")
    if second is None or second.distinct + max(second.slack, len(views) - 1) < second.there:
        return account, 0
    missing = second.distinct - account.distinct
    return (second, missing) if missing > max(account.slack, len(views)) else (account, 0)


def _draws(world: World, views: list[RankView], account: Account) -> bool:
    """Whether the sampler repeats or leaves out samples where it serves one rank alone, too.

    So do repeated augmentation (timm), identities of persons, weights: it is meant, and says nothing of the ranks.
    """
    unequal = account.shared or account.distinct + account.slack < account.there
    if account.everywhere or account.by != "index" or not unequal:
        return False
    whole = world.whole()
    if whole is None or whole.length != views[0].length:
        return False
    return accounting.draws(whole) and not accounting.all_alike(views)


def _by_content(world: World, views: list[RankView]) -> Account | None:
    whole = world.whole()
    return agreement.by_content(views, None if whole is None else whole.length)


def _unjudged(views: Sequence[RankView], account: Account | None) -> str:
    first = views[0]
    if first.given == "dataset" and account is None:
        return "the factory gave a dataset alone: no sampler chooses among its samples"
    if why := next((view.unseen["order"] for view in views if "order" in view.unseen), ""):
        return why
    if first.replacement:
        return f"{first.sampler} draws at random what it repeats and leaves out"
    if any(not epoch.ended for epoch in first.epochs):
        return "its sampler gave indices without an end"
    return "" if account else "the ranks' indices count in different datasets, of which too little was read"


def _shares(views: Sequence[RankView]) -> list[Share]:
    return [
        Share(
            rank=view.rank, error=view.error, place=view.place, cut=view.cut, length=view.length, asked=view.asked,
            samples=_samples(view), batches=_batches(view), seconds=max(0.0, view.seconds),
            seed=view.seed, as_rank=view.as_rank,
        )
        for view in views
    ]  # fmt: skip


def _samples(view: RankView) -> int | None:
    if view.iterable:
        alone = view.passes.get("alone")
        return len(alone.items) if alone and alone.ended else None
    epoch = view.epoch("first")
    return epoch.samples if epoch and epoch.ended else None


def _batches(view: RankView) -> int | None:
    """Of a stream: each worker makes batches of its own."""
    if not view.iterable:
        epoch = view.epoch("first")
        return epoch.batches if epoch and epoch.ended else None
    read = view.passes.get("workers" if (view.workers or 0) > 1 else "alone")
    if view.batch is None or read is None or not read.ended:
        return None
    counts = [read.workers.count(worker) for worker in sorted(set(read.workers))]
    return sum(count // view.batch if view.drop_last else -(-count // view.batch) for count in counts)


def _order(plan: DataPlan, views: Sequence[RankView]) -> EpochOrder | None:
    """None where there are no two epochs to compare."""
    view = views[0]
    first = view.epoch("first")
    if first is None or not first.ended or first.samples == 0:
        return None
    indices = read_indices(first.file)
    second = view.epoch("second")
    # A first epoch that goes on in its middle is the end of the second one.
    again = second is not None and read_indices(second.file)[-len(indices) :] == indices
    set_epoch = _alike(view, "set0", "set1")
    callers, loops = set_epoch_callers(plan.directory, plan.factory) if again and set_epoch is False else ([], [])
    return EpochOrder(
        samples=first.samples,
        sequential=all(a <= b for a, b in pairwise(indices)),
        repeats=again,
        with_set_epoch=set_epoch,
        with_keyword=_alike(view, "keyword0", "keyword1"),
        made_alike=set_epoch is None and any(_begins(other) == indices for other in views[1:]),
        callers=callers,
        loops=loops,
        setter=view.setter,
        dry=view.dry,
    )


def _begins(view: RankView) -> array[int]:
    """The order of its first epoch."""
    epoch = view.epoch("first")
    return read_indices(epoch.file) if epoch is not None else array("q")


def _alike(view: RankView, first: str, other: str) -> bool | None:
    epochs = [view.epoch(first), view.epoch(other)]
    orders = [read_indices(epoch.file) for epoch in epochs if epoch is not None]
    return orders[0] == orders[1] if len(orders) == 2 else None


def _randomness(views: Sequence[RankView]) -> Randomness | None:
    """Generators that rank 0 draws from, and those of them that other ranks start with alike."""
    first = views[0]
    if any({"starts", "content"} & view.unseen.keys() for view in views):
        return None
    shared = []
    for name in first.drawn_from:
        state = first.starts.get(name)
        ranks = [view.rank for view in views if state and view.starts.get(name) == state]
        if len(ranks) > 1:
            private = name.startswith(PRIVATE)
            generator = name.removeprefix(PRIVATE)
            shared.append(SharedStream(generator=generator, where=first.where, ranks=ranks, private=private))
    return Randomness(
        drawn_from=[name.removeprefix(PRIVATE) for name in first.drawn_from],
        shared=shared,
        by_sampler=_by_sampler(views),
    )


def _by_sampler(views: Sequence[RankView]) -> list[str]:
    """Generators that were in another state on each rank, and in the same once the sampler had given an epoch.

    Only those that samples depend on: workers seed all of theirs from torch's.
    """
    first = views[0]
    drawn = [name for name in first.drawn_from if not name.startswith(PRIVATE)]
    names = []
    for name, (before, after) in first.sampled.items():
        others = [view.sampled[name] for view in views[1:] if name in view.sampled]
        alike = bool(others) and all(state == after and begun != before for begun, state in others)
        if alike and (name in drawn or (drawn and name == "torch" and first.workers)):
            names.append(name)
    return names


def _prints(view: RankView) -> list[Print]:
    return [Print(index=i, leaves=leaves) for i, leaves in [*view.content.items()][:_MOST_PRINTS] if leaves]
