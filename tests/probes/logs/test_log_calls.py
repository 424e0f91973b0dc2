"""NCCL's lines of collectives (NCCL_DEBUG_SUBSYS=COLL), compared between the ranks of a communicator."""

from __future__ import annotations

from tests.helpers.logs import judged, raised

_START = """\
h{rank}:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0x{pid} rank {rank} nranks {world} cudaDev 0 nvmlDev 0 busId 1b000 commId 0x7e11 - Init START
h{rank}:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0x{pid} rank {rank} nranks {world} cudaDev 0 nvmlDev 0 busId 1b000 commId 0x7e11 - Init COMPLETE
"""  # noqa: E501
_CALL = (
    "h{rank}:{pid}:{pid} [0] NCCL INFO {name}: opCount {number:x} sendbuff 0x7ff5 recvbuff 0x7ff5 count {count} "
    "datatype {datatype} op {op} root 0 comm 0x{pid} [nranks=2] stream 0x56\n"
)


def _rank(rank: int, *calls: str, world: int = 2, first: int = 0) -> str:
    """A rank that calls these: `AllReduce 1024 7 0`, the name, count, type and operation."""
    log = _START.format(rank=rank, pid=100 + rank, world=world)
    for number, call in enumerate(calls, first):
        name, count, datatype, op = call.split()
        log += _CALL.format(
            rank=rank, pid=100 + rank, name=name, number=number, count=count, datatype=datatype, op=op
        )
    return log


def _what(*texts: str) -> str:
    (finding,) = judged(*texts)["LOG084"].findings
    return finding.what


def test_a_count_that_differs_is_named_with_its_place() -> None:
    logs = [_rank(rank, "AllReduce 1024 7 0", f"AllReduce {1024 + rank} 7 0") for rank in range(2)]
    assert raised(*logs)["LOG084"] == "fail"
    assert "as call 2" in _what(*logs)
    assert "AllReduce of 1025 (float32, sum)" in _what(*logs)


def test_the_rank_that_alone_calls_another_thing_is_accused() -> None:
    calls = ["AllReduce 8 7 0", "AllReduce 8 7 0", "Broadcast 8 7 0", "AllReduce 8 7 0"]
    logs = [_rank(rank, "AllReduce 8 7 0", call, world=4) for rank, call in enumerate(calls)]
    (finding,) = judged(*logs)["LOG084"].findings
    assert finding.where.rank == 2


def test_two_ranks_that_differ_accuse_nobody() -> None:
    (finding,) = judged(_rank(0, "AllReduce 8 7 0"), _rank(1, "AllReduce 8 6 0"))["LOG084"].findings
    assert finding.where.rank is None
    assert "float16" in finding.what


def test_sends_between_some_ranks_are_no_difference() -> None:
    some = _rank(0, "AllReduce 8 7 0", "Send 512 7 0", "AllReduce 16 7 0")
    others = _rank(1, "AllReduce 8 7 0", "AllReduce 16 7 0")
    assert "LOG084" not in raised(some, others)


def test_a_rank_that_is_behind_and_a_log_that_begins_later_are_no_difference() -> None:
    whole = _rank(0, "AllReduce 8 7 0", "AllReduce 16 7 0")
    assert "LOG084" not in raised(whole, _rank(1, "AllReduce 8 7 0"))
    assert "LOG084" not in raised(whole, _rank(1, "AllReduce 16 7 0", "AllReduce 32 7 0", first=1))


def test_only_the_last_calls_are_kept_and_they_stay_in_step() -> None:
    calls = [f"AllReduce {count} 7 0" for count in range(1, 700)]
    assert "LOG084" not in raised(_rank(0, *calls), _rank(1, *calls))
    assert "as call 699" in _what(_rank(0, *calls), _rank(1, *calls[:-1], "AllReduce 9 7 0"))
