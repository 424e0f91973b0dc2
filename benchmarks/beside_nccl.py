"""`ncclras` and `hang` on the same jobs of real NCCL: `python -m benchmarks.beside_nccl NCCLRAS [WORD...]`.

As root. Two hosts of the lab with two ranks each, on a CUDA of ours (tests/nccl); each fault is one of rank 3, a
minute old when it is looked at. NCCLRAS is NVIDIA's own client, which its Python wheels do not have: `make
src.build` of github.com/NVIDIA/nccl makes it from src/ras/client.cc (BSD up to 2.27), a program by itself. ncclras
counts as naming rank 3 where its errors and warnings have that rank, or its process, and no other.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence

from ncclcheck.probes.facts import Cluster, Live, Measurements, Ras, replace
from ncclcheck.probes.live import received, stream
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.judge import judge
from tests.lab import PYTHON, Lab
from tests.nccl.job import Job, Rank
from tests.nccl.ras_states import STATES
from tests.nccl.ras_states import State as Made

_PORT, _CULPRIT = 29481, 3
_ADDRESS = "10.0.0.1"  # a name only; of many jobs of a machine the first ones are asked
_OLD_S = 62.0  # of ranks: RAS of younger ones is left alone
_APART_S = 6.0
_LIMIT_S = 90.0


def _in_the_job(rank: Rank, place: int) -> Rank:
    settings = {
        "RANK": place,
        "WORLD_SIZE": 4,
        "LOCAL_RANK": place % 2,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_PORT": _PORT,
    }
    names = {name: str(value) for name, value in settings.items()}
    steps = rank.steps.replace("sync:30", "sync:240").replace("sleep:30", "sleep:240")
    env = {**rank.env, **names, "MASTER_ADDR": _ADDRESS}
    return Rank(rank.host, rank.device, steps, env, absent=rank.absent)


def _by_ncclras(lab: Lab, tool: str, pid: str) -> str:
    begun = time.monotonic()
    done = lab["h1"].run([tool, "-v"], seconds=_LIMIT_S)
    seconds = time.monotonic() - begun
    output = re.sub(r"^.*?\n(?=Errors\n)", "", done.stdout, flags=re.DOTALL)
    ranks = {int(number) for number in re.findall(r"^  Rank (\d+) ", output, re.MULTILINE)}
    named = ranks == {_CULPRIT} or (not ranks and bool(pid) and f"Process {pid} " in output)
    others = f"ranks {sorted(ranks)}" if ranks else "nobody"
    return f"{f'rank {_CULPRIT}' if named else others}, {seconds:.0f} s" + (
        " (no answer)" if not done.stdout else ""
    )


def _by_hang(lab: Lab, program: bytes) -> str:
    """Both hosts, one after the other; the looks of a cluster are at the same time."""
    live: list[Live] = []
    ras: list[Ras] = []
    longest = 0.0
    for name in ("h1", "h2"):
        since = time.monotonic()
        path = lab.folder / "program.py"
        path.write_bytes(program)
        words = stream.arguments(_APART_S, several=True)
        answer = received.host(lab[name].run([*PYTHON, str(path), *words], seconds=_LIMIT_S).stdout, name)
        longest = max(longest, time.monotonic() - since)
        mine = [process for process in answer.live.processes if f":{_PORT}" in process.job]
        live.append(replace(answer.live, processes=mine))
        ras += answer.ras
    verdicts = judge(Cluster(command="hang", measurements=Measurements(live=live, ras=ras)))
    findings = [
        (verdict.code, finding)
        for verdict in verdicts
        for finding in verdict.findings
        if finding.state is State.FAIL
    ]
    ranks = sorted({finding.where.rank for _, finding in findings if finding.where.rank is not None})
    codes = " ".join(sorted({code for code, _ in findings}))
    return (f"rank {_CULPRIT}" if ranks == [_CULPRIT] else f"ranks {ranks}" if ranks else "nobody") + (
        f" ({codes}), {longest:.0f} s" if codes else f", {longest:.0f} s"
    )


def _row(made: Made, version: str, tool: str) -> list[str]:
    cells: list[str] = []
    program = stream.program()

    def look(job: Job) -> None:
        made.before(job)
        time.sleep(_OLD_S)
        pid = str(job.running[_CULPRIT].pid()) if len(job.running) > _CULPRIT else ""
        cells.extend([_by_hang(job.lab, program), _by_ncclras(job.lab, tool, pid)])

    with Lab(hosts=2, mgmt=False) as lab:
        ranks = [_in_the_job(rank, place) for place, rank in enumerate(made.ranks)]
        Job(lab, ranks, version=version, kernel=made.kernel).run(seconds=0, during=look)
    return [version, made.done, *cells]


def main(words: Sequence[str]) -> None:
    """A row a version and state; words are versions, or names of states."""
    tool = words[0]
    versions = [word for word in words[1:] if word[0].isdigit()] or ["2.27.7"]
    wanted = [word for word in words[1:] if not word[0].isdigit()]
    print("| NCCL | fault | ncclcheck hang | ncclras -v |\n| --- | --- | --- | --- |")
    for version in versions:
        for made in STATES:
            if made.name == "alive" or (wanted and made.name not in wanted):
                continue
            try:
                print("| " + " | ".join(_row(made, version, tool)) + " |", flush=True)
            except (TimeoutError, ValueError, OSError) as error:
                print(f"| {version} | {made.done} | void: {str(error)[:100]!r} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
