"""Jobs over hosts of the lab under `ncclcheck watch`, by ssh and by Slurm: who is named.

`python -m tests.scenarios.watched_hosts [NAME...]` runs them and prints the table. The cases and what is expected
of them were written down before any of them ran.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Literal, NamedTuple

from tests.conftest import ROOT, environment
from tests.lab import Host, Lab, Slurm, faults, start_sshd
from tests.lab.slowness import group, inside
from tests.lab.tools import until

JOB = str(ROOT / "tests/jobs/watched_job.py")
_LIMIT_S = 240.0
_BLOCK = 1500  # characters of torchrun's block behind its heading
_LEFT_S = 25.0  # after the last that ended: a page is printed within 10
_ports = itertools.count(23_000)
By = Literal["ssh", "sbatch"]
RUINS = ("power", "frozen")  # of a host: there are new ones after it


class HostCase(NamedTuple):
    """One job. bad: the rank that is at fault, a rank a host but where `a_host` says more.

    code: of the check that must head the page; words: what must stand in it; who: as its first line names it.
    after: what is done to the job or to h{bad} once it trains. local: a box a host, joined by `report`.
    wrapped: how a job of Slurm is watched. sound: nothing may be said. bare: COMMAND alone, as torchrun tells it.
    """

    name: str
    kind: str
    code: str
    words: str
    who: str
    bad: int = 2
    hosts: int = 3
    a_host: int = 1
    by: By = "ssh"
    local: bool = False
    after: str = ""
    steps: int = 12
    timeout: int = 60
    stalls: bool = False
    wrapped: str = "torchrun"
    numbers: int = 1000
    exit: int | None = 1
    sound: bool = False

    bare: bool = False

    @property
    def place(self) -> str:
        """The host of the rank at fault."""
        return f"h{self.bad // self.a_host + 1}"

    @property
    def outermost(self) -> str:
        """What stands in the command line of the process that gets a signal from outside."""
        return "torch.distributed.run" if self.bare else "ncclcheck watch"


_SLURM = partial(HostCase, by="sbatch")
_SOUND = partial(HostCase, kind="sound", code="", words="", who="", sound=True, exit=0)
CASES = [
    HostCase("raise", "raise", "BOX004", "labels do not fit", "rank 2 on h3"),
    HostCase("raise, local boxes", "raise", "BOX004", "labels do not fit", "rank 1 on h2", bad=1, local=True),
    HostCase("h2's clock is ahead", "raise", "BOX004", "labels do not fit", "rank 1 on h2", bad=1, after="clock"),
    HostCase("a module missing on one host", "import", "BOX004", "no_such_module", "rank 1 on h2", bad=1),
    HostCase("kill", "kill", "BOX002", "SIGKILL", "rank 2 on h3"),
    HostCase("segv, 2 x 2", "segv", "BOX003", "SIGSEGV", "rank 3 on h2", bad=3, hosts=2, a_host=2),
    HostCase("leave", "leave", "BOX005", "exit code 0", "rank 2 on h3"),
    HostCase("other collective", "other", "BOX006", "in _other_collective", "rank 1 on h2", bad=1, timeout=15),
    HostCase("sleep", "sleep", "BOX006", "watched_job.py", "rank 2 on h3", timeout=15),
    HostCase("full disk", "full", "BOX004", "No space left", "rank 1 on h2", bad=1),
    HostCase("out of memory", "oom", "BOX001", "want of memory", "rank 1 on h2", bad=1, hosts=2),
    HostCase("a leak", "leak", "BOX001", "want of memory", "rank 1 on h2", bad=1, hosts=2),
    HostCase("a loader's worker raises", "worker-raises", "BOX004", "image", "rank 2 on h3"),
    HostCase(
        "the launcher is killed", "sound", "BOX002", "SIGKILL", "COMMAND", after="launcher", steps=2000, exit=255
    ),  # the wrapper ends by the job's SIGKILL, which ssh reports so
    HostCase("SIGTERM on one host", "sound", "BOX007", "SIGTERM", "h3", after="term", steps=2000, exit=None),
    HostCase("a host loses its power", "sound", "BOX009", "breaks off", "h3", after="power", steps=2000),
    HostCase("a host is frozen", "sound", "BOX009", "breaks off", "h3", after="frozen", steps=2000, timeout=15),
    HostCase("a host is cut off", "sound", "BOX010", "cut off", "h3", after="cut", steps=2000, timeout=15),
    HostCase("stall: deadlock", "deadlock", "BOX008", "in _deadlock", "rank 2 on h3", stalls=True, exit=75),
    HostCase("stall: stopped", "stop", "", "is stopped", "rank 1", bad=1, stalls=True, exit=75),
    HostCase("stall: fifo, local", "fifo", "HNG003", "rank 1", "rank 1", 1, local=True, stalls=True, exit=75),
    HostCase("a straggler", "straggler", "BOX011", "since", "rank 2 on h3", after="later", steps=5000, exit=None),
    HostCase(
        "a slow link", "sound", "BOX011", "since", "h3", after="link", steps=5000, numbers=200_000, exit=None
    ),
    _SLURM("Slurm: raise", "raise", "BOX004", "labels do not fit", "rank 1 on h2", bad=1),
    _SLURM("Slurm: kill", "kill", "BOX002", "SIGKILL", "rank 2 on h3"),
    _SLURM("Slurm: a worker is killed", "worker-killed", "BOX002", "worker of rank 2", "h3"),
    _SLURM("Slurm: srun's ranks", "raise", "BOX004", "labels do not fit", "rank 1 on h2", bad=1, wrapped="ranks"),
    _SLURM("Slurm: around srun", "raise", "BOX004", "labels do not fit", "rank 1 on h2", bad=1, wrapped="srun"),
    _SLURM("Slurm: task prolog", "raise", "BOX004", "labels do not fit", "rank 1 on h2", bad=1, wrapped="prolog"),
    _SLURM("Slurm: scancel", "sound", "BOX007", "SIGTERM", "h", after="scancel", steps=2000, exit=None),
    _SLURM(
        "Slurm: time limit of the step", "sound", "BOX007", "SIGTERM", "h", after="limit", steps=5000, exit=None
    ),
    _SLURM("Slurm: stall", "deadlock", "BOX008", "in _deadlock", "rank 1 on h2", bad=1, stalls=True, exit=75),
    _SLURM("Slurm: a host's power", "sound", "BOX009", "breaks off", "h3", after="power", steps=2000, exit=None),
]
SOUND = [
    _SOUND("sound, 3 hosts"),
    _SOUND("sound, 2 x 2", hosts=2, a_host=2),
    _SOUND("sound, local boxes", local=True),
    _SOUND("sound, h2's clock is ahead", bad=1, after="clock"),
    _SOUND("sound, the network is away for 3 s", after="flap", steps=200),
    _SOUND("Slurm: sound", by="sbatch"),
    _SOUND("Slurm: sound, srun's ranks", by="sbatch", wrapped="ranks"),
    _SOUND("Slurm: sound, around srun", by="sbatch", wrapped="srun"),
]


class Seen(NamedTuple):
    """codes: the exit code of each host's COMMAND. said: all that stood on stderr; page: the fullest one of it."""

    codes: list[int]
    said: str
    page: str
    seconds: float

    def right(self, case: HostCase) -> tuple[bool, bool]:
        """Whether the cause and who it was are those of the case; for a healthy one whether nothing was said."""
        if case.sound:
            return "ncclcheck" not in self.said, True
        page = " ".join(self.page.split())
        head = page[page.find("FAIL") :][:200]
        first = re.search(r"FAIL +(\w{3}\d{3})", self.page)
        if case.code == "BOX011":  # what ended it is another thing, and may come before
            at = page.find("BOX011")
            return at >= 0 and case.words in page[at:], at >= 0 and case.who in page[at : at + 200]
        cause = first is not None and first[1].startswith(case.code) and case.words in page
        return cause, case.who in head


