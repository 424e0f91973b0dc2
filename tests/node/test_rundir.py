"""Run folders among other users: nothing that they place holds us up, is followed, or is removed for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ncclcheck.node import rundir
from ncclcheck.probes.training.saves import places
from tests.conftest import environment

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user are made by root")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR of all users, with the sticky bit; and no other place."""
    (folder := tmp_path / "tmp").mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(rundir, "_candidates", lambda: iter([str(folder)]))
    yield folder
    for path in [*rundir._held]:
        os.close(rundir._held.pop(path))


def _abandoned(place: Path, name: str = "ncclcheck-old") -> Path:
    (folder := place / name).mkdir(mode=0o700)
    (folder / "lock").touch()
    return folder


def test_a_folder_of_a_killed_run_is_removed_and_one_that_is_held_stays(place: Path) -> None:
    old = _abandoned(place)
    (old / "job/deep").mkdir(parents=True)
    (old / "job/deep/file").touch()
    folder = rundir.create()
    rundir.sweep()
    assert os.listdir(place) == [os.path.basename(folder)]
    rundir.remove(folder)
    assert os.listdir(place) == []


def test_what_links_in_a_folder_lead_to_stays(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine/below").mkdir(parents=True)
    (tmp_path / "mine/file").touch()
    old = _abandoned(place)
    (old / "out").symlink_to(tmp_path / "mine")
    (old / "file").symlink_to(tmp_path / "mine/file")
    rundir.sweep()
    assert os.listdir(place) == []
    assert sorted(os.listdir(tmp_path / "mine")) == ["below", "file"]


@root_only
@pytest.mark.parametrize("lock", ["pipe", "link", "folder", "file"])
def test_folders_of_others_are_passed_over(place: Path, tmp_path: Path, lock: str) -> None:
    theirs = place / "ncclcheck-theirs"
    theirs.mkdir(mode=0o700)
    if lock == "pipe":
        os.mkfifo(theirs / "lock")
    elif lock == "link":
        os.mkfifo(tmp_path / "pipe")
        (theirs / "lock").symlink_to(tmp_path / "pipe")
    elif lock == "folder":
        (theirs / "lock").mkdir()
    else:
        (theirs / "lock").touch()
    os.chown(theirs, NOBODY, NOBODY)
    rundir._sweep()
    assert theirs.exists()


def test_a_link_to_a_folder_of_ours_and_one_that_is_open_to_others_are_passed_over(
    place: Path, tmp_path: Path
) -> None:
    mine = _abandoned(tmp_path, "mine")
    (place / "ncclcheck-link").symlink_to(mine)
    _abandoned(place).chmod(0o755)
    os.mkfifo(_abandoned(place, "ncclcheck-pipe") / "own")
    os.mkfifo(place / "ncclcheck-itself-a-pipe")
    rundir._sweep()
    assert sorted(os.listdir(place)) == ["ncclcheck-itself-a-pipe", "ncclcheck-link", "ncclcheck-old"]
    assert (mine / "lock").exists()


def test_a_place_where_others_may_rename_our_folder_is_only_the_last_one(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.chmod(0o777)
    (place / "below").mkdir()
    (tmp_path / "mine").mkdir()
    places = [str(tmp_path / "none"), str(place), str(place / "below"), str(tmp_path / "mine")]
    monkeypatch.setattr(rundir, "_candidates", lambda: iter(places))
    assert Path(rundir.create()).parent == tmp_path / "mine"
    places.pop()
    assert Path(rundir.create()).parent == place


@root_only
def test_a_pipe_of_another_user_does_not_hold_up_a_run(tmp_path: Path) -> None:
    """`su nobody -c 'ln -s T T/ncclcheck-evil; mkfifo T/lock'` in a TMPDIR that everybody may write to."""
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o777)
    os.mkfifo(shared / "lock")
    (shared / "ncclcheck-evil").symlink_to(shared)
    for name in ("lock", "ncclcheck-evil"):
        os.lchown(shared / name, NOBODY, NOBODY)
    argv = [sys.executable, "-m", "ncclcheck", "env", "-q"]
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment(TMPDIR=str(shared)), capture_output=True, check=False, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, b"")


SLOW = """
import time, torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.2)
        return torch.zeros(1)

def data():
    return torch.utils.data.DataLoader(Slow(), num_workers=2)
"""


nightly = pytest.mark.nightly


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for the socket of a run, whatever pytest calls its own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("part", "number"),
    [
        ("ncclcheck-data-*", signal.SIGKILL),
        pytest.param("ncclcheck-data-*", signal.SIGTERM, marks=nightly),
        pytest.param("ncclcheck-ranks-*", signal.SIGKILL, marks=nightly),
        pytest.param("ncclcheck-ranks-*", signal.SIGTERM, marks=nightly),
    ],
)
def test_data_that_is_killed_leaves_nothing(
    tmp_path: Path, short: Path, part: str, number: signal.Signals
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (place := short / "tmp").mkdir()
    argv = [sys.executable, "-m", "ncclcheck", "data", "slow:data", "--deadline", "80"]
    with subprocess.Popen(
        argv,
        cwd=tmp_path,
        env=environment(TMPDIR=str(place)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        _until(lambda: any(place.rglob(part)))
        run.send_signal(number)
        run.wait(30)
    _until(lambda: not [path for path in place.iterdir() if path.name.startswith("ncclcheck-")])


def _until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 40
    while not there():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


@root_only
def test_a_run_folder_of_another_user_takes_no_checkpoints(tmp_path: Path) -> None:
    (folder := tmp_path / "ncclcheck-smoke-1").mkdir(mode=0o700)
    places._refuse_of_others(folder)
    (link := tmp_path / "link").symlink_to(folder)
    with pytest.raises(PermissionError, match="it is not of this run"):
        places._refuse_of_others(link)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match=r"it is not of this run \(owner nobody, mode 0700\)"):
        places._refuse_of_others(folder)


@pytest.mark.parametrize("shared", [False, True])
def test_what_a_run_left_is_removed_if_it_is_surely_ours(tmp_path: Path, *, shared: bool) -> None:
    (folder := tmp_path / "ncclcheck-smoke-1").mkdir(mode=0o755)
    (folder / "checkpoint.pt").touch()
    tmp_path.chmod(0o777 if shared else 0o700)
    rundir.remove_scratch(str(folder))
    assert folder.exists() is shared
