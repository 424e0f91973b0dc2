"""What a node had run out of when something on it failed: which limit, how we know, and how it is raised.

A signal or the words of an error say which resource it may be; what was read on that very node says whether it is
that one. Where words alone speak the limit is named as it stands there, for whoever hits it prints nothing else.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

from ncclcheck.probes.facts import (
    Cluster,
    Filled,
    JobEnd,
    Node,
    RankState,
    RankUse,
    Resources,
    Silence,
    at,
)
from ncclcheck.reports.judgement.findings import Evidence, Owner, Remedy, admin, seen, you
from ncclcheck.reports.text.words.fold import size

# Exit statuses as torchrun and subprocess write them: minus the signal.
_SIGKILL, _SIGABRT, _SIGSEGV = -signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV
_SIGBUS, _SIGXCPU, _SIGXFSZ = -signal.SIGBUS, -signal.SIGXCPU, -signal.SIGXFSZ
# Share of RLIMIT_CPU that a rank must have used at its last look for SIGKILL to be the kernel's answer to it.
# Reasoned, not measured: the look may be half a second old, and each thread that runs uses as much in it.
_USED_UP = 0.6
_SMALL_STACK = 2**20  # bytes; reasoned: libraries and Python's frames take some hundred KiB, 8 MiB are usual
# Bytes; a limit that alone explains a crash without a word: a rank of gloo maps 820 MiB (HST014).
_TIGHT = 2 * 2**30
_FEW = 64 * 1024  # bytes left in a file system that was called full; reasoned: whoever failed wanted more

_TOO_LARGE = re.compile(r"File too large|\bEFBIG\b|\[Errno 27\]")
_NO_TASK = re.compile(
    r"can't start new thread|Resource temporarily unavailable|pthread_create|[Ff]ork\b.*(?:retry|unavailable)"
    r"|[Cc]annot fork|unable to fork|no further thread or process may be started|\[Errno 11\]"
)
_NO_FILE = re.compile(r"Too many open files|\bEMFILE\b|\[Errno 24\]")
_NO_MEMORY = re.compile(
    r"Cannot allocate memory|no memory for a further thread|can't allocate memory|MemoryError|bad_alloc"
    r"|\[Errno 12\]|(?<!CUDA )(?<!cuda )[Oo]ut of memory"
    r"|failed to map segment|not enough memory|cannot allocate memory"
)
_NO_ROOM = re.compile(r"No space left on device|\bENOSPC\b|\[Errno 28\]")
_NO_QUOTA = re.compile(r"[Dd]isk quota exceeded|\bEDQUOT\b|\[Errno 122\]")
_READ_ONLY = re.compile(r"Read-only file system|\bEROFS\b|\[Errno 30\]")
_PATH = re.compile(r"(?<![\w.])(/[\w./+-]{2,200})")


@dataclass(frozen=True)
class Exhausted:
    """A cause, as the end of a sentence about who failed for it."""

    words: str
    owner: Owner
    evidence: tuple[Evidence, ...]
    fix: tuple[Remedy, ...]


@dataclass(frozen=True)
class _FailedProcess:
    """Who failed: the facts of its node, what it said, and the signal that ended it (0: none that is known)."""

    node: Node | None
    had: Resources | None
    use: RankUse | None
    text: str
    signal: int = 0

    def limit(self, name: str) -> int:
        """A soft limit of the node; -1 where there is none, or where it was not read."""
        return -1 if self.node is None else _number(at(self.node, f"system.{name}"))


def _number(fact: object) -> int:
    return fact if isinstance(fact, int) else -1


def of_rank(cluster: Cluster, rank: RankState) -> Exhausted | None:
    """Why a rank was lost, as far as its node had run out of something."""
    ends = [end.detail for end in cluster.run.ends if end.node == rank.node]
    signal = rank.exit if rank.exit is not None and rank.exit < 0 else 0
    return _why(cluster, rank.node, "\n".join([rank.error, *ends]), signal, rank.pid)


def of_end(cluster: Cluster, end: JobEnd) -> Exhausted | None:
    """Why the torchrun of a node ended, or did not start."""
    return _why(cluster, end.node, end.detail, min(0, end.exit or 0))


def of_silence(cluster: Cluster, silence: Silence) -> Exhausted | None:
    """Why a node could not speak."""
    signal = min(0, silence.exit or 0) if silence.via == "agent" else 0
    return _why(cluster, silence.node, f"{silence.detail}\n{silence.printed}", signal)


def _why(cluster: Cluster, name: str, text: str, signal: int, pid: int | None = None) -> Exhausted | None:
    node = next((node for node in cluster.nodes if node.name == name), None)
    resources: list[Resources | None] = [
        resource for resource in cluster.measurements.resources if resource.node == name
    ]
    for had in resources or [None]:
        use = next((rank for rank in had.ranks if rank.pid == pid), None) if had else None
        case = _FailedProcess(node, had, use, text, signal)
        if exhausted := next((exhausted for ask in _CAUSES if (exhausted := ask(case))), None):
            return exhausted
    return None


def _cpu_time(case: _FailedProcess) -> Exhausted | None:
    limit = case.limit("cpu_seconds")
    used = case.use.cpu_s if case.use else case.had.seconds if case.had and not _oom(case.had) else 0.0
    if case.signal not in (_SIGXCPU, _SIGKILL) or limit == -1:
        return None
    if case.signal == _SIGKILL and used < _USED_UP * limit:
        return None
    return _limited(
        f"its CPU time was used up: {limit} s are allowed (RLIMIT_CPU, ulimit -t)",
        "t", "cpu", f"Max cpu time {limit} s",
        *([seen("/proc/PID/stat at the last look", f"{used:.1f} s of CPU time")] if case.use else []),
    )  # fmt: skip


def _file_size(case: _FailedProcess) -> Exhausted | None:
    limit = case.limit("file_size")
    may_be = limit != -1 or case.node is None
    if case.signal != _SIGXFSZ and not (may_be and _TOO_LARGE.search(case.text)):
        return None
    allowed = "the limit" if limit == -1 else size(limit)
    return _limited(
        f"a file may not grow beyond {allowed} (RLIMIT_FSIZE, ulimit -f)", "f", "fsize", f"Max file size {limit}"
    )


def _out_of_memory(case: _FailedProcess) -> Exhausted | None:
    """The kernel's OOM killer sends SIGKILL, and counts what it has killed."""
    had = case.had
    if case.signal != _SIGKILL or had is None:
        return None
    if had.oom_kills and had.memory_limit is not None and _was_full(had):
        return Exhausted(
            f"the kernel killed it for memory: its control group may have {size(had.memory_limit)} (memory.max)",
            "job",
            (
                seen("memory.events of the control group", f"oom_kill rose by {had.oom_kills}"),
                seen("memory.max", f"{had.memory_limit} bytes, at most used {had.memory_peak or 'unread'}"),
            ),
            (
                you(
                    "Ask for more memory, or use less of it.",
                    "sbatch --mem=0 ...   # all of each node",
                    "docker run --memory=0 ...",
                ),
                admin("Raise the limit of the group.", "cat /proc/PID/cgroup; systemctl show -p MemoryMax UNIT"),
            ),
        )
    if _oom(had):
        return Exhausted(
            "the kernel killed it for memory: the host had none left",
            "node",
            (seen("oom_kill", f"rose by {had.oom_kills} in the job's group, {had.host_oom_kills} on the host"),),
            (
                you("Use less memory on each node: fewer ranks, smaller batches, fewer workers.", "free -g"),
                admin("See who takes the memory there.", "dmesg -T | grep -i -A 3 'out of memory'",
                      "ps aux --sort -rss | head"),
            ),
        )  # fmt: skip
    return None