def torchrun_names(case: HostCase, output: str) -> tuple[bool, bool]:
    """Whether one of torchrun's error blocks, one a host, has the cause, and whether one has the rank at fault."""
    blocks = [block[:_BLOCK] for block in output.split("Root Cause")[1:]]
    words = {"BOX001": "memory", "BOX002": "SIGKILL"}.get(case.code, case.words)
    ranks = [match[1] for block in blocks if (match := re.search(r"rank +: (\d+)", block))]
    return any(words in block for block in blocks), str(case.bad) in ranks


def watched(place: Lab, case: HostCase) -> Seen:
    """One run."""
    folder = Path(tempfile.mkdtemp(prefix="ncw-", dir="/tmp"))
    begun = time.monotonic()
    try:
        with ExitStack() as stack:
            before, full = _surroundings(place, case, folder, stack)
            env = environment(
                OMP_NUM_THREADS="1", FULL=str(full), TIMEOUT_S=str(case.timeout), STEPS=str(case.steps),
                NUMBERS=str(case.numbers),
            )  # fmt: skip
            run = _by_slurm if case.by == "sbatch" else _by_ssh
            codes = run(place, case, folder, env, before, stack)
        output = "".join(path.read_text(errors="replace") for path in sorted(folder.glob("err.*")))
        kept = (case.local or case.wrapped == "prolog") and not case.bare
        # Slurm's SIGKILL may come before the page; then the box is read, as docs/watch.md says.
        killed = case.after in ("scancel", "limit") and not _page(output) and not case.bare
        page = _report(case, folder, env) if kept or killed else _page(output)
        return Seen(codes, output, page, time.monotonic() - begun)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _page(output: str) -> str:
    pages = ["ncclcheck watch:" + page for page in output.split("ncclcheck watch:")[1:]]
    return max(pages, key=len, default="")


