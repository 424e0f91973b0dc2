"""Feed targets, each in a process of its own with limits: memory, and CPU time an input."""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
_INPUT_S = 8.0  # of CPU time: the largest healthy input here takes 1 s
_MEMORY = 3 * 2**30  # bytes of address space; the largest input has 1 MB
_GROWTH_KIB = 512 * 1024
_FILE = 64 * 2**20


class Outcome(NamedTuple):
    """fed: how many inputs; broken: what went wrong, with how to feed it again."""

    fed: int
    broken: str


def feed(target: str, seed: int, count: int, seconds: float, first: int = 0) -> Outcome:
    """Feed one target, until `count` inputs or `seconds` are over."""
    argv = [sys.executable, "-m", "tests.fuzz.run", "--child", target, "--seed", str(seed), "--count", str(count)]
    argv += ["--seconds", str(seconds), "--first", str(first)]
    with tempfile.TemporaryDirectory(prefix="ncclcheck-fuzz-") as folder:
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "SLURM_"))},
            "PYTHONPATH": str(ROOT), "TMPDIR": folder, "HOME": folder,
        }  # fmt: skip
        child = subprocess.run(
            argv, cwd=folder, env=env, capture_output=True, text=True, errors="backslashreplace",
            timeout=seconds + 120, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    numbers = child.stdout.splitlines()
    at = int(numbers[-1]) if numbers else first
    again = f"python -m tests.fuzz.run {target} --seed {seed} --first {at} --count 1"
    if child.returncode == -signal.SIGPROF:
        return Outcome(at - first, f"input {at} took more than {_INPUT_S:g} s of CPU time: {again}")
    if child.returncode:
        return Outcome(at - first, f"input {at}, ended with {child.returncode}: {again}\n{child.stderr[-3000:]}")
    return Outcome(at - first + 1, "")


def _child(name: str, options: argparse.Namespace) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - within the limits

    target, end, before = TARGETS[name](), time.monotonic() + options.seconds, 0
    for at in range(options.first, options.first + options.count):
        sample = target.make(random.Random(f"{name} {options.seed} {at}"))
        print(at, flush=True, file=sys.__stdout__)
        signal.setitimer(signal.ITIMER_PROF, _INPUT_S)
        try:
            target.take(sample)
        except Exception:
            traceback.print_exc()
            os._exit(1)
        signal.setitimer(signal.ITIMER_PROF, 0)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if before and grown - before > _GROWTH_KIB:
            sys.exit(f"it took {grown - before} KiB more")
        before = before or grown
        if time.monotonic() > end:
            break


def main(arguments: Sequence[str] | None = None) -> None:
    """Feed the named targets, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--child", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.child:
        _child(options.child, options)
        return
    names = options.targets or ["lines", "results", "logs", "dumps", "site-files", "words"]
    for name in names:
        fed, broken = feed(name, options.seed, options.count, options.seconds, options.first)
        print(f"{name}: {fed} inputs, {broken or 'nothing broken'}", flush=True)


if __name__ == "__main__":
    main()
