"""`ncclcheck report A.json B.json`: results of other nodes as one cluster; what does not go together is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import (
    Collective,
    Logs,
    Measurements,
    Meeting,
    Policy,
    Run,
    Silence,
    Verified,
    replace,
)
from ncclcheck.probes.facts.training import Smoke
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document, Saved
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.results.merge import merged
from tests.conftest import Command
from tests.helpers import stories

_STORY = "one-node-in-another-subnet"


def _alone(document: Document, index: int) -> Document:
    """The result that this node would have saved on its own."""
    entry = document.nodes[index]
    job = replace(document.job, launcher="local", nodes_asked=1, nodes_answered=1)
    return replace(document, nodes=[entry], job=job, verdicts=[], run=type(document.run)())


def _saved(document: Document) -> Saved:
    return jsondoc.decode(jsondoc.encode(document), Policy())


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """One file a node."""
    document = stories.document(_STORY)
    for index, entry in enumerate(document.nodes):
        (tmp_path / f"{entry.name}.json").write_bytes(jsondoc.encode(_alone(document, index)))
    return [f"{entry.name}.json" for entry in document.nodes]


def test_nodes_that_were_looked_at_alone_are_judged_together(ncclcheck: Command, files: list[str]) -> None:
    apart = ncclcheck("report", files[0], "-o", "json").document
    together = ncclcheck("report", *files, "-o", "json")
    states = {verdict.code: verdict.state.value for verdict in together.document.verdicts}
    assert "NET003" not in {verdict.code for verdict in apart.verdicts if verdict.state.value == "fail"}
    assert (states["NET003"], together.code) == ("fail", 1)
    assert [entry.name for entry in together.document.nodes] == [file[: -len(".json")] for file in files]
    assert together.document.job.nodes_asked == together.document.job.nodes_answered == len(files)


def test_a_node_in_two_files_is_named_with_both(ncclcheck: Command, files: list[str], tmp_path: Path) -> None:
    document = _alone(stories.document(_STORY), 0)
    (tmp_path / "later.json").write_bytes(jsondoc.encode(replace(document, started="2026-01-02T00:00:00+00:00")))
    ran = ncclcheck("report", files[0], files[1], "later.json")
    assert (ran.code, ran.out) == (2, "")
    assert f"node {files[0][:-5]} is in {files[0]} and in later.json" in ran.err


def test_copies_of_one_result_are_one(ncclcheck: Command, files: list[str], tmp_path: Path) -> None:
    """In a join, `--json %n` writes the same document on every node."""
    (tmp_path / "copy.json").write_bytes((tmp_path / files[0]).read_bytes())
    apart, together = (ncclcheck("report", *some, "-o", "json") for some in ([files[0]], [files[0], "copy.json"]))
    assert together.document == apart.document


def test_results_of_other_commands_are_refused() -> None:
    env = _saved(_alone(stories.document(_STORY), 0))
    bench = _saved(_alone(stories.document("healthy"), 1))
    assert bench.cluster.command == "bench"
    with pytest.raises(UsageError, match=r"a\.json is a result of env, b\.json of bench"):
        merged([("a.json", env), ("b.json", bench)])


def _bench(suffix: str = "", slower: float = 1.0) -> Saved:
    """The healthy bench, on nodes whose names end with the suffix."""
    document = stories.document("healthy")
    text = jsondoc.encode(document).decode()
    for entry in document.nodes:
        text = text.replace(f'"{entry.name}"', f'"{entry.name}{suffix}"')
    if suffix:
        text = text.replace("10.41.8.1", "10.41.8.11")
    saved = jsondoc.decode(text.encode(), Policy())
    rows = [_slowed(row, slower) for row in saved.cluster.measurements.collectives]
    measurements = replace(saved.cluster.measurements, collectives=rows)
    return replace(saved, cluster=replace(saved.cluster, measurements=measurements))


def _slowed(row: Collective, factor: float) -> Collective:
    if row.time_us is None or row.busbw_gb_s is None:
        return row
    return replace(
        row, time_us=replace(row.time_us, p50=row.time_us.p50 * factor), busbw_gb_s=row.busbw_gb_s / factor
    )


def test_jobs_on_other_nodes_are_side_by_side() -> None:
    first, second = _bench(), _bench("x", slower=20.0)
    whole = merged([("a.json", first), ("b.json", second)]).cluster
    names = [node.name for node in first.cluster.nodes]
    assert [node.name for node in whole.nodes] == [*names, *(f"{name}x" for name in names)]
    ranks = {rank.rank: rank.node for rank in whole.run.ranks}
    assert len(ranks) == len(whole.run.ranks) == whole.job.ranks == 2 * first.cluster.job.ranks
    assert {rank_speed.node for rank_speed in whole.measurements.rank_speeds} <= {
        node.name for node in whole.nodes
    }
    assert all(ranks[rank_speed.rank] == rank_speed.node for rank_speed in whole.measurements.rank_speeds)
    assert whole.measurements.collectives == second.cluster.measurements.collectives, "the slower rows"


def test_what_fails_in_one_of_the_jobs_fails_in_the_whole() -> None:
    code = {verdict.code: verdict.state for verdict in judge(_bench().cluster)}
    slow = merged([("a.json", _bench()), ("b.json", _bench("x", slower=20.0))])
    states = {verdict.code: verdict.state for verdict in judge(slow.cluster)}
    assert (code["BEN002"], states["BEN002"]) == (State.OK, State.FAIL)
    alike = {
        verdict.code: verdict.state for verdict in judge(merged([("a", _bench()), ("b", _bench("x"))]).cluster)
    }
    assert [code for code, state in alike.items() if state is State.FAIL] == []
    assert (alike["NET006"], alike["STO006"]) == (State.OK, State.OK), "nodes of two runs did not try each other"


def _other_shape(saved: Saved) -> Saved:
    rows = [replace(row, ranks=row.ranks + 1) for row in saved.cluster.measurements.collectives]
    return replace(saved, cluster=replace(saved.cluster, measurements=Measurements(collectives=rows)))


def _without_a_job(saved: Saved) -> Saved:
    return _with(saved, Measurements())


def _with(saved: Saved, measurements: Measurements) -> Saved:
    return replace(saved, cluster=replace(saved.cluster, measurements=measurements))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            _other_shape,
            r"a\.json was measured by \d+ ranks on \d nodes with nccl, b\.json by .*: their bandwidths",
        ),
        (_without_a_job, r"a\.json was measured by \d+ ranks .*, b\.json by no job"),
        (lambda saved: _with(saved, Measurements(smoke=Smoke())), "a training: steps and weights are compared"),
        (lambda saved: _with(saved, Measurements(verified=Verified())), "they were proved on its own nodes"),
        (lambda saved: _with(saved, Measurements(logs=Logs())), "give the log files themselves"),
    ],
)
def test_what_cannot_be_merged_is_named(change: Callable[[Saved], Saved], why: str) -> None:
    first = _bench() if change in (_other_shape, _without_a_job) else change(_bench())
    with pytest.raises(UsageError, match=why):
        merged([("a.json", first), ("b.json", change(_bench("x")))])


def _of_a_join(index: int, rank: int, outcome: Literal["open", "refused"], missing: list[str]) -> Saved:
    saved = _saved(_alone(stories.document(_STORY), index))
    meeting = Meeting(endpoint="h1:29500", told_by="options", outcome=outcome, node_rank=rank, detail="no way")
    job = replace(saved.cluster.job, launcher="join", nodes_asked=2, missing=missing, meeting=meeting)
    silent = [Silence(node=name, last_step="", since_s=9.0) for name in missing if not rank]
    return replace(saved, cluster=replace(saved.cluster, job=job, run=Run(silent=silent)))


def test_a_node_that_node_rank_0_never_saw_is_named_once_with_its_own_reason() -> None:
    lead, other = _of_a_join(0, 0, "open", ["node rank 1"]), _of_a_join(1, 1, "refused", ["node rank 0"])
    whole = merged([("lead.json", lead), ("other.json", other)]).cluster
    name = other.cluster.nodes[0].name
    assert (whole.job.nodes_asked, whole.job.nodes_answered, whole.job.missing) == (2, 2, [])
    assert [(silence.node, silence.detail) for silence in whole.run.silent] == [
        (name, "node rank 0 was not reached at h1:29500: no way")
    ]
    run001 = next(verdict for verdict in judge(whole) if verdict.code == "RUN001")
    assert (run001.state, [finding.where.node for finding in run001.findings]) == (State.UNKNOWN, [name])


def test_what_was_missing_stays_missing_and_the_time_is_the_first() -> None:
    document = stories.document(_STORY)
    first, second = _saved(_alone(document, 0)), _saved(_alone(document, 1))
    job = replace(second.cluster.job, nodes_asked=2, missing=["gone-1"])
    late = replace(second, started="2026-01-02T00:00:00+00:00", cluster=replace(second.cluster, job=job))
    whole = merged([("b.json", late), ("a.json", first)])
    assert whole.cluster.job.missing == ["gone-1"]
    assert (whole.cluster.job.nodes_asked, whole.cluster.job.nodes_answered) == (3, 2)
    assert whole.started == first.started
    assert len(whole.stages) == len({stage.name for stage in whole.stages})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no files were given"),
        (["--compare", "a.json"], "1 file was given"),
        (["--compare", "a.json", "b.json", "--html", "x.html"], "--html: not with --compare"),
    ],
)
def test_wrong_usage_says_what_to_type(ncclcheck: Command, arguments: list[str], words: str) -> None:
    ran = ncclcheck("report", *arguments)
    assert (ran.code, words in ran.err) == (2, True), ran.err
