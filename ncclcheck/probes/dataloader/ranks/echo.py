"""The user's own loader, of a class with an __iter__ of its own, made to give indices instead of samples."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ncclcheck.probes.dataloader.factory import FactoryLoader

_WITHOUT_WORKERS = {
    "num_workers": 0, "persistent_workers": False, "prefetch_factor": None, "timeout": 0, "pin_memory": False,
}  # fmt: skip


def loader_of_indices(made: FactoryLoader) -> DataLoader[Any]:
    """One whose samplers give the user's indices; iterated itself only where `iterates_itself`."""
    if made.own is None or not iterates_itself(made.own):
        return made.make_loader(num_workers=0)
    # DataLoader forbids to set some of these once it is made: its samplers would not follow. They need not.
    made.own.__dict__.update(_WITHOUT_WORKERS, dataset=_Echo(made.length or 0), collate_fn=_as_it_is)
    return made.own


def iterates_itself(loader: DataLoader[Any]) -> bool:
    """Whether its class does more at the start of an epoch than DataLoader."""
    return type(loader).__iter__ is not DataLoader.__iter__


def has_begun(loader: DataLoader[Any]) -> bool:
    """Whether it holds an iterator that its constructor made, which gives samples whatever is set later."""
    return any(isinstance(value, _BaseDataLoaderIter) for value in vars(loader).values())


class _Echo:
    """Sample i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return index


def _as_it_is(batch: Any) -> Any:
    return batch
