"""Rules about versions: torch is there, and what must agree between nodes does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ncclcheck.probes.facts import Hiding, Job, Stack, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.software import stack
from ncclcheck.reports.subjects.nodes.agree.agreement import group
from tests.helpers.clusters import ABSENT, DENIED, node, states_of, verdict

FACTS = {"VER002": "torch", "VER003": "python", "VER004": "ncclcheck", "VER005": "driver"}


def _stack(code: str, version: str | Unread) -> Stack:
    facts: dict[str, Any] = {FACTS[code]: version}
    return Stack(**facts)


@pytest.mark.parametrize(
    ("command", "torch", "state"),
    [("bench", ABSENT, "fail"), ("env", ABSENT, "note"), ("bench", "2.9.0", "ok"), ("bench", DENIED, "unknown")],
)
def test_torch_is_installed(command: str, torch: str, state: str) -> None:
    assert verdict("VER001", node("a", stack=Stack(torch=torch)), command=command).state.value == state


@pytest.mark.parametrize(
    ("code", "versions", "states"),
    [
        ("VER002", ["2.9.0", "2.9.0"], [("ok", None)]),
        ("VER002", ["2.9.0", "2.9.0", "2.8.0"], [("fail", "c")]),
        ("VER002", ["2.9.0+cu128", "2.9.0+cpu"], [("fail", None)]),
        ("VER003", ["3.11.7", "3.11.7", "3.12.1"], [("warn", "c")]),
        ("VER003", ["3.11.7", "3.11.9"], [("note", None)]),
        ("VER004", ["0.1.0", "0.1.0", "0.2.0"], [("warn", "c")]),
        ("VER005", ["570.124.06", "570.124.06", "550.54"], [("warn", "c")]),
    ],
)
def test_versions_agree(code: str, versions: list[str], states: list[tuple[str, str | None]]) -> None:
    nodes = [node(name, stack=_stack(code, v)) for name, v in zip("abc", versions, strict=False)]
    assert states_of(verdict(code, *nodes)) == states


def test_a_draw_names_both_sides() -> None:
    nodes = [node(name, stack=Stack(torch=v)) for name, v in zip("abcd", ["1", "2", "1", "2"], strict=True)]
    assert "1 on a, c; 2 on b, d" in verdict("VER002", *nodes).findings[0].what


def _from(folder: str, version: str, *hiding: Hiding) -> Stack:
    return Stack(torch=version, torch_path=f"{folder}/torch", hiding=[*hiding])


@pytest.mark.parametrize(
    ("torch", "by", "words"),
    [
        ("1.4.0", "PYTHONPATH", "PYTHONPATH puts another torch first there: 1.4.0 in /opt/old/torch"),
        ("1.4.0", "the working directory", "1.4.0"),
        ("2.9.0", "PYTHONPATH", ""),
    ],
)
def test_a_torch_that_pythonpath_puts_first(torch: str, by: Any, words: str) -> None:
    first = Hiding(module="torch", path="/opt/old/torch", by=by)
    usual = _from("/usr/lib/python3/site-packages", "2.9.0")
    nodes = [node("a", stack=usual), node("b", stack=_from("/opt/old", torch, first)), node("c", stack=usual)]
    judgement = verdict("VER002", *nodes)
    assert judgement.state.value == ("fail" if words else "ok")
    bad = [finding for finding in judgement.findings if finding.state.value == "fail"]
    assert [finding.where.node for finding in bad] == (["b"] if words else [])
    assert all(words in finding.what for finding in bad)
    assert any(
        "unset PYTHONPATH" in line for finding in bad for fix in finding.remedies for line in fix.commands
    ) == (by == "PYTHONPATH" and bool(words))


@pytest.mark.parametrize("code", sorted(FACTS))
def test_what_was_not_read_is_unknown(code: str) -> None:
    nodes = [node(name, stack=_stack(code, v)) for name, v in (("a", "1"), ("b", "1"), ("c", DENIED))]
    assert ("unknown", "c") in states_of(verdict(code, *nodes))


@pytest.mark.parametrize("code", sorted(FACTS))
def test_one_node_alone_or_simulated_ones_agree_with_nobody(code: str) -> None:
    machine = node("a", stack=_stack(code, "1"))
    assert verdict(code, machine).state.value == "skipped"
    assert verdict(code, machine, machine, job=Job(simulated=True)).state.value == "skipped"


def test_the_majority() -> None:
    assert group({"a": 1, "b": 2, "c": 1}).majority == 1
    assert group({"a": 1, "b": 2}).majority is None
    assert group({"a": 1, "b": 2, "c": 3, "d": 3}).odd == [("a", 1), ("b", 2)]
    assert group({"a": 1}).agree


@pytest.mark.parametrize(
    ("name", "state"),
    [("PET_RDZV_BACKEND", "fail"), ("PET_RDZV_ID", "fail"), ("PET_RDZV_ENDPOINT", "warn")],
)
def test_where_torchrun_meets_by_other_means_the_nodes_never_meet(name: str, state: str) -> None:
    stack = Stack(executable="/usr/bin/python3", python="3.11.7")
    nodes = [node("a", stack=stack), node("b", stack=stack, env={name: "etcd-v2"})]
    assert verdict("VER013", *nodes).state.value == state


@pytest.mark.parametrize(
    ("here", "there", "state"),
    [
        ("/mpi/lib:/mpi/lib", "/mpi/lib:/mpi/lib:/mpi/lib:", "ok"),
        ("/mpi/lib:/cuda/lib", "/mpi/lib:/mpi/lib:/cuda/lib", "ok"),
        ("/mpi/lib:/cuda/lib", "/cuda/lib:/mpi/lib", "warn"),
        ("/mpi/lib", "/cuda/lib:/mpi/lib", "warn"),
    ],
)
def test_a_folder_that_a_launcher_puts_before_again_changes_nothing(here: str, there: str, state: str) -> None:
    """Open MPI 5 over ssh: its own folder three times on the first host, four times and an empty one elsewhere."""
    stack = Stack(executable="/usr/bin/python3", python="3.11.7")
    nodes = [node(name, stack=stack, env={"LD_LIBRARY_PATH": path}) for name, path in (("a", here), ("b", there))]
    assert verdict("VER013", *nodes).state.value == state


@pytest.mark.parametrize(
    ("name", "value", "absent", "state"),
    [
        ("LD_PRELOAD", "/opt/x.so", [], "warn"),
        ("LD_PRELOAD", "/opt/x.so", ["/opt/x.so"], "note"),
        ("LD_PRELOAD", "/opt/x.so:/opt/y.so", ["/opt/x.so"], "warn"),
        ("LD_LIBRARY_PATH", "/opt/lib", [], "warn"),
        ("LD_LIBRARY_PATH", "/opt/lib", ["/opt/lib"], "ok"),
    ],
)
def test_a_library_that_is_not_there_is_passed_over(name: str, value: str, absent: list[str], state: str) -> None:
    there = Stack(python="3.11.7", torch="2.9.0", executable="/v/bin/python", not_there=[])
    nodes = [node("a", stack=there), node("b", stack=there)]
    odd = node("c", env={name: value}, stack=msgspec.structs.replace(there, not_there=absent))
    assert verdict("VER013", *nodes, odd).state.value == state


def test_what_the_loader_does_not_find_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_PRELOAD", f"{tmp_path}/gone.so:libc.so.6")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:/not/there::$ORIGIN/lib")
    assert stack.probe(Machine()).not_there == ["/not/there", f"{tmp_path}/gone.so"]
