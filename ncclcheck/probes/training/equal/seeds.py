"""The random generators of this process."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from hashlib import blake2b

import torch

SEED = 1234  # chosen: any number, the same in all runs so that losses can be compared


def seed_all(seed: int) -> None:
    """Python's, numpy's where it is loaded, torch's on every device."""
    random.seed(seed)
    torch.manual_seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


@contextlib.contextmanager
def own_generators(device: torch.device, seed: int) -> Iterator[None]:
    """As long as it lasts, generators begin at the seed; then they go on where they were."""
    numpy, python = sys.modules.get("numpy"), random.getstate()
    legacy = None if numpy is None else numpy.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            seed_all(seed)
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(legacy)


def states(device: torch.device) -> dict[str, str]:
    """A short hash of each generator's state."""
    raw = {"python": repr(random.getstate()).encode(), "torch": bytes(torch.get_rng_state().tolist())}
    if device.type == "cuda":
        raw["cuda"] = bytes(torch.cuda.get_rng_state(device).tolist())
    if (numpy := sys.modules.get("numpy")) is not None:
        raw["numpy"] = repr(numpy.random.get_state()).encode()
    return {name: blake2b(state, digest_size=8).hexdigest() for name, state in raw.items()}
