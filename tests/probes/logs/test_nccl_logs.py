"""NCCL's log as facts: every range of versions, lines of many ranks in one file, and bytes of any kind."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import Endpoint, NetDevice, Transport, Unread
from ncclcheck.probes.logs.files.lines import LONGEST, OtherLine, Record, read, split
from ncclcheck.probes.logs.nccl_lines import place
from ncclcheck.probes.logs.nccl_lines.records import Log
from ncclcheck.probes.logs.nccl_lines.transports import transport
from ncclcheck.probes.logs.nccl_lines.vias import Via, via
from tests.helpers.trees import RECORDED, needs_recorded

LOGS = Path(__file__).resolve().parents[2] / "data/logs"
CASES = RECORDED.parent.parent / "reference/log_cases.json"
ABSENT = Unread("absent", "the log does not say it")


def _log(data: bytes) -> Log:
    return Log().take(read(io.BytesIO(data)))


def _told(name: str, pid: int, rank: int, local: set[int]) -> Transport:
    return transport(_log((LOGS / f"{name}.log").read_bytes()), pid, rank, "here", local)


def _kinds(facts: Transport) -> dict[tuple[str, str], tuple[int, list[int]]]:
    assert not isinstance(facts.connections, Unread)
    return {
        (connection.kind, connection.peers): (connection.count, connection.devices)
        for connection in facts.connections
    }


# name: pid, rank, ranks of its node; version, interface and address of the bootstrap, network; kinds
@pytest.mark.parametrize(
    ("name", "pid", "rank", "local", "version", "bootstrap", "network", "kinds"),
    [
        (
            "nccl-2.10-infiniband", 5110, 0, {0, 1}, "2.10.3", ("ib1", "10.61.4.3"), "IB",
            {("NET/IB/GDRDMA", "inter"): (3, [0, 1]), ("P2P/IPC", "intra"): (2, [])},
        ),
        (
            "nccl-2.14-shared-memory", 900, 1, {0, 1}, ABSENT, ("enp65s0", "172.30.8.11"), "Socket",
            {("SHM", "intra"): (2, [])},
        ),
        (
            "nccl-2.18.1-sockets", 3301, 0, {0}, "2.18.1", ("bond0", "10.140.2.7"), "Socket",
            {("NET/Socket", "inter"): (4, [0])},
        ),
        (
            "nccl-2.21-roce", 771, 2, {2, 3}, ABSENT, ("bond4", "10.9.70.19"), "IB",
            {("NET/IB", "inter"): (2, [0, 1]), ("P2P/CUMEM", "intra"): (2, [])},
        ),
        (
            "nccl-2.24-many-rails", 64, 0, set(range(8)), "2.24.3", ("eno2", "192.168.40.12"), "IB",
            {
                ("NET/IB/GDRDMA", "inter"): (1, [0]), ("P2P/CUMEM", "intra"): (1, []),
                ("COLLNET/SHARP/GDRDMA", "inter"): (1, [1]),
            },
        ),
        (
            "nccl-2.27-efa", 210, 0, {0}, "2.27.7", ("enp71s0", "10.0.9.4"), "AWS Libfabric",
            {("NET/AWS Libfabric/GDRDMA", "inter"): (2, [3])},
        ),
        (
            "nccl-2.30-stuck", 48, 0, {0}, "2.30.7", ("eth1", "10.44.0.4"), "IB",
            {("NET/IB/GDRDMA", "inter"): (1, [0])},
        ),
    ],
)  # fmt: skip
def test_each_range_of_versions(
    name: str, pid: int, rank: int, local: set[int], version: object, bootstrap: tuple[str, str], network: str,
    kinds: object,
) -> None:  # fmt: skip
    facts = _told(name, pid, rank, local)
    assert facts.version == version
    assert facts.bootstrap == Endpoint(interface=bootstrap[0], address=bootstrap[1])
    assert facts.network == network
    assert _kinds(facts) == kinds
    assert facts.communicators == 1


def test_what_else_a_log_tells() -> None:
    old = _told("nccl-2.10-infiniband", 5110, 0, {0, 1})
    assert [device.name for device in old.devices] == ["mlx5_4:1", "mlx5_7:1"]
    assert (old.channels, old.nranks, old.rings, old.trees, old.completed, old.bus_id) == (
        2, 4, True, True, 1, "1b000",
    )  # fmt: skip
    shared = _told("nccl-2.14-shared-memory", 900, 1, {0, 1})
    assert "libibverbs" in shared.no_infiniband
    assert [interface.interface for interface in shared.interfaces] == ["enp65s0", "docker0"]
    roce = _told("nccl-2.21-roce", 771, 2, {2, 3})
    assert roce.devices[0] == NetDevice(name="mlx5_2:1", index=0, link="RoCE", gpudirect=False)
    assert (roce.nnodes, roce.nvls) == (2, None)
    rails = _told("nccl-2.24-many-rails", 64, 0, set(range(8)))
    assert rails.devices == [
        NetDevice(name="mlx5_0:1+mlx5_1:1", index=0, link="RoCE", gpudirect=True),
        NetDevice(name="mlx5_2:1+mlx5_3:1", index=1, link="RoCE", gpudirect=True),
    ]
    assert (rails.nvls, rails.channels, rails.tuner) == (True, 16, "libnccl-tuner-oak.so")
    assert _told("nccl-2.27-efa", 210, 0, {0}).plugin == "aws-ofi-nccl 1.16.3"


def test_a_rank_that_is_stuck_has_begun_and_not_completed() -> None:
    facts = _told("nccl-2.30-stuck", 48, 0, {0})
    assert (facts.communicators, facts.completed) == (1, 0)
    assert facts.warnings == [
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, "
        "next state RTR"
    ]
    assert facts.devices[0].speed_mbit == 200000
    assert facts.unknown_samples == ["a sentence that no release has printed so far"]


@pytest.mark.parametrize("name", sorted(path.stem for path in LOGS.glob("*.log")))
def test_lines_of_healthy_logs_are_understood(name: str) -> None:
    """All that NCCL printed is known, but for two lines: an old one without meaning, and one that we made up."""
    log = _log((LOGS / f"{name}.log").read_bytes())
    unknown = [sample for process in log.processes.values() for sample in process.samples]
    assert set(unknown) <= {"Launch mode Parallel", "a sentence that no release has printed so far"}


def test_ranks_that_share_a_pipe_are_told_apart() -> None:
    log = _log((LOGS / "interleaved.log").read_bytes())
    assert sorted(log.processes) == [("elm1", 10), ("elm2", 20)]
    for (_, pid), rank in zip(sorted(log.processes), (0, 1), strict=True):
        facts = transport(log, pid, rank, "here", {rank})
        assert {key: count for key, (count, _) in _kinds(facts).items()} == {("NET/Socket", "inter"): 1}
        assert (facts.communicators, facts.completed) == (1, 1)


def test_connections_of_a_smaller_communicator_are_not_counted_as_those_of_the_world() -> None:
    """Rank 9 of the world is rank 1 of a group with a rank of another node: 0 is no rank of its node there."""
    lines = [
        "n:5:5 [0] NCCL INFO ncclCommInitRank comm 0xa rank 9 nranks 16 cudaDev 1 busId 2 commId 0x1 - Init START",
        "n:5:5 [0] NCCL INFO comm 0xa rank 9 nRanks 16 nNodes 2 localRanks 8 localRank 1 MNNVL 0",
        "n:5:5 [0] NCCL INFO Channel 00/0 : 9[1] -> 8[0] via P2P/CUMEM",
        "n:5:5 [0] NCCL INFO ncclCommInitRank comm 0xa rank 9 nranks 16 busId 2 commId 0x1 - Init COMPLETE",
        "n:5:5 [0] NCCL INFO ncclCommInitRank comm 0xb rank 1 nranks 2 busId 2 commId 0x2 - Init START",
        "n:5:5 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0",
        "n:5:5 [0] NCCL INFO ncclCommInitRank comm 0xb rank 1 nranks 2 busId 2 commId 0x2 - Init COMPLETE",
        "n:5:6 [0] NCCL INFO Channel 00/0 : 9[1] -> 10[2] [send] via NET/IB/0",
    ]
    facts = transport(_log("\n".join(lines).encode()), 5, 9, "here", set(range(8, 16)))
    assert _kinds(facts) == {
        ("P2P/CUMEM", "intra"): (1, []),
        ("NET/IB", "unknown"): (1, [0]),
        ("NET/IB", "intra"): (1, [0]),
    }
    assert (facts.communicators, facts.completed, facts.nranks) == (2, 2, 16)


@pytest.mark.parametrize(("local", "peers"), [({0, 1}, "intra"), ({0}, "inter")])
def test_ranks_of_one_host_without_p2p_and_shm_are_no_hosts_of_their_own(local: set[int], peers: str) -> None:
    """NCCL 2.27.7, NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1: two ranks of one host are two nodes to it."""
    lines = [
        "n:5:5 [0] NCCL INFO ncclCommInitRank comm 0xa rank 0 nranks 2 cudaDev 0 busId 2 commId 0x1 - Init START",
        "n:5:5 [0] NCCL INFO comm 0xa rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
        "n:5:5 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0",
        "n:5:5 [0] NCCL INFO ncclCommInitRank comm 0xa rank 0 nranks 2 busId 2 commId 0x1 - Init COMPLETE",
    ]
    facts = transport(_log("\n".join(lines).encode()), 5, 0, "here", local)
    assert _kinds(facts) == {("NET/Socket", peers): (1, [0])}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P2P/IPC/read", Via("P2P/IPC")),
        ("P2P/direct pointer/read", Via("P2P/direct pointer")),
        ("P2P/indirect/2[2]/read", Via("P2P/indirect")),
        ("P2P/MNNVL", Via("P2P/MNNVL")),
        ("direct shared memory", Via("SHM")),
        ("SHM/CE/direct with CE", Via("SHM")),
        ("NET/IB/3(12)/GDRDMA/Shared", Via("NET/IB/GDRDMA", 3)),
        ("NET/IBext_v8/0/GDRDMA(PCI)", Via("NET/IBext_v8/GDRDMA", 0)),
        ("NET/Socket/x", Via("NET/Socket")),
        ("carrier pigeon", Via("other")),
    ],
)
def test_vias(text: str, expected: Via) -> None:
    assert via(text) == expected


def test_warnings_carry_no_place_and_no_time() -> None:
    line = b"[2026-01-02 03:04:05] n1:7:8 [3] misc/socket.cc:49 NCCL WARN something: went wrong\n"
    (empty, record) = split(line)
    assert empty == OtherLine(0, "[2026-01-02 03:04:05] ")
    assert record == Record(0, "n1", 7, 8, 3, "WARN", "misc/socket.cc:49", "something: went wrong")


@given(st.binary(max_size=2000))
@settings(max_examples=200)
def test_any_bytes_are_survived(data: bytes) -> None:
    glued = b"n:1:2 [0] NCCL INFO " + data + b"n:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via " + data
    for given_ in (data, glued):
        log = _log(given_)
        facts = transport(log, 1, 0, "here", {0})
        assert msgspec.json.decode(msgspec.json.encode(facts), type=Transport) == facts


_WORDS = st.sampled_from(
    ["comm 0xa", "rank", "nranks", "- Init START", "Init COMPLETE", "via", "NET/IB/", "Channel 00/0 :", "[send]",
     "Using", "[0]={", "}", "mlx5_0:1/IB", "eth0:1.2.3.4<0>", "->", "9999999", "-1", "coll channels,", "Bootstrap"]
)  # fmt: skip


@given(st.lists(_WORDS, max_size=12), st.lists(_WORDS, max_size=12))
@settings(max_examples=200)
def test_broken_lines_of_nccl_itself_are_survived(first: list[str], other: list[str]) -> None:
    text = "".join(f"n:1:2 [0] NCCL INFO {' '.join(words)}\n" for words in (first, other, first))
    facts = transport(_log(text.encode()), 1, 0, "here", {0})
    msgspec.json.decode(msgspec.json.encode(facts), type=Transport)


def test_an_endless_line_is_cut_and_the_next_one_is_read() -> None:
    data = b"x" * (50 * LONGEST) + b"\nn:1:1 [0] NCCL INFO Using network Socket\n"
    lines = list(read(io.BytesIO(data)))
    assert [type(line) for line in lines] == [OtherLine, Record]
    assert len(lines[0].text) == LONGEST
    assert list(read(io.BytesIO(data), most=10 * LONGEST)) == lines[:1]


def test_hostile_lines_cost_little_time() -> None:
    """Lines made to look like records again and again; half a megabyte of them within a second or so."""
    line = (b"a:1:2 " * 600 + b"NCCL INFO " + b"[0]mlx5_0:1/IB " * 20 + b":1" * 300)[: LONGEST - 2] + b"\n"
    begun = time.process_time()
    log = _log(line * 128)
    assert time.process_time() - begun < 2
    assert log.records == 128


def test_memory_is_bounded_by_counting() -> None:
    """As many peers as one likes: their connections are counted, beyond a bound without their names."""
    head = "n:1:1 [0] NCCL INFO comm 0xa rank 0 nranks 999999 busId 1 - Init START\n"
    lines = (f"n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> {peer}[1] via NET/IB/0\n" for peer in range(1, 70000))
    log = _log((head + "".join(lines)).encode())
    (process,) = log.processes.values()
    assert len(process.largest.seen) <= 65537
    assert sum(process.largest.seen.values()) == 69999


class TestOurOwnLog:
    """Where it is written, and that the user's own settings are kept."""

    def test_nothing_is_set(self) -> None:
        chosen = place.choose({}, "/run/a%b")
        assert chosen.added["NCCL_DEBUG"] == "INFO"
        assert chosen.added["NCCL_DEBUG_FILE"] == "/run/a%%b/nccl.%p.log"
        assert place.expand(chosen.pattern, 17, "node.site") == "/run/a%b/nccl.17.log"

    @pytest.mark.parametrize("level", ["WARN", "VERSION"])
    def test_a_lower_level_is_raised_into_our_own_file(self, level: str) -> None:
        assert place.choose({"NCCL_DEBUG": level}, "/run").added["NCCL_DEBUG"] == "INFO"

    def test_own_subsystems_and_level_stay(self) -> None:
        added = place.choose({"NCCL_DEBUG": "trace", "NCCL_DEBUG_SUBSYS": "ALL"}, "/run").added
        assert set(added) == {"NCCL_DEBUG_FILE"}

    def test_an_own_file_is_left_alone(self) -> None:
        silent = place.choose({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/logs/%h.%p"}, "/run")
        assert (silent.added, "NCCL_DEBUG is WARN" in silent.problem) == ({}, True)
        file = place.choose({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/logs/%h.%p.100%%"}, "/run")
        assert (file.added, file.problem) == ({}, "")
        assert place.expand(file.pattern, 9, "oak7.site") == "/logs/oak7.9.100%"

    def test_reading_it(self, tmp_path: Path) -> None:
        """A rank with a log, one that printed instead, and one that wrote nothing."""
        (tmp_path / "nccl.771.log").write_bytes((LOGS / "nccl-2.21-roce.log").read_bytes())
        (tmp_path / "printed").write_bytes((LOGS / "nccl-2.10-infiniband.log").read_bytes())
        chosen = place.choose({}, str(tmp_path))
        pids = {2: 771, 0: 5110, 3: 999}
        transports = place.transports(chosen, pids, "here", str(tmp_path / "printed"), pids.keys())
        assert [(facts.rank, facts.network) for facts in transports][:2] == [(0, "IB"), (2, "IB")]
        assert isinstance(transports[2].connections, Unread)
        assert f"NCCL wrote no log to {tmp_path}/nccl.999.log" in transports[2].connections.why

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "nccl.5.log")
        (facts,) = place.transports(place.choose({}, str(tmp_path)), {0: 5}, "here", "", {0})
        assert isinstance(facts.connections, Unread)

    def test_a_user_whose_log_says_nothing_is_told_why(self) -> None:
        chosen = place.choose({"NCCL_DEBUG_FILE": "/logs/x"}, "/run")
        (facts,) = place.transports(chosen, {0: 5}, "here", "", {0})
        assert facts.connections == Unread("recorded", chosen.problem)


@needs_recorded
def test_recorded_logs_are_survived() -> None:
    """nccl-tests' own output holds no line of NCCL; dmesg and all else neither."""
    for path in sorted(RECORDED.rglob("*.log")):
        log = _log(path.read_bytes()[: 2**20])
        assert log.records == 0 or log.processes


@pytest.mark.skipif(not CASES.is_file(), reason="no public cases here")
def test_lines_of_public_cases() -> None:
    """Their key lines, as NCCL would have printed them, are read; transports among them are told apart."""
    for case in json.loads(CASES.read_text()):
        text = "".join(f"n:1:1 [0] NCCL INFO {line}\n" for line in case["key_lines"])
        log = _log(text.encode())
        assert log.records >= len(case["key_lines"])
    sentence = "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
    assert _log(f"n:1:1 [0] NCCL INFO {sentence}\n".encode()).processes["n", 1].direct == {"mlx5_0": False}
