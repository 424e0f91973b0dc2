"""What is said of healthy hosts while their machine is busy: every finding above a note is a false one.

    python benchmarks/sound.py [--runs 40] [--loads 0,4,12] [--only preflight] [--keep FOLDER]

Each load is so many processes that compute and do nothing else, started and ended here. The runs at one load are
shared out among the commands below, each over hosts of the lab of tests/lab, which share this machine's cores. A
run counts as wrong where it says anything above a note, names a culprit, leaves something unknown, or does not end
with 0. Target: none of 40 at loads of 0, 4 and 12 on two cores. Needs root, and Debian's iproute2, nftables,
openssh-client and openssh-server.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document, encode
from tests.lab import faults
from tests.scenarios.scenario import ALL, Outcome, Play, Scenario, Scene, nothing
from tests.scenarios.scenario_run import Labs
from tests.scenarios.scenarios_of_joins import six

_ABOVE_NOTE = (State.FAIL, State.WARN, State.UNKNOWN)
_LONGEST_S = 900
# It ends by itself: with this program, however that ends, or after so many seconds.
_BURN = """import os, sys, time
mother, end = os.getppid(), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and os.getppid() == mother:
    sum(range(10000))"""
_HEADERS = (
    "load",
    "command",
    "runs",
    "wrong",
    "above note",
    "culprits",
    "unknown",
    "exit not 0",
    "median s",
    "most s",
)


@dataclass(frozen=True)
class Command:
    """What is run over how many hosts; `limit` in seconds."""

    name: str
    hosts: int
    argv: tuple[str, ...]
    limit: int = 300
    launcher: Literal["ssh", "slurm", "join"] = "ssh"
    typed: tuple[str, ...] = ()  # beside, on every host
    late: str = ""  # the host on which it is started later
    network: Play = nothing


COMMANDS = (
    Command("bench, 2 hosts", 2, ("bench", "--quick", "--nproc-per-node", "1")),
    Command("bench, 2 hosts of 2", 2, ("bench", "--quick", "--nproc-per-node", "2")),
    Command("bench, 3 hosts", 3, ("bench", "--quick", "--nproc-per-node", "1")),
    Command("preflight, 3 hosts", 3, ("preflight", "--level", "quick")),
)

_QUICK = ("preflight", "--level", "quick")
_BY_NAME = ("--rdzv-endpoint", "h1:29500")
# Longer than a node of a join bears before it looks for node rank 0 elsewhere (launch/joining/follow.py: 8 s).
_LATE_S = 14


@contextmanager
def _two_addresses(scene: Scene) -> Iterator[None]:
    """A second subnet on every host's card."""
    with ExitStack() as both:
        for number, host in enumerate(scene.lab.hosts, 1):
            address = f"10.79.0.{number}/24 dev eth0"
            both.enter_context(faults.set_up(host, f"ip addr add {address}", f"ip addr del {address}"))
        yield


@contextmanager
def _six(scene: Scene) -> Iterator[None]:
    """No address of IPv4 on the cards, and names of IPv6."""
    with six(*scene.lab.hosts), ExitStack() as without:
        for host in scene.lab.hosts:
            address = f"{host.address}/24 dev eth0"
            without.enter_context(faults.set_up(host, f"ip addr del {address}", f"ip addr add {address}"))
        yield


JOINS = (
    Command("join, 3 hosts", 3, _QUICK, launcher="join"),
    Command("join, node 0 by name", 3, _QUICK, launcher="join", typed=_BY_NAME),
    Command("join, node 0 late", 3, _QUICK, launcher="join", typed=_BY_NAME, late="h1"),
    Command("join, a node late", 3, _QUICK, launcher="join", late="h3"),
    Command("join, two addresses", 3, _QUICK, launcher="join", typed=_BY_NAME, network=_two_addresses),
    Command("join, IPv6 only", 3, _QUICK, launcher="join", typed=_BY_NAME, network=_six),
)
SLURM = (Command("slurm, 3 hosts", 3, _QUICK, launcher="slurm"),)


