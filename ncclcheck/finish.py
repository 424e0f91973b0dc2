"""Cluster -> document -> outputs -> exit code. Outputs are tried before anything is measured."""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

from ncclcheck import __version__, exits
from ncclcheck.errors import UsageError
from ncclcheck.options import Options
from ncclcheck.probes.facts import Cluster, replace
from ncclcheck.progress import complain
from ncclcheck.reports import decision, expect, jsondoc, summary, terminal
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judge import judge

T = TypeVar("T")
_WIDEST = 100
_PATIENCE_S = 5.0
_OURS = re.compile(r"\x1b\[(0|1;31|3[2356])m")
_CONTROL = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_TERMINATION_LOG = "/dev/termination-log"


@dataclass(frozen=True)
class Story:
    """When and how a run went, beside its cluster. signal: the number of the signal that ended it."""

    started: str
    seconds: float
    stages: Sequence[jsondoc.Stage] = ()
    signal: int | None = None


def now() -> str:
    """The time as ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def check_outputs(options: Options) -> None:
    """Fail now, not after minutes of measuring. Raises UsageError; leaves nothing behind."""
    for option, path in (("--json", options.json_file), ("--save", options.save_file)):
        if path is not None:
            try:
                _try(os.path.realpath(path) if path else path)
            except OSError as error:
                raise UsageError(f"{option}: {path!r} cannot be written: {error.strerror or error}") from None


def _try(path: str) -> None:
    if os.path.isdir(path):
        raise IsADirectoryError(21, "it is a directory")
    if _is_special(path):
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        return
    with tempfile.TemporaryFile(dir=os.path.dirname(path)):
        pass
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise PermissionError(13, "it may not be overwritten")


def _is_special(path: str) -> bool:
    """A pipe, a device, or a file that stands for a descriptor: written in place, never replaced."""
    return path.startswith(("/dev/", "/proc/")) or (os.path.exists(path) and not os.path.isfile(path))


def write_json(options: Options, node: str, data: bytes) -> bool:
    """`--json F`, where %n in F is this node's name; whether it could be written."""
    return options.json_file is None or _write(options.json_file.replace("%n", node.replace("/", "_")), data)


def deliver(document: jsondoc.Document, options: Options, node: str = "") -> int:
    """Write and print; the exit code. node: this node's own name."""
    data = jsondoc.encode(document)
    written = [write_json(options, node, data), options.save_file is None or _write(options.save_file, data)]
    written.append(_print(document, options))
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        _tell_kubernetes(document)
    return document.exit_code if all(written) or document.exit_code else exits.Exit.INCOMPLETE


def make(cluster: Cluster, options: Options, story: Story) -> jsondoc.Document:
    """The document of a cluster."""
    verdicts = decision.select(judge(replace(cluster, baseline=options.baseline)), options.only, options.ignore)
    state = decision.outcome(verdicts)
    code = int(exits.of_outcome(state, strict=options.strict))
    return jsondoc.Document(
        version=__version__,
        command=cluster.command,
        state=state,
        exit_code=code if story.signal is None else exits.of_signal(story.signal),
        started=story.started,
        seconds=round(story.seconds, 3),
        counts=decision.counts(verdicts),
        job=cluster.job,
        stages=list(story.stages),
        run=cluster.run,
        nodes=[jsondoc.NodeEntry(name=node.name, facts=node) for node in cluster.nodes],
        verdicts=verdicts,
        culprits=_worked_out(culprits, cluster, []),
        measurements=_worked_out(expect.completed, cluster, cluster.measurements),
    )


def _worked_out(what: Callable[[Cluster], T], cluster: Cluster, otherwise: T) -> T:
    """A defect of ours takes no report away; the rules that look at the same are RUN004 then."""
    try:
        return what(cluster)
    except Exception as error:
        complain(f"a defect of ncclcheck, in {what.__name__}: {type(error).__name__}: {error}")
        return otherwise


def _tell_kubernetes(document: jsondoc.Document) -> None:
    """The decision where `kubectl describe pod` shows it; the file is there in pods only."""
    with suppress(OSError), open(_TERMINATION_LOG, "r+", encoding="utf-8") as log:
        log.write(summary.decision(document)[:4000])


def _write(path: str, data: bytes) -> bool:
    """Whole or not at all, through a temporary name beside it; a link is followed."""
    special, real = _is_special(path), os.path.realpath(path)
    beside = f"{real}.{os.getpid()}.part"
    try:
        if special or _is_special(real):
            _write_in_place(path, data)
        else:
            with open(beside, "wb") as file:
                file.write(data)
            os.replace(beside, real)
    except OSError as error:
        with suppress(OSError):
            os.unlink(beside)
        complain(f"{path} could not be written: {error.strerror or error}")
        return False
    return True


def _write_in_place(path: str, data: bytes) -> None:
    """To a pipe or a device, which may stop taking: five seconds without progress are enough."""
    file = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        while data:
            if not select.select([], [file], [], _PATIENCE_S)[1]:
                raise TimeoutError(110, "nobody reads it")
            data = data[os.write(file, data) :]
    finally:
        os.close(file)


def _print(document: jsondoc.Document, options: Options) -> bool:
    if options.output == "json":
        return emit(jsondoc.encode(document).decode())
    if options.quiet and document.state == "ok" and document.exit_code == 0:
        return True
    return say((terminal.short if options.output == "short" else terminal.text)(document, style(options)))


def style(options: Options) -> terminal.Style:
    """How text is printed here."""
    return terminal.Style(
        width=_width(), colour=_colour(options.color), verbose=options.verbose, contact=options.policy.contact
    )


def say(text: str) -> bool:
    """Print a text report as the one document of stdout."""
    return emit(_plain(text))


def _plain(text: str) -> str:
    """Names and values come from outside: no control character reaches the terminal but our own colours."""
    return _CONTROL.sub(lambda found: found[0] if _OURS.fullmatch(found[0]) else repr(found[0])[1:-1], text)


def emit(text: str) -> bool:
    """Print the one document of stdout; a reader that has left (`| head`) is no error, a full disk is one."""
    try:
        sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
        sys.stdout.flush()
    except (BrokenPipeError, ValueError, AttributeError):  # the last two: closed from the start, `>&-`
        return _leave_stdout()
    except OSError as error:
        _leave_stdout()
        complain(f"the report could not be printed: {error.strerror or error}")
        return False
    return True


def _leave_stdout() -> bool:
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True


def _width() -> int:
    if sys.stdout is None or not sys.stdout.isatty():
        return 80
    return max(80, min(_WIDEST, shutil.get_terminal_size((80, 24)).columns))


def _colour(when: str) -> bool:
    if when != "auto":
        return when == "always"
    if os.environ.get("FORCE_COLOR"):
        return True
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stdout is not None and sys.stdout.isatty()
