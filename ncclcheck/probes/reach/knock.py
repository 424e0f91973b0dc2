"""Whether the host of a silent node still answers: its kernel does, whatever its processes do."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Sequence

from ncclcheck.probes.facts import Door, Knock

MOST_S = 3.0  # the kernel sends a SYN at 0 and 1 s and, before the end, at 3 s: one lost packet is no silence


def knock(doors: Sequence[Door], by: str, seconds: float) -> list[Knock]:
    """Try to connect to ports that were open before: a refusal is an answer. Never raises; keeps the limit."""
    found: dict[str, Knock] = {}
    end = time.monotonic() + min(MOST_S, seconds)

    def one(door: Door) -> None:
        found[door.name] = _knock(door, by, max(0.1, end - time.monotonic()))

    threads = [threading.Thread(target=one, args=(door,), daemon=True, name="knock") for door in doors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end + 0.2 - time.monotonic()))
    return [found[door.name] for door in doors if door.name in found]


def _knock(door: Door, by: str, seconds: float) -> Knock:
    answered, detail = False, "no answer"
    try:
        ipaddress.ip_address(door.address.partition("%")[0])  # no name server is asked
        socket.create_connection((door.address, door.tcp_port), seconds).close()
        answered, detail = True, "accepted"
    except ConnectionRefusedError:
        answered, detail = True, "refused, as a closed port does"
    except TimeoutError:
        pass
    except ValueError as error:
        detail = str(error)
    except OSError as error:
        detail = os.strerror(error.errno) if error.errno else str(error)
    return Knock(of=door.name, by=by, address=door.address, answered=answered, detail=detail)
