"""Two looks at all processes of distributed jobs on this host, by /proc and their connections alone.

A part of the streamed probe: standard library only, Python 3.6. Nothing is sent to the job; with `stacks`, py-spy,
where it is installed, reads some of its processes.
"""

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Set, Tuple

from ncclcheck.probes.live.machine import cgroup, connections
from ncclcheck.probes.live.machine.proc import TICKS, Proc, Raw, fields, number, status
from ncclcheck.probes.live.processes import find

_MOST_STACKS = 8  # processes; py-spy took 0.3 s for each
_STACK_LINES = 12  # frames, the innermost: chosen, from torch's collective up to the training loop
_PYSPY_S = 4  # py-spy reads a process in about a second where cores are idle; chosen
_PYSPY_ALL_S = 6.0  # for all of them: the whole look at one node shall take 15 s
# System calls whose first argument is a file: read, write, pread64, pwrite64, readv, writev, recvfrom, recvmsg,
# sendto, fcntl, flock, fsync, fdatasync. From the kernel: arch/x86/entry/syscalls, asm-generic/unistd.h.
_OF_A_FILE = {
    "x86_64": "0 1 17 18 19 20 45 47 44 72 73 74 75",
    "aarch64": "63 64 67 68 65 66 207 212 206 25 32 82 83",
}.get(platform.machine(), "").split()
_OPENS = {"x86_64": "257", "aarch64": "56"}.get(platform.machine(), "")  # openat
_NAME = 512  # bytes of a file's name; more would cross into a page that may not be there
_SAMPLE_S = 0.25  # between samples of the ranks' main threads: 15 us for one, and 24 of them in 6 s
_MOST_SAMPLED = 64  # ranks
_MOST_OPEN = 256  # descriptors of a rank that are looked through for locked files: chosen, 20 us each
_MOVED = 8192  # bytes; a rank that moves more goes on, and its connections are of no interest
# A thread that waits for Python's lock asks for it every 5 ms (sys.getswitchinterval): 190 times a second here.
_ASKS, _ASKS_MOST, _ASKS_CPU = 100.0, 230.0, 0.1
# Of a core: a thread that only asks for Python's lock had 0.004, one that computes 0.145 at load 16.
_COMPUTES = 0.05


def look(
    seconds: float,
    proc: Proc,
    stacks: bool,
    job: str = "",
    beside: Callable[[List[Raw]], None] = lambda _: None,
    inside: bool = False,
) -> Raw:
    """Everything that two looks show of this host. beside: what else is looked at then, given the processes.

    inside: the environment that processes have by now is read in their memory.
    """
    processes, unseen = find(proc, job, inside)
    beside(processes)
    begun, first = time.time(), snapshot(proc, processes)
    apart = sampled(proc, [process for process in processes if not process["helper"]], begun + seconds)
    last = snapshot(proc, processes)
    passed = max(time.time() - begun, 1e-3)
    looked = [compared(process, first[process["pid"]], last[process["pid"]], passed) for process in processes]
    for rank in looked:
        rank["apart"] = apart.get(rank["pid"], 0.0)
    if stacks:
        add_stacks([process for process in looked if not process["helper"]])
    own = sum(os.times()[:4])
    return {"host": socket.gethostname(), "seconds": passed, "cpu_s": own, "processes": looked, "unseen": unseen}


def sampled(proc: Proc, ranks: List[Raw], end: float) -> Dict[int, float]:
    """The share of the time until `end` in which each main thread waited for no thread and no poll."""
    pids, rounds, apart = [rank["pid"] for rank in ranks[:_MOST_SAMPLED]], 0, {}  # type: List[int], int, Dict[int, int]
    while time.time() < end:
        time.sleep(max(0.0, min(_SAMPLE_S, end - time.time())))
        rounds += 1
        for pid in pids:
            state = fields(proc.text(str(pid), "task", str(pid), "stat"))[0]
            where = proc.text(str(pid), "task", str(pid), "wchan") if state == "S" else ""
            if state in ("R", "D") or (state == "S" and not re.search("futex|poll|^0$", where)):
                apart[pid] = apart.get(pid, 0) + 1
    return {pid: round(float(count) / rounds, 3) for pid, count in apart.items()}


