"""What stands behind the first failure of a job: whose it was where all failed alike, who sent, what was full."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Box,
    BoxBegan,
    BoxProcess,
    BoxRaised,
    BoxRoom,
    BoxSample,
    BoxStall,
    Cluster,
    Measurements,
    replace,
)
from ncclcheck.reports.subjects.box import first, pace, words
from ncclcheck.reports.subjects.box.failure import BoxFailure

T = 1_795_000_000.0
_TRAIN = "/data/train.py:12 in main"
_WRAPPED = "/box/h1/site/sitecustomize.py:604 in wait"  # put around torch's own by `watch`
_CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:52437"


def _ranks(**each: Any) -> list[BoxProcess]:
    given = {"role": "rank", "command": "python train.py", "born": T, "gone": T + 7, "status": 1 << 8, **each}
    return [BoxProcess(pid=10 + n, rank=n, **given) for n in range(3)]


def _job(processes: list[BoxProcess], raised: list[BoxRaised], **more: Any) -> tuple[BoxFailure, Cluster]:
    given = {"started": T, "ended": T + 8, "status": 1, "world": 3, **more}
    box = Box(host="h1", folder="b", processes=processes, raised=raised, **given)
    cluster = Cluster(command="watch", measurements=Measurements(boxes=[box]))
    failure = first.end(cluster).first
    assert failure is not None
    return failure, cluster


def _first(processes: list[BoxProcess], raised: list[BoxRaised], **more: Any) -> BoxFailure:
    return _job(processes, raised, **more)[0]


def _say(*messages: str) -> list[BoxRaised]:
    return [
        BoxRaised(t=T + 6 + n / 100, pid=10 + n, rank=n, type="RuntimeError", message=message, frames=[_TRAIN])
        for n, message in enumerate(messages)
    ]


def _lost(*ranks: int) -> list[BoxRaised]:
    return [
        BoxRaised(t=T + 6, pid=10 + n, rank=n, type="RuntimeError", message=_CLOSED, frames=[_TRAIN])
        for n in ranks
    ]


_MODELS = [
    "DDP expects same model across all ranks, but Rank 0 has 6 params, while rank 2 has inconsistent 8 params.",
    "DDP expects same model across all ranks, but Rank 1 has 6 params, while rank 2 has inconsistent 8 params.",
    "DDP expects same model across all ranks, but Rank 2 has 8 params, while rank 0 has inconsistent 6 params.",
]


def test_of_ranks_that_all_fail_the_one_that_says_something_else_is_named() -> None:
    failure = _first(_ranks(), _say(*_MODELS))
    assert (failure.rank, failure.alike) == (2, ())
    assert words.heading(failure).endswith("(as all ranks; it alone differs)")
    assert "rank 1, as all others" in failure.detail
    failure = _first(_ranks(), _say("vocabulary of 32000", "vocabulary of 32001", "vocabulary of 32000"))
    assert failure.rank == 1


@pytest.mark.parametrize("messages", [
    ["rank 0 has no data", "rank 1 has no data", "rank 2 has no data"],
    ["loss 1.5", "loss 2.5", "loss 3.5"],
    ["at 0x7f01", "at 0x7f01", "at 0x7f02"],
    ["a 1 b 2", "a 2 b 1", "a 1 b 1"],
])  # fmt: skip
def test_ranks_that_say_their_own_numbers_fail_all(messages: list[str]) -> None:
    assert _first(_ranks(), _say(*messages)).alike == (0, 1, 2)


def test_a_rank_that_had_asked_to_end_as_its_launcher_ended_it_is_named_with_its_code() -> None:
    ranks = _ranks()
    ranks[1] = replace(ranks[1], status=15, asked=T + 5, code=3, left_at=["/data/train.py:9 in quit"])
    failure = _first(ranks, _lost(0, 2))
    assert (failure.kind, failure.rank, failure.t) == ("exit", 1, T + 5)
    assert words.heading(failure).endswith("ended with exit code 3 in quit (train.py:9)")


def test_a_program_that_a_rank_had_started_may_have_sent_the_signal() -> None:
    ranks = _ranks()
    ranks[2] = replace(ranks[2], gone=T + 5, status=9)
    began = BoxBegan(t=T + 4.9, pid=10, rank=0, command="sh rotate.sh", at=["/data/gan.py:12 in main"])
    failure = _first(ranks, _lost(0, 1), began=[began])
    assert words.heading(failure).endswith(
        "by SIGKILL, perhaps by `sh rotate.sh`, which rank 0 had started 0.1 s before in main (gan.py:12)"
    )
    for other in (replace(began, command="ffmpeg"), replace(began, t=T - 5), replace(began, t=T + 5.5)):
        assert words.heading(_first(ranks, _lost(0, 1), began=[other])).endswith("was ended by SIGKILL")


def test_a_launcher_that_was_ended_before_it_had_started_a_rank_is_named_as_such() -> None:
    root = BoxProcess(pid=1, role="root", command="bash night.sh", status=143 << 8, gone=T + 5.4, born=T)
    torchrun = BoxProcess(pid=2, parent=1, command="/v/python /v/torchrun", status=15, gone=T + 5.3, born=T)
    guard = BoxProcess(pid=3, parent=1, command="bash night.sh", status=0, gone=T + 5.1, born=T)
    sleep = BoxProcess(pid=4, parent=3, command="sleep 5", status=0, gone=T + 5, born=T)
    failure = _first([root, torchrun, guard, sleep], [], world=0, status=143)
    assert words.heading(failure) == (
        "the launcher (torchrun, pid 2) on h1 was ended by SIGTERM, perhaps by bash night.sh (pid 3), "
        "whose `sleep` had just ended"
    )
    failure = _first([root, torchrun, replace(guard, gone=T + 1), replace(sleep, gone=T + 1)], [], world=0)
    assert words.heading(failure) == "the launcher (torchrun, pid 2) on h1 was ended by SIGTERM"


def test_a_full_disk_stands_before_what_torch_says_of_it() -> None:
    raised = _say("[enforce fail at inline_container.cc:672] . unexpected pos 768 vs 662")[:1]
    room = BoxRoom(folder="/data/out", free=0, t=T + 5)
    heading = words.heading(_first(_ranks(), raised, rooms=[room]))
    assert heading.startswith(
        "rank 0 on h1 could not write, for the disk of /data/out is full (0 MiB were left): "
    )
    assert "could not write" not in words.heading(_first(_ranks(), raised, rooms=[replace(room, free=2**40)]))
    assert "could not write" not in words.heading(_first(_ranks(), _say("boom")[:1], rooms=[room]))


def test_a_port_that_is_taken_is_told_with_who_listens_there() -> None:
    taken = replace(_say("[Errno 98] Address already in use")[0], pid=11, rank=1, type="OSError", port=9100)
    who = words.heading(_first(_ranks(), [replace(taken, holder=10, holds="python")]))
    assert who.endswith("Address already in use (port 9100, on which rank 0 (pid 10) listens)")
    who = words.heading(_first(_ranks(), [replace(taken, holder=999, holds="node_exporter")]))
    assert who.endswith("(port 9100, on which node_exporter (pid 999) listens)")
    assert words.heading(_first(_ranks(), [taken])).endswith("(port 9100)")
    beside = BoxProcess(pid=55, role="other", command="python -c ...")
    who = words.heading(_first([*_ranks(), beside], [replace(taken, holder=55, holds="python")]))
    assert who.endswith("(port 9100, on which python (pid 55, which COMMAND has started) listens)")


_SPAWNED = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 87, in _wrap
    fn(i, *args)
  File "/data/train.py", line 14, in main
    net.load_state_dict(state)
RuntimeError: Error(s) in loading state_dict for Net:
\tsize mismatch for inp.weight: copying a param
\tsize mismatch for head.weight: copying another
"""


