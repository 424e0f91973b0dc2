"""Whether `tune`'s search finds a planted gain in real gloo jobs, and recommends nothing where there is none.

    python benchmarks/tuning_gloo.py [--runs 20] [--gain 0.1] [--seconds 600]

Each job is two ranks of gloo on this machine, forked from a process that has imported torch already: all_reduce of
two sizes, the median of the calls of rank 0. A default that is slower by the gain is planted: each rank waits for
that share of each call's own time, unless PLANTED=0. Beside it stand two variables that do nothing. `tune`'s own
search decides, with the looks of --full; the command around it and torchrun are not run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from statistics import median

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist

from benchmarks.tuning_jobs import Times, count, of_two, parser, searched

SIZES = (2**14, 2**18)
WARM, CALLS = 20, 300
_NAMES = ("PLANTED", "NOTHING", "NOTHING_EITHER")


def main() -> None:
    """Run after run, with the gain and without in turn, and a line for each kind."""
    given = parser(__doc__).parse_args()
    count(
        given, "PLANTED", lambda gain: searched(_NAMES, "0", "full", lambda spared: job(0.0 if spared else gain))
    )


def job(slower: float) -> Times:
    """Two ranks, from their start to their end."""
    return of_two(lambda rank, folder: _rank(rank, folder, slower))


def _rank(rank: int, folder: str, slower: float) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    times = {}
    for size in SIZES:
        data, took = torch.ones(size // 4), []
        for call in range(WARM + CALLS):
            begun = time.perf_counter()
            dist.all_reduce(data)
            until = begun + (time.perf_counter() - begun) * (1 + slower)
            while time.perf_counter() < until:
                pass
            if call >= WARM:
                took.append(time.perf_counter() - begun)
        times[size] = 1e6 * median(took)
    if rank == 0:
        (Path(folder) / "told").write_text(json.dumps(times))
    dist.barrier()


if __name__ == "__main__":
    main()
