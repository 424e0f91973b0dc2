"""What a rank raised of itself, and what it only says of others, where both speak of a connection."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import Box, BoxProcess, BoxRaised, Cluster, Measurements
from ncclcheck.reports.subjects.box import first

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


def _job(kind: str, message: str, frames: tuple[str, ...]) -> first.Failure | None:
    """Rank 1 raises this, and the others lose their connection to it."""
    told = [BoxRaised(t=T + 5, pid=11, rank=1, type=kind, message=message, frames=[*frames])]
    told += [
        BoxRaised(t=T + 6, pid=10 + n, rank=n, type="RuntimeError", message=_CLOSED, frames=[_TRAIN, _WAIT])
        for n in (0, 2)
    ]
    ranks = [
        BoxProcess(pid=10 + n, rank=n, role="rank", command="python", born=T, gone=T + 7, status=1 << 8)
        for n in range(3)
    ]
    box = Box(host="h1", folder="b", started=T, ended=T + 8, status=1, processes=ranks, raised=told, world=3)
    return first.end(Cluster(command="watch", measurements=Measurements(boxes=[box]))).first


@pytest.mark.parametrize(("kind", "message", "frames"), _OWN)
def test_a_connection_to_no_process_of_the_job_is_the_ranks_own(
    kind: str, message: str, frames: tuple[str, ...]
) -> None:
    found = _job(kind, message, frames)
    assert found is not None
    assert (found.kind, found.rank, found.of_others) == ("raised", 1, False)


@pytest.mark.parametrize(("kind", "message", "frames"), _OF_OTHERS)
def test_a_lost_process_of_the_job_is_not(kind: str, message: str, frames: tuple[str, ...]) -> None:
    found = _job(kind, message, frames)
    assert found is None or found.of_others or found.kind in ("absent", "apart")


@pytest.mark.parametrize(("after", "kind"), [(-1.0, "killed"), (2.0, "absent")])
def test_a_rank_that_sigterm_ended_before_the_others_had_ended(after: float, kind: str) -> None:
    """The launcher sends it, too, but to those that are left once one has ended."""
    told = [
        BoxRaised(t=T + 6, pid=10 + n, rank=n, type="RuntimeError", message=_CLOSED, frames=[_TRAIN, _WAIT])
        for n in (0, 2)
    ]
    ranks = [
        BoxProcess(pid=10 + n, rank=n, role="rank", command="python", born=T, gone=T + 7, status=1 << 8)
        for n in (0, 2)
    ]
    ranks.append(BoxProcess(pid=11, rank=1, role="rank", command="python", born=T, gone=T + 7 + after, status=15))
    box = Box(host="h1", folder="b", started=T, ended=T + 12, status=1, processes=ranks, raised=told, world=3)
    found = first.end(Cluster(command="watch", measurements=Measurements(boxes=[box]))).first
    assert found is not None
    assert (found.kind, found.rank) == (kind, 1)