def _report(case: HostCase, folder: Path, env: dict[str, str]) -> str:
    boxes = sorted(folder.glob("box*"))
    argv = [sys.executable, "-m", "ncclcheck", "report", *map(str, boxes)]
    with Popen(argv, env=env, cwd=folder, stdout=-1, stderr=-1, text=True) as done:
        out, err = done.communicate(timeout=60)
    return "" if case.sound else out + err


def _command(case: HostCase, node: int, port: int) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(case.hosts)]
    torchrun += ["--node-rank", str(node), "--master-addr", "10.77.0.11", "--master-port", str(port)]
    return [*torchrun, "--nproc-per-node", str(case.a_host), JOB, case.kind, str(case.bad)]


def _watch(case: HostCase, box: str, folder: Path) -> list[str]:
    """What stands before COMMAND."""
    if case.bare:
        return []
    argv = [sys.executable, "-m", "ncclcheck", "watch", "--box", box]
    if case.stalls:
        argv += ["--stall-after", "8", "--on-stall", "kill", "--exclude-file", str(folder / "bad")]
    return argv if case.wrapped == "prolog" else [*argv, "--"]


def _by_ssh(
    place: Lab, case: HostCase, folder: Path, env: dict[str, str], before: dict[str, list[str]], stack: ExitStack
) -> list[int]:
    port = next(_ports)
    started: list[Popen[str]] = []
    hosts = place.hosts[: case.hosts]
    for node, host in enumerate(hosts):
        box = folder / (f"box-{host.name}" if case.local else "box")
        own = {**env, "TMPDIR": str(folder), "GLOO_SOCKET_IFNAME": "eth0"}
        words = [*before.get(host.name, []), *_watch(case, str(box), folder), *_command(case, node, port)]
        line = f"cd {folder} && exec env {quoted(own)} {shlex.join(words)} >out.{host.name} 2>err.{host.name}"
        started.append(place.hosts[0].start(["ssh", host.name, line]))
    stack.callback(clean, place)
    return _ended(place, case, folder, started)


def quoted(env: dict[str, str]) -> str:
    """What a host is given of it, as a shell reads it."""
    kept = ("PATH", "PYTHONPATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")
    ours = ("OMP_", "FULL", "TIMEOUT_S", "STEPS", "NUMBERS", "GLOO_")
    given = {name: value for name, value in env.items() if name in kept or name.startswith(ours)}
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in given.items())


