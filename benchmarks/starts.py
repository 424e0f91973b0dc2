"""Start-up of torchrun against torch.multiprocessing.spawn: `python -m benchmarks.starts [rounds]`.

The same function with gloo, started in turn by both: seconds until all ranks have their first all_reduce, memory
and modules of a rank at that moment, memory of what started them, CPU seconds of it all from start to end. Prints
a table of medians and the ratio of their CPU seconds, which what else the machine does changes least.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ncclcheck.base.endpoint import free_port

_RANKS = (1, 2, 4)
_LIMIT_S = 180.0  # s for one start
# argv: when it was started (UNIX time), the folder of results, ranks, port. Modules are counted before psutil.
_SCRIPT = """import os, sys, time
imports = time.time()
import torch
import torch.distributed as dist
imported = time.time() - imports

def run(rank, begun, folder, ranks, port):
    if port:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    else:
        dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    seconds, modules = time.time() - begun, len(sys.modules)
    import json, psutil
    memory, parent = psutil.Process().memory_full_info(), psutil.Process(os.getppid())
    said = {"seconds": seconds, "modules": modules, "import_s": imported, "pss": memory.pss, "uss": memory.uss,
            "starter": parent.memory_full_info().pss}
    with open(f"{folder}/{dist.get_rank()}.json", "w") as file:
        json.dump(said, file)
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    begun, folder, ranks, port = float(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if port:
        import torch.multiprocessing as mp
        mp.spawn(run, args=(begun, folder, ranks, port), nprocs=ranks)
    else:
        run(None, begun, folder, ranks, 0)
"""


def once(start: str, ranks: int) -> dict[str, float]:
    """One start: the slowest rank's seconds, else means over ranks; memory in MiB. Raises where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "run.py")
        script.write_text(_SCRIPT)
        port = free_port("127.0.0.1")
        head = [sys.executable]
        if start == "torchrun":
            head += ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={port}"]
        given = [str(time.time()), folder, str(ranks), str(0 if start == "torchrun" else port)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        before = _cpu_s()
        subprocess.run(
            [*head, str(script), *given], check=True, timeout=_LIMIT_S, env=env, stderr=subprocess.DEVNULL
        )
        spent = _cpu_s() - before
        results = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    if len(results) != ranks:
        raise RuntimeError(f"{start}: {len(results)} of {ranks} ranks wrote a result")
    means = {name: statistics.mean(result[name] for result in results) for name in results[0]}
    return means | {"seconds": max(result["seconds"] for result in results), "cpu": spent}


def _cpu_s() -> float:
    """Of all children that have ended, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Both in turn, so that what else the machine does meets both alike."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print("| ranks | start | first collective | CPU | import torch | modules | rank (PSS) | own (USS) | starter |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for ranks in _RANKS:
        runs: dict[str, list[dict[str, float]]] = {"torchrun": [], "spawn": []}
        for _ in range(rounds):
            for start, of in runs.items():
                of.append(once(start, ranks))
        pairs = zip(runs["torchrun"], runs["spawn"], strict=True)
        ratios = [torchrun["cpu"] / spawn["cpu"] for torchrun, spawn in pairs]
        for start, of in runs.items():
            mid = {name: statistics.median(run[name] for run in of) for name in of[0]}
            mib = {name: f"{mid[name] / 2**20:.0f} MiB" for name in ("pss", "uss", "starter")}
            print(
                f"| {ranks} | {start} | {mid['seconds']:.1f} s | {mid['cpu']:.1f} s | {mid['import_s']:.1f} s "
                f"| {mid['modules']:.0f} "
                f"| {mib['pss']} | {mib['uss']} | {mib['starter']} |",
                flush=True,
            )
        print(f"| {ranks} | torchrun / spawn | | {statistics.median(ratios):.2f} | | | | | |", flush=True)
    print(f"\nMedians of {rounds}, in turn; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
