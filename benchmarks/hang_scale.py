"""How long `ncclcheck hang` takes: `python -m benchmarks.hang_scale [--hosts 1000] [--ranks 8] [--here 4]`.

Hosts are stand-ins: an `ssh` of ours sleeps as long as the two looks are apart, and prints what the probe says of
a host whose ranks wait in a ring of connections; one rank of the job is stopped. `--here` ranks of a real gloo job
on this machine tell what the probe itself takes.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

_SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
cat > /dev/null
sleep 6
cat "$HANG_SCALE/$2"
"""
# The command, and what it used by itself: without the stand-ins, which run on hosts of their own in a cluster.
_MEASURED = """
import os, resource, runpy, sys
end = os._exit
def told(code):
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"MEASURED {used.ru_utime + used.ru_stime:.2f} {used.ru_maxrss // 1024}", file=sys.stderr, flush=True)
    end(code)
os._exit = told
runpy.run_module("ncclcheck", run_name="__main__")
"""
_JOB = str(ROOT / "tests/jobs/hang_job.py")
_WALL_S = 300.0


def _host(at: int, hosts: int, ranks: int, stopped: int) -> dict[str, Any]:
    """What the probe says of one host."""
    world = hosts * ranks
    return {
        "host": f"node{at}", "seconds": 6.0, "cpu_s": 0.3, "unseen": [], "addresses": [_address(at)],
        "processes": [_rank(at * ranks + local, world, ranks, stopped) for local in range(ranks)],
    }  # fmt: skip


def _rank(rank: int, world: int, ranks: int, stopped: int) -> dict[str, Any]:
    at, state = rank // ranks, "T" if rank == stopped else "S"
    place = "do_signal_stop" if rank == stopped else "futex_do_wait"
    ends = [(rank + 1) % world, (rank - 1) % world]
    far = [f"{_address(other // ranks)}:{40000 + other % ranks}" for other in ends]
    near = f"{_address(at)}:{30000 + rank % ranks}"
    links = [{"near": near, "far": peer, "sent_s": 61.0, "received_s": 61.0} for peer in far]
    return {
        "host": f"node{at}", "pid": 1000 + rank % ranks, "rank": rank, "world": world, "job": "10.0.0.0:29500",
        "expected": [at * ranks, ranks], "launcher": "torchrun", "command": "python train.py --config large.yaml",
        "libraries": ["nccl", "torch", "cuda"], "age_s": 4000.0, "was": state, "state": state, "was_wchan": place,
        "wchan": place, "threads": 120, "sockets": 12, "moved": 0, "connections": links,
    }  # fmt: skip


def _address(at: int) -> str:
    return f"10.0.{at // 250}.{at % 250}"


def _cluster(hosts: int, ranks: int) -> None:
    stopped = hosts * ranks // 2 + 3
    with tempfile.TemporaryDirectory(prefix="hang-scale-") as folder:
        tool = Path(folder) / "ssh"
        tool.write_text(_SSH)
        tool.chmod(0o755)
        for at in range(hosts):
            (Path(folder) / f"node{at}").write_text(json.dumps(_host(at, hosts, ranks, stopped)) + "\n")
        (Path(folder) / "hostfile").write_text("".join(f"node{at}\n" for at in range(hosts)))
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HANG_SCALE": folder}
        begun = time.monotonic()
        done = _run(["hang", "--hostfile", f"{folder}/hostfile"], env)
        wall = time.monotonic() - begun
    named = f"rank {stopped} is stopped" in done.stdout
    _row(f"{hosts} hosts of {ranks}", wall, done, "the stopped rank is named" if named else "NOT named")


def _run(words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", _MEASURED, *words]
    return subprocess.run(argv, capture_output=True, text=True, env=env, cwd=ROOT, timeout=_WALL_S, check=False)


def _row(name: str, wall: float, done: subprocess.CompletedProcess[str], more: str) -> None:
    used = next((line.split()[1:] for line in done.stderr.splitlines() if line.startswith("MEASURED")), ["?", "?"])
    lines = len(done.stdout.splitlines())
    print(f"| {name} | {wall:.1f} s | CPU {used[0]} s | {used[1]} MB | {lines} lines | exit {done.returncode} "
          f"| {more} | load {os.getloadavg()[0]:.0f} |", flush=True)  # fmt: skip


@contextmanager
def _job(ranks: int, fault: str) -> Iterator[None]:
    """A real job of gloo, once it is where it stays."""
    with tempfile.TemporaryDirectory(prefix="hang-scale-") as folder:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        argv = [sys.executable, _JOB, fault, folder]
        begun = [
            subprocess.Popen(
                argv, env={**env, "RANK": str(n)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for n in range(ranks)
        ]
        try:
            end = time.monotonic() + _WALL_S
            while not all((Path(folder) / f"ready{n}").exists() for n in range(ranks)) and time.monotonic() < end:
                time.sleep(0.2)
            yield
        finally:
            for process in begun:
                with suppress(ProcessLookupError):
                    process.kill()
                process.wait()


def _here(ranks: int) -> None:
    for fault in ("healthy", "collective"):
        with _job(ranks, fault):
            begun = time.monotonic()
            done = _run(["hang"], dict(os.environ))
            wall = time.monotonic() - begun
            outcome = _run(["hang", "-o", "json", "-q"], dict(os.environ))
        [live] = json.loads(outcome.stdout)["measurements"]["live"]
        share = live["cpu_s"] / live["seconds"] / ranks
        words = f"the probe {live['cpu_s']:.2f} s of CPU in all, {share:.2%} of a core for each rank"
        _row(f"{ranks} ranks here, {fault}", wall, done, words)


def main() -> None:
    """A row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--here", type=int, default=4)
    given = parser.parse_args()
    if given.here:
        _here(given.here)
    _cluster(given.hosts, given.ranks)


if __name__ == "__main__":
    main()
