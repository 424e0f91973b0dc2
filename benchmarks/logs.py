"""How often the cause in a log is named; how fast logs are read, log_speed.py tells.

    python benchmarks/logs.py [--held] [--seeds 2] [--missed] [--only A,B7]

Cases: tests/data/logs/cases, written by people who had not seen the rules, which were mended by what they missed;
--held: tests/data/logs/held, a second set, run when the rules were done. Each is read as it is (clean) and mixed
with the other ranks of its job (mixed, `--seeds` times). A cause is right when its code stands for the failure
mode of the case in benchmarks/log_modes. What costs speed is at most a note where the run is sound: one with the
right code, where no cause is named, is right too, and counted apart (as a note).
"""

from __future__ import annotations

import argparse
import io
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tabulate import tabulate

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.probes.logs.reading import LogReading
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules, flagged
from ncclcheck.reports.subjects.logs.answer.story import Cause, diagnosis
from tests.helpers.logcases import FOLDER, Case, cases

MODES = Path(__file__).resolve().parent / "log_modes"
SOUND = ("healthy", "harmless")
NONE = "none"
UNKNOWN = ("LOG003", "LOG006", "LOG007", "LOG008")  # not read, who ended it, not to the end, not understood


@dataclass
class Score:
    """One family in one form."""

    logs: int = 0
    first: int = 0
    noted: int = 0
    three: int = 0
    where: int = 0
    placed: int = 0
    missed: list[str] = field(default_factory=list)


def codes_of_modes() -> dict[str, list[str]]:
    """Failure mode -> the codes that stand for it."""
    codes: dict[str, list[str]] = {}
    for path in sorted(MODES.glob("*.json")):
        codes |= {mode: entry["codes"] for mode, entry in json.loads(path.read_text()).items()}
    return codes


def causes(data: bytes) -> list[Cause]:
    """What the tool says of a log, the likeliest cause first."""
    return read(data)[0]


def read(data: bytes) -> tuple[list[Cause], set[str]]:
    """The causes, and the codes that are notes or say what these lines do not show."""
    reading = LogReading()
    reading.take("log", io.BytesIO(data))
    logs = reading.logs()
    rules = [rule for rule in all_rules() if rule.code.startswith("LOG")]
    verdicts: list[Verdict] = judge(Cluster(command="logs", measurements=Measurements(logs=logs)), rules)
    bad = [v.code for v in verdicts if v.state is State.UNKNOWN and v.code not in UNKNOWN]
    assert not bad, bad
    answer = diagnosis(logs, verdicts)
    notes = {v.code for v in verdicts if v.state in (State.NOTE, State.UNKNOWN)}
    return (answer.causes if answer else []), notes


def forms(case: Case, seeds: int) -> Iterator[tuple[str, bytes]]:
    """The log as it is, and mixed with the others."""
    yield "clean", case.clean()
    for seed in range(seeds):
        yield "mixed", case.interleaved(seed)


def accepted(case: Case, codes: dict[str, list[str]]) -> tuple[set[str], bool]:
    """The codes that are right first, and whether naming none is right."""
    modes = {case.mode, *case.also}
    right = {code for mode in modes for code in codes.get(mode, [])}
    if NONE in modes:  # nothing but the user's own exception, or an end from outside
        right |= {"LOG004", "LOG006"}
    return right, bool(modes & {*SOUND, NONE})


def judged(case: Case, data: bytes, codes: dict[str, list[str]], score: Score) -> None:
    """Count one log."""
    right, none_is_right = accepted(case, codes)
    ranked, notes = read(data)
    exact = [cause for cause in ranked if cause.code not in flagged("symptom")]
    named = [cause.code for cause in (exact or ranked)]
    score.logs += 1
    quiet = not ranked if case.mode in SOUND else not exact
    noted = not (named or none_is_right) and bool(right & notes)
    first = bool(named and named[0] in right) or (none_is_right and quiet) or noted
    score.first += first
    score.noted += noted
    score.three += first or bool(right & {*named[:3]})
    if first and not (quiet or noted) and case.host and case.rank is not None:
        score.placed += 1
        top = (exact or ranked)[0].where
        score.where += top.rank == case.rank or (top.rank is None and top.node == case.host)
    if not first:
        score.missed.append(f"{case.name} ({case.mode}): {', '.join(named[:4]) or 'nothing'}")


def detection(folder: Path, seeds: int, only: tuple[str, ...], *, missed: bool) -> None:
    """Print the table by family."""
    codes = codes_of_modes()
    scores: dict[tuple[str, str], Score] = defaultdict(Score)
    for case in cases(folder):
        family = case.mode if case.mode in (*SOUND, NONE) else case.mode[0]
        if only and not case.mode.startswith(only):
            continue
        for form, data in forms(case, seeds):
            judged(case, data, codes, scores[family, form])
    rows = [
        [
            f,
            form,
            s.logs,
            _share(s.first, s.logs),
            s.noted or "",
            _share(s.three, s.logs),
            _share(s.where, s.placed),
        ]
        for (f, form), s in sorted(scores.items())
    ]
    total = [s for (f, _), s in scores.items() if f not in SOUND]
    logs = sum(s.logs for s in total)
    rows.append(["all faults", "", logs, _share(sum(s.first for s in total), logs), sum(s.noted for s in total),
                 _share(sum(s.three for s in total), logs), ""])  # fmt: skip
    print(
        tabulate(
            rows, ["family", "form", "logs", "right first", "as a note", "in first three", "rank or host right"]
        )
    )
    if missed:
        print("\n".join(line for (_, form), s in sorted(scores.items()) for line in [f"-- {form}", *s.missed]))


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.0f} %)" if whole else ""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held", action="store_true")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--missed", action="store_true")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    folder = FOLDER.with_name("held") if given.held else FOLDER
    detection(folder, given.seeds, tuple(filter(None, given.only.split(","))), missed=given.missed)


if __name__ == "__main__":
    main()
