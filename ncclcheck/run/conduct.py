"""How every command that runs on nodes goes: outputs tried, launcher chosen, stages run, verdict told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from ncclcheck.base.errors import Interrupted, UsageError
from ncclcheck.base.exits import Exit
from ncclcheck.base.progress import Progress, complain
from ncclcheck.launch import choose
from ncclcheck.launch.agents import Events
from ncclcheck.launch.choose import LauncherChoice
from ncclcheck.launch.joining.trust.identity import JoinIdentity
from ncclcheck.launch.joining.trust.secret import HOW_TO
from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.jsondoc import Document, encode
from ncclcheck.reports.text.closing import decision
from ncclcheck.results import finish, outputs, saved
from ncclcheck.results.finish import Story
from ncclcheck.run.own_command import OwnCommand
from ncclcheck.run.plan.options import Options
from ncclcheck.run.session import signals_as_events
from ncclcheck.run.stages import Stages, agent_options

# What a command does on its nodes: work(stages) -> how the cluster looks at any time; run raises Interrupted.
Work = Callable[[Stages], "tuple[Callable[[], None], Callable[[], Cluster]]"]


_MEASURES_ONLY = OwnCommand()

# What follows the report: the exit code, and the document where this node has it -> the exit code of all.
After = Callable[[int, "Document | None"], int]


def conduct(
    options: Options, seconds: float, work: Work, after: After | None = None, own: OwnCommand = _MEASURES_ONLY
) -> int:
    """Run a command; the exit code. seconds: its deadline, from the time when all nodes are there.

    own: what a node of a join that follows node rank 0 may be asked to do.
    """
    after = after or (lambda code, _: code)
    outputs.check(options)
    if options.from_file is not None:
        return saved.judge_again(options)
    choice = choose.choose(options, os.environ)
    if choice.who is not None:
        _say_who_may_come(choice.who, own)
    if choice.who is not None and choice.lead is None:
        return after(_follow(choice.who, options, seconds, replace(own, seconds=seconds)), None)
    return after(*_lead(choice, saved.with_baseline(options), seconds, work))


def _lead(choice: LauncherChoice, options: Options, seconds: float, work: Work) -> tuple[int, Document]:
    begun, started = time.monotonic(), finish.now()
    events, progress = Events(), Progress(quiet=options.quiet)
    caught: int | None = None
    with signals_as_events(events):
        stages = Stages.start(options, choice, events, seconds, progress)
        run, cluster_now = work(stages)
        try:
            run()
        except Interrupted as interrupted:
            caught = interrupted.number
            stages.session.stop_job()
        except Exception as error:
            _tell(choice, Exit.USAGE if isinstance(error, UsageError) else Exit.INCOMPLETE, str(error))
            stages.session.close()
            raise
        cluster = cluster_now()
        document = finish.make(cluster, options, Story(started, time.monotonic() - begun, stages.done, caught))
        shown = finish.as_shown(document, options)
        each = encode(shown) if "%n" in (options.json_file or "") else None
        _tell(choice, document.exit_code, decision(shown), each)
        stages.session.close()
        progress.clear()
    return finish.deliver(document, options, choice.who.name if choice.who else choice.names[0]), document


def _tell(choice: LauncherChoice, exit_code: int, words: str, document: bytes | None = None) -> None:
    if choice.lead is not None:
        choice.lead.done(exit_code, words, document)


def _say_who_may_come(who: JoinIdentity, own: OwnCommand) -> None:
    """Every node of a join without a secret says so. Raises UsageError where the user's own code is asked for."""
    if who.nodes > 1 and who.local_rank == 0:
        own.refuse_without(who.secret)
        if who.secret.kind == "none":
            complain(
                f"this join has no secret: whoever reaches the port of {who.endpoint} can take part, so only "
                f"facts and measurements are taken from other nodes; {HOW_TO}"
            )


def _follow(who: JoinIdentity, options: Options, seconds: float, own: OwnCommand) -> int:
    """Another node of a join: one line on stderr; a document of its own only if node rank 0 was never reached."""
    from ncclcheck.launch.join import wait_of  # noqa: PLC0415
    from ncclcheck.run.follower import alone, follow  # noqa: PLC0415 - most runs are no join

    begun, started, progress = time.monotonic(), finish.now(), Progress(quiet=options.quiet)
    wait = wait_of(who, options.wait)
    followed = follow(who, options.command, Events(), wait, own, progress, *agent_options(options, seconds))
    progress.clear()
    if followed.line:
        complain(followed.line)
    if followed.document is not None and (document := _document(followed.document)) is not None:
        outputs.write_json(options, who.name, encode(document))
    if followed.node is None:
        return followed.exit_code
    story = Story(started, time.monotonic() - begun)
    return finish.deliver(finish.make(alone(who, followed, options), options, story), options, who.name)


def _document(data: bytes) -> Document | None:
    """The report that node rank 0 sent, decoded; None where it is not a document."""
    try:
        return msgspec.json.decode(data, type=Document)
    except (msgspec.MsgspecError, RecursionError) as error:
        complain(f"node rank 0 sent a report that cannot be read: {error}")
        return None