def _oom(had: Resources) -> int | None:
    """How many processes the kernel killed for memory: of the job's group where these are counted, else of all."""
    return had.host_oom_kills if had.oom_kills is None else had.oom_kills


def _was_full(had: Resources) -> bool:
    """Whether the group was at its limit: the kernel also kills in groups with room when the host has none."""
    return bool(had.memory_refused) or (had.memory_peak or 0) >= 0.9 * (had.memory_limit or 0)


def _killed(case: _FailedProcess) -> Exhausted | None:
    """SIGKILL, and the kernel has killed nothing for memory."""
    had = case.had
    if case.signal != _SIGKILL or had is None or _oom(had) != 0:
        return None
    return Exhausted(
        "not by the OOM killer, which killed nothing of the job: somebody or the job system sent the signal",
        "node",
        (seen("/proc/vmstat and memory.events", "oom_kill did not rise while the job ran"),),
        (
            you("Ask who ended it: kill, pkill, scancel --signal, a script that cleans up."),
            admin(
                "See what the job system and the audit log say.",
                "journalctl --since -10min | grep -iE 'kill|slurm'",
                "ausearch -k kill --start recent",
            ),
        ),
    )


def _tasks(case: _FailedProcess) -> Exhausted | None:
    if not _NO_TASK.search(case.text):
        return None
    had, processes = case.had, case.limit("processes")
    group = had.tasks_limit if had and had.tasks_limit is not None else case.limit("tasks")
    refused = had.tasks_refused if had else None
    if group != -1 and (refused or (refused is None and (processes == -1 or _is_root(case)))):
        return Exhausted(
            f"no further process or thread may be started: the control group may have {group} (pids.max)",
            "job",
            (seen("pids.max", group), seen("pids.events", f"refused {refused or 'at least 1'} times")),
            (
                you("Give the container or job more of them.", "docker run --pids-limit=-1 ...",
                    "export OMP_NUM_THREADS=1"),
                admin("Raise the limit.", "systemctl set-property UNIT TasksMax=infinity"),
            ),
        )  # fmt: skip
    if case.node is None:
        return Exhausted(
            "no further process or thread may be started there (RLIMIT_NPROC, ulimit -u, or pids.max)",
            "job",
            (seen("said", case.text.strip()[-200:]),),
            (
                you("Raise it in the shell or container that starts the job.", "ulimit -u $(ulimit -Hu)",
                    "docker run --pids-limit=-1 ..."),
                admin("See which one it is.", "cat /sys/fs/cgroup/pids.max; ulimit -u"),
            ),
        )  # fmt: skip
    if processes == -1 or _is_root(case):
        return None
    return _limited(
        f"no further process or thread may be started: this user may have {processes} (RLIMIT_NPROC, ulimit -u)",
        "u", "nproc", f"Max processes {processes}",
    )  # fmt: skip


