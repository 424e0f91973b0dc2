"""Scenarios of init methods: tcp://HOST:PORT and file:///PATH as tutorials write them, on two hosts.

A bare script only hangs or fails on each of them; `benchmarks.init_faults` runs both side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncclcheck.reports.judgement.findings import State
from tests.lab import PYTHON, faults, need
from tests.scenarios.scenario import ALL, Expect, Play, Scenario, Scene, both, nothing

SHARED = Path("/tmp/ncclcheck-init")  # of both hosts, which have one file system
STALE = SHARED / "stale"
_PORT = 23456
_HEAD = f"tcp://10.77.0.11:{_PORT}"  # h1
_USER = ("setpriv", "--bounding-set=-net_bind_service")  # to bind(2) root is then an ordinary user
_SECONDS = 120.0  # s for one run, on a machine that does much else
_SFTP = "/usr/lib/openssh/sftp-server"  # the sshd of the lab offers no subsystem
_LIMIT_S = 60.0  # s until a script that should leave a file behind is taken to hang

# The tutorial's script, a process a node: URL, rank and world size. Its time-out is 8 s; gloo's own is 30 minutes.
# It leaves as a process that is killed does.
SCRIPT = """import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
begun, words, (rank, world) = time.monotonic(), "ran", sys.argv[2].split("/")
try:
    dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(rank), world_size=int(world),
                            timeout=timedelta(seconds=8))
    dist.all_reduce(torch.ones(1))
except Exception as error:
    words = f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"
print(f"{words} ({time.monotonic() - begun:.1f} s)", flush=True)
os._exit(0)
"""


@dataclass(frozen=True, kw_only=True)
class InitScenario(Scenario):
    """script: rank and world size of the bare script on each host, R/N; variables: what it is started with."""

    url: str
    script: tuple[str, ...] = ("0/2", "1/2")
    variables: tuple[Mapping[str, str], ...] = field(default_factory=lambda: ({}, {}))


def _scenario(
    name: str, url: str, fault: Play, expect: Expect, first: str | None = None, cure: str = "you", **more: Any
) -> InitScenario:
    return InitScenario(
        name=f"init: {name}",
        url=url,
        command=("bench", "--quick", "--nproc-per-node", "1"),
        fault=fault,
        expect=(expect,),
        first=first if first is not None else f"{expect.code} on {expect.node}",
        cure=cure,  # type: ignore[arg-type]
        seconds=_SECONDS,
        **{"arguments": {ALL: ("--init-method", url)}, "hosts": 2, "refused": True, **more},
    )


def _joined(
    name: str,
    expect: Expect,
    h1: tuple[str, ...],
    h2: tuple[str, ...],
    script: tuple[str, ...],
    h3: tuple[str, ...] = (),
    **more: Any,
) -> InitScenario:
    """Ranks that people give by hand: each host is started by itself."""
    given = {ALL: ("--init-method", _HEAD, "--wait", "10"), "h1": h1, "h2": h2, "h3": h3}
    return _scenario(
        name,
        _HEAD,
        nothing,
        expect,
        cure="",
        launcher="join",
        arguments=given,
        refused=False,
        script=script,
        **more,
    )


@contextmanager
def _left_by_a_run(scene: Scene, world: int, cut: int | None = None) -> Iterator[None]:
    """What a run of so many ranks left there; cut: so many bytes of it."""
    SHARED.mkdir()
    url, env = f"file://{STALE}", {"GLOO_SOCKET_IFNAME": "eth0"}
    argv = [*PYTHON, "-c", SCRIPT, url]
    try:
        ranks = [scene["h1"].start([*argv, f"{rank}/{world}"], env=env) for rank in range(world)]
        for rank in ranks:
            out, err = rank.communicate(timeout=_LIMIT_S)
            assert out.startswith("ran"), f"{out}{err}"
        STALE.write_bytes(STALE.read_bytes()[:cut])
        yield
    finally:
        STALE.unlink(missing_ok=True)
        SHARED.rmdir()


@contextmanager
def _mounted_by_sshfs(scene: Scene) -> Iterator[None]:
    """On h1 the folder is h2's, by FUSE: one folder for both, and locks that each kernel keeps for itself."""
    need("sshfs")
    with faults.own_directory(SHARED, scene["h2"]):
        scene["h1"].check(["sshfs", "-o", f"sftp_server={_SFTP}", f"h2:{SHARED}", str(SHARED)])
        try:
            yield
        finally:
            scene["h1"].check(["umount", str(SHARED)])


