"""Rule about the start of Python, which every rank and every data worker goes through."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node, at, known, value_or
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, State, Where, admin, seen, warn, you
from ncclcheck.reports.judgement.rule import rule

# Seconds. A start waited for 0.02 to 0.06 s at a load of 11 on 2 cores (5 of 5); each rank and data worker that is
# spawned goes through it.
_MOST_S = 1.5


@rule("HST018", "Python starts without delay", worst=State.WARN, needs=("stack.python_start_s",))
def python_starts(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How long Python takes before it runs the first line of a program.

    ## Why it matters
    A sitecustomize or a .pth file that asks a license server, a home directory or an environment on a file system
    that does not answer at once: torchrun, every rank and every data worker start late on that node, the others
    wait at the rendezvous, and nothing says why.

    ## Seen as
    does not start, slow

    ## How we know
    `python -c` is started once more; what it computed, and what it waited for a core (schedstat), is taken out. A
    warning from 1.5 s on (HST018.seconds). What is read for the first time after a start of the machine is read
    by ncclcheck itself before that, and is not seen.

    ## Fix
    - **you** `python -X importtime -c ''` shows the slowest; rename a sitecustomize.py or .pth file that waits.
    - **admin** the file system of that environment.

    ## Source
    Python documentation, the site module; -X importtime.
    """
    most = cluster.policy.thresholds.get("HST018.seconds", _MOST_S)
    for node in cluster.nodes:
        seconds = known(at(node, "stack.python_start_s"))
        if seconds >= most:
            yield _slow(node, seconds)


def _slow(node: Node, seconds: float) -> Finding:
    files = value_or(at(node, "stack.customised"), [])
    python = str(value_or(at(node, "stack.executable"), "python"))
    runs = f"; it runs {files[0]} first" if files else ""
    return warn(
        Where(node=node.name),
        f"Python needs {seconds:.1f} s to start there, in which it computes nothing{runs}",
        why="torchrun, every rank and every spawned data worker are so much later there, and the others wait.",
        owner="node",
        evidence=[
            seen(f"start of {python}, without what it computed", f"{seconds:.2f} s"),
            *(Evidence(source="run at each start", value=file) for file in files),
        ],
        fix=[*(_aside(file, node.name) for file in files[:1]), _look(python, node.name)],
    )


def _aside(file: str, node: str) -> Remedy:
    return you("Rename it, or take out what waits.", f"mv {quote(file)} {quote(file)}.off  # on {node}")


def _look(python: str, node: str) -> Remedy:
    folders = f"{quote(python)} -c 'import site; print(*site.getsitepackages())'"
    return admin(
        "See which import waits, which .pth files run code, and whether the file system answers.",
        f"{quote(python)} -X importtime -c '' 2>&1 | sort -t'|' -k2 -n | tail -3   # on {node}",
        f"for d in $({folders}); do grep -s '^import' $d/*.pth; done   # on {node}",
    )
