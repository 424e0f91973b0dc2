"""Whether the culprit is found: fabrics with planted faults of which the truth is known, beside other methods.

    python benchmarks/simulate.py [--trials 100] [--only quick]

An exchange of 4 MiB over links of 50 GB/s and 5 us; faults leave 25 to 80 % of the bandwidth. Right: every fault
is named with its kind and place, and nobody else is. Targets: 98 % of single faults, 95 % of doubles, names on
less than 1 % of healthy clusters. A slow link between two good nodes, or two faults of which one is such a link,
is for `full` only: `quick` measures few of all links. Other methods are told what a healthy way carries, and are
right where they name the nodes at which the faults stand, whatever the kind.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.simulation.fabric import Kind, Weather
from benchmarks.simulation.score import BASELINES, Level, Shape, baseline, fabrics, score

SINGLE: tuple[Kind, ...] = (
    "node", "nic", "link", "rail", "uplink", "host", "gpu", "late", "dead node", "dead link"
)  # fmt: skip
DOUBLE: tuple[tuple[Kind, ...], ...] = (
    ("nic", "nic"), ("node", "nic"), ("host", "nic"), ("late", "nic"), ("dead node", "nic"),
    ("uplink", "nic"), ("link", "node"), ("link", "link"), ("nic", "nic", "nic"),
)  # fmt: skip
SHAPES = (
    Shape(8), Shape(33, group=11), Shape(64, group=16), Shape(64, group=16, known=True), Shape(32, 8, 8),
    Shape(1024, 8, 32),
)  # fmt: skip
LARGE: tuple[tuple[Kind, ...], ...] = ((), ("node",), ("nic",), ("rail",), ("uplink",), ("nic", "nic"))
NOISE = (0.01, 0.02, 0.04, 0.08, 0.24)
_FULL = 33
_LARGE = 100


def planted(shape: Shape) -> Iterator[tuple[Kind, ...]]:
    """What there can be on a fabric of this shape."""
    for kinds in LARGE if shape.nodes > _LARGE else ((), *((kind,) for kind in SINGLE), *DOUBLE):
        lacks_rails = shape.rails == 1 and "rail" in kinds
        lacks_groups = 2 * shape.group > shape.nodes and "uplink" in kinds
        if not lacks_rails and not lacks_groups:
            yield kinds


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--only", choices=("quick", "full"))
    parser.add_argument("--nodes", type=int, help="only the shapes with so many nodes")
    given = parser.parse_args()
    levels: Sequence[Level] = (given.only,) if given.only else ("quick", "full")
    for level in levels:
        for shape in SHAPES:
            fits = level == "quick" or shape.nodes * shape.rails <= 2 * _FULL
            if fits and given.nodes in (None, shape.nodes):
                _by_fault(level, shape, given.trials)
        if not given.nodes:
            _by_noise(level, given.trials)


def _by_fault(level: Level, shape: Shape, trials: int) -> None:
    trials = max(3, trials // (20 if shape.nodes > _LARGE else 5 if shape.rails > 1 else 1))
    rows = []
    for kinds in planted(shape):
        many = fabrics(shape, kinds, Weather(), trials, seed=1)
        ours = score(level, shape, many)
        others = [baseline(method, many) for method in BASELINES.values()]
        rights = [_percent(other.right, trials) for other in others]
        rows.append((" + ".join(kinds) or "healthy", _percent(ours.named, trials), _percent(ours.right, trials),
                     f"{ours.rounds:.1f}", *rights))  # fmt: skip
    groups = f"groups of {shape.group}{', known' if shape.known else ''}"
    print(f"\n{level}: {shape.nodes} nodes x {shape.rails} rails, {groups}, {trials} trials a row; {Weather()}")
    print(tabulate(rows, ["fault", "named", "right", "rounds", *BASELINES], disable_numparse=True), flush=True)


def _by_noise(level: Level, trials: int) -> None:
    shape, rows = Shape(33 if level == "quick" else 16), []
    for noise in NOISE:
        for kinds in ((), ("nic",), ("nic", "nic")):
            many = fabrics(shape, kinds, Weather(noise=noise), trials, seed=2)
            result = score(level, shape, many)
            rows.append((f"{noise:.2f}", " + ".join(kinds) or "healthy", _percent(result.named, trials),
                         _percent(result.right, trials), f"{result.rounds:.1f}"))  # fmt: skip
    print(f"\n{level}: {shape.nodes} nodes x 1 rail, by noise (spread of the logarithm of one measurement)")
    print(tabulate(rows, ["noise", "fault", "named", "right", "rounds"], disable_numparse=True), flush=True)


def _percent(count: int, of: int) -> str:
    return f"{100 * count / of:.0f} %"


if __name__ == "__main__":
    main()
