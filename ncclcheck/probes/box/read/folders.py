"""Folders of a shared box, seen from one of its nodes: who still writes, who has ended, how far clocks are off."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from ncclcheck.probes.box.journal import AGAIN

# Seconds without a line of a watcher that writes every second: five rounds, and NFS shows a file's new size to a
# reader that opens it anew.
SILENT_S = 5.0
_POLL_S = 0.25  # between two looks for a new line: chosen
_LAST = 65536  # bytes at the end of a journal


class BoxFolder(NamedTuple):
    """A node's folder. status: of its COMMAND, None while that runs. size: grows with what is written there."""

    folder: str
    host: str
    status: int | None
    stalled: bool
    killed: bool
    size: int


def clock_of(folder: str) -> float | None:
    """Seconds by which the clock of the file system is ahead of ours: that of its server on NFS, else our own."""
    path = os.path.join(folder, "clock")
    try:
        file = os.open(path, AGAIN, 0o600)
        try:
            before = time.time()
            os.write(file, b"0")
            os.fsync(file)
            after = time.time()
            return round(os.fstat(file).st_mtime - (before + after) / 2, 3)
        finally:
            os.close(file)
    except OSError:
        return None


def others(own: str) -> list[BoxFolder]:
    """The other nodes of this box that have written anything since this one began."""
    box = os.path.dirname(own)
    with suppress(OSError):
        begun = os.stat(os.path.join(own, "meta.json")).st_mtime
        paths = [os.path.join(box, name) for name in sorted(os.listdir(box))]
        return [node for path in paths if path != own and (node := _node(path, begun)) is not None]
    return []


def _node(path: str, begun: float) -> BoxFolder | None:
    """None: no node of this attempt."""
    sizes, latest = 0, 0.0
    for name in ("events.jsonl", "samples.0.jsonl", "samples.1.jsonl", "wrapper.jsonl"):
        with suppress(OSError), open(os.path.join(path, name), "rb") as file:  # NFS looks again when it is opened
            inode = os.fstat(file.fileno())
            sizes, latest = sizes + inode.st_size, max(latest, inode.st_mtime)
    if os.path.islink(path) or latest < begun:
        return None
    wrapper, events = [*_rows(path, "wrapper.jsonl")], [*_rows(path, "events.jsonl")]
    ends = [row["status"] for row in wrapper if row.get("what") == "end" and isinstance(row.get("status"), int)]
    kinds = {row.get("what") for row in events}
    meta = next(_rows(path, "meta.json"), {})
    host = str(meta.get("host") or os.path.basename(path))
    return BoxFolder(path, host, ends[-1] if ends else None, "stall" in kinds, "killed" in kinds, sizes)


def _rows(path: str, name: str) -> Iterator[dict[str, Any]]:
    """The last lines of a journal."""
    with suppress(OSError), open(os.path.join(path, name), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST))
        for line in file.read(_LAST).splitlines():
            with suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row


def wait_for_ends(own: str, seconds: float) -> tuple[list[BoxFolder], list[BoxFolder]]:
    """Until each other node has ended or is silent: all of them, and those that are silent."""
    begun = time.monotonic()
    changed: dict[str, tuple[int, float]] = {}
    while True:
        now, boxes = time.monotonic(), others(own)
        for node in boxes:
            if changed.get(node.folder, (-1, 0.0))[0] != node.size:
                changed[node.folder] = node.size, now
        running = [box for box in boxes if box.status is None]
        silent = [box for box in running if now - changed[box.folder][1] >= SILENT_S]
        if len(silent) == len(running) or now - begun > seconds:
            return boxes, silent
        time.sleep(_POLL_S)


def wait_for_stalls(own: str, seconds: float) -> None:
    """Until each other node that runs has noticed a stall too: what it saw would be lost with the job."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(box.status is None and not box.stalled for box in others(own)):
        time.sleep(_POLL_S)


def listed(folder: str) -> list[str]:
    """What is in it, sorted; nothing where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