def snapshot(proc: Proc, processes: List[Raw]) -> Dict[int, Raw]:
    """One look at each process."""
    tables: Dict[str, Dict[int, Raw]] = {}
    return {process["pid"]: glance(proc, process, tables) for process in processes}


def glance(proc: Proc, raw: Raw, tables: Dict[str, Dict[int, Raw]]) -> Raw:
    """One look at one process."""
    pid = str(raw["pid"])
    stat, memory = fields(proc.text(pid, "stat")), status(proc, pid)
    io = dict(line.partition(":")[::2] for line in proc.text(pid, "io").splitlines())
    calls = proc.text(pid, "task", pid, "syscall").split()
    threads = {tid: fields(proc.text(pid, "task", tid, "stat")) for tid in proc.names(pid, "task")}
    holder, locked = holder_of(proc, pid)
    return {
        "state": stat[0] or "gone",
        "start": stat[19],
        "wchan": proc.text(pid, "task", pid, "wchan").strip("0\n"),
        "file": file_of(proc, pid, calls) or locked,
        "holder": holder,
        "stream": stream_of(proc, pid, calls),
        "ticks": number(stat[11]) + number(stat[12]),
        "threads": {tid: number(thread[11]) + number(thread[12]) for tid, thread in threads.items()},
        "slices": {} if raw["helper"] else {tid: slices(proc, pid, tid) for tid in threads},
        "stuck": sorted(
            proc.text(pid, "task", tid, "wchan").strip("0\n")
            for tid, thread in threads.items()
            if thread[0] == "D"
        ),
        "faults": number(stat[9]),
        "swap": number(memory.get("VmSwap")) * 1024,
        "read": number(io.get("rchar")),
        "written": number(io.get("wchar")),
        "waited_ns": waited_ns(proc.text(pid, "schedstat")),
        "runnable": {
            tid: waited_ns(proc.text(pid, "task", tid, "schedstat"))
            for tid, thread in threads.items()
            if thread[0] == "R"
        },
        "group": cgroup.counted(proc, pid),
        "sockets": connections.established(proc, pid, tables),
    }


def waited_ns(schedstat: str) -> int:
    """For how long a thread has waited for a core, ready to run."""
    return number((schedstat + " 0 0").split()[1])


def slices(proc: Proc, pid: str, tid: str) -> int:
    """How many times a thread was given a core; -1 where it does not wait for another thread."""
    if not re.search("futex|^0?$", proc.text(pid, "task", tid, "wchan")):
        return -1
    return number((proc.text(pid, "task", tid, "schedstat") + " 0 0 0").split()[2])


def file_of(proc: Proc, pid: str, calls: List[str]) -> str:
    """The file, or socket, that the main thread reads or writes at this moment, where the kernel tells."""
    if len(calls) > 2 and calls[0] == _OPENS:
        return _opened(proc, pid, int(calls[2], 16))
    if len(calls) < 2 or calls[0] not in _OF_A_FILE:
        return ""
    path = proc.link(pid, "fd", str(int(calls[1], 16)))
    return path if path.startswith(("/", "socket:[")) else ""


def _opened(proc: Proc, pid: str, at: int) -> str:
    """The name of the file that it is opening, such as a pipe that nobody else has open: it is in its memory."""
    try:
        with open(os.path.join(proc.root, pid, "mem"), "rb", buffering=0) as memory:
            memory.seek(at)
            name, end, _ = memory.read(_NAME).partition(b"\0")
    except (OSError, ValueError, OverflowError):
        return ""
    return os.path.join(proc.link(pid, "cwd"), name.decode(errors="replace")) if end and name else ""


