"""A process that holds one libnccl and starts its ranks in worlds of their own. Run as a module.

A request is a line of JSON on stdin, the answer a line on stdout. A world is a fork of this process with its own
network, mounts and /sys: what was loaded once serves all, and everything a case made ends with its processes.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from ncclcheck.probes.facts import JobFacts, Library, Nccl, Node, Variable
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.devices import fabric, rdma
from ncclcheck.probes.machine.net import network
from ncclcheck.probes.machine.software import nccl_files, nccl_installed, nccl_topology
from tests.differential.asking import Answer, RankAnswer, RankRequest, Request

_NEW_NETWORK, _NEW_MOUNTS = 0x40000000, 0x00020000
_BIND, _REC, _PRIVATE = 0x1000, 0x4000, 0x40000
_POLL_S = 0.01
_RESULT = "\nresult of init: "
_libc = ctypes.CDLL(None, use_errno=True)


class _Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class _Library:
    """The library, loaded once; a fork of this process may be a rank."""

    def __init__(self, cuda: str, nccl: str) -> None:
        self.path = nccl
        self.cuda = ctypes.CDLL(cuda, ctypes.RTLD_GLOBAL)
        self.nccl = ctypes.CDLL(nccl)
        if not self.cuda.fakecuda_attach():
            raise SystemExit(f"{nccl} has no symbols of a CUDA runtime: it cannot run without a GPU")
        number = ctypes.c_int()
        self.nccl.ncclGetVersion(ctypes.byref(number))
        self.version = (number.value // 10000, number.value // 100 % 100, number.value % 100)

    def rank(self, asked: RankRequest, identity: Path) -> int:
        """Make a communicator of one rank; NCCL's result. A file takes the identity from rank 0 to the others."""
        self.cuda.cudaSetDevice(asked.device)
        unique = _Id()
        if asked.rank == 0 or asked.alone:
            if result := self.nccl.ncclGetUniqueId(ctypes.byref(unique)):
                return int(result)
            fresh = identity.with_suffix(".new")
            fresh.write_bytes(bytes(unique))
            fresh.rename(identity)
        while not identity.exists():
            time.sleep(_POLL_S)
        ctypes.memmove(ctypes.byref(unique), identity.read_bytes(), 128)
        communicator = ctypes.c_void_p()
        return int(self.nccl.ncclCommInitRank(ctypes.byref(communicator), asked.ranks, unique, asked.rank))


def main() -> None:
    """Answer requests until stdin ends."""
    library = _Library(*sys.argv[1:3])
    print(msgspec.json.encode(library.version).decode(), flush=True)
    for line in sys.stdin:
        request = msgspec.json.decode(line, type=Request)
        with tempfile.TemporaryDirectory(prefix="ncclcheck-differential-") as folder:
            child = _fork(lambda: _world(library, request, Path(folder)))  # noqa: B023
            os.waitpid(child, 0)
            try:
                print((Path(folder) / "answer.json").read_text(), flush=True)
            except FileNotFoundError:
                errors = (Path(folder) / "world.err").read_text() if (Path(folder) / "world.err").exists() else ""
                print(msgspec.json.encode(Answer(broken=errors or "the world ended")).decode(), flush=True)


def _fork(work: Callable[[], None]) -> int:
    sys.stdout.flush()
    child = os.fork()
    return child if child else _leave(work)


def _leave(work: Callable[[], None]) -> NoReturn:
    _libc.prctl(1, signal.SIGKILL)
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _world(library: _Library, request: Request, folder: Path) -> None:
    error = os.open(folder / "world.err", os.O_WRONLY | os.O_CREAT)
    os.dup2(error, 2)
    if _libc.unshare(_NEW_NETWORK | _NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    _mount("none", "/", "", _REC | _PRIVATE)
    _ip(request.links)
    if request.sys:
        _mount("sysfs", f"{request.sys}/real", "sysfs", 0)
        _mount(request.sys, "/sys", "", _BIND | _REC)
    else:
        _mount("sysfs", "/sys", "sysfs", 0)
    for source, target in request.mounts:
        _mount(source, target, "", _BIND)
    node = _facts(library, request, folder)
    identity = folder / "identity"
    logs = [folder / f"log{number}" for number in range(len(request.ranks))]
    started = [
        _fork(lambda r=rank, g=log: _rank(library, r, g, identity))  # type: ignore[misc]
        for rank, log in zip(request.ranks, logs, strict=True)
    ]
    codes, cut = _wait(started, logs, request)
    answers = [
        RankAnswer(log=log.read_text(errors="backslashreplace"), result=code)
        for log, code in zip(logs, codes, strict=True)
    ]
    (folder / "answer.json").write_bytes(msgspec.json.encode(Answer(node=node, ranks=answers, cut=cut)))


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), f"mount {source} {target}")


def _ip(lines: Sequence[str]) -> None:
    if lines:
        text = "\n".join(lines) + "\n"
        done = subprocess.run(
            ["ip", "-batch", "-"], input=text, capture_output=True, text=True, timeout=20, check=False
        )
        if done.returncode:
            raise RuntimeError(f"ip: {done.stderr}\n{text}")


def _facts(library: _Library, request: Request, folder: Path) -> Node | None:
    """What our own probes read in this world, in a process that has the environment of the first rank."""
    path = folder / "node.json"

    def read() -> None:
        env = request.ranks[0].env
        os.environ.update(env)
        machine = Machine()
        version = ".".join(map(str, library.version))
        conf_files = nccl_files.conf_files(machine, dict(os.environ), library.version)
        node = Node(
            name="node",
            network=network.probe(machine),
            rdma=rdma.probe(machine),
            fabric=fabric.probe(machine),
            job=JobFacts(variables=[Variable(name=name, value=value) for name, value in env.items()]),
            nccl=Nccl(
                loaded=Library(path=library.path, version=version, origin="test"),
                conf_files=conf_files,
                topology=nccl_topology.topology(machine, nccl_installed.in_force(env, conf_files)),
            ),
        )
        path.write_bytes(msgspec.json.encode(node))

    os.waitpid(_fork(read), 0)
    return msgspec.json.decode(path.read_bytes(), type=Node)


def _rank(library: _Library, asked: RankRequest, log: Path, identity: Path) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(asked.env)
    result = library.rank(asked, identity)
    os.write(out, f"{_RESULT}{result}\n".encode())


def _wait(started: Sequence[int], logs: Sequence[Path], request: Request) -> tuple[list[int | None], bool]:
    """NCCL's result of every rank; None for one that was ended, since it had said enough or the time was over.

    And whether it was the time.
    """
    pidfds = {os.pidfd_open(pid): number for number, pid in enumerate(started)}
    end, cut = time.monotonic() + request.seconds, False
    while pidfds and not (cut := time.monotonic() >= end):
        for ready in select.select(list(pidfds), [], [], _POLL_S)[0]:
            del pidfds[ready]
        if request.enough and all(_enough(log, request.enough) for log in logs):
            break
    for pid in started:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return [_result(log) for log in logs], cut


def _enough(log: Path, wanted: Sequence[str]) -> bool:
    text = log.read_text(errors="backslashreplace") if log.exists() else ""
    return _RESULT in text or all(part in text for part in wanted)


def _result(log: Path) -> int | None:
    match = re.search(rf"{_RESULT}(\d+)", log.read_text(errors="backslashreplace"))
    return int(match[1]) if match else None


if __name__ == "__main__":
    main()
