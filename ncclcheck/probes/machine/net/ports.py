"""Who listens on a TCP port of this machine."""

from __future__ import annotations

import psutil


def holder(port: int) -> str:
    """Which process listens on a port here, in words."""
    try:
        for entry in psutil.net_connections("tcp"):
            if entry.laddr and entry.laddr.port == port and entry.status == psutil.CONN_LISTEN:
                name = psutil.Process(entry.pid).name() if entry.pid else "another user's process"
                return f"held by {name}" + (f" (pid {entry.pid})" if entry.pid else "")
    except (psutil.Error, OSError):
        return "its holder may not be seen by this user"
    return "no listener is seen on it"
