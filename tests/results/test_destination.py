"""Output files among other users: their links, hard links, pipes and files are not written through."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.reports.judgement.jsondoc import encode
from ncclcheck.results import outputs
from tests.conftest import Command
from tests.helpers import stories

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user are made by root")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder where everybody may write; without the sticky bit, as scratch folders are."""
    (folder := tmp_path / "shared").mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that others may not even read."""
    (file := tmp_path / "victim").write_text("mine")
    file.chmod(0o600)
    return file


def _refused(path: Path) -> str:
    """It is refused before anything is measured, and again when it is written; what is said."""
    with pytest.raises(UsageError) as refusal:
        outputs.check_file("--json", str(path))
    assert not outputs.write_file(str(path), b"{}")
    return str(refusal.value)


def _link(victim: Path, folder: Path) -> Path:
    (folder / "r.json").symlink_to(victim)
    return folder / "r.json"


def _link_above(victim: Path, folder: Path) -> Path:
    (folder / "results").symlink_to(victim.parent)
    return folder / "results" / victim.name


def _hard_link(victim: Path, folder: Path) -> Path:
    (folder / "r.json").hardlink_to(victim)
    return folder / "r.json"


def _through_dev(victim: Path, folder: Path) -> Path:
    return Path("/dev/..") / _link(victim, folder).relative_to("/")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
@pytest.mark.parametrize("place", [_link, _link_above, _hard_link, _through_dev])
def test_nothing_is_written_through_a_link_where_others_may_write(
    shared: Path, victim: Path, place: Callable[[Path, Path], Path], mode: int
) -> None:
    path = place(victim, shared)
    shared.chmod(mode)
    if mode == 0o770:
        if os.geteuid() != 0:
            pytest.skip("a folder is given to another group by root")
        os.chown(shared, 0, NOBODY)
    assert "where others may write" in _refused(path)
    assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("mine", 0o600)


@root_only
def test_a_link_of_another_user_in_his_own_folder_is_not_followed(shared: Path, victim: Path) -> None:
    _link(victim, shared)
    shared.chmod(0o755)
    os.chown(shared, NOBODY, NOBODY)
    assert "is a link, where others may write" in _refused(shared / "r.json")


@root_only
@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_a_file_or_pipe_of_another_user_in_a_sticky_folder_is_not_written(
    shared: Path, make: Callable[[Path], None]
) -> None:
    shared.chmod(0o1777)
    make(path := shared / "r.json")
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o666)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    assert "somebody else's (owner nobody, mode 0666), where others may write" in _refused(path)
    assert not os.read(reader, 10)
    os.close(reader)


def test_no_link_under_a_foreseen_temporary_name_is_written(shared: Path, victim: Path) -> None:
    (shared / f"r.json.{os.getpid()}.part").symlink_to(victim)
    assert outputs.write_file(str(shared / "r.json"), b"{}")
    assert victim.read_text() == "mine"
    assert (shared / "r.json").read_bytes() == b"{}"
    assert not (shared / "r.json").is_symlink()


@pytest.mark.parametrize(("owner", "mode"), [(0, 0o600), (0, 0o664), pytest.param(NOBODY, 0o640, marks=root_only)])
def test_a_file_that_is_replaced_keeps_owner_and_mode(tmp_path: Path, owner: int, mode: int) -> None:
    (path := tmp_path / "r.json").write_text("old and longer")
    if owner:
        os.chown(path, owner, owner)
    path.chmod(mode)
    before = path.stat()
    assert outputs.write_file(str(path), b"{}")
    after = path.stat()
    assert path.read_bytes() == b"{}"
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)


@root_only
def test_where_the_owner_cannot_be_kept_it_is_written_in_place(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := shared / "r.json").write_text("old and longer")
    path.chmod(0o666)
    number = path.stat().st_ino
    monkeypatch.chdir(shared)
    if (child := os.fork()) == 0:  # the file is root's, and this process nobody's
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os._exit(0 if outputs.write_file("r.json", b"{}") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (path.read_bytes(), path.stat().st_ino, path.stat().st_uid) == (b"{}", number, 0)
    assert os.listdir(shared) == ["r.json"]


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert outputs.write_file(str(tmp_path / "r.json"), b"{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "r.json").stat().st_mode) == 0o640


def test_links_of_ones_own_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "latest").symlink_to("runs")
    (tmp_path / "runs/latest.json").symlink_to("../runs/run3.json")
    path = str(tmp_path / "latest/latest.json")
    outputs.check_file("--json", path)
    assert os.listdir(tmp_path / "runs") == ["latest.json"]
    assert outputs.write_file(path, b"{}")
    assert (tmp_path / "runs/run3.json").read_bytes() == b"{}"
    assert (tmp_path / "runs/latest.json").is_symlink()


@pytest.mark.parametrize("path", ["", "\0", "ring/x", "ring", ".", "there/", "there/x", "a" * 300, "/dev/fd/999"])
def test_odd_paths_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring").symlink_to("ring")
    (tmp_path / "there").touch()
    with pytest.raises(UsageError, match="cannot be written: "):
        outputs.check_file("--json", path)
    assert not outputs.write_file(path, b"{}")


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}", "link"])
def test_a_descriptor_is_written_to(tmp_path: Path, name: str) -> None:
    reader, writer = os.pipe()
    (tmp_path / "link").symlink_to(f"/dev/fd/{writer}")
    path = str(tmp_path / name) if name == "link" else name.format(writer)
    outputs.check_file("--json", path)
    assert outputs.write_file(path, b"{}")
    assert os.read(reader, 10) == b"{}"
    os.close(reader)
    os.close(writer)


@root_only
def test_report_ends_before_it_reads_anything(
    ncclcheck: Command, tmp_path: Path, shared: Path, victim: Path
) -> None:
    """As `su nobody -c 'ln -s VICTIM shared/r.json'` leaves it, whatever fs.protected_symlinks is."""
    (tmp_path / "saved.json").write_bytes(encode(stories.document("healthy")))
    os.lchown(_link(victim, shared), NOBODY, NOBODY)
    shared.chmod(0o1777)
    ran = ncclcheck("report", "saved.json", "--json", str(shared / "r.json"))
    assert (ran.code, ran.out) == (2, "")
    assert "r.json is a link, where others may write; give the path it leads to" in ran.err
    assert victim.read_text() == "mine"