def test_an_exception_of_several_lines_in_a_spawned_process_begins_at_its_class() -> None:
    raised = BoxRaised(t=T + 5, pid=1, type="ProcessRaisedException", message=_SPAWNED)
    heading = words.heading(_first(_ranks(), [raised]))
    assert ": RuntimeError: Error(s) in loading state_dict for Net: size mismatch for inp.weight: " in heading


def test_what_was_spread_to_all_ranks_is_told() -> None:
    raised = [replace(one, message="weight is not finite") for one in _say("a", "b", "c")]
    of_all = [replace(one, not_finite=["loss", "p"]) for one in raised]
    failure, cluster = _job(_ranks(), of_all)
    told = {row.source: row.value for row in words.evidence(cluster, failure)}
    assert str(told["not finite"]).startswith("loss, p on each of them")


def test_the_pipe_that_a_late_rank_opens_is_named() -> None:
    ranks = _ranks()
    ranks[1] = replace(ranks[1], status=15, stack=["/data/train.py:4 in load"], pipe="/data/wav/31.raw")
    closed = "[/pytorch/gloo/buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
    lost = [
        BoxRaised(
            t=T + 5, pid=10 + n, rank=n, type="RuntimeError", message=closed, frames=["/data/train.py:9 in m"]
        )
        for n in (0, 2)
    ]
    assert words.heading(_first(ranks, lost)).endswith(
        "it was in load (train.py:4), which opens a named pipe (/data/wav/31.raw) that nobody else had opened"
    )


