"""Whether the kernel here has a route to an address: of that a node is certain, whatever the other side does."""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass

_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.ENETDOWN)
_ANY_PORT = 9
# Seconds for which "no route" is borne: after a boot, or a restart of the network, a link negotiates for 1 to 4 s
# and DHCP answers within a second. A job's network is up before the job is; a route that is missing for longer
# does not come by waiting.
PATIENCE_S = 6.0


def is_routed(address: str, port: int = _ANY_PORT) -> bool:
    """Whether there is a route. Nothing is sent: connecting a UDP socket only asks the kernel for the way.

    Errors of a TCP connection are not so certain: a router or a firewall may say the same, and a neighbour that is
    still down gives EHOSTUNREACH.
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(place)
    except OSError as error:
        return error.errno not in _NO_ROUTE
    return True


@dataclass
class Patience:
    """How long a missing route is borne; it begins anew whenever something else is in the way."""

    since: float | None = None

    def is_over(self, outcome: str) -> bool:
        """Whether every try of the last seconds, and this one, failed for want of a route."""
        if outcome != "unrouted":
            self.since = None
            return False
        self.since = self.since or time.monotonic()
        return time.monotonic() - self.since >= PATIENCE_S