def holder_of(proc: Proc, pid: str) -> Tuple[int, str]:
    """The process that holds the lock of a file that its main thread waits for, 0 for none; the file, if known.

    In /proc/locks who waits has the number of the lock that is held, and an arrow. Who asks again and again, as
    SQLite does, is not in there: it sleeps, and has a file open that another process alone has locked.
    """
    where = proc.text(pid, "task", pid, "wchan")
    if not re.search("lock|setlk|nanosleep", where):
        return 0, ""
    rows = [line.split() for line in proc.text("locks").splitlines()]
    if "nanosleep" in where:
        return _locked(proc, pid, [row for row in rows if len(row) > 5 and row[1] != "->" and row[3] == "WRITE"])
    waits = {row[0] for row in rows if len(row) > 5 and row[1] == "->" and row[5] == pid}
    peers = [row[4] for row in rows if len(row) > 5 and row[1] != "->" and row[0] in waits]
    return (int(peers[0]) if len(peers) == 1 and peers[0].isdigit() and peers[0] != pid else 0), ""


def _locked(proc: Proc, pid: str, rows: List[List[str]]) -> Tuple[int, str]:
    """Of the files that it has open the one that another process has locked for writing. By fdinfo, Linux 5.14."""
    inodes = {row[5].rpartition(":")[2] for row in rows if row[4] != pid}
    locks: Set[Tuple[int, str]] = set()
    for name in proc.names(pid, "fd")[:_MOST_OPEN] if inodes else []:
        info = proc.text(pid, "fdinfo", name)
        inode = re.search(r"^ino:\s*(\d+)$", info, re.MULTILINE)
        if inode is None or inode.group(1) not in inodes:
            continue
        mount = re.search(r"^mnt_id:\s*(\d+)$", info, re.MULTILINE)
        device = _device(proc, pid, mount.group(1) if mount else "")
        for row in rows:
            if row[4] != pid and row[4].isdigit() and row[5] == "%s:%s" % (device, inode.group(1)):
                locks.add((int(row[4]), proc.link(pid, "fd", name)))
    return locks.pop() if len(locks) == 1 else (0, "")


def _device(proc: Proc, pid: str, mount: str) -> str:
    """`08:01`, as /proc/locks has it: in hexadecimal, mountinfo in decimal numbers."""
    for line in proc.text(pid, "mountinfo").splitlines():
        words = line.split()
        if len(words) > 2 and words[0] == mount:
            major, _, minor = words[2].partition(":")
            return "%02x:%02x" % (number(major), number(minor))
    return ""


def stream_of(proc: Proc, pid: str, calls: List[str]) -> str:
    """Which of its standard streams, where that is a pipe, the main thread reads or writes at this moment."""
    if len(calls) < 2 or calls[0] not in _OF_A_FILE or int(calls[1], 16) > 2:
        return ""
    descriptor = int(calls[1], 16)
    return (
        ("stdin", "stdout", "stderr")[descriptor]
        if proc.link(pid, "fd", str(descriptor)).startswith("pipe:")
        else ""
    )


