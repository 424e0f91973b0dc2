"""Scenarios of what one host alone has: a variable, a library or a file that ends or cripples its processes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ncclcheck.reports.judgement.findings import State
from tests.conftest import ROOT
from tests.lab import need
from tests.lab.sshd import configured
from tests.scenarios.scenario import Expect, Scenario, Scene

_QUICK = ("bench", "--quick", "--nproc-per-node", "1")
_SECONDS = 75.0
# Ends whatever runs torchrun or a rank, as a tracer does that was built for another C library.
_ABORTS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
__attribute__((constructor)) static void begin(void) {
    static char line[4096];
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t size = file ? fread(line, 1, sizeof line - 1, file) : 0;
    for (size_t at = 0; at < size; at++) if (!line[at]) line[at] = ' ';
    if (strstr(line, "torch.distributed.run") || strstr(line, "ncclcheck.node.ranks.worker")) abort();
}
"""


def _library(scene: Scene, name: str, source: str = "int nothing;") -> Path:
    """A shared library in the lab's folder."""
    need("gcc")
    made = scene.lab.folder / "own" / name
    made.parent.mkdir(exist_ok=True)
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{name}"]
    subprocess.run(
        ["gcc", *flags, "-x", "c", "-", "-o", str(made)], input=source, text=True, timeout=30, check=True
    )
    return made


@contextmanager
def _given(scene: Scene, host: str, **variables: str) -> Iterator[None]:
    """sshd of this host gives these variables to all that log in."""
    settings = " ".join(f'"{name}={value.format(lab=scene.lab.folder)}"' for name, value in variables.items())
    with configured(scene[host], f"SetEnv {settings}"):
        yield


@contextmanager
def _made(scene: Scene, name: str, source: str = "int nothing;") -> Iterator[None]:
    _library(scene, name, source)
    yield


@contextmanager
def _written(path: Path, text: str) -> Iterator[None]:
    """A file of the user's, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    try:
        yield
    finally:
        for left in path.parent.glob("*.py*"):
            if left.is_file():
                left.unlink()


@contextmanager
def _preloaded_by_sshd(scene: Scene) -> Iterator[None]:
    with _made(scene, "libtrace.so", _ABORTS), _given(scene, "h2", LD_PRELOAD="{lab}/own/libtrace.so"):
        yield


@contextmanager
def _beside_the_job(scene: Scene) -> Iterator[None]:
    """A queue.py in the working directory that all hosts share."""
    scene.work.mkdir()
    (scene.work / "queue.py").write_text("mine = 1\n")
    (scene.work / "token").mkdir()  # without an __init__.py it hides nothing
    try:
        yield
    finally:
        shutil.rmtree(scene.work)


def _in_a_folder(scene: Scene) -> AbstractContextManager[None]:
    return _written(scene.lab.folder / "old" / "queue.py", "mine = 1\n")


def _own(name: str, variables: dict[str, str], words: str, hosts: int = 2, **more: object) -> Scenario:
    """A join in which the second host has these variables."""
    given: dict[str, object] = {
        "launcher": "join",
        "hosts": hosts,
        "mgmt": False,
        "command": _QUICK,
        "env": {"h2": variables},
        "seconds": _SECONDS,
        "expect": (
            Expect(code="RUN002", node="h2"),
            Expect(code="VER017", node="h2", words=words, remedy=f"unset {next(iter(variables))}"),
        ),
        "first": "VER017 on h2",
        "cure": "you",
    }
    return Scenario(name=name, **{**given, **more})  # type: ignore[arg-type]


def _shadowed(scene: Scene) -> AbstractContextManager[None]:
    """An old numpy of somebody's in a folder that one host has in PYTHONPATH."""
    return _written(scene.lab.folder / "shadow" / "numpy.py", "raise RuntimeError('numpy of 2017')\n")


_SOUND_BUT_ODD = {
    "PATH": "/opt/tools/bin:/usr/local/bin:/usr/bin:/bin",
    "LANG": "de_DE.UTF-8",
    "LC_ALL": "xx_YY.UTF-8",
    "TZ": "Nowhere/Bad",
    "PS1": "$ ",
    "HOME": "/nonexistent",
    "EDITOR": "vi",
    "CONDA_DEFAULT_ENV": "base",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "http_proxy": "http://proxy.invalid:3128",
}

