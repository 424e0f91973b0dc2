"""How short of cores a process is, by recorded schedstat files; and the time box that grows with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ncclcheck.probes.machine.host.cores import Cores, running
from ncclcheck.probes.training.loop import box

_S = 10**9


def _write(folder: Path, **threads: tuple[int, int]) -> None:
    for name, (ran, waited) in threads.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "schedstat").write_text(f"{ran} {waited} 17\n")


def test_what_was_before_does_not_count(tmp_path: Path) -> None:
    _write(tmp_path, t1=(5 * _S, 50 * _S))
    cores = Cores(tmp_path)
    assert cores.slowdown() == 1.0
    _write(tmp_path, t1=(6 * _S, 53 * _S))
    assert cores.slowdown() == 4.0


def test_all_threads_count_also_new_ones(tmp_path: Path) -> None:
    _write(tmp_path, t1=(_S, 0), gone=(_S, 9 * _S))
    cores = Cores(tmp_path)
    (tmp_path / "gone" / "schedstat").unlink()
    _write(tmp_path, t1=(2 * _S, 0), t2=(_S, 2 * _S))
    assert cores.slowdown() == 2.0


def test_a_kernel_that_does_not_tell(tmp_path: Path) -> None:
    (tmp_path / "t1").mkdir()
    assert Cores(tmp_path).slowdown() == 1.0
    assert Cores(tmp_path / "nothing").slowdown() == 1.0


def test_how_many_threads_of_the_machine_could_run(tmp_path: Path) -> None:
    (tmp_path / "loadavg").write_text("7.13 6.02 3.90 12/811 4711\n")
    assert running(tmp_path / "loadavg") == [12 / (os.cpu_count() or 1)]
    assert running(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("slowdown", "until_deadline", "seconds"),
    [(1.0, 300.0, 6.0), (7.0, 300.0, 42.0), (90.0, 300.0, 150.0), (7.0, 8.0, 6.0), (1.0, 4.0, 4.0)],
    ids=["quiet", "loaded", "half of the job at most", "never shorter for it", "not beyond the deadline"],
)
def test_the_box_is_of_work(slowdown: float, until_deadline: float, seconds: float) -> None:
    assert box(6.0, slowdown, until_deadline) == seconds
