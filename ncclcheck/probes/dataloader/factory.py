"""The user's factory: found and called; what it gives becomes a dataset and the keywords of its loader."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import default_collate, default_convert

from ncclcheck.probes.facts.data.made import Handle
from ncclcheck.probes.job.context import DataPlan

_ONLY_WITH_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
_EXCLUDED_BY = {
    "batch_sampler": ("batch_size", "shuffle", "sampler", "drop_last"),
    "sampler": ("shuffle", "batch_sampler"),
    "shuffle": ("sampler", "batch_sampler"),
    "batch_size": ("batch_sampler",),
}
_ONLY_RANK = {
    "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}  # fmt: skip
_MOST_WRAPPED = 3  # loops around a loader
_NO_GROUP = "Default process group has not been initialized"


class FactoryError(Exception):
    """What the user named cannot be found, or gives nothing that can be examined."""


@dataclass
class FactoryLoader:
    """What the factory gave. loader: keywords of DataLoader as the user gave them.

    length: None where `len` has no answer. given: "dataset", "loader", "tuple" or "module" (train_dataloader).
    handles: descriptors that the factory left open, so that children share them.
    own: the user's DataLoader itself, where it gave one.
    """

    dataset: Any
    iterable: bool
    length: int | None
    loader: dict[str, Any] = field(default_factory=dict)
    given: str = "dataset"
    handles: list[Handle] = field(default_factory=list)
    own: DataLoader[Any] | None = None

    @property
    def context(self) -> str | None:
        """How the loader says that its workers start: fork, spawn or forkserver; None where it says nothing."""
        wanted = self.loader.get("multiprocessing_context")
        return wanted if wanted is None or isinstance(wanted, str) else str(wanted.get_start_method())

    @property
    def workers_unpickle(self) -> bool:
        """Whether workers inherit nothing: under spawn and forkserver each unpickles a dataset of its own."""
        return self.context not in (None, "fork")

    def make_loader(self, **changes: Any) -> DataLoader[Any]:
        """A fresh loader. A change replaces what it excludes: `num_workers=0` all options of workers."""
        wanted = dict(self.loader)
        for name in changes:
            for excluded in _EXCLUDED_BY.get(name, ()):
                wanted.pop(excluded, None)
        if changes.get("num_workers") == 0:
            for name in _ONLY_WITH_WORKERS:
                wanted.pop(name, None)
        return DataLoader(**{"dataset": self.dataset, **wanted, **changes})


def resolve(plan: DataPlan, env: Mapping[str, str]) -> Callable[[], FactoryLoader]:
    """Import the user's module in this process, with `env` set and its folder on sys.path; give the call."""
    os.environ.update(env)
    target = find(plan.factory, plan.directory)
    return lambda: made_by(target, plan.kwargs, env)


def resolve_alone(plan: DataPlan) -> FactoryLoader:
    """The factory as it is called without torchrun, and where it asks for a rank, as the only one of a job."""
    try:
        return resolve(plan, {})()
    except KeyError as error:
        if error.args[0] not in _ONLY_RANK:
            raise
        return resolve(plan, _ONLY_RANK)()


def made_by(target: Any, kwargs: Mapping[str, Any], env: Mapping[str, str]) -> FactoryLoader:
    """Call what `find` found, as the rank that `env` tells."""
    return _take_apart(_call(target, _keywords(target, kwargs, env)))


def find(name: str, directory: str) -> Any:
    """The object that MODULE:NAME or path/to/file.py:NAME names. Raises FactoryError."""
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise FactoryError(f"{name} is not MODULE:NAME or path/to/file.py:NAME")
    _put_first(directory)
    try:
        target: Any = _file(os.path.join(directory, where)) if where.endswith(".py") else _module(where)
    except ImportError as error:
        raise FactoryError(f"{where} cannot be imported: {error}") from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise FactoryError(f"{where} has no {attribute}")
        target = getattr(target, part)
    return target


