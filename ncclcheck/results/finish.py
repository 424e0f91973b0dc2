"""Cluster -> document -> outputs -> exit code."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

from ncclcheck import __version__
from ncclcheck.base import exits
from ncclcheck.base.progress import complain
from ncclcheck.probes.facts import Cluster, Measurements, replace
from ncclcheck.probes.facts.guard.secrets import without_secrets
from ncclcheck.reports import expect
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement import decision, jsondoc
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.output import terminal
from ncclcheck.reports.recommend import recommend
from ncclcheck.reports.subjects.job import trial, tuning, verified
from ncclcheck.reports.subjects.logs.answer.story import diagnosis
from ncclcheck.reports.text import closing
from ncclcheck.reports.text.words.visible import in_line, visible
from ncclcheck.results import outputs, safe
from ncclcheck.run.plan.options import Options

T = TypeVar("T")
_WIDEST = 120  # columns: longer lines of prose are hard to follow
_OURS = re.compile(r"(\x1b\[(?:0|1;31|3[2356])m)")
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


def deliver(document: jsondoc.Document, options: Options, node: str = "") -> int:
    """Write and print; the exit code. node: this node's own name."""
    shown = as_shown(document, options)
    written = outputs.write_all(shown, options, node)
    printed = _print(shown, options)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        _tell_kubernetes(shown)
    return document.exit_code if (written and printed) or document.exit_code else exits.Exit.INCOMPLETE


def as_shown(document: jsondoc.Document, options: Options) -> jsondoc.Document:
    """The document as it leaves this process: under invented names with --anonymise."""
    if not options.anonymise:
        return document
    from ncclcheck.reports.output.anonymise import anonymised  # noqa: PLC0415 - few runs hide anything

    return anonymised(document, options.baseline)


def make(cluster: Cluster, options: Options, story: Story) -> jsondoc.Document:
    """The document of a cluster. What other nodes and files told is cleaned here, before it is judged."""
    cluster = safe.cluster(replace(cluster, baseline=options.baseline))
    judged = judge(cluster)
    verdicts = decision.select(judged, options.only, options.ignore)
    state = decision.outcome(verdicts)
    if story.signal is not None and state != "fail":
        state = "incomplete"
    code = int(exits.of_outcome(state, strict=options.strict))
    return jsondoc.Document(
        version=__version__,
        command=cluster.command,
        state=state,
        exit_code=code if story.signal is None else exits.of_signal(story.signal),
        strict=options.strict,
        started=story.started,
        seconds=round(story.seconds, 3),
        counts=decision.counts(verdicts),
        job=cluster.job,
        stages=without_secrets([*story.stages]),
        run=cluster.run,
        nodes=[jsondoc.NodeEntry(name=node.name, facts=node) for node in cluster.nodes],
        verdicts=verdicts,
        culprits=_worked_out(culprits, cluster, []),
        measurements=_worked_out(_completed, cluster, cluster.measurements),
        recommendations=_worked_out(
            lambda cluster: verified.kept(cluster, recommend(cluster, judged)), cluster, []
        ),
        diagnosis=_worked_out(lambda cluster: diagnosis(cluster.measurements.logs, verdicts), cluster, None),
    )


def _completed(cluster: Cluster) -> Measurements:
    return tuning.completed(trial.completed(expect.completed(cluster)))


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
        log.write(in_line(closing.decision(document))[:4000])


def _print(document: jsondoc.Document, options: Options) -> bool:
    if options.output == "json":
        return emit(jsondoc.pieces(document))
    if options.quiet and document.state == "ok" and document.exit_code == 0:
        return True
    return say((terminal.short if options.output == "short" else terminal.text)(document, style(options)))


def style(options: Options) -> terminal.Style:
    """How text is printed here."""
    return terminal.Style(
        width=_width(),
        colour=_colour(options.color),
        verbose=options.verbose,
        contact="" if options.anonymise else options.policy.contact,
    )


def say(text: str) -> bool:
    """Print a text report as the one document of stdout."""
    return emit(plain(text))


def plain(text: str) -> str:
    """Names and values come from outside: no control character reaches the terminal but our own colours."""
    parts = _OURS.split(text)  # every second one is a colour
    return "".join(part if at % 2 else visible(part, keep="\n") for at, part in enumerate(parts))


def emit(text: str | Iterable[bytes]) -> bool:
    """Print the one document of stdout; a reader that has left (`| head`) is no error, any other loss is one."""
    try:
        for piece in [text.encode(errors="backslashreplace")] if isinstance(text, str) else text:
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_stdout()
    except (ValueError, AttributeError):  # `>&-`: descriptor 1 may be another file by now, and is left alone
        return _lost("stdout is closed")
    except OSError as error:
        _leave_stdout()
        return _lost(error.strerror or str(error))
    return True


def _lost(why: str) -> bool:
    complain(f"the report could not be printed: {why}")
    return False


def _leave_stdout() -> None:
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
