"""A year of results: what is planted is found, and nothing else; what is no such folder is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.fleet import BEGIN, Simulated
from ncclcheck.base.errors import UsageError
from ncclcheck.cli import cli
from ncclcheck.fleet import drift, page, questions, rows, store, text
from ncclcheck.fleet.answers import Fleet
from ncclcheck.reports.judgement import jsondoc
from tests.helpers import dgx, stories

duckdb = pytest.importorskip("duckdb")
NODES, DAYS = 64, 60


def _day(number: int) -> str:
    return (BEGIN + timedelta(days=number)).date().isoformat()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """n0005 loses 8 % at once, n0006 15 % over four weeks, n0007 fails every fifth day; all are upgraded."""
    made = tmp_path_factory.mktemp("fleet")
    fleet = Simulated(NODES, DAYS, 4, planted=False)
    fleet.slower = {(5, "memory_gb_s"): (40, -0.08, 0), (6, "node_busbw_gb_s"): (20, -0.15, 28)}
    fleet.upgraded = 25
    for day in range(DAYS):
        result = fleet.result(day)
        if day % 5 == 0:
            head = result.nodes[7][:3]
            result.verdicts.append(rows.VerdictRow(*head, "GPU007", "fail", "GPU 3 is lost\x1b[31m\nforged line"))
        if day in (30, 31):  # a leaf
            for node in result.nodes[32:62]:
                result.verdicts.append(rows.VerdictRow(*node[:3], "NET009", "fail", "drops"))
        store.write(str(made), result)
    return made


@pytest.fixture(scope="module")
def fleet(folder: Path) -> Iterator[Fleet]:
    with store.opened(str(folder)) as tables:
        yield questions.asked(tables, None)


def test_all_results_are_there(fleet: Fleet) -> None:
    assert (fleet.nodes, fleet.results, fleet.first, fleet.last) == (NODES, DAYS, _day(0), _day(DAYS - 1))


def test_who_fails_again_and_again(fleet: Fleet) -> None:
    assert [(repeat.node, repeat.code, repeat.results) for repeat in fleet.repeats] == [("n0007", "GPU007", DAYS)]
    assert fleet.repeats[0].fails >= 12


def test_who_became_slower_and_when(fleet: Fleet) -> None:
    slower = {(node.node, node.metric): node for node in fleet.slower}
    assert set(slower) == {("n0005", "memory_gb_s"), ("n0006", "node_busbw_gb_s")}
    at_once, slowly = slower["n0005", "memory_gb_s"], slower["n0006", "node_busbw_gb_s"]
    assert abs((date.fromisoformat(at_once.since) - date.fromisoformat(_day(40))).days) <= 2
    assert abs((date.fromisoformat(slowly.since) - date.fromisoformat(_day(20))).days) <= 7
    assert (at_once.slowly, slowly.slowly) == (False, True)
    assert -0.1 < at_once.change < -0.06
    assert not at_once.recovered


def test_what_fails_together(fleet: Fleet) -> None:
    assert [(together.code, together.attribute, together.value) for together in fleet.together] == [
        ("NET009", "leaf", "leaf-1")
    ]
    assert fleet.together[0].failing >= 30


def test_what_the_upgrade_changed(fleet: Fleet) -> None:
    """3 % more memory bandwidth and 4 % more latency were planted; the third figure did not change."""
    upgrades = {upgrade.subject: upgrade for upgrade in fleet.upgrades}
    assert set(upgrades) == {"memory_gb_s", "pair_latency_us"}
    assert 0.02 < upgrades["memory_gb_s"].low < upgrades["memory_gb_s"].high < 0.04
    assert -0.055 < upgrades["pair_latency_us"].change < -0.025
    assert upgrades["memory_gb_s"].nodes == NODES


def test_the_newest_days_alone(folder: Path) -> None:
    with store.opened(str(folder)) as tables:
        fleet = questions.asked(tables, 10)
    assert (fleet.results, fleet.slower, fleet.upgrades) == (11, [], [])


def test_a_fleet_without_faults_names_nobody(tmp_path: Path) -> None:
    fleet = Simulated(40, 60, 11, wave=0.5, planted=False)
    for day in range(60):
        store.write(str(tmp_path), fleet.result(day))
    with store.opened(str(tmp_path)) as tables:
        sound = questions.asked(tables, None)
    assert (sound.repeats, sound.slower, sound.together, sound.upgrades) == ([], [], [], [])


def test_text_and_page_hold_what_was_found_and_nothing_forged(fleet: Fleet) -> None:
    plain, html = text.text(fleet), page.page(fleet)
    for words in ("n0005", "n0006", "n0007", "leaf leaf-1", "driver 570.86 -> 580.65"):
        assert words in plain
        assert words in html.replace("&gt;", ">")
    assert "\x1b" not in plain + html
    assert "\nforged line" not in plain
    assert html.count("<svg") == 2
    assert len(plain.splitlines()) < 30


def test_the_command(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["fleet", str(folder), "-o", "json", "--html", str(tmp_path / "a.html")])
    assert json.loads(done.stdout)["nodes"] == NODES
    assert "<svg" in (tmp_path / "a.html").read_text()


def test_a_report_is_kept_once(tmp_path: Path) -> None:
    rows_of = rows.of(stories.document("healthy"))
    store.write(str(tmp_path), rows_of)
    store.write(str(tmp_path), rows_of)
    assert len([*tmp_path.iterdir()]) == 3
    with store.opened(str(tmp_path)) as tables:
        assert tables.execute("SELECT count(*) FROM nodes").fetchone() == (len(rows_of.nodes),)


def _count(folder: Path) -> int:
    with store.opened(str(folder)) as tables:
        return int(tables.execute("SELECT count(*) FROM nodes").fetchone()[0])


def test_many_files_are_kept_as_one_that_is_used_while_they_are_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that comes later is read beside it; one that changes or goes away makes it void."""
    monkeypatch.setattr(store, "_MOST_APART", 3)
    fleet = Simulated(4, 6, 1, planted=False)
    for day in range(5):
        store.write(str(tmp_path), fleet.result(day))
    assert _count(tmp_path) == 20
    assert {file.name for file in tmp_path.glob("all-*.parquet")} == {
        f"all-{name}.parquet" for name in store.TABLES
    }
    store.write(str(tmp_path), fleet.result(5))
    assert _count(tmp_path) == 24
    (tmp_path / f"nodes-{2:016x}.parquet").unlink()
    assert _count(tmp_path) == 20
    again = fleet.result(3)
    store.write(str(tmp_path), again._replace(nodes=again.nodes[:1]))
    assert _count(tmp_path) == 17


