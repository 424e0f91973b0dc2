"""After a job: which processes stand still, and which live though their peers say that they left."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.node.ranks.running import explain_end
from ncclcheck.node.ranks.torchrun import _EXIT
from ncclcheck.probes.facts import (
    Cluster,
    Filter,
    Job,
    JobEnd,
    Leftover,
    Network,
    Node,
    RankState,
    Run,
    Silence,
    replace,
)
from ncclcheck.probes.facts.live.processes import is_frozen
from ncclcheck.probes.machine import process
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement.findings import Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers.clusters import nic

_SEEN = "E1128 15:28 7 multiprocessing/api.py:874] failed (exitcode: -6) local_rank: 0 (pid: 431) of binary: py\n"


def _node(number: int, *filters: Filter) -> Node:
    own = nic("eth0", f"10.77.0.{number}{number}/24")
    return Node(name=f"h{number}", network=Network(interfaces=[own], filters=[*filters]))


def _cluster(run: Run, *filters: Filter) -> Cluster:
    nodes = [_node(1), _node(2, *filters), _node(3)]
    job = Job(ranks=3, nodes_asked=3, nodes_answered=3, backend="gloo")
    return Cluster(command="bench", nodes=nodes, job=job, run=run)


def _judged(code: str, cluster: Cluster) -> Verdict:
    return judge(cluster, [rule for rule in all_rules() if rule.code == code])[0]


def _rank(number: int, **changes: object) -> RankState:
    made = RankState(
        rank=number,
        node=f"h{number + 1}",
        pid=200 + number,
        phase="world",
        last_step="broadcast 1 MiB",
        proc_state="S",
    )
    return replace(made, since_s=6.0, **changes)


def _run(ranks: list[RankState], *ends: JobEnd, stopped_by: str = "dead rank") -> Run:
    return replace(Run(ranks=ranks, ends=[*ends], started_job=True), stopped_by=stopped_by)


_RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection reset by peer [10.77.0.22]:41234"
_PEERS_SAY_IT_LEFT = [
    _rank(0, error=_RESET, proc_state="gone"),
    _rank(1),
    _rank(2, error=_RESET, proc_state="gone"),
]
_IPS = Filter(
    family="inet", table="ips", chain="ips", hook="input", does=["reject"],
    rule="ct bytes > 3000000 reject", part="iifname eth0 ct bytes > 3000000 reject",
)  # fmt: skip


def test_a_rank_that_lives_is_not_dead_whatever_its_peers_say() -> None:
    cluster = _cluster(_run(_PEERS_SAY_IT_LEFT))
    (finding,) = _judged("RUN003", cluster).findings
    assert (finding.state.value, finding.where.node, finding.where.rank) == ("fail", "h2", None)
    assert "lived and still waited" in finding.what
    assert "sys.exit" not in finding.what
    assert culprits(cluster)[0].names == ["h2"]


def test_of_a_node_whose_agent_is_lost_too_nobody_knows_that_its_ranks_lived() -> None:
    broke = Silence(
        node="h2", last_step="start torchrun", since_s=5.0, via="ssh", exit=255,
        detail="Connection to 10.78.0.22 closed by remote host.",
    )  # fmt: skip
    cluster = _cluster(replace(_run(_PEERS_SAY_IT_LEFT), silent=[broke]))
    assert "lived" not in str(_judged("RUN003", cluster))
    (finding,) = _judged("RUN001", cluster).findings
    assert finding.what.startswith("sshd there ended its session in mid-run")


def test_the_rule_that_resets_connections_is_quoted_and_opened() -> None:
    (finding,) = _judged("RUN003", _cluster(_run(_PEERS_SAY_IT_LEFT), _IPS)).findings
    assert "ct bytes > 3000000" in finding.what
    assert "10.77.0.0/24 accept" in finding.remedies[0].commands[0]


def test_a_rank_that_died_is_still_named_by_its_peers() -> None:
    ranks = [_PEERS_SAY_IT_LEFT[0], _rank(1, proc_state="gone"), _PEERS_SAY_IT_LEFT[2]]
    (finding,) = _judged("RUN003", _cluster(_run(ranks))).findings
    assert (finding.where.node, finding.where.rank) == ("h2", 1)


@pytest.mark.parametrize(
    ("state", "wchan", "frozen"),
    [
        ("D", "__refrigerator", True),
        ("S", "do_freezer_trap", True),
        ("D", "futex_do_wait", True),
        ("S", "futex_do_wait", False),
        ("D", "rpc_wait_bit_killable", False),
        ("D", "", False),
    ],
)
def test_a_frozen_process_is_known(state: str, wchan: str, frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_frozen(state, wchan) is frozen
    monkeypatch.setattr(process, "state_of", lambda _: state)
    monkeypatch.setattr(process, "waiting_in", lambda _: wchan)
    assert process.held_state_of(7) == ("F" if frozen else state)


def test_a_process_that_moves_on_between_two_reads_is_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter("DS")
    monkeypatch.setattr(process, "state_of", lambda _: next(states))
    monkeypatch.setattr(process, "waiting_in", lambda _: "futex_do_wait")
    assert process.held_state_of(7) == "D"


def test_a_frozen_rank_is_named_with_what_thaws_it() -> None:
    run = _run([_rank(0), _rank(1, proc_state="F"), _rank(2)], stopped_by="stopped rank")
    (finding,) = _judged("RUN003", _cluster(run)).findings
    assert (finding.where.node, finding.where.rank) == ("h2", 1)
    assert "frozen by its control group" in finding.what
    assert "THAWED" in str(finding.remedies)
    assert culprits(_cluster(run))[0].names == ["h2/rank 1"]


def test_a_frozen_process_that_is_left_over_waits_for_no_device() -> None:
    left = Leftover(node="h2", pid=314, state="D", wchan="__refrigerator", command="python")
    (finding,) = _judged("RUN004", _cluster(replace(_run([]), leftovers=[left]))).findings
    assert "frozen" in finding.why
    assert "cgroup.freeze" in str(finding.remedies)


@pytest.mark.parametrize(("state", "words"), [("T", "stopped (state T)"), ("F", "frozen by its control group")])
def test_a_torchrun_that_stands_still_is_told_though_all_was_measured(state: str, words: str) -> None:
    ranks = [_rank(number, phase="done") for number in range(3)]
    ends = [JobEnd(node="h1", exit=0), JobEnd(node="h2", exit=0, held=state, pid=99)]
    (finding,) = _judged("RUN003", _cluster(_run(ranks, *ends, stopped_by=""))).findings
    assert (finding.state.value, finding.where.node) == ("warn", "h2")
    assert words in finding.what


def test_a_torchrun_that_was_stopped_before_its_ranks_began_is_the_cause() -> None:
    ranks = [_rank(0, phase="start", last_step="init_process_group (gloo)"), _rank(2, phase="start")]
    run = _run(ranks, JobEnd(node="h2", exit=None, held="T", pid=99), stopped_by="deadline")
    (finding,) = _judged("RUN002", _cluster(run)).findings
    assert (finding.state.value, finding.where.node) == ("fail", "h2")
    assert "kill -CONT 99" in str(finding.remedies)
    assert culprits(_cluster(run))[0].names == ["h2"]


def test_a_rank_that_died_before_it_spoke_stands_in_torchruns_first_line(tmp_path: Path) -> None:
    log = tmp_path / "torchrun.log"
    log.write_text(_SEEN)
    assert (
        explain_end(str(log)) == "its rank with local rank 0 (pid 431) was killed by SIGABRT before it could speak"
    )
    assert _EXIT.findall(_SEEN) == [("-6", "431")]
    assert _EXIT.findall("  exitcode  : -9 (pid: 12)") == [("-9", "12")]


def test_that_rank_is_the_cause_and_the_store_that_went_with_it_is_not() -> None:
    lost = "elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed."
    died = "its rank with local rank 0 (pid 431) was killed by SIGABRT before it could speak"
    ranks = [_rank(1, phase="start", proc_state="gone"), _rank(2, phase="start", proc_state="gone", first=True)]
    ends = [
        JobEnd(node="h1", exit=None, detail=died),
        JobEnd(node="h2", exit=None, detail=lost),
        JobEnd(node="h3", exit=None, detail=lost),
    ]
    (finding,) = _judged("RUN002", _cluster(_run(ranks, *ends))).findings
    assert finding.where.node == "h1"
    assert "SIGABRT" in finding.what
