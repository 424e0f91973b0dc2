"""What some indices hold on one rank: digests of the leaves that stay the same from reading to reading."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import msgspec

from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.indices import chosen
from ncclcheck.probes.dataloader.randomness.draws import PRIVATE, generators
from ncclcheck.probes.dataloader.randomness.seeds import reseed
from ncclcheck.probes.dataloader.samples.fingerprint import SampleLeaf, leaves
from ncclcheck.probes.dataloader.views import EmulatedRank, RankView

_MOST_LEAVES = 12  # of a sample, by which samples are told apart: chosen
_MOST_DEEP = 4000  # samples, where a rank holds only a part of the dataset: chosen, within the time that is given
_OTHERS = 5  # readings that the other ranks may be behind
_WATCHED = 3  # samples at which the generators are looked at

Contents = dict[int, dict[str, SampleLeaf]]


def read_contents(made: FactoryLoader, asked: EmulatedRank, view: RankView) -> None:
    """Read some samples twice from the same seeds and a few from others. Samples that raise are left out."""
    indices, salt = chosen(made, asked.count, asked.plan.seed), asked.plan.seed
    drawn, watched = _drawn_from(made.dataset, indices[:_WATCHED], salt)
    once = {**watched, **_read(made.dataset, indices[_WATCHED:], salt, asked.seconds)}
    twice = _read(made.dataset, [*reversed(once)], salt, asked.seconds)
    steady = _steady(once, twice)
    globally = _differ(once, _read(made.dataset, [*once][:_WATCHED], salt + 1, asked.seconds))
    privately = len(steady) < len(next(iter(once.values()), {}))
    view.drawn_from = [name for name in drawn if (privately if name.startswith(PRIVATE) else globally)]
    seen = {index: once[index] for index in twice}
    view.content = _digests(seen, steady)
    if _is_a_part(view) or _others_differ(asked, view):
        more = chosen(made, _MOST_DEEP, asked.plan.seed)
        seen |= _read(made.dataset, [index for index in more if index not in once], salt, asked.seconds)
        view.content = _digests(seen, steady)
    view.briefs = {index: {p: once[index][p].brief for p in steady if p in once[index]} for index in twice}


def _others_differ(asked: EmulatedRank, view: RankView) -> bool:
    """Compare with what the other ranks have left in the folder; none is waited for long."""
    digest = blake2b(msgspec.json.encode(sorted(view.content.items()))).hexdigest()
    paths = [os.path.join(asked.folder, f"{rank}-content") for rank in range(asked.world)]
    with open(f"{paths[asked.rank]}.part", "w") as file:
        file.write(digest)
    os.replace(f"{paths[asked.rank]}.part", paths[asked.rank])
    end = time.monotonic() + _OTHERS * asked.seconds
    while not all(map(os.path.exists, paths)) and time.monotonic() < end:
        time.sleep(0.005)
    return any(_text(path) != digest for path in paths if os.path.exists(path))


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()


def _digests(seen: Contents, steady: list[str]) -> dict[int, dict[str, str]]:
    return {index: {p: sample[p].digest for p in steady if p in sample} for index, sample in seen.items()}


def _is_a_part(view: RankView) -> bool:
    """The factory asked for its rank, and its sampler gives all that there is: this may be this rank's part."""
    first = view.epoch("first")
    return bool(view.asked) and first is not None and first.samples > 0.75 * (view.length or 0)


def _drawn_from(dataset: Any, indices: Iterable[int], salt: int) -> tuple[list[str], Contents]:
    """Generators whose state moves when a sample is read, and what the samples hold."""
    moved: dict[str, None] = {}
    contents: Contents = {}
    for index in indices:
        reseed(salt, index)
        before = generators(dataset)
        contents |= _read(dataset, [index], salt, 1.0)
        moved |= {name: None for name, state in generators(dataset).items() if before.get(name, state) != state}
    return [*moved], contents


def _read(dataset: Any, indices: Iterable[int], salt: int, seconds: float) -> Contents:
    contents: Contents = {}
    end = time.monotonic() + seconds
    for index in indices:
        if time.monotonic() > end:
            break
        reseed(salt, index)
        try:
            contents[index] = leaves(dataset[index])
        except Exception as error:  # others tell of samples that cannot be read
            ours.pass_on(error)
    return contents


def _steady(once: Contents, twice: Contents) -> list[str]:
    """Leaves that were the same both times, of all samples that have them."""
    paths = dict.fromkeys(path for index in twice for path in once[index])
    changed = {
        p for i, sample in twice.items() for p, leaf in sample.items() if _digest(once[i], p) != leaf.digest
    }
    return [path for path in paths if path not in changed][:_MOST_LEAVES]


def _differ(once: Contents, other: Contents) -> bool:
    return any(
        _digest(once[i], path) != leaf.digest for i, sample in other.items() for path, leaf in sample.items()
    )


def _digest(sample: dict[str, SampleLeaf], path: str) -> str:
    return sample[path].digest if path in sample else ""
