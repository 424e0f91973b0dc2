"""`preflight -- COMMAND` on a real Slurm of four nodes, one of which is bad or silent: the other three get it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from ncclcheck.probes.facts import Policy
from ncclcheck.reports.judgement import jsondoc
from tests.conftest import environment
from tests.lab import PYTHON, Lab, Slurm, faults

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]
_SECONDS = 200


def _ncclcheck(lab: Lab, *arguments: str) -> CompletedProcess[str]:
    """In an allocation of all hosts."""
    argv = ["salloc", f"--nodes={len(lab.hosts)}", *PYTHON, "-m", "ncclcheck", *arguments]
    return lab["h1"].run(argv, seconds=_SECONDS, env=environment(), cwd=str(lab.folder))


def _preflight(lab: Lab, need: int) -> CompletedProcess[str]:
    lists = ("--healthy-file", "fit", "--exclude-file", "bad", "--save", "saved.json")
    script = 'echo "became $(hostname) of $SLURM_STEP_NUM_NODES, $NCCLCHECK_SELECTED"'
    return _ncclcheck(lab, "preflight", "--level", "quick", f"--need={need}", *lists, "--", "sh", "-c", script)


def _saved(lab: Lab) -> jsondoc.Saved:
    return jsondoc.decode(Path(lab.folder, "saved.json").read_bytes(), Policy())


def _on_the_other_three(lab: Lab, ran: CompletedProcess[str]) -> None:
    became = sorted(line for line in ran.stdout.splitlines() if line.startswith("became"))
    assert became == [f"became {name} of 3, h[1,3-4]" for name in ("h1", "h3", "h4")], ran.stderr
    assert ran.returncode == 0
    assert "selected: h[1,3-4]" in ran.stderr
    assert Path(lab.folder, "fit").read_text().split() == ["h1", "h3", "h4"]
    assert Path(lab.folder, "bad").read_text() == "h2\n"
    cluster = _saved(lab).cluster
    assert {rank.node for rank in cluster.run.ranks} == {"h1", "h3", "h4"}
    assert cluster.measurements.smoke is not None, "the training ran on the rest"


def _clock(lab: Lab, slurm: Slurm) -> AbstractContextManager[None]:
    del slurm
    return faults.clock(lab["h2"], 30)


def _silent(lab: Lab, slurm: Slurm) -> AbstractContextManager[None]:
    return slurm.silent(lab["h2"])


@pytest.mark.parametrize(
    ("fault", "conf"),
    [
        pytest.param(_clock, (), id="a clock that is off"),
        pytest.param(_silent, (), id="a silent slurmd"),
        pytest.param(_silent, ("MessageTimeout=60",), id="a silent slurmd for which srun waits long"),
    ],
)
def test_the_command_runs_on_the_right_three(fault: object, conf: tuple[str, ...]) -> None:
    assert callable(fault)
    with Lab(4) as lab, fault(lab, Slurm(lab, *conf)):
        _on_the_other_three(lab, _preflight(lab, need=3))


def test_too_few_are_fit() -> None:
    with Lab(3) as lab, _clock(lab, Slurm(lab)):
        ran = _preflight(lab, need=3)
        assert (ran.returncode, "became" in ran.stdout) == (1, False), ran.stderr
        assert "--need 3: 2 of 3 nodes are fit" in ran.stderr


def test_bench_loses_the_silent_node_alone() -> None:
    with Lab(3) as lab, _silent(lab, Slurm(lab)):
        ran = _ncclcheck(lab, "bench", "--quick", "--time-budget", "4", "--save", "saved.json", "-o", "short")
        assert ran.returncode == 3, ran.stderr
        assert "RUN001  h2:  srun" in ran.stdout
        cluster = _saved(lab).cluster
        assert [silence.node for silence in cluster.run.silent] == ["h2"]
        assert [reach.node for reach in cluster.measurements.reach] == ["h1", "h3"]
