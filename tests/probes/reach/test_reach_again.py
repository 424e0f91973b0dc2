"""A way that closes while the job runs: its host is named, and not who waits for it."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import Job, JobEnd, RankState, Run, replace
from ncclcheck.reports.judgement.findings import Finding, State
from tests.helpers.clusters import verdict
from tests.helpers.reach_clusters import CUT, DROPPED, Change, hosts, measured, pairs

WAIT = "torch.distributed.DistStoreError: wait timeout after 60000ms, keys: /torch.rendezvous.x"
RANKS = [RankState(rank=rank, node=f"h{rank + 1}", pid=70 + rank, phase="world", last_step="barrier", since_s=42)
         for rank in range(3)]  # fmt: skip


def troubles(
    code: str, after: Change | None, run: Run, count: int = 3, before: Change | None = None
) -> list[Finding]:
    nodes = hosts(count)
    measurements = replace(measured(nodes, before), reach_after=measured(nodes, after).reach)
    job = Job(nodes_asked=count, nodes_answered=count, ranks=count)
    judged = verdict(code, *nodes, command="bench", measurements=measurements, run=run, job=job)
    return [finding for finding in judged.findings if finding.state is not State.OK]


HUNG = Run(started_job=True, stopped_by="deadline", ranks=RANKS)
UNMET = Run(started_job=True, stopped_by="early end", ends=[JobEnd(node="h1", exit=1, detail=WAIT)])


@pytest.mark.parametrize(
    ("code", "run", "words"),
    [("RUN003", HUNG, "no connection to or from h2 passes any more (NET006): 3 ranks on h[1-3] were in 'barrier'"),
     ("RUN002", UNMET, "no connection to or from h2 passes any more (NET006): no rank had started"),
     ("NET006", HUNG, "h2 is cut off from all 2 others, in both directions")],
)  # fmt: skip
def test_the_host_that_was_lost_is_named(code: str, run: Run, words: str) -> None:
    (finding,) = troubles(code, pairs("both", "h2", **CUT), run)
    assert finding.state is State.FAIL
    assert finding.where.node == "h2"
    assert words in finding.what


def test_one_way_that_closed() -> None:
    (finding,) = troubles("NET006", pairs("in", "h3", connect=DROPPED), HUNG)
    assert finding.where.node == "h3"
    assert "It passed before the job, and failed after it" in finding.what
    assert "before the job" in {evidence.source for evidence in finding.evidence}


def test_of_two_nodes_both_are_named() -> None:
    (finding,) = troubles("RUN002", pairs("both", "h2", **CUT), UNMET, count=2)
    assert (finding.where.node, finding.where.peer) == ("h1", "h2")


def test_what_failed_before_the_job_too_is_told_once() -> None:
    cut = pairs("both", "h2", **CUT)
    (finding,) = troubles("NET006", cut, HUNG, before=cut)
    assert "before the job" not in finding.what


def test_a_rank_that_was_killed_is_the_cause() -> None:
    killed = replace(RANKS[0], proc_state="gone", exit=-9)
    (finding,) = troubles("RUN003", pairs("both", "h2", **CUT), replace(HUNG, ranks=[killed, *RANKS[1:]]))
    assert finding.where.node == "h1"
    assert "SIGKILL" in finding.what


@pytest.mark.parametrize(
    "words",
    [WAIT, "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms",
     "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "RuntimeError: Connection reset by peer"],
)  # fmt: skip
def test_who_only_waited_is_not_accused(words: str) -> None:
    (finding,) = troubles("RUN002", None, replace(UNMET, ends=[JobEnd(node="h1", exit=1, detail=words)]))
    assert finding.state is State.UNKNOWN
    assert finding.where.node is None
    assert "torchrun on h1 waited for the others in vain: 3 of 3 ranks had not started" in finding.what
    assert words in {evidence.value for evidence in finding.evidence}


def test_own_words_are_the_cause() -> None:
    words = "OSError: libtorch_cpu.so: failed to map segment from shared object"
    (finding,) = troubles("RUN002", None, replace(UNMET, ends=[JobEnd(node="h2", exit=1, detail=words)]))
    assert (finding.state, finding.where.node) == (State.FAIL, "h2")


def test_where_all_ways_still_pass_nobody_is_accused() -> None:
    (finding,) = troubles("RUN003", None, HUNG)
    assert finding.state is State.UNKNOWN