@contextmanager
def load(processes: int, seconds: float = _LONGEST_S) -> Iterator[None]:
    """So many processes compute meanwhile, at the usual priority."""
    burners = [
        subprocess.Popen([sys.executable, "-c", _BURN, str(seconds)], stdin=subprocess.DEVNULL)
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait(10)


def scenario(command: Command) -> Scenario:
    """Hosts on which nothing is wrong."""
    return Scenario(
        name=command.name,
        hosts=command.hosts,
        command=command.argv,
        exit_code=0,
        seconds=command.limit,
        launcher=command.launcher,
        arguments={ALL: command.typed},
        under={command.late: ("sh", "-c", f'sleep {_LATE_S}; exec "$@"', "sh")} if command.late else {},
        fault=command.network,
    )


def complaints(document: Document) -> list[str]:
    """What is said above a note, and who is accused."""
    lines = [
        f"{verdict.state.value} {verdict.code}: {finding.what}"
        for verdict in document.verdicts
        if verdict.state in _ABOVE_NOTE
        for finding in verdict.findings
        if finding.state in _ABOVE_NOTE
    ]
    return [
        *lines,
        *(
            f"culprit {' '.join(culprit.names)} ({culprit.confidence:.2f}): {culprit.why}"
            for culprit in document.culprits
        ),
    ]


def wrongs(outcome: Outcome) -> list[str]:
    """All that is wrong with one run."""
    ended = [f"{host} ended with {code}" for host, code in outcome.codes.items() if code]
    mute = [] if outcome.documents else [f"no report: {outcome.errors}"]
    return [
        *(complaint for document in outcome.documents.values() for complaint in complaints(document)),
        *ended,
        *mute,
    ]


def summary(load: int, name: str, outcomes: Sequence[Outcome]) -> tuple[object, ...]:
    """One line of the table."""
    by_run = [wrongs(outcome) for outcome in outcomes]
    every = [line for lines in by_run for line in lines]
    seconds = sorted(outcome.seconds for outcome in outcomes)
    return (
        load,
        name,
        len(outcomes),
        sum(map(bool, by_run)),
        sum(line.startswith(("fail", "warn")) for line in every),
        sum(line.startswith("culprit") for line in every),
        sum(line.startswith("unknown") for line in every),
        sum(" ended with " in line for line in every),
        round(seconds[len(seconds) // 2], 1),
        round(seconds[-1], 1),
    )


def keep(folder: Path, name: str, outcome: Outcome) -> None:
    """The documents of a run, to be judged again."""
    folder.mkdir(parents=True, exist_ok=True)
    for host, document in outcome.documents.items():
        (folder / f"{name}-{host}.json").write_bytes(encode(document))


def main() -> None:
    """Print what was wrong of each run as it ends, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="at each load (default 40)")
    parser.add_argument("--loads", default="0,4,12", help="processes that compute meanwhile (default 0,4,12)")
    parser.add_argument("--only", default="", help="commands whose name has these words")
    parser.add_argument("--keep", type=Path, help="where the documents of runs with complaints are kept")
    options = parser.parse_args()
    rows = []
    commands = [command for command in (*COMMANDS, *JOINS, *SLURM) if options.only in command.name]
    with Labs() as labs:
        for burners in map(int, options.loads.split(",")):
            share = {command: len(range(i, options.runs, len(commands))) for i, command in enumerate(commands)}
            for command in commands:
                outcomes = []
                for number in range(share[command]):
                    with load(burners):
                        outcomes.append(outcome := labs.run(scenario(command)))
                    lines = wrongs(outcome)
                    when = f"load {burners} (with others {os.getloadavg()[0]:.0f}), {command.name}"
                    print(f"{when}, {outcome.seconds:.0f} s:", "; ".join(lines) or "sound", flush=True)
                    if lines and options.keep:
                        keep(options.keep, f"{burners}-{command.name}-{number}".replace(" ", "_"), outcome)
                if outcomes:
                    rows.append(summary(burners, command.name, outcomes))
    print(tabulate(rows, _HEADERS, floatfmt=".1f"))


if __name__ == "__main__":
    main()
