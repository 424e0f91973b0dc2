"""Which processes of a job are ranks, and which work for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.probes.box.processes import Process, Processes
from ncclcheck.probes.live.machine.proc import Proc


def _process(root: Path, pid: int, parent: int, command: str, **env: str) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(f"{pid} (x) S {parent} " + "0 " * 45)
    (folder / "cmdline").write_text(command.replace(" ", "\0"))
    (folder / "comm").write_text(command.partition(" ")[0])
    (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in env.items()))


@pytest.fixture
def job(tmp_path: Path) -> Processes:
    """Of a box in a folder beside a recorded /proc."""
    (tmp_path / "said").mkdir()
    _process(tmp_path, 9001, 1, "python train.py")
    return Processes(str(tmp_path), 9001, Proc(str(tmp_path)))


def _roles(job: Processes) -> dict[int, tuple[int, bool]]:
    return {pid: (process.rank, job.helper(process)) for pid, process in job.alive.items()}


def test_a_program_behind_a_shell_of_a_rank_works_for_it(job: Processes, tmp_path: Path) -> None:
    _process(tmp_path, 9002, 9001, "python train.py", RANK="1", WORLD_SIZE="2")
    _process(tmp_path, 9003, 9002, "sh -c x", RANK="1")
    _process(tmp_path, 9004, 9003, "head -c 9", RANK="1")
    job.find(1.0)
    assert _roles(job) == {9001: (-1, False), 9002: (1, False), 9003: (-1, False), 9004: (1, True)}


def test_a_rank_that_tells_itself_and_what_it_starts(job: Processes, tmp_path: Path) -> None:
    _process(tmp_path, 9002, 9001, "python -c multiprocessing")
    job.find(1.0)
    (tmp_path / "said/9002.rank.jsonl").write_text('{"what": "rank", "pid": 9002, "rank": 1, "world": 3}\n')
    _process(tmp_path, 9003, 9002, "python -c multiprocessing")
    ranks = job.find(2.0)
    assert [(process.pid, process.rank, process.world) for process in ranks] == [(9002, 1, 3), (9003, 1, 0)]
    assert _roles(job) == {9001: (-1, False), 9002: (1, False), 9003: (1, True)}
    assert job.find(3.0) == []


def test_what_is_told_wrongly_is_passed_over(job: Processes, tmp_path: Path) -> None:
    for text in ("", "{", "[]", '{"rank": "x", "world": 1}', "3"):
        (tmp_path / "said/9001.rank.jsonl").write_text(text)
        assert [process.rank for process in job.find(1.0)] in ([], [-1])
    assert isinstance(job.alive[9001], Process)
