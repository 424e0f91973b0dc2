"""What `ncclcheck data` finds in the collection of defective datasets, and what it says of the clean ones.

    python benchmarks/data.py [--only WORDS] [--clean | --defects] [--repeat 10] [--list]

A case whose modules (h5py, lmdb) are not installed is left out, as is one that needs root where we are not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.data_run import Outcome, run
from benchmarks.datasets import CASES, Case
from benchmarks.datasets.kinds import KINDS, NAMED_IS_ENOUGH

_HEADERS = ("case", "kind", "found", "other findings", "seconds", "verdicts differ")
_RAISED = {"fail", "warn"}
_NAMED = _RAISED | {"note", "unknown"}


def named(case: Case, outcome: Outcome) -> tuple[str, ...]:
    """The codes that name the case's defects; none unless every kind is named."""
    codes: list[str] = []
    for kind in case.expects:
        enough = _NAMED if kind in NAMED_IS_ENOUGH else _RAISED
        named = [code for code in KINDS[kind] if outcome.states.get(code) in enough]
        if not named:
            return ()
        codes += named
    return tuple(dict.fromkeys(codes))


def raised(outcome: Outcome) -> tuple[str, ...]:
    """The data verdicts that a person would act on."""
    return tuple(code for code, state in outcome.states.items() if code.startswith("DAT") and state in _RAISED)


@dataclass(frozen=True)
class Result:
    """All runs of one case."""

    case: Case
    outcomes: list[Outcome]

    @property
    def good(self) -> bool:
        """Found in every run; or, of a clean one, no alarm in any."""
        if self.case.clean:
            return not any(raised(outcome) or outcome.problem for outcome in self.outcomes)
        return all(named(self.case, outcome) for outcome in self.outcomes)

    @property
    def seconds(self) -> float:
        """The middle run's."""
        return median(outcome.seconds for outcome in self.outcomes)

    def differing(self) -> set[str]:
        """Codes raised in some runs and not in others."""
        times = Counter(code for outcome in self.outcomes for code in raised(outcome))
        return {code for code, number in times.items() if number < len(self.outcomes)}

    def row(self) -> tuple[str, str, str, str, float, str]:
        """One line of the table."""
        last = next((outcome for outcome in self.outcomes if not self._well(outcome)), self.outcomes[-1])
        codes = named(self.case, last)
        verdict = ("clean" if self.good else "ALARM") if self.case.clean else " ".join(codes) or "MISSED"
        others = [
            f"{code} {state}" for code, state in last.states.items() if code not in codes and state in _NAMED
        ]
        remarks = "; ".join([last.problem, *others] if last.problem else others)
        return (
            self.case.name,
            " ".join(self.case.expects) or "-",
            verdict,
            remarks,
            self.seconds,
            " ".join(sorted(self.differing())),
        )

    def _well(self, outcome: Outcome) -> bool:
        return Result(self.case, [outcome]).good


def lacking(case: Case) -> str:
    """Why the case cannot be run here, or nothing."""
    missing = [name for name in case.needs if find_spec(name) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    return "needs root" if case.shm_mb and os.geteuid() != 0 else ""


def summary(results: list[Result]) -> str:
    """The lines that are quoted."""
    defects = [result for result in results if not result.case.clean]
    clean = [result for result in results if result.case.clean]
    seconds = [run.seconds for result in results for run in result.outcomes]
    missed = [defect.case.name for defect in defects if not defect.good]
    alarms = [result.case.name for result in clean if not result.good]
    lines = [
        f"found {len(defects) - len(missed)} of {len(defects)} defects; missed: {', '.join(missed) or 'none'}",
        f"false alarms {len(alarms)} of {len(clean)} clean ones: {', '.join(alarms) or 'none'}",
        f"seconds: median {median(seconds):.1f}, longest {max(seconds):.1f}",
    ]
    if len(results[0].outcomes) > 1:
        agreed = sum(not result.differing() for result in results)
        lines.append(f"same verdicts in {len(results[0].outcomes)} runs: {agreed} of {len(results)} cases")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name or kind has these words")
    parser.add_argument("--clean", action="store_true", help="only those with which nothing is wrong")
    parser.add_argument("--defects", action="store_true", help="only those with a defect")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each case (default 1)")
    parser.add_argument(
        "--limit", type=float, default=120, help="seconds for a run before it is ended (default 120)"
    )
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    return parser.parse_args()


def main() -> None:
    """Print the table and its summary."""
    options = _options()
    wanted = [case for case in CASES if options.only in case.name or options.only in case.expects]
    chosen = [
        case for case in wanted if (case.clean or not options.clean) and not (case.clean and options.defects)
    ]
    if options.list:
        print(tabulate([(case.name, " ".join(case.expects) or "clean", lacking(case)) for case in chosen]))
        return
    results = []
    for case in chosen:
        if why := lacking(case):
            print(f"left out: {case.name}: {why}", file=sys.stderr)
            continue
        results.append(Result(case, [run(case, options.limit) for _ in range(max(1, options.repeat))]))
        print("  ".join(str(cell) for cell in results[-1].row()), file=sys.stderr, flush=True)
    if not results:
        sys.exit("no such case")
    print(
        tabulate(
            [result.row() for result in results],
            _HEADERS,
            floatfmt=".1f",
            maxcolwidths=[None] * 3 + [60, None, 30],
        )
    )
    print(f"\n{summary(results)}")


if __name__ == "__main__":
    main()
