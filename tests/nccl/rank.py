"""One NCCL rank by ctypes, without torch; tests.nccl.job starts it.

    rank.py CUDA LIBNCCL FOLDER RANK RANKS DEVICE STEP...

FOLDER is the job's: `id` (NCCL's unique id), marks (`mark:NAME`, `wait:NAME`) and said.N, what this rank says of
itself: a line of JSON a step. stdout and stderr are NCCL's alone. STEP is OPERATION[:ARGUMENT].
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

FLOAT, SUM = 7, 0
COUNT = 1024  # elements, where a step names none
POLL_S = 0.02
IN_PROGRESS = 7  # ncclInProgress

Pointer = ctypes.c_void_p


class Id(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("bytes", ctypes.c_char * 128)]


class Lasting(Exception):
    """A step did not end within its time."""


class Rank:
    """The state between steps: communicators (the last one made is used), buffers, a stream."""

    def __init__(self, argv: list[str]) -> None:
        cuda, nccl, folder, rank, ranks, device, *self.steps = argv
        self.cuda = ctypes.CDLL(cuda, ctypes.RTLD_GLOBAL)
        self.nccl = ctypes.CDLL(nccl)
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.folder, self.rank, self.ranks, self.device = Path(folder), int(rank), int(ranks), int(device)
        self.said = (self.folder / f"said.{os.environ.get('RANK_NAME', rank)}").open("a", buffering=1)
        self.began = time.monotonic()
        self.comms: list[Pointer] = []
        self.stream = Pointer()
        self.send, self.receive = Pointer(), Pointer()
        self.room = 0
        self.filled = (0, 0)  # of the last collective: elements sent, elements received

    @property
    def comm(self) -> Pointer:
        """The communicator that steps use."""
        return self.comms[-1] if self.comms else Pointer()

    def say(self, step: str, code: int = 0, **more: object) -> None:
        """One line of what happened."""
        line = {"step": step, "code": code, "at": round(time.monotonic() - self.began, 3), **more}
        if code:
            line["error"] = self.nccl.ncclGetErrorString(code).decode()
            line["last"] = self.nccl.ncclGetLastError(self.comm).decode(errors="backslashreplace").strip()
        self.said.write(json.dumps(line) + "\n")

    def run(self) -> int:
        """All steps in order, up to the first that fails; the exit code."""
        attached = self.cuda.fakecuda_attach()
        self.say("attach", functions=attached)
        if not attached:
            return 9
        self.cuda.cudaSetDevice(self.device)
        for step in self.steps:
            name, _, argument = step.partition(":")
            try:
                code = self.step(name)(argument) or 0
            except Lasting as lasting:
                self.say(step, timed_out=True, why=str(lasting))
                return 5
            self.say(step, code)
            if code and name != "async":
                return 4
        return 0

    def step(self, name: str) -> Callable[[str], int | None]:
        """The function of a step."""
        function: Callable[[str], int | None] = getattr(self, f"do_{name}")
        return function

    # --- communicators ---

    def unique_id(self) -> Id | int:
        """Rank 0 makes it, the others read it."""
        place = self.folder / "id"
        unique = Id()
        if self.rank == 0 and not place.exists():
            code: int = self.nccl.ncclGetUniqueId(ctypes.byref(unique))
            if code:
                return code
            fresh = self.folder / "id.new"
            fresh.write_bytes(bytes(unique))
            fresh.rename(place)
        while not place.exists():
            time.sleep(POLL_S)
        ctypes.memmove(ctypes.byref(unique), place.read_bytes(), ctypes.sizeof(unique))
        return unique

    def do_id(self, _: str) -> int:
        """ncclGetUniqueId alone, which opens the socket of the bootstrap's root."""
        unique = self.unique_id()
        return unique if isinstance(unique, int) else 0

    def do_init(self, _: str) -> int:
        """ncclCommInitRank."""
        unique = self.unique_id()
        if isinstance(unique, int):
            return unique
        comm = Pointer()
        code: int = self.nccl.ncclCommInitRank(ctypes.byref(comm), self.ranks, unique, self.rank)
        if not code:
            self.comms.append(comm)
        return code

    def do_split(self, argument: str) -> int:
        """ncclCommSplit with this colour; the new one is used from then on."""
        comm = Pointer()
        code: int = self.nccl.ncclCommSplit(self.comm, int(argument or 0), self.rank, ctypes.byref(comm), None)
        if not code and comm:
            self.comms.append(comm)
        return code

    def do_destroy(self, _: str) -> int:
        """ncclCommDestroy of all, the last one made first."""
        code = 0
        while self.comms and not code:
            code = self.nccl.ncclCommDestroy(self.comms.pop())
        return code

    def do_finalize(self, _: str) -> int:
        """ncclCommFinalize."""
        return int(self.nccl.ncclCommFinalize(self.comm))

    def do_abort(self, _: str) -> int:
        """ncclCommAbort of the last one made."""
        return int(self.nccl.ncclCommAbort(self.comms.pop()))

    # --- collectives ---

    def buffers(self, sent: int, received: int) -> None:
        """Room for so many floats on the device; what is sent is its index times (rank + 1)."""
        need = 4 * max(sent, received, 1)
        if not self.stream:
            self.cuda.cudaStreamCreate(ctypes.byref(self.stream))
        if need > self.room:
            for buffer in (self.send, self.receive):
                if code := self.cuda.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(need)):
                    raise MemoryError(f"cudaMalloc of this rank's own buffers: {code}")
            self.room = need
        values = struct.pack(f"<{sent}f", *((index % 1000) * (self.rank + 1) for index in range(sent)))
        ctypes.memmove(self.send, values, len(values))
        self.filled = (sent, received)

    def do_all_reduce(self, argument: str) -> int:
        """The sum of all."""
        n = int(argument or COUNT)
        self.buffers(n, n)
        return int(self.cuda.ncclAllReduce(self.send, self.receive, _size(n), FLOAT, SUM, self.comm, self.stream))

    def do_all_gather(self, argument: str) -> int:
        """What each has, in the order of the ranks."""
        n = int(argument or COUNT)
        self.buffers(n, n * self.ranks)
        return int(self.cuda.ncclAllGather(self.send, self.receive, _size(n), FLOAT, self.comm, self.stream))

    def do_reduce_scatter(self, argument: str) -> int:
        """Each gets its part of the sum."""
        n = int(argument or COUNT)
        self.buffers(n * self.ranks, n)
        return int(
            self.cuda.ncclReduceScatter(self.send, self.receive, _size(n), FLOAT, SUM, self.comm, self.stream)
        )

    def do_broadcast(self, argument: str) -> int:
        """From rank 0."""
        n = int(argument or COUNT)
        self.buffers(n, n)
        return int(self.cuda.ncclBroadcast(self.send, self.receive, _size(n), FLOAT, 0, self.comm, self.stream))

    def do_reduce(self, argument: str) -> int:
        """To rank 0."""
        n = int(argument or COUNT)
        self.buffers(n, n)
        return int(self.cuda.ncclReduce(self.send, self.receive, _size(n), FLOAT, SUM, 0, self.comm, self.stream))

    def do_send(self, argument: str) -> int:
        """send:PEER[,ELEMENTS]"""
        peer, n = _peer(argument)
        self.buffers(n, n)
        return int(self.nccl.ncclSend(self.send, _size(n), FLOAT, peer, self.comm, self.stream))

    def do_receive(self, argument: str) -> int:
        """receive:PEER[,ELEMENTS]"""
        peer, n = _peer(argument)
        self.buffers(n, n)
        return int(self.nccl.ncclRecv(self.receive, _size(n), FLOAT, peer, self.comm, self.stream))

    def do_bad_pointer(self, _: str) -> int:
        """An all-reduce of memory that is no memory of a GPU."""
        nowhere = Pointer(64)
        return int(self.cuda.ncclAllReduce(nowhere, nowhere, _size(COUNT), FLOAT, SUM, self.comm, self.stream))

    def do_sync(self, argument: str) -> int:
        """Wait until the stream is through, an error of NCCL's, or so many seconds (60), like torch's watchdog."""
        end = time.monotonic() + float(argument or 60)
        while code := self.cuda.cudaStreamQuery(self.stream):
            if code != 600:  # cudaErrorNotReady
                self.say("cuda", cuda=code)
                return 1
            error = ctypes.c_int()
            self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(error))
            if error.value not in (0, IN_PROGRESS):
                return error.value
            if time.monotonic() > end:
                raise Lasting("the stream is not through")
            time.sleep(POLL_S)
        return 0

    def do_first(self, argument: str) -> int:
        """The received values at these indexes (by commas), into what is said."""
        received = self.filled[1]
        values = struct.unpack(f"<{received}f", ctypes.string_at(self.receive, 4 * received))
        wanted = [int(index) for index in argument.split(",")] if argument else range(received)
        self.say("values", values=[values[index] for index in wanted])
        return 0

    def do_async(self, argument: str) -> int:
        """ncclCommGetAsyncError; with seconds: until there is one."""
        end = time.monotonic() + float(argument or 0)
        error = ctypes.c_int()
        while True:
            self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(error))
            if error.value not in (0, IN_PROGRESS) or time.monotonic() >= end:
                return error.value
            time.sleep(POLL_S)

    # --- what processes do ---

    def do_sleep(self, argument: str) -> None:
        """sleep:SECONDS"""
        time.sleep(float(argument))

    def do_mark(self, argument: str) -> None:
        """Tell the others that we are here."""
        (self.folder / f"mark.{argument}").touch()

    def do_wait(self, argument: str) -> None:
        """Wait for a mark."""
        while not (self.folder / f"mark.{argument}").exists():
            time.sleep(POLL_S)

    def do_limit(self, argument: str) -> None:
        """limit:FILES, as `ulimit -n`"""
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(argument), int(argument)))

    def do_space(self, argument: str) -> None:
        """space:MEGABYTES more of address space than there are now, as `ulimit -v`."""
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + int(argument) * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    def do_conf(self, argument: str) -> None:
        """conf:NAME=VALUE, the one line of an nccl.conf that NCCL is to read."""
        file = self.folder / f"nccl.conf.{self.rank}"
        file.write_text(argument + "\n")
        os.environ["NCCL_CONF_FILE"] = str(file)

    def do_xml(self, argument: str) -> None:
        """xml:NAME=ROOT,VERSION, a file of one element that variable NAME names; without VERSION a broken one."""
        name, _, text = argument.partition("=")
        root, _, version = text.partition(",")
        file = self.folder / f"{name}.{self.rank}.xml"
        file.write_text(f'<{root} version="{version}">\n</{root}>\n' if version else f"<{root} <cpu\n")
        os.environ[name] = str(file)

    def do_raise(self, _: str) -> None:
        """An exception of the program."""
        raise ValueError("no such column: text_field")

    def do_stop(self, _: str) -> None:
        """SIGSTOP."""
        os.kill(os.getpid(), signal.SIGSTOP)

    def do_kill(self, _: str) -> None:
        """SIGKILL."""
        os.kill(os.getpid(), signal.SIGKILL)

    def do_segfault(self, _: str) -> None:
        """SIGSEGV."""
        os.kill(os.getpid(), signal.SIGSEGV)

    def do_exit(self, argument: str) -> None:
        """Leave without a word to NCCL."""
        os._exit(int(argument or 0))


def _size(n: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(n)


def _peer(argument: str) -> tuple[int, int]:
    peer, _, n = argument.partition(",")
    return int(peer), int(n or COUNT)


if __name__ == "__main__":
    os.dup2(1, 2)
    code = Rank(sys.argv[1:]).run()
    os._exit(code)  # no destructors: what a rank leaves behind is part of the case
