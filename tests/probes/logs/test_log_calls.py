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


_STEPS = [f"AllReduce {count} 7 0" for count in range(512, 522)]


def _cut(rank: int, first: int, *calls: str) -> str:
    """Calls from NCCL's number `first` on, without what was printed before them."""
    return "".join(line for line in _rank(rank, *calls, first=first).splitlines(True) if "opCount" in line)


def test_ranks_whose_logs_begin_in_mid_run_are_compared_by_nccls_numbers() -> None:
    one, other = _cut(0, 90, *_STEPS), _cut(1, 92, *_STEPS[2:7], "Broadcast 7 7 0", *_STEPS[8:])
    assert "as opCount 61: pid 101 of h1 Broadcast of 7 (float32), pid 100 of h0 AllReduce of 519" in _what(
        one, other
    )
    assert raised(_cut(0, 90, *_STEPS), _cut(1, 92, *_STEPS[2:])) == {}


def test_numbers_in_mid_run_that_may_be_out_of_step_are_not_compared() -> None:
    assert raised(_cut(0, 90, *_STEPS), _cut(1, 91, *_STEPS)) == {}  # no call before it agrees
    sends = _cut(0, 90, *_STEPS, "Send 8 7 0"), _cut(1, 90, *_STEPS[:7], "Broadcast 7 7 0")
    assert raised(*sends) == {}
    three = [_cut(rank, 90, *_STEPS[:7], f"AllReduce {rank + 1} 7 0") for rank in range(3)]
    assert raised(*three) == {}  # of a communicator of two: not all are of one


def test_a_rank_whose_start_is_seen_and_one_whose_calls_begin_later() -> None:
    later = _rank(1, *_STEPS[2:7], "AllGather 7 7 0", first=2)
    assert "rank 1 AllGather of 7" in _what(_rank(0, *_STEPS), later)
