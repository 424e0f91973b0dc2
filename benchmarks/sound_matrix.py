"""What is said of healthy machines under every environment: those of tests/sound, with the profiles of all others.

    python benchmarks/sound_matrix.py [--kinds WORDS] [--every]

Rows are kinds of machines. "own" counts documents with no profile or one of their own: nothing may fail there, and
a warning is one that the machine's story argues (tests/sound/test_sound_machines.py holds it). With --every each
machine is also judged under the profiles of all others, where a warning may well be right: Azure's variables on a
DGX name a file that is not there.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.judge import judge
from tests.sound.kinds import MORE, PLANS
from tests.sound.machine import Plan, cluster

_NODES = 2


def profiles() -> dict[str, Mapping[str, str]]:
    """Each environment once, by the first machine that has it."""
    names: dict[tuple[tuple[str, str], ...], str] = {}
    for plan in (*PLANS, *MORE):
        for name, profile in plan.profiles.items():
            names.setdefault(tuple(sorted(profile.items())), f"{plan.kind}/{name}")
    return {name: dict(items) for items, name in names.items()}


def own(plan: Plan) -> Iterator[tuple[str, Cluster]]:
    """Without an environment and with its own ones, at every size."""
    for count in plan.counts:
        for profile in ("", *plan.profiles):
            yield f"{count} {profile or 'none'}", cluster(plan, count, profile)


def foreign(plan: Plan, all_: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, Cluster]]:
    """With the environments of all other machines, on two nodes where it has as many."""
    for name, profile in all_.items():
        if not name.startswith(f"{plan.kind}/"):
            changed = replace_profile(plan, name, profile)
            yield name, cluster(changed, min(_NODES, max(plan.counts)), name)


def replace_profile(plan: Plan, name: str, profile: Mapping[str, str]) -> Plan:
    """The same machine under another environment."""

    return dataclasses.replace(plan, profiles={name: profile})


def states(subject: Cluster) -> Counter[tuple[str, str]]:
    """(state, code) of what fails, warns or is noted: each code once a document."""
    counter: Counter[tuple[str, str]] = Counter()
    for verdict in judge(subject):
        for state in {finding.state for finding in verdict.findings}:
            if state in (State.FAIL, State.WARN, State.NOTE):
                counter[state.value, verdict.code] += 1
    return counter


def row(plan: Plan, documents: Iterator[tuple[str, Cluster]]) -> tuple[list[object], Counter[tuple[str, str]]]:
    """One line of the table, and its sum by code."""
    whole: Counter[tuple[str, str]] = Counter()
    number = most = 0
    for _, subject in documents:
        counter = states(subject)
        whole += counter
        number += 1
        most = max(most, sum(state == "warn" for state, _ in counter))
    fails, warns, notes = (
        sum(n for (state, _), n in whole.items() if state == level) for level in ("fail", "warn", "note")
    )
    codes = ", ".join(sorted({code for state, code in whole if state != "note"}))
    return [plan.kind, number, fails, warns, most, round(notes / max(1, number), 1), codes], whole


def main() -> None:
    """Print the table, and what the codes add up to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="", help="only kinds with these words")
    parser.add_argument("--every", action="store_true", help="also the environments of all other machines")
    options = parser.parse_args()
    all_ = profiles()
    plans = [plan for plan in (*PLANS, *MORE) if options.kinds in plan.kind]
    for title, documents in (("own", own), ("others'", lambda plan: foreign(plan, all_))):
        if title != "own" and not options.every:
            continue
        rows, whole = [], Counter[tuple[str, str]]()
        for plan in plans:
            line, counter = row(plan, documents(plan))
            rows.append(line)
            whole += counter
        documents_of_all, fails, warns = (sum(int(str(line[place])) for line in rows) for place in (1, 2, 3))
        rows.append(["all", documents_of_all, fails, warns, "", "", ""])
        print(f"{title} environments")
        print(tabulate(rows, ("machine", "documents", "FAIL", "WARN", "most WARN", "notes each", "codes")))
        loud = [(state, code, n) for (state, code), n in whole.most_common() if state != "note"]
        print(tabulate(loud, ("state", "code", "documents")))


if __name__ == "__main__":
    main()
