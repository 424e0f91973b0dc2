"""NCCL's wheels: fetched by pip into a cache, run only where their own metadata names a free licence.

What PyPI's nvidia-nccl-cu12 says of its licence, read on 2026-11-23: 2.18.3 to 2.22.3 proprietary; 2.23.4 to
2.27.7 "BSD-3-Clause", with that text as License.txt (the classifier says "Other/Proprietary License"); 2.28.3 to
2.32.3 "LicenseRef-NVIDIA-Proprietary": their sources are free, and from_source.py builds what is wanted of them.
"""

from __future__ import annotations

import email
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

from tests.nccl import from_source
from tests.nccl.build import libraries

VERSIONS = ("2.23.4", "2.24.3", "2.25.1", "2.26.5", "2.27.7")
OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]
FREE = ("BSD", "Apache")
MEMBER = "nvidia/nccl/lib/libnccl.so.2"
# For 200 to 320 MB, 3 s from a mirror near by. Two fit into the 120 s of one test: a slow line skips, loudly.
SECONDS = 45.0
ATTACH_S, NOT_ATTACHED = 60, 9
_ATTACH = f"""
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
ctypes.CDLL(sys.argv[2])
sys.exit(0 if cuda.fakecuda_attach() else {NOT_ATTACHED})
"""


class NoWheel(RuntimeError):
    """There is no libnccl of this version to run."""


def folder() -> Path:
    """Where libraries of wheels are kept: $NCCLCHECK_TEST_WHEELS, else in the user's cache."""
    given = os.environ.get("NCCLCHECK_TEST_WHEELS")
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(given or f"{cache_home}/ncclcheck-tests/wheels").expanduser()


def libnccl(version: str) -> Path:
    """The libnccl.so.2 of the wheel of this version. Raises NoWheel."""
    outcome = tried(version)
    if isinstance(outcome, NoWheel):
        raise outcome
    return outcome


@cache
def tried(version: str) -> Path | NoWheel:
    """One try a session: a line that is slow or away costs one test its time, not each of them."""
    name = f"nccl-{version}" if version in from_source.TAGS else f"nvidia-nccl-cu12-{version}"
    kept = folder() / name / "libnccl.so.2"
    try:
        if not kept.is_file():
            _make(version, kept.parent)
    except NoWheel as error:
        return error
    return kept


def _make(version: str, into: Path) -> None:
    if version not in from_source.TAGS:
        _fetch(version, into)
        return
    try:
        from_source.build(version, into)
    except from_source.NotBuilt as error:
        raise NoWheel(f"its sources: {error}") from None


def need(*versions: str) -> None:
    """Skip the running test, saying why, unless these versions can be run here."""
    if platform.machine() != "x86_64":
        pytest.skip(f"NCCL without a GPU was made for x86_64, and this is {platform.machine()}")
    if not shutil.which("gcc"):
        pytest.skip("NCCL without a GPU needs gcc")
    for version in versions:
        try:
            libnccl(version)
        except NoWheel as error:
            pytest.skip(f"NCCL {version} cannot be run: {error}")
        if not attaches(libnccl(version)):
            pytest.skip(f"NCCL {version} cannot be run: its library is stripped, and its CUDA calls are not found")


@cache
def attaches(library: Path) -> bool:
    """Whether a libnccl.so.2 has the symbols by which its calls of CUDA are led to ours."""
    argv = [sys.executable, "-S", "-c", _ATTACH, str(libraries() / "libnvidia-ml.so.1"), str(library)]
    done = subprocess.run(argv, capture_output=True, timeout=ATTACH_S, check=False)
    return done.returncode != NOT_ATTACHED  # what else may happen is for the tests to show


def _fetch(version: str, into: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="nccl-wheel-") as temporary:
        name = f"nvidia-nccl-cu12=={version}"
        argv = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            temporary,
            name,
        ]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise NoWheel(f"pip did not bring {name} within {SECONDS:g} s") from None
        wheels = list(Path(temporary).glob("*.whl"))
        if done.returncode or not wheels:
            lines = done.stderr.strip().splitlines()
            raise NoWheel(f"pip did not bring {name}: {lines[-1] if lines else 'no word'}")
        _unpack(wheels[0], into)


def _unpack(wheel: Path, into: Path) -> None:
    """The library alone, once the licence is known."""
    with zipfile.ZipFile(wheel) as archive:
        licence = _licence(archive)
        if not licence.startswith(FREE):
            raise NoWheel(f"its metadata names the licence {licence!r}, which is neither BSD nor Apache")
        into.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=into.parent))
        fresh.chmod(0o755)
        with archive.open(MEMBER) as source, (fresh / "libnccl.so.2").open("wb") as target:
            shutil.copyfileobj(source, target)
    try:
        fresh.rename(into)
    except OSError:  # another process was quicker
        shutil.rmtree(fresh)


def _licence(archive: zipfile.ZipFile) -> str:
    name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(archive.read(name))
    return str(metadata["License-Expression"] or metadata["License"] or "")
