"""A year of a fleet, every day, by simulation: how long its questions take, and whether the answers are right.

    python benchmarks/fleet.py [--nodes 1000] [--days 365] [--seed 1] [--null] [--wave 0.0]

Planted: nodes that become slower at once or over weeks, nodes that fail again and again, a leaf whose nodes fail
together, an upgrade that makes one figure faster and one slower. --null: nothing is planted, and each node that
is named is a false one. Noise is 2 %; --wave 0.5: that of two days correlates by 0.5. Beside it 1 % of figures are
10 to 30 % too low for a day, the fleet's figures wander, and each check fails by chance now and then.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from math import exp
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck.fleet import questions, store
from ncclcheck.fleet.answers import Fleet
from ncclcheck.fleet.rows import MeasuredRow, NodeRow, Rows, VerdictRow

METRICS = {"memory_gb_s": (2900.0, True), "node_busbw_gb_s": (360.0, True), "pair_latency_us": (14.0, False)}
CODES = ("GPU007", "RDM001", "NET009")
BEGIN = datetime(2026, 1, 1, 3, tzinfo=timezone.utc)


def main() -> None:
    """Make the year, ask, and compare with what was planted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--null", action="store_true")
    parser.add_argument("--wave", type=float, default=0.0)
    asked = parser.parse_args()
    fleet = Simulated(asked.nodes, asked.days, asked.seed, wave=asked.wave, planted=not asked.null)
    with tempfile.TemporaryDirectory() as folder:
        for day in range(asked.days):
            store.write(folder, fleet.result(day))
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        wall, cpu = time.monotonic(), time.process_time()
        with store.opened(folder) as tables:
            answer = questions.asked(tables, None)
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    print(f"{asked.nodes} nodes, {asked.days} days, {size / 1e6:.0f} MB: {wall:.2f} s, {cpu:.2f} s of CPU")
    fleet.compare(answer)


class Simulated:
    """A fleet with what is planted in it. slower: node number and metric -> day, change, days that it takes."""

    def __init__(self, nodes: int, days: int, seed: int, *, wave: float = 0.0, planted: bool = True) -> None:
        self.random = random.Random(seed)
        self.nodes, self.days, self.wave = nodes, days, wave
        self.names = [f"n{number:04d}" for number in range(nodes)]
        self.level = {(n, m): self.random.gauss(0, 0.02) for n in range(nodes) for m in METRICS}
        self.last: dict[tuple[int, str], float] = {}
        self.slower: dict[tuple[int, str], tuple[int, float, int]] = {}
        self.fails: dict[int, str] = {}
        self.leaf, self.upgraded = -1, days
        if planted:
            picked = self.random.sample(range(nodes), max(2, nodes // 50))
            for place, node in enumerate(picked):
                day = self.random.randrange(days // 8, days - days // 8)
                change = -self.random.choice([0.04, 0.06, 0.10, 0.2])
                metric = self.random.choice([*METRICS])
                self.slower[node, metric] = day, change, 0 if place % 2 else self.random.choice([28, 42])
            self.fails = {node: self.random.choice(CODES) for node in self.random.sample(range(nodes), 5)}
            self.leaf = 3
            self.upgraded = days // 2

    def result(self, day: int) -> Rows:
        """One day's rows."""
        at, key = (BEGIN + timedelta(days=day)).isoformat(), f"{day:016x}"
        listed, verdicts, measured = [], [], []
        common = 0.01 * (day % 30) / 30
        for number, name in enumerate(self.names):
            head, driver = (at, key, f"guid-{name}"), "580.65" if self._new(number, day) else "570.86"
            leaf = f"leaf-{number // 32}"
            bad = {code for code in CODES if self.random.random() < 0.0005}
            if number in self.fails and self.random.random() < 0.08:
                bad.add(self.fails[number])
            if number // 32 == self.leaf and self.random.random() < 0.01:
                bad.add("NET009")
            state = "fail" if bad else "ok"
            rest = (driver, "6.8.0", "2.27.5", "2.8.0", "28.43", "96.00", "ubuntu 24.04", leaf)
            listed.append(NodeRow(*head, name, "bench", state, *rest))
            verdicts += [VerdictRow(*head, code, "fail", f"{code} on {name}") for code in sorted(bad)]
            for metric, (usual, more) in METRICS.items():
                r = (
                    common
                    + self.level[number, metric]
                    + self._noise(number, metric)
                    + self._planted(number, metric, day)
                )
                measured.append(MeasuredRow(*head, metric, usual * exp(r if more else -r), more))
        return Rows(key, listed, verdicts, measured)

    def _new(self, number: int, day: int) -> bool:
        """Upgraded a tenth of the fleet a day."""
        return day >= self.upgraded + number % 10

    def _noise(self, number: int, metric: str) -> float:
        fresh = self.random.gauss(0, 0.02) * math.sqrt(1 - self.wave**2)
        self.last[number, metric] = now = self.wave * self.last.get((number, metric), 0.0) + fresh
        return now - (self.random.uniform(0.1, 0.3) if self.random.random() < 0.01 else 0.0)

    def _planted(self, number: int, metric: str, day: int) -> float:
        begun, change, takes = self.slower.get((number, metric), (self.days, 0.0, 0))
        gone = 0.0 if day < begun else min(1.0, (day - begun + 1) / takes) if takes else 1.0
        upgrade = (
            {"memory_gb_s": 0.03, "pair_latency_us": -0.04}.get(metric, 0.0) if self._new(number, day) else 0.0
        )
        return float(change * gone + upgrade)

    def compare(self, answer: Fleet) -> None:
        """What was found of what was planted, and what was found beside it."""
        slower = {(fall.node, fall.metric): fall for fall in answer.slower}
        weeks, late = {0: 0, 1: 0}, []
        for (number, metric), (day, change, takes) in self.slower.items():
            node = slower.pop((self.names[number], metric), None)
            off = (
                (datetime.fromisoformat(node.since) - BEGIN.replace(tzinfo=None, hour=0)).days - day
                if node
                else None
            )
            good = off is not None and abs(off) <= 7
            weeks[int(takes > 0)] += good
            if not good:
                late.append(f"{self.names[number]} {metric} {change:+.0%} over {takes} d: {off} days off")
        many = [sum(t == 0 for *_, t in self.slower.values()), sum(t > 0 for *_, t in self.slower.values())]
        print(f"slower at once, week right: {weeks[0]} of {many[0]}; slowly: {weeks[1]} of {many[1]}")
        print("\n".join(f"   {line}" for line in late))
        print(f"false: {len(slower)} in {self.days / 30.4:.0f} months: {[*slower][:8]}")
        again = {(repeat.node, repeat.code) for repeat in answer.repeats}
        planted = {(self.names[number], code) for number, code in self.fails.items()}
        print(
            f"fail again and again: {len(again & planted)} of {len(planted)}, {len(again - planted)} beside them"
        )
        print(
            "together:",
            [
                (together.code, together.attribute, together.value, together.failing, together.of)
                for together in answer.together
            ],
        )
        for up in answer.upgrades:
            print(
                f"upgrade {up.attribute} {up.before} -> {up.after}, {up.nodes} nodes: {up.subject} "
                f"{up.change:+.1%} ({up.low:+.1%} to {up.high:+.1%})"
            )


if __name__ == "__main__":
    main()
