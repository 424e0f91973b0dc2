"""`ncclcheck watch -- COMMAND`: the job as it would run without us, and beside it a box that keeps why it died."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from ncclcheck.base.exits import NOT_FOUND, NOT_STARTED, of_signal
from ncclcheck.base.leaving import do_last_acts
from ncclcheck.base.progress import complain
from ncclcheck.probes.box.journal import EVENTS, Journal
from ncclcheck.probes.box.read import folders
from ncclcheck.run.plan.option_table import OUTPUT, Flag, NumberRange, WordChoice, typed
from ncclcheck.run.plan.options import Options
from ncclcheck.watch import folder, settings, wrapping
from ncclcheck.watch.copy import Copy

KILLED = 75  # EX_TEMPFAIL of sysexits.h: try again, elsewhere
_NOTHING_WRONG = (0, -signal.SIGPIPE, 128 + signal.SIGPIPE)  # `| head` has seen enough
_WATCHER_S = 6.0  # for its last look
# Seconds until the page is printed though other nodes of the box still run: the ranks of a dead one's peers end
# within a second or two, and its silence is seen after 5. A job that was ended from outside has little time:
# Slurm's SIGKILL comes 30 s after its SIGTERM by default, and sites set less.
_OTHERS_S, _ENDED_FROM_OUTSIDE_S = 10.0, 0.5
# Checks whose node may be at fault; another one would raise the same exception.
_OF_A_NODE = ("HNG", "BOX008", "BOX009", "BOX010", "BOX011", "BOX012")


@dataclass(frozen=True)
class WatchOptions:
    """What the command line says. box: None for one that is removed where nothing happened."""

    command: tuple[str, ...]
    box: str | None = typed(
        None,
        "--box",
        "where to write; kept  [default: ./ncclcheck-box-..., removed after success]",
        group=OUTPUT,
        metavar="DIR",
        variable=False,
    )
    on_stall: str = typed(
        "report",
        "--on-stall",
        "what follows a stall: look and say so; ask for Flight Recorder's dumps too; end the job",
        WordChoice(("report", "dump", "kill")),
        show_default=True,
    )
    stall_after: float = typed(
        60.0,
        "--stall-after",
        "a stall: so long without any sign of life, or three times the longest silence so far",
        NumberRange(5, 86400, "seconds"),
        metavar="S",
        show_default=True,
    )
    exclude_file: str = typed(
        "",
        "--exclude-file",
        "write the nodes at fault, as sbatch --exclude= takes them",
        group=OUTPUT,
        metavar="FILE",
    )
    print_env: bool = typed(
        False,
        "--print-env",
        "print what would be set, as export lines; start nothing",
        Flag(),
        group=OUTPUT,
        variable=False,
    )


def run(wanted: WatchOptions, options: Options) -> int:
    """COMMAND's own exit code, or the signal that ended it. Raises UsageError."""
    if wanted.exclude_file:
        from ncclcheck.results import outputs  # noqa: PLC0415 - see _report

        outputs.check_file("--exclude-file", wanted.exclude_file)
    box, node, given = folder.create(wanted.box, wanted.command)
    if wanted.print_env:
        for name, value in given.items():
            sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
        return 0
    job = _WatchedJob(wanted, node)
    try:
        status = wrapping.run(wanted.command, {**os.environ, **given}, job.callbacks())
    except OSError as error:
        folder.remove(box, node)
        missing = isinstance(error, FileNotFoundError)
        why = "not found on PATH" if missing and "/" not in wanted.command[0] else error.strerror or error
        complain(f"COMMAND: {wanted.command[0]!r} could not be started: {why}")
        return NOT_FOUND if missing else NOT_STARTED
    job.end(status)
    if status in _NOTHING_WRONG and not job.stalled:
        if wanted.box is None:
            folder.remove_after_success(box, node)
        return status if status >= 0 else _as_the_job(-status)
    others = job.others()
    if folder.is_first_to_fail(node, others):
        if not _report(wanted, options, box) and wanted.box is None:
            folder.remove_after_success(box, node)
    else:
        complain(f"the job ended here too; the page is another node's, or: ncclcheck report {box}")
    if job.killed or any(other.killed for other in others):
        return KILLED
    return status if status >= 0 else _as_the_job(-status)


def _as_the_job(number: int) -> int:
    """Ended by the same signal, as the caller would have seen it; by its code where that is not possible."""
    import resource  # noqa: PLC0415 - few jobs are ended so

    do_last_acts()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the job's own core is the one to look at
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    return of_signal(number)