def test_who_asks_first_finds_the_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever keeps results makes it now and then, and never a reason not to keep one."""
    monkeypatch.setattr(store, "_MOST_APART", 3)
    fleet = Simulated(4, 7, 1, planted=False)
    for day in range(7):
        store.write(str(tmp_path), fleet.result(day))
        there = len({*tmp_path.glob("all-*.parquet")})
        assert there == (0 if day < 2 else len(store.TABLES))
    counts = duckdb.sql(f"SELECT count(DISTINCT result) FROM '{tmp_path}/all-nodes.parquet'").fetchall()
    assert counts == [(6,)]
    assert _count(tmp_path) == 28
    (tmp_path / f"verdicts-{99:016x}.parquet").write_bytes(b"none")
    store.write(str(tmp_path), Simulated(4, 9, 1, planted=False).result(8)._replace(key=f"{8:016x}"))
    store.write(str(tmp_path), Simulated(4, 9, 1, planted=False).result(7)._replace(key=f"{7:016x}"))
    assert len([*tmp_path.glob("nodes-*.parquet")]) == 9


@pytest.mark.parametrize("data", [b"", b"PAR1 no file of anything PAR1"])
def test_one_file_for_all_that_is_none_is_not_used(tmp_path: Path, data: bytes) -> None:
    store.write(str(tmp_path), Simulated(4, 1, 1, planted=False).result(0))
    (tmp_path / "all-nodes.parquet").write_bytes(data)
    assert _count(tmp_path) == 4


def test_rows_of_a_document() -> None:
    document = dgx.document(3)
    made = rows.of(document)
    assert [node.node for node in made.nodes] == [entry.name for entry in document.nodes]
    assert {node.state for node in made.nodes} <= {"fail", "warn", "unknown", "ok"}
    assert made.nodes[1].kernel
    assert all(row.started == document.started for table in made[1:] for row in table)
    assert {row.code for row in made.verdicts} <= {verdict.code for verdict in document.verdicts}


def _file(folder: Path, name: str, query: str) -> None:
    duckdb.sql(query).write_parquet(str(folder / f"{name}-{0:016x}.parquet"))


def _asked(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, [*words])
    if isinstance(done.exception, UsageError):  # `main` says it, and ends with 2
        return 2, str(done.exception)
    return done.exit_code, done.output


def test_a_folder_that_is_none_or_holds_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    saved = tmp_path / "a.json"
    saved.write_bytes(jsondoc.encode(stories.document("healthy")))
    for words, problem in (
        (["fleet", str(tmp_path / "none")], "cannot be read: No such file or directory"),
        (["fleet", str(tmp_path / "file")], "cannot be read: Not a directory"),
        (
            ["fleet", str(tmp_path / "empty")],
            "has no nodes-*.parquet; make it with: ncclcheck report FILE --parquet",
        ),
        (["report", str(saved), "--parquet", str(tmp_path / "file")], "--parquet:"),
    ):
        code, output = _asked(*words)
        assert (code, problem in output, "Traceback" in output) == (2, True, False), output


def test_parquet_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """Under names of others it is no file of ours; under ours its columns are looked at."""
    duckdb.sql("SELECT 1 AS price").write_parquet(str(tmp_path / "sales.parquet"))
    assert _asked("fleet", str(tmp_path))[0] == 2
    for name in store.TABLES:
        _file(tmp_path, name, "SELECT 1 AS price")
    code, output = _asked("fleet", str(tmp_path))
    assert (code, "is none of ncclcheck (columns started, result, serial" in " ".join(output.split())) == (
        2,
        True,
    ), output


def test_without_the_extra_the_line_to_type_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ImportError

    monkeypatch.setattr(store, "import_module", missing)
    (tmp_path / "a.json").write_bytes(jsondoc.encode(stories.document("healthy")))
    for words in (
        ["fleet", str(tmp_path)],
        ["report", str(tmp_path / "a.json"), "--parquet", str(tmp_path / "k")],
    ):
        code, output = _asked(*words)
        assert (code, "pip install 'ncclcheck[fleet]'" in output) == (2, True), output
    assert not (tmp_path / "k").exists()


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    store.write(str(tmp_path), rows.of(stories.document("healthy")))
    (tmp_path / f"nodes-{0:016x}.parquet").write_bytes(b"PAR1 no file of anything PAR1")
    with (
        pytest.raises(UsageError, match=r"a file nodes-\*.parquet is none of ncclcheck"),
        store.opened(str(tmp_path)),
    ):
        pass


def test_other_columns_are_refused_and_named(tmp_path: Path) -> None:
    for name in store.TABLES:
        _file(tmp_path, name, "SELECT 1 AS x")
    with pytest.raises(UsageError, match="columns started, result, serial"), store.opened(str(tmp_path)):
        pass


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / f"nodes-{0:016x}.parquet").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="has no nodes"), store.opened(str(tmp_path)):
        pass


@pytest.mark.parametrize("value", ["'NaN'::DOUBLE", "'inf'::DOUBLE", "-1", "1e300", "0", "NULL"])
def test_what_is_no_figure_is_left_out(tmp_path: Path, value: str) -> None:
    store.write(str(tmp_path), rows.of(stories.document("healthy")))
    head = "SELECT '2026-01-01T00:00:00+00:00' AS started, 'r' AS result, 's' AS serial, 'm' AS metric"
    _file(tmp_path, "measurements", f"{head}, {value} AS value, true AS more_is_better")
    with store.opened(str(tmp_path)) as tables:
        assert tables.execute("SELECT count(*) FROM measurements WHERE metric = 'm'").fetchone() == (0,)


def test_nothing_outside_is_read_once_it_is_open(tmp_path: Path) -> None:
    store.write(str(tmp_path), rows.of(stories.document("healthy")))
    with store.opened(str(tmp_path)) as tables, pytest.raises(duckdb.Error):
        tables.execute("SELECT * FROM read_text('/etc/passwd')")


def test_where_a_change_is() -> None:
    fall = drift.placed([0.0] * 30 + [-0.1] * 30)
    assert fall is not None
    assert (fall.begun, round(fall.change, 3), fall.slowly) == (30, -0.1, False)


def test_a_slow_change_begins_where_it_begins() -> None:
    """Also where single days are far off."""
    series = [0.01 * (-1) ** day for day in range(200)]
    for day in range(80, 200):
        series[day] -= 0.08 * min(1.0, (day - 79) / 40)
    for day in (20, 75, 90, 140):
        series[day] -= 0.3
    fall = drift.placed(series)
    assert fall is not None
    begun, change, slowly = fall
    assert slowly
    assert abs(begun - 80) <= 3
    assert change == pytest.approx(-0.08, abs=0.01)


@pytest.mark.parametrize("step", [0.0, 0.001])
def test_what_does_not_fall_has_no_day(step: float) -> None:
    """All the same, or ever faster."""
    assert drift.placed([day * step for day in range(40)]) is None


def test_saved_results_are_kept_by_report(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(jsondoc.encode(stories.document("healthy")))
    arguments = ["report", str(tmp_path / "a.json"), "--parquet", str(tmp_path / "kept"), "-o", "short"]
    CliRunner().invoke(cli, arguments)
    assert len([*(tmp_path / "kept").iterdir()]) == 3
