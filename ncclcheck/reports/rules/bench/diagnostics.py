"""BEN014: what NCCL's own diagnostics said."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Diagnosis
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fine, note, seen, unknown, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl.variables import nccl_version

SINCE = (2, 31, 0)  # the first NCCL with active and RAS diagnostics
_TROUBLE = re.compile(
    r"only \d+/\d+|mismatch|fail|differ|off median|timed out|uncorrected|\bdown\b|inactive|unable|not verified",
    re.I,
)

_RANK = re.compile(r"rank (\d{1,6}) \(([\w.-]{1,64})\)")


@rule("BEN014", "NCCL's own diagnostics pass", worst=State.WARN, over="", commands=("bench",))
def own_diagnostics(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL 2.31 and later can test itself: its active diagnostics read and write between all pairs of GPUs that it
    would connect directly and run ib_write_bw between nodes, its RAS diagnostics compare driver, GPUs, ECC errors
    and NCCL_* variables of all ranks. `bench` runs them before its own job, and what they say stands here.

    ## Why it matters
    They test the paths that NCCL means to use, before any data of a job is on them: what they report is in the
    machine or its driver, and not in a training script. NVIDIA's manual calls them the first thing to do.

    ## How we know
    Each rank starts a process of its own with NCCL_RUN_DIAGNOSTICS=1 and NCCL_RUN_RAS_DIAGNOSTICS=1, under a
    limit, and rank 0's lines `NCCL DIAG` are read. `[OK]` is well. `[INFO]` is a warning where the line speaks of
    a failure or a difference, else a note. With an older NCCL, with gloo and with `--quick` nothing is run.

    ## Fix
    - **you** read the line: it names ranks, GPUs and the path; leave that node out.
    - **admin** P2P: `nvidia-smi topo -p2p rw`, ACS, IOMMU. net bw: `ib_write_bw` between the two nodes named.

    ## Source
    NCCL user guide, Diagnostics and RAS (2.31 and later).
    """
    diagnostics = cluster.measurements.diagnostics
    if diagnostics is None:
        raise NothingToJudge(_why_none(cluster))
    for result in diagnostics.results:
        yield _judged(result)
    if diagnostics.problem:
        yield unknown(
            Where(),
            f"NCCL's own diagnostics did not come to their end: {diagnostics.problem}",
            why="What they would have shown is not known.",
            owner="site",
            evidence=[seen("NCCL_RUN_DIAGNOSTICS=1", f"{diagnostics.problem} after {diagnostics.seconds:g} s")],
            fix=[you("Run them by hand.", "NCCL_RUN_DIAGNOSTICS=1 NCCL_RUN_RAS_DIAGNOSTICS=1 torchrun TRAIN.py")],
        )


def _why_none(cluster: Cluster) -> str:
    if cluster.job.backend == "gloo":
        return "gloo was used, NCCL was not"
    old = {version for node in cluster.nodes if (version := nccl_version(node)) is not None and version < SINCE}
    if old:
        return f"NCCL {'.'.join(map(str, min(old)))} has none of its own; 2.31 and later do"
    return "they were not run"


def _judged(diagnosis: Diagnosis) -> Finding:
    line = f"{diagnosis.check}: {diagnosis.text}" if diagnosis.check else diagnosis.text
    place = _RANK.search(diagnosis.text)
    where = Where(rank=int(place[1]), node=place[2]) if place else Where()
    if diagnosis.ok:
        return fine(where, line)
    if not _TROUBLE.search(diagnosis.text):
        return note(where, f"NCCL says: {line}", owner="site", evidence=[seen("NCCL DIAG", line)])
    return warn(
        where,
        f"NCCL says: {line}",
        why="NCCL itself tried the path or compared the ranks, and found this before any data of a job was on it.",
        owner="node",
        evidence=[seen("NCCL DIAG [INFO]", line)],
        fix=[
            you("Leave the node out that the line names, and run it again.", "#SBATCH --exclude=NODE"),
            admin("Test that path alone.", "nvidia-smi topo -p2p rw", "ib_write_bw -d HCA PEER"),
        ],
    )