def _by_slurm(
    place: Lab, case: HostCase, folder: Path, env: dict[str, str], before: dict[str, list[str]], stack: ExitStack
) -> list[int]:
    """A batch script as docs/watch.md has it."""
    del before
    port = next(_ports)
    job = [sys.executable, JOB, case.kind, str(case.bad)] if case.wrapped == "ranks" else []
    torchrun = shlex.join(_command(case, 0, port)).replace("--node-rank 0", "--node-rank $SLURM_NODEID")
    words = shlex.join(job) if job else torchrun
    watch = shlex.join(_watch(case, str(folder / "box"), folder))
    limit = "--time=1 " if case.after == "limit" else ""
    srun = f"srun {limit}-N{case.hosts} -n{case.hosts} --kill-on-bad-exit=0"
    alone = shlex.quote(f"exec {words}")
    step = f"{srun} sh -c {shlex.quote(f'exec {watch} {words}')}"
    if case.wrapped == "srun":
        step = f"{watch} {srun} sh -c {alone}"
    if case.wrapped == "prolog" and not case.bare:
        prolog = folder / "prolog"
        prolog.write_text(f"#!/bin/sh\n{watch} --print-env\n")
        prolog.chmod(0o755)
        step = f"{srun} --task-prolog={prolog} sh -c {alone}"
    script = folder / "script"
    exports = quoted({**env, "GLOO_SOCKET_IFNAME": "eth0"})
    exports += f" MASTER_ADDR=10.77.0.11 MASTER_PORT={port}" if job else ""
    script.write_text(f"#!/bin/sh\nexport {exports}\ncd {folder}\n{step}\necho $? >{folder}/code\n")
    first = place.hosts[0]
    submit = ["sbatch", "--parsable", f"-N{case.hosts}", "--ntasks-per-node=1", "-o", f"{folder}/err.job"]
    number = first.check([*submit, "-e", f"{folder}/err.job", str(script)]).strip()
    stack.callback(clean, place)
    stack.callback(first.run, ["scancel", number])
    stack.callback(first.run, ["scancel", "--signal=KILL", "--full", number])
    return _ended(place, case, folder, number)


def _ended(place: Lab, case: HostCase, folder: Path, started: list[Popen[str]] | str) -> list[int]:
    """Do what is done from outside, and wait for the end."""
    host, first = place[case.place], place.hosts[0]
    if case.after and case.after not in ("clock", "limit"):
        _trains(folder)
    if case.after in RUINS:
        _to_all(host, signal.SIGKILL if case.after == "power" else signal.SIGSTOP)
    elif case.after == "launcher":
        _kill(host, "torch.distributed.run", signal.SIGKILL, but="ncclcheck")
    elif case.after == "term":
        _kill(host, case.outermost, signal.SIGTERM)
    elif case.after == "scancel":
        first.check(["scancel", str(started)])
    elif case.after == "later":
        time.sleep(80)
        _kill(first, case.outermost, signal.SIGTERM)
    with ExitStack() as stack:
        if case.after in ("cut", "flap"):
            stack.enter_context(faults.cut_off(host, "eth0"))
        if case.after == "flap":
            time.sleep(3)
            stack.close()
        if case.after == "link":
            time.sleep(30)
            stack.enter_context(faults.limited(host, "3mbit"))
            time.sleep(50)
            _kill(first, case.outermost, signal.SIGTERM)
        return _codes(case, folder, started)


def _to_all(host: Host, number: int) -> None:
    """Every process of a host; more than once, for they start others."""
    for _ in range(3):
        for pid in host.pids():
            with suppress(OSError):
                os.kill(pid, number)


def _codes(case: HostCase, folder: Path, started: list[Popen[str]] | str) -> list[int]:
    end = time.monotonic() + _LIMIT_S
    if isinstance(started, str):
        code = folder / "code"
        with suppress(Exception):
            until(
                "the batch script has ended",
                lambda: code.exists() and bool(code.read_text()),
                seconds=_LIMIT_S if case.after != "scancel" else 25,
            )
        time.sleep(1)
        return [int(code.read_text())] if code.exists() else []
    codes: list[int] = []
    gone = int(case.place[1:]) - 1 if case.after in ("power", "frozen") else -1
    left = [job for node, job in enumerate(started) if node != gone]
    while left and time.monotonic() < end:
        for process in [child for child in left if child.poll() is not None]:
            left.remove(process)
            codes.append(process.returncode)
            end = min(end, time.monotonic() + _LEFT_S)  # a rank that sleeps does so though its peers have gone
        time.sleep(0.2)
    return codes