OF_ENVIRONMENTS = (
    *(
        _own(
            f"own: LD_PRELOAD ends torchrun on one of {hosts}",
            {"LD_PRELOAD": "{lab}/own/libtrace.so"},
            "LD_PRELOAD=",
            hosts,
            fault=lambda s: _made(s, "libtrace.so", _ABORTS),
        )
        for hosts in (2, 3)
    ),
    _own(
        "own: an old libstdc++ in LD_LIBRARY_PATH",
        {"LD_LIBRARY_PATH": "{lab}/own"},
        "LD_LIBRARY_PATH=",
        fault=lambda s: _made(s, "libstdc++.so.6"),
    ),
    _own(
        "own: a transport that gloo does not have", {"GLOO_DEVICE_TRANSPORT": "IBVERBS"}, "GLOO_DEVICE_TRANSPORT="
    ),
    _own(
        "own: a value that torch refuses",
        {"TORCH_DISTRIBUTED_DEBUG": "YES"},
        "TORCH_DISTRIBUTED_DEBUG=YES",
        also=("NCC004",),
    ),
    Scenario(
        name="own: LD_PRELOAD by sshd of one host",
        command=_QUICK,
        fault=_preloaded_by_sshd,
        expect=(
            Expect(code="RUN002", node="h2"),
            Expect(code="VER017", node="h2", words="LD_PRELOAD=", remedy="unset LD_PRELOAD"),
        ),
        first="VER017 on h2",
        seconds=_SECONDS,
    ),
    Scenario(
        name="own: PYTHONHOME by sshd of one host",
        fault=lambda s: _given(s, "h2", PYTHONHOME="/opt/nothing"),
        expect=(
            Expect(
                code="RUN001",
                node="h2",
                words="its own standard library",
                remedy="unset PYTHONHOME",
                state=State.UNKNOWN,
            ),
        ),
        exit_code=3,
    ),
    Scenario(
        name="own: a queue.py in PYTHONPATH of one host",
        launcher="join",
        hosts=2,
        mgmt=False,
        command=_QUICK,
        fault=_in_a_folder,
        env={"h2": {"PYTHONPATH": f"{{lab}}/old:{ROOT}"}},
        expect=(
            Expect(code="RUN002", node="h2", words="queue"),
            Expect(code="VER018", node="h2", words="queue.py hides", remedy="mv "),
        ),
        first="VER018 on h2",
        cure="you",
        seconds=_SECONDS,
    ),
    Scenario(
        name="own: a numpy in PYTHONPATH of one host",
        launcher="join",
        hosts=2,
        mgmt=False,
        command=_QUICK,
        fault=_shadowed,
        env={"h2": {"PYTHONPATH": f"{{lab}}/shadow:{ROOT}"}},
        expect=(
            Expect(code="RUN002", node="h2", words="numpy"),
            Expect(code="VER018", node="h2", words="numpy.py hides the module numpy", remedy="mv "),
        ),
        first="VER018 on h2",
        cure="you",
        seconds=_SECONDS,
    ),
    Scenario(
        name="own: a sitecustomize that waits, on one host",
        launcher="join",
        hosts=2,
        mgmt=False,
        command=("env",),
        fault=lambda s: _written(s.lab.folder / "site" / "sitecustomize.py", "import time\ntime.sleep(2.5)\n"),
        env={"h2": {"PYTHONPATH": f"{{lab}}/site:{ROOT}"}},
        expect=(
            Expect(code="HST018", node="h2", words="Python needs 2.5 s to start", remedy="mv ", state=State.WARN),
        ),
        exit_code=0,
        cure="you",
        seconds=40,
    ),
    Scenario(
        name="own: PET_STANDALONE on one host",
        launcher="join",
        hosts=2,
        mgmt=False,
        command=_QUICK,
        env={"h2": {"PET_STANDALONE": "1"}},
        expect=(Expect(code="VER013", node="h2", words="a job of h2 alone", remedy="unset PET_STANDALONE"),),
        first="VER013 on h2",
        cure="you",
        seconds=_SECONDS,
    ),
    Scenario(
        name="own: TORCH_GLOO_LAZY_INIT on one host",
        launcher="join",
        hosts=2,
        mgmt=False,
        command=_QUICK,
        env={"h2": {"TORCH_GLOO_LAZY_INIT": "1"}},
        expect=(Expect(code="NCC005", words="TORCH_GLOO_LAZY_INIT differs", remedy="unset TORCH_GLOO_LAZY_INIT"),),
        refused=True,
        seconds=_SECONDS,
    ),
    Scenario(
        name="own: a queue.py in the working directory of all",
        fault=_beside_the_job,
        expect=(Expect(code="VER018", words="queue.py hides", remedy="mv ", state=State.WARN),),
        exit_code=0,
    ),
    Scenario(
        name="own: what does no harm, on one host",
        launcher="join",
        hosts=2,
        mgmt=False,
        command=_QUICK,
        env={"h2": _SOUND_BUT_ODD},
        exit_code=0,
        seconds=_SECONDS,
    ),
    Scenario(
        name="own: a library before all others that does no harm, on one host",
        launcher="join",
        hosts=2,
        mgmt=False,
        command=_QUICK,
        fault=lambda s: _made(s, "libjemalloc.so.2"),
        env={"h2": {"LD_PRELOAD": "{lab}/own/libjemalloc.so.2"}},
        also=("VER013",),
        exit_code=0,
        seconds=_SECONDS,
    ),
)
