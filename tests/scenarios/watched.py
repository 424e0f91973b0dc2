"""Jobs that fail, stall or do well under `ncclcheck watch`: who is named, beside what torchrun's own words name.

`python -m tests.scenarios.watched [KIND...]` runs them and prints the table.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT, environment

JOB = str(ROOT / "tests/jobs/watched_job.py")
_LIMIT_S = 240.0
_CGROUP = Path("/sys/fs/cgroup/memory")
NEED_MEMORY = ("oom", "worker-oom")  # a cgroup with little of it
_FULL = 2**22  # bytes of the disk that is to be full


class Case(NamedTuple):
    """One job of three ranks. code: of the check that must head the page; words: what must stand in it.

    who: rank 1 or the job. stalls: it is ended by --on-stall kill. outside: what the examiner does to it.
    how: it is started. code: empty for a healthy one, of which nothing may be said.
    """

    kind: str
    code: str
    words: str
    who: str = "rank 1"
    stalls: bool = False
    outside: str = ""
    exit: int | None = 1
    timeout: int = 60
    how: str = "torchrun"

    @property
    def sound(self) -> bool:
        """Nothing may be said of it."""
        return not self.code and not self.words

    @property
    def name(self) -> str:
        """For people."""
        by = f" by {self.how}" if self.how != "torchrun" else ""
        return f"{self.kind}{by}{' by ' + self.outside if self.outside else ''}{' (stall)' if self.stalls else ''}"


CASES = [
    Case("raise", "BOX004", "labels do not fit"),
    Case("cause", "BOX004", "learning_rate"),
    Case("shape", "BOX004", "inconsistent tensor size"),
    Case("index", "BOX004", "index out of range"),
    Case("nan", "BOX004", "loss is nan"),
    Case("checkpoint", "BOX004", "size mismatch"),
    Case("import", "BOX004", "no_such_module"),
    Case("file", "BOX004", "shard-00017"),
    Case("limit", "BOX004", "MemoryError"),
    Case("oom", "BOX001", "want of memory"),
    Case("full", "BOX004", "No space left"),
    Case("kill", "BOX002", "SIGKILL"),
    Case("segv", "BOX003", "SIGSEGV"),
    Case("abort", "BOX003", "SIGABRT"),
    Case("exit3", "BOX005", "exit code 3"),
    Case("hard-exit", "BOX005", "exit code 7"),
    Case("quiet-exit", "BOX005", "exit code 1"),
    Case("leave", "BOX005", "exit code 0"),
    Case("worker-killed", "BOX002", "worker of rank 1"),
    Case("worker-raises", "BOX004", "image"),
    Case("worker-segv", "BOX003", "worker of rank 1"),
    Case("sleep", "BOX006", "watched_job.py", timeout=15),
    Case("spin", "BOX006", "watched_job.py", timeout=15),
    Case("other", "BOX006", "in _other_collective", timeout=15),
    Case("sleep", "BOX008", "watched_job.py", stalls=True, exit=75),
    Case("stop", "", "is stopped", stalls=True, exit=75),
    Case("deadlock", "BOX008", "in _deadlock", stalls=True, exit=75),
    Case("fifo", "HNG003", "at _fifo", stalls=True, exit=75),
    Case("worker-deadlock", "BOX008", "in _loaded", stalls=True, exit=75),
    Case("sound", "BOX007", "SIGTERM", "job", outside="TERM", exit=None),
    Case("sound", "BOX007", "SIGINT", "job", outside="INT", exit=None),
    Case("sound", "BOX007", "SIGTERM", "job", outside="timeout", exit=None),
    Case("sound", "BOX002", "SIGKILL", "job", outside="KILL of torchrun", exit=None),
    Case("thread-died", "BOX004", "in its thread", stalls=True, exit=75),
    Case("cpu-limit", "BOX002", "SIGXCPU"),
    Case("bus", "BOX003", "SIGBUS"),
    Case("spawned", "BOX004", "list index out of range", how="spawn"),
    Case("skipped", "BOX006", "watched_job.py", timeout=15),
    Case("worker-oom", "BOX001", "worker of rank 1"),
    Case("sound", "BOX007", "SIGTERM", "job", how="timeout", exit=124),
    Case("uneven", "BOX006", "watched_job.py", timeout=15),
]
SOUND = [
    Case("evaluates", "", "", "job", exit=0),
    Case("restarted", "", "", "job", exit=0, how="restarts"),
    Case("noisy", "", "", "job", exit=0),
    Case("sound", "", "", "job", exit=0, how="twice"),
]


class Seen(NamedTuple):
    """What one run came to. page: what the wrapper printed; own: the rest of stderr."""

    code: int
    page: str
    own: str
    seconds: float

    def right(self, case: Case) -> tuple[bool, bool]:
        """Whether the cause and the rank are those."""
        if case.sound:
            return "ncclcheck" not in self.page + self.own, True
        page = " ".join(self.page.split())
        head = page[page.find("FAIL") :][:200]
        first = re.search(r"FAIL +(\w{3}\d{3})", self.page)
        cause = first is not None and first[1].startswith(case.code) and case.words in page
        return cause, case.who in head or case.who == "job"


def torchrun_names(case: Case, own: str) -> tuple[bool, bool]:
    """The same of torchrun's own error block: its root cause's rank, and whether the cause stands in it."""
    block = own.partition("Root Cause")[2]
    rank = re.search(r"rank +: (\d+)", block)
    words = {"BOX001": "memory", "BOX002": "SIGKILL", "BOX003": case.words}.get(case.code, case.words)
    return words in block, (rank is not None and f"rank {rank[1]}" == case.who) or (
        case.who == "job" and not block
    )


def watched(case: Case, folder: Path, *, bare: bool = False) -> Seen:
    """One run of a case. bare: without the wrapper."""
    env = environment(OMP_NUM_THREADS="1", FULL=str(folder / "full"), TIMEOUT_S=str(case.timeout))
    env |= {"STEPS": "2000"} if case.outside or case.how == "timeout" else {}
    job = _command(case)
    watch = [sys.executable, "-m", "ncclcheck", "watch", "--box", str(folder / "box")]
    watch += ["--stall-after", "8", "--on-stall", "kill"] if case.stalls else []
    argv = job if bare else [*watch, "--", *job]
    argv = ["timeout", "-s", "TERM", "45", *argv] if case.outside == "timeout" else argv
    (folder / "full").mkdir(exist_ok=True)
    begun = time.monotonic()
    with _surroundings(case, folder), (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        enter = _entering(case)
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=enter,  # noqa: PLW1509 - one thread
        )  # fmt: skip
        try:
            if case.outside and case.outside != "timeout":
                _from_outside(case.outside, process.pid, folder, bare=bare)
            code = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            _end(process)
    text = (folder / "err").read_text(errors="replace")
    own, mark, page = text.partition("ncclcheck watch:")
    return Seen(code, mark + page, own, time.monotonic() - begun)


def _command(case: Case) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    job = [JOB, case.kind, "1"]
    if case.how == "spawn":
        return [sys.executable, *job]
    if case.how == "restarts":
        return [*torchrun, "--max-restarts", "1", *job]
    if case.how == "twice":
        twice = shlex.join([*torchrun, *job])
        return ["sh", "-c", f"sleep 2 >/dev/null 2>&1 & {twice} && {twice}"]
    return [*(["timeout", "25"] if case.how == "timeout" else []), *torchrun, *job]


def _end(process: subprocess.Popen[bytes]) -> None:
    """All of its session, ranks that lost their launcher too."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            if name.isdigit() and os.getsid(int(name)) == process.pid:
                os.kill(int(name), signal.SIGKILL)
    process.wait()


