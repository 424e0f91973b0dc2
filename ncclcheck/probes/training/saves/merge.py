"""Result files of all ranks on the job's file system: one a rank, merged by rank 0, and one that all append to."""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path

from ncclcheck.probes.facts.training.saves import Merged, Saves, Unsaved
from ncclcheck.probes.training.equal.alike import MOST
from ncclcheck.probes.training.loop import TrainingSetting
from ncclcheck.probes.training.saves import places

_LINES = 50  # that each rank writes: chosen, several turns of several lines show an append that is cut
_TURNS = 10  # in which a rank appends, each under the lock: chosen
# for a lock, and until a file of another node appears: NFS keeps attributes 3 s at least (acregmin, nfs(5))
_PATIENCE_S = 5.0
_MOST_APPENDING = 64  # more ranks than that would wait for each other rather than tell more


def run(setting: TrainingSetting) -> None:
    """Write, wait for all, merge."""
    if setting.left() <= 0:
        places.unseen(setting, "merge", "the time box was used up before", missed=True)
        return
    folder = Path(setting.plan.run_folder)
    if problems := places.make(setting):
        places.unseen(setting, "merge", places.words(problems[0]))
        return
    setting.context.step(f"training: result files of {setting.context.world_size} ranks in {folder}")
    if problems := places.problems(setting, _write_own(setting, folder)):
        places.unseen(setting, "merge", places.words(problems[0]))
        return
    locks = [problem.problem for problem in places.problems(setting, _append(setting, folder / "all.jsonl"))]
    if setting.context.rank == 0:
        places.emit(setting, _merged(setting, folder, locks[0] if locks else ""))


def _write_own(setting: TrainingSetting, folder: Path) -> str:
    """What went wrong. With the fault one-file all ranks write under one name, as if they forgot their rank."""
    rank = setting.context.rank
    path = folder / ("rank.jsonl" if setting.faults.has("one-file") else f"rank-{rank}.jsonl")
    try:
        places.write_whole(path, "".join(_line(rank, number) for number in range(_LINES)).encode())
    except OSError as error:
        return f"writing {path}: {error.strerror or error}"
    return ""


def _line(rank: int, number: int) -> str:
    return json.dumps({"rank": rank, "step": number, "loss": 1 / (1 + number)}) + "\n"


def _append(setting: TrainingSetting, path: Path) -> str:
    """Several turns, each under an exclusive lock; why locks do not work here."""
    if setting.context.rank not in _appending(setting):
        return ""
    for turn in range(_TURNS):
        try:
            with open(path, "ab", buffering=0) as file:
                _lock(file.fileno())
                for number in range(turn * _LINES // _TURNS, (turn + 1) * _LINES // _TURNS):
                    file.write(_line(setting.context.rank, number).encode())
        except OSError as error:
            return f"rank {setting.context.rank}: {path}: {error.strerror or error}"
    return ""


def _appending(setting: TrainingSetting) -> range:
    """Ranks of all nodes, but not too many."""
    world = setting.context.world_size
    return range(0, world, -(-world // _MOST_APPENDING))


def _lock(descriptor: int) -> None:
    """Within a few seconds. Raises OSError: a lock that waits for ever would hang the job."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(0.002)
        else:
            return


def _merged(setting: TrainingSetting, folder: Path, locks: str) -> Saves:
    try:
        return Saves(merged=_looked_at(setting, folder, locks))
    except OSError as error:
        return Saves(unseen=[Unsaved(part="merge", why=f"reading {folder}: {error.strerror or error}"[:300])])


def _looked_at(setting: TrainingSetting, folder: Path, locks: str) -> Merged:
    world = setting.context.world_size
    files = {rank: folder / f"rank-{rank}.jsonl" for rank in range(world)}
    until = time.monotonic() + _PATIENCE_S
    missing = [rank for rank, path in files.items() if not places.appears(path, until)]
    short = [rank for rank, path in files.items() if rank not in missing and len(_whole(path)) != _LINES]
    shared = (folder / "all.jsonl").read_bytes().splitlines() if not locks else []
    return Merged(
        folder=str(folder),
        ranks=world,
        lines=_LINES,
        missing=missing[:MOST],
        count=len(missing),
        short=short[:MOST],
        appended=len(shared),
        expected=0 if locks else len(_appending(setting)) * _LINES,
        damaged=sum(not _is_whole(line) for line in shared),
        locks=locks,
    )


def _whole(path: Path) -> list[bytes]:
    """The lines that can be read."""
    return [line for line in path.read_bytes().splitlines() if _is_whole(line)]


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
