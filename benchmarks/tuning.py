"""Whether a planted gain is found by `tune`, and nothing is recommended where there is none.

    python benchmarks/tuning.py [--trials 20] [--seed 21]

Pairs of jobs are simulated, none is run: the logarithm of a job's median drifts slowly by 4 %, jitters by 2 %, and
2 % of the jobs hit a burst of 25 % on average; each size jitters by 2 % more. Six candidates, three sizes, the
looks of the standard level; one of the candidates gains where a gain is planted.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck.probes.facts import Candidate, Tuning
from ncclcheck.reports.subjects.job import tuning
from ncclcheck.reports.subjects.job.tuning import TuningSearch
from ncclcheck.run.plan.tune_plan import LOOKS as ALL_LOOKS

LOOKS = ALL_LOOKS["standard"]
SIZES = (2**16, 2**20, 2**24)
GAINS = (0.0, 0.02, 0.05, 0.10, 0.20)
_DRIFT, _SLOWLY, _JITTER, _BURSTS, _BURST = 0.04, 0.98, 0.02, 0.02, 0.25


def candidates(count: int) -> list[Candidate]:
    """The first one is the one that may gain."""
    names = ["NCCL_GOOD", *(f"NCCL_OTHER_{number}" for number in range(1, count))]
    return [Candidate(variable=name, value="1") for name in names]


def weather(chance: random.Random) -> Callable[[], float]:
    """What disturbs job after job, as a logarithm."""
    drift = chance.gauss(0, _DRIFT)

    def next_job() -> float:
        nonlocal drift
        drift = _SLOWLY * drift + math.sqrt(1 - _SLOWLY**2) * chance.gauss(0, _DRIFT)
        burst = chance.expovariate(1 / _BURST) if chance.random() < _BURSTS else 0.0
        return drift + chance.gauss(0, _JITTER) + burst

    return next_job


def planted(gain: float, chance: random.Random, count: int = 6) -> Tuning:
    """One run of `tune`: the first candidate is faster by this share."""
    search, job = TuningSearch(candidates(count), LOOKS), weather(chance)
    pairs = search.pairs()
    settings = next(pairs, None)
    while settings is not None:
        faster = math.log1p(gain) if any(setting.variable == "NCCL_GOOD" for setting in settings) else 0.0
        first, second = job(), job()
        both = (
            {("all_reduce", size): 100.0 * math.exp(pace - less + chance.gauss(0, _JITTER)) for size in SIZES}
            for pace, less in ((first, 0.0), (second, faster))
        )
        try:
            settings = pairs.send((next(both), next(both)))
        except StopIteration:
            settings = None
    return search.tuning()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=21)
    given = parser.parse_args()
    rows = []
    for gain in GAINS:
        right = wrong = pairs = 0
        for trial in range(given.trials):
            result = planted(gain, random.Random(f"{given.seed} {gain} {trial}"))
            chosen = tuning.recommended(result)
            names = {setting.variable for setting in chosen.settings} if chosen else set()
            right += names == {"NCCL_GOOD"}
            wrong += bool(names - {"NCCL_GOOD"}) or (gain == 0 and bool(names))
            pairs += sum(tried.pairs for tried in result.tried) + (result.whole.pairs if result.whole else 0)
        rows.append((f"{100 * gain:.0f} %", f"{right} of {given.trials}", wrong, f"{pairs / given.trials:.0f}"))
    print(tabulate(rows, ["gain", "recommended", "anything else", "pairs of jobs"], disable_numparse=True))


if __name__ == "__main__":
    main()
