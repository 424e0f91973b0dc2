"""Random generators: reseeded, told apart by a digest of their state, and found in the user's objects."""

from __future__ import annotations

import json
import random
import sys
from hashlib import blake2b
from typing import Any

import torch

from ncclcheck.probes.dataloader.samples.graph import walk


def reseed(salt: int, index: int) -> None:
    """Python's, torch's and (where it is imported) numpy's global generator, from the two numbers."""
    seed = int.from_bytes(blake2b(f"{salt} {index}".encode(), digest_size=8).digest(), "little")
    random.seed(seed)
    torch.default_generator.manual_seed(seed >> 1)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)


def states() -> dict[str, str]:
    """A digest of the state of each global generator: "python", "numpy" (where imported), "torch"."""
    digests = {"python": _digest(random.getstate()), "torch": digest_of(torch.default_generator)}
    if numpy := sys.modules.get("numpy"):
        digests["numpy"] = _digest(numpy.random.get_state(legacy=False))
    return digests


def private(obj: Any) -> dict[str, object]:
    """The generators that the user's objects hold for themselves, by path: `self.rng`, `augment.RNG`."""
    kinds = _kinds()
    shared = _shared()
    generators: dict[str, object] = {}
    for path, value in walk(obj):
        if isinstance(value, kinds) and type(value) is not random.SystemRandom and id(value) not in shared:
            shared.add(id(value))
            generators[path] = value
    return generators


def digest_of(generator: object) -> str:
    """Equal digests: the generator will draw the same numbers."""
    return _digest(state_of(generator))


def state_of(generator: Any) -> Any:
    """A copy of the state, for `restore`."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)


def restore(generator: Any, state: Any) -> None:
    """Put a state back that `state_of` gave."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def advance(generator: Any, steps: int) -> None:
    """Draw so many numbers and forget them: another part of the same stream."""
    for _ in range(steps):
        if isinstance(generator, torch.Generator):
            torch.rand(1, generator=generator)
        else:
            generator.random()


def _kinds() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    others = (numpy.random.Generator, numpy.random.RandomState) if numpy else ()
    return (random.Random, torch.Generator, *others)


def _shared() -> set[int]:
    """The global generators: DataLoader seeds them in its workers."""
    numpy = sys.modules.get("numpy")
    own = [random.seed.__self__, torch.default_generator]  # type: ignore[attr-defined]
    return {id(g) for g in (*own, *([numpy.random.mtrand._rand] if numpy else []))}


def _digest(state: Any) -> str:
    if isinstance(state, torch.Tensor):
        data = bytes(state.tolist())
    else:
        data = json.dumps(state, default=lambda array: array.tolist()).encode()
    return blake2b(data, digest_size=8).hexdigest()
