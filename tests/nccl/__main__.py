"""Real jobs of NCCL on a machine without a GPU.

    python -m tests.nccl run FOLDER [--versions A,B] [--only NAME,NAME] [--labs 3]   run cases, keep their logs
    python -m tests.nccl judge FOLDER [--half open|held|all] [--list]   what `ncclcheck logs` makes of them
    python -m tests.nccl signs FOLDER    where the versions of NCCL say the same thing in other words
    python -m tests.nccl list            the cases
    python -m tests.nccl build CHECKOUT --versions 2.28.9   compile it from a checkout of NVIDIA/nccl

Half of the cases, by a hash of the name, are held: look at the others while rules are being changed, and judge the
held ones once, at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import queue
import re
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tabulate import tabulate

from benchmarks.logs import read
from ncclcheck.probes.logs.reading import LogReading
from ncclcheck.reports.subjects.logs.words.meanings import CONSEQUENCES, HARMLESS
from tests.lab import Lab, need
from tests.nccl import from_source, wheels
from tests.nccl.case import Case
from tests.nccl.cases import CASES
from tests.nccl.wheels import VERSIONS

_SHOWN = 2  # names of cases in a row
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
_CORES = "LOG069"  # true of a machine of two cores, on which these jobs run


_SAID_BY_CHANCE = frozenset((*CONSEQUENCES, *HARMLESS))  # who is hit first differs from run to run


class Kept(msgspec.Struct):
    """One job that was run: case.json beside its logs."""

    name: str
    version: str
    kind: str
    done: str
    truth: list[str]
    culprit: str
    codes: list[int | None]
    seconds: float


@dataclass(frozen=True)
class Judged:
    """What the reader made of a log: right, or why not."""

    kept: Kept
    named: list[str]
    right: bool


def held_back(name: str) -> bool:
    """Whether a case is not to be looked at before the end."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1