def compared(raw: Raw, first: Raw, last: Raw, seconds: float) -> Raw:
    """What changed between two looks. A pid that another process has by now is gone."""
    if last["start"] != first["start"]:
        last = dict(last, state="gone")
    before = {s["inode"]: s["moved"] for s in first["sockets"]}
    asked = connections.asks(last, last["sockets"]) if last["file"] == first["file"] else ""
    # But those to the store, which beat whether the job moves or not.
    used = [s for s in last["sockets"] if raw["port"] not in (s["from"], s["to"])]
    moved = [
        s["moved"] - before[s["inode"]]
        for s in used
        if s["moved"] is not None and before.get(s["inode"]) is not None
    ]
    still = sum(moved) < _MOVED and not raw["helper"]
    slices_ = [
        (count - first["slices"][tid]) / seconds
        for tid, count in last["slices"].items()
        if tid != str(raw["pid"])
        and count >= 0
        and first["slices"].get(tid, -1) >= 0
        and (last["threads"][tid] - first["threads"].get(tid, 0)) / TICKS / seconds < _ASKS_CPU
    ]
    shares = [
        (ticks - first["threads"].get(tid, ticks)) / TICKS / seconds for tid, ticks in last["threads"].items()
    ]
    # Where others have the cores, a thread that computes beside a main thread that only waits for it.
    queued = [
        (ns - first["runnable"][tid]) / 1e9 / seconds
        for tid, ns in last["runnable"].items()
        if tid in first["runnable"]
        and (last["threads"][tid] - first["threads"].get(tid, 0)) / TICKS / seconds > _COMPUTES
    ]
    grown = {name: max(0, count - first["group"][name]) for name, count in last["group"].items()}
    facts = {key: raw[key] for key in raw if key not in ("port", "slurm", "place", "agent", "elastic")}
    facts.update(
        was=first["state"],
        state=last["state"],
        was_wchan=first["wchan"],
        wchan=last["wchan"],
        file=last["file"] if last["file"] == first["file"] and not last["file"].startswith("socket") else "",
        holder=last.get("holder", 0) if last.get("holder") == first.get("holder") else 0,
        asks=asked,
        stream=last["stream"] if last["stream"] == first["stream"] else "",
        lock_waits=sum(_ASKS < rate < _ASKS_MOST for rate in slices_),
        stuck=[name for name in last["stuck"] if name in first["stuck"]],
        cpu=round(max(0, last["ticks"] - first["ticks"]) / TICKS / seconds, 3),
        threads=len(last["threads"]),
        running=sum(share > 0.5 for share in shares),
        faults=max(0, last["faults"] - first["faults"]),
        swap=last["swap"],
        read=max(0, last["read"] - first["read"]),
        written=max(0, last["written"] - first["written"]),
        waited=round(max(0.0, (last["waited_ns"] - first["waited_ns"]) / 1e9 / seconds, *queued), 3),
        throttled=round(max(0, grown["held_us"]) / 1e6 / seconds, 3),
        periods=grown["periods"],
        used_up=grown["throttled"],
        refused=grown["refused"],
        oom_kills=last["group"]["oom_kill"],
        sockets=len(used),
        closed=sum(s["state"] == connections.CLOSE_WAIT for s in used),
        unsent=sum(s["unsent"] for s in used),
        unread=sum(s["unread"] for s in used),
        moved=sum(moved) if moved or not used else None,
        connections=connections.used_last(used) if still else [],
        stack=[],
    )
    return facts


def add_stacks(ranks: List[Raw]) -> None:
    """By py-spy: those that do what few do, and one of each kind."""
    tool = shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))
    kinds: Dict[Any, List[Raw]] = {}
    for rank in ranks:
        kinds.setdefault((rank["job"], rank["state"], rank["wchan"], rank["cpu"] > 0.5), []).append(rank)
    alike = len(kinds) == len(
        {rank["job"] for rank in ranks}
    )  # nobody stands out: the difference is in the stacks
    asked = [member for same in sorted(kinds.values(), key=len) for member in (same if alike else same[:2])]
    end = time.time() + _PYSPY_ALL_S
    for process in asked[:_MOST_STACKS] if tool else []:
        if time.time() > end:
            break
        try:
            argv = [str(tool), "dump", "--nonblocking", "--pid", str(process["pid"])]
            printed = subprocess.run(
                argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_PYSPY_S, check=False
            ).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        process["stack"] = main_thread(printed.decode(errors="replace"))


def main_thread(dump: str) -> List[str]:
    """The frames of the main thread, the innermost first."""
    block = dump.partition('"MainThread"')[2].partition("\nThread")[0]
    return [line.strip()[:200] for line in block.splitlines()[1:] if line.startswith("    ")][:_STACK_LINES]
