"""What ports of HCAs and network cards count of losses, pauses and congestion, read before and after a job.

Source: /sys/class/infiniband/*/ports/*/{counters,hw_counters}; ethtool statistics of the card's driver, which any
user may read (SIOCETHTOOL with ETHTOOL_GSTATS; linux/ethtool.h).
"""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from collections.abc import Iterator

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host.host import within

_HCAS, _NETS = "/sys/class/infiniband", "/sys/class/net"
_COUNTERS = ("port_xmit_discards", "port_rcv_errors", "symbol_error", "link_error_recovery")
_HW_COUNTERS = (
    "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "implied_nak_seq_err", "roce_adp_retrans",
    "rx_icrc_encapsulated", "out_of_sequence", "np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled",
    "retrans_pkts", "retrans_timeout_events",
)  # fmt: skip
_OF_CARDS = re.compile(
    rb"(?:rx|tx)_(?:prio[0-7]_pause(?:_duration)?|discards_phy)|rx_(?:crc_errors_phy|out_of_buffer)", re.ASCII
)
# linux/sockios.h and linux/ethtool.h: the request, its commands, ETH_SS_STATS
_SIOCETHTOOL, _GSSET_INFO, _GSTRINGS, _GSTATS, _SS_STATS = 0x8946, 0x37, 0x1B, 0x1D, 1
_NAME = 32  # bytes of the name of a statistic
# counters of a card, cards of a node: chosen, bounds for a driver that answers nonsense
_MOST_STATS, _MOST_CARDS = 16384, 64
_SECONDS = 2.0  # for all cards; a card of 1,500 statistics answers in some milliseconds
Counted = dict[str, dict[str, int]]


def read(machine: Machine) -> Counted:
    """By the name of the port (mlx5_0:1) or interface (eth0): those of its counters that mean something."""
    counters = dict(_of_hcas(machine))
    cards = within(_SECONDS, "ethtool statistics", lambda: dict(_of_cards(machine)))
    return counters if isinstance(cards, Unread) else counters | cards


def _of_hcas(machine: Machine) -> Iterator[tuple[str, dict[str, int]]]:
    for name in names(machine, _HCAS):
        for port in names(machine, f"{_HCAS}/{name}/ports"):
            folder = f"{_HCAS}/{name}/ports/{port}"
            paths = [(counter, f"{folder}/counters/{counter}") for counter in _COUNTERS]
            paths += [(counter, f"{folder}/hw_counters/{counter}") for counter in _HW_COUNTERS]
            values = {counter: machine.number(path) for counter, path in paths}
            if known := {counter: value for counter, value in values.items() if not isinstance(value, Unread)}:
                yield f"{name}:{port}", known


def _of_cards(machine: Machine) -> Iterator[tuple[str, dict[str, int]]]:
    """Of interfaces that belong to a device; those of containers and tunnels lose nothing on a wire."""
    if machine.root != "/":
        return
    cards = [name for name in names(machine, _NETS) if machine.exists(f"{_NETS}/{name}/device")]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        for name in cards[:_MOST_CARDS]:
            if counters := {
                key: value for key, value in statistics(door, name) if _OF_CARDS.fullmatch(key.encode())
            }:
                yield name, counters


def statistics(door: socket.socket, name: str) -> list[tuple[str, int]]:
    """All statistics of an interface, as `ethtool -S` lists them; none where its driver has none."""
    try:
        count = struct.unpack_from(
            "I", _asked(door, name, struct.pack("IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0)), 16
        )[0]
        if not 0 < count <= _MOST_STATS:
            return []
        names = _asked(door, name, struct.pack("III", _GSTRINGS, _SS_STATS, count) + bytes(_NAME * count))[12:]
        values = _asked(door, name, struct.pack("II", _GSTATS, count) + bytes(8 * count))[8:]
    except OSError:
        return []
    words = (names[at : at + _NAME].split(b"\0")[0] for at in range(0, _NAME * count, _NAME))
    return list(
        zip((word.decode(errors="replace") for word in words), struct.unpack(f"{count}Q", values), strict=True)
    )


def _asked(door: socket.socket, name: str, command: bytes) -> bytes:
    """The kernel writes its answer over the command. Raises OSError."""
    data = array.array("B", command)
    fcntl.ioctl(door, _SIOCETHTOOL, struct.pack("16sP", name.encode()[:15], data.buffer_info()[0]))
    return data.tobytes()


def names(machine: Machine, folder: str) -> list[str]:
    """What a folder holds; nothing where it is not there."""
    entries = machine.names(folder)
    return [] if isinstance(entries, Unread) else entries
