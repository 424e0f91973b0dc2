"""Whether the same index is the same sample on every rank: a sampler shares out indices, not samples."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ncclcheck.probes.facts.training import Contents
from ncclcheck.probes.training.equal.alike import MOST, odd, of_all_ranks
from ncclcheck.probes.training.equal.seeds import SEED, own_generators
from ncclcheck.probes.training.equal.state import fingerprint
from ncclcheck.probes.training.loop import TrainingSetting

_PROBED = 4  # indices, each read twice
_FOLLOWED = 256  # samples whose contents are compared between ranks that have other datasets
_FOLLOWED_S = 1.5  # for reading the samples that are compared: chosen


def seen(setting: TrainingSetting, size: int) -> Contents | None:
    """None where samples cannot be compared: they are read otherwise each time, or hold nothing that has bits."""
    probes = sorted({place * (size - 1) // max(1, _PROBED - 1) for place in range(_PROBED)})
    first, again = _read(setting, probes), _read(setting, probes)
    ranks = of_all_ranks(setting.peers, first if first == again else [])
    sizes = of_all_ranks(setting.peers, samples_in(setting))
    if not all(ranks) and len({*sizes}) == 1:
        return None
    columns = [*zip(*ranks, strict=True)] if all(len(rank) == len(probes) for rank in ranks) else []
    apart = [place for place, column in enumerate(columns) if len({*column}) > 1]
    others = odd(columns[apart[0]]) if apart else odd(sizes)
    if not others:
        return Contents(compared=len(probes))
    common, followed = _common(setting)
    return Contents(
        compared=len(probes),
        ranks=others[:MOST],
        index=probes[apart[0]] if apart else None,
        sizes=sizes[:MOST] if len({*sizes}) > 1 else [],
        common=common,
        followed=followed,
    )


def _common(setting: TrainingSetting) -> tuple[int, int]:
    """Of samples all over each rank's dataset, how many another rank has too; and how many were looked at.

    Samples that are alike on one rank say nothing: then none counts.
    """
    samples = samples_in(setting)
    count = min(samples, _FOLLOWED)
    mine = _read(setting, [place * samples // count for place in range(count)] if count else [], _FOLLOWED_S)
    ranks = [{*rows} if len({*rows}) == len(rows) else {*()} for rows in of_all_ranks(setting.peers, mine)]
    common = sum(any(row in other for other in ranks[:rank]) for rank, rows in enumerate(ranks) for row in rows)
    return common, sum(map(len, ranks))


def samples_in(setting: TrainingSetting) -> int:
    """Samples of the dataset; 0 where it tells none."""
    try:
        return len(setting.feed.loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        return 0


def _read(setting: TrainingSetting, indices: Sequence[int], seconds: float = 60.0) -> list[int]:
    """Prints of these samples, read as the user's loader reads them; empty where that does not work."""
    loader, prints, until = setting.feed.loader, list[int](), time.monotonic() + seconds
    workers: dict[str, Any] = {}
    if loader.num_workers:  # a dataset may open its files at its first read, which is a worker's
        workers = {
            "num_workers": 1,
            "multiprocessing_context": loader.multiprocessing_context,
            "worker_init_fn": loader.worker_init_fn,
        }
    with own_generators(setting.device, SEED):
        try:
            for sample in DataLoader(
                loader.dataset, batch_size=None, sampler=[*indices], collate_fn=_as_it_is, **workers
            ):
                prints.append(_print(sample))
                if time.monotonic() > until:
                    break
        except Exception:
            return []
    return prints if all(prints) else []


def _as_it_is(sample: Any) -> Any:
    return sample


def _print(sample: Any) -> int:
    """A hash of all in a sample that has bits; 0: it has none."""
    parts = [*_parts(sample)]
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=7).digest(), "big") if parts else 0


def _parts(sample: Any) -> Iterator[int | str]:
    if isinstance(sample, Tensor):
        yield fingerprint(sample)
    elif isinstance(sample, str | bytes | int | float):
        yield repr(sample)
    elif isinstance(sample, Mapping):
        for name, value in sample.items():
            yield str(name)
            yield from _parts(value)
    elif isinstance(sample, list | tuple):
        for value in sample:
            yield from _parts(value)
    elif type(sample).__module__ == "numpy":
        yield fingerprint(torch.as_tensor(sample))
