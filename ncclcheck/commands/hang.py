"""`ncclcheck hang`: two looks at the jobs that run now, on this host or on others by ssh. Changes nothing."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import msgspec

from ncclcheck.base.progress import Progress
from ncclcheck.launch import hostfile
from ncclcheck.probes.facts import Cluster, Job, Live, Measurements
from ncclcheck.probes.live import look
from ncclcheck.probes.machine import process
from ncclcheck.results import finish, outputs, saved
from ncclcheck.run.plan.options import Options

SECONDS = 6.0  # between the looks: a step of most jobs is shorter, so that a job that advances is seen to
_MORE_S = 20.0  # for the login, the processes of a large host, and py-spy
_AT_ONCE = 64
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-T")


class Way(NamedTuple):
    """How Python begins beside the ranks of one host."""

    host: str
    argv: list[str]


def run(options: Options, seconds: float, *, passive: bool) -> int:
    """Look, judge, report; the exit code. Raises UsageError."""
    outputs.check(options)
    if options.from_file is not None:
        return saved.judge_again(options)
    started, begun = finish.now(), time.monotonic()
    progress = Progress(quiet=options.quiet)
    ways = _ways(options, [f"{seconds:g}", *([] if passive else ["stacks"])])
    progress.stage(f"two looks, {seconds:g} s apart, at {len(ways)} host{'s' if len(ways) > 1 else ''}")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        live = [*pool.map(lambda way: looked(way, seconds + _MORE_S), ways)]
    progress.clear()
    cluster = Cluster(
        command="hang",
        job=Job(launcher="ssh" if options.hosts or options.hostfile else "local", chosen_by="hosts are looked at",
                nodes_asked=len(ways)),
        measurements=Measurements(live=live),
        policy=options.policy,
    )  # fmt: skip
    story = finish.Story(started=started, seconds=time.monotonic() - begun)
    return finish.deliver(finish.make(cluster, options, story), options)


def _ways(options: Options, arguments: Sequence[str]) -> list[Way]:
    inside = shlex.split(options.via or "")
    if options.hosts or options.hostfile:
        hosts = (
            hostfile.from_option(options.hosts) if options.hosts else hostfile.from_file(options.hostfile or "")
        )
        line = shlex.join([*inside, "python3", "-", *arguments])
        return [Way(one.name, [*_SSH, "--", one.target, line]) for one in hosts]
    if inside:
        return [Way(inside[-1], [*inside, "python3", "-", *arguments])]
    return [Way("this host", [sys.executable, "-", *arguments])]


def looked(way: Way, limit: float) -> Live:
    """What the probe tells of one host; a problem where it tells nothing. Never raises, never waits longer."""
    try:
        child = process.start(way.argv, control=True)
    except OSError as error:
        return Live(host=way.host, problem=f"{way.argv[0]}: {error.strerror or error}")
    assert child.stdin is not None
    with suppress(OSError), open(look.__file__, "rb") as probe, child.stdin as into:
        into.write(probe.read())
    status, out, err = process.watch(child, limit)
    if status is None:
        return Live(host=way.host, problem=f"it gave no answer in {limit:g} s")
    try:
        return msgspec.json.decode(out, type=Live)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        said = [*err.strip().splitlines(), f"{way.argv[0]} ended with status {status}"]
        return Live(host=way.host, problem=said[-1 if status == 0 else 0][:200])
