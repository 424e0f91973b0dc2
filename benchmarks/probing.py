"""How long `ncclcheck env` takes on a node with 8 GPUs and 9 HCAs: made ones, so that it runs anywhere.

    python benchmarks/probing.py [--rounds 5]

The GPUs are those of the fake libnvidia-ml.so.1 in tests/nvml (built with gcc), the HCAs and the PCIe tree are
tests/machines/h100-node as a live host (--host-root) with one HCA more; what comes from system calls is this
machine's. A real driver answers more slowly than the fake one, files below / faster than those below a prefix.
Target: under 0.7 s on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck.probes.facts import Node, at
from ncclcheck.reports.judgement.jsondoc import Document
from tests.helpers import fake_nvml

ROOT = Path(__file__).resolve().parent.parent
MACHINE = ROOT / "tests/machines/h100-node"
GPUS, HCAS = 8, 9
CARD, NEW_CARD = "0000:1c:00.0", "0000:1d:00.0"
ENV = [sys.executable, "-m", "ncclcheck", "env", "-o", "json"]


def host(folder: Path) -> Path:
    """The machine, and beside its first HCA one more below the same switch."""
    shutil.copytree(MACHINE, folder, symlinks=True)
    hca, function = folder / "sys/class/infiniband/mlx5_0", folder / "sys/bus/pci/devices" / CARD
    card = function.resolve()
    shutil.copytree(card, card.with_name(NEW_CARD), symlinks=True)
    (card.with_name(NEW_CARD) / "infiniband/mlx5_0").rename(card.with_name(NEW_CARD) / "infiniband/mlx5_8")
    for link, name in ((hca, "mlx5_8"), (function, NEW_CARD)):
        target = os.readlink(link).replace(CARD, NEW_CARD).replace("mlx5_0", "mlx5_8")
        link.with_name(name).symlink_to(target)
    verbs = folder / "sys/class/infiniband_verbs/uverbs8"
    verbs.mkdir()
    (verbs / "ibdev").write_text("mlx5_8\n")
    (folder / "dev/infiniband/uverbs8").touch()
    return folder


def run(argv: list[str], env: dict[str, str]) -> tuple[float, float, bytes]:
    """Wall and CPU time of one run with all its processes, and what it printed. What it finds may be faults."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    ran = subprocess.run(
        argv, check=False, env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
    )  # fmt: skip
    wall, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ran.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(argv)} ended with {ran.returncode}: {ran.stderr.decode()[-500:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ran.stdout


def node_of(document: bytes) -> Node:
    """The facts of the one node, with all cards and HCAs."""
    node = msgspec.json.decode(document, type=Document).nodes[0].facts
    counts = [len(at(node, path)) for path in ("gpus.cards", "rdma.devices")]
    if counts != [GPUS, HCAS]:
        raise SystemExit(f"{counts} GPUs and HCAs were seen, not {GPUS} and {HCAS}")
    return node


def measured(folder: Path, rounds: int) -> tuple[dict[str, list[tuple[float, float]]], list[Node]]:
    """The times of each arm, by turns, and what was seen of the made node."""
    (folder / "nvml").mkdir()
    fake = fake_nvml.environment(fake_nvml.built(folder / "nvml"), folder / "told", f"gpus = {GPUS}")
    made = [*ENV, "--host-root", str(host(folder / "host"))]
    arms: dict[str, list[tuple[float, float]]] = {"8 GPUs, 9 HCAs": [], "this machine": []}
    nodes = []
    for _ in range(rounds):
        wall, cpu, document = run(made, fake)
        arms["8 GPUs, 9 HCAs"].append((wall, cpu))
        nodes.append(node_of(document))
        arms["this machine"].append(run(ENV, {})[:2])
    return arms, nodes


def main() -> None:
    """Print the medians, and which probes took longest on the made node."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is run (default 5)")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        arms, nodes = measured(Path(folder), rounds)
    rows = []
    for name, times in arms.items():
        walls, cpus = zip(*times, strict=True)
        rows.append((name, statistics.median(walls), min(walls), max(walls), statistics.median(cpus)))
    print(tabulate(rows, ["ncclcheck env, seconds", "median", "min", "max", "CPU median"], floatfmt=".2f"))
    names = {probe.name for probe in nodes[0].probes}
    took = {n: statistics.median(p.seconds for node in nodes for p in node.probes if p.name == n) for n in names}
    slowest = sorted(took.items(), key=lambda item: -item[1])[:6]
    print(tabulate(slowest, ["probe, 8 GPUs, 9 HCAs", "median"], floatfmt=".3f"))


if __name__ == "__main__":
    main()