def _prepare() -> None:
    from ncclcheck.commands.steps import box_report  # noqa: PLC0415 - see _report
    from ncclcheck.reports.judgement.rule import all_rules  # noqa: PLC0415

    assert box_report
    all_rules()


def _report(wanted: WatchOptions, options: Options, box: str) -> bool:
    """One page on stderr; whether there was anything to say. A defect of ours changes nothing for the caller."""
    from ncclcheck.commands.steps import box_report  # noqa: PLC0415 - a healthy job is judged by nobody
    from ncclcheck.reports.judgement import selection  # noqa: PLC0415
    from ncclcheck.reports.subjects.box import page as pages  # noqa: PLC0415
    from ncclcheck.results import outputs  # noqa: PLC0415

    try:
        document = box_report.document([box], options)
        if pages.ended_itself(document):
            return False
        box_report.page(document, options, box)
        if wanted.exclude_file:
            bad = box_report.at_fault(document, _OF_A_NODE)
            outputs.write_file(wanted.exclude_file, selection.exclude_file(bad).encode())
    except Exception as error:
        complain(f"the box could not be judged ({type(error).__name__}: {error}); it is {box}")
    return True


class _WatchedJob:
    """What the wrapper writes down while the job runs."""

    def __init__(self, wanted: WatchOptions, node: str) -> None:
        self._wanted, self._node = wanted, node
        self._copy = Copy(node)
        self._journal = Journal(os.path.join(node, "wrapper"), EVENTS)
        self._watcher: subprocess.Popen[bytes] | None = None
        self.stalled = self.killed = self._from_outside = False

    def callbacks(self) -> wrapping.Callbacks:
        """What is done when something happens."""
        return wrapping.Callbacks(self._copy.add, self._signalled, self._started, self._spoke)

    def _started(self, pid: int) -> int:
        self._journal.add({"t": round(time.time(), 3), "what": "start", "pid": pid})
        argv = [sys.executable, "-m", "ncclcheck.probes.box.watcher", self._node, str(pid)]
        argv += [self._wanted.on_stall, f"{self._wanted.stall_after:g}"]
        env = {**os.environ, "NCCLCHECK_BOX_SIGNAL": str(settings.SIGNAL)}
        env.pop("NCCLCHECK_BOX", None)  # it is none of the job's processes
        try:
            self._watcher = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True, env=env,
            )  # fmt: skip
        except OSError as error:
            complain(f"nobody watches the job: {error.strerror or error}")
            return -1
        assert self._watcher.stdout is not None
        return self._watcher.stdout.fileno()

    def _spoke(self, data: bytes) -> None:
        for line in data.splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                self.stalled |= "stall" in entry
                self.killed |= "killed" in entry
                if "stall" in entry:
                    complain(
                        f"no sign of life for {entry['stall']:.0f} s; what was seen: ncclcheck report {self._node}"
                    )

    def _signalled(self, got: wrapping.Got) -> None:
        by = ""
        if not self._from_outside:  # SIGKILL may follow soon: what prints the page is read while the job ends
            threading.Thread(target=_prepare, daemon=True).start()
        self._from_outside = True
        with suppress(OSError), open(f"/proc/{got.sender}/comm", encoding="utf-8") as file:
            by = file.read(64).strip() if got.sender else ""
        self._journal.add(
            {
                "t": round(time.time(), 3), "what": "signal", "number": got.number, "sender": got.sender, "by": by,
                "of_group": got.of_group,
            }
        )  # fmt: skip

    def others(self) -> list[folders.BoxFolder]:
        """The other nodes of the box, once they have ended; those that are silent are written down."""
        limit = _ENDED_FROM_OUTSIDE_S if self._from_outside else _OTHERS_S
        ended, silent = folders.wait_for_ends(self._node, limit)
        for node in silent:
            self._journal.add({"t": round(time.time(), 3), "what": "silent", "host": node.host})
        return [other for other in ended if other not in silent]

    def end(self, status: int) -> None:
        """The last lines, the watcher's too."""
        self._copy.end()
        self._journal.add({"t": round(time.time(), 3), "what": "end", "status": status})
        if self._watcher is not None and status in _NOTHING_WRONG and self._wanted.box is None:
            self._watcher.kill()  # nobody is going to read what it would still see
            self._watcher.wait()
        elif self._watcher is not None:
            with suppress(OSError, subprocess.TimeoutExpired):
                self._watcher.communicate(b"end", timeout=_WATCHER_S)
