"""Whether packets left this host at all: what the kernel here says of a connection that failed. No privilege.

An error may come from far (a router's ICMP, a peer's reset) or from this host's own routes, rules and filters.
"""

from __future__ import annotations

import errno
import socket
import struct

from ncclcheck.probes.facts import KeptBy, Unread
from ncclcheck.probes.machine.net import addresses

_RESOURCES = (errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# struct tcp_info, linux/tcp.h: how often the timer asked again, segments sent again that are under way, and all
# that were handed on to be sent again. One that a filter of this host drops is handed on and never under way; one
# that waits for its neighbour's address is not handed on, for the first is still there. Seen on Linux 6.18.
_ASKED, _UNDER_WAY, _HANDED_ON = 2, 36, 100


def of_error(error: OSError, address: str) -> KeptBy:
    """By the kernel's error: a UDP socket only asks for the way, so that what refuses it is a route or a rule."""
    if error.errno in _RESOURCES:
        return "resources"
    if error.errno == errno.EPERM:  # no route says so: a BPF program or seccomp does
        return "filter"
    if isinstance(addresses.source_to(address), Unread):
        return "route"
    return "filter" if error.errno == errno.EACCES else ""


def of_unanswered(sock: socket.socket) -> KeptBy:
    """By a connection that nobody answered, once the kernel has asked again, which it does after a second."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return ""
    if len(info) < _HANDED_ON + 4 or not info[_ASKED]:
        return ""
    under_way, handed_on = (struct.unpack_from("=I", info, at)[0] for at in (_UNDER_WAY, _HANDED_ON))
    if not handed_on:
        return "neighbour"
    return "" if under_way else "filter"