def _is_root(case: _FailedProcess) -> bool:
    return case.limit("uid") == 0


def _files(case: _FailedProcess) -> Exhausted | None:
    if not _NO_FILE.search(case.text):
        return None
    if "open files in system" in case.text:
        return Exhausted(
            "the whole host has no more open files to give (fs.file-max)",
            "node",
            (seen("said", "Too many open files in system"),),
            (admin("Raise it.", "sysctl -w fs.file-max=9223372036854775807", "cat /proc/sys/fs/file-nr"),),
        )
    soft = -1 if case.node is None else _number(at(case.node, "host.nofile.soft"))
    allowed = "no more" if soft == -1 else f"{soft}"
    return _limited(
        f"it may have {allowed} open files (RLIMIT_NOFILE, ulimit -n)", "n", "nofile", f"Max open files {soft}"
    )


def _memory(case: _FailedProcess) -> Exhausted | None:
    """An allocation that was refused, by the tightest limit that is known; a thread's stack is one, too."""
    refused = bool(_NO_MEMORY.search(case.text))
    if not refused and case.signal not in (_SIGABRT, _SIGSEGV, _SIGBUS) and not _NO_TASK.search(case.text):
        return None
    space, data = (
        limit if refused or limit < _TIGHT else -1 for limit in map(case.limit, ("address_space", "data"))
    )
    if data != -1 and (space == -1 or data <= space):
        return _limited(
            f"it got no more memory: {size(data)} of data are allowed (RLIMIT_DATA, ulimit -d)",
            *("d", "data", f"Max data size {data}"),
        )
    if space != -1:
        return _limited(
            f"it got no more memory: {size(space)} of addresses are allowed (RLIMIT_AS, ulimit -v)",
            *("v", "as", f"Max address space {space}"),
        )
    if refused and case.node is None:
        letter, name = ("d", "data") if "RLIMIT_DATA" in case.text else ("v", "as")
        return _limited(
            "it got no memory: a limit (RLIMIT_AS, ulimit -v; RLIMIT_DATA, ulimit -d), or the host is full",
            *(letter, name, "not read, for it never spoke"),
        )
    had = case.had
    if refused and had and had.memory_limit is not None and had.memory_refused:
        return Exhausted(
            f"it got no more memory: its control group may have {size(had.memory_limit)} (memory.max)",
            "job",
            (seen("memory.events", f"memory.max was reached {had.memory_refused} times"),),
            (you("Ask for more memory.", "sbatch --mem=0 ...   # all of each node"),
             admin("Raise the limit of the group.", "cat /proc/PID/cgroup")),
        )  # fmt: skip
    return None


