"""Cluster -> document -> outputs -> exit code. Outputs are tried before anything is measured."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone

from ncclcheck import __version__, exits
from ncclcheck.errors import UsageError
from ncclcheck.options import Options
from ncclcheck.probes.facts import Cluster
from ncclcheck.reports import decision, jsondoc, summary, terminal
from ncclcheck.reports.judge import judge

_WIDEST = 100
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
        if path is None:
            continue
        folder = os.path.dirname(os.path.abspath(path))
        try:
            if os.path.isdir(path):
                raise IsADirectoryError(21, "it is a directory")
            with tempfile.TemporaryFile(dir=folder):
                pass
            if os.path.exists(path) and not os.access(path, os.W_OK):
                raise PermissionError(13, "it may not be overwritten")
        except OSError as error:
            raise UsageError(f"{option}: {path} cannot be written: {error.strerror or error}") from None


def write_json(options: Options, node: str, data: bytes) -> None:
    """`--json F`, where %n in F is this node's name."""
    if options.json_file is not None:
        _write(options.json_file.replace("%n", node.replace("/", "_")), data)


def deliver(document: jsondoc.Document, options: Options, node: str = "") -> int:
    """Write and print; the exit code. node: this node's own name."""
    data = jsondoc.encode(document)
    write_json(options, node, data)
    if options.save_file is not None:
        _write(options.save_file, data)
    _print(document, options)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        _tell_kubernetes(document)
    return document.exit_code


def make(cluster: Cluster, options: Options, story: Story) -> jsondoc.Document:
    """The document of a cluster."""
    verdicts = decision.select(judge(cluster), options.only, options.ignore)
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
        measurements=cluster.measurements,
    )


def _tell_kubernetes(document: jsondoc.Document) -> None:
    """The decision where `kubectl describe pod` shows it; the file is there in pods only."""
    with suppress(OSError), open(_TERMINATION_LOG, "r+", encoding="utf-8") as log:
        log.write(summary.decision(document)[:4000])


def _write(path: str, data: bytes) -> None:
    """Whole or not at all: through a temporary name beside it."""
    beside = f"{path}.{os.getpid()}.part"
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as special:
                special.write(data)
            return
        with open(beside, "wb") as file:
            file.write(data)
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(beside)
        sys.stderr.write(f"ncclcheck: {path} could not be written: {error.strerror or error}\n")


def _print(document: jsondoc.Document, options: Options) -> None:
    if options.output == "json":
        emit(jsondoc.encode(document).decode())
        return
    if options.quiet and document.state == "ok" and document.exit_code == 0:
        return
    style = terminal.Style(
        width=_width(), colour=_colour(options.color), verbose=options.verbose, contact=options.policy.contact
    )
    emit((terminal.short if options.output == "short" else terminal.text)(document, style))


def emit(text: str) -> None:
    """Print the one document of stdout; a reader that has left (`| head`) is no error."""
    try:
        sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
        sys.stdout.flush()
    except (BrokenPipeError, ValueError, AttributeError, OSError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


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
