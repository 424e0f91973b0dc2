"""The table of hangs, whole or in part: `python -m benchmarks.hangs [--sites N] [WORD...]`, as root.

Real gloo jobs of an ordinary user on the lab's hosts; a row a job, and the counts. A run that could not be made,
because its fault did not take hold, is void and counts nowhere. At least a quarter of an hour.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from tests.lab.tools import LabError
from tests.scenarios.hang_runs import Seen, Site, once, site
from tests.scenarios.hang_table import HANGS, SOUND, Run

_JOBS = 3  # of Slurm at once: a minute of each is waiting until its ranks are old


def table(runs: Sequence[Run], sites: int) -> list[Seen]:
    """All of them, on several sites at once; those of Slurm on one of their own."""
    ways = [(by, [run for run in runs if run.by == by]) for by in ("ssh", "slurm")]
    with ThreadPoolExecutor(sites + 1) as pool:
        begun = []
        for by, some in ways:
            waiting: SimpleQueue[Run] = SimpleQueue()
            for run in some:
                waiting.put(run)
            for _ in range(min(len(some), sites if by == "ssh" else 1)):
                begun.append(pool.submit(_rows, waiting, by == "slurm"))
        return [seen for rows in begun for seen in rows.result()]


def _rows(waiting: SimpleQueue[Run], slurm: bool) -> list[Seen]:
    """One site; Slurm takes several jobs at once."""
    at_once = _JOBS if slurm else 1
    with site(hosts=3 if slurm else 4, slurm=slurm) as place, ThreadPoolExecutor(at_once) as pool:
        begun = [pool.submit(lambda: [*_each(waiting, place)]) for _ in range(at_once)]
        return [seen for rows in begun for seen in rows.result()]


def _each(waiting: SimpleQueue[Run], place: Site) -> Iterator[Seen]:
    while True:
        try:
            run = waiting.get_nowait()
        except Empty:
            return
        try:
            seen = once(place, run)
        except (LabError, RuntimeError, OSError, subprocess.SubprocessError) as error:
            seen = Seen(run, f"void: {str(error)[-160:]}".replace("\n", " "), [], 0.0)
        print(seen.row(), f"load {os.getloadavg()[0]:.0f}", flush=True)
        yield seen


def main() -> None:
    """All runs, or those whose names have a word of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    runs = [run for run in [*HANGS, *SOUND] if not given.words or any(word in run.name for word in given.words)]
    rows = table(runs, given.sites)
    for name, of in (("hangs", HANGS), ("sound", SOUND)):
        counts = Counter(row.verdict.partition(":")[0] for row in rows if row.run in of)
        print(f"{name}: {sum(counts.values())}: {', '.join(f'{what} {n}' for what, n in counts.most_common())}")


if __name__ == "__main__":
    main()
