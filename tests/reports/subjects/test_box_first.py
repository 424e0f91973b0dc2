"""What a rank raised of itself, and what it only says of others, where both speak of a connection."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Box,
    BoxOom,
    BoxProcess,
    BoxRaised,
    BoxSample,
    BoxSent,
    BoxSignal,
    BoxStall,
    BoxTold,
    Cluster,
    Live,
    LiveProcess,
    Measurements,
    replace,
)
from ncclcheck.reports.subjects.box import first, waiting, words
from ncclcheck.reports.subjects.box.failure import BoxFailure, by_kernel, what

T = 1_795_000_000.0
_CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:52437"
_WAIT = "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3000 in all_reduce"
_TRAIN = "/data/train.py:12 in main"
_OF_OTHERS = [
    ("RuntimeError", _CLOSED, (_TRAIN, _WAIT)),
    ("RuntimeError", _CLOSED, (_TRAIN,)),  # work.wait(), which is no line of Python
    ("DistStoreError", "wait timeout after 15000ms, keys: /default_pg/0//cpu//0", (_TRAIN,)),
    ("DistBackendError", "ncclRemoteError: A call failed possibly due to a network error", (_TRAIN,)),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer",
     (_TRAIN, "/usr/lib/python3.11/multiprocessing/connection.py:370 in _recv")),
    ("CalledProcessError", "Command '['python', 'train.py']' returned non-zero exit status 1.",
     ("/opt/lib/python3.11/site-packages/accelerate/commands/launch.py:700 in simple_launcher",)),
]  # fmt: skip
_OWN = [
    ("CalledProcessError", "Command '['aws', 's3', 'cp']' returned non-zero exit status 1.",
     (_TRAIN, "/usr/lib/python3.11/subprocess.py:571 in run")),
    ("ConnectionRefusedError", "[Errno 111] Connection refused",
     (_TRAIN, "/usr/lib/python3.11/socket.py:836 in create_connection")),
    ("URLError", "<urlopen error [Errno 111] Connection refused>",
     (_TRAIN, "/usr/lib/python3.11/urllib/request.py:1351 in do_open")),
    ("ReadTimeout", "HTTPSConnectionPool(host='hub', port=443): Read timed out after 10",
     (_TRAIN, "/opt/lib/python3.11/site-packages/requests/adapters.py:713 in send")),
    ("RuntimeError", "failed to connect to the feature store: timed out after 5 s", (_TRAIN,)),
]  # fmt: skip


def _job(kind: str, message: str, frames: tuple[str, ...]) -> BoxFailure | None:
    """Rank 1 raises this, and the others lose their connection to it."""
    errors = [BoxRaised(t=T + 5, pid=11, rank=1, type=kind, message=message, frames=[*frames])]
    errors += [
        BoxRaised(t=T + 6, pid=10 + n, rank=n, type="RuntimeError", message=_CLOSED, frames=[_TRAIN, _WAIT])
        for n in (0, 2)
    ]
    ranks = [
        BoxProcess(pid=10 + n, rank=n, role="rank", command="python", born=T, gone=T + 7, status=1 << 8)
        for n in range(3)
    ]
    box = Box(host="h1", folder="b", started=T, ended=T + 8, status=1, processes=ranks, raised=errors, world=3)
    return first.end(Cluster(command="watch", measurements=Measurements(boxes=[box]))).first


@pytest.mark.parametrize(("kind", "message", "frames"), _OWN)
def test_a_connection_to_no_process_of_the_job_is_the_ranks_own(
    kind: str, message: str, frames: tuple[str, ...]
) -> None:
    failure = _job(kind, message, frames)
    assert failure is not None
    assert (failure.kind, failure.rank, failure.of_others) == ("raised", 1, False)


@pytest.mark.parametrize(("kind", "message", "frames"), _OF_OTHERS)
def test_a_lost_process_of_the_job_is_not(kind: str, message: str, frames: tuple[str, ...]) -> None:
    failure = _job(kind, message, frames)
    assert failure is None or failure.of_others or failure.kind in ("absent", "apart")


@pytest.mark.parametrize(("after", "kind"), [(-1.0, "killed"), (2.0, "absent")])
def test_a_rank_that_sigterm_ended_before_the_others_had_ended(after: float, kind: str) -> None:
    """The launcher sends it, too, but to those that are left once one has ended."""
    errors = [
        BoxRaised(t=T + 6, pid=10 + n, rank=n, type="RuntimeError", message=_CLOSED, frames=[_TRAIN, _WAIT])
        for n in (0, 2)
    ]
    ranks = [
        BoxProcess(pid=10 + n, rank=n, role="rank", command="python", born=T, gone=T + 7, status=1 << 8)
        for n in (0, 2)
    ]
    ranks.append(BoxProcess(pid=11, rank=1, role="rank", command="python", born=T, gone=T + 7 + after, status=15))
    box = Box(host="h1", folder="b", started=T, ended=T + 12, status=1, processes=ranks, raised=errors, world=3)
    failure = first.end(Cluster(command="watch", measurements=Measurements(boxes=[box]))).first
    assert failure is not None
    assert (failure.kind, failure.rank) == (kind, 1)


def _ranks(**each: Any) -> list[BoxProcess]:
    given = {"role": "rank", "command": "python", "born": T, "gone": T + 7, "status": 1 << 8, **each}
    return [BoxProcess(pid=10 + n, rank=n, **given) for n in range(3)]


def _first(
    processes: list[BoxProcess], raised: list[BoxRaised], live: tuple[Live, ...] = (), **more: Any
) -> BoxFailure:
    given = {"started": T, "ended": T + 8, "status": 1, "world": 3, **more}
    box = Box(host="h1", folder="b", processes=processes, raised=raised, **given)
    failure = first.end(Cluster(command="watch", measurements=Measurements(boxes=[box], live=[*live]))).first
    assert failure is not None
    return failure


def _lost(n: int, t: float = T + 6, **more: Any) -> BoxRaised:
    given = {"type": "RuntimeError", "message": _CLOSED, "frames": [_TRAIN, _WAIT], **more}
    return BoxRaised(t=t, pid=10 + n, rank=n, **given)


_STALL = [BoxStall(t=T + 6, silent=4.0, limit=3.0)]
_DIED: dict[str, Any] = {
    "type": "KeyError",
    "message": "'optimizer'",
    "frames": ["/data/save.py:4 in write"],
    "thread": "ckpt-writer",
}


@pytest.mark.parametrize("more", [{"stalls": _STALL}, {"raised_of": (0, 2)}])
def test_a_thread_that_died_before_its_rank_did_not_come(more: dict[str, Any]) -> None:
    raised = [BoxRaised(t=T + 2, pid=11, rank=1, **_DIED), *(_lost(n) for n in more.get("raised_of", ()))]
    failure = _first(_ranks(gone=None, status=None), raised, stalls=more.get("stalls", []))
    assert (failure.kind, failure.rank, failure.t) == ("raised", 1, T + 2)
    assert "KeyError: 'optimizer' (in its thread ckpt-writer)" in what(failure)


def test_threads_that_died_on_all_ranks_hold_up_nobody() -> None:
    died = [BoxRaised(t=T + 2, pid=10 + n, rank=n, **_DIED) for n in range(3)]
    assert _first(_ranks(gone=None, status=None), died, stalls=_STALL).kind == "stalled"
    own = BoxRaised(t=T + 5, pid=10, rank=0, type="ValueError", message="labels", frames=[_TRAIN])
    failure = _first(_ranks(), [*died, own, _lost(1), _lost(2)])
    assert (failure.kind, failure.rank) == ("raised", 0)
    assert failure.raised == own


_NAN: dict[str, Any] = {"type": "AssertionError", "message": "loss is nan at step 42", "frames": [_TRAIN]}


def test_all_ranks_raise_the_same_at_once() -> None:
    raised = [_lost(n, T + 5 + n / 100, **_NAN) for n in (1, 0, 2)]
    failure = _first(_ranks(), raised)
    assert (failure.alike, failure.rank, failure.who) == ((0, 1, 2), -1, "ranks 0-2 on h1")
    printed = [["[0] loss 0.25"], ["[1] loss nan"], ["[2] loss 0.11", "AssertionError: loss is nan at step 42"]]
    ranks = [replace(process, printed=lines) for process, lines in zip(_ranks(), printed, strict=True)]
    failure = _first(ranks, raised)
    assert (failure.alike, failure.rank, failure.detail) == ((), 1, "[1] loss nan")
    ranks[2] = replace(ranks[2], printed=[])  # whether it had one is not known
    assert _first(ranks, raised).alike == (0, 1, 2)


def test_all_ranks_end_with_the_same_code() -> None:
    ranks = [replace(rank, status=2 << 8, printed=["python: can't open file"]) for rank in _ranks()]
    failure = _first(ranks, [])
    assert (failure.kind, failure.alike, what(failure)) == (
        "exit",
        (0, 1, 2),
        "ended with exit code 2, without an exception",
    )
    ranks[0] = replace(ranks[0], status=3 << 8, gone=T + 6)
    assert _first(ranks, []).rank == 0


def test_a_port_that_is_taken_is_the_ranks_own() -> None:
    message = "The server socket has failed to listen on any local network address. port: 29500, EADDRINUSE"
    taken = {"type": "DistNetworkError", "message": message, "frames": [_TRAIN, _INIT]}
    failure = _first(_ranks(), [_lost(0, T + 2, **taken), _lost(1, **_UNMET), _lost(2, **_UNMET)])
    assert (failure.kind, failure.rank) == ("raised", 0)


def test_the_same_words_seconds_later_are_another_failure() -> None:
    raised = [_lost(1, T + 1, **_NAN), _lost(0, T + 5, **_NAN)]
    failure = _first(_ranks(), raised)
    assert (failure.alike, failure.rank) == ((), 1)


_INIT = "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:1892 in init_process_group"
_UNMET: dict[str, Any] = {
    "type": "DistStoreError",
    "message": "wait timeout after 30000ms, keys: /0",
    "frames": [_TRAIN, _INIT],
}


@pytest.mark.parametrize(
    ("who", "processes", "words"),
    [
        ((0, 1), {}, "rank 2 of 3 did not come: no process of it was seen on h1"),
        ((0, 1, 2), {2: {"meets": "h1:29501"}},
         "rank 2 was told MASTER_ADDR:MASTER_PORT h1:29501, and the others h1:29500"),
        ((0, 1, 2), {1: {"world": 2}}, "rank 1 was told WORLD_SIZE 2, and the others 3"),
        ((0, 1, 2), {2: {"rank": 1}}, "rank 1 was started twice (pids 11, 12)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stalls", [False, True])
def test_ranks_that_cannot_meet(
    who: tuple[int, ...], processes: dict[int, dict[str, Any]], words: str, stalls: bool
) -> None:
    ranks = [
        replace(
            process, stack=[_INIT, _TRAIN], **{"world": 3, "meets": "h1:29500", **processes.get(process.rank, {})}
        )
        for process in (_ranks(gone=None, status=None) if stalls else _ranks())
        if process.rank in who
    ]
    raised = [] if stalls else [_lost(n, **_UNMET) for n in who]
    failure = _first(ranks, raised, stalls=_STALL if stalls else [])
    assert (failure.kind, failure.detail) == ("unmet", words)


def test_clients_are_counted_where_no_environment_tells() -> None:
    message = "Timed out after 31 seconds waiting for clients. 2/3 clients joined."
    failure = _first(_ranks()[:2], [_lost(0, **{**_UNMET, "message": message}), _lost(1, **_UNMET)], world=0)
    assert failure.detail == "1 of 3 processes did not come to where ranks meet"


def test_ranks_that_have_met_are_not_judged_by_what_they_were_told() -> None:
    ranks = [replace(rank, world=3, meets=f"h{rank.rank}:29500", status=None) for rank in _ranks()]
    assert _first(ranks, [_lost(n) for n in (0, 2)]).kind == "absent"


def test_who_holds_a_lock_at_a_stall() -> None:
    live = Live(
        host="h1",
        seconds=6.0,
        processes=[
            LiveProcess(
                host="h1", pid=10 + n, rank=n, world=3, job="h1:29500", holder=10 * bool(n), file="/c.lock"
            )
            for n in range(3)
        ],
    )
    failure = _first(_ranks(gone=None, status=None), [], (live,), stalls=_STALL)
    assert (failure.kind, failure.rank) == ("stalled", 0)
    cluster = Cluster(command="watch", measurements=Measurements(boxes=[failure.box], live=[live]))
    text = words.heading(failure, words.waits(cluster, failure))
    assert "rank 0 on h1 waits for others, and holds the lock of /c.lock, for which ranks 1-2 wait" in text


@pytest.mark.parametrize(
    ("wchan", "stack", "words_"),
    [
        ("futex_do_wait", ["/data/set.py:13 in __getitem__"], "which waits for a lock in __getitem__ (set.py:13)"),
        ("hrtimer_nanosleep", ["/data/set.py:9 in load"], "which is in load (set.py:9)"),
        ("futex_do_wait", ["/usr/lib/python3.11/threading.py:331 in wait", "/data/set.py:9 in load"],
         "which is in load (set.py:9)"),
    ],
)  # fmt: skip
def test_a_worker_for_which_its_rank_waits(wchan: str, stack: list[str], words_: str) -> None:
    loader = "/opt/lib/python3.11/site-packages/torch/utils/data/dataloader.py:1275 in _try_get_data"
    ranks = _ranks(gone=None, status=None, stack=[_WAIT, _TRAIN])
    ranks[1] = replace(ranks[1], stack=[loader, "/data/train.py:11 in main"], wchan="poll_schedule_timeout")
    idle = "/usr/lib/python3.11/multiprocessing/queues.py:113 in get"
    forked = "/usr/lib/python3.11/multiprocessing/process.py:314 in _bootstrap"
    given: dict[str, Any] = {"parent": 11, "rank": 1, "role": "helper", "command": "python", "born": T}
    for pid, gone, innermost in ((19, T + 3, stack), (20, T + 9, [idle]), (21, T + 9, stack)):
        frames = [*innermost, forked, "/data/train.py:11 in main"]
        ranks.append(BoxProcess(pid=pid, gone=gone, stack=frames, wchan=wchan, **given))
    failure = _first(ranks, [], stalls=_STALL)
    assert (failure.kind, failure.rank) == ("stalled", 1)
    cluster = Cluster(command="watch", measurements=Measurements(boxes=[failure.box]))
    assert f"rank 1 on h1 waits for its worker (pid 21), {words_}" in words.heading(
        failure, words.waits(cluster, failure)
    )


@pytest.mark.parametrize(
    ("child", "kind", "text"),
    [
        ({"status": 1 << 8, "printed": ["Process ForkProcess-1:", "ValueError: bad checksum"]}, "exit",
         "ended with exit code 1: ValueError: bad checksum"),
        ({"status": 9}, "killed", "was ended by SIGKILL"),
        ({"status": 1 << 8, "command": "grep"}, "stalled", ""),
        ({"status": 1 << 8, "gone": T - 60}, "stalled", ""),
        ({"status": 0}, "stalled", ""),
    ],
)  # fmt: skip
def test_a_process_of_the_stalled_rank_that_had_failed(child: dict[str, Any], kind: str, text: str) -> None:
    ranks = _ranks(gone=None, status=None, stack=[_TRAIN])
    ranks[1] = replace(ranks[1], stack=["/data/train.py:11 in main"])
    given = {"parent": 11, "rank": 1, "role": "helper", "command": "python train.py", "born": T, "gone": T + 1}
    failure = _first([*ranks, BoxProcess(pid=30, **{**given, **child})], [], stalls=_STALL)
    if kind == "killed":  # counts by itself, whether the job stalls or not
        assert (failure.kind, failure.process and failure.process.pid) == (kind, 30)
        return
    assert (failure.kind, failure.rank) == (kind, 1)
    assert text in what(failure)


@pytest.mark.parametrize(
    ("wchan", "words_"),
    [
        ("do_wait", "for a program that it has started: aws (pid 21),"),
        ("anon_pipe_read", "for an answer of a program that it has started: aws (pid 21),"),
        ("futex_do_wait", ""),
    ],
)
def test_a_program_for_which_a_rank_waits(wchan: str, words_: str) -> None:
    process = BoxProcess(pid=1, rank=0, role="rank", wchan=wchan, stack=[_TRAIN])
    child = BoxProcess(pid=21, parent=1, rank=0, role="helper", command="aws")
    box = Box(host="h1", folder="b", started=T, processes=[process, child])
    assert waiting.of(Cluster(measurements=Measurements(boxes=[box])), box, process).words == words_


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        ("/usr/lib/python3.11/queue.py:89 in join", "for a queue of its own"),
        ("/usr/lib/python3.11/threading.py:1119 in join", "for a thread of its own to end"),
        ("/usr/lib/python3.11/socket.py:706 in readinto", "for an answer over the network"),
        ("/opt/lib/python3.11/site-packages/odd/thing.py:7 in go", ""),
    ],
)
def test_what_a_stack_tells_of_a_wait(frame: str, text: str) -> None:
    process = BoxProcess(pid=1, rank=0, role="rank", stack=[frame, _TRAIN])
    box = Box(host="h1", folder="b", started=T, processes=[process])
    assert waiting.of(Cluster(measurements=Measurements(boxes=[box])), box, process).words == text


_WAITING = [_WAIT, _TRAIN]


def _alive_but(n: int, **each: Any) -> list[BoxProcess]:
    """Ranks that wait in a collective, and one that is otherwise."""
    ranks = _ranks(gone=None, status=None, stack=_WAITING)
    ranks[n] = replace(ranks[n], **each)
    return ranks


def test_a_rank_that_left_before_the_job_stalled_is_first() -> None:
    ranks = _alive_but(2, gone=T + 1, status=0, stack=[], left_at=["/data/train.py:30 in main"])
    failure = _first(ranks, [], stalls=_STALL)
    assert (failure.kind, failure.rank) == ("left", 2)
    assert (
        words.heading(failure) == "rank 2 on h1 ended with exit code 0 in main (train.py:30) while others went on"
    )


def test_the_one_rank_that_others_have_left_alone_is_named() -> None:
    ranks = [replace(rank, gone=T + 1, status=0) for rank in _ranks()]
    ranks[0] = replace(ranks[0], gone=None, status=None, stack=_WAITING)
    failure = _first(ranks, [], stalls=_STALL)
    assert (failure.kind, failure.rank) == ("stalled", 0)
    assert "waits for ranks 1-2, which had ended with exit code 0" in words.heading(failure)


def test_a_rank_that_works_after_others_have_left_is_no_stall_of_theirs() -> None:
    ranks = _alive_but(0, stack=["/data/train.py:60 in upload"])
    ranks[1] = replace(ranks[1], gone=T + 1, status=0)
    assert _first(ranks, [], stalls=_STALL).kind == "stalled"


def test_an_end_that_stalls_is_not_why_it_ended() -> None:
    ranks = _ranks(gone=T + 1.5, status=15)
    raised = [_lost(0, T + 1.6)]
    assert _first(ranks, raised, stalls=_STALL).kind == "killed"


def test_a_stall_is_before_the_signal_that_ends_it() -> None:
    signals = [BoxSignal(t=T + 20, number=15, sender=4, by="timeout")]
    ranks = _alive_but(1, stack=["/data/train.py:8 in wait_for_lock"])
    failure = _first(ranks, [], stalls=_STALL, signals=signals, ended=T + 21)
    assert (failure.kind, failure.rank) == ("stalled", 1)


def test_a_job_that_went_on_after_a_stall_did_not_stall() -> None:
    stall = [BoxStall(t=T + 6, silent=4.0, limit=3.0, resumed=T + 8)]
    box = Box(host="h1", folder="b", started=T, ended=T + 90, status=0, processes=_ranks(status=0), stalls=stall)
    assert first.end(Cluster(command="watch", measurements=Measurements(boxes=[box]))).first is None
    failed = [replace(_ranks()[1], gone=T + 90, status=9)]
    assert _first(failed, [], stalls=stall, ended=T + 91).kind == "killed"


@pytest.mark.parametrize("status", [124, 137])
def test_a_timeout_within_the_command_ended_it(status: int) -> None:
    root = BoxProcess(pid=1, role="root", command="timeout 22", status=status << 8, gone=T + 7.5)
    failure = _first([root, *_ranks(status=15)], [_lost(0, T + 7.2)])
    assert (failure.kind, failure.number) == ("outside", 15)


def _not_finite(*names: list[str]) -> list[BoxRaised]:
    given: dict[str, Any] = {"type": "AssertionError", "message": "loss is nan", "frames": [_TRAIN]}
    return [
        BoxRaised(t=T + 6 + n / 100, pid=10 + n, rank=n, not_finite=variables, **given)
        for n, variables in enumerate(names)
    ]


def test_the_rank_whose_own_variables_were_not_finite_brought_the_nan() -> None:
    failure = _first(_ranks(), _not_finite(["loss"], ["loss"], ["loss", "x"]))
    assert (failure.rank, failure.detail) == (2, "x")
    failure = _first(_ranks(), _not_finite(["loss", "a"], ["loss"], ["loss", "x"]))
    assert failure.alike == (0, 1, 2)


def test_the_rank_that_printed_nan_a_step_before_the_others_brought_it() -> None:
    ranks = [
        replace(rank, odd=f"[warn] loss of rank {rank.rank} is nan at step {83 + (rank.rank != 1)}", printed=["x"])
        for rank in _ranks()
    ]
    assert _first(ranks, _not_finite([], [], [])).rank == 1
    same = [replace(rank, odd=f"loss of rank {rank.rank} is nan at step 84") for rank in _ranks()]
    assert _first(same, _not_finite([], [], [])).alike == (0, 1, 2)


def test_the_odd_value_in_a_list_of_all_ranks_is_of_its_rank() -> None:
    raised = [
        BoxRaised(t=T + 6, pid=10 + n, rank=n, type="RuntimeError", message="lengths differ: [120, 119, 120]")
        for n in range(3)
    ]
    assert _first(_ranks(), raised).rank == 1


def test_an_exception_that_a_rank_had_caught_is_told_with_its_exit_code() -> None:
    caught = BoxRaised(t=T + 5, pid=12, rank=2, type="OSError", message="Too many open files", code=1)
    failure = _first(_ranks(), [caught, _lost(0), _lost(1)])
    assert words.heading(failure).endswith(
        "OSError: Too many open files (which it caught, and left with exit code 1)"
    )


def test_a_lost_worker_of_a_loader_is_its_ranks_whatever_it_closed() -> None:
    worker = BoxRaised(
        t=T + 6.1, pid=11, rank=1, type="RuntimeError", message="DataLoader worker (pid(s) 77) exited",
        cause="ConnectionRefusedError: [Errno 111] Connection refused",
    )  # fmt: skip
    assert _first(_ranks(), [_lost(0), worker, _lost(2)]).rank == 1


def test_a_rank_that_did_not_come_is_named_with_what_it_did() -> None:
    ranks = _alive_but(2, stack=["/data/train.py:9 in build_index"], cores=[1.0] * 6)
    samples = [BoxSample(t=T + n) for n in range(6)]
    late = [replace(_lost(n), message="Timed out waiting 12000ms for recv operation to complete") for n in (0, 1)]
    failure = _first(ranks, late, samples=samples)
    assert words.heading(failure).endswith("all the others waited for: it was busy in build_index (train.py:9)")
    left = _first(ranks, [_lost(0), _lost(1)], samples=samples)  # by destroy_process_group()
    assert "closed its connections to the others, and lived on: it was busy in build_index" in words.heading(left)


def test_a_worker_that_ended_itself_is_named_with_its_line() -> None:
    worker = BoxProcess(
        pid=77, parent=11, rank=1, role="helper", gone=T + 6, status=0, left_at=["/data/train.py:8 in __getitem__"]
    )
    lost = BoxRaised(
        t=T + 6.1, pid=11, rank=1, type="RuntimeError", message="DataLoader worker (pid(s) 77) exited"
    )
    failure = _first([*_ranks(), worker], [lost])
    assert words.heading(failure).endswith("(pid 77) on h1 ended with exit code 0 in __getitem__ (train.py:8)")


@pytest.mark.parametrize(("t", "kind"), [(T + 6, "absent"), (T + 59.8, "outside")])
def test_what_ranks_had_raised_before_a_signal_from_outside_counts(t: float, kind: str) -> None:
    ranks = _alive_but(1, stack=["/data/train.py:8 in read"])
    signals = [BoxSignal(t=T + 60, number=15, sender=4, by="timeout")]
    assert _first(ranks, [_lost(0, t), _lost(2, t)], signals=signals, ended=T + 61).kind == kind


def test_a_stall_says_where_ranks_are_and_what_they_call() -> None:
    send = _WAIT.replace("all_reduce", "recv")
    ranks = _alive_but(1, stack=[send, "/data/train.py:30 in forward"])
    assert words.heading(_first(ranks, [], stalls=_STALL)).endswith("in forward (train.py:30), which calls recv")
    ranks = [replace(rank, state="S", stack=[_WAIT, f"/data/train.py:{rank.rank} in sync"]) for rank in ranks]
    assert words.heading(_first(ranks, [], stalls=_STALL)) == (
        "the job stalled: ranks wait in different places, rank 0 in sync (train.py:0), "
        "rank 1 in sync (train.py:1), rank 2 in sync (train.py:2)"
    )
    ranks = [replace(rank, stack=_WAITING) for rank in ranks]
    assert words.heading(_first(ranks, [], stalls=_STALL)) == (
        "the job stalled: ranks 0-2 are all in main (train.py:12), which calls all_reduce"
    )
    ranks = [replace(ranks[0], stack=["/data/train.py:4 in bump"]), *ranks[1:]]
    ranks[2] = replace(ranks[2], stack=[_WAIT, "/data/train.py:7 in other"])
    assert "rank 0 on h1" in words.heading(_first(ranks, [], stalls=_STALL))  # the others are in collectives


def test_an_exit_without_a_hook_has_the_exception_that_was_printed_last() -> None:
    ranks = _ranks()
    ranks[1] = replace(ranks[1], gone=T + 5, printed=["step 3", "ValueError: boom", "saving"])
    assert words.heading(_first(ranks, [_lost(0), _lost(2)])).endswith("ended with exit code 1: ValueError: boom")


def test_a_rank_that_is_late_for_the_rendezvous_is_named_with_its_line() -> None:
    ranks = _alive_but(2, stack=["/data/train.py:5 in download"])
    failure = _first(ranks, [_lost(0, **_UNMET), _lost(1, **_UNMET)])
    assert words.heading(failure).endswith("all the others waited for: it was in download (train.py:5)")


@pytest.mark.parametrize(("text", "by", "kind"), [
    ("Memory cgroup out of memory: Killed process 77 (python) total-vm:1kB", {"node": 1}, "killed"),
    ("Memory cgroup out of memory: Killed process 11 (python) total-vm:1kB", {"node": 1}, "memory"),
    ("Memory cgroup out of memory: Killed process 77 (python) total-vm:1kB", {"/job": 1, "node": 1}, "memory"),
    ("Out of memory: Killed process 77 (python) total-vm:1kB", {"node": 1}, "memory"),
])  # fmt: skip
def test_a_process_killed_for_another_cgroups_limit_is_none_of_the_jobs(
    text: str, by: dict[str, int], kind: str
) -> None:
    ranks = _ranks()
    ranks[1] = replace(ranks[1], gone=T + 5, status=9)
    more: dict[str, Any] = {"ooms": [BoxOom(t=T + 5, by=by)], "kernel": [BoxTold(t=T + 5, text=text)]}
    assert _first(ranks, [_lost(0), _lost(2)], **more).kind == kind


def _by_signal(sent: BoxSent, **more: Any) -> BoxFailure:
    """torchrun has got SIGTERM, and ends its ranks."""
    raised = [
        BoxRaised(
            t=T + 7, pid=1, type="SignalException", message="Process 1 got signal: 15", frames=["run.py:9 in x"]
        )
    ]
    root = BoxProcess(pid=1, role="root", command="torchrun train.py", status=1 << 8, gone=T + 7.5)
    return _first([root, *_ranks(status=15)], raised, sent=[sent], **more)


def test_the_rank_that_ended_its_launcher_is_named() -> None:
    at = ["/data/train.py:12 in stop", "/data/train.py:40 in main"]
    failure = _by_signal(BoxSent(t=T + 6.9, pid=12, rank=2, to=1, number=15, at=at))
    assert (failure.kind, failure.rank) == ("outside", 2)
    assert words.heading(failure).endswith("was sent SIGTERM, which rank 2 (pid 12) sent in stop (train.py:12)")


@pytest.mark.parametrize("sent", [
    BoxSent(t=T + 6.9, pid=12, rank=2, to=77, number=15),
    BoxSent(t=T + 6.9, pid=12, rank=2, to=1, number=9),
    BoxSent(t=T - 60, pid=12, rank=2, to=1, number=15),
])  # fmt: skip
def test_who_sent_another_signal_or_to_another_process_is_not_named(sent: BoxSent) -> None:
    assert _by_signal(sent).sent is None


def test_a_rank_of_the_group_that_was_sent_a_signal_is_known_by_its_pid() -> None:
    signals = [BoxSignal(t=T + 7, number=15, sender=11, by="python", of_group=True)]
    failure = _first(_ranks(status=15), [], signals=signals, ended=T + 8)
    assert (failure.kind, words.heading(failure)) == (
        "outside",
        "the job was sent SIGTERM, which rank 1 (pid 11) sent",
    )


def test_a_worker_that_does_not_answer_in_time_is_the_ranks_own() -> None:
    frames = (
        "/data/train.py:16 in main",
        "/opt/lib/python3.11/site-packages/torch/utils/data/dataloader.py:1310 in x",
    )
    failure = _job("RuntimeError", "DataLoader timed out after 8 seconds", frames)
    assert failure is not None
    assert (failure.kind, failure.rank) == ("raised", 1)


@pytest.mark.parametrize(("pid", "by", "told"), [
    (77, {"node": 1}, ["NVRM: Xid 31"]),  # the node's count has the processes of all jobs
    (11, {"node": 1}, ["python invoked oom-killer", "Killed", "NVRM: Xid 31"]),
    (77, {"/job": 1, "node": 1}, ["python invoked oom-killer", "NVRM: Xid 31"]),  # in a namespace of pids
])  # fmt: skip
def test_messages_of_the_memory_of_another_cgroup_are_not_told(
    pid: int, by: dict[str, int], told: list[str]
) -> None:
    killed = f"Memory cgroup out of memory: Killed process {pid} (python) total-vm:1kB"
    texts = ["python invoked oom-killer: order=0", killed, "NVRM: Xid 31"]
    box = Box(
        host="h1", folder="b", processes=_ranks(), ooms=[BoxOom(t=T + 5, by=by)],
        kernel=[BoxTold(t=T + 5.2, text=text) for text in texts],
    )  # fmt: skip
    rows = [row.text for row in by_kernel(box)]
    assert len(rows) == len(told)
    assert all(word in row for word, row in zip(told, rows, strict=True))
