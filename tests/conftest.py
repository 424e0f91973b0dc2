"""How tests run the real command, and the marker of what needs a GPU."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ncclcheck.reports.judgement.jsondoc import Document

# Tests start this package some thousand times. Where the environment forbids .pyc files, as that of many images
# does, every start compiles it anew: `ncclcheck env` takes 1.4 s of CPU time then and 0.6 s otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

ROOT = Path(__file__).resolve().parent.parent
Command = Callable[..., "Ran"]


class Ran:
    """What one run of the command left."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.code = done.returncode
        self.out = done.stdout.decode()
        self.err = done.stderr.decode()

    @property
    def document(self) -> Document:
        """stdout of `-o json`, through the schema's types."""
        return msgspec.json.decode(self.out, type=Document)


# Runs of this session are known by their temporary directory: others may run on this machine at the same time.
OURS = Path(tempfile.mkdtemp(prefix="nc-"))
atexit.register(shutil.rmtree, OURS, ignore_errors=True)


# Tests of factories that ask for their rank leave these behind.
_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK")


def environment(**more: str) -> dict[str, str]:
    """A clean environment: no variable of ours, of NCCL, or of a job system."""
    families = ("NCCL", "GLOO_", "TORCH", "SLURM_", "CUDA_", "MASTER_", "OMP_", "PET_", *_OF_RANKS)
    env = {name: value for name, value in os.environ.items() if not name.startswith(families)}
    return {**env, "PYTHONPATH": str(ROOT), "TMPDIR": str(OURS), **more}


@pytest.fixture
def ncclcheck(tmp_path: Path) -> Command:
    """Run `python -m ncclcheck ARGUMENTS` in an empty directory, as a user would."""

    def run(*arguments: str, seconds: float = 90, **env: str) -> Ran:
        argv = [sys.executable, "-m", "ncclcheck", *arguments]
        return Ran(
            subprocess.run(
                argv, cwd=tmp_path, env=environment(**env), capture_output=True, timeout=seconds, check=False,
                stdin=subprocess.DEVNULL,
            )
        )  # fmt: skip

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes the expected reports anew."""
    parser.addoption("--update-golden", action="store_true", help="renew tests/golden/*.txt")


SLOW = ROOT / "tests/slow.txt"
_OF_SLOW = 100  # tests for which one slow test counts: some seconds beside some hundredths


def pytest_configure(config: pytest.Config) -> None:
    """The order of files is ours: xdist begins with those of most tests and leaves the slow ones for the end."""
    config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that tests/slow.txt lists are marked; those for GPUs are skipped where no GPU can be used."""
    slow = {*SLOW.read_text().splitlines()}
    for item in items:
        if item.nodeid in slow or item.nodeid.partition("[")[0] in slow:
            item.add_marker(pytest.mark.slow)
    if items and hasattr(items[0].config, "workerinput"):
        _long_files_first(items)
    if any("gpu" in item.keywords for item in items):
        import torch  # noqa: PLC0415

        if not torch.cuda.is_available():
            for item in items:
                if "gpu" in item.keywords:
                    item.add_marker(pytest.mark.skip(reason="no CUDA GPU here"))


def _long_files_first(items: list[pytest.Item]) -> None:
    """A file is one worker's: begun last, that of the scenarios would run for minutes beside idle workers."""
    cost: Counter[Path] = Counter()
    for item in items:
        if item.get_closest_marker("nightly") is None:
            cost[item.path] += _OF_SLOW if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: -cost[item.path])  # stable: what is of one file stays together
