"""Put on PYTHONPATH by `ncclcheck watch`: each Python process of the job says into the box why it ended.

Standard library only, Python 3.8 and later. What fails in here is left undone: no start may fail by it. The user's
own sitecustomize is run as it would be without this one.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing itself takes longer to import than all of this
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "FLUX_TASK_RANK", "PMI_RANK", "SLURM_PROCID")


def _box() -> str:
    return os.environ.get("NCCLCHECK_BOX", "")


def _chain() -> None:
    """Import the next sitecustomize on the path, as if this folder were not there."""
    import importlib.machinery
    import importlib.util

    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _rank() -> int:
    """By torch where it knows, else by the launcher's variables; -1 for none."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_initialized():
            return int(distributed.get_rank())
    except Exception:
        pass
    for name in _RANKS:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return -1


def _masked(text: str) -> str:
    """Without what looks like a password or a token. The report masks by all shapes that it knows."""
    import re

    text = text if len(text) <= 2000 else text[:1000] + " ... " + text[-1000:]
    text = re.sub(r"://[^\s/@]+@", "://***@", text)
    words = r"(?i)([\w-]*(?:token|secret|passw\w*|pwd|api[_-]?key|access[_-]?key|authorization|bearer|cookie|jwt))"
    return re.sub(words + r"([\"']?\s*[=: ]\s*)\S+", r"\1\2***", text)


def _frames(trace: TracebackType | None) -> list[list[str | int]]:
    """[file, line, function] of at most 24 frames, the innermost ones; no value of any variable."""
    frames: list[list[str | int]] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append([code.co_filename[:300], trace.tb_lineno, code.co_name[:100]])
        trace = trace.tb_next
    return frames[-24:]


def _calls(frame: Any) -> list[list[str | int]]:
    """The same of a frame that runs, the innermost first."""
    places: list[list[str | int]] = []
    while frame is not None and len(places) < 24:
        places.append([frame.f_code.co_filename[:300], frame.f_lineno, frame.f_code.co_name[:100]])
        frame = frame.f_back
    return places


_LIBRARY = ("/lib/python3", "site-packages", "dist-packages", "<frozen")
# Values of one array that are looked through, a millisecond's work, and names that are told: chosen, one line.
_MOST_VALUES, _MOST_NAMES = 1 << 20, 16


def _not_finite(trace: TracebackType | None) -> list[str]:
    """Names of the program's own variables that are NaN or infinite where it failed; never a value.

    After a collective has spread a NaN all ranks fail alike: these names tell where it was before.
    """
    names: list[str] = []
    while trace is not None and len(names) < _MOST_NAMES:
        if not any(part in trace.tb_frame.f_code.co_filename for part in _LIBRARY):
            for name, value in list(trace.tb_frame.f_locals.items())[:200]:
                try:
                    if name not in names and _is_not_finite(value):
                        names.append(str(name)[:60])
                except BaseException:
                    pass
        trace = trace.tb_next
    return names[:_MOST_NAMES]


def _is_not_finite(value: Any) -> bool:
    kind = type(value)
    if kind is float:
        return bool(value - value != 0.0)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and (kind is numpy.ndarray or isinstance(value, numpy.floating)):
        looked = value.dtype.kind == "f" and value.size <= _MOST_VALUES
        return bool(looked and not numpy.isfinite(value).all())
    # Of torch's own types alone: another one's may begin a collective.
    if torch is None or kind not in (torch.Tensor, torch.nn.Parameter) or not value.is_floating_point():
        return False
    if value.device.type == "cpu":
        return bool(value.numel() <= _MOST_VALUES and not torch.isfinite(value.detach()).all())
    # On a device that may hang nothing is waited for, and no memory is asked for.
    idle = value.device.type == "cuda" and value.numel() == 1
    return bool(idle and torch.cuda.current_stream(value.device).query() and _is_not_finite(value.item()))


_spare: list[int] = []  # descriptors for a process that has used up all others


def _spare_files() -> None:
    """Two that are given up when there is something to say: what it takes imports modules, and opens a file."""
    for _ in range(2):
        _spare.append(_high(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 20))  # below any limit


