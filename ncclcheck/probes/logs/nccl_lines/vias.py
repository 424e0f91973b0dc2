"""`Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/3/GDRDMA/Shared`: one connection, and its kind."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_FIRST = frozenset(("Channel", "Ring", "Coll", "CollNet"))
_NUMBER = re.compile(r"\d+(?:/\d+)?$")
_CHANNEL = re.compile(
    r"(?P<source>\d{1,6})(?:\[[0-9a-f]+\])? -> (?P<target>\d{1,6})(?:\[[0-9a-f]+\])?"
    r"(?: \[(?:send|receive)\])? via (?P<via>.+)"
)
_COLLNET = re.compile(r"(?P<rank>\d{1,6}) \[(?:send|receive)\] via (?P<via>.+)")
_DEVICE = re.compile(r"(\d{1,5})(?:\(\d+\))?")
_PLAIN = {"IPC", "CUMEM", "MNNVL", "CE", "direct pointer", "indirect"}


class Via(NamedTuple):
    """kind: without the number of the device and without what does not matter (read, Shared, connection index)."""

    kind: str
    device: int | None = None


class RankConnection(NamedTuple):
    """The ranks at both ends, numbered in their communicator; -1: the network itself (COLLNET)."""

    source: int
    target: int
    via: Via


def connection(text: str) -> RankConnection | None:
    """The connection that a line tells of; None for any other line."""
    head, colon, ends = text.partition(" : ")
    if not colon or " via " not in ends:
        return None
    first, _, number = head.partition(" ")
    if first not in _FIRST or not _NUMBER.match(number):
        return None
    return _between(ends, first.startswith("Coll"))


@lru_cache(maxsize=16384)
def _between(ends: str, collnet: bool) -> RankConnection | None:
    """Many channels connect the same ranks in the same way."""
    if collnet:
        match = _COLLNET.match(ends)
        return RankConnection(int(match["rank"]), -1, via(match["via"])) if match else None
    match = _CHANNEL.match(ends)
    return RankConnection(int(match["source"]), int(match["target"]), via(match["via"])) if match else None


def via(text: str) -> Via:
    """`NET/IB/3(12)/GDRDMA/Shared` -> NET/IB/GDRDMA over device 3; `P2P/IPC/read` -> P2P/IPC."""
    text = text.strip()
    if text.startswith(("SHM", "direct shared memory")):
        return Via("SHM")
    parts = text.split("/")
    if parts[0] == "P2P":
        return Via("P2P/" + next((part for part in parts[1:2] if part in _PLAIN), "other"))
    if parts[0] in ("NET", "COLLNET") and len(parts) > 1:
        return _network(parts)
    return Via("other")


def _network(parts: list[str]) -> Via:
    """A plugin's name may hold blanks (AWS Libfabric), and is cut where it is endless."""
    device = next((int(match[1]) for part in parts[2:3] if (match := _DEVICE.fullmatch(part))), None)
    direct = "/GDRDMA" if any(part.startswith("GDRDMA") for part in parts[2:]) else ""
    return Via(f"{parts[0]}/{parts[1][:40]}{direct}", device)
