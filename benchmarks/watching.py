"""What `ncclcheck watch` costs a job, in pairs in turn: `python -m benchmarks.watching [PAIRS]`.

Start: a program that does nothing. Step: two gloo ranks, 10 ms of sleep and an all-reduce of 4 MB. CPU seconds and
memory are of each rank; of the watcher and the wrapper as the kernel counts their children.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

_STEPS = 300
_JOB = f"""
import json, os, resource, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
data, times = torch.ones(2**20), []
for _ in range({_STEPS}):
    begun, used = time.perf_counter(), time.process_time()
    time.sleep(0.01)
    dist.all_reduce(data)
    times.append((time.perf_counter() - begun, time.process_time() - used))
if dist.get_rank() == 0:
    wall, cpu = (sorted(column)[len(times) // 2] for column in zip(*times))
    print("RESULT", json.dumps([wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
dist.barrier()
dist.destroy_process_group()
"""


def _timed(argv: list[str]) -> tuple[float, float, str]:
    """Wall and CPU seconds of it and its children, and what it printed."""
    before, begun = os.times(), time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True)
    wall, after = time.perf_counter() - begun, os.times()
    return wall, after[2] + after[3] - before[2] - before[3], done.stdout


def _interval(differences: list[float]) -> str:
    """The median, and the lowest and the highest."""
    return f"{statistics.median(differences):+.3f} ({min(differences):+.3f} to {max(differences):+.3f})"


def main(pairs: int) -> None:
    """One line a quantity; load beside it."""
    watch = [sys.executable, "-m", "ncclcheck", "watch", "--"]
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPATH"] = os.getcwd()
        os.chdir(folder)
        with open("job.py", "w", encoding="utf-8") as file:
            file.write(_JOB)
        start = [[_timed([*before, "true"])[:2] for before in ([], watch)] for _ in range(pairs)]
        argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "job.py"]
        told = []
        for _ in range(pairs):
            both = [_timed([*before, *argv]) for before in ([], watch)]
            told.append([json.loads(out.partition("RESULT")[2]) for _, _, out in both])
    print(f"{pairs} pairs, load {os.getloadavg()[0]:.0f}: median difference (lowest to highest)")
    print("start, wall seconds      ", _interval([b[0] - a[0] for a, b in start]))
    print("start, CPU seconds       ", _interval([b[1] - a[1] for a, b in start]))
    print("step, wall, percent      ", _interval([100 * (b[0] / a[0] - 1) for a, b in told]))
    print("step, CPU, percent       ", _interval([100 * (b[1] / a[1] - 1) for a, b in told]))
    print("memory of a rank, MB     ", _interval([(b[2] - a[2]) / 1024 for a, b in told]))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
