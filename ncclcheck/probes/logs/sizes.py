"""Which operations and sizes a job used: from Flight Recorder dumps, NCCL's COLL lines and Inspector's files.

Forms: NVIDIA/nccl src/enqueue.cc (`AllReduce: opCount 0 .. count 1024 datatype 7 ..` and, of the subsystem TUNING,
`8388608 Bytes -> Algo 1 proto 2 time 86.07`), plugins/profiler/inspector (one JSON object a line).
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ncclcheck.probes.facts import Forecast
from ncclcheck.probes.logs import flight
from ncclcheck.probes.logs.files import sources

_SECONDS = 60.0  # of reading, for all files
_MOST = 2**28  # bytes that are read of a file
_HEAD = 4096  # bytes by which a dump is told from text: chosen, one block of a disk
_COLL = re.compile(rb"(\w{4,20}): opCount [0-9a-f]{1,16} .{0,80}?count (\d{1,15}) datatype (\d{1,2}) ")
_TUNING = re.compile(rb"(\d{1,16}) Bytes -> Algo (\d{1,2}) proto (\d{1,2}) time (\d{1,12}(?:\.\d{1,9})?)")
_INSPECTOR = re.compile(rb'"coll":\s*"(\w{4,20})".{0,400}?"coll_msg_size_bytes":\s*(\d{1,16})')
_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)  # of ncclDataType_t, in its order
_OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "allgatherbase": "all_gather",  # as torch names them in its dumps
    "reducescatterbase": "reduce_scatter",
}
_WIDTHS = {"float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "byte": 1, "char": 1, "bool": 1}
_WHOLE_IS_ALL = ("all_gather", "reduce_scatter")  # NCCL counts the part of one rank; the rows count all of them


@dataclass
class UsedSizes:
    """calls: how often an operation was called at a size in bytes; forecasts: NCCL's own, by size.

    of_a_part: calls of which the size is that of one rank's part.
    """

    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    of_a_part: Counter[tuple[str, int]] = field(default_factory=Counter)
    forecasts: dict[int, Forecast] = field(default_factory=dict)

    def heaviest(self, most: int, ranks: int) -> list[tuple[str, int]]:
        """The operations and sizes that moved the most bytes, ascending by size."""
        all_ = Counter(self.calls)
        for (op, size), count in self.of_a_part.items():
            all_[op, size * ranks] += count
        moved = sorted(all_, key=lambda key: (-all_[key] * key[1], key))
        return sorted(moved[:most], key=lambda key: key[1])


def read(given: Sequence[str]) -> UsedSizes:
    """Raises sources.NotThere. A file that cannot be read tells nothing."""
    used, until = UsedSizes(), time.monotonic() + _SECONDS
    dumps: list[str] = []
    paths = sources.names(given)
    for source in sources.opened(paths, until):
        if source.file is None or time.monotonic() > until:
            continue
        if flight.is_dump(sources.head(source.file, _HEAD), source.name):
            dumps.append(source.name)
        else:
            _lines(used, source.file)
    _dumps(used, dumps)
    return used


def _lines(used: UsedSizes, file: Iterable[bytes]) -> None:
    taken = 0
    for line in file:
        taken += len(line)
        if taken > _MOST:
            return
        if (match := _COLL.search(line)) and (op := _OPS.get(match[1].decode().lower())):
            kind = int(match[3])
            size = int(match[2]) * (_BYTES[kind] if kind < len(_BYTES) else 4)
            (used.of_a_part if op in _WHOLE_IS_ALL else used.calls)[op, size] += 1
        elif (match := _INSPECTOR.search(line)) and (op := _OPS.get(match[1].decode().lower())):
            used.calls[op, int(match[2])] += 1
        elif match := _TUNING.search(line):
            size = int(match[1])
            used.forecasts[size] = Forecast(
                bytes=size, time_us=float(match[4]), algorithm=int(match[2]), protocol=int(match[3])
            )


def _dumps(used: UsedSizes, names: list[str]) -> None:
    for dump in flight.read(names).dumps if names else ():
        for call in dump.calls:
            op = _OPS.get(call.op.rpartition(":")[2].replace("_", "").lower())
            width = _WIDTHS.get(call.dtype_in.lower(), 4)
            if op and (size := max(call.elements_in, call.elements_out) * width):
                used.calls[op, size] += 1
