"""A site file that somebody else may have written chooses no machines and no command; of ours it is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.run.plan import config
from tests.conftest import Command

NOBODY = 65534
HOSTS = 'hosts = "localhost"\nvia = "sudo"\n'
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user are made by root")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a site file."""
    (folder := tmp_path / "here").mkdir()
    (folder / "ncclcheck.toml").write_text(HOSTS)
    monkeypatch.chdir(folder)
    return folder


def _of_another(here: Path) -> None:
    os.chown(here / "ncclcheck.toml", NOBODY, NOBODY)


def _writable(here: Path) -> None:
    (here / "ncclcheck.toml").chmod(0o646)


def _in_a_shared_folder(here: Path) -> None:
    here.chmod(0o777)


def _in_a_folder_of_another(here: Path) -> None:
    os.chown(here, NOBODY, NOBODY)


def _link_in_a_shared_folder(here: Path) -> None:
    (here / "ncclcheck.toml").rename(here.parent / "mine")
    (here / "ncclcheck.toml").symlink_to(here.parent / "mine")
    here.chmod(0o1777)


def _link_to_a_shared_folder(here: Path) -> None:
    (there := here.parent / "there").mkdir()
    (here / "ncclcheck.toml").rename(there / "site")
    (here / "ncclcheck.toml").symlink_to(there / "site")
    there.chmod(0o777)


def _hard_link_in_a_sticky_folder(here: Path) -> None:
    (here.parent / "mine").hardlink_to(here / "ncclcheck.toml")
    here.chmod(0o1777)


@root_only
@pytest.mark.parametrize(
    "made",
    [
        _of_another,
        _writable,
        _in_a_shared_folder,
        _in_a_folder_of_another,
        _link_in_a_shared_folder,
        _link_to_a_shared_folder,
        _hard_link_in_a_sticky_folder,
    ],
)
def test_no_machines_are_taken_from_a_file_of_others(here: Path, made: Callable[[Path], None]) -> None:
    assert config.read({}).defaults["env"]["hosts"] == "localhost"
    made(here)
    with pytest.raises(UsageError, match=r"^ncclcheck\.toml: key hosts: it is only taken from a file that"):
        config.read({})


@pytest.mark.parametrize("key", ["hosts", "hostfile", "via", "rdzv-endpoint", "launch"])
def test_each_such_key_is_refused_also_in_a_table(here: Path, key: str) -> None:
    (here / "ncclcheck.toml").write_text(f'strict = true\n[env]\n{key} = "local"\n')
    here.chmod(0o777)
    with pytest.raises(UsageError, match=rf"key env\.{key}: .*\(its folder has owner \w+, mode 0777: others"):
        config.read({})


def test_other_keys_of_such_a_file_count(here: Path) -> None:
    (here / "ncclcheck.toml").write_text("strict = true\n")
    here.chmod(0o777)
    assert config.read({}).defaults["env"] == {"strict": True}


def test_a_file_of_ours_in_a_sticky_folder_counts(here: Path) -> None:
    here.chmod(0o1777)
    assert config.read({}).defaults["env"]["hosts"] == "localhost"


@root_only
def test_root_takes_none_either_from_a_named_file_that_others_may_change(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"NCCLCHECK_CONFIG": str(here / "ncclcheck.toml")}
    here.chmod(0o777)
    assert config.read(named).set_by["env"] == dict.fromkeys(("hosts", "via"), named["NCCLCHECK_CONFIG"])
    _writable(here)
    with pytest.raises(UsageError, match=r"\(owner root, mode 0646: others may change it\)"):
        config.read(named)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert config.read(named).defaults["env"]["hosts"] == "localhost"


def _ssh(folder: Path) -> str:
    """A PATH on which ssh runs its command here."""
    (ssh := folder / "ssh").write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec sh -c "$*"\n'
    )
    ssh.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_no_command_of_a_file_of_others_runs(ncclcheck: Command, tmp_path: Path) -> None:
    via = f"sh -c 'id > {tmp_path}/PWNED; exec $@' x"
    (tmp_path / "ncclcheck.toml").write_text(f'hosts = "localhost"\nvia = "{via}"\n')
    (tmp_path / "ncclcheck.toml").chmod(0o666)
    ran = ncclcheck("env", PATH=_ssh(tmp_path))
    assert (ran.code, ran.out) == (2, "")
    assert "key hosts: it is only taken from a file that nobody but you and root can write or replace" in ran.err
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize("quiet", [False, True])
def test_which_file_chose_the_machines_is_said(ncclcheck: Command, tmp_path: Path, *, quiet: bool) -> None:
    (tmp_path / "ncclcheck.toml").write_text('launch = "local"\noutput = "short"\n')
    ran = ncclcheck("env", *(["-q"] if quiet else []))
    assert ran.err.splitlines()[0] == "ncclcheck: ncclcheck.toml sets --launch" + ("" if quiet else ", --output")
    assert ran.code == 0
    typed = ncclcheck("env", "-q", "--launch", "local")
    assert (typed.code, typed.err) == (0, "")