def run(folder: Path, versions: list[str], only: set[str], labs: int) -> None:
    """Run them all in some labs at once; what is there already stays."""
    waiting: queue.Queue[tuple[Case, str]] = queue.Queue()
    for version in versions:
        for case in sorted(CASES, key=lambda case: case.seconds):
            if case.since and _numbers(version) < _numbers(case.since):
                continue
            if (not only or case.name in only) and not (folder / f"{case.name}-{version}/case.json").exists():
                waiting.put((case, version))
    need()  # asked once, for its answer is kept
    threads = [threading.Thread(target=_work, args=(folder, waiting)) for _ in range(labs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _work(folder: Path, waiting: queue.Queue[tuple[Case, str]]) -> None:
    while True:
        try:
            case, version = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            with Lab(hosts=2, mgmt=False) as lab:  # a new one for each: no fault outlives its case
                _keep(folder / f"{case.name}-{version}", case, version, lab)
        except Exception:
            print(f"{case.name} {version}:\n{traceback.format_exc()}", flush=True)


def _keep(folder: Path, case: Case, version: str, lab: Lab) -> None:
    ended = case.run(lab, version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "all.log").write_text(ended.log)
    for place, rank in enumerate(ended.ranks):
        (folder / f"rank{place}.log").write_text(rank.log)
        (folder / f"rank{place}.json").write_bytes(msgspec.json.encode(rank.said))
    longest = max((rank.seconds for rank in ended.ranks), default=0.0)
    kept = Kept(
        case.name, version, case.kind, case.done, sorted(case.truth), case.culprit, ended.codes, round(longest, 1)
    )
    (folder / "case.json").write_bytes(msgspec.json.encode(kept))
    print(f"{case.name} {version}: {ended.codes} {longest:.1f} s", flush=True)


def judge(folder: Path, half: str) -> list[Judged]:
    """What the reader makes of the logs of all ranks in one."""
    readings = []
    truth = {case.name: case.truth for case in CASES}  # as it is known now
    for path in sorted(folder.glob("*/case.json")):
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
        if half != "all" and held_back(kept.name) != (half == "held"):
            continue
        if kept.kind != "sound" and set(kept.codes) == {0}:
            continue  # this version takes no notice of the fault
        log = (path.parent / "all.log").read_bytes()
        readings.append(Judged(kept, *reading_of(log, kept.kind, truth.get(kept.name, frozenset(kept.truth)))))
    return readings


def reading_of(log: bytes, kind: str, truth: frozenset[str]) -> tuple[list[str], bool]:
    """The causes that are named, the likeliest first, and whether that is right.

    Of a silent job no cause may be named, and it may not be called healthy: LOG002 where ranks did not come
    through NCCL's start, else LOG007. Where such a job may tell by chance, its truth is what it tells.
    """
    causes, notes = read(log)
    named = [cause.code for cause in causes if cause.code != _CORES]
    if kind == "sound":
        return named, not named
    if kind == "silent" and (named == ["LOG002"] or (not named and "LOG007" in notes)):
        return named, True
    return named, bool(named) and named[0] in truth


def signs(folder: Path) -> list[list[str]]:
    """Signs that a case's log has in one version and lacks in another, and warnings that no sign knows.

    First those that the newest version lacks: there a wording may have changed. The cases of a row are alike.
    """
    seen: dict[str, dict[str, dict[str, str]]] = {}  # case -> version -> sign -> a line
    for path in sorted(folder.glob("*/case.json")):
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
        reading = LogReading()
        reading.take("log", io.BytesIO((path.parent / "all.log").read_bytes()))
        lines = seen.setdefault(kept.name, {}).setdefault(kept.version, {})
        for event in reading.logs().events:
            if event.sign == "nccl-warning" or event.sign not in _SAID_BY_CHANCE:
                lines.setdefault(event.sign, event.text[:100])
    rows: dict[tuple[str, str, str, str], list[str]] = {}  # sign, said by, not by, an unknown warning -> cases
    examples: dict[tuple[str, str, str, str], str] = {}
    for name, versions in seen.items():
        ordered = sorted(versions, key=_numbers)
        for sign in {sign for lines in versions.values() for sign in lines}:
            having = [version for version in ordered if sign in versions[version]]
            lacking = [version for version in ordered if version not in having]
            line = versions[having[-1]][sign]
            unknown = _NUMBER.sub("#", line) if sign == "nccl-warning" else ""
            if lacking or unknown:
                row = (sign, " ".join(having), " ".join(lacking), unknown)
                rows.setdefault(row, []).append(name)
                examples.setdefault(row, line)
    newest = max((version for versions in seen.values() for version in versions), key=_numbers, default="")
    order = sorted(rows, key=lambda row: (newest not in row[2].split(), row))
    return [[row[0], row[1], row[2], _some(rows[row]), examples[row]] for row in order]


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return " ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "judge", "signs", "list", "build"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/nccl"))
    parser.add_argument("--versions", default=",".join(VERSIONS))
    parser.add_argument("--only", default="")
    parser.add_argument("--labs", type=int, default=2)
    parser.add_argument("--half", choices=("open", "held", "all"), default="open")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    if given.what == "list":
        print(tabulate([[case.name, case.kind, case.done, " ".join(sorted(case.truth))] for case in CASES]))
    elif given.what == "build":
        from_source.build(given.versions, wheels.folder() / f"nccl-{given.versions}", given.folder)
    elif given.what == "signs":
        print(tabulate(signs(given.folder), ["sign", "said by", "not by", "cases", "line"]))
    elif given.what == "run":
        run(given.folder, given.versions.split(","), {*filter(None, given.only.split(","))}, given.labs)
    else:
        _table(judge(given.folder, given.half), given.list)


def _table(readings: list[Judged], each: bool) -> None:
    rows = []
    for kind in ("sound", "told", "silent"):
        of_kind = [reading for reading in readings if reading.kept.kind == kind]
        rows.append([kind, len(of_kind), sum(reading.right for reading in of_kind)])
    print(tabulate(rows, ["kind", "logs", "right"]))
    for judged in readings:
        if each and not judged.right:
            kept = judged.kept
            print(
                f"{kept.kind} {kept.name} {kept.version} ({kept.done}): "
                f"{judged.named or 'nothing'}, not {kept.truth}"
            )


if __name__ == "__main__":
    main()
