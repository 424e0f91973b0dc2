"""An IterableDataset read to its end or for a moment: what its samples hold, and which worker gave them."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from torch.utils.data import get_worker_info

from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.randomness.draws import IN_A_WORKER, generators
from ncclcheck.probes.dataloader.randomness.seeds import reseed
from ncclcheck.probes.dataloader.ranks.streams.dry import counters, runs_dry, used_up
from ncclcheck.probes.dataloader.samples.fingerprint import leaves
from ncclcheck.probes.dataloader.views import EmulatedRank, RankView, StreamPass

_MOST = 4000  # samples of one reading: chosen, within the time that is given
_MOST_LEAVES = 8  # of a sample, by which samples are told apart: chosen
_MOST_WORKERS = 4  # chosen: two show that they read the same, four whether all do
_kept: list[Any] = []  # loaders whose workers are killed with this process, not waited for


def read_stream(made: FactoryLoader, asked: EmulatedRank, view: RankView) -> None:
    """Twice without workers, from two seeds, and once with as many as the loader has, two to four."""
    before = counters(made.dataset)
    alone = view.passes["alone"] = _read(made, asked, 0, 0)
    other = view.passes["again"] = _read(made, asked, 0, 1)
    if alone.items and runs_dry(made.dataset, alone, other, asked.seconds):
        view.dry = used_up(made.dataset, before)
    if not alone.items or not other.items:
        return
    if changing(alone, other):
        view.drawn_from = alone.drawn_from
    view.passes["workers"] = _read(made, asked, min(max(2, view.workers or 0), _MOST_WORKERS), 0)


def stable(alone: StreamPass, again: StreamPass) -> list[str]:
    """Leaves that held the same in both readings: in any order where both ended, else in the same order."""
    return [leaf for leaf in alone.items[0] if _same(alone, again, leaf)] if alone.items else []


def changing(alone: StreamPass, again: StreamPass) -> bool:
    """Whether a leaf is drawn anew in each reading. Of a stream without an end: if no value came twice."""
    ended = alone.ended and again.ended
    for leaf in alone.items[0]:
        first, other = ({item.get(leaf) for item in p.items} for p in (alone, again))
        if not _same(alone, again, leaf) and (ended or not first & other):
            return True
    return False


def _same(alone: StreamPass, again: StreamPass, leaf: str) -> bool:
    first, other = ([item.get(leaf, "") for item in p.items] for p in (alone, again))
    if alone.ended and again.ended:
        return Counter(first) == Counter(other)
    count = min(len(first), len(other))
    return first[:count] == other[:count]


def _read(made: FactoryLoader, asked: EmulatedRank, workers: int, salt: int) -> StreamPass:
    reseed(salt, 0)
    options = IN_A_WORKER if workers else {**IN_A_WORKER, "multiprocessing_context": None}
    loader = made.make_loader(**{**options, "num_workers": workers, "collate_fn": _printed})
    taken = StreamPass(items=[], workers=[], ended=False, of=workers)
    items = iter(loader)
    _kept.append(items)
    before = generators(made.dataset)
    end = time.monotonic() + asked.seconds
    while len(taken.items) < _MOST and time.monotonic() < end:
        try:
            worker, digests = next(items)
        except StopIteration:
            taken.ended = True
            break
        taken.items.append(digests)
        taken.workers.append(worker)
    after = generators(made.dataset)
    taken.drawn_from = [name for name, state in after.items() if before.get(name, state) != state]
    return taken


def _printed(sample: Any) -> tuple[int, dict[str, str]]:
    worker = get_worker_info()
    digests = {path: leaf.digest for path, leaf in list(leaves(sample).items())[:_MOST_LEAVES]}
    return (worker.id if worker else 0), digests