def _from_outside(what: str, pid: int, folder: Path, *, bare: bool) -> None:
    """Once the job trains."""
    until = time.monotonic() + 120
    while b"step 3" not in (folder / "out").read_bytes() and time.monotonic() < until:
        time.sleep(0.2)
    if what.startswith("KILL"):
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        commands = {child: Path(f"/proc/{child}/cmdline").read_text() for child in below}
        launchers = [child for child in below if "torch" in commands[child] and "ncclcheck" not in commands[child]]
        os.kill(pid if bare else int(launchers[0]), signal.SIGKILL)
    else:
        os.kill(pid, signal.Signals[f"SIG{what}"])


@contextmanager
def _surroundings(case: Case, folder: Path) -> Iterator[None]:
    """A disk that is small, a cgroup with little memory; root alone can make them."""
    if case.kind == "full":
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_FULL}", "ncw", folder / "full"], check=True, timeout=20
        )
    if case.kind in NEED_MEMORY:
        _group().mkdir()
        (_group() / "memory.limit_in_bytes").write_text(str(1300 * 2**20))
    try:
        yield
    finally:
        if case.kind == "full":
            subprocess.run(["umount", "-l", folder / "full"], check=True, timeout=20)
        if case.kind in NEED_MEMORY:
            for _ in range(50):
                with suppress(OSError):
                    _group().rmdir()
                    break
                time.sleep(0.1)


def _group() -> Path:
    return _CGROUP / f"ncw-{os.getpid()}"


def _entering(case: Case) -> Callable[[], object] | None:
    group = _group() / "cgroup.procs"
    return (lambda: group.write_text(str(os.getpid()))) if case.kind in NEED_MEMORY else None


def main(arguments: list[str]) -> None:
    """Each case watched and, but with `--watched`, bare."""
    kinds = [word for word in arguments if word != "--watched"]
    rights, bares = [], []
    for case in [case for case in [*CASES, *SOUND] if not kinds or case.kind in kinds or case.name in kinds]:
        seen = _run(case, bare=False)
        rights.append((*seen.right(case), case.exit is None or seen.code == case.exit))
        row = [*rights[-1]]
        if "--watched" not in arguments and not case.sound:
            bares.append(torchrun_names(case, _run(case, bare=True).own))
            row += bares[-1]
        print(
            f"{case.name:30}" + "".join(f"{'yes' if good else 'NO':8}" for good in row) + f"{seen.seconds:6.0f} s"
        )
        if not all(rights[-1]):
            print(f"exit code {seen.code}\n{seen.page or seen.own}")
        sys.stdout.flush()
    for what, counted in (("watch: cause, rank, exit code", rights), ("torchrun alone: cause, rank", bares)):
        print(f"{what}: {', '.join(str(sum(column)) for column in zip(*counted, strict=True))} of {len(counted)}")
    print(f"load {os.getloadavg()[0]:.0f}")


def _run(case: Case, *, bare: bool) -> Seen:
    folder = Path(tempfile.mkdtemp(prefix="ncw-"))
    try:
        return watched(case, folder, bare=bare)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
