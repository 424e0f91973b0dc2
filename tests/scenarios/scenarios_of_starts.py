"""Scenarios of jobs whose own start fails or waits where ncclcheck's start gets round it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ncclcheck.reports.judgement.findings import State
from tests.scenarios.scenario import Expect, Scenario, Scene

_ALLOCATED = ("salloc", "-Q", "-N", "2", "sh", "-c")
_HOLDS = 'srun $HOLDS -N2 -n2 sleep 300 & sleep 2; "$@"; rc=$?; kill $!; wait; exit $rc'


def _beside(name: str, holds: str, **more: object) -> Scenario:
    """Another step of the same allocation runs meanwhile."""
    return Scenario(
        name=name, launcher="variables", hosts=2, under={"h1": (*_ALLOCATED, _HOLDS, "sh")},
        env={"h1": {"HOLDS": holds}}, gone_within=15, **more,  # type: ignore[arg-type]
    )  # fmt: skip


@contextmanager
def _login_sets(scene: Scene, line: str, *names: str) -> Iterator[None]:
    """A line of the startup file that Debian's bash reads for every command by ssh, on these hosts."""
    with ExitStack() as stack:
        for name in names:
            path = scene[name].etc / "bash.bashrc"
            before = path.read_text()
            path.write_text(f"{line}\n{before}")
            stack.callback(path.write_text, before)
        yield


@contextmanager
def _old_torch(scene: Scene) -> Iterator[None]:
    """Somebody's folder with an old torch, which the login shell of h3 alone has in PYTHONPATH."""
    torch = scene.folder.with_name(f"{scene.folder.name}-frameworks") / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("__version__ = '1.4.0'\n")
    (torch / "version.py").write_text("__version__ = '1.4.0'\ncuda = None\n")
    with _login_sets(scene, f"export PYTHONPATH={torch.parent}", "h3"):
        yield


OF_STARTS = (
    Scenario(
        name="ssh: the login of one host puts another torch first",
        fault=_old_torch,
        expect=(
            Expect(
                code="VER002", node="h3", words="PYTHONPATH puts another torch first", remedy="unset PYTHONPATH"
            ),
        ),
        also=("VER019",),
        first="VER002 on h3",
        gate=True,
    ),
    Scenario(
        name="ssh: the job ends where the login puts another torch first",
        fault=_old_torch,
        command=("bench", "--quick", "--nproc-per-node", "1"),
        expect=(Expect(code="VER002", node="h3", words="PYTHONPATH puts another torch first"),),
        also=("VER018", "VER019", "RUN002", "LOG161"),
        first="VER002 on h3",
        seconds=75,
    ),
    Scenario(
        name="healthy: the logins of all hosts have folders of their own",
        fault=lambda s: _login_sets(
            s, "export PYTHONPATH=/opt/python LD_LIBRARY_PATH=/opt/lib PATH=/opt/bin:$PATH", "h1", "h2", "h3"
        ),
        exit_code=0,
    ),
    Scenario(
        name="ssh: the login of one host has folders of its own",
        fault=lambda s: _login_sets(
            s, "export PYTHONPATH=/opt/tools/python LD_LIBRARY_PATH=/opt/tools/lib PATH=/opt/tools/bin:$PATH", "h3"
        ),
        expect=(
            Expect(
                code="VER013",
                node="h3",
                words="LD_LIBRARY_PATH is /opt/tools/lib",
                remedy="unset",
                state=State.WARN,
            ),
        ),
        exit_code=0,
    ),
    Scenario(
        name="Slurm: srun hands no variables over",
        launcher="slurm",
        hosts=2,
        env={"h1": {"SLURM_EXPORT_ENV": "NONE", "MASTER_ADDR": "h1"}},
        expect=(
            Expect(
                code="RUN013",
                words="SLURM_EXPORT_ENV=NONE is set: MASTER_ADDR",
                remedy="unset SLURM_EXPORT_ENV",
                state=State.WARN,
            ),
        ),
        exit_code=0,
        cure="you",
        gate=True,
    ),
    Scenario(
        name="healthy: a site that hands no variables over, and a shell that has none for the job",
        launcher="slurm",
        hosts=2,
        env={"h1": {"SLURM_EXPORT_ENV": "NONE"}},
        exit_code=0,
    ),
    Scenario(
        name="Slurm: srun hands over what is on a list",
        launcher="slurm",
        hosts=2,
        env={"h1": {"SLURM_EXPORT_ENV": "PATH,HOME", "NCCL_DEBUG": "WARN"}},
        expect=(Expect(code="RUN013", words="NCCL_DEBUG", remedy="unset SLURM_EXPORT_ENV", state=State.WARN),),
        exit_code=0,
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
