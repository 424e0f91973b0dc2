"""Whether `tune`'s search finds a planted gain in real gloo jobs, and recommends nothing where there is none.

    python benchmarks/tuning_gloo.py [--runs 20] [--gain 0.1] [--seconds 600]

Each job is two ranks of gloo on this machine, forked from a process that has imported torch already: all_reduce of
two sizes, the median of the calls of rank 0. A default that is slower by the gain is planted: each rank waits for
that share of each call's own time, unless PLANTED=0. Beside it stand two variables that do nothing. `tune`'s own
search decides, with the looks of --full; the command around it and torchrun are not run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist

from ncclcheck.probes.facts import Candidate, Tuning
from ncclcheck.reports.subjects.job import tuning
from ncclcheck.reports.subjects.job.tuning import Search
from ncclcheck.run.plan.tune_plan import LOOKS

SIZES = (2**14, 2**18)
WARM, CALLS = 20, 300
Times = dict[tuple[str, int], float]


def main() -> None:
    """Run after run, with the gain and without in turn, and a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--gain", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    end, done = time.monotonic() + given.seconds, {given.gain: [0, 0, 0], 0.0: [0, 0, 0]}
    for number in range(2 * given.runs):
        gain = (given.gain, 0.0)[number % 2]
        if time.monotonic() > end:
            break
        chosen = tuning.recommended(searched(gain))
        names = {one.variable for one in chosen.settings} if chosen else set()
        done[gain][0] += 1
        done[gain][1] += names == {"PLANTED"}
        done[gain][2] += bool(names) if gain == 0 else bool(names - {"PLANTED"})
        print(f"{gain:.0%}: {sorted(names)}, load {os.getloadavg()[0]:.0f}", flush=True)
    for gain, (runs, right, wrong) in done.items():
        print(f"planted {gain:.0%}: {runs} runs, it alone recommended in {right}, anything beside it in {wrong}")


def searched(gain: float) -> Tuning:
    """One search with real jobs."""
    found = [Candidate(variable=name, value="0") for name in ("PLANTED", "NOTHING", "NOTHING_EITHER")]
    search, turn = Search(found, LOOKS["full"]), 0
    pairs = search.pairs()
    settings = next(pairs, None)
    while settings is not None:
        spared = any(one.variable == "PLANTED" for one in settings)
        turn += 1
        if turn % 2:
            without = job(gain)
            both = without, job(0.0 if spared else gain)
        else:
            given = job(0.0 if spared else gain)
            both = job(gain), given
        try:
            settings = pairs.send(both)
        except StopIteration:
            settings = None
    return search.tuning()


def job(slower: float) -> Times:
    """Two ranks, from their start to their end."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(2):
            if (pid := os.fork()) == 0:
                try:
                    _rank(rank, folder, slower)
                finally:
                    os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        told = json.loads((Path(folder) / "told").read_text())
    return {("all_reduce", int(size)): took for size, took in told.items()}


def _rank(rank: int, folder: str, slower: float) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    told = {}
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
        told[size] = 1e6 * median(took)
    if rank == 0:
        (Path(folder) / "told").write_text(json.dumps(told))
    dist.barrier()


if __name__ == "__main__":
    main()
