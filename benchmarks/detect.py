"""What is found of injected faults, how soon, and what is said of healthy hosts.

    python benchmarks/detect.py [--only WORDS] [--healthy 20]

Needs root and Debian's iproute2, nftables, openssh-server, munge, slurm-wlm and gcc: the lab of tests/lab.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.scenarios.scenario import Outcome, Scenario
from tests.scenarios.scenario_run import Labs
from tests.scenarios.scenarios import SCENARIOS

_HEADERS = ("scenario", "expected", "detected", "culprit", "seconds", "otherwise than expected")
_QUICK = ("bench", "--quick", "--nproc-per-node", "1")


def row(scenario: Scenario, outcome: Outcome) -> tuple[str, str, str, str, float, str]:
    """One line of the table."""
    problems = outcome.problems(scenario)
    kinds = {problem.split(":", 1)[0] for problem in problems}
    codes = " ".join(dict.fromkeys(expect.code for expect in scenario.expect)) or f"exit {scenario.exit_code}"
    missed = "missed" in kinds or (not scenario.expect and "exit" in kinds)
    named = any(expect.node or expect.device for expect in scenario.expect)
    culprit = "-" if not named or missed else "wrong" if {"culprit", "false"} & kinds else "right"
    return scenario.name, codes, "no" if missed else "yes", culprit, round(outcome.seconds, 1), _shown(problems)


def _shown(problems: list[str]) -> str:
    return "; ".join(" ".join(problem.split())[:90] for problem in problems)


def healthy(times: int) -> list[Scenario]:
    """Runs of hosts on which nothing is wrong: `env` on 2, 3 and 4 hosts in turn, every fifth a `bench`."""
    return [
        Scenario(
            name=f"healthy {number + 1}",
            hosts=2 + number % 3,
            command=_QUICK if number % 5 == 4 else ("env",),
            exit_code=0,
            seconds=60,
        )
        for number in range(times)
    ]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="scenarios whose name has these words")
    parser.add_argument("--healthy", type=int, default=20, help="how many healthy runs (default 20)")
    options = parser.parse_args()
    with Labs() as labs:
        chosen = [scenario for scenario in SCENARIOS if options.only in scenario.name]
        rows = [
            row(scenario, labs.run(scenario)) for scenario in sorted(chosen, key=lambda scenario: scenario.needs)
        ]
        print(tabulate(rows, _HEADERS, floatfmt=".1f", maxcolwidths=[None, None, None, None, None, 60]))
        runs = sorted(healthy(options.healthy), key=lambda scenario: scenario.needs)
        alarms = {run.name: problems for run in runs if (problems := labs.run(run).problems(run))}
    detected, right = sum(r[2] == "yes" for r in rows), sum(r[3] != "wrong" for r in rows)
    print(f"\ndetected {detected} of {len(rows)}, culprit not wrong {right} of {len(rows)}")
    print(f"false alarms: {len(alarms)} of {len(runs)} healthy runs")
    for name, problems in alarms.items():
        print(f"  {name}: {_shown(problems)}")


if __name__ == "__main__":
    main()
