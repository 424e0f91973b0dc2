"""Environments of other Pythons and torches, made once by pip and kept: `build/torches`, or NCCLCHECK_TORCHES.

PyPI's torch for Linux on x86_64 is the CUDA build: a row takes 3 to 7 GB, and about two minutes on a fast network.
All that `import torch` loads is installed as torch asks for it; only triton is left out, which nothing loads
before something is compiled. numpy lies in a folder of its own, so that each row runs with and without it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment

_HOUR_S = 3600.0
_NEEDS = """
import json
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
asked = [Requirement(line) for line in requires("torch")]
meant = [one for one in asked if not one.marker or one.marker.evaluate({"extra": ""})]
print(json.dumps([str(one).partition(";")[0] for one in meant if not one.name.startswith("triton")]))
"""


@dataclass(frozen=True)
class Row:
    """A Python and a torch; an empty version is the newest that pip finds."""

    python: str
    torch: str

    @property
    def name(self) -> str:
        """`python3.10-torch2.1.0`."""
        return f"python{self.python}-torch{self.torch or '-newest'}"

    @property
    def folder(self) -> Path:
        """Where its environment is kept."""
        return Path(os.environ.get("NCCLCHECK_TORCHES") or ROOT / "build/torches") / self.name

    @property
    def interpreter(self) -> str:
        """The environment's own Python."""
        return str(self.folder / "bin/python")

    def environment(self, *, numpy: bool) -> dict[str, str]:
        """What a command runs in here: this tree, and numpy or none."""
        path = [str(ROOT), *([str(self.folder / "numpy")] if numpy else [])]
        own = f"{self.folder / 'bin'}:{os.environ.get('PATH', '')}"
        return environment(PYTHONPATH=":".join(path), PATH=own, VIRTUAL_ENV=str(self.folder))


def ready(row: Row) -> None:
    """Make the environment where it is not there yet; skip, saying why, where it cannot be had."""
    whole = row.folder / "whole"
    if whole.exists():
        return
    python = _interpreter(row.python)
    if python is None:
        pytest.skip(f"{row.name}: no python{row.python} on PATH, nor below PYENV_ROOT")
    shutil.rmtree(row.folder, ignore_errors=True)
    row.folder.parent.mkdir(parents=True, exist_ok=True)
    _run(row, python, "-m", "venv", str(row.folder))
    _install(row, "--no-deps", f"torch=={row.torch}" if row.torch else "torch")
    _install(row, *json.loads(_run(row, row.interpreter, "-c", _NEEDS)))
    ours = [line for line in requires("ncclcheck") or [] if "extra ==" not in line]
    _install(row, *(line for line in ours if not line.startswith("torch")))
    _install(row, "--target", str(row.folder / "numpy"), "numpy<2" if row.torch.startswith("2.1.") else "numpy")
    whole.touch()


def _interpreter(version: str) -> str | None:
    """The first that starts: pyenv puts shims on PATH of versions that are switched off."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    paths = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))]
    return next((path for path in paths if path and _starts(path)), None)


def _starts(python: str) -> bool:
    done = subprocess.run([python, "-c", "import venv"], capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def _install(row: Row, *what: str) -> None:
    _run(row, row.interpreter, "-m", "pip", "install", "-q", "--no-cache-dir", "--progress-bar", "off", *what)


def _run(row: Row, *argv: str) -> str:
    """What it prints. The gate's own constraint on torch is not for these."""
    env = {name: value for name, value in os.environ.items() if name not in ("PIP_CONSTRAINT", "PYTHONPATH")}
    done = subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=_HOUR_S, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or [done.stderr]
        pytest.skip(f"{row.name}: {' '.join(argv[1:])[:200]}: {errors[-1].strip()[-300:]}")
    return done.stdout
