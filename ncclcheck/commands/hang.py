"""`ncclcheck hang`: two looks at the jobs that run now, here or where their ranks are. Changes nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from ncclcheck.base.progress import Progress
from ncclcheck.launch import beside
from ncclcheck.launch.hosts import hostfile
from ncclcheck.probes.facts import Cluster, Job, Launcher, Live, Measurements
from ncclcheck.probes.live import received, stream
from ncclcheck.probes.live.received import Received
from ncclcheck.results import finish, outputs, saved
from ncclcheck.run.plan.option_table import WHERE, CommandOption, Flag, NumberRange, WordChoice, made_of, typed
from ncclcheck.run.plan.options import Options

_MORE_S = 30.0  # for the login, the processes of a large host, py-spy, and RAS where ranks do not answer it


@dataclass(frozen=True)
class HangOptions:
    """The options of `hang` itself: how to look, and where; else at hosts of the common options, or here."""

    seconds: float = typed(
        6.0,
        "--seconds",
        "time between the two looks",
        NumberRange(2, 600, "seconds"),
        metavar="S",
        show_default=True,
    )  # a step of most jobs is shorter, so that a job that advances is seen to
    passive: bool = typed(
        False,
        "--passive",
        "ask ranks for nothing: no py-spy, no Flight Recorder by its pipe, no --stacks-signal",
        Flag(),
        variable=False,
    )
    ras: str = typed(
        "auto",
        "--ras",
        "ask NCCL's RAS; auto leaves out versions that may crash when they are asked",
        WordChoice(("auto", "always", "never")),
        show_default=True,
    )
    signal: str = made_of(
        "",
        str,
        CommandOption(
            "--stacks-signal",
            "the job gave this signal (USR1, USR2) to faulthandler.register: "
            "send it to suspects and one other rank",
            WordChoice(("USR1", "USR2")),
            metavar="NAME",
        ),
    )
    job: str | None = typed(
        None,
        "--job",
        "a running job of Slurm: a step beside its own (srun --overlap)",
        group=WHERE,
        metavar="ID",
        variable=False,
    )
    pods: str | None = typed(
        None,
        "--pods",
        "pods of Kubernetes by label: app=train (kubectl exec)",
        group=WHERE,
        metavar="SELECTOR",
        variable=False,
    )
    container: str = typed(
        "", "--container", "which container of --pods", short="-c", group=WHERE, metavar="NAME", variable=False
    )
    namespace: str = typed(
        "", "--namespace", "the namespace of --pods", group=WHERE, metavar="NAME", variable=False
    )


def run(options: Options, wanted: HangOptions) -> int:
    """Look, judge, report; the exit code. Raises UsageError."""
    outputs.check(options)
    if options.from_file is not None:
        return saved.judge_again(options)
    started, begun = finish.now(), time.monotonic()
    progress = Progress(quiet=options.quiet)
    progress.stage(f"two looks, {wanted.seconds:g} s apart")
    several = bool(wanted.job or wanted.pods or options.hosts or options.hostfile)
    arguments = stream.arguments(
        wanted.seconds, passive=wanted.passive, ras=wanted.ras, signal=wanted.signal, several=several
    )
    launcher, answers = _answers(options, wanted, arguments, wanted.seconds + _MORE_S)
    nodes = [*map(_received, answers)]
    progress.clear()
    cluster = Cluster(
        command="hang",
        job=Job(launcher=launcher, chosen_by="hosts are looked at", nodes_asked=len(nodes)),
        measurements=Measurements(
            live=[node.live for node in nodes],
            ras=[ras for node in nodes for ras in node.ras],
            records=received.records(piece for node in nodes for piece in node.pieces),
        ),
        policy=options.policy,
    )  # fmt: skip
    story = finish.Story(started=started, seconds=time.monotonic() - begun)
    return finish.deliver(finish.make(cluster, options, story), options)


def _answers(
    options: Options, wanted: HangOptions, arguments: list[str], limit: float
) -> tuple[Launcher, list[beside.HostAnswer]]:
    """By which launcher, and what each host said. Raises UsageError."""
    program = stream.program()
    if wanted.job:
        job = beside.job_of(wanted.job)
        return "slurm", beside.in_job(job, [*arguments, f"job={job.number}"], options.via, program, limit)
    if wanted.pods:
        ways = beside.in_pods(wanted.pods, wanted.namespace, wanted.container, arguments)
        return "ssh", beside.answers(ways, program, limit)
    if options.hosts or options.hostfile:
        hosts = (
            hostfile.from_option(options.hosts) if options.hosts else hostfile.from_file(options.hostfile or "")
        )
        ways = beside.by_ssh({host.name: host.target for host in hosts}, arguments, options.via)
        return "ssh", beside.answers(ways, program, limit)
    return "local", beside.answers(beside.here(arguments, options.via), program, limit)


def _received(answer: beside.HostAnswer) -> Received:
    """What the probe tells of one host; a problem where it tells nothing."""
    if answer.problem:
        return Received(live=Live(host=answer.host, problem=answer.problem))
    try:
        return received.host(answer.line, "" if answer.host == "this host" else answer.host)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return Received(live=Live(host=answer.host, problem=f"its answer is not understood: {error}"[:200]))
