"""Rules about speed in logs: what was left on, what is far, what is idle; healthy runs have nothing."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, raised
from tests.helpers.nccl_lines import ROCE, info, log, process, via

_OPERATION = (
    "AllReduce: opCount {:x} sendbuff 0x7f01 recvbuff 0x7f02 count 1048576 datatype 7 op 0 root 0 comm 0x55"
)
_PARTS = "kernels 0.31, bootstrap {}, allgathers 0.01, topo 0.22, graphs 0.02, connections 0.18, rest 0.03"
_CALL = "oak1:700:740 NCCL CALL ncclAllReduce(0x7f01,0x7f02,1048576,7,0,0x55,0x55)"
_STREAM = "NET/Socket: Using 1 threads and 1 sockets per thread"
_TWO_CARDS = "[0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]"
_FAR = "Pattern 4, crossNic 0, nChannels 2, bw 12.000000/12.000000, type NVL/{}, sameChannels 1"


def _host(*words: str) -> list[str]:
    """Two ranks on one host."""
    first = process("oak1", 0, *words, network="Socket", local=2)
    return [*first, *process("oak1", 1, *words, network="Socket", local=2, pid=701)]


def _shared(host: str = "oak1", first: int = 0) -> list[str]:
    return [via(host, "SHM/direct/direct", source=first, target=first + 1),
            via(host, "SHM/direct/direct", pid=701, source=first + 1, target=first)]  # fmt: skip


def _pair(*words: str, network: str = "IB", devices: str = "[0]mlx5_0:1/IB [RO]") -> list[str]:
    """One rank on each of two hosts."""
    first = process("oak1", 0, *words, network=network, devices=devices)
    return [*first, *process("oak2", 1, *words, network=network, devices=devices)]


def _timings(total: float, bootstrap: float, rank: int = 0) -> str:
    parts = _PARTS.format(f"{bootstrap:.2f}")
    return info(
        f"oak{rank + 1}", f"Init timings - ncclCommInitRank: rank {rank} nranks 2 total {total:.2f} ({parts})"
    )


def _collectives(count: int) -> list[str]:
    return [info("oak1", _OPERATION.format(number)) for number in range(count)]


def _named(text: str) -> dict[str, str]:
    return {code: state for code, state in raised(text).items() if "LOG110" <= code < "LOG130"}


def _setting(name: str, value: str, network: str = "Socket") -> str:
    return log(process("oak1", 0, f"{name} set by environment to {value}.", network=network))


CASES = {
    "SHM beside NVLinks": (log(_host(), info("oak1", "+ NVL[240.0] - NVS/0"), _shared()), {"LOG110": "warn"}),
    "SHM, and nothing speaks against it": (log(_host(), _shared()), {}),
    "SHM by a setting": (
        log(_host("NCCL_P2P_DISABLE set by environment to 1."), info("oak1", "+ NVL[240.0] - NVS/0"), _shared()),
        {},  # a note of LOG111: all ranks came through
    ),
    "SHM for some pairs": (
        log(_host(), info("oak1", "+ NVL[240.0] - NVS/0"), _shared(), via("oak1", "P2P/IPC")),
        {},
    ),
    "an algorithm by hand": (_setting("NCCL_ALGO", "Tree"), {"LOG111": "warn"}),
    "an algorithm by a cloud's profile": (_setting("NCCL_PROTO", "simple", "AWS Libfabric"), {}),
    "a setting at its default": (_setting("NCCL_P2P_DISABLE", "0"), {}),
    "GPUDirect RDMA switched off": (_setting("NCCL_NET_GDR_LEVEL", "LOC"), {"LOG111": "warn"}),
    "GPUDirect RDMA further than by default": (_setting("NCCL_NET_GDR_LEVEL", "PHB"), {}),
    "an interface by hand": (_setting("NCCL_SOCKET_IFNAME", "eth0"), {}),
    "TRACE": (log("+ export NCCL_DEBUG=TRACE", _host()), {"LOG112": "warn"}),
    "calls": (log(_host(), _CALL), {"LOG112": "warn"}),
    "all subsystems, and no collective": (log("export NCCL_DEBUG_SUBSYS=ALL", _host()), {}),
    "all subsystems, and collectives": (
        log("export NCCL_DEBUG_SUBSYS=ALL", _host(), _collectives(8)),
        {"LOG112": "warn"},
    ),
    "a log full of collectives": (log(_host(), _collectives(300)), {"LOG112": "warn"}),
    "one stream on a fast card": (
        log(_pair(_STREAM, "+ NET[12.5] - NET/0 (0/0/12.500000)", network="Socket")),
        {"LOG113": "warn"},
    ),
    "one stream on a slow card": (
        log(_pair(_STREAM, "+ NET[1.2] - NET/0 (0/0/1.250000)", network="Socket")),
        {},
    ),
    "several streams": (
        log(_pair(_STREAM.replace("1", "4"), "+ NET[12.5] - NET/0", network="Socket")),
        {},
    ),
    "a slow start": (log(_pair(), _timings(171.6, 170.8), _timings(171.7, 170.9, 1)), {"LOG114": "warn"}),
    "a quick start": (log(_pair(), _timings(1.6, 0.8), _timings(1.7, 0.9, 1)), {}),
    "cards behind the other processor": (log(_pair(_FAR.format("SYS"))), {"LOG115": "warn"}),
    "cards behind the processor, and GPUDirect RDMA": (
        log(_pair(_FAR.format("PHB")), via("oak1", "NET/IB/0/GDRDMA")),
        {},
    ),
    "cards behind the processor": (log(_pair(_FAR.format("PHB"))), {"LOG115": "warn"}),
    "cards below the same switch": (log(_pair(_FAR.format("PXB"))), {}),
    "small packets": (
        log(_pair("NET/IB: IbDev 0 Port 1 qpn 10 mtu 3 GID 3 (0/B)", devices=ROCE)),
        {"LOG116": "warn"},
    ),
    "large packets": (log(_pair("NET/IB: IbDev 0 Port 1 qpn 10 mtu 5 GID 3 (0/B)", devices=ROCE)), {}),
    "one card of two": (
        log(process("oak1", 0, devices=_TWO_CARDS, ranks=4, local=2),
            process("oak1", 1, devices=_TWO_CARDS, ranks=4, local=2, pid=701),
            [via("oak1", "NET/IB/0/GDRDMA", target=2)] * 2,
            [via("oak1", "NET/IB/0/GDRDMA", pid=701, source=1, target=3)] * 2),
        {"LOG117": "warn"},
    ),
    "one card of two, but few connections": (
        log(process("oak1", 0, devices=_TWO_CARDS, ranks=4, local=2),
            process("oak1", 1, devices=_TWO_CARDS, ranks=4, local=2, pid=701),
            via("oak1", "NET/IB/0/GDRDMA", target=2), via("oak1", "NET/IB/0/GDRDMA", pid=701, source=1, target=3)),
        {},
    ),
    "both cards": (
        log(process("oak1", 0, devices=_TWO_CARDS, ranks=4, local=2),
            process("oak1", 1, devices=_TWO_CARDS, ranks=4, local=2, pid=701),
            via("oak1", "NET/IB/0/GDRDMA", target=2), via("oak1", "NET/IB/1/GDRDMA", pid=701, source=1, target=3)),
        {},
    ),
    "one card for eight GPUs, by hand": (
        log(process("oak1", 0, "NCCL_IB_HCA set by environment to =mlx5_0", ranks=16, local=8)),
        {"LOG117": "warn"},
    ),
    "a slow PCIe link": (log(_host("+ PCI[3.0] - GPU/1c000 (1)")), {"LOG118": "warn"}),
    "a PCIe link of a quarter": (
        log(_host("+ PCI[24.0] - GPU/1b000 (0)", "+ PCI[6.0] - GPU/1c000 (1)")),
        {"LOG118": "warn"},
    ),
    "a PCIe link of full speed": (log(_host("+ PCI[24.0] - GPU/1c000 (1)")), {}),
    "a slow link by lspci": (log("LnkSta: Speed 16GT/s, Width x4 (downgraded)", _host()), {"LOG118": "warn"}),
    "NVLinks that differ": (log(_host("+ NVL[240.0] - NVS/0", "+ NVL[200.0] - NVS/0")), {"LOG119": "warn"}),
    "NVLinks between pairs": (log(_host("+ NVL[44.0] - GPU/1b000", "+ NVL[22.0] - GPU/1c000")), {}),
    "a straggler": (log(_pair(), "Straggler detected on rank 1: score 0.61"), {"LOG120": "warn"}),
    "the slowest rank": (log(_pair(), "slowest rank: 1 (812 ms a step)"), {"LOG120": "warn"}),
    "no straggler": (log(_pair(), "Straggler detection: no stragglers found"), {}),
    "a hot GPU": (log(_host(), "        HW Thermal Slowdown               : Active"), {"LOG120": "warn"}),
    "a cool GPU": (log(_host(), "        HW Thermal Slowdown               : Not Active"), {}),
    "one card for eight GPUs, for there is no other": (log(process("oak1", 0, ranks=16, local=8)), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_mode_is_named_by_its_own_rule(name: str) -> None:
    text, expected = CASES[name]
    assert _named(text) == expected


def test_the_rank_that_came_last_is_named() -> None:
    finding = judged(log(_pair(), _timings(171.6, 170.8), _timings(1.2, 0.3, 1)))["LOG114"].findings[0]
    assert (finding.where.node, finding.where.rank) == ("oak2", 1)
    assert "bootstrap" in finding.what


def test_shared_memory_that_other_hosts_do_not_need() -> None:
    there = [*process("oak2", 2, ranks=4, local=2), *process("oak2", 3, ranks=4, local=2, pid=701)]
    here = [*process("oak1", 0, ranks=4, local=2), *process("oak1", 1, ranks=4, local=2, pid=701)]
    text = log(here, there, _shared(), via("oak2", "P2P/CUMEM", source=2, target=3))
    finding = judged(text)["LOG110"].findings[0]
    assert (finding.state.value, finding.where.node) == ("warn", "oak1")


def test_what_may_be_right_is_a_note() -> None:
    assert judged(CASES["SHM, and nothing speaks against it"][0])["LOG110"].state.value == "note"
    assert judged(CASES["one stream on a slow card"][0])["LOG113"].state.value == "note"
