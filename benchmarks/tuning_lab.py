"""Whether `tune`'s search finds a throttled default in real jobs of gloo and NCCL, and nothing without one.

    python benchmarks/tuning_lab.py gloo|nccl [--runs 20] [--gain 0.1] [--seconds 600]

gloo: two hosts as network namespaces with two networks; the interface that the job has by default sends slower by
the gain than the other one. The candidates are the other one (GLOO_SOCKET_IFNAME) and two variables that do
nothing; two ranks, forked from a process that has imported torch. nccl: one network that lets each TCP connection
have less than its share; the limits are set so that NCCL's default of two reaches less by the gain than all
connections together may, which jobs on a busy machine did not show. The candidates are NCCL_SOCKET_NTHREADS=4 and
a variable that does nothing; two ranks of NCCL's own library on a CUDA of ours (tests/nccl). `tune`'s own search
decides, with its usual looks (nccl: those of --quick); the command around it and torchrun are not run. Needs root.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist

from benchmarks.tuning_jobs import Times, count, of_two, parser, searched
from ncclcheck.probes.facts import Tuning
from tests.lab import Lab, faults
from tests.nccl.job import WALKED, Job, Rank

# Bytes, and kbit/s of the faster interface, or of all connections: what a bucket lets through at once (32 KiB) is
# little beside it, and so is what the ranks compute, for our CUDA on busy cores tenths of a second a job.
SIZES = {"gloo": (2**18, 2**20), "nccl": (2**19,)}
RATE = {"gloo": 100_000, "nccl": 1_000}
CALLS = {"gloo": 8, "nccl": 2}
WARM = 2
_WARM_UP = 1024  # elements of NCCL's first call, which makes its connections
_CONNECTIONS = 2  # of NCCL's default between two ranks: one for each channel
_NEWNET = 0x40000000
_JOB_S = 60.0
_NAMES = {"gloo": ("IFNAME", "NOTHING", "NOTHING_EITHER"), "nccl": ("NCCL_SOCKET_NTHREADS", "NOTHING")}
_THREADS = "4"


def main() -> None:
    """Run after run, with the gain and without in turn, and a line for each kind."""
    options = parser(__doc__)
    options.add_argument("kind", choices=("gloo", "nccl"))
    given = options.parse_args()
    count(given, _NAMES[given.kind][0], lambda gain: run(given.kind, gain))


def run(kind: str, gain: float) -> Tuning:
    """One search over two new hosts."""
    with Lab(hosts=2) as lab, ExitStack() as limits:
        for host in lab.hosts:
            if kind == "nccl":
                each = RATE[kind] / (1 + gain) / _CONNECTIONS
                limits.enter_context(faults.flows_limited(host, each, RATE[kind]))
                continue
            for interface, rate in (("eth0", RATE[kind] / (1 + gain)), ("mgmt0", RATE[kind])):
                limits.enter_context(faults.limited(host, f"{rate:.0f}kbit", interface))
        if kind == "nccl":
            return searched(_NAMES[kind], _THREADS, "quick", lambda spared: of_nccl(lab, spared))
        return searched(_NAMES[kind], "mgmt0", "standard", lambda spared: of_gloo(lab, spared))


def of_nccl(lab: Lab, spared: bool) -> Times:
    """Two ranks of NCCL: calls of one size are queued together, for the wait polls."""
    calls = " ".join(f"all_reduce:{size // 4} " * CALLS["nccl"] + f"sync mark:{size}" for size in SIZES["nccl"])
    steps = f"init all_reduce:{_WARM_UP} sync {calls} destroy"
    env = {**WALKED, "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_DISABLE": "1"}
    env |= {_NAMES["nccl"][0]: _THREADS} if spared else {}
    ended = Job(lab, [Rank("h1", steps=steps), Rank("h2", steps=steps)], env=env).run(_JOB_S)
    if ended.codes != [0, 0]:
        raise RuntimeError(f"a job of NCCL ended with {ended.codes}: {ended.log[-2000:]}")
    lines, times, begun = ended.ranks[0].said, {}, 0.0
    for before, line in pairwise(lines):
        if str(line["step"]).startswith("mark:"):
            times[("all_reduce", int(str(line["step"])[5:]))] = (
                1e6 * (float(str(before["at"])) - begun) / CALLS["nccl"]
            )
            begun = float(str(line["at"]))
        elif str(line["step"]) == "sync" and not begun:
            begun = float(str(line["at"]))
    return times


def of_gloo(lab: Lab, spared: bool) -> Times:
    """Two ranks of gloo, one in each host's network, from their start to their end."""
    return of_two(lambda rank, folder: _rank(rank, lab, folder, "mgmt0" if spared else "eth0"))


def _rank(rank: int, lab: Lab, folder: str, interface: str) -> None:
    network = os.open(f"/proc/{lab.hosts[rank].holder.pid}/ns/net", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(network, _NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    times = {}
    for size in SIZES["gloo"]:
        data, took = torch.ones(size // 4), []
        for call in range(WARM + CALLS["gloo"]):
            begun = time.perf_counter()
            dist.all_reduce(data)
            if call >= WARM:
                took.append(time.perf_counter() - begun)
        times[size] = 1e6 * median(took)
    if rank == 0:
        (Path(folder) / "told").write_text(json.dumps(times))
    dist.barrier()


if __name__ == "__main__":
    main()
