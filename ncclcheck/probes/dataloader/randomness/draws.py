"""The random state that a rank's workers start with, and the generators that reading a sample draws from."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.randomness.seeds import digest_of, private, states

PRIVATE = "private "
IN_A_WORKER = {
    "batch_size": None, "drop_last": False, "pin_memory": False, "persistent_workers": False, "timeout": 0,
    "multiprocessing_context": "fork",
}  # fmt: skip


def generators(dataset: Any) -> dict[str, str]:
    """A digest of the state of each generator that samples may be drawn from; the user's own as `private PATH`."""
    own = {f"{PRIVATE}{path}": digest_of(generator) for path, generator in private(dataset).items()}
    return {**states(), **own}


def at_start(made: FactoryLoader) -> tuple[str, dict[str, str]]:
    """Where samples are read (in a worker, or in the rank itself), and the generators there before the first."""
    works = made.loader.get("num_workers") or made.loader.get("worker_init_fn")
    if made.given != "dataset" and not works:
        return "the rank itself", generators(made.dataset)
    loader = made.make_loader(
        dataset=_Starts(made.dataset), num_workers=1, sampler=[0], collate_fn=_as_it_is, **IN_A_WORKER
    )
    return "the first worker", next(iter(loader))


def _as_it_is(item: Any) -> Any:
    return item


class _Starts(Dataset[dict[str, str]]):
    """Stands in for the user's dataset, which a worker_init_fn may ask for its attributes, and reads nothing."""

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "_dataset", dataset)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)  # a worker_init_fn gives the dataset its generator

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> dict[str, str]:
        return generators(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)
