"""In the lab: a job that cannot run over a wrong interface runs with the recommended file, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.lab import PYTHON, Lab, faults, start_sshd

_BENCH = (*PYTHON, "-m", "ncclcheck", "bench", "--quick", "--time-budget", "1", "--hosts", "h1,h2", "-o", "short")
_SECONDS = 120.0

Fault = Callable[[Lab], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(2) as lab:
        start_sshd(lab)
        yield lab


def _bridges(lab: Lab) -> AbstractContextManager[None]:
    return faults.docker_bridge(*lab.hosts)


def _nothing(_: Lab) -> AbstractContextManager[None]:
    return nullcontext()


def _own_name(lab: Lab) -> AbstractContextManager[None]:
    return faults.own_name_is_loopback(lab["h2"])


CASES: list[tuple[str, Fault, dict[str, str], str]] = [
    ("a name that is loopback", _own_name, {}, "export GLOO_SOCKET_IFNAME=eth0"),
    ("no such interface", _nothing, {"GLOO_SOCKET_IFNAME": "eht0"}, "unset GLOO_SOCKET_IFNAME"),
    ("a container bridge", _bridges, {"GLOO_SOCKET_IFNAME": "docker0"}, "unset GLOO_SOCKET_IFNAME"),
    ("no such interface for NCCL", _nothing, {"NCCL_SOCKET_IFNAME": "eht0"}, "unset NCCL_SOCKET_IFNAME"),
]
_NIGHTLY = {True: (pytest.mark.nightly,), False: ()}  # the first one stands for all


@pytest.mark.parametrize(
    ("fault", "env", "line"),
    [pytest.param(*rest, id=name, marks=_NIGHTLY[place > 0]) for place, (name, *rest) in enumerate(CASES)],
)
def test_the_recommended_file_makes_the_job_run(
    lab: Lab, fault: Fault, env: dict[str, str], line: str, tmp_path: Path
) -> None:
    file = lab.folder / f"{tmp_path.name}.env"
    with fault(lab):
        before = lab["h1"].run([*_BENCH, "--env-file", str(file)], _SECONDS, env=env)
        assert before.returncode == 1, before.stdout + before.stderr
        assert line in file.read_text().splitlines()
        after = lab["h1"].run(["sh", "-c", f'. {file} && exec "$@"', "sh", *_BENCH], _SECONDS, env=env)
    assert after.returncode == 0, after.stdout + after.stderr
