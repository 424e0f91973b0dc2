"""The folder of the run's checkpoints, and whether all ranks see the same one."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ncclcheck.probes.facts import Measurements
from ncclcheck.probes.facts.training import Smoke
from ncclcheck.probes.facts.training.saves import RankProblem, Saves, Unsaved
from ncclcheck.probes.machine import files
from ncclcheck.probes.training.equal.alike import of_all_ranks

if TYPE_CHECKING:
    from ncclcheck.probes.training.loop import TrainingSetting

_MARK = "rank-0-was-here"
_PATIENCE_S = 3.0  # NFS clients keep what they know of a folder for some seconds
_MOST_TEXT = 200  # a rank's words to the others
_known: dict[str, list[RankProblem]] = {}  # by folder: it is looked at once, whichever part comes first


def make(setting: TrainingSetting) -> list[RankProblem]:
    """Make the folder; ranks that cannot write there, or do not see what rank 0 wrote, are told. A collective."""
    path = setting.plan.run_folder
    if path not in _known:
        _known[path] = problems(setting, _made(setting, Path(path)))
    return _known[path]


def _made(setting: TrainingSetting, folder: Path) -> str:
    problem = ""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _refuse_of_others(folder)
        if setting.context.rank == 0:
            (folder / _MARK).write_text(str(os.getpid()), encoding="ascii")
    except OSError as error:
        problem = f"{folder}: {error.strerror or error}"
    setting.peers.worst([0.0])
    if not problem and not appears(folder / _MARK):
        problem = f"{folder} is there, but not what rank 0 wrote into it: it is no shared file system"
    return problem


def _refuse_of_others(folder: Path) -> None:
    """Where others may write, one of them may have been faster. Raises OSError.

    A file of ours in it tells whom the file server takes us for: root is often nobody there.
    """
    status = os.lstat(folder)
    if stat.S_ISDIR(status.st_mode):
        with tempfile.TemporaryFile(dir=folder) as ours:
            if os.fstat(ours.fileno()).st_uid == status.st_uid:
                return
    raise PermissionError(errno.EPERM, f"it is not of this run ({files.described(status)})")


def problems(setting: TrainingSetting, mine: str) -> list[RankProblem]:
    """What went wrong on any rank. A collective."""
    return [
        RankProblem(rank=rank, node=setting.context.node_of[rank], problem=problem)
        for rank, problem in enumerate(of_all_ranks(setting.peers, mine[:_MOST_TEXT]))
        if problem
    ]


def words(problem: RankProblem) -> str:
    """As a reason why a part was not looked at."""
    return f"rank {problem.rank} on {problem.node}: {problem.problem}"


def appears(path: Path, until: float | None = None) -> bool:
    """Whether it is there, within a few seconds."""
    until = until or time.monotonic() + _PATIENCE_S
    while not _is_there(path):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _is_there(path: Path) -> bool:
    """Listing the folder makes an NFS client ask again."""
    try:
        return path.exists() or path.name in os.listdir(path.parent)
    except OSError:
        return False


def remove(setting: TrainingSetting) -> None:
    """The first rank of each node removes it: where it is shared, one of them does."""
    if setting.context.local_rank == 0:
        shutil.rmtree(setting.plan.run_folder, ignore_errors=True)


def write_whole(path: Path, data: bytes) -> float:
    """Through a temporary name, and to the disk; seconds. Raises OSError."""
    begun, beside = time.monotonic(), path.with_suffix(f".{secrets.token_hex(8)}.part")
    try:
        with open(beside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
    return time.monotonic() - begun


def unseen(setting: TrainingSetting, part: str, why: str, *, missed: bool = False) -> None:
    """Tell, once for all ranks, that a part was not looked at."""
    if setting.context.rank == 0:
        emit(setting, Saves(unseen=[Unsaved(part=part, why=why[:300], missed=missed)]))


def emit(setting: TrainingSetting, saves: Saves) -> None:
    """Hand over what is known of the saves."""
    setting.context.emit(Measurements(smoke=Smoke(saves=saves)))