def _room(case: _FailedProcess) -> Exhausted | None:
    """A file system that took no more. SIGBUS: memory behind a file, for which no room is left."""
    full, quota, closed = (pattern.search(case.text) for pattern in (_NO_ROOM, _NO_QUOTA, _READ_ONLY))
    if not (full or quota or closed or case.signal == _SIGBUS):
        return None
    places = case.had.places if case.had else []
    short = [place for place in places if place.free < _FEW or place.inodes_free == 0]
    if case.signal == _SIGBUS and not (full or quota or closed):
        short = [filled for filled in short if filled.name == "shared memory"]
        if not short:
            return None
    where = short[0].path if short else _named(case.text)
    if quota:
        what, do = f"the user's quota is used up{where and f' at {where}'}", "quota -s; lfs quota -h ."
    elif closed:
        where = next((place.path for place in places if place.read_only), "") or _named(case.text)
        what, do = f"the file system{where and f' of {where}'} is mounted read-only", f"findmnt -T {where or '.'}"
    else:
        spent = "no inode is left" if short and short[0].inodes_free == 0 else "no room is left"
        what, do = f"{spent}{where and f' in {where}'}", f"df -h {where or '.'}; df -i {where or '.'}"
    return Exhausted(
        what,
        "node",
        tuple(seen(filled.path, _left(filled)) for filled in short or places) or (seen("said", case.text[:200]),),
        (
            you("Make room there, or send files elsewhere.", do, "export TMPDIR=/path/with/room"),
            admin("Clean it, enlarge it or mount it for writing.", f"mount | grep {where or '/'}"),
        ),
    )


def _named(text: str) -> str:
    """The path that an error names beside the words of the kernel."""
    for line in text.splitlines():
        if any(pattern.search(line) for pattern in (_NO_ROOM, _NO_QUOTA, _READ_ONLY)) and (
            path := _PATH.search(line)
        ):
            return path[1].rstrip(".:")
    return ""


def _left(filled: Filled) -> str:
    inodes = "" if filled.inodes_free is None else f", {filled.inodes_free} inodes"
    return f"{size(filled.free)} of {size(filled.size)} free{inodes}{', read-only' if filled.read_only else ''}"


def _stack(case: _FailedProcess) -> Exhausted | None:
    limit = case.limit("stack")
    if case.signal != _SIGSEGV or not 0 <= limit < _SMALL_STACK:
        return None
    return _limited(
        f"its stack may have {size(limit)} only (RLIMIT_STACK, ulimit -s)",
        *("s", "stack", f"Max stack size {limit}"),
        lift="8192",
    )


def _limited(words: str, letter: str, name: str, line: str, *more: Evidence, lift: str = "unlimited") -> Exhausted:
    """One of setrlimit's: the shell that starts the job lifts it as far as the hard limit goes."""
    return Exhausted(
        words,
        "job",
        (seen("/proc/self/limits", line), *more),
        (
            you(
                f"Lift it in the shell that starts the job there; `ulimit -H{letter}` is how far it may go.",
                f"ulimit -{letter} {lift}",
            ),
            admin(
                "Take the hard limit away.",
                f"grep -rwE {name} /etc/security/limits.conf /etc/security/limits.d",
                f"prlimit --{name}=unlimited --pid PID   # of the shell or the daemon that starts the job",
            ),
        ),
    )


_CAUSES: tuple[Callable[[_FailedProcess], Exhausted | None], ...] = (
    *(_cpu_time, _file_size, _out_of_memory, _memory, _tasks, _files, _room, _stack, _killed),
)
