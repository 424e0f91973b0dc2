"""What a process has open and running, before and after the factory."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.samples.graph import walk
from ncclcheck.probes.dataloader.source import code
from ncclcheck.probes.facts.data.made import Handle, LibraryHandle
from ncclcheck.probes.facts.data.made import Made as MadeFacts

Given = Literal["dataset", "loader", "tuple", "module"]

_MOST = 40  # handles, libraries, locks or threads of one factory: chosen, findings name a few
# Types whose handle must not be used on both sides of a fork, by the module that defines them.
_LIBRARIES = {
    "h5py": ("File", "Group", "Dataset"),
    "lmdb": ("Environment", "Transaction", "Cursor"),
    "sqlite3": ("Connection", "Cursor"),
    "zipfile": ("ZipFile",),
    "tarfile": ("TarFile",),
    "redis": ("Redis", "StrictRedis", "Connection"),
    "grpc": ("Channel",),
    "psycopg2": ("connection", "cursor"),
    "psycopg": ("Connection",),
    "pymongo": ("MongoClient",),
    "rocksdb": ("DB",),
    "tables": ("File",),
    "netCDF4": ("Dataset",),
    "av.container": ("InputContainer",),
}
_FRAMEWORKS = ("accelerate", "lightning", "pytorch_lightning", "transformers")  # each wraps loaders for its ranks
_KINDS: tuple[tuple[Any, Literal["file", "socket", "pipe", "device"]], ...] = (
    (stat.S_ISREG, "file"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


@dataclass(frozen=True)
class Surroundings:
    """handles by number and target; threads of Python; the number of all threads; CUDA initialised."""

    handles: dict[tuple[int, str], Handle]
    threads: dict[int, str]
    tasks: int
    cuda: bool


def read() -> Surroundings:
    """Of this process, now."""
    threads = {thread.native_id or 0: thread.name for thread in threading.enumerate()}
    tasks = len(os.listdir("/proc/self/task"))
    return Surroundings(_handles(), threads, tasks, bool(torch.cuda.is_initialized()))  # type: ignore[no-untyped-call]


def compare(before: Surroundings, after: Surroundings, made: FactoryLoader, seconds: float) -> MadeFacts:
    """What the factory gave and left."""
    started = [name for number, name in after.threads.items() if number not in before.threads]
    dataset = type(made.dataset)
    parts = list(walk([made.dataset, made.loader.get("collate_fn")]))
    return MadeFacts(
        seconds=seconds,
        dataset=f"{dataset.__module__}.{dataset.__qualname__}",
        given=made.given if made.given in get_args(Given) else "dataset",  # type: ignore[arg-type]
        iterable=made.iterable,
        length=made.length if made.length is not None and 0 <= made.length < 2**60 else None,
        options={name: f"{value!r:.80}" for name, value in made.loader.items()},
        handles=[handle for key, handle in after.handles.items() if key not in before.handles][:_MOST],
        libraries=[LibraryHandle(path=path, type=kind) for path, value in parts if (kind := library_of(value))][
            :_MOST
        ],
        locks=[path for path, value in parts if type(value).__module__ == "multiprocessing.synchronize"][:_MOST],
        threads=started[:_MOST],
        thread_owners=[_owner_of(name, parts) for name in started[:_MOST]],
        natives=max(0, after.tasks - before.tasks - len(started)),
        cuda=after.cuda and not before.cuda,
        frameworks=[name for name in _FRAMEWORKS if name in sys.modules],
        code=code.read(made),
    )


def _owner_of(thread: str, parts: list[tuple[str, Any]]) -> str:
    """`self.reader`: whose method this thread runs; empty where the dataset holds no such object."""
    targets = [getattr(alive, "_target", None) for alive in threading.enumerate() if alive.name == thread]
    owners = [getattr(target, "__self__", None) for target in targets]
    return next(
        (path.replace("self[0]", "self", 1) for path, value in parts if any(value is owner for owner in owners)),
        "",
    )


def library_of(value: Any) -> str:
    """`h5py.File` for a handle of a library that is named here; empty for all else."""
    bases = type(value).__mro__
    for library, names in _LIBRARIES.items():
        for module in filter(None, (sys.modules.get(library), sys.modules.get(f"_{library}"))):
            for name in names:  # by identity: types made in C say of their module what they like
                if getattr(module, name, None) in bases:
                    return f"{library}.{name}"
    return ""


def _handles() -> dict[tuple[int, str], Handle]:
    handles = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            handle = _handle(int(name))
            handles[handle.number, handle.target] = handle
    return handles


def _handle(number: int) -> Handle:
    target = os.readlink(f"/proc/self/fd/{number}")
    mode = os.fstat(number).st_mode
    kind = next((word for test, word in _KINDS if test(mode)), "other")
    return Handle(number=number, kind=kind, target=target, access=_access(number))  # type: ignore[arg-type]


def _access(number: int) -> Literal["r", "w", "rw"]:
    flags = int(_field(number, "flags"), 8) & os.O_ACCMODE
    return "w" if flags == os.O_WRONLY else "r" if flags == os.O_RDONLY else "rw"


def position(number: int) -> int:
    """Where an open file stands: the offset that all its copies share. Source: proc_pid_fdinfo(5)."""
    return int(_field(number, "pos"))


def _field(number: int, name: str) -> str:
    with open(f"/proc/self/fdinfo/{number}") as info:
        for line in info:
            key, _, value = line.partition(":")
            if key == name:
                return value.strip()
    raise ValueError(name)
