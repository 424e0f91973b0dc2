"""A stranger answers on the port in node rank 0's place: nothing of his runs, and with a secret nobody follows."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from ncclcheck.base import wire
from ncclcheck.launch.joining import join_protocol
from ncclcheck.launch.joining.trust import sealed
from ncclcheck.probes.job.context import DataPlan
from tests.conftest import ROOT, environment

PREFLIGHT = ("preflight", "--level", "quick")


class FakeLead:
    """Answers as node rank 0 would that knows no secret, and gives orders. said: what the node said to it."""

    def __init__(self, *orders: wire.FromLauncher, key: bytes = b"", place: str = "") -> None:
        self.said: list[bytes] = []
        self._orders, self._key, self._place = orders, key, place
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self._server.settimeout(60)
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection, suppress(OSError, ValueError):
                    self._lead(connection)

    def _lead(self, connection: socket.socket) -> None:
        connection.settimeout(20)
        lines = connection.makefile("rb")
        greeting = join_protocol.Greeting(
            protocol=join_protocol.PROTOCOL,
            version="1",
            nonce=sealed.nonce(),
            run=join_protocol.run_digest(""),
            secret="secret" if self._key else "none",
            place=self._place,
        )
        connection.sendall(join_protocol.encode(greeting))
        join = join_protocol.from_node(lines.readline())
        assert isinstance(join, join_protocol.Join)
        hand = join_protocol.Handshake(sealed.run_key(self._key, ""), greeting, join)
        welcome = join_protocol.Welcome(name="h2", proof="")
        connection.sendall(join_protocol.encode(msgspec.structs.replace(welcome, proof=hand.of_meeting(welcome))))
        theirs, ours = hand.seals()
        for order in self._orders:
            connection.sendall(ours.close(wire.order(1, order)))
        while line := lines.readline():
            self.said.append(theirs.open(line))
            if b"job_ended" in line:
                break
        done = join_protocol.JoinOutcome(exit_code=0, decision="\x1b]0;owned\x07READY: all nodes fine")
        connection.sendall(ours.close(join_protocol.encode(done)))
        lines.read()

    def close(self) -> None:
        self._server.close()


def _join(
    port: int, rank: int, folder: Path, command: Sequence[str], **env: str
) -> subprocess.CompletedProcess[str]:
    place = ("--nodes", "2", "--node-rank", str(rank), "--rdzv-endpoint", f"127.0.0.1:{port}", "--wait", "8")
    return subprocess.run(
        [sys.executable, "-m", "ncclcheck", *command, *place],
        cwd=folder,
        env=environment(PYTHONPATH=str(ROOT), **env),
        capture_output=True,
        check=False,
        text=True,
        timeout=100,
    )


def _orders(folder: Path) -> tuple[wire.FromLauncher, ...]:
    """What ran code of a stranger's choice before: a factory, a module of the node's own disk, a library."""
    touch = {"command": f"touch {folder}/PWNED"}
    plans = [DataPlan(factory="os:system", kwargs=touch), DataPlan(factory="mine.py:make", directory=str(folder))]
    job = wire.StartJob(
        run_id="ncclcheck-1-1", endpoint="127.0.0.1:9", is_host=False, local_addr="127.0.0.1", nodes=2,
        ranks_per_node=1, backend="gloo", plan=msgspec.Raw(b"{}"), env={"LD_PRELOAD": f"{folder}/evil.so"},
        seconds=9,
    )  # fmt: skip
    return (*(wire.Examine(plan=msgspec.Raw(msgspec.json.encode(plan)), seconds=9) for plan in plans), job)


@pytest.mark.parametrize("order", range(3))
def test_a_stranger_in_node_0s_place_runs_nothing(tmp_path: Path, order: int) -> None:
    (tmp_path / "mine.py").write_text(f"open('{tmp_path}/PWNED', 'w')\n")
    lead = FakeLead(_orders(tmp_path)[order])
    done = _join(lead.port, 1, tmp_path, PREFLIGHT)
    lead.close()
    assert not (tmp_path / "PWNED").exists()
    assert any(b"this node was asked" in line for line in lead.said)
    assert "this join has no secret" in done.stderr


def test_with_a_secret_a_stranger_is_not_followed(tmp_path: Path) -> None:
    lead = FakeLead(*_orders(tmp_path), key=b"what a stranger would guess")
    done = _join(lead.port, 1, tmp_path, PREFLIGHT, NCCLCHECK_SECRET="the true secret of this run")
    lead.close()
    assert (done.returncode, lead.said) == (1, [])  # 1: an endpoint on loopback is a failure of its own
    assert "it does not know this run's secret" in done.stderr
    assert "the true secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_the_users_own_code_needs_a_secret(tmp_path: Path, rank: int) -> None:
    (tmp_path / "mine.py").write_text("make = list\n")
    done = _join(1, rank, tmp_path, ("data", "mine.py:make"))
    assert done.returncode == 2
    assert "NCCLCHECK_SECRET" in done.stderr
