"""What a running job does, by facts: the classes that exclude each other, and whom nobody may accuse."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ncclcheck.probes.facts import Cluster, Live, LiveConnection, LiveProcess, Measurements, UnseenProcess, replace
from ncclcheck.reports.judgement import decision
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.output import terminal
from ncclcheck.reports.subjects.live.running import jobs, judged
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options

_FUTEX = {"was_wchan": "futex_do_wait", "wchan": "futex_do_wait"}
_NFS = {"was_wchan": "folio_wait_bit_common", "wchan": "folio_wait_bit_common"}
_SPINS = {"was": "R", "state": "R", "was_wchan": "", "wchan": "", "cpu": 0.99}


def _rank(rank: int, **facts: Any) -> LiveProcess:
    given = {"world": 3, "job": "127.0.0.1:29500", "expected": [0, 3], "age_s": 900.0, "sockets": 2, "moved": 0}
    return LiveProcess(host="a", pid=100 + rank, rank=rank, **{**given, **_FUTEX, **facts})


def _live(*processes: LiveProcess) -> Live:
    return Live(host="a", seconds=6.0, processes=[*processes])


def _kind(*processes: LiveProcess) -> str:
    [job] = jobs([_live(*processes)])
    return judged(job).kind


def _findings(*live: Live) -> dict[str, list[Finding]]:
    verdicts = judge(Cluster(command="hang", measurements=Measurements(live=[*live])))
    return {verdict.code: verdict.findings for verdict in verdicts if verdict.findings}


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"was": "T", "state": "T"}, "stopped"),
        ({"was": "T"}, "silent"),  # continued meanwhile
        ({"was": "D", "state": "D"}, "stopped"),  # frozen where it waited
        ({"was": "D", "state": "D", **_NFS}, "storage"),
        ({"was": "D", "state": "D", **_NFS, "read": 10**6}, "elsewhere"),  # a slow disk is no dead one
        ({"was_wchan": "pipe_read", "wchan": "pipe_read"}, "elsewhere"),  # a pipe without a name: from its child
        ({"was_wchan": "pipe_read", "wchan": "pipe_read", "file": "/p"}, "storage"),
        ({"was_wchan": "hrtimer_nanosleep", "wchan": "hrtimer_nanosleep"}, "sleeping"),
        ({"was_wchan": "futex_do_wait", "wchan": "hrtimer_nanosleep"}, "silent"),
        (_SPINS, "computing"),
        ({**_SPINS, "cpu": 0.1, "waited": 0.8}, "computing"),  # others have its core
        ({**_SPINS, "cpu": 0.3}, "unclear"),
        ({**_SPINS, "written": 10**8}, "works"),
        ({"moved": 10**6}, "advances"),
        ({"moved": None}, "dark"),
        ({"state": "gone"}, "missing"),
        ({"throttled": 0.9}, "held back"),
        ({"moved": 10**6, "periods": 60, "used_up": 25}, "held back"),  # it goes on, and is late in each step
        ({"moved": 10**6, "periods": 60, "used_up": 5}, "advances"),
        ({"moved": 10**6, "periods": 5, "used_up": 5}, "advances"),  # too few to say
        ({"was_wchan": "mem_cgroup_oom_synchronize", "wchan": "mem_cgroup_oom_synchronize"}, "held back"),
        (
            {
                "was": "D",
                "state": "D",
                "was_wchan": "mem_cgroup_handle_over_high",
                "wchan": "mem_cgroup_handle_over_high",
                "stuck": ["mem_cgroup_handle_over_high"],
            },
            "held back",
        ),
    ],
)
def test_one_rank_stands_out(facts: dict[str, Any], kind: str) -> None:
    assert _kind(_rank(0), _rank(1, **facts), _rank(2)) == kind


def test_ranks_that_all_sleep_do_not_wait_for_each_other() -> None:
    sleeps = {"was_wchan": "hrtimer_nanosleep", "wchan": "hrtimer_nanosleep"}
    assert _kind(*[_rank(n, **sleeps) for n in range(3)]) == "asleep"
    [finding] = _findings(_live(*[_rank(n, **sleeps) for n in range(3)]))["HNG008"]
    assert finding.state is State.UNKNOWN


def test_ranks_that_all_use_up_their_quota_are_not_apart() -> None:
    assert (
        _kind(*[_rank(n, moved=10**6, periods=60, used_up=used) for n, used in enumerate((30, 20, 6))])
        == "advances"
    )


def test_how_a_cgroup_holds_a_rank_back_is_said() -> None:
    waits = {"was_wchan": "mem_cgroup_oom_synchronize", "wchan": "mem_cgroup_oom_synchronize", "refused": 7}
    for facts, state, words in (
        ({"moved": 10**6, "periods": 60, "used_up": 25, "throttled": 0.2}, State.WARN, "in 25 of 60 periods"),
        ({"throttled": 0.9, "periods": 60, "used_up": 58}, State.FAIL, "for 90% of the time"),
        (waits, State.FAIL, "by the memory limit of its cgroup"),
        ({"swap": 2**20, "faults": 6000}, State.FAIL, "by swap: 6000 pages"),
    ):
        [finding] = _findings(_live(_rank(0), _rank(1, **facts), _rank(2)))["HNG006"]
        assert (finding.state, finding.where.rank) == (state, 1)
        assert words in finding.what


def test_what_the_kernel_killed_beside_the_others_is_told() -> None:
    findings = _findings(_live(_rank(0, oom_kills=1), _rank(2)))["HNG001"]
    assert any("killed for want of memory" in evidence.value for evidence in findings[0].evidence)


def test_nobody_is_accused_of_waiting_while_a_job_starts() -> None:
    assert _kind(*(_rank(n, age_s=20.0) for n in range(3))) == "starting"
    assert _kind(_rank(0, age_s=20.0, sockets=0)) == "starting"  # the others may yet come
    assert _kind(_rank(0, age_s=200.0, sockets=0)) == "missing"
    assert _kind(_rank(0), _rank(1, was="T", state="T", age_s=20.0), _rank(2)) == "stopped"


def test_most_that_compute_are_not_accused_for_one_that_waits() -> None:
    assert _kind(_rank(0), _rank(1, **_SPINS), _rank(2, **_SPINS)) == "unclear"
    assert _kind(*(_rank(n, **_SPINS) for n in range(3))) == "busy"
    assert _kind(*(_rank(n, sockets=0, **_SPINS) for n in range(3))) == "dark"


def test_with_nccl_who_waits_may_burn_a_core_and_who_sleeps_does_not_wait() -> None:
    """A rank in ncclCommInitRank of a group whose other rank sleeps (NCCL 2.27.5)."""
    sleeps = {"was_wchan": "hrtimer_nanosleep", "wchan": "hrtimer_nanosleep"}
    assert _kind(_rank(0, libraries=["nccl"], **_SPINS), _rank(1, **sleeps), _rank(2)) == "sleeping"
    assert _kind(_rank(0, **_SPINS), _rank(1, **sleeps), _rank(2)) == "computing"


def test_all_ranks_have_ended() -> None:
    assert _kind(*(_rank(n, state="gone") for n in range(3))) == "ended"


def test_jobs_are_apart_and_ranks_elsewhere_are_not_missing() -> None:
    others = [_rank(n, job="gpu-a:1", expected=[0, 2], world=8) for n in range(2)]
    first, second = jobs([_live(_rank(0), _rank(1), _rank(2), *others)])
    assert (first.missing, second.missing) == ([], [])
    assert len(first.ranks) == 3
    assert len(second.ranks) == 2


def test_a_process_that_two_hosts_show_is_one() -> None:
    views = [_live(_rank(0), _rank(1), _rank(2)), Live(host="b", seconds=6.0, processes=[_rank(1, moved=None)])]
    [job] = jobs(views)
    assert [rank.rank for rank in job.ranks] == [0, 1, 2]
    assert judged(job).kind == "silent"


def test_what_a_rank_left_behind_is_no_rank() -> None:
    [job] = jobs([_live(_rank(0), _rank(2), _rank(1, helper=True, orphan=True))])
    assert judged(job).kind == "missing"
    assert job.missing == [1]


def test_what_a_rank_waits_for_is_said() -> None:
    texts = []
    for wchan in ("do_wait", "wait_woken"):
        waits = {"was_wchan": wchan, "wchan": wchan, "asks": "10.0.0.9:80" if wchan == "wait_woken" else ""}
        live = _live(_rank(0), _rank(1, **waits), _rank(2))
        verdicts = judge(Cluster(command="hang", measurements=Measurements(live=[live])))
        texts += [finding.what for verdict in verdicts if verdict.code == "HNG010" for finding in verdict.findings]
    assert "rank 1 waits for a child process while" in texts[0]
    assert "rank 1 waits for an answer of 10.0.0.9:80 while" in texts[1]


def test_a_lock_of_its_own_is_no_child() -> None:
    late = LiveConnection(near="10.0.0.1:1", far="10.0.0.1:2", sent_s=9.10, received_s=9.05)
    others = [LiveConnection(near="10.0.0.1:2", far="10.0.0.1:1", sent_s=9.05, received_s=9.05)]
    live = _live(_rank(0, connections=others), _rank(1, connections=[late]), _rank(2, connections=others))
    verdicts = judge(Cluster(command="hang", measurements=Measurements(live=[live])))
    [finding] = [finding for verdict in verdicts if verdict.code == "HNG010" for finding in verdict.findings]
    assert "rank 1 waits outside their call (a lock" in finding.what
    nccl = [replace(process, libraries=["nccl"]) for process in live.processes]
    assert _kind(*nccl) == "silent"  # whose proxies send ahead


def test_a_helper_is_named_with_its_rank() -> None:
    [job] = jobs([_live(_rank(0), _rank(1), _rank(2), _rank(1, helper=True, was="T", state="T"))])
    assert [(process.rank, process.helper) for process in judged(job).who] == [(1, True)]


@pytest.mark.parametrize(
    ("others_have", "rank_1", "kind", "named"),
    [
        (False, {}, "silent", [0, 1, 2]),  # as torch's debug server, beside rank 0 alone
        (True, {}, "loader", [0]),  # as the workers of a loader, beside every rank
        (True, {"was_wchan": "wait_woken", "wchan": "wait_woken"}, "elsewhere", [1]),
    ],
)
def test_what_computes_beside_a_rank(
    others_have: bool, rank_1: dict[str, str], kind: str, named: list[int]
) -> None:
    beside = [_rank(n, helper=True, libraries=["torch"]) for n in (1, 2) if others_have]
    server = _rank(0, helper=True, libraries=["torch"], **_SPINS)
    [job] = jobs([_live(_rank(0), _rank(1, **rank_1), _rank(2), *beside, server)])
    assert (judged(job).kind, [process.rank for process in judged(job).who]) == (kind, named)


def _outcome(live: Live) -> tuple[str, dict[str, State]]:
    verdicts = judge(Cluster(command="hang", measurements=Measurements(live=[live])))
    assert not any(verdict.code.startswith(("NET", "LOG")) for verdict in verdicts)
    return decision.outcome(verdicts), {verdict.code: verdict.state for verdict in verdicts}


def test_what_is_not_seen_is_not_known() -> None:
    hidden = Live(host="a", seconds=6.0, unseen=[UnseenProcess(pid=1, command="python train.py", user=1005)])
    for live in (hidden, Live(host="a", problem="ssh: no route"), _live()):
        assert _outcome(live) == ("incomplete", {**_outcome(live)[1], "HNG009": State.UNKNOWN})


def test_a_partial_view_is_not_known() -> None:
    half = _live(*(_rank(n, world=4, expected=[0, 2]) for n in range(2)))
    spins = _live(*(_rank(n, cpu=1.0) for n in range(3)))
    for live in (half, spins):
        assert _outcome(live) == ("incomplete", {**_outcome(live)[1], "HNG008": State.UNKNOWN})


def test_a_host_without_the_job_takes_nothing_from_the_view() -> None:
    seen = _live(*(_rank(n, moved=10**6) for n in range(3)))
    for beside, outcome in ((Live(host="b", seconds=6.0), "ok"), (Live(host="b", problem="no"), "incomplete")):
        verdicts = judge(Cluster(command="hang", measurements=Measurements(live=[seen, beside])))
        assert decision.outcome(verdicts) == outcome


def test_a_culprit_fails_and_an_advancing_job_does_not() -> None:
    assert _outcome(_live(_rank(0), _rank(1, was="T", state="T"), _rank(2)))[0] == "fail"
    assert _outcome(_live(*(_rank(n, moved=10**6) for n in range(3))))[0] == "ok"


def test_other_commands_do_not_judge_running_jobs() -> None:
    assert not any(verdict.code.startswith("HNG") for verdict in judge(Cluster(command="env")))


def test_a_thousand_stacks_are_a_few_lines() -> None:
    """Who is apart comes first; ranks are folded, and no list of them is long, however they lie."""
    chance = random.Random(19)
    places = [chance.choice("ab" if rank % 7 else "cdefgh") for rank in range(1000)]
    processes = [
        _rank(rank, world=1000, expected=[0, 1000], stack=[f"step (train.py:{ord(place)})", "main (train.py:1)"])
        for rank, place in enumerate(places)
    ]
    cluster = Cluster(command="hang", measurements=Measurements(live=[_live(*processes)]))
    document = finish.make(cluster, Options(command="hang"), finish.Story(started="2026-01-01", seconds=6.0))
    text = terminal.text(document, terminal.Style())
    assert len(text.splitlines()) <= 30, text
    assert "more places" in text


def _unranked(host: str, pid: int, rank: int, by: str = "nothing", **facts: Any) -> LiveProcess:
    more = {
        "job": "10.0.0.1:29500",
        "expected": [],
        "begun": pid + ord(host),
        "rank_by": by,
        "stores": ["10.0.0.1:29500"],
        **facts,
    }
    return replace(_rank(rank, **more), host=host, pid=pid)


def test_processes_whose_store_is_on_another_host_are_in_its_job() -> None:
    away: dict[str, Any] = {"job": "?", "world": 1, "stores": ["10.0.0.9:6379", "10.0.0.1:29500"]}
    stopped = {"was": "T", "state": "T"}
    a = _live(_unranked("a", 7, 0, "store", world=2), _unranked("a", 8, 1, world=2))
    b = Live(
        host="b", seconds=6.0, processes=[_unranked("b", 7, 0, **away, **stopped), _unranked("b", 9, 1, **away)]
    )
    strangers = _unranked("b", 11, 2, job="?", stores=["10.0.0.9:6379"])
    [job] = jobs([a, replace(b, processes=[*b.processes, strangers])])
    assert (job.name, job.world, [rank.rank for rank in job.ranks]) == ("10.0.0.1:29500", 4, [0, 1, 2, 3])
    [finding] = _findings(a, b)["HNG002"]
    assert "process 7 (rank unknown) is stopped" in finding.what
    assert (finding.where.node, finding.where.rank) == ("b", None)
    assert jobs([b]) == []  # of none whose job is known


def test_a_server_without_requests_is_not_accused() -> None:
    poll = {"was_wchan": "ep_poll", "wchan": "do_poll"}
    assert _kind(*(_rank(rank, **poll) for rank in range(3))) == "asleep"
    assert _kind(*(_rank(rank, **poll, libraries=["torch", "cuda"]) for rank in range(3))) == "silent"
    assert _kind(*(_rank(rank) for rank in range(3))) == "silent"


def test_ranks_that_never_met_are_told_apart_from_ranks_that_cannot_be_seen() -> None:
    [finding] = _findings(_live(*(_rank(rank, sockets=0, moved=0, rank_by="order") for rank in range(3))))[
        "HNG008"
    ]
    assert (finding.state, "never joined (is 3 the whole job?)" in finding.what) == (State.UNKNOWN, True)
    [finding] = _findings(_live(*(_rank(rank, sockets=2, moved=None) for rank in range(3))))["HNG008"]
    assert "never joined" not in finding.what


def test_the_holder_of_a_lock_is_named_and_not_those_that_wait_for_it() -> None:
    lock = {
        "was_wchan": "locks_lock_inode_wait",
        "wchan": "locks_lock_inode_wait",
        "file": "/c.lock",
        "holder": 100,
    }
    findings = _findings(_live(_rank(0), _rank(1, **lock), _rank(2, **lock)))
    [finding] = findings["HNG003"]
    assert (
        finding.what == "rank 0 has locked the file /c.lock for which ranks 1-2 wait, and waits itself (pid 100)"
    )
    assert finding.where.rank == 0
    lock["holder"] = 4711  # of no rank
    findings = _findings(_live(_rank(0), _rank(1, **lock), _rank(2)))
    [finding] = findings["HNG003"]
    assert finding.what.startswith("rank 1 waits for the file /c.lock, which process 4711 has locked")