def _make_room() -> None:
    while _spare:
        file = _spare.pop()
        status, usual = os.fstat(file), os.stat(os.devnull)
        if (status.st_ino, status.st_rdev) == (usual.st_ino, usual.st_rdev):  # else somebody has closed ours
            os.close(file)


def _say(box: str, record: dict[str, object]) -> None:
    """One line at the end of this process's own file."""
    import json

    _write(box, json.dumps(record))


def _write(box: str, line: str) -> None:
    _put(box, "", os.O_APPEND, line)


def _put(box: str, kind: str, how: int, text: str) -> str:
    """Into this process's file of that kind; `how` it is opened: appended to, emptied, or only if it is new."""
    path = os.path.join(box, "said", "%d%s.jsonl" % (os.getpid(), kind))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | how | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(file, (text + "\n").encode("ascii", "backslashreplace"))
    finally:
        os.close(file)
    return path


def _for_torchrun(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """TorchElastic's error file, as @record would write it; none is written over."""
    import json
    import time
    import traceback

    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or "RANK" not in os.environ:
        return
    text = "".join(traceback.format_exception(kind, error, trace))[-20000:]
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    message = "%s: %s" % (kind.__name__, str(error)[:2000])
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, json.dumps({"message": {"message": message, "extraInfo": extra}}).encode())
    finally:
        os.close(file)


def _raised(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None, own: int, thread: str = ""
) -> dict[str, object]:
    """What is said of an exception that nobody caught. own: the process that put in the hook."""
    cause = error
    for _ in range(16):
        hidden = None if cause.__suppress_context__ else cause.__context__
        cause = cause.__cause__ or hidden or cause
    return {
        "t": _now(),
        "what": "raised",
        "pid": os.getpid(),
        "forked_from": own if own != os.getpid() else 0,
        "rank": _rank(),
        "host": os.uname().nodename,
        "type": kind.__name__,
        "message": _masked(str(error)),
        "frames": _frames(trace),
        "cause": "" if cause is error else "%s: %s" % (type(cause).__name__, _masked(str(cause))[:500]),
        "thread": thread,
        "not_finite": _not_finite(trace) if not thread and _is_rank() else [],
        **_taken(error, trace),
    }


def _taken(error: BaseException, trace: TracebackType | None) -> dict[str, object]:
    """Of a port that was in use: which, and who listens there, where that can be seen."""
    import errno
    import re

    of_torch = re.search(r"port: (\d{1,5}),.*EADDRINUSE", str(error)[:2000], re.DOTALL)  # DistNetworkError
    if not of_torch and not (isinstance(error, OSError) and error.errno == errno.EADDRINUSE):
        return {}
    port = int(of_torch.group(1)) if of_torch else 0
    while trace is not None and not of_torch:
        for name, value in [*trace.tb_frame.f_locals.items()][:200]:
            address = value if type(value) is tuple else getattr(value, "server_address", None)
            if type(address) is tuple and len(address) > 1 and type(address[1]) is int:
                port = address[1]
            elif type(value) is int and "port" in name.lower():
                port = value
        trace = trace.tb_next
    if not 0 < port < 1 << 16:
        return {}
    pid = _listener(port)
    try:
        with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as file:
            return {"port": port, "holder": pid, "holds": file.read(32).strip()}
    except OSError:
        return {"port": port}


def _listener(port: int) -> int:
    """The process that listens on a port of TCP; 0 where it cannot be seen."""
    sockets: set[str] = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file]
        except OSError:
            continue
        listens = [row for row in rows if len(row) > 9 and row[3] == "0A"]
        sockets.update("socket:[%s]" % row[9] for row in listens if int(row[1].rpartition(":")[2], 16) == port)
    for pid in os.listdir("/proc") if sockets else ():
        try:
            names = os.listdir("/proc/%s/fd" % pid) if pid.isdigit() else []
        except OSError:
            continue
        for name in names:
            try:
                if os.readlink("/proc/%s/fd/%s" % (pid, name)) in sockets:
                    return int(pid)
            except OSError:
                pass
    return 0


