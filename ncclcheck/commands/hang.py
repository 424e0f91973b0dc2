"""`ncclcheck hang`: two looks at the jobs that run now, here or where their ranks are. Changes nothing."""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec

from ncclcheck.base.progress import Progress
from ncclcheck.launch import beside, hostfile
from ncclcheck.probes.facts import Cluster, Job, Launcher, Live, Measurements
from ncclcheck.probes.live import received, stream
from ncclcheck.probes.live.received import Received
from ncclcheck.results import finish, outputs, saved
from ncclcheck.run.plan.options import Options

SECONDS = 6.0  # between the looks: a step of most jobs is shorter, so that a job that advances is seen to
_MORE_S = 30.0  # for the login, the processes of a large host, py-spy, and RAS where ranks do not answer it


class Place(NamedTuple):
    """Where the ranks are: a job of Slurm, pods; else hosts of the options, or this one."""

    job: str = ""
    pods: str = ""
    namespace: str = ""
    container: str = ""


def run(
    options: Options, seconds: float, *, passive: bool, place: Place, ras: str = "auto", signal: str = ""
) -> int:
    """Look, judge, report; the exit code. Raises UsageError."""
    outputs.check(options)
    if options.from_file is not None:
        return saved.judge_again(options)
    started, begun = finish.now(), time.monotonic()
    progress = Progress(quiet=options.quiet)
    progress.stage(f"two looks, {seconds:g} s apart")
    several = bool(place.job or place.pods or options.hosts or options.hostfile)
    arguments = stream.arguments(seconds, passive=passive, ras=ras, signal=signal, several=several)
    launcher, said = _answers(options, place, arguments, seconds + _MORE_S)
    found = [*map(_received, said)]
    progress.clear()
    cluster = Cluster(
        command="hang",
        job=Job(launcher=launcher, chosen_by="hosts are looked at", nodes_asked=len(found)),
        measurements=Measurements(
            live=[one.live for one in found],
            ras=[ras for one in found for ras in one.ras],
            records=received.records(piece for one in found for piece in one.pieces),
        ),
        policy=options.policy,
    )  # fmt: skip
    story = finish.Story(started=started, seconds=time.monotonic() - begun)
    return finish.deliver(finish.make(cluster, options, story), options)


def _answers(
    options: Options, place: Place, arguments: list[str], limit: float
) -> tuple[Launcher, list[beside.Answer]]:
    """By which launcher, and what each host said. Raises UsageError."""
    program = stream.program()
    if place.job:
        job = beside.job_of(place.job)
        return "slurm", beside.in_job(job, [*arguments, f"job={job.number}"], options.via, program, limit)
    if place.pods:
        ways = beside.in_pods(place.pods, place.namespace, place.container, arguments)
        return "ssh", beside.answers(ways, program, limit)
    if options.hosts or options.hostfile:
        hosts = (
            hostfile.from_option(options.hosts) if options.hosts else hostfile.from_file(options.hostfile or "")
        )
        ways = beside.by_ssh({one.name: one.target for one in hosts}, arguments, options.via)
        return "ssh", beside.answers(ways, program, limit)
    return "local", beside.answers(beside.here(arguments, options.via), program, limit)


def _received(said: beside.Answer) -> Received:
    """What the probe tells of one host; a problem where it tells nothing."""
    if said.problem:
        return Received(live=Live(host=said.host, problem=said.problem))
    try:
        return received.host(said.line, "" if said.host == "this host" else said.host)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return Received(live=Live(host=said.host, problem=f"what it said is not understood: {error}"[:200]))