OF_INIT = (
    _scenario(
        "tcp://localhost on two hosts",
        f"tcp://localhost:{_PORT}",
        nothing,
        Expect(code="INI001", node="h2", words="localhost is h2 itself", remedy=_HEAD),
    ),
    _scenario(
        "a name that /etc/hosts of one host makes 127.0.1.1",
        f"tcp://head:{_PORT}",
        lambda s: both(faults.names(s["h1"], head=s["h1"].address), faults.names(s["h2"], head="127.0.1.1")),
        Expect(code="INI001", node="h2", words="head is h2 itself (127.0.1.1)"),
    ),
    _scenario(
        "HOST is an address of the other host",
        f"tcp://10.77.0.22:{_PORT}",
        nothing,
        Expect(code="INI001", node="h2", words="is an address of h2, and rank 0 runs on h1"),
        first="",
    ),
    _scenario(
        "the port is in use",
        _HEAD,
        lambda s: faults.listener(s["h1"], _PORT),
        Expect(code="INI002", node="h1", words=f"port {_PORT} is in use on h1", remedy="tcp://10.77.0.11:23467"),
    ),
    _scenario(
        "the port is blocked",
        _HEAD,
        lambda s: faults.filtered(s["h1"], "input", f"iifname eth0 tcp dport {_PORT} drop"),
        Expect(
            code="INI003",
            node="h2",
            words=f"h2 does not reach port {_PORT} of h1",
            remedy="tcp://10.77.0.11:23467",
        ),
    ),
    _scenario(
        "an address of loopback on two hosts",
        f"tcp://127.0.0.1:{_PORT}",
        nothing,
        Expect(code="INI001", node="h2", words="127.0.0.1 is h2 itself", remedy=_HEAD),
    ),
    _scenario(
        "a port below 1024 without the right to it",
        "tcp://10.77.0.11:443",
        nothing,
        Expect(code="INI002", node="h1", words="this user may not open port 443", remedy=_HEAD),
        launcher="join",
        under={"h1": _USER, "h2": _USER},
    ),
    _scenario(
        "a file of a run that was killed",
        f"file://{STALE}",
        lambda s: _left_by_a_run(s, 2),
        Expect(code="INI004", words="bytes of root", remedy=f"rm -- {STALE}"),
        first="",
    ),
    _scenario(
        "a file that was written by half",
        f"file://{STALE}",
        lambda s: _left_by_a_run(s, 2, cut=20),
        Expect(code="INI004", words="20 bytes of root", remedy=f"rm -- {STALE}"),
        first="",
    ),
    _scenario(
        "a file of a run of more ranks",
        f"file://{STALE}",
        lambda s: _left_by_a_run(s, 4),
        Expect(code="INI004", words="bytes of root", remedy=f"rm -- {STALE}"),
        first="",
    ),
    _scenario(
        "a folder that is not shared",
        f"file://{SHARED}/new",
        lambda s: faults.own_directory(SHARED, s["h2"]),
        Expect(code="INI005", words="does not see in /tmp/ncclcheck-init"),
        first="",
    ),
    _scenario(
        "a folder that one host cannot write",
        f"file://{SHARED}/new",
        lambda s: both(faults.own_directory(SHARED), faults.read_only(s["h2"], SHARED)),
        Expect(
            code="INI005", node="h2", words="h2 can make no file in /tmp/ncclcheck-init: Read-only file system"
        ),
    ),
    _scenario(
        "a mount on which locks count for one host alone",
        f"file://{SHARED}/new",
        _mounted_by_sshfs,
        Expect(code="INI006", node="h2", words="does not count on h2", evidence="taken", state=State.WARN),
        first="",
        refused=False,
        exit_code=0,
    ),
    _joined(
        "a world size that does not fit",
        Expect(code="RUN009", node="h2", words="told of 3 nodes"),
        (),
        ("--nodes", "3"),
        ("0/2", "1/3"),
        exits={"h2": (2,)},
    ),
    _joined(
        "a rank that is given twice",
        Expect(code="RUN008", words="both came as node rank 1", remedy="--node-rank"),
        (),
        (),
        ("0/3", "1/3", "1/3"),
        hosts=3,
        first="",  # the one that came first
        variables=({}, {}, {}),
        h3=("--node-rank", "1"),
        exits={"h2": (1, 2), "h3": (1, 2)},
    ),
    _joined(
        "a rank that is missing",
        Expect(code="RUN001", node="node rank 2", state=State.UNKNOWN),
        ("--nodes", "3"),
        ("--nodes", "3"),
        ("0/3", "1/3"),
        exit_code=3,
        first="",
    ),
    _joined(
        "ranks from 1",
        Expect(code="RUN005", node="h1", words="which is not node 0"),
        ("--node-rank", "1"),
        ("--node-rank", "2"),
        ("1/2", "2/2"),
        exits={"h1": (1, 3), "h2": (2,)},
    ),
)