def _now() -> float:
    import time

    return time.time()


def _is_rank() -> bool:
    return _rank() >= 0


def _alarm(box: str) -> None:
    """The watcher asks the others where they are, before their launcher ends them."""
    try:
        file = os.open(os.path.join(box, "alarm"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # nobody watches
        return
    try:
        os.write(file, b"!")
    finally:
        os.close(file)


def _hook_exceptions(box: str) -> None:
    before = sys.excepthook
    own = os.getpid()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            # Python ends itself by SIGINT after this, unless source was evaluated meanwhile, as imports do.
            before(kind, error, trace)
            return
        try:
            _make_room()
            if _is_rank() and own == os.getpid():
                _alarm(box)
            record = _raised(kind, error, trace, own)
            _say(box, record)
            _ends.clear()  # it has told why
            _for_torchrun(kind, error, trace)
        except BaseException:
            pass
        before(kind, error, trace)

    sys.excepthook = hook


def _hook_threads(box: str) -> None:
    """A thread that dies takes nobody with it: the program waits for it later, or goes on without."""
    import threading

    before = threading.excepthook
    own = os.getpid()
    left = [None] * 16  # a program may lose a thread a request

    def hook(args: Any) -> None:
        try:
            if left and not issubclass(args.exc_type, SystemExit):
                left.pop()
                _make_room()
                name = (args.thread.name if args.thread is not None else "") or "?"
                _say(box, _raised(args.exc_type, args.exc_value, args.exc_traceback, own, name[:100]))
        except BaseException:
            pass
        before(args)

    threading.excepthook = hook


# pid -> how its program has asked to end with exit code 0, empty where it has not; none where it has told why
_ends: dict[int, dict[str, object]] = {}
_ranks: dict[int, int] = {}  # pid -> the rank that it became after its start


def _asked_to_end(code: object, frame: Any, own: int) -> dict[str, object]:
    """What is said of a call of sys.exit() or os._exit() in this frame."""
    kind, error, trace = sys.exc_info()
    record: dict[str, object] = {"frames": []}
    if kind is not None and error is not None and not isinstance(error, SystemExit):
        record = _raised(kind, error, trace, own)
    number = code if isinstance(code, int) else 0 if code is None else 1
    record.update(t=_now(), what="left", pid=os.getpid(), rank=_rank(), code=number & 0xFF, at=_calls(frame))
    return record


def _hook_exits(box: str) -> None:
    """Where a program ends itself, and of which exception that it had caught; sys.excepthook is not told."""
    import _thread
    import atexit

    main, own = _thread.get_ident(), os.getpid()
    left = [None] * 4  # a program may ask for its end and go on
    leave, leave_now = sys.exit, os._exit

    def say(record: dict[str, object]) -> None:
        _make_room()
        if record["code"]:
            _alarm(box)
        _say(box, record)

    def note(code: object, now: bool) -> None:
        frame = sys._getframe(2)
        if "multiprocessing" in frame.f_code.co_filename or not _is_rank():  # as each of its processes ends
            _ends.pop(own if code else 0, None)
            return
        record = _asked_to_end(code, frame, own)
        if not now and not record["code"]:
            _ends[os.getpid()] = record
        elif left:  # at once: its launcher may end it while Python takes itself down
            left.pop()
            _ends.pop(own, None)
            say(record)

    def exit(code: Any = None, /) -> Any:
        try:
            if _thread.get_ident() == main:
                note(code, False)
        except BaseException:
            pass
        leave(code)

    def _exit(status: Any) -> Any:
        try:
            note(status, True)
        except BaseException:
            pass
        leave_now(status)

    def at_end() -> None:
        try:
            if os.getpid() != own or own not in _ends or not os.path.isdir(box):
                return
            if own in _ranks or (_is_rank() and "--multiprocessing-fork" not in getattr(sys, "orig_argv", ())):
                if _ends[own]:
                    say(_ends[own])
                else:  # the usual end; json takes as long to import as all of this
                    line = '{"t": %.3f, "what": "left", "pid": %d, "rank": %d, "code": 0, "frames": [], "at": []}'
                    _write(box, line % (_now(), own, _ranks.get(own, _rank())))
        except BaseException:
            pass

    _ends[own] = {}
    exit.__doc__, _exit.__doc__ = leave.__doc__, leave_now.__doc__
    sys.exit, os._exit = exit, _exit
    atexit.register(at_end)


# Who stops others on purpose, as a launcher its ranks, torch's own and Python's: that is no news.
_STOP_OTHERS = (
    "torch/distributed/elastic",
    "torch/multiprocessing",
    "/multiprocessing/",
    "accelerate",
    "deepspeed",
)


_PROGRAMS = 16  # started programs that are remembered, the last ones: chosen


def _hook_calls(box: str) -> None:
    """Which process of the job has sent a signal, and in which line: the kernel tells nobody afterwards.

    And which programs it has started, without what they were given: one that lives for milliseconds, as a script
    that tidies up, is seen by nobody else. By audit events, for these add no frame to what a program prints.
    """
    left = [None] * 16
    started: list[str] = []
    signals, programs = ("os.kill", "os.killpg"), ("os.system", "subprocess.Popen")
    events = frozenset(signals + programs)

    def note(event: str, given: Any) -> None:
        if event in programs:
            _note_program(box, started, _calls(sys._getframe(2)), given[event == "subprocess.Popen"])
            return
        to, number, group = int(given[0]), int(given[1]), event == "os.killpg" or int(given[0]) <= 0
        if not left or not number or (to == os.getpid() and not group):
            return
        places = _calls(sys._getframe(2))
        if any(part in str(at[0]) for at in places for part in _STOP_OTHERS):
            return
        left.pop()
        to = -to if to < -1 else to if to > 0 else os.getpgrp()
        record = {"t": _now(), "what": "sent", "pid": os.getpid(), "rank": _rank(), "number": number}
        _say(box, {**record, "to": to, "group": group, "at": places})

    def heard(event: str, given: Any) -> None:
        if event in events:
            try:
                note(event, given)
            except BaseException:
                pass

    sys.addaudithook(heard)


def _note_program(box: str, started: list[str], places: list[list[str | int]], argv: Any) -> None:
    """One more in this process's own list of them, which is written anew."""
    import json

    if any(part in str(at[0]) for at in places for part in _STOP_OTHERS):
        return
    words = os.fsdecode(argv).split() if isinstance(argv, (str, bytes)) else [os.fsdecode(word) for word in argv]
    if len(words) > 2 and words[1] == "-c" and words[0].endswith("sh"):
        words = words[2].split()
    name = os.path.basename(words[0])
    if name in ("sh", "bash", "dash", "zsh", "ksh", "sudo", "env") or name.startswith("python"):
        name += " " + next((word for word in words[1:] if word[:1] != "-" and "=" not in word), "")
    record = {"t": _now(), "what": "began", "pid": os.getpid(), "rank": _rank(), "command": _masked(name)[:100]}
    started.append(json.dumps({**record, "at": places}))
    del started[:-_PROGRAMS]
    _put(box, ".began", os.O_TRUNC, "\n".join(started))


def _high(low: int, least: int = 400) -> int:
    """The same file by a number that a program which closes what it does not know will not take again."""
    import fcntl
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    number = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, least if most > 2 * least or most < 0 else most // 2)
    os.close(low)
    return number


def _watch_faults(box: str) -> None:
    """A stack of all threads when the process crashes, or when the watcher asks by a real-time signal."""
    import atexit
    import faulthandler
    import signal

    path = os.path.join(box, "fault", "%d.txt" % os.getpid())
    file = _high(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    if not faulthandler.is_enabled():
        faulthandler.enable(file)
    number = int(os.environ.get("NCCLCHECK_BOX_SIGNAL", "0"))
    if number and signal.getsignal(number) == signal.SIG_DFL:
        faulthandler.register(number, file)
    own = os.getpid()

    def tidy() -> None:
        try:
            if os.getpid() == own and os.fstat(file).st_size == 0:
                os.unlink(path)
        except OSError:  # the box of a job that ended well is gone
            pass

    atexit.register(tidy)


def _older_names() -> None:
    """What torch before 2.10 calls its variables; newer ones complain of these names."""
    newer = {
        "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    }
    wanted = [name for name in newer if name in os.environ and newer[name] not in os.environ]
    if not wanted or "RANK" not in os.environ:
        return
    for folder in sys.path:
        try:
            with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8") as file:
                text = file.read(2000)
        except OSError:
            continue
        version = text.split("__version__ = ", 1)[-1].strip("'\" ").split(".")
        if (int(version[0]), int(version[1])) < (2, 10):
            for name in wanted:
                os.environ[newer[name]] = os.environ[name]
        return


def _serve(box: str) -> None:
    """Torch's worker server on a socket in the box: it gives the Flight Recorder without the GIL."""
    import ctypes

    server = getattr(sys.modules["torch._C._distributed_c10d"], "_WorkerServer", None)
    if server is None:
        return
    folder = os.open(os.path.join(box, "server"), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    heard, write_end = os.pipe()
    os.set_blocking(heard, False)
    usual = os.dup(2)
    try:
        os.dup2(write_end, 2)  # torch says there that it listens, and the job's output is to be as without us
        try:
            # By a descriptor: the path of a socket has room for 107 bytes.
            listener = server("/proc/self/fd/%d/%d" % (folder, os.getpid()), -1)
            # Its destructor, which would say something too, is never run.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(listener))
        finally:
            os.dup2(usual, 2)
        try:
            lines = os.read(heard, 65536).splitlines(True)
        except BlockingIOError:
            lines = []
        others = b"".join(line for line in lines if b"WorkerServer" not in line)
        if others:
            os.write(2, others)
    finally:
        for descriptor in (folder, heard, write_end, usual):
            os.close(descriptor)


def _join(box: str, module: Any) -> None:
    """Once it is in a group a process serves, and says its rank where its environment did not (mp.spawn, for one).

    Not before, for what ranks do before their group parts them: the store that torchrun keeps over restarts holds
    the addresses of the attempt before (torch 2.13, dynamic_rendezvous.py), and a rank that comes well before its
    peers reads these. `module`: torch.distributed.distributed_c10d.
    """
    before, known, done = module._update_default_pg, _is_rank(), set()

    def then(group: Any) -> Any:
        before(group)
        if group is None or os.getpid() in done:
            return
        done.add(os.getpid())
        try:
            if not known:
                _tell_rank(box, group)
            _serve(box)
        except BaseException:
            pass

    module._update_default_pg = then


def _tell_rank(box: str, group: Any) -> None:
    line = '{"what": "rank", "pid": %d, "rank": %d, "world": %d}'
    _put(box, ".rank", os.O_EXCL, line % (os.getpid(), group.rank(), group.size()))
    _ranks[os.getpid()] = group.rank()


def _tell_lock(box: str, module: Any) -> None:
    """Which file a rank waits for to go, as torch does before it builds an extension that another one builds."""
    before = module.FileBaton.wait

    def wait(self: Any) -> Any:
        path = ""
        try:
            import json

            words = {"what": "lock", "pid": os.getpid(), "file": os.path.abspath(self.lock_file_path)[:1000]}
            path = _put(box, ".lock", os.O_TRUNC, json.dumps(words))
        except BaseException:
            pass
        try:
            return before(self)
        finally:
            try:
                os.unlink(path)
            except BaseException:
                pass

    wait.__doc__ = before.__doc__
    module.FileBaton.wait = wait


def _once_imported(box: str) -> None:
    """What is done when a process has imported a module of torch's; nothing is imported for it."""
    import importlib.machinery

    then: dict[str, Any] = {"torch.utils.file_baton": _tell_lock}
    if not _is_rank() or "--multiprocessing-fork" not in getattr(sys, "orig_argv", ()):  # else a loader's worker
        then["torch.distributed.distributed_c10d"] = _join

    class Later:
        def find_spec(self, name: str, path: Any = None, _: Any = None) -> Any:
            if name not in then:
                return None
            do = then.pop(name)
            if not then:
                sys.meta_path.remove(self)
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            if spec is not None and spec.loader is not None:
                load = spec.loader.exec_module

                def exec_module(module: Any) -> None:
                    load(module)
                    try:
                        do(box, module)
                    except BaseException:
                        pass

                spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    sys.meta_path.insert(0, Later())


class _PrintedLines:
    """What one stream prints, line by line: a checksum of each goes to the wrapper before the line itself.

    By these the wrapper knows in its copy whose line it was. Nothing waits for it, and the output is as it is.
    """

    def __init__(self, box: str, stream: int) -> None:
        import errno
        import struct
        import zlib

        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        self.file = _high(os.open(os.path.join(box, "lines"), flags))
        self.left = b""  # of a line whose end has not been printed yet
        # No name of a module is looked up later: there are none when Python ends, and prints what is left.
        self.crc, self.pack, self.os = zlib.crc32, struct.pack, os
        self.known = [(descriptor, self.identity(descriptor)) for descriptor in (self.file, stream)]
        self.nobody = (errno.EAGAIN, errno.EBADF, errno.EIO, errno.ENOSPC, errno.EPIPE)

    def identity(self, file: int) -> tuple[int, int]:
        status = self.os.fstat(file)
        return status.st_dev, status.st_ino

    def tell(self, data: bytes) -> None:
        pieces = (self.left + data).replace(b"\r", b"\n").split(b"\n")
        self.left = pieces.pop()[-8192:]
        sums = [self.crc(piece) for piece in pieces if piece]
        try:
            if not sums or any(self.identity(descriptor) != identity for descriptor, identity in self.known):
                return  # somebody has put another file in its place
            for at in range(0, len(sums), 1000):  # a write of at most 4096 bytes comes in one piece
                some = sums[at : at + 1000]
                self.os.write(self.file, self.pack("ii%dI" % len(some), self.os.getpid(), len(some), *some))
        except OSError as error:
            if error.errno not in self.nobody:
                raise  # by a handler of the user's, for a signal that came now


def _tell_lines(box: str) -> None:
    """Let sys.stdout and sys.stderr say whose lines they are, where they lead to the wrapper."""
    import io

    wanted = os.environ.get("NCCLCHECK_BOX_OUTPUT", "").split()
    if not wanted or not _is_rank():
        return
    usual = io.FileIO.write
    for name in ("stdout", "stderr"):
        text = getattr(sys, name)
        status = os.fstat(text.fileno())
        if "%d:%d" % (status.st_dev, status.st_ino) not in wanted:
            continue

        tell = _PrintedLines(box, text.fileno()).tell

        class FileIO(io.FileIO):
            def write(self, data: Any, _tell: Any = tell, _usual: Any = usual) -> Any:
                _tell(bytes(data))
                return _usual(self, data)

        raw = FileIO(text.fileno(), "wb", closefd=False)
        raw.name = "<%s>" % name
        buffer: Any = raw
        if type(text.buffer) is io.BufferedWriter:
            size = text.buffer.__sizeof__() - io.BufferedWriter.__basicsize__
            buffer = io.BufferedWriter(raw, size if size > 0 else io.DEFAULT_BUFFER_SIZE)
        through = getattr(text, "write_through", False)
        new = io.TextIOWrapper(buffer, text.encoding, text.errors, "\n", text.line_buffering, through)
        new.mode = "w"  # type: ignore[misc]
        setattr(sys, name, new)
        setattr(sys, "__%s__" % name, new)


def _begin() -> None:
    box = _box()
    if not os.path.isdir(box):
        return
    hooks = _hook_exceptions, _hook_threads, _hook_exits, _hook_calls
    for step in (*hooks, _watch_faults, _tell_lines, _once_imported):
        try:
            step(box)
        except BaseException:
            pass
    for also in (_older_names, _spare_files):
        try:
            also()
        except BaseException:
            pass


try:
    _begin()
except BaseException:
    pass
_chain()
