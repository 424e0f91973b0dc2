"""Scenarios of jobs whose own start fails or waits where ncclcheck's start gets round it."""

from __future__ import annotations

from ncclcheck.reports.findings import State
from tests.scenario import Expect, Scenario

_ALLOCATED = ("salloc", "-Q", "-N", "2", "sh", "-c")
_HOLDS = 'srun $HOLDS -N2 -n2 sleep 300 & sleep 2; "$@"; rc=$?; kill $!; wait; exit $rc'


def _beside(name: str, holds: str, **more: object) -> Scenario:
    """Another step of the same allocation runs meanwhile."""
    return Scenario(
        name=name, launcher="variables", hosts=2, under={"h1": (*_ALLOCATED, _HOLDS, "sh")},
        env={"h1": {"HOLDS": holds}}, gone_within=15, **more,  # type: ignore[arg-type]
    )  # fmt: skip


OF_STARTS = (
    Scenario(
        name="Slurm: srun hands no variables over",
        launcher="slurm",
        hosts=2,
        env={"h1": {"SLURM_EXPORT_ENV": "NONE", "MASTER_ADDR": "h1"}},
        expect=(Expect(code="RUN013", words="MASTER_ADDR", remedy="unset SLURM_EXPORT_ENV"),),
        first="RUN013",
        cure="you",
        gate=True,
    ),
    Scenario(
        name="Slurm: srun hands over what is on a list",
        launcher="slurm",
        hosts=2,
        env={"h1": {"SLURM_EXPORT_ENV": "PATH,HOME", "NCCL_DEBUG": "WARN"}},
        expect=(Expect(code="RUN013", words="NCCL_DEBUG", remedy="unset SLURM_EXPORT_ENV"),),
        cure="you",
    ),
    _beside(
        "Slurm: another step holds the cores",
        "",
        expect=(Expect(code="RUN013", words="sleep on h[1-2]", remedy="SLURM_OVERLAP=1"),),
        cure="you",
    ),
    _beside("healthy: another step that overlaps", "--overlap", exit_code=0),
    Scenario(
        name="Slurm: two variables of memory at once",
        launcher="slurm",
        hosts=2,
        env={"h1": {"SLURM_MEM_PER_CPU": "100", "SLURM_MEM_PER_NODE": "200"}},
        expect=(
            Expect(
                code="RUN001", words="srun starts nothing: SLURM_MEM_PER_CPU", remedy="unset", state=State.UNKNOWN
            ),
        ),
        exit_code=3,
        cure="you",
    ),
)
