"""Scenarios of nodes that cannot be started, do not meet, or have other software."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from ncclcheck.reports.judgement.findings import State
from tests.conftest import ROOT
from tests.lab import faults, need, start_sshd, stop_sshd, wrong_key
from tests.lab.tools import tool
from tests.scenarios.scenario import ALL, Expect, Scenario, Scene, both

_PACKAGE = ROOT / "ncclcheck"
_LIBRARY = 'const char *names[] = {"NCCL_DEBUG"}; int ncclGetVersion(int *v) { *v = VERSION; return 0; }'


@contextmanager
def _no_sshd(scene: Scene) -> Iterator[None]:
    stop_sshd(scene["h3"])
    try:
        yield
    finally:
        start_sshd(scene.lab, scene["h3"])


@contextmanager
def _other_package(scene: Scene, file: str, old: str, new: str) -> Iterator[None]:
    """h3 has a copy of ncclcheck in which one line is another."""
    copy = scene.folder.parent / f"{scene.folder.name}-package"
    shutil.copytree(_PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))
    with faults.replaced(scene["h3"], _PACKAGE, copy):
        yield


@contextmanager
def _no_package(scene: Scene) -> Iterator[None]:
    empty = scene.folder.parent / f"{scene.folder.name}-empty"
    empty.mkdir()
    with faults.replaced(scene["h3"], _PACKAGE, empty):
        yield


def _other_torch(scene: Scene) -> AbstractContextManager[None]:
    other = scene.folder.parent / f"{scene.folder.name}-version.py"
    other.write_text("__version__ = '2.1.0+cpu'\ncuda = None\n")
    return faults.replaced(scene["h3"], Path(torch.__file__).parent / "version.py", other)


@contextmanager
def _other_nccl(scene: Scene) -> Iterator[None]:
    """A torch for CUDA that loads NCCL 2.27.5, on h3 2.19.3."""
    packages = scene.lab.folder / "cuda"
    torch_folder, other = packages / "torch", scene.lab.folder / "other"
    for folder in (torch_folder / "lib", other):
        folder.mkdir(parents=True, exist_ok=True)
    (torch_folder / "__init__.py").touch()
    (torch_folder / "version.py").write_text("__version__ = '2.9.1+cu130'\ncuda = '13.0'\n")
    nccl = torch_folder / "lib/libnccl.so.2"
    _build(nccl, 22705)
    _build(other / nccl.name, 21903)
    linked = (f"-L{nccl.parent}", "-Wl,--no-as-needed", "-l:libnccl.so.2", "-Wl,-rpath,$ORIGIN")
    _build(torch_folder / "lib/libtorch_cuda.so", 0, *linked, source="int torch;")
    with faults.replaced(scene["h3"], nccl, other / nccl.name):
        yield


def _build(target: Path, version: int, *flags: str, source: str = _LIBRARY) -> None:
    need("gcc")
    soname = f"-Wl,-soname,{target.name}"
    argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", f"-DVERSION={version}", "-o", str(target), soname, *flags]
    tool(argv, text=source, seconds=30)


_STARTS = (
    Scenario(
        name="ssh refused",
        fault=_no_sshd,
        expect=(Expect(code="RUN001", node="h3", evidence="Connection refused", state=State.UNKNOWN),),
        exit_code=3,
        gate=True,
    ),
    Scenario(
        name="no route to a host for ssh",
        fault=lambda s: faults.cut_off(s["h3"], "mgmt0"),
        expect=(Expect(code="RUN001", node="h3", evidence="onnect", state=State.UNKNOWN),),
        exit_code=3,
    ),
    Scenario(
        name="wrong ssh key",
        fault=lambda s: wrong_key(s["h3"]),
        expect=(Expect(code="RUN001", node="h3", evidence="Permission denied", state=State.UNKNOWN),),
        exit_code=3,
    ),
    Scenario(
        name="no ncclcheck there",
        fault=_no_package,
        expect=(
            Expect(
                code="RUN001", node="h3", words="no ncclcheck there", remedy="pip install", state=State.UNKNOWN
            ),
        ),
        exit_code=3,
    ),
    Scenario(
        name="another protocol there",
        fault=lambda s: _other_package(s, "base/wire.py", "\nPROTOCOL = ", "\nPROTOCOL = 1 + "),
        expect=(
            Expect(
                code="RUN001", node="h3", evidence="speaks protocol", remedy="pip install", state=State.UNKNOWN
            ),
        ),
        exit_code=3,
    ),
    Scenario(
        name="another ncclcheck there",
        fault=lambda s: _other_package(s, "__init__.py", '__version__ = "', '__version__ = "9.'),
        expect=(Expect(code="VER004", node="h3", state=State.WARN),),
        exit_code=0,
    ),
    Scenario(name="another torch there", fault=_other_torch, expect=(Expect(code="VER002", node="h3"),)),
    Scenario(
        name="another NCCL there",
        fault=_other_nccl,
        env={ALL: {"PYTHONPATH": f"{{lab}}/cuda:{ROOT}"}},
        expect=(Expect(code="NCC002", node="h3", words="2.19.3"),),
    ),
    Scenario(
        name="a silent slurmd among four",
        fault=lambda s: s.slurm.silent(s["h3"]),
        launcher="slurm",
        hosts=4,
        expect=(Expect(code="RUN001", node="h3", state=State.UNKNOWN),),
        exit_code=3,
        seconds=35,
    ),
    Scenario(
        name="a silent slurmd, and MTU 1400 elsewhere",
        fault=lambda s: both(s.slurm.silent(s["h3"]), faults.mtu(s["h2"], 1400)),
        launcher="slurm",
        hosts=4,
        expect=(
            Expect(code="RUN001", node="h3", state=State.UNKNOWN),
            Expect(code="NET007", node="h2", device="eth0", state=State.WARN),
        ),
        also=("NET004", "NET008"),
        exit_code=3,
        seconds=35,
    ),
)


def _join(name: str, **more: object) -> Scenario:
    return Scenario(name=name, launcher="join", mgmt=False, **more)  # type: ignore[arg-type]


_SECRET = "3f8a6c1e9b2d47508c6d1e2f3a4b5c6d"
# Who comes second with a rank, or with another count, is turned away: wrong usage.
_TURNED_AWAY = {"h2": (1, 2), "h3": (1, 2)}
_WAIT = {ALL: ("--wait", "6")}
_MEETS = (
    _join(
        "join: node rank twice",
        arguments={**_WAIT, "h3": ("--node-rank", "1")},
        expect=(Expect(code="RUN008", node="h3", remedy="--node-rank"),),
        exits=_TURNED_AWAY,
        gate=True,
    ),
    _join(
        "join: different --nodes",
        arguments={**_WAIT, "h3": ("--nodes", "4")},
        expect=(Expect(code="RUN009", node="h3", words="4", remedy="--nodes 3"),),
        exits=_TURNED_AWAY,
    ),
    _join(
        "join: 127.0.0.1 as master",
        arguments={ALL: ("--wait", "6", "--rdzv-endpoint", "127.0.0.1:29500")},
        expect=tuple(Expect(code="RUN006", words="127.0.0.1", by=host) for host in ("h1", "h2", "h3")),
        gate=True,
    ),
    _join(
        "join: the address of node 1 as master",
        arguments={ALL: ("--wait", "6", "--rdzv-endpoint", "10.77.0.22:29500")},
        expect=(Expect(code="RUN005", node="h2", words="10.77.0.22", by="h2"),),
        exits={"h1": (3,), "h3": (3,)},
    ),
    _join(
        "join: rendezvous port taken",
        fault=lambda s: faults.listener(s["h1"], 29500),
        arguments=_WAIT,
        expect=(Expect(code="RUN007", node="h1", words="29500", remedy="--rdzv-endpoint"),),
    ),
    _join(
        "join: another subnet, unrouted",  # h2 finds node rank 0 on the wire, and its facts name it
        fault=lambda s: faults.other_subnet(s["h2"], routed=False),
        arguments=_WAIT,
        expect=(Expect(code="NET003", node="h2", device="eth0", words="10.77.9.0/24", remedy="route"),),
        also=("RUN005", "RUN010"),
        gate=True,
    ),
    _join(
        "join: wrong prefix length",
        fault=lambda s: faults.wrong_prefix(s["h2"]),
        arguments=_WAIT,
        expect=(
            Expect(code="RUN001", node="node rank 1", state=State.UNKNOWN),
            Expect(code="RUN010", node="h2", words="10.77.0.22/28", remedy="ip addr add 10.77.0.22/24", by="h2"),
        ),
        exit_code=3,
        exits={"h2": (1,)},
    ),
    _join(
        "join: firewall on node 0",
        fault=lambda s: faults.drop_high_ports(s["h1"], "in"),
        arguments=_WAIT,
        expect=(
            Expect(code="RUN001", node="node rank 1", state=State.UNKNOWN),
            Expect(code="RUN010", node="h2", state=State.UNKNOWN, words="no answer", remedy="29500", by="h2"),
            Expect(code="RUN010", node="h3", state=State.UNKNOWN, words="no answer", remedy="29500", by="h3"),
        ),
        exit_code=3,
    ),
    _join(
        "join: firewall on another node",
        fault=lambda s: faults.drop_high_ports(s["h2"], "in"),
        arguments=_WAIT,
        expect=(Expect(code="NET006", node="h2", device="eth0"),),
    ),
    _join(
        "join: a range of one port on one node",
        fault=lambda s: faults.port_range(s["h2"], 50000, 50000),
        arguments=_WAIT,
        expect=(Expect(code="HST016", node="h2", remedy="32768 60999"), Expect(code="NET006", node="h2")),
    ),
    _join(
        "join: master's name unknown on one node",
        fault=lambda s: faults.unresolvable(s["h2"], s["h1"]),
        arguments={ALL: ("--wait", "6", "--rdzv-endpoint", "h1:29500")},
        expect=(
            Expect(code="RUN001", node="node rank 1", state=State.UNKNOWN),
            Expect(code="RUN010", node="h2", state=State.UNKNOWN, words="h1 does not resolve", by="h2"),
        ),
        exit_code=3,
    ),
    _join(
        "join: link down",
        fault=lambda s: faults.link_down(s["h2"]),
        arguments=_WAIT,
        expect=(
            Expect(code="RUN001", node="node rank 1", state=State.UNKNOWN),
            Expect(code="RUN010", node="h2", device="eth0", words="eth0 is down", remedy="eth0 up", by="h2"),
        ),
        also=("NET001", "NET002"),
        exit_code=3,
        exits={"h2": (1,)},
    ),
    _join(
        "join: duplicate address",
        fault=lambda s: faults.duplicate_address(s["h3"], s["h2"]),
        arguments=_WAIT,
        expect=(Expect(code="RUN001", state=State.UNKNOWN),),
        also=("NET010",),
        exits=dict.fromkeys(("h1", "h2", "h3"), (1, 3)),
    ),
    _join(
        "join: other records on one host",
        fault=lambda s: _other_package(s, "base/wire.py", 'tag="halt"', 'tag="halted"'),
        arguments=_WAIT,
        expect=(
            Expect(code="RUN008", node="h3", words="does not understand", remedy="pip install"),
            Expect(code="RUN001", node="node rank 2", state=State.UNKNOWN),
        ),
        exits={"h3": (2,)},
    ),
    _join(
        "join: a secret that one host does not have",
        env={"h1": {"NCCLCHECK_SECRET": _SECRET}, "h2": {"NCCLCHECK_SECRET": _SECRET}},
        arguments=_WAIT,
        expect=(Expect(code="RUN001", node="node rank 2", evidence="without a secret", state=State.UNKNOWN),),
        exit_code=3,
        exits={"h3": (2,)},
    ),
    _join(
        "healthy: 3 hosts, join, with a secret",
        env={ALL: {"NCCLCHECK_SECRET": _SECRET}},
        command=("bench", "--quick"),
        exit_code=0,
        seconds=60.0,
    ),
    _join(
        "join: MTU 1400 on one host",
        fault=lambda s: faults.mtu(s["h2"], 1400),
        expect=(Expect(code="NET007", node="h2", device="eth0", state=State.WARN),),
        also=("NET004", "NET008"),
        exit_code=0,
    ),
    _join(
        "join: clock -90 s",
        fault=lambda s: faults.clock(s["h2"], -90),
        expect=(Expect(code="HST009", node="h2", words="behind"),),
    ),
)

_PLACES = (
    Scenario(
        name="working directory apart on one host",
        fault=lambda s: faults.own_directory(s.work, s["h2"]),
        expect=(Expect(code="STO006", node="h2", words="not the one of h[1,3]", state=State.WARN),),
        exit_code=0,
        gate=True,
    ),
    Scenario(
        name="join: working directory apart on one host",
        fault=lambda s: faults.own_directory(s.work, s["h3"]),
        launcher="join",
        expect=(Expect(code="STO006", node="h3", words="not the one of h[1-2]", state=State.WARN),),
        exit_code=0,
    ),
)

OF_NODES = (*_STARTS, *_MEETS, *_PLACES)
