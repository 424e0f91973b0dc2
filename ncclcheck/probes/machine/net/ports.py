"""Who holds a TCP port of this machine."""

from __future__ import annotations

from typing import Any

import psutil


def holder(port: int) -> str:
    """Which process listens on a port here, or has a connection from it, in words."""
    try:
        on_it = [
            net_connection
            for net_connection in psutil.net_connections("tcp")
            if net_connection.laddr and net_connection.laddr.port == port
        ]
        for entry in sorted(on_it, key=lambda connection: connection.status != psutil.CONN_LISTEN):
            name = psutil.Process(entry.pid).name() if entry.pid else "another user's process"
            return f"{_held(entry)} {name}" + (f" (pid {entry.pid})" if entry.pid else "")
    except (psutil.Error, OSError):
        return "its holder may not be seen by this user"
    return "no listener and no connection is seen on it"


def _held(entry: Any) -> str:
    if entry.status == psutil.CONN_LISTEN or not entry.raddr:
        return "held by"
    return f"held by a connection to {entry.raddr.ip}:{entry.raddr.port} ({entry.status}) of"
