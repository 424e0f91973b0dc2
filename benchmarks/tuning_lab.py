"""Whether `tune`'s search finds a throttled default in real jobs of gloo and NCCL, and nothing without one.

    python benchmarks/tuning_lab.py gloo|nccl [--runs 20] [--gain 0.1] [--seconds 600]

Two hosts as network namespaces with two networks. The interface that the job has by default sends slower by the
gain than the other one; the candidates are the other one (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) and two
variables that do nothing. gloo: two ranks, forked from a process that has imported torch. nccl: two ranks of
NCCL's own library on a CUDA of ours (tests/nccl). `tune`'s own search decides, with its usual looks; the command
around it and torchrun are not run. Needs root.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist

from ncclcheck.probes.facts import Candidate, Tuning
from ncclcheck.reports.subjects.job import trial, tuning
from ncclcheck.reports.subjects.job.tuning import Search
from ncclcheck.run.plan.tune_plan import LOOKS
from tests.lab import Lab, faults
from tests.nccl.job import WALKED, Job, Rank

# Bytes, and kbit/s of the faster interface: what a bucket lets through at once (32 KiB) is little beside it, and
# so is what the ranks compute, which for our CUDA on busy cores is tens of milliseconds a call.
SIZES = {"gloo": (2**18, 2**20), "nccl": (2**18, 2**19)}
RATE = {"gloo": 100_000, "nccl": 10_000}
CALLS = {"gloo": 8, "nccl": 3}
WARM = 2
_NEWNET = 0x40000000
_JOB_S = 60.0
Times = dict[tuple[str, int], float]
OneJob = Callable[[bool], Times]


def main() -> None:
    """Run after run, with the gain and without in turn, and a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("gloo", "nccl"))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--gain", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    end, done = time.monotonic() + given.seconds, {given.gain: [0, 0, 0], 0.0: [0, 0, 0]}
    for number in range(2 * given.runs):
        gain = (given.gain, 0.0)[number % 2]
        if time.monotonic() > end:
            break
        began = time.monotonic()
        with Lab(hosts=2) as lab, throttled(lab, given.kind, gain):
            told = searched(lambda spared, lab=lab: (of_gloo if given.kind == "gloo" else of_nccl)(lab, spared))  # type: ignore[misc]
        chosen = tuning.recommended(told)
        names = {one.variable for one in chosen.settings} if chosen else set()
        done[gain][0] += 1
        done[gain][1] += names == {"IFNAME"}
        done[gain][2] += bool(names) if gain == 0 else bool(names - {"IFNAME"})
        spent = time.monotonic() - began
        print(f"{gain:.0%}: {sorted(names)}, {spent:.0f} s, load {os.getloadavg()[0]:.0f}", flush=True)
        if names != ({"IFNAME"} if gain else set()):
            for one in filter(None, (*told.tried, told.whole)):
                print(f"  {tuning.named(one)}, {one.pairs} pairs: {', '.join(map(trial.effect, one.rows))}")
    for gain, (runs, right, wrong) in done.items():
        print(f"planted {gain:.0%}: {runs} runs, it alone recommended in {right}, anything beside it in {wrong}")


@contextmanager
def throttled(lab: Lab, kind: str, gain: float) -> Iterator[None]:
    """eth0, the default, sends slower by the gain than mgmt0."""
    with ExitStack() as all_:
        for host in lab.hosts:
            for interface, rate in (("eth0", RATE[kind] / (1 + gain)), ("mgmt0", RATE[kind])):
                all_.enter_context(faults.limited(host, f"{rate:.0f}kbit", interface))
        yield


def searched(job: OneJob) -> Tuning:
    """One search with real jobs, their order changing from pair to pair."""
    found = [Candidate(variable=name, value="mgmt0") for name in ("IFNAME", "NOTHING", "NOTHING_EITHER")]
    search, turn = Search(found, LOOKS["standard"]), 0
    pairs = search.pairs()
    settings = next(pairs, None)
    while settings is not None:
        spared = any(one.variable == "IFNAME" for one in settings)
        turn += 1
        if turn % 2:
            without = job(False)
            both = without, job(spared)
        else:
            with_ = job(spared)
            both = job(False), with_
        try:
            settings = pairs.send(both)
        except StopIteration:
            settings = None
    return search.tuning()


def of_nccl(lab: Lab, spared: bool) -> Times:
    """Two ranks of NCCL: calls of one size are queued together, for the wait polls."""
    calls = " ".join(f"all_reduce:{size // 4} " * CALLS["nccl"] + f"sync mark:{size}" for size in SIZES["nccl"])
    warm = f"all_reduce:{min(SIZES['nccl']) // 4} " * WARM
    steps = f"init {warm}sync {calls} destroy"
    env = {**WALKED, "NCCL_SOCKET_IFNAME": "mgmt0" if spared else "eth0", "NCCL_IB_DISABLE": "1"}
    ended = Job(lab, [Rank("h1", steps=steps), Rank("h2", steps=steps)], env=env).run(_JOB_S)
    if ended.codes != [0, 0]:
        raise RuntimeError(f"a job of NCCL ended with {ended.codes}: {ended.log[-2000:]}")
    said, told, begun = ended.ranks[0].said, {}, 0.0
    for before, line in pairwise(said):
        if str(line["step"]).startswith("mark:"):
            told[("all_reduce", int(str(line["step"])[5:]))] = (
                1e6 * (float(str(before["at"])) - begun) / CALLS["nccl"]
            )
            begun = float(str(line["at"]))
        elif str(line["step"]) == "sync" and not begun:
            begun = float(str(line["at"]))
    return told


def of_gloo(lab: Lab, spared: bool) -> Times:
    """Two ranks of gloo, one in each host's network, from their start to their end."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(2):
            if (pid := os.fork()) == 0:
                try:
                    _rank(rank, lab, folder, "mgmt0" if spared else "eth0")
                finally:
                    os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        told = json.loads((Path(folder) / "told").read_text())
    return {("all_reduce", int(size)): took for size, took in told.items()}


def _rank(rank: int, lab: Lab, folder: str, interface: str) -> None:
    network = os.open(f"/proc/{lab.hosts[rank].holder.pid}/ns/net", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(network, _NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    told = {}
    for size in SIZES["gloo"]:
        data, took = torch.ones(size // 4), []
        for call in range(WARM + CALLS["gloo"]):
            begun = time.perf_counter()
            dist.all_reduce(data)
            if call >= WARM:
                took.append(time.perf_counter() - begun)
        told[size] = 1e6 * median(took)
    if rank == 0:
        (Path(folder) / "told").write_text(json.dumps(told))
    dist.barrier()


if __name__ == "__main__":
    main()