def test_a_file_that_was_cut_is_told_where_sigbus_ended_a_rank() -> None:
    ranks = _ranks()
    ranks[2] = replace(ranks[2], gone=T + 5, status=7, mapped="/data/table.bin was cut")
    assert words.heading(_first(ranks, _lost(0, 1))).endswith("crashed: SIGBUS: /data/table.bin was cut")


def test_a_program_that_the_rank_waited_for_is_told() -> None:
    ranks = _ranks(gone=None, status=None)
    ranks[0] = replace(ranks[0], stack=["/data/sft.py:9 in main"])
    push = BoxProcess(pid=70, parent=10, rank=0, role="helper", command="bash push.sh", born=T + 2)
    late = [replace(event, message="Timed out waiting 14000ms for recv") for event in _lost(1, 2)]
    heading = words.heading(_first([*ranks, push], late))
    assert heading.endswith("in main (sft.py:9), while bash push.sh (pid 70), which it had started, ran")
    assert "push.sh" not in words.heading(_first([*ranks, replace(push, gone=T + 3)], late))


def test_a_lock_file_of_torch_is_named_and_to_be_removed() -> None:
    ranks = _ranks(gone=None, status=None, stack=["/v/site-packages/torch/distributed/x.py:3 in barrier", _TRAIN])
    ranks[0] = replace(
        ranks[0], stack=[_WRAPPED, "/data/kernels.py:10 in load"], lock="/data/build/fused adam.lock"
    )
    failure, cluster = _job(ranks, [], stalls=[BoxStall(t=T + 6, silent=4.0, limit=3.0)])
    heading = words.heading(failure, words.waits(cluster, failure))
    assert (
        "rank 0 on h1 waits for the lock file /data/build/fused adam.lock to go in load (kernels.py:10)" in heading
    )
    assert [fix.commands for fix in words.remedies(cluster, failure)] == [["rm -- '/data/build/fused adam.lock'"]]


def test_one_long_wait_at_the_end_is_no_slow_job() -> None:
    """Whatever other jobs send meanwhile over the node's wires."""
    wrote = [0.0] * 10 + [900.0] * 20 + [0.0] * 20
    looks = [float(n % 2) for n in range(50)]
    ranks = [
        replace(rank, gone=T + 50, apart=[*looks[:30], *[float(not rank.rank)] * 20], wrote=wrote)
        for rank in _ranks()
    ]
    samples = [BoxSample(t=T + n + 0.5, sent=9000.0 if n < 30 else 900.0) for n in range(50)]
    box = Box(host="h1", folder="b", started=T, ended=T + 50, status=1, processes=ranks, samples=samples)
    assert pace.slow(Cluster(measurements=Measurements(boxes=[box]))) is None
    silent = [
        replace(rank, wrote=[0.0] * 50) for rank in ranks
    ]  # on NCCL nothing is known of the ranks themselves
    assert pace.slow(Cluster(measurements=Measurements(boxes=[replace(box, processes=silent)]))) is not None