def _put_first(directory: str) -> None:
    directory = os.path.abspath(directory)
    if directory not in sys.path[:1]:
        sys.path.insert(0, directory)


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _file(path: str) -> ModuleType:
    """Under the file's own name, with its folder on the path: as `python path/to/file.py` would see it.

    A file that was loaded is not run again: model, data and loss of one file are of the same classes.
    """
    if not os.path.isfile(path):
        raise FactoryError(f"{path} is not there")
    _put_first(os.path.dirname(path))
    name = os.path.basename(path).removesuffix(".py")
    if (loaded := sys.modules.get(name)) is not None and not _is_of(loaded, path):
        name = f"{name}_of_user"
        loaded = sys.modules.get(name)
    if loaded is not None and _is_of(loaded, path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FactoryError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_of(module: ModuleType, path: str) -> bool:
    return os.path.realpath(getattr(module, "__file__", None) or "") == os.path.realpath(path)


def _keywords(target: Any, kwargs: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """The user's own, and the rank and the world size where the factory asks for them by name."""
    try:
        names = inspect.signature(target).parameters if callable(target) else {}
    except (TypeError, ValueError):
        names = {}
    offered = {"rank": env.get("RANK", "0"), "world_size": env.get("WORLD_SIZE", "1")}
    given = {name: int(value) for name, value in offered.items() if name in names}
    return {**given, **kwargs}


def _call(target: Any, keywords: dict[str, Any]) -> Any:
    if not callable(target) or _is_data(target):
        return target
    try:
        return target(**keywords)
    except (RuntimeError, ValueError) as error:
        if _NO_GROUP not in str(error):
            raise
    _join_a_world_of_one()
    return target(**keywords)


def _join_a_world_of_one() -> None:
    """A group without threads or sockets, for factories that ask torch.distributed for their rank."""
    import torch.distributed as dist  # noqa: PLC0415 - few factories need it
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)


def _is_data(thing: Any) -> bool:
    if isinstance(thing, type):
        return False
    return isinstance(thing, DataLoader | tuple) or hasattr(thing, "__getitem__") or hasattr(thing, "__iter__")


def _take_apart(thing: Any) -> FactoryLoader:
    if callable(getattr(thing, "train_dataloader", None)):
        return _of_module(thing)
    thing = _loader_within(thing)
    if isinstance(thing, DataLoader):
        return _dataset(thing.dataset, _keywords_of(thing), "loader", thing)
    if isinstance(thing, tuple) and len(thing) == 2 and isinstance(thing[1], Mapping) and _is_data(thing[0]):
        return _dataset(thing[0], dict(thing[1]), "tuple")
    if isinstance(thing, tuple | Mapping):
        _refuse(thing)
    return _dataset(thing, {}, "dataset")


def _refuse(thing: tuple[Any, ...] | Mapping[Any, Any]) -> None:
    """What has items and is no dataset: a batch, as nanoGPT's get_batch gives it, or several loaders."""
    parts = list(thing.values() if isinstance(thing, Mapping) else thing)[:8]
    kind = f"a {type(thing).__name__} of {', '.join(type(part).__name__ for part in parts)}"
    if parts and all(isinstance(part, torch.Tensor) for part in parts):
        shapes = ", ".join("x".join(str(size) for size in part.shape) or "()" for part in parts)
        raise FactoryError(f"it gave one batch, {kind} ({shapes}): give the function that makes the dataset")
    if any(isinstance(part, DataLoader | Dataset) for part in parts):
        raise FactoryError(f"it gave {kind}: give a function that returns one of them")


def _loader_within(thing: Any, depth: int = 0) -> Any:
    """Of what goes on with the batches of a DataLoader in the training process, that loader.

    webdataset's WebLoader, detectron2's AspectRatioGroupedDataset, loaders that move each batch to the GPU.
    """
    if isinstance(thing, DataLoader) or not hasattr(thing, "__iter__") or depth == _MOST_WRAPPED:
        return thing
    if isinstance(stages := getattr(thing, "pipeline", None), list):
        return stages[0] if stages and isinstance(stages[0], DataLoader) else thing
    parts = vars(thing).values() if hasattr(thing, "__dict__") else ()
    for inner in (
        _loader_within(part, depth + 1) for part in parts if not isinstance(part, tuple | list | Mapping)
    ):
        if isinstance(inner, DataLoader) and (inner.num_workers or not isinstance(thing, Dataset)):
            return inner
    return thing


def _of_module(module: Any) -> FactoryLoader:
    """As Lightning's Trainer prepares a LightningDataModule."""
    for name, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        if callable(hook := getattr(module, name, None)):
            hook(*arguments)
    loader = _loader_within(module.train_dataloader())
    if not isinstance(loader, DataLoader):
        raise FactoryError(f"train_dataloader() gave a {type(loader).__name__}, not a DataLoader")
    return _dataset(loader.dataset, _keywords_of(loader), "module", loader)


def _dataset(
    dataset: Any, loader: dict[str, Any], given: str, own: DataLoader[Any] | None = None
) -> FactoryLoader:
    iterable = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
    if isinstance(dataset, type) or (iterable and not hasattr(dataset, "__iter__")):
        batches = " with a next_batch() of its own" if hasattr(dataset, "next_batch") else ""
        raise FactoryError(
            f"the factory gave a {type(dataset).__name__}{batches}: it has neither __getitem__ nor __iter__, so "
            "that no DataLoader can read it"
        )
    if iterable and hasattr(dataset, "__next__") and not isinstance(dataset, IterableDataset):
        raise FactoryError("the factory gave an iterator, which can be read only once: give what makes it")
    return FactoryLoader(dataset, iterable, _length(dataset), loader, given, own=own)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # it may raise whatever it likes; a dataset without a length can be read as well
        return None


def _keywords_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """What differs from DataLoader's defaults, as its constructor takes it."""
    keywords: dict[str, Any] = {"num_workers": loader.num_workers, **_sampling(loader)}
    if loader.collate_fn not in (default_collate, default_convert):
        keywords["collate_fn"] = loader.collate_fn
    for name in ("pin_memory", "timeout", "worker_init_fn", "generator", "multiprocessing_context"):
        if value := getattr(loader, name, None):
            keywords[name] = value
    if loader.num_workers:
        keywords["persistent_workers"] = loader.persistent_workers
        keywords["prefetch_factor"] = loader.prefetch_factor
    if getattr(loader, "in_order", True) is False:
        keywords["in_order"] = False
    return keywords


def _sampling(loader: DataLoader[Any]) -> dict[str, Any]:
    if loader.batch_size is None:
        sampler = getattr(loader, "batch_sampler", None)
        return {"batch_size": None, **_order(loader)} if sampler is None else {"batch_sampler": sampler}
    return {"batch_size": loader.batch_size, "drop_last": loader.drop_last, **_order(loader)}


def _order(loader: DataLoader[Any]) -> dict[str, Any]:
    """`shuffle` where DataLoader made the sampler itself."""
    sampler = loader.sampler
    own = getattr(sampler, "data_source", None) is loader.dataset
    if isinstance(loader.dataset, IterableDataset) or (own and type(sampler) is SequentialSampler):
        return {}
    if own and type(sampler) is RandomSampler and _is_plain(sampler) and sampler.generator is loader.generator:
        return {"shuffle": True}
    return {"sampler": sampler}


def _is_plain(sampler: RandomSampler) -> bool:
    return not sampler.replacement and sampler._num_samples is None
