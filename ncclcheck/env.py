"""`ncclcheck env`: the facts of this node, or of all nodes, and their agreement. Imports no torch."""

from __future__ import annotations

import os
import time

from ncclcheck import finish, saved
from ncclcheck.clock import Deadline
from ncclcheck.errors import Interrupted
from ncclcheck.finish import Story
from ncclcheck.launch import choose
from ncclcheck.launch.agents import Events
from ncclcheck.options import Options
from ncclcheck.plan import default_deadline
from ncclcheck.progress import Progress
from ncclcheck.session import signals_as_events
from ncclcheck.stages import Stages


def run(options: Options) -> int:
    """Read the facts of all nodes and judge them; the exit code. Raises UsageError."""
    finish.check_outputs(options)
    if options.from_file is not None:
        return saved.judge_again(options)
    begun, started = time.monotonic(), finish.now()
    deadline = Deadline(options.deadline or default_deadline("env"))
    events, progress = Events(), Progress(quiet=options.quiet)
    caught: int | None = None
    with signals_as_events(events):
        stages = Stages.start(options, choose.choose(options, os.environ), events, deadline, progress)
        try:
            stages.facts()
            stages.reach()
        except Interrupted as interrupted:
            caught = interrupted.number
        cluster = stages.cluster()
        stages.session.close()
        progress.clear()
    return finish.finish(cluster, options, Story(started, time.monotonic() - begun, stages.done, caught))
