"""Being an emulated rank: its environment, its process group, and whether the user's code asks for it."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from ncclcheck.probes.dataloader.randomness.seeds import reseed
from ncclcheck.probes.dataloader.views import EmulatedRank

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_CALLS = ("get_rank", "get_world_size")
_NOT_THE_USERS = "torch/utils/data/dataloader.py"  # asks for its own shared seeds
_SHORT_OF = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
# Words of Python, torch's allocator, its store and gloo.
_CUT_OFF = re.compile(
    r"can't start new thread|[Cc]annot allocate memory|can't allocate memory|Connection (closed|reset) by peer"
    r"|[Tt]imed out|wait timeout|timeout"
)
_GROUP_S = 60.0  # gloo's time limit in emulated ranks: longer than any look, which is ended from outside


def environment(asked: EmulatedRank) -> dict[str, str]:
    """What torchrun sets for this rank, and what Slurm and MPI would where the machine already has theirs."""
    rank, here = asked.rank, max(1, asked.plan.ranks_per_node)
    variables = {
        "RANK": rank, "WORLD_SIZE": asked.world, "LOCAL_RANK": rank % here, "LOCAL_WORLD_SIZE": here,
        "GROUP_RANK": rank // here, "NODE_RANK": rank // here, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500,
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    others = {
        "SLURM_PROCID": rank, "SLURM_NTASKS": asked.world, "SLURM_LOCALID": rank % here,
        "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": asked.world, "PMI_RANK": rank,
        "PMI_SIZE": asked.world,
    }  # fmt: skip
    return {
        name: str(value)
        for name, value in {**variables, **{n: v for n, v in others.items() if n in os.environ}}.items()
    }


def become(asked: EmulatedRank) -> str:
    """Take this rank's place; returns why there is no process group, empty where there is one."""
    torch.set_num_threads(1)
    os.environ.update(environment(asked))
    _seed(asked)
    if asked.listing_reversed:
        _reverse_listings()
    return _join(asked) if asked.world > 1 else ""


def _seed(asked: EmulatedRank) -> None:
    if not asked.entropy:
        reseed(asked.plan.seed, 0)
        return
    random.seed()
    torch.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def _join(asked: EmulatedRank) -> str:
    if not dist.is_available():
        return "this torch has no torch.distributed"
    from torch.distributed import FileStore  # type: ignore[attr-defined] # noqa: PLC0415 - not in every torch

    try:
        store = FileStore(os.path.join(asked.folder, "store"), asked.world)
        limit = datetime.timedelta(seconds=_GROUP_S)
        dist.init_process_group("gloo", store=store, rank=asked.rank, world_size=asked.world, timeout=limit)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    dist.init_process_group = _already_there
    return ""


def is_cut_off(error: BaseException) -> bool:
    """Whether what the factory raised says nothing of the factory: memory, descriptors, threads or a peer of this
    emulated rank were gone.
    """
    if isinstance(error, OSError) and error.errno in _SHORT_OF:
        return True
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | OSError) and _CUT_OFF.search(str(error)) is not None
    )


def _already_there(*_: Any, **__: Any) -> None:
    """A factory that starts the group itself finds it started."""


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """The list grows by every way in which the code within asks for its rank."""
    asked: list[str] = []
    read, calls = os._Environ.__getitem__, {name: getattr(dist, name, None) for name in _CALLS}

    def noted(environ: Any, name: Any) -> Any:
        if name in _NAMES and name not in asked:
            asked.append(name)
        return read(environ, name)

    os._Environ.__getitem__ = noted  # type: ignore[method-assign]
    for name, call in calls.items():
        if call is not None:
            setattr(dist, name, _noting(f"dist.{name}", call, asked))
    try:
        yield asked
    finally:
        os._Environ.__getitem__ = read  # type: ignore[method-assign]
        for name, call in calls.items():
            if call is not None:
                setattr(dist, name, call)


def _noting(name: str, call: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    def noting(*args: Any, **kwargs: Any) -> Any:
        if name not in asked and not sys._getframe(1).f_code.co_filename.endswith(_NOT_THE_USERS):
            asked.append(name)
        return call(*args, **kwargs)

    return noting


def _reverse_listings() -> None:
    """POSIX leaves the order of a directory open, so backwards is as right as forwards. Source: readdir(3)."""
    listdir, scandir = os.listdir, os.scandir

    def backwards(*args: Any) -> list[Any]:
        return listdir(*args)[::-1]

    os.listdir = backwards  # type: ignore[assignment]
    os.scandir = lambda *args: _Backwards(scandir(*args))  # type: ignore[assignment]


class _Backwards:
    """What os.scandir gives, the other way round."""

    def __init__(self, entries: Any) -> None:
        with entries:
            self._entries = iter([*entries][::-1])

    def __iter__(self) -> _Backwards:
        return self

    def __next__(self) -> os.DirEntry[Any]:
        return next(self._entries)

    def __enter__(self) -> _Backwards:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """All entries have been read already."""
