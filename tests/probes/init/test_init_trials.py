"""Trials of init methods with real sockets and files: what is free, taken, closed, stale, locked or apart."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

import pytest

from ncclcheck.base import endpoint
from ncclcheck.probes import init
from ncclcheck.probes.facts import FileInit, TcpInit

TOKEN = "0123456789abcdef" * 2


def tcp(url: str, *nodes: str) -> list[TcpInit]:
    """What these nodes, all on this machine, see of it; the first has rank 0."""
    trials = [init.trial(url, TOKEN, node=name, hosts=name == nodes[0], seconds=3.0) for name in nodes]
    try:
        for each in trials:
            each.opened()
        return [seen.tcp for each in trials if (seen := each.looked(nodes)).tcp is not None]
    finally:
        for each in trials:
            each.close()


def files(url: str, *nodes: str) -> list[FileInit]:
    trials = [init.trial(url, TOKEN, node=name, hosts=name == nodes[0], seconds=1.0) for name in nodes]
    try:
        for each in trials:
            each.opened()
        return [seen.file for each in trials if (seen := each.looked(nodes)).file is not None]
    finally:
        for each in trials:
            each.close()


def test_a_free_port_is_opened_and_reached_and_free_again() -> None:
    port = endpoint.free_port("127.0.0.1")
    lead, other = tcp(f"tcp://127.0.0.1:{port}", "a", "b")
    assert (lead.listened, lead.own, lead.loopback, lead.connect) == ("ok", True, True, "ok")
    assert (other.listened, other.connect) == ("", "ok")
    assert endpoint.taken("127.0.0.1", port) is None


def test_a_port_in_use_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (lead,) = tcp(f"tcp://127.0.0.1:{port}", "a")
    assert lead.listened == "in use"
    assert f"pid {os.getpid()}" in lead.detail
    assert lead.connect == "stranger"


def test_what_does_not_listen_or_resolve() -> None:
    port = endpoint.free_port("127.0.0.1")
    trial = init.trial(f"tcp://127.0.0.1:{port}", TOKEN, node="b", hosts=False, seconds=2.0)
    trial.opened()
    seen = trial.looked(["a", "b"])
    assert seen.tcp is not None
    assert seen.tcp.connect == "refused"
    (lead,) = tcp("tcp://no-such-name.invalid:4000", "a")
    assert lead.unresolved
    assert lead.addresses == []


def test_another_run_on_the_port_is_a_stranger() -> None:
    port = endpoint.free_port("127.0.0.1")
    lead = init.trial(f"tcp://127.0.0.1:{port}", "f" * 32, node="a", hosts=True, seconds=2.0)
    other = init.trial(f"tcp://127.0.0.1:{port}", TOKEN, node="b", hosts=False, seconds=2.0)
    try:
        seen = other.looked(["a", "b"])
    finally:
        lead.close()
    assert seen.tcp is not None
    assert seen.tcp.connect == "stranger"


def test_a_new_file_in_one_folder(tmp_path: Path) -> None:
    lead, other = files(f"file://{tmp_path}/init", "a", "b c")
    assert lead.sees == other.sees == ["a", "b c"]
    assert not lead.missing
    assert not other.lock_is_local
    assert (lead.problem, lead.kind, lead.unlocked) == ("", "", "")
    assert list(tmp_path.iterdir()) == []


def test_what_stands_there_already(tmp_path: Path) -> None:
    stale = tmp_path / "init"
    stale.write_bytes(b"left by another run")
    os.utime(stale, (1, 1))
    (lead,) = files(f"file://{stale}", "a")
    assert (lead.kind, lead.bytes) == ("file", 19)
    assert (lead.age_s or 0) > 1e8
    stale.unlink()
    stale.symlink_to("/etc/passwd")
    assert files(f"file://{stale}", "a")[0].kind == "link"
    assert stale.is_symlink()


def test_folders_that_are_two_or_none(tmp_path: Path) -> None:
    """Two nodes of which one writes elsewhere, as where each has a /tmp of its own."""
    (tmp_path / "other").mkdir()
    trial = init.trial(f"file://{tmp_path}/init", TOKEN, node="a", hosts=True, seconds=0.5)
    two = init.trial(f"file://{tmp_path}/other/init", TOKEN, node="b", hosts=False, seconds=0.5)
    try:
        trial.opened(), two.opened()
        seen = two.looked(["a", "b"])
    finally:
        trial.close()
        two.close()
    assert seen.file is not None
    assert (seen.file.sees, seen.file.missing) == (["b"], ["a"])
    (lead,) = files(f"file://{tmp_path}/none/init", "a")
    assert lead.problem == "No such file or directory"


def test_a_lock_that_does_not_hold_between_nodes_is_seen(tmp_path: Path) -> None:
    """The lock of the node of rank 0 is let go behind its back, as if it counted on its own node alone."""
    lead = init.trial(f"file://{tmp_path}/init", TOKEN, node="a", hosts=True, seconds=0.5)
    other = init.trial(f"file://{tmp_path}/init", TOKEN, node="b", hosts=False, seconds=0.5)
    try:
        lead.opened(), other.opened()
        mark = next(path for path in tmp_path.iterdir() if path.name.endswith(b"a".hex()))
        with mark.open("r+b") as file, pytest.raises(OSError, match="temporarily"):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mark.unlink()
        mark.touch()
        seen = other.looked(["a", "b"])
        mark.unlink()
    finally:
        other.close()
    assert seen.file is not None
    assert seen.file.lock_is_local


def test_other_urls_are_none() -> None:
    with pytest.raises(ValueError, match="neither"):
        init.trial("udp://a:1", TOKEN, node="a", hosts=True, seconds=1.0)
