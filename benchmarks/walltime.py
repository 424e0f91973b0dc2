"""How long a person waits: `bench --quick` beside a bare loop under torchrun, `env` beside `import torch`.

    python benchmarks/walltime.py [--rounds 5]

The arms take turns. Targets: env takes at most a third of `import torch`, and under 0.5 s on a quiet machine; what
`bench --quick` of two simulated nodes takes beside its measuring is at most 1.25 times the whole of a bare loop.
The loop is run by two torchrun agents with c10d, as our job is, and by one (`--standalone`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tabulate import tabulate

HERE = Path(__file__).resolve().parent
PYTHON = sys.executable
TORCHRUN = [PYTHON, "-m", "torch.distributed.run"]
LOOP = str(HERE / "bare.py")
_LIMIT_S = 300
_FACTS, _JOB = "reading the facts", "torchrun with"
Seconds = dict[str, float]


def wall(argv: list[str], copies: int = 1) -> tuple[float, str]:
    """Wall time until the last of so many processes has ended, and what they printed. Raises where one fails."""
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    begin = time.monotonic()
    processes = [
        subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True)
        for _ in range(copies)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=_LIMIT_S) for process in processes]
    seconds = time.monotonic() - begin
    for process, (_, err) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"{' '.join(argv)} ended with {process.returncode}: {err[-1000:]}")
    return seconds, "".join(out for out, _ in outputs)


def plain(argv: list[str]) -> Seconds:
    """One that measures nothing."""
    return {"wall": wall(argv)[0]}


def bare(argv: list[str], copies: int = 1) -> Seconds:
    """The loop; its rank 0 prints what it has measured for."""
    seconds, output = wall(argv, copies)
    return {"wall": seconds, "measuring": float(output.split("measuring")[1].split()[0])}


def two_agents() -> Seconds:
    """The job of bench, by hand."""
    endpoint = f"127.0.0.1:{random.randrange(20000, 30000)}"
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--local-addr", "127.0.0.1"]
    return bare([*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", *rendezvous, LOOP], 2)


def ours() -> Seconds:
    """`bench --quick`: the shares of its wall time, by its document and by when it announces its stages."""
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder, "bench.json")
        argv = [PYTHON, "-m", "ncclcheck", "bench", "--nodes", "2", "--quick", "--json", str(document)]
        announced, seconds = _stages(argv)
        result = json.loads(document.read_bytes())
    stages = {stage["name"]: stage["seconds"] for stage in result["stages"]}
    measured = result["measurements"]
    start = measured["startup_s"]
    inside = {
        "torchrun and its rendezvous": start["rendezvous"],
        "import torch in the ranks": start["import"],
        "communicator": start["init"] + start["first_collective"],
        "measuring": measured["measuring_s"],
    }
    shares = {
        "start of the command": announced[_FACTS],
        "facts": stages["facts"],
        "reach": stages.get("reach", 0.0),
        **inside,
        "end of the job": stages["bench"] - sum(inside.values()),
        "report": seconds - announced[_JOB] - stages["bench"],
    }
    return {"wall": seconds, **shares, "between stages": seconds - sum(shares.values())}


def _stages(argv: list[str]) -> tuple[Seconds, float]:
    """Seconds until each stage was announced on stderr, and to the end. Raises where it fails."""
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    begin, announced = time.monotonic(), {}
    process = subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        for name in (_FACTS, _JOB):
            if line.startswith(name):
                announced[name] = time.monotonic() - begin
    if process.wait(_LIMIT_S):
        raise RuntimeError(f"{' '.join(argv)} ended with {process.returncode}")
    return announced, time.monotonic() - begin


ARMS: Mapping[str, Callable[[], Seconds]] = {
    "env": lambda: plain([PYTHON, "-m", "ncclcheck", "env", "-q"]),
    "import torch": lambda: plain([PYTHON, "-c", "import torch"]),
    "bench --quick": ours,
    "bare loop, two agents": two_agents,
    "bare loop, --standalone": lambda: bare([*TORCHRUN, "--standalone", "--nproc-per-node", "2", LOOP]),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each arm is run (default 5)")
    parser.add_argument("--only", default="", help="arms whose name has these words, with commas between")
    options = parser.parse_args()
    arms = {name: arm for name, arm in ARMS.items() if any(word in name for word in options.only.split(","))}
    times: dict[str, list[Seconds]] = {name: [] for name in arms}
    loads = []
    for _ in range(options.rounds):
        for name, arm in arms.items():
            times[name].append(arm())
            loads.append(os.getloadavg()[0])
    print(f"{options.rounds} rounds; load of the machine {min(loads):.1f} to {max(loads):.1f}\n")
    _print_walls(times)
    if runs := times.get("bench --quick"):
        shares = [(name, statistics.median(run[name] for run in runs)) for name in runs[0] if name != "wall"]
        print("\n" + tabulate(shares, ["of bench --quick", "median s"], floatfmt=".2f"))
    for name, other, what in (
        ("env", "import torch", "wall"),
        ("bench --quick", "bare loop, two agents", "wall without measuring / wall"),
        ("bench --quick", "bare loop, --standalone", "wall without measuring / wall"),
        ("bench --quick", "bare loop, two agents", "wall without measuring, both"),
    ):
        if name in times and other in times:
            ratio = _ratio(times[name], times[other], what)
            print(f"{name} / {other}, {what}: median ratio {ratio:.2f}")


def _print_walls(times: Mapping[str, list[Seconds]]) -> None:
    rows = []
    for name, runs in times.items():
        walls = [run["wall"] for run in runs]
        beside = statistics.median(_beside(run) for run in runs)
        rows.append((name, statistics.median(walls), min(walls), max(walls), beside))
    print(tabulate(rows, ["wall seconds", "median", "min", "max", "without measuring"], floatfmt=".2f"))


def _beside(run: Seconds) -> float:
    return run["wall"] - run.get("measuring", 0.0)


def _ratio(ours: list[Seconds], others: list[Seconds], what: str) -> float:
    """The median over rounds."""
    mine = [run["wall"] if what == "wall" else _beside(run) for run in ours]
    theirs = [_beside(run) if what.endswith("both") else run["wall"] for run in others]
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


if __name__ == "__main__":
    main()
