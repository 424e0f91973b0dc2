"""BEN006, VER015, VER016 and `report`: saved results held against new ones, through the real command."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ncclcheck.probes.facts import Baseline, Cluster, Collective, Gpus, Host, Policy, Rdma, replace
from ncclcheck.reports import compare
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.conftest import Command
from tests.helpers.clusters import DENIED, node, verdict
from tests.helpers.results import GONE, MIB, bench, port, row, slower, write, xid


def against(before: Cluster, after: Cluster, code: str, **policy: Any) -> Any:
    cluster = replace(after, baseline=Baseline(name="b.json", cluster=before), policy=Policy(**policy))
    return judge(cluster, [rule for rule in all_rules() if rule.code == code])[0]


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (row(1000), row(1010), "ok"),
        (row(1000), row(1200), "warn"),
        (row(1000), row(1500), "fail"),
        (row(1000, size=1024), row(1500, size=1024), "warn"),
        (row(1000, 0.4), row(1500, 0.4), "ok"),
        (row(1000), row(1000, size=MIB), "skipped"),
    ],
)
def test_bandwidth_against_a_baseline(before: Collective, after: Collective, state: str) -> None:
    assert against(bench(before), bench(after), "BEN006").state.value == state


def test_thresholds_and_simulation() -> None:
    before, after = bench(row(1000)), bench(row(1500))
    assert against(before, after, "BEN006", thresholds={"BEN006.floor_percent": 60}).state.value == "ok"
    assert against(before, after, "BEN006", thresholds={"BEN006.fail_percent": 50}).state.value == "warn"
    sides = (before, after, bench(row(2500)))
    alike = [replace(side, job=replace(side.job, simulated=True)) for side in sides]
    assert against(alike[0], alike[1], "BEN006").state.value == "ok"
    assert against(alike[0], alike[2], "BEN006").state.value == "warn"


@pytest.mark.parametrize(
    ("code", "before", "after", "state"),
    [
        ("VER015", {"rdma": GONE[0]}, {"rdma": GONE[1]}, "fail"),
        ("VER015", {"rdma": port()}, {"rdma": port(rate_gbit=100.0)}, "warn"),
        ("VER015", {"rdma": GONE[0]}, {"rdma": Rdma(devices=DENIED)}, "ok"),
        ("VER015", {"rdma": port(1)}, {"rdma": port(2)}, "ok"),
        ("VER015", {"host": Host(kernel="1")}, {"host": Host(kernel="2")}, "note"),
        ("VER016", {"rdma": GONE[0]}, {"rdma": GONE[1]}, "ok"),
        ("VER016", {"rdma": port(1)}, {"rdma": port(2)}, "warn"),
        ("VER016", {"gpus": Gpus(xids=[])}, {"gpus": xid(79, 1)}, "fail"),
        ("VER016", {"gpus": Gpus(xids=[])}, {"gpus": xid(31, 1)}, "note"),
    ],
)
def test_machines_against_a_baseline(code: str, before: dict[str, Any], after: dict[str, Any], state: str) -> None:
    sides = [Cluster(nodes=[node("a", **facts)]) for facts in (before, after)]
    assert against(sides[0], sides[1], code).state.value == state


@pytest.mark.parametrize("code", ["VER015", "VER016"])
def test_without_a_baseline_nothing_is_judged(code: str) -> None:
    judged = verdict(code, node("a"))
    assert (judged.state.value, judged.reason) == ("skipped", "no --baseline was given")


def test_report_renders_what_was_saved(ncclcheck: Command, tmp_path: Path) -> None:
    write(tmp_path, "a.json", "one-flipped-bit")
    ran, again = ncclcheck("report", "a.json"), ncclcheck("bench", "--from", "a.json")
    assert (ran.out, ran.code) == (again.out, again.code)
    assert "BEN001" in ran.out
    assert ran.code == 1


def test_report_compares_two_files(ncclcheck: Command, tmp_path: Path) -> None:
    write(tmp_path, "a.json", "healthy")
    slower(tmp_path, "b.json", 2.0)
    same = ncclcheck("report", "--compare", "a.json", "a.json")
    assert same.code == 0, same.out
    assert same.out.splitlines()[-1].startswith("Nothing")
    worse = ncclcheck("report", "--compare", "a.json", "b.json")
    assert worse.code == 1
    assert "-54 to -45 %" in worse.out
    assert worse.out.splitlines()[-1].startswith("Worse: ")
    assert max(map(len, worse.out.splitlines())) <= 80
    assert ncclcheck("report", "--compare", "b.json", "a.json").code == 0
    assert ncclcheck("report", "--compare", "a.json", "a.json", "-q").out == ""
    lines = ncclcheck("report", "--compare", "a.json", "b.json", "-o", "short").out.splitlines()
    assert {line.split()[0] for line in lines} == {"worse", "Worse:"}


def test_the_comparison_as_json_is_one_document(ncclcheck: Command, tmp_path: Path) -> None:
    write(tmp_path, "a.json", "healthy")
    slower(tmp_path, "b.json", 2.0)
    ran = ncclcheck("report", "--compare", "a.json", "b.json", "-o", "json")
    assert ran.out.count("\n") == 1
    result = msgspec.json.decode(ran.out, type=compare.ComparisonResult)
    assert (result.state, result.exit_code, ran.code) == ("worse", 1, 1)
    assert (result.before.file, result.after.file) == ("a.json", "b.json")
    assert {row.verdict for row in result.rows} == {"worse"}


def test_env_and_bench_against_a_baseline(ncclcheck: Command, tmp_path: Path) -> None:
    """`--from` and `--baseline` together measure nothing; what is saved holds no baseline."""
    write(tmp_path, "a.json", "healthy")
    slower(tmp_path, "b.json", 2.0)
    ran = ncclcheck("bench", "--from", "b.json", "--baseline", "a.json", "-o", "json")
    states = {verdict.code: verdict.state.value for verdict in ran.document.verdicts}
    assert [states[code] for code in ("BEN006", "VER015", "VER016")] == ["fail", "ok", "ok"]
    assert "baseline" not in json.loads(ran.out)
    assert ncclcheck("env", "--save", "now.json").code == 0
    now = ncclcheck("env", "--baseline", "now.json", "-o", "json", "--only", "VER")
    assert now.code == 0, now.out
    assert next(v for v in now.document.verdicts if v.code == "VER015").state.value in ("ok", "note")


def test_what_is_as_before_is_said(ncclcheck: Command, tmp_path: Path) -> None:
    write(tmp_path, "a.json", "healthy")
    for form in ("text", "short"):
        text = " ".join(ncclcheck("bench", "--from", "a.json", "--baseline", "a.json", "-o", form).out.split())
        assert "rows are the same as in a.json within noise (10 %), none is worse; no part of the machines" in text
    assert "Baseline" not in ncclcheck("bench", "--from", "a.json").out
    saved = json.loads((tmp_path / "a.json").read_text())
    saved["job"]["ranks"] = 2
    (tmp_path / "b.json").write_text(json.dumps(saved))
    text = " ".join(ncclcheck("bench", "--from", "a.json", "--baseline", "b.json").out.split())
    assert "no bandwidth was compared: ranks: 2 -> " in text


def test_injected_faults_are_no_baseline(ncclcheck: Command, tmp_path: Path) -> None:
    write(tmp_path, "a.json", "a-course-sees-injected-faults")
    ran = ncclcheck("bench", "--baseline", "a.json")
    assert (ran.code, ran.out) == (2, "")
    assert "injected faults" in ran.err
    assert "without --inject" in ran.err
    assert ncclcheck("report", "--compare", "a.json", "a.json").code == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("hello", "not a document"),
        ('{"schema": 9}', "newer"),
        ('{"schema": 1}', "command"),
    ],
)
@pytest.mark.parametrize("command", [("bench", "--baseline"), ("report", "--compare", "a.json"), ("report",)])
def test_files_that_are_no_results(
    ncclcheck: Command, tmp_path: Path, command: tuple[str, ...], content: str, says: str
) -> None:
    write(tmp_path, "a.json", "healthy")
    (tmp_path / "bad.json").write_text(content)
    ran = ncclcheck(*command, "bad.json")
    assert (ran.code, ran.out) == (2, "")
    assert "bad.json" in ran.err
    assert says in ran.err


def test_a_baseline_of_another_command_holds_no_bandwidth(ncclcheck: Command, tmp_path: Path) -> None:
    write(tmp_path, "env.json", "no-spare-row-left")
    ran = ncclcheck("bench", "--baseline", "env.json")
    assert (ran.code, ran.out) == (2, "")
    assert "no bandwidth" in ran.err


def test_files_that_are_no_files(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "huge.json").touch()
    os.truncate(tmp_path / "huge.json", 2**31)
    for path, says in (("/dev/zero", "device"), ("huge.json", "larger"), (".", "directory")):
        ran = ncclcheck("env", "--baseline", path)
        assert (ran.code, ran.out) == (2, "")
        assert says in ran.err
