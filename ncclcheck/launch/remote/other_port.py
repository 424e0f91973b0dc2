"""Whether the sshd of a host that refuses connections listens on another port, as hardened ones do."""

from __future__ import annotations

import re
import socket
from contextlib import suppress

_REFUSED = re.compile(
    r"^ssh: connect to host (?P<address>\S+) port (?P<port>\d+): Connection refused", re.MULTILINE
)
_USUAL = (22, 2222)  # of 22 and what guides to a hardened sshd take most; no more, for it is no scan of ports
_WITHIN_S = 2.0  # each, for the connection and for the first line; sshd sends it before any name is looked up
_MOST_BANNER = 255  # RFC 4253, 4.2
_BANNER = re.compile(rb"SSH-[12]\.[ -~]+")


def is_refused(words: str) -> bool:
    """Whether ssh reached the host, and nobody listens on the port."""
    return _REFUSED.search(words) is not None


def explanation(words: str, name: str) -> str:
    """What is told of such a host; empty where no sshd answers on another usual port."""
    refused = _REFUSED.search(words)
    address, port = (refused["address"], int(refused["port"])) if refused else ("", 0)
    for other in _USUAL if address else ():
        if other != port and (banner := _banner(address, other)):
            return (
                f"ncclcheck: {name}: nobody listens on port {port} of {address}, and an sshd answers on port "
                f"{other}: {banner}"
            )
    return ""


def _banner(address: str, port: int) -> str:
    """`SSH-2.0-OpenSSH_9.2`; empty where none came."""
    with suppress(OSError), socket.create_connection((address, port), _WITHIN_S) as connection:
        connection.settimeout(_WITHIN_S)
        match = _BANNER.match(connection.recv(_MOST_BANNER))
        return match[0].decode() if match else ""
    return ""
