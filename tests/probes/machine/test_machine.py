"""The door to the machine: nothing raises, a recorded tree stays inside itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ncclcheck.probes.facts import Limits, Unread
from ncclcheck.probes.machine.access import Machine


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/name").write_bytes(b"h\xffst\n")
    (root / "etc/number").write_text("12\n")
    return root


def _kind(fact: object) -> str:
    assert isinstance(fact, Unread)
    return fact.kind


def test_reading(tree: Path) -> None:
    machine = Machine(str(tree), recorded=True)
    assert machine.read("/etc/name") == "h\\xffst\n"
    assert machine.number("/etc/number") == 12
    assert machine.names("/etc") == ["name", "number"]
    assert _kind(machine.number("/etc/name")) == "broken"
    assert _kind(machine.read("/etc/nothing")) == "absent"
    assert _kind(machine.read("/etc")) == "broken"
    assert machine.exists("/etc/name")
    assert not machine.exists("/etc/nothing")


def test_a_pipe_does_not_block(tree: Path) -> None:
    os.mkfifo(tree / "etc/pipe")
    assert _kind(Machine(str(tree), recorded=True).read("/etc/pipe")) == "broken"


def test_a_recorded_tree_cannot_lead_out(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tree / "etc/out").symlink_to(tmp_path / "secret")
    machine = Machine(str(tree), recorded=True)
    assert _kind(machine.read("/etc/out")) == "recorded"
    assert _kind(machine.read("/../secret")) == "recorded"


def test_asking_a_recorded_machine(tree: Path) -> None:
    machine = Machine(str(tree), recorded=True)

    def asked() -> Limits | Unread:
        return machine.ask("limits", Limits, lambda: Limits(soft=1, hard=1))

    assert _kind(asked()) == "recorded"
    (tree / ".ncclcheck").mkdir()
    (tree / ".ncclcheck/limits.json").write_text('{"type": "limits", "soft": 5, "hard": -1}')
    assert asked() == Limits(soft=5, hard=-1)
    (tree / ".ncclcheck/limits.json").write_text("{")
    assert _kind(asked()) == "broken"
    assert _kind(machine.run(["true"], 1)) == "recorded"


def test_asking_never_raises() -> None:
    def denied() -> int:
        raise PermissionError("no")

    def broken() -> int:
        raise ValueError("bad")

    assert _kind(Machine().ask("x", int, denied)) == "denied"
    assert _kind(Machine().ask("x", int, broken)) == "broken"
