"""Rules about RDMA in logs: each mode is named by its own rule, and healthy runs by none."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, raised
from tests.helpers.nccl_lines import IB, ROCE, info, log, process, via, warn

_PEER = "NET/IB : Got completion from peer 10.30.0.12<40117> with"
_QP = "Call to ibv_modify_qp failed with"
_UNANSWERED = f"{_PEER} error 12, opcode 0, len 0, vendor err 129"
_AT = "on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 3, local GID"
_TIMED_OUT = f"{_QP} error Connection timed out"
_REFUSED = f"{_PEER} error 4, opcode 5327, len 5327, vendor err 81 (Send)"
_FLUSHED = f"{_PEER} status=5 opcode=0 len=0 vendor err 249 (Recv)"
_MIXED = "NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE."
_ACROSS = f"{_QP} 110 Connection timed out, {_AT} ::ffff:10.1.0.5, remote GID ::ffff:10.2.0.6"
_STEP = "iteration     1200/   50000 | loss 2.113"
_PLUGIN = "Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so"
_TCP = "NCCL_NET set by environment to Socket"
_OFF = "NCCL_IB_DISABLE set by environment to 1."
_GDR_OFF = "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
_REGISTER = "Call to ibv_reg_mr"
_NO_MEMORY = "failed with error Cannot allocate memory"


def _two(
    *words: str, network: str = "IB", devices: str = IB, version: str = "2.21.5", ranks: int = 2
) -> list[str]:
    both = [
        process(host, rank, *words, network=network, devices=devices, version=version, ranks=ranks)
        for rank, host in enumerate(("yew1", "yew2"))
    ]
    return [*both[0], *both[1]]


def _named(text: str) -> dict[str, str]:
    return {code: state for code, state in raised(text).items() if "LOG030" <= code < "LOG050"}


_OLD_SOCKETS = ("Failed to open libibverbs.so[.1]", "NET/IB : No device found.")

CASES = {
    "no library, no hint of a card": (log(_two(*_OLD_SOCKETS, network="Socket", version="2.18.1")), {}),
    "no device, and the other host has one": (
        log(process("yew1", 0), process("yew2", 1, "NET/IB : No device found.", network="Socket")),
        {"LOG030": "warn"},
    ),
    "no device, and cards are asked for": (
        log(_two("NCCL_IB_HCA set by environment to mlx5", "NET/IB : No device found.", network="Socket")),
        {"LOG030": "warn"},
    ),
    "no device, and a card is listed": (
        log("CA 'mlx5_0'", _two("NET/IB : No device found.", network="Socket")),
        {"LOG030": "warn"},
    ),
    "sockets are asked for": (
        log(_two(_TCP, "NCCL_IB_HCA set by environment to mlx5", network="Socket")),
        {},
    ),
    "sockets are asked for, and there is a card": (
        log("CA 'mlx5_0'", _two(_TCP, network="Socket")),
        {"LOG030": "warn"},
    ),
    "hosts of two kinds": (log(process("yew1", 0), process("yew2", 1, devices=ROCE)), {"LOG044": "fail"}),
    "RDMA is asked for and not there": (log(warn("yew1", "Error: network IB not found.")), {"LOG030": "fail"}),
    "another network is not there": (
        log(warn("yew1", "Error: network FasTrak not found.")),
        {"LOG030": "fail"},
    ),
    "a card cannot be opened, and the job goes on": (
        log(_two("NET/IB : Unable to open device mlx5_0", network="Socket")),
        {"LOG031": "warn"},
    ),
    "a card cannot be opened, and no end is told": (
        log(warn("yew1", "Call to ibv_open_device failed")),
        {"LOG031": "warn"},
    ),
    "a card cannot be opened, and a start does not end": (
        log(warn("yew1", "Call to ibv_open_device failed"), warn("yew2", "Proxy Call to rank 0 failed (Connect)")),
        {"LOG031": "fail"},
    ),
    "one card less, a note of a sound job": (
        log(process("yew1", 0, devices="[0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]"), process("yew2", 1)),
        {},
    ),
    "as many cards of other names": (
        log(process("yew1", 0), process("yew2", 1, devices="[0]mlx5_3:1/IB [RO]")),
        {},
    ),
    "counts told by NCCL, of a sound job": (log(_two("Rank 1 has 1 local Net devices (max 4).")), {}),
    "an empty GID": (log(_two(devices=ROCE), warn("yew2", f"{_QP} error Invalid argument")), {"LOG033": "fail"}),
    "a link-local GID": (
        log(_two(devices=ROCE, version="2.26.2"),
            warn("yew2", f"{_QP} 110 Connection timed out, {_AT} fe80::1, remote GID fe80::2")),
        {"LOG034": "fail"},
    ),
    "an old NCCL on RoCE": (
        log(_two(devices=ROCE, version="2.18.5"), warn("yew1", _UNANSWERED)),
        {"LOG034": "fail"},
    ),
    "an old NCCL on RoCE, GID 1 by hand": (
        log(_two("NCCL_IB_GID_INDEX set by environment to 1.", devices=ROCE), warn("yew1", _TIMED_OUT)),
        {"LOG034": "fail"},
    ),
    "an old NCCL on InfiniBand": (
        log(_two(version="2.18.5"), warn("yew1", _UNANSWERED)),
        {"LOG036": "fail"},
    ),
    "an old NCCL on RoCE that had trained": (
        log(_two(devices=ROCE, version="2.18.5"), _STEP, warn("yew1", _UNANSWERED)),
        {"LOG036": "fail"},
    ),
    "a new NCCL on RoCE": (
        log(_two(devices=ROCE, version="2.27.3"),
            warn("yew1", f"{_PEER} status=12 opcode=0 len=0 vendor err 129 (Recv)")),
        {"LOG036": "fail"},
    ),
    "rails that do not meet": (
        log(_two(devices=ROCE, version="2.26.2"),
            warn("yew1", _ACROSS)),
        {"LOG035": "fail"},
    ),
    "no route": (log(_two(devices=ROCE), warn("yew1", f"{_QP} error No route to host")), {"LOG035": "fail"}),
    "a connection that was retried with success": (
        log(_two(devices=ROCE), info("yew1", f"{_ACROSS}, retrying 1/35 after 100 msec of sleep")),
        {},
    ),
    "a link that came back": (
        log(_two(), warn("yew2", "NET/IB : mlx5_0:1 Got async event : port error"),
            warn("yew2", "NET/IB : mlx5_0:1 Got async event : port active")),
        {"LOG036": "warn"},
    ),
    "a subnet manager": (log(_two(), warn("yew2", "NET/IB : mlx5_0:1 Got async event : SM change")), {}),
    "flushed requests only": (log(_two(), warn("yew1", _FLUSHED)), {}),
    "a hidden GID": (
        log(warn("yew1", "NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument")),
        {"LOG037": "fail"},
    ),
    "too little locked memory": (log(_two(), warn("yew1", f"{_REGISTER} {_NO_MEMORY}")), {"LOG038": "fail"}),
    "too many queues": (
        log(_two(ranks=1024), warn("yew1", f"Call to ibv_create_cq {_NO_MEMORY}")),
        {"LOG038": "fail"},
    ),
    "a plugin that obeys its own switch": (
        log(_two(_OFF, _PLUGIN, network="IBext_v8"), warn("yew1", _TIMED_OUT)),
        {"LOG039": "fail"},
    ),
    "the plugin where it is wanted": (
        log(_two("NCCL_SOCKET_IFNAME set by environment to eth0", _PLUGIN, network="IBext_v8")),
        {},
    ),
    "no GPUDirect RDMA": (log(_two(_GDR_OFF)), {"LOG040": "warn"}),
    "no GPUDirect RDMA within one host": (log(process("yew1", 0, _GDR_OFF, ranks=2, local=2)), {}),
    "no GPUDirect RDMA on one host": (
        log(_two(), via("yew1", "NET/IB/0/GDRDMA"), via("yew2", "NET/IB/0", source=1, target=0)),
        {"LOG040": "warn"},
    ),
    "memory of a GPU that cannot be registered": (
        log(_two(), warn("yew1", "Call to ibv_reg_mr_iova2 failed with error Bad address")),
        {"LOG040": "fail"},
    ),
    "ACS": (log(_two(), warn("yew1", _REFUSED)), {"LOG041": "fail"}),
    "a wrong length": (log(_two(devices=ROCE), warn("yew1", f"{_PEER} status=1 opcode=0 len=0 vendor err 104")),
                       {"LOG042": "fail"}),
    "MTUs that differ": (
        log(_two(devices=ROCE), info("yew1", "NET/IB: IbDev 0 Port 1 qpn 10 mtu 5 GID 3 (0/B)"),
            info("yew2", "NET/IB: IbDev 0 Port 1 qpn 12 mtu 3 GID 3 (0/C)")),
        {"LOG042": "warn"},
    ),
    "a name that is a prefix": (
        log(_two("NCCL_IB_HCA set by environment to mlx5_1", devices="[0]mlx5_1:1/IB [1]mlx5_12:1/IB [RO]")),
        {"LOG043": "warn"},
    ),
    "a name that is meant exactly": (
        log(_two("NCCL_IB_HCA set by environment to =mlx5_1", devices="[0]mlx5_1:1/IB [RO]")),
        {},
    ),
    "a name that is meant as a prefix": (
        log(_two("NCCL_IB_HCA set by environment to mlx5", devices="[0]mlx5_1:1/IB [1]mlx5_12:1/IB [RO]")),
        {},
    ),
    "InfiniBand and RoCE": (
        log(_two(), warn("yew1", _MIXED)),
        {"LOG044": "fail"},
    ),
    "no EFA, and sockets instead": (
        log(_two("NET/OFI Could not find any optimal provider", network="Socket")),
        {"LOG045": "warn"},
    ),
    "EFA without GPUDirect RDMA": (
        log(info("yew1", "NET/OFI Could not find any optimal provider supporting GPUDirect RDMA")),
        {},
    ),
    "a receiver that is not ready": (
        log(_two(devices=ROCE), warn("yew1", f"{_PEER} status=13 opcode=0 len=0 vendor err 135 (Send)")),
        {"LOG046": "fail"},
    ),
    "traffic classes that differ": (
        log(process("yew1", 0, "NCCL_IB_TC set by environment to 106."),
            process("yew2", 1, "NCCL_IB_TC set by environment to 0.")),
        {"LOG046": "warn"},
    ),
    "a rank that opens no connection, and so does not print the class that its host has": (
        log(process("yew1", 0, "NCCL_DEBUG set by environment to INFO"),
            process("yew1", 1, "NCCL_IB_TC set by environment to 106."),
            process("yew2", 2, "NCCL_IB_TC set by environment to 106.")),
        {},
    ),
    "a card that died": (
        log(_two(), warn("yew2", "NET/IB : mlx5_0:1 Got async event : local catastrophic error")),
        {"LOG047": "fail"},
    ),
    "a healthy run": (
        log(_two("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'"), via("yew1", "NET/IB/0/GDRDMA"), _STEP),
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_mode_is_named_by_its_own_rule(name: str) -> None:
    text, expected = CASES[name]
    assert _named(text) == expected


def test_the_end_of_all_broken_connections_is_named() -> None:
    words = "with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_0"
    text = log(
        *(process(f"yew{rank}", rank, ranks=3) for rank in range(3)),
        warn("yew0", f"NET/IB : Got completion from peer 10.30.0.13<40117> {words}"),
        warn("yew1", f"NET/IB : Got completion from peer 10.30.0.13<40118> {words}"),
    )
    assert judged(text)["LOG036"].findings[0].where.node == "yew2"


def test_the_host_whose_port_went_down_is_named() -> None:
    text = log(_two(), warn("yew2", "NET/IB : mlx5_0:1 Got async event : port error"),
               warn("yew1", f"{_PEER} status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_0"))  # fmt: skip
    where = judged(text)["LOG036"].findings[0].where
    assert (where.node, where.device) == ("yew2", "mlx5_0:1")


@pytest.mark.parametrize(("version", "old"), [("2.20.5", True), ("2.27.3", False)])
def test_an_old_nccl_may_not_see_the_module(version: str, old: bool) -> None:
    what = judged(log(_two(_GDR_OFF, version=version)))["LOG040"].findings[0].what
    assert ("does not see it" in what) is old


def test_sockets_without_any_hint_of_a_card_are_a_note() -> None:
    finding = judged(CASES["no library, no hint of a card"][0])["LOG030"].findings[0]
    assert finding.state.value == "note"


def test_no_log_is_skipped() -> None:
    assert judged("")["LOG036"].state.value in ("ok", "skipped")


def test_a_host_that_several_peers_refuse_is_the_place_and_not_one_of_them() -> None:
    def refused(writer: str, *numbers: int) -> str:
        return log(process("yew1", 0), process("yew2", 1), process("yew3", 2), *(
            warn(writer, f"NET/IB: Got completion from peer 10.0.3.{number}<40000> with status=10 opcode=1 len=0 "
                 "vendor err 129 (Send) hca mlx5_0") for number in numbers))  # fmt: skip

    several = judged(refused("yew1", 12, 13))["LOG048"].findings[0]
    assert several.where.node == "yew1"
    assert "at 2 peers" in several.what
    assert "at 2 peers" not in judged(refused("yew1", 12))["LOG048"].findings[0].what
