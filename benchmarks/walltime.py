"""How long a person waits: `bench --quick` beside a bare loop under torchrun, `env` beside `import torch`.

    python benchmarks/walltime.py [--rounds 5]

The arms take turns. Targets: env takes at most a third of `import torch`, and under 0.5 s on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tabulate import tabulate

HERE = Path(__file__).resolve().parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ARMS = {
    "env": [sys.executable, "-m", "ncclcheck", "env", "-q"],
    "import torch": [sys.executable, "-c", "import torch"],
    "bench --quick": [sys.executable, "-m", "ncclcheck", "bench", "--nodes", "2", "--quick", "-q"],
    "bare loop, torchrun": [*TORCHRUN, str(HERE / "bare.py")],
}


def seconds(argv: list[str]) -> float:
    """Wall time of one run. Raises CalledProcessError where it fails."""
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    begin = time.monotonic()
    subprocess.run(argv, env=env, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=300)
    return time.monotonic() - begin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each arm is run (default 5)")
    rounds = parser.parse_args().rounds
    found: dict[str, list[float]] = {name: [] for name in ARMS}
    for _ in range(rounds):
        for name, argv in ARMS.items():
            found[name].append(seconds(argv))
    rows = [(name, statistics.median(times), min(times), max(times)) for name, times in found.items()]
    print(tabulate(rows, ["wall seconds", "median", "min", "max"], floatfmt=".2f"))
    for ours, other in (("env", "import torch"), ("bench --quick", "bare loop, torchrun")):
        ratios = [a / b for a, b in zip(found[ours], found[other], strict=True)]
        print(f"{ours} / {other}: median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
