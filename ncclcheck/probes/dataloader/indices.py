"""Which samples are looked at."""

from __future__ import annotations

import random

from ncclcheck.probes.dataloader.factory import FactoryLoader


def chosen(made: FactoryLoader, count: int, seed: int) -> list[int]:
    """The first, the middle and the last index, then random ones: `count` in all, each once.

    Of a dataset without a length, or that is only iterated, the first `count`.
    """
    if made.iterable or made.length is None:
        return list(range(count))
    length = made.length
    if length <= count:
        return list(range(length))
    ends = list(dict.fromkeys((0, length // 2, length - 1)))[:count]
    others = random.Random(seed).sample(range(length), count)
    return [*ends, *(index for index in others if index not in ends)][:count]
