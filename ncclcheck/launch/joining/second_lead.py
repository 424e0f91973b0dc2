"""Whether another machine leads this run already, where this one was told to be node rank 0, too."""

from __future__ import annotations

import socket
import threading

from ncclcheck.launch.joining.follow import NotReached, refused_as_lead, resolve
from ncclcheck.launch.joining.meeting import MeetingPoint
from ncclcheck.launch.joining.trust.identity import JoinIdentity

_EVERY_S = 2.0  # s between two tries, for the other one may be started later; chosen


class SecondLead:
    """Asks at the endpoint, where that is not here, while this node waits. refusal: the other's words."""

    def __init__(self, who: JoinIdentity, command: str, meeting: MeetingPoint) -> None:
        self.refusal = ""
        self._who, self._command, self._meeting = who, command, meeting
        self._over = threading.Event()
        threading.Thread(target=self._ask, daemon=True, name="second lead").start()

    def _ask(self) -> None:
        addresses = resolve(self._who.host)
        if isinstance(addresses, NotReached) or any(map(_is_of_this_host, addresses)):
            return
        while not self._over.wait(_EVERY_S / 2) and not self.refusal:
            self.refusal = refused_as_lead(self._who, self._command, self._meeting.nonces)
            self._over.wait(_EVERY_S / 2)

    def close(self) -> None:
        """End the thread that asks."""
        self._over.set()


def _is_of_this_host(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address.partition("%")[0], 0))
    except OSError:
        return False
    return True
