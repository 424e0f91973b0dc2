"""Whether another machine on the wire has an address of ours: the probe of RFC 5227, which changes no table.

One request "who has this address?" with no sender. Whoever has it answers; we ourselves hear nothing. Only root,
or who has CAP_NET_RAW, may ask.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

from ncclcheck.probes.facts import Unread

_WITHIN_S = 0.8  # for answers: chosen, a machine of the same wire answers in milliseconds, a busy one later
_ASKED_AGAIN_S = 0.3  # one request may be lost; chosen
_ARP = 0x0806  # ETH_P_ARP
_FRAME = struct.Struct("!6s6sHHHBBH6s4s6s4s")  # Ethernet header, then struct arphdr with MAC and IPv4 addresses
_EVERYBODY, _NOBODY = b"\xff" * 6, b"\0" * 6
_REQUEST, _ANSWER = 1, 2  # ARPOP_REQUEST, ARPOP_REPLY. Source: linux/if_arp.h
_NETS = Path("/sys/class/net")


def others_with(address: str, interface: str) -> list[str] | Unread:
    """The MAC addresses of other machines that say that they have it. Never raises."""
    try:
        packed = socket.inet_aton(address)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ARP)) as sock:
            sock.bind((interface, _ARP))
            return _answers(sock, packed, _own())
    except PermissionError:
        return Unread("denied", "only root may send ARP")
    except (OSError, AttributeError, ValueError) as error:
        return Unread("absent", f"no ARP on {interface}: {error}")


def request(own: bytes, packed: bytes) -> bytes:
    """A probe: the sender's IPv4 address is 0, so that nobody learns anything from it."""
    arp = (1, 0x0800, 6, 4, _REQUEST, own, b"\0" * 4, _NOBODY, packed)
    return _FRAME.pack(_EVERYBODY, own, _ARP, *arp)


def holder(frame: bytes, packed: bytes) -> bytes:
    """The MAC address of a machine that says that it has the address; empty for other frames."""
    if len(frame) < _FRAME.size:
        return b""
    *_, says, sender, address, _, _ = _FRAME.unpack_from(frame)
    return bytes(sender) if says == _ANSWER and address == packed and sender != _NOBODY else b""


def _answers(sock: socket.socket, packed: bytes, ours: set[bytes]) -> list[str]:
    """Those that come in time, but for our own other cards on the same wire."""
    own = sock.getsockname()[4][:6]
    macs: set[bytes] = set()
    end, ask = time.monotonic() + _WITHIN_S, 0.0
    while (left := end - (now := time.monotonic())) > 0:
        if now >= ask:
            sock.send(request(own, packed))
            ask = now + _ASKED_AGAIN_S
        sock.settimeout(min(left, max(0.01, ask - now)))
        with suppress(TimeoutError):
            if (mac := holder(sock.recv(2048), packed)) and mac not in ours:
                macs.add(mac)
    return [mac.hex(":") for mac in sorted(macs)]


def _own() -> set[bytes]:
    """The MAC addresses of all interfaces of this host."""
    macs = set()
    for name in os.listdir(_NETS):
        with suppress(OSError, ValueError):
            macs.add(bytes.fromhex((_NETS / name / "address").read_text().strip().replace(":", "")))
    return macs
