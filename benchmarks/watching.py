"""What `ncclcheck watch` costs a job, in pairs in turn: `python -m benchmarks.watching [PAIRS]`.

Start: a program that does nothing. Step: two gloo ranks, 10 ms of sleep and an all-reduce of 4 MB. CPU seconds and
memory are of each rank; of the watcher and the wrapper as the kernel counts their children. Beside the pairs of
whole runs: one run in which the watcher is stopped and looks in turns of 2 s, for on a busy machine whole runs
differ by more; and the watcher's own CPU time.
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

_STEPS = 300
_BLOCK_S = 2.0  # of a job in which the watcher looks, and in which it is stopped
_JOB = f"""
import json, os, resource, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
data, times = torch.ones(2**20), []
open("begun", "w").close()
every = []
for _ in range(int(os.environ.get("STEPS", "{_STEPS}"))):
    begun, used = time.perf_counter(), time.process_time()
    time.sleep(0.01)
    dist.all_reduce(data)
    every.append((time.time(), time.perf_counter() - begun, time.process_time() - used))
    times.append((time.perf_counter() - begun, time.process_time() - used))
if dist.get_rank() == 0:
    wall, cpu = (sorted(column)[len(times) // 2] for column in zip(*times))
    open("done", "w").close()
    if "STEPS" in os.environ:
        print("TIMES", json.dumps(every))
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
    """The median, and a 95 % interval of it: order statistics by the binomial, which ask nothing of the noise."""
    ordered, count = sorted(differences), len(differences)
    below, chance = 0, 0.5**count
    while below < count // 2 and chance <= 0.025:
        below += 1
        chance += math.comb(count, below) * 0.5**count
    at = max(0, below - 1)
    return f"{statistics.median(ordered):+.3f} ({ordered[at]:+.3f} to {ordered[-1 - at]:+.3f})"


def _blocks(argv: list[str], seconds: float) -> tuple[list[float], list[float], float]:
    """Percent by which steps take longer, and more CPU, while the watcher looks than while it is stopped; and the
    cores that it uses."""
    for name in ("begun", "done"):
        with suppress(FileNotFoundError):
            os.unlink(name)
    watch = [sys.executable, "-m", "ncclcheck", "watch", "--box", "box-blocks", "--"]
    env = {**os.environ, "STEPS": str(int(seconds / 0.014))}
    with subprocess.Popen([*watch, *argv], env=env, stdout=subprocess.PIPE, text=True) as process:
        watcher, turns, used = 0, [0.0], 0.0
        end = time.time() + seconds + 60
        while process.poll() is None and time.time() < end and not os.path.exists("done"):
            watcher = watcher or _watcher(process.pid)
            if watcher and os.path.exists("begun"):
                os.kill(watcher, signal.SIGSTOP if len(turns) % 2 else signal.SIGCONT)
                turns.append(time.time())
                used = _cpu(watcher)
            time.sleep(_BLOCK_S)
        if watcher:
            os.kill(watcher, signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
    times = json.loads(out.partition("TIMES")[2].splitlines()[0])
    percents: list[list[float]] = []
    for column in (1, 2):
        blocks = [
            [step[column] for step in times if turns[at] + 0.2 < step[0] < turns[at + 1]]
            for at in range(1, len(turns) - 1)
        ]
        middle = [statistics.median(block) for block in blocks if len(block) > 20]
        # The watcher is stopped in the first, third, ... block.
        percents.append(
            [100 * (looks / still - 1) for still, looks in zip(middle[::2], middle[1::2], strict=False)]
        )
    return percents[0], percents[1], used / max(1.0, (turns[-1] - turns[1]) / 2)


def _cpu(pid: int) -> float:
    """Seconds."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        row = file.read().rpartition(")")[2].split()
    return (int(row[11]) + int(row[12])) / os.sysconf("SC_CLK_TCK")


def _watcher(wrapper: int) -> int:
    with open(f"/proc/{wrapper}/task/{wrapper}/children", encoding="ascii") as file:
        for pid in file.read().split():
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                if b"probes.box.watcher" in line.read():
                    return int(pid)
    return 0


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
        results = []
        for _ in range(pairs):
            both = [_timed([*before, *argv]) for before in ([], watch)]
            results.append([json.loads(out.partition("RESULT")[2]) for _, _, out in both])
        blocks, used, cores = _blocks(argv, 10.0 * pairs)
    print(f"{pairs} pairs, load {os.getloadavg()[0]:.0f}: median difference (95 % interval)")
    print("start, wall seconds      ", _interval([b[0] - a[0] for a, b in start]))
    least = [
        min(pair[at][0] for pair in start) for at in (0, 1)
    ]  # of each side: what others that run here add is least
    print(f"start, wall seconds, fastest of each: {least[1] - least[0]:+.3f}")
    print("start, CPU seconds       ", _interval([b[1] - a[1] for a, b in start]))
    print("step, wall, percent      ", _interval([100 * (b[0] / a[0] - 1) for a, b in results]))
    print("step, CPU, percent       ", _interval([100 * (b[1] / a[1] - 1) for a, b in results]))
    print(f"step, wall, percent, {len(blocks)} turns", _interval(blocks))
    print(f"step, CPU, percent, {len(used)} turns ", _interval(used))
    print(f"the watcher's CPU time    {cores:.3f} of a core, its start too")
    print("memory of a rank, MB     ", _interval([(b[2] - a[2]) / 1024 for a, b in results]))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
