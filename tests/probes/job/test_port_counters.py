"""Counters of ports before and after a job: how they are read, and what is said of them."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.probes.facts import LinkEvents, Measurements, Policy, Risen, Traffic
from ncclcheck.probes.job.usage import interruptions, port_counters
from ncclcheck.probes.job.usage.traffic import CounterReading
from ncclcheck.reports.judgement.findings import Finding, State
from tests.helpers.clusters import node, verdict
from tests.helpers.trees import tree

PORT = "/sys/class/infiniband/mlx5_0/ports/1"


def test_counters_of_an_hca_rise(tmp_path: Path) -> None:
    files = {
        f"{PORT}/hw_counters/np_cnp_sent": "5\n",
        f"{PORT}/hw_counters/out_of_sequence": "7\n",
        f"{PORT}/counters/symbol_error": "3\n",
        f"{PORT}/counters/link_error_recovery": "1\n",
    }
    before = CounterReading.take(tree(tmp_path, files))
    tree(tmp_path, files | {f"{PORT}/hw_counters/np_cnp_sent": "25\n", f"{PORT}/counters/symbol_error": "0\n"})
    traffic = before.until_now("a")
    assert traffic.counted == ["mlx5_0:1"]
    assert traffic.risen == [Risen(name="mlx5_0:1", counters={"np_cnp_sent": 20})], (
        "one was reset, two did not rise"
    )


def test_old_kernels_count_changes_of_the_carrier(tmp_path: Path) -> None:
    watch = interruptions.InterruptionWatch(tree(tmp_path, {"/sys/class/net/eth0/carrier_changes": "3\n"}))
    tree(tmp_path, {"/sys/class/net/eth0/carrier_changes": "7\n"})
    assert watch.seen("a").links == [LinkEvents(name="eth0", downs=2)]


class Card:
    """What the kernel answers for a card with these statistics."""

    def __init__(self, **statistics: int) -> None:
        self.statistics = statistics

    def asked(self, _: socket.socket, name: str, command: bytes) -> bytes:
        if name != "eth0":
            raise OSError
        kind, count = struct.unpack_from("I", command)[0], len(self.statistics)
        if kind == 0x37:
            return command[:16] + struct.pack("I", count)
        if kind == 0x1B:
            return command[:12] + b"".join(name.encode().ljust(32, b"\0") for name in self.statistics)
        return command[:8] + struct.pack(f"{count}Q", *self.statistics.values())


def test_statistics_of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_counters, "_asked", Card(rx_packets=9, rx_prio3_pause=4, rx_discards_phy=2**40).asked)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        counts = port_counters.statistics(door, "eth0")
        assert counts == [("rx_packets", 9), ("rx_prio3_pause", 4), ("rx_discards_phy", 2**40)]
        assert port_counters.statistics(door, "eth1") == []


def test_the_kernel_is_asked_as_it_wants_it() -> None:
    """Loopback has no statistics; whatever other interfaces there are, each has a name and a number."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        assert port_counters.statistics(door, "lo") == []
        assert port_counters.statistics(door, "none-such") == []
        for _, name in socket.if_nameindex():
            assert all(word.isprintable() and value >= 0 for word, value in port_counters.statistics(door, name))


def findings_of(*ports: dict[str, int], **thresholds: float) -> list[Finding]:
    """Ports mlx5_0 and on of node a."""
    names = [f"mlx5_{index}:1" for index in range(len(ports))]
    risen = [Risen(name=name, counters=counters) for name, counters in zip(names, ports, strict=True) if counters]
    measured = Measurements(traffic=[Traffic(node="a", seconds=20, counted=names, risen=risen)])
    policy = Policy(thresholds=thresholds)
    return verdict("BEN040", node("a"), command="bench", measurements=measured, policy=policy).findings


QUIET: dict[str, int] = {}


@pytest.mark.parametrize(
    ("counters", "state", "words"),
    [
        ({"local_ack_timeout_err": 12}, State.WARN, "local_ack_timeout_err 12"),
        ({"local_ack_timeout_err": 3}, State.NOTE, "local_ack_timeout_err 3"),
        ({"symbol_error": 400}, State.WARN, "symbol_error 400"),
        ({"tx_prio3_pause_duration": 2_000_000}, State.WARN, "told its switch to stop for 10 %"),
        ({"rx_prio3_pause_duration": 4_000_000}, State.NOTE, "was paused for 20 %"),
        ({"rx_prio3_pause_duration": 100_000, "rx_prio3_pause": 60}, None, ""),
        ({"np_cnp_sent": 900_000}, State.NOTE, "np_cnp_sent 900000"),
        ({"out_of_sequence": 10**6}, State.NOTE, "adaptive routing"),
    ],
)
def test_one_port_of_four(counters: dict[str, int], state: State | None, words: str) -> None:
    findings = findings_of(QUIET, QUIET, counters, QUIET)
    assert [finding.state for finding in findings] == ([state] if state else [])
    text = " ".join(f"{finding.where} {finding.what} {finding.evidence}" for finding in findings)
    assert words in text
    assert state is not State.WARN or "mlx5_2:1" in text


@pytest.mark.parametrize("counters", [{"packet_seq_err": 5000}, {"tx_prio3_pause_duration": 2_000_000}])
def test_what_all_ports_have_is_no_port_s_fault(counters: dict[str, int]) -> None:
    assert not [finding for finding in findings_of(*[counters] * 4) if finding.state is State.WARN]


def test_pauses_and_ecn() -> None:
    paused: dict[str, int] = {"rx_prio3_pause_duration": 4_000_000}
    assert "ECN is not set up" in str(findings_of(paused, QUIET, QUIET))
    assert "ECN is not set up" not in str(findings_of(paused, {"rp_cnp_handled": 9}, QUIET))


def test_a_site_has_its_own_bounds() -> None:
    assert (
        findings_of({"symbol_error": 400}, QUIET, QUIET, **{"BEN040.symbol_error": 500.0})[0].state is State.NOTE
    )


@pytest.mark.parametrize("traffic", [[], [Traffic(node="a", seconds=9)]])
def test_nothing_counts(traffic: list[Any]) -> None:
    judged = verdict("BEN040", node("a"), command="bench", measurements=Measurements(traffic=traffic))
    assert judged.state is State.SKIPPED
