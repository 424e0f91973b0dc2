"""What ranks read: how many batches, which samples, in which order; as their samplers say, without reading any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ncclcheck.probes.facts.training import (
    Checks,
    EpochSamples,
    EpochsDiffer,
    Lengths,
    RankBatches,
    ReadTwice,
    Unchecked,
)
from ncclcheck.probes.training.equal import contents
from ncclcheck.probes.training.equal.alike import MOST, of_all_ranks
from ncclcheck.probes.training.loop import TrainingSetting

_MOST_SAMPLES = 2_000_000  # of a dataset, for each of which ranks exchange a count: chosen, 16 MB


def lengths(setting: TrainingSetting) -> Checks:
    """How many batches ranks have; asked when the setting was made, as a rank that has fewer ends the others."""
    counts, most = setting.lengths, max(setting.lengths)
    short = [RankBatches(rank=rank, batches=length) for rank, length in enumerate(counts) if length < most]
    return Checks(
        lengths=Lengths(
            least=min(counts), most=most, short=short[:MOST], count=len(short), upto=setting.feed.counted_to
        )
    )


def samples(setting: TrainingSetting) -> Checks:
    """What all ranks read in two epochs."""
    first, why = _indices(setting, 0)
    if why:
        return Checks(unchecked=[Unchecked(check=check, why=why) for check in ("samples", "orders")])
    second, _ = _indices(setting, 1)
    return Checks(samples=_accounted(setting, first), orders=_orders(setting, first, second))


def _indices(setting: TrainingSetting, epoch: int) -> tuple[list[int], str]:
    """Of this rank; or why not, the same answer on all ranks."""
    try:
        mine, why = setting.feed.indices(epoch)
    except (TypeError, ValueError):
        mine, why = [], "the sampler's indices are no numbers"
    size = contents.samples_in(setting)
    if not why and not 0 < size <= _MOST_SAMPLES:
        why = f"the dataset has {size} samples; up to {_MOST_SAMPLES} are followed" if size else "it has no length"
    if not why and not all(0 <= index < size for index in mine):
        why = "the sampler gives indices beyond the dataset's length"
    return mine, next((reason for reason in of_all_ranks(setting.peers, why) if reason), "")


def _accounted(setting: TrainingSetting, mine: Sequence[int]) -> EpochSamples:
    """How often each sample is read, over all ranks."""
    peers, size = setting.peers, int(setting.peers.worst([contents.samples_in(setting)])[0])
    reads = torch.bincount(torch.tensor([*mine], dtype=torch.int64), minlength=size).to(setting.device)
    own = reads.clone()
    dist.all_reduce(reads)
    absent, twice = ((reads == 0).nonzero().flatten(), (reads > 1).nonzero().flatten())
    chosen = [int(index) for index in twice[:5].tolist()]
    holders = of_all_ranks(peers, [int(own[index]) > 0 for index in chosen])
    return EpochSamples(
        sampler=_sampler(setting),
        dataset=size,
        ranks=peers.world,
        batch=_batch(setting) * peers.world,
        read=int(reads.sum()),
        missing=absent.numel(),
        repeated=int((reads - 1).clamp(min=0).sum()),
        twice=[
            ReadTwice(index=index, ranks=[rank for rank, seen in enumerate(holders) if seen[place]][:MOST])
            for place, index in enumerate(chosen)
        ],
        absent=[int(index) for index in absent[:5].tolist()],
        contents=contents.seen(setting, size),
    )


def _orders(setting: TrainingSetting, first: list[int], second: list[int]) -> EpochsDiffer:
    answers = of_all_ranks(setting.peers, [first != sorted(first), len(first) > 1 and first == second])
    same = [rank for rank, (_, again) in enumerate(answers) if again]
    shuffled = any(drawn for drawn, _ in answers)
    return EpochsDiffer(sampler=_sampler(setting), shuffled=shuffled, same=same[:MOST], count=len(same))


def _sampler(setting: TrainingSetting) -> str:
    """The type of what chooses the samples."""
    loader: Any = setting.feed.loader
    own = type(loader.batch_sampler).__name__
    return type(loader.sampler).__name__ if own in ("BatchSampler", "NoneType") else own


def _batch(setting: TrainingSetting) -> int:
    loader: Any = setting.feed.loader
    return int(loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 1)
