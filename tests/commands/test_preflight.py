"""`preflight` through the real command: the stages in order, the gate, the lists, a cached result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from ncclcheck.commands.steps import gate
from ncclcheck.commands.steps.cache import Cache
from ncclcheck.probes.facts import Cluster, Measurements, Verified
from ncclcheck.reports.judgement.jsondoc import Recommendation
from ncclcheck.reports.subjects.job import verified
from ncclcheck.run.plan.preflight_plan import PreflightOptions
from tests.conftest import Command

_QUICK = ("preflight", "--simulate", "--level", "quick", "--deadline", "150")


@pytest.mark.timeout(300)
def test_it_runs_all_stages_and_becomes_the_command(ncclcheck: Command, tmp_path: Path) -> None:
    lists = ("--healthy-file", "fit.txt", "--exclude-file", "bad.txt", "--cache", "60")
    script = "cat fit.txt; echo became; exit 7"
    ran = ncclcheck(
        *_QUICK, *lists, "--save", "saved.json", "-q", "--", "sh", "-c", script, seconds=200,
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )  # fmt: skip
    assert ran.code == 7, ran.err
    assert ran.out.endswith("sim0\nsim1\nbecame\n")
    assert (tmp_path / "bad.txt").read_text() == ""
    judged = ncclcheck("report", "saved.json", "-o", "json").document
    assert [stage.name for stage in judged.stages] == ["facts", "bench", "smoke"]
    assert judged.command == "preflight"
    assert judged.measurements.smoke is not None
    assert len(judged.measurements.memory.ranks) == 2, "of two jobs the last one counts"

    again = ncclcheck(*_QUICK, *lists, "-q", "--", "sh", "-c", script, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert again.code == 7
    assert "used again (--cache)" in again.err

    watched = ncclcheck(
        *_QUICK, *lists, "-q", "--watch", "--", "sh", "-c", script, XDG_CACHE_HOME=str(tmp_path / "cache")
    )
    assert watched.code == 7
    assert "COMMAND" in watched.err
    assert "BOX005" in watched.err
    [meta] = tmp_path.glob("ncclcheck-box-*/*/meta.json")
    assert "clocks" in json.loads(meta.read_text())


MINE = """
import pathlib, torch

def data():
    rows = int(pathlib.Path("rows.txt").read_text())
    return torch.utils.data.TensorDataset(torch.randn(rows, 4), torch.ones(rows, 2))

def model():
    return torch.nn.Linear(4, 2)
"""


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_users_data_is_examined_and_trains_the_users_model(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "rows.txt").write_text("256")
    ran = ncclcheck(*_QUICK, "--data", "mine:data", "--model", "mine:model", "-o", "json", seconds=200)
    assert ran.code == 0, ran.err
    assert [stage.name for stage in ran.document.stages] == ["facts", "bench", "data", "smoke"]
    assert sorted(report.node for report in ran.document.measurements.data if report.speed) == ["sim0", "sim1"]
    smoke = ran.document.measurements.smoke
    assert smoke is not None
    assert smoke.setup is not None
    assert smoke.setup.data == "mine:data"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--simulate to see what it does"),
        (("--simulate", "--", "no-such-program"), "'no-such-program' is not found"),
        (("--simulate", "--apply"), "it goes with a command"),
        (("--simulate", "--need", "0"), "--need: 0 is out of range"),
        (("--simulate", "--cache", "abc"), "--cache: 'abc' is not a number"),
        (("--simulate", "--healthy-file", "/nowhere/x"), "--healthy-file: '/nowhere/x' cannot be written"),
        (("--simulate", "--data", "no colon"), "--data: 'no colon' is not understood"),
        (("--simulate", "--model", "mine:net"), "add --data MODULE:FACTORY"),
        (("--simulate", "--data", "no_such_module:make"), "there is no module no_such_module"),
        (("--simulate", "--data", "none.py:make"), "there is no file none.py"),
    ],
)
def test_wrong_usage_is_told_before_anything_runs(
    ncclcheck: Command, arguments: tuple[str, ...], says: str
) -> None:
    ran = ncclcheck("preflight", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_a_gate_that_is_not_ready_starts_nothing(ncclcheck: Command) -> None:
    """The ground of the jobs is gone: they are skipped with the reason, and the command is not started."""
    ran = ncclcheck(
        *_QUICK, "-o", "short", "--", "echo", "started", NCCL_SOCKET_IFNAME="nosuch0", GLOO_SOCKET_IFNAME="nosuch0"
    )
    assert ran.code == 1, ran.err
    assert "started" not in ran.out


def _advice(variable: str, action: Literal["set", "unset", "try"]) -> Recommendation:
    return Recommendation(
        variable=variable,
        action=action,
        value="x",
        why="",
        evidence=[],
        source="",
        basis="rule",
        gain="",
        risk="",
        valid_for="",
    )


@pytest.mark.parametrize(("survived", "left"), [(True, ["A", "B", "C"]), (False, ["B", "C"])])
def test_what_did_not_survive_is_not_handed_out(survived: bool, left: list[str]) -> None:
    handed = Verified(variables=["A"], survived=survived)
    cluster = Cluster(command="preflight", nodes=[], measurements=Measurements(verified=handed))
    recommendations = verified.kept(cluster, [_advice("A", "set"), _advice("B", "try"), _advice("C", "unset")])
    assert [recommendation.variable for recommendation in recommendations] == left


def test_a_follower_of_a_join_becomes_the_command_only_if_all_is_well(tmp_path: Path) -> None:
    wanted = PreflightOptions(command=("true",))
    assert gate.after(wanted, Cache(None, 0.0), False, 3, None) == 3
    assert not list(tmp_path.iterdir())
