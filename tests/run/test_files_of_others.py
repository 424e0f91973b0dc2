"""Files that somebody else may have placed where we read: a pipe is not waited for, a huge one is not read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.commands.steps.cache import Cache
from ncclcheck.launch.hosts import hostfile
from ncclcheck.probes.dataloader.source.callers import set_epoch_callers
from ncclcheck.probes.facts import Policy
from ncclcheck.probes.logs import flight
from ncclcheck.probes.machine import files
from ncclcheck.probes.training.saves import settings_files
from ncclcheck.reports.judgement.jsondoc import encode
from ncclcheck.results import saved
from ncclcheck.run.plan.options import Options
from tests.helpers import stories

NOBODY = 65534


@pytest.mark.parametrize(
    ("read", "refused"),
    [
        (lambda path: saved.load(path, "report", Policy()), UsageError),
        (hostfile.from_file, UsageError),
        (settings_files.read, settings_files.NoSettings),
    ],
)
@pytest.mark.parametrize("writer", [False, True], ids=["no-writer", "silent-writer"])
def test_a_pipe_that_brings_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[str], object], refused: type[Exception],
    *, writer: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(files, "_SILENCE_S", 0.2)
    os.mkfifo(pipe := tmp_path / "pipe.json")
    writer_end = os.open(pipe, os.O_RDWR) if writer else None
    with pytest.raises(refused, match=r"a pipe that brought nothing for 0 s"):
        read(str(pipe))
    if writer_end is not None:
        os.close(writer_end)


@pytest.mark.parametrize(
    ("read", "refused"),
    [
        (lambda path: saved.load(path, "--baseline", Policy()), UsageError),
        (hostfile.from_file, UsageError),
        (settings_files.read, settings_files.NoSettings),
    ],
)
@pytest.mark.parametrize(
    ("path", "why"), [("\0", "embedded null byte"), (".", "it is a directory"), ("/dev/zero", "it is a device")]
)
def test_odd_paths_are_refused(
    read: Callable[[str], object], refused: type[Exception], path: str, why: str
) -> None:
    with pytest.raises(refused, match=why):
        read(path)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (huge := tmp_path / "huge").touch()
    os.truncate(huge, 2**40)
    with pytest.raises(UsageError, match="it is larger than 1 GiB"):
        saved.load(str(huge), "report", Policy())
    with pytest.raises(UsageError, match="it is larger than 4 MiB"):
        hostfile.from_file(str(huge))
    assert "it is larger than 64 MiB" in flight.read([str(huge)]).refused[0].why


def test_pipes_among_dumps_and_sources_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(dump := tmp_path / "nccl_trace_rank_0")
    writer = os.open(dump, os.O_RDWR)
    assert flight.read([str(dump)]).refused[0].why == "it cannot be read: it is not a regular file"
    os.close(writer)
    os.mkfifo(tmp_path / "a.py")
    (tmp_path / "b.py").write_text("sampler.set_epoch(epoch)")
    assert set_epoch_callers(str(tmp_path), "mine:data") == (["b.py"], [])


def _replaced_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _replaced_by_a_link(path: Path) -> None:
    path.rename(path.with_suffix(".true"))
    path.symlink_to(path.with_suffix(".true"))


def _of_another(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("files of another user are made by root")
    os.chown(path, NOBODY, NOBODY)


def _old(path: Path) -> None:
    os.utime(path, (time.time() - 700, time.time() - 700))


@pytest.mark.parametrize(
    "made", [_replaced_by_a_pipe, _replaced_by_a_link, _of_another, lambda path: path.chmod(0o666), _old]
)
def test_a_kept_result_is_only_taken_if_nobody_else_can_have_written_it(
    tmp_path: Path, made: Callable[[Path], None]
) -> None:
    (path := tmp_path / "kept.json").write_bytes(encode(stories.document("healthy")))
    path.chmod(0o644)
    cache = Cache(path, 600)
    assert cache.fresh(Options(command="preflight")) is not None
    made(path)
    assert cache.fresh(Options(command="preflight")) is None
