"""Words of single versions, as their libraries hold them, and what is read from them."""

from __future__ import annotations

from ncclcheck.probes.facts import LogEvent, LogProcess
from ncclcheck.reports.subjects.logs.hangs import hangs
from tests.helpers.logs import parsed

_HEAD = "gpu-a17:4711:4790 [0] "


def _process(*lines: str) -> LogProcess:
    (process,) = parsed("\n".join(f"{_HEAD}NCCL INFO {line}" for line in lines)).processes
    return process


def _event(line: str) -> LogEvent:
    (event,) = parsed(line).events
    return event


def _late(prefix: str, who: str) -> str:
    return (
        f"{prefix}[E1109 22:46:25.933 ProcessGroupNCCL.cpp:683] {who} Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=40, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600002 "
        "milliseconds before timing out."
    )


def test_the_rank_of_the_world_is_torchs_prefix_and_not_the_rank_within_a_group() -> None:
    assert _event(_late("[rank13]:", "[Rank 1]")).rank == 13
    assert _event(_late("step 3: 40 %|####   | 2/5 [rank13]:", "[Rank 1]")).rank == 13
    assert _event(_late("(Policy[rank=13] pid=30988) [rank13]:", "[PG ID 5 PG GUID 37(TP) Rank 1]")).rank == 13
    assert _event(_late("", "[Rank 1]")).rank == 1  # before torch 2.2, where nothing else is told


def test_a_group_is_told_by_its_guid() -> None:
    """The ID counts the groups of one process: two groups of other ranks have the same."""
    who = {0: "29(TP) Rank 0", 1: "29(TP) Rank 1", 8: "37(TP) Rank 0", 9: "37(TP) Rank 1"}
    log = "\n".join(_late(f"[rank{rank}]:", f"[PG ID 5 PG GUID {guid}]") for rank, guid in who.items())
    assert {hang.group: [wait.rank for wait in hang.waits] for hang in hangs(parsed(log))} == {
        "29": [0, 1],
        "37": [8, 9],
    }


def test_a_function_without_a_plain_name_does_not_hide_a_warning() -> None:
    for place in ("init.cc:1 (operator())", "<unknown>:0 (<unknown>)", "/root/p@1/net.cc:5 (f)", "net.cc:5"):
        (event,) = parsed(f"{_HEAD}{place} NCCL WARN something new").events
        assert (event.level, event.host, event.fields["place"]) == ("WARN", "gpu-a17", place.partition(" ")[0])


def test_the_level_between_warnings_and_infos_is_a_record() -> None:
    """ATTN, since 2.32."""
    logs = parsed(
        f"{_HEAD}misc/param.cc:83 (load) NCCL ATTN Invalid value 7x for NCCL_BUFFSIZE, using default -2."
    )
    assert (logs.files[0].records, [process.host for process in logs.processes]) == (1, ["gpu-a17"])


def test_cards_with_rail_and_plane() -> None:
    listed = "NET/IB : Using [0]mlx5_0:1:0/IB [1]mlx5_1:1::1/RoCE [2]mlx5_2:1/IB [RO]; OOB eth0:10.0.3.17<0>"
    assert _process(listed).devices == {"mlx5_0:1": "IB", "mlx5_1:1": "RoCE", "mlx5_2:1": "IB"}


def test_cards_that_nccl_merges() -> None:
    process = _process(
        "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.3.17<0>",
        "NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=400000 ndevs=2",
    )
    assert process.devices["mlx5_0+mlx5_1"] == "IB"


def test_names_of_plugins_with_a_blank() -> None:
    assert _process("NET/Plugin: Loaded net plugin AWS Libfabric (v9)").plugin == "AWS Libfabric"
    assert _process("NET/OFI Using aws-ofi-nccl 1.6.0").plugin == "aws-ofi-nccl 1.6.0"


def test_binomial_trees_are_not_the_trees() -> None:
    assert not _process("Connected binomial trees").trees
    assert _process("Connected all trees").trees


def test_a_nul_before_a_line_is_dropped() -> None:
    """torch's workers write one after what they say of a signal."""
    assert _event("\0ValueError: no such column").sign == "python-error"
