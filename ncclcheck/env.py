"""`ncclcheck env`: the facts of this node, or of all nodes, and their agreement. Imports no torch."""

from __future__ import annotations

import os
import time

from ncclcheck import finish, saved
from ncclcheck.clock import Deadline
from ncclcheck.errors import Interrupted
from ncclcheck.finish import Story
from ncclcheck.gather import Gathered
from ncclcheck.launch import choose
from ncclcheck.launch.agents import Events
from ncclcheck.launch.choose import Choice
from ncclcheck.options import Options
from ncclcheck.plan import default_deadline
from ncclcheck.probes.facts import Cluster, Job, Run
from ncclcheck.progress import Progress
from ncclcheck.reports.findings import State
from ncclcheck.reports.jsondoc import Stage
from ncclcheck.session import Session, signals_as_events


def run(options: Options) -> int:
    """Read the facts of all nodes and judge them; the exit code. Raises UsageError."""
    finish.check_outputs(options)
    if options.from_file is not None:
        return saved.judge_again(options)
    begun, started = time.monotonic(), finish.now()
    choice = choose.choose(options, os.environ)
    deadline = Deadline(options.deadline or default_deadline("env"))
    progress = Progress(quiet=options.quiet)
    events = Events()
    caught: int | None = None
    with signals_as_events(events):
        progress.stage("reading the facts of every node")
        session = start(options, choice, events, deadline, progress)
        try:
            session.facts(deadline.left - report_time(deadline))
        except Interrupted as interrupted:
            caught = interrupted.number
        cluster = Cluster(
            command="env",
            nodes=session.gathered.answered,
            job=job_fact(session.gathered, choice),
            run=session.gathered.run(started_job=False, stopped_by=session.stopped_by),
            policy=options.policy,
        )
        session.close()
        progress.clear()
    seconds = time.monotonic() - begun
    stage = Stage(
        name="env", state=State.OK if not cluster.run.silent else State.UNKNOWN, seconds=round(seconds, 3)
    )
    return finish.finish(cluster, options, Story(started, seconds, [stage], caught))


def start(options: Options, choice: Choice, events: Events, deadline: Deadline, progress: Progress) -> Session:
    """Start the agents of all nodes. Their probes end well before our own deadline."""
    more = [
        *(("--sysroot", os.path.abspath(options.sysroot)) if options.sysroot else ()),
        *(("--host-root", os.path.abspath(options.host_root)) if options.host_root else ()),
    ]
    limit = max(1.0, min(20.0, deadline.left - 2 * report_time(deadline)))
    return Session(choice.start(events, "--probe-seconds", str(limit), *more), events, deadline, progress)


def report_time(deadline: Deadline) -> float:
    """Seconds kept for closing agents and for the report."""
    return min(5.0, deadline.seconds / 5)


def job_fact(gathered: Gathered, choice: Choice) -> Job:
    """The job as a fact."""
    run: Run = gathered.run(started_job=False, stopped_by="")
    return Job(
        launcher=choice.launcher,
        chosen_by=choice.chosen_by,
        simulated=choice.simulated,
        nodes_asked=len(choice.names),
        nodes_answered=len(gathered.answered),
        missing=[silence.node for silence in run.silent],
    )
