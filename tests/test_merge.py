"""`ncclcheck report A.json B.json`: results of other nodes as one cluster; what does not go together is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.errors import UsageError
from ncclcheck.merge import merged
from ncclcheck.probes.facts import Policy, replace
from ncclcheck.reports import jsondoc
from ncclcheck.reports.jsondoc import Document, Saved
from tests import stories
from tests.conftest import Command

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
    document = stories.load(_STORY).document
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


def test_a_node_in_two_files_is_named_with_both(ncclcheck: Command, files: list[str]) -> None:
    ran = ncclcheck("report", files[0], files[1], files[0])
    assert (ran.code, ran.out) == (2, "")
    assert f"node {files[0][:-5]} is in {files[0]} and in {files[0]}" in ran.err


def test_results_of_other_commands_or_of_jobs_are_refused() -> None:
    env = _saved(_alone(stories.load(_STORY).document, 0))
    bench = _saved(_alone(stories.load("healthy").document, 1))
    assert bench.cluster.command == "bench"
    with pytest.raises(UsageError, match=r"a\.json is a result of env, b\.json of bench"):
        merged([("a.json", env), ("b.json", bench)])
    with pytest.raises(UsageError, match=r"jobs that ran apart cannot be merged"):
        merged([("a.json", bench), ("b.json", bench)])


def test_what_was_missing_stays_missing_and_the_time_is_the_first() -> None:
    document = stories.load(_STORY).document
    first, second = _saved(_alone(document, 0)), _saved(_alone(document, 1))
    job = replace(second.cluster.job, nodes_asked=2, missing=["gone-1"])
    late = replace(second, started="2026-01-02T00:00:00+00:00", cluster=replace(second.cluster, job=job))
    whole = merged([("b.json", late), ("a.json", first)])
    assert whole.cluster.job.missing == ["gone-1"]
    assert (whole.cluster.job.nodes_asked, whole.cluster.job.nodes_answered) == (3, 2)
    assert whole.started == first.started
    assert len(whole.stages) == len({stage.name for stage in whole.stages})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no files were given"),
        (["--compare", "a.json"], "1 file was given"),
        (["--compare", "a.json", "b.json", "--html", "x.html"], "--html: not with --compare"),
    ],
)
def test_wrong_usage_says_what_to_type(ncclcheck: Command, arguments: list[str], told: str) -> None:
    ran = ncclcheck("report", *arguments)
    assert (ran.code, told in ran.err) == (2, True), ran.err
