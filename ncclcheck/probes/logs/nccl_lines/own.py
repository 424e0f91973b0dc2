"""The logs of our own job on one node, read when it died."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Sequence
from typing import BinaryIO

from msgspec.structs import replace

from ncclcheck.probes.facts import Logs
from ncclcheck.probes.logs.reading import LogReading

# of one node: NCCL's files, and bytes of the beginning and of the end of each: chosen, read in a second
_MOST_FILES, _MOST_BYTES = 64, 8 * 2**20


def read_own(node: str, printed: str, folder: str) -> Logs:
    """What the ranks printed, and what NCCL wrote beside it, under the name of the node. Raises nothing."""
    paths = [printed, *sorted(glob.glob(f"{glob.escape(folder)}/nccl.*.log"))[:_MOST_FILES]]
    return _named(node, _read(node, paths))


def _read(node: str, paths: Sequence[str]) -> Logs:
    reading = LogReading()
    for path in paths:
        name = f"{node}/{os.path.basename(path)}"
        try:
            with open(path, "rb") as file:
                reading.take(name, _ends(file))
        except OSError as error:
            reading.problem(name, error.strerror or str(error))
    return reading.logs()


def _ends(file: BinaryIO) -> BinaryIO:
    """The beginning and the end of a file that is too long: how it was set up, and how it died."""
    size = os.fstat(file.fileno()).st_size
    if size <= 2 * _MOST_BYTES:
        return file
    begin = file.read(_MOST_BYTES)
    file.seek(size - _MOST_BYTES)
    return io.BytesIO(begin + b"\n" + file.read())


def _named(node: str, logs: Logs) -> Logs:
    """Nodes have unique names in a report; host names need not be."""
    return replace(
        logs,
        events=[replace(event, host=node) for event in logs.events],
        processes=[replace(process, host=node) for process in logs.processes],
    )
