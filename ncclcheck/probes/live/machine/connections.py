"""Established connections of processes, by sock_diag(7), which needs no rights, else by /proc/PID/net.

A part of the streamed probe: standard library only, Python 3.6.
"""

import socket
import struct
import sys
from typing import Dict, Iterator, List, Tuple

from ncclcheck.probes.live.machine.proc import Proc, Raw

# Source: linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h (INET_DIAG_INFO)
# Source: linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h (INET_DIAG_INFO)
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _TCP_INFO = 4, 20, 2
CLOSE_WAIT = 8  # TCP_CLOSE_WAIT: the peer has closed. Source: net/tcp_states.h
_MOST_LINKS = 16  # of a process, those used last: a ring has 2, a tree 3, of each of a few groups


def established(proc: Proc, pid: str, tables: Dict[str, Dict[int, Raw]]) -> List[Raw]:
    """Its established connections."""
    links = (proc.link(pid, "fd", name) for name in proc.names(pid, "fd"))
    inodes = {int(link[8:-1]) for link in links if link.startswith("socket:[")}
    if not inodes:
        return []
    space = proc.link(pid, "ns", "net")
    if space not in tables:
        own = proc.live and space == proc.link("self", "ns", "net")
        tables[space] = (diagnosed() if own else {}) or listed(proc, pid)
    return [dict(tables[space][inode], inode=inode) for inode in inodes if inode in tables[space]]


def listed(proc: Proc, pid: str) -> Dict[int, Raw]:
    """Inode -> a connection, by /proc/PID/net: queues, and no counts."""
    table = {}
    for name in ("tcp", "tcp6"):
        family = socket.AF_INET if name == "tcp" else socket.AF_INET6
        for line in proc.text(pid, "net", name).splitlines()[1:]:
            row = line.split()
            if len(row) > 9 and row[3] in ("01", "08"):
                out, back = row[4].split(":")
                table[int(row[9])] = {
                    "ends": (family, raw(row[1]), raw(row[2])),
                    "state": int(row[3], 16),
                    "from": int(row[1].rpartition(":")[2], 16),
                    "to": int(row[2].rpartition(":")[2], 16),
                    "unsent": int(out, 16),
                    "unread": int(back, 16),
                    "moved": None,
                    "retries": 0,
                }
    return table


def raw(end: str) -> bytes:
    """The address of an end, of which /proc prints each 32 bits as a number of this machine."""
    data = bytes.fromhex(end.partition(":")[0])
    words = [data[at : at + 4] for at in range(0, len(data), 4)]
    return b"".join(word[::-1] if sys.byteorder == "little" else word for word in words).ljust(16, b"\0")


def diagnosed() -> Dict[int, Raw]:
    """The same with the bytes that each has moved, by sock_diag(7), which needs no rights."""
    table: Dict[int, Raw] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
            link.settimeout(2)
            for family in (socket.AF_INET, socket.AF_INET6):
                states = 1 << 1 | 1 << CLOSE_WAIT
                asked = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), 0, states)
                link.send(struct.pack("=IHHII", 16 + len(asked), _SOCK_DIAG_BY_FAMILY, 0x301, 0, 0) + asked)
                for message in messages(link):
                    inode, details = connection(message)
                    table[inode] = details
    except (OSError, struct.error):
        return {}
    return table


def messages(link: socket.socket) -> Iterator[bytes]:
    """The bodies of one netlink dump."""
    while True:
        data = link.recv(2**18)
        at = 0
        while at + 16 <= len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind != _SOCK_DIAG_BY_FAMILY or length < 16:
                return  # its end, or an error
            yield data[at + 16 : at + length]
            at += (length + 3) & ~3


def connection(message: bytes) -> Tuple[int, Raw]:
    """struct inet_diag_msg and, of its attributes, struct tcp_info: bytes acknowledged and received."""
    state, (source, target) = message[1], struct.unpack_from(">HH", message, 4)
    unread, unsent, _, inode = struct.unpack_from("=IIII", message, 56)
    moved, at = None, 72
    retries, sent, received = 0, None, None
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            break
        if kind == _TCP_INFO and length >= 4 + 136:
            moved = sum(struct.unpack_from("=QQ", message, at + 4 + 120))
            retries = message[at + 4 + 2]
            sent, received = struct.unpack_from("=I4xI", message, at + 4 + 44)
        at += (length + 3) & ~3
    return inode, {
        "state": state,
        "from": source,
        "to": target,
        "unsent": unsent,
        "unread": unread,
        "moved": moved,
        "retries": retries,
        "sent_ms": sent,
        "received_ms": received,
        "ends": (message[0], message[8:24], message[24:40]),
    }


def address(family: int, raw: bytes, port: int) -> str:
    """As the kernel prints it; an address of IPv4 in one of IPv6 as that of IPv4."""
    if family == socket.AF_INET6 and raw[:12] == b"\0" * 10 + b"\xff" * 2:
        family, raw = socket.AF_INET, raw[12:]
    if family == socket.AF_INET:
        return "{}:{}".format(socket.inet_ntop(socket.AF_INET, raw[:4]), port)
    return "[{}]:{}".format(socket.inet_ntop(socket.AF_INET6, raw), port)


def used_last(used: List[Raw]) -> List[Raw]:
    """Of connections those used last, with their ends and the time since each side was last heard."""
    timed = [link for link in used if link.get("sent_ms") is not None]
    timed.sort(key=lambda link: min(link["sent_ms"], link["received_ms"]))
    return [
        {
            "near": address(link["ends"][0], link["ends"][1], link["from"]),
            "far": address(link["ends"][0], link["ends"][2], link["to"]),
            "sent_s": link["sent_ms"] / 1000.0,
            "received_s": link["received_ms"] / 1000.0,
            "unsent": link["unsent"],
            "unread": link["unread"],
            "retries": link["retries"],
        }
        for link in timed[:_MOST_LINKS]
    ]


def asks(look: Raw, used: List[Raw]) -> str:
    """The far end of the connection that the main thread reads or writes."""
    mine = [s for s in used if look["file"] == "socket:[{}]".format(s["inode"]) and "ends" in s]
    return address(mine[0]["ends"][0], mine[0]["ends"][2], mine[0]["to"]) if mine else ""