def _trains(folder: Path) -> None:
    def printed() -> bool:
        return any(
            "step 3" in path.read_text(errors="replace") for path in [*folder.glob("out.*"), *folder.glob("err.*")]
        )

    until("the job trains", printed, seconds=120)


def _kill(host: Host, words: str, number: int, but: str = "") -> None:
    """The first process of a host whose command line has these words."""
    for pid in sorted(host.pids()):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            if words in line and (not but or but not in line) and "/sh" not in line[:9] and "ssh" not in line[:9]:
                os.kill(pid, number)
                return
    raise LookupError(f"no {words} on {host.name}")


def clean(place: Lab) -> None:
    """No process of the job is left."""
    for host in place.hosts:
        for pid in host.pids():
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"watched_job" in line or b"ncclcheck" in line:
                    os.kill(pid, signal.SIGKILL)
                    os.kill(pid, signal.SIGCONT)


def _surroundings(place: Lab, case: HostCase, folder: Path, stack: ExitStack) -> tuple[dict[str, list[str]], Path]:
    """What stands before COMMAND on a host, and the folder whose disk is to be full."""
    host, before, full = place[case.place], dict[str, list[str]](), folder / "full"
    full.mkdir()
    if case.kind == "full":
        host.check(["mount", "-t", "tmpfs", "-o", f"size={2**22}", "ncw", str(full)])
        stack.callback(host.run, ["umount", "-l", str(full)])
    if case.kind in ("oom", "leak"):
        name = f"ncw-{os.getpid()}"
        stack.enter_context(group("memory", name, {"memory.limit_in_bytes": 900 * 2**20}))
        before[host.name] = [*inside("memory", name)]
    if case.after == "clock":
        stack.enter_context(faults.clock(host, 8))
    return before, full


@contextmanager
def site(by: By) -> Iterator[Lab]:
    """Three hosts, with sshd, or with Slurm."""
    with Lab(hosts=3) as lab:
        if by == "sbatch":
            Slurm(lab)
            yield lab
        else:
            start_sshd(lab)
            yield lab


def main(words: list[str]) -> None:
    """Each case once, with `bare` without the wrapper; after one that ruins hosts there are new ones."""
    bare = "bare" in words
    words = [word for word in words if word != "bare"]
    cases = [
        host_case
        for host_case in [*CASES, *SOUND]
        if not words or any(host_case.name.startswith(word) for word in words)
    ]
    cases = [case._replace(bare=True) for case in cases if not case.sound] if bare else cases
    rows: list[tuple[bool, bool, bool]] = []
    for by in ("ssh", "sbatch"):
        left = [case for case in cases if case.by == by]
        while left:
            with site(by) as lab:
                while left:
                    case = left.pop(0)
                    rows.append(_told(case, _tried(partial(watched, lab, case))))
                    if case.after in RUINS:
                        break
    print(f"right: {', '.join(str(sum(column)) for column in zip(*rows, strict=True))} of {len(rows)}")
    print(f"load {os.getloadavg()[0]:.0f}")


def _tried(run: Callable[[], Seen]) -> Seen | str:
    try:
        return run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _told(case: HostCase, seen: Seen | str) -> tuple[bool, bool, bool]:
    if isinstance(seen, str):
        print(f"{case.name:36} VOID  {seen}", flush=True)
        return False, False, False
    if case.bare:
        row = (*torchrun_names(case, seen.said), "Root Cause" in seen.said)
        print(f"{case.name:36}" + "".join(f"{'yes' if right else 'NO':6}" for right in row), flush=True)
        return row
    row = (*seen.right(case), case.exit is None or case.exit in seen.codes)
    print(
        f"{case.name:36}" + "".join(f"{'yes' if right else 'NO':6}" for right in row) + f"{seen.seconds:5.0f} s",
        flush=True,
    )
    if not all(row):
        print(f"exit codes {seen.codes}\n{seen.page or seen.said[-3000:]}", flush=True)
    return row


if __name__ == "__main__":
    main(sys.argv[1:])
