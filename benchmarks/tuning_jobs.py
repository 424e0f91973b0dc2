"""What `tuning_gloo.py` and `tuning_lab.py` share: `tune`'s search over real jobs, and a count of its answers."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from ncclcheck.probes.facts import Candidate, Tuning
from ncclcheck.reports.subjects.job import trial, tuning
from ncclcheck.reports.subjects.job.tuning import TuningSearch
from ncclcheck.run.plan.tune_plan import LOOKS

Times = dict[tuple[str, int], float]
Level = Literal["quick", "standard", "full"]


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of both: how many runs, the gain that is planted, and for how long."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--runs", type=int, default=20)
    made.add_argument("--gain", type=float, default=0.1)
    made.add_argument("--seconds", type=float, default=600.0)
    return made


def count(given: argparse.Namespace, planted: str, run: Callable[[float], Tuning]) -> None:
    """Run after run, with the gain and without in turn, and a line for each kind. planted: the one that gains."""
    end, done = time.monotonic() + given.seconds, {given.gain: [0, 0, 0], 0.0: [0, 0, 0]}
    for number in range(2 * given.runs):
        gain = (given.gain, 0.0)[number % 2]
        if time.monotonic() > end:
            break
        began = time.monotonic()
        outcome = run(gain)
        chosen = tuning.recommended(outcome)
        names = {setting.variable for setting in chosen.settings} if chosen else set()
        done[gain][0] += 1
        done[gain][1] += names == {planted}
        done[gain][2] += bool(names) if gain == 0 else bool(names - {planted})
        spent = time.monotonic() - began
        print(f"{gain:.0%}: {sorted(names)}, {spent:.0f} s, load {os.getloadavg()[0]:.0f}", flush=True)
        if names != ({planted} if gain else set()):
            for tried in filter(None, (*outcome.tried, outcome.whole)):
                print(f"  {tuning.named(tried)}, {tried.pairs} pairs: {', '.join(map(trial.effect, tried.rows))}")
    for gain, (runs, right, wrong) in done.items():
        print(f"planted {gain:.0%}: {runs} runs, it alone recommended in {right}, anything beside it in {wrong}")


def searched(names: Sequence[str], value: str, level: Level, job: Callable[[bool], Times]) -> Tuning:
    """One search with real jobs, their order changing from pair to pair.

    names: of the candidates, the one that may gain first. job: one job; whether it has the setting that may gain.
    """
    search, turn = TuningSearch([Candidate(variable=name, value=value) for name in names], LOOKS[level]), 0
    pairs = search.pairs()
    settings = next(pairs, None)
    while settings is not None:
        spared = any(setting.variable == names[0] for setting in settings)
        turn += 1
        if turn % 2:
            without = job(False)
            both = without, job(spared)
        else:
            with_ = job(spared)
            both = job(False), with_
        try:
            settings = pairs.send(both)
        except StopIteration:
            settings = None
    return search.tuning()


def of_two(rank: Callable[[int, str], None]) -> Times:
    """What two ranks, forked from here, measured from their start to their end.

    rank: runs in a child with its number and the job's folder; rank 0 leaves microseconds by size in `told`.
    """
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for number in range(2):
            if (pid := os.fork()) == 0:
                try:
                    rank(number, folder)
                finally:
                    os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        times = json.loads((Path(folder) / "told").read_text())
    return {("all_reduce", int(size)): took for size, took in times.items()}
