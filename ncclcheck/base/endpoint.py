"""TCP ports for the rendezvous, probed before use."""

from __future__ import annotations

import errno
import os
import secrets
import socket

from ncclcheck.probes.machine.net.ports import holder


def free_port(host: str) -> int:
    """A port that nobody listens on at this moment. Raises OSError where the address cannot be bound."""
    with socket.create_server((host, 0), family=_family(host)) as server:
        return int(server.getsockname()[1])


def random_port() -> int:
    """A port from the upper end, for a machine that cannot be asked; it is probed there before use."""
    return secrets.choice(range(40000, 60000))


def taken(host: str, port: int) -> str | None:
    """Who holds a port here, in words; None where it is free. A silent listener would cost minutes of waiting."""
    try:
        with socket.create_server((host, port), family=_family(host)):
            return None
    except OSError as error:
        return f"{host}:{port} cannot be opened: {_words(error, host, port)}"


def _words(error: OSError, host: str, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name {host} does not resolve here ({error.strerror})"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine"
    return f"{os.strerror(error.errno or 0)}; {holder(port)}"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
