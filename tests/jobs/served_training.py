"""tests/jobs/hang_training.py with what other tools need of a job: torch's debug server, and dumps on disk.

Once the process group is there each rank serves its worker server, rank 0 the page on port 25999, and writes its
Flight Recorder every second to FOLDER/dumps/trace_RANK, for gloo dumps nothing by itself.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.debug import start_debug_server

_DUMPS = Path(sys.argv[4]) / "dumps"
_begin = dist.init_process_group


def _dump() -> None:
    place = _DUMPS / f"trace_{dist.get_rank()}"
    while True:
        fresh = _DUMPS / f".{place.name}"
        fresh.write_bytes(c10d._dump_fr_trace())  # type: ignore[attr-defined]
        fresh.rename(place)
        time.sleep(1)


def _served(*given: Any, **named: Any) -> None:
    _begin(*given, **named)
    start_debug_server(start_method="spawn")
    _DUMPS.mkdir(exist_ok=True)
    threading.Thread(target=_dump, daemon=True).start()


if __name__ == "__main__":
    dist.init_process_group = _served
    runpy.run_path(str(Path(__file__).with_name("hang_training.py")), run_name="__main__")
