"""A program of Python beside the ranks of a running job: here, by ssh, in a step of Slurm, in pods or containers.

Nothing is installed there: the program is given to `python3 -` on its stdin, and says one line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from subprocess import Popen
from typing import Any, NamedTuple

from ncclcheck.base.errors import UsageError
from ncclcheck.launch.hosts import nodelist
from ncclcheck.launch.slurm import OF_ANOTHER_STEP
from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine import process

# Children at once: an ssh uses 8 MiB and waits; 1,000 nodes are one round. File descriptors: three for each.
_AT_ONCE = 1024
_ASK_S = 10.0  # squeue, kubectl get
_ONE_BY_ONE = 64  # steps of Slurm at once, where one step for all nodes failed
_MOST = 512 * 2**20  # bytes of one child: 20,000 nodes of Slurm at 25 kB
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-T")
_JOB = re.compile(r"\d{1,10}(?:_\d{1,10}|\+\d{1,4})?", re.ASCII)
_POD = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_ENTERS = re.compile(r"(docker|podman|nerdctl|kubectl|crictl)$")
# srun passes on at most 1,024 bytes of a line at once, and what other nodes say comes between (measured with
# Slurm 22.05): short pieces, each with its node's name.
_NAMED = '"$@" | fold -b -w 900 | sed "s/^/$SLURMD_NODENAME /"'


class HostChild(NamedTuple):
    """A child that leads to one host, or to several that say their names first. problem: it cannot begin."""

    hosts: Sequence[str]
    argv: Sequence[str]
    named: bool = False
    problem: str = ""


class HostAnswer(NamedTuple):
    """What the program said on one host; else why it said nothing."""

    host: str
    line: str = ""
    problem: str = ""


class SlurmJob(NamedTuple):
    """A running job of Slurm. number: its SLURM_JOB_ID."""

    number: str
    nodes: Sequence[str]


def here(arguments: Sequence[str], via: str | None) -> list[HostChild]:
    """This host, or where `via` leads from it."""
    inside = entering(via)
    return [
        HostChild(
            ["this host" if not inside else inside[-1]], [*(inside or [sys.executable]), *_end(inside, arguments)]
        )
    ]


def by_ssh(targets: Mapping[str, str], arguments: Sequence[str], via: str | None) -> list[HostChild]:
    """By ssh. targets: the host's name -> what ssh is given."""
    line = shlex.join([*(entering(via) or ["python3"]), *_end(entering(via), arguments)])
    return [HostChild([name], [*_SSH, "--", target, line]) for name, target in targets.items()]


def in_steps(job: SlurmJob, arguments: Sequence[str], via: str | None, *, each: bool = False) -> list[HostChild]:
    """In a step beside those of a job, for all of its nodes or one for each."""
    inside = [*(entering(via) or ["python3"]), *_end(entering(via), arguments)]
    groups = [[node] for node in job.nodes] if each else [[*job.nodes]]
    return [
        HostChild(nodes, [*_step(job, nodes), "sh", "-c", _NAMED, "sh", *inside], named=True) for nodes in groups
    ]


def in_pods(selector: str, namespace: str, container: str, arguments: Sequence[str]) -> list[HostChild]:
    """In the pods that a selector names. Raises UsageError."""
    of = ["--namespace", namespace] if namespace else []
    inside = ["--container", container] if container else []
    return [
        HostChild(
            [name], ["kubectl", "exec", "-i", *of, name, *inside, "--", "python3", "-", *arguments], problem=why
        )
        for name, why in _pods(selector, of)
    ]


def _end(inside: Sequence[str], arguments: Sequence[str]) -> list[str]:
    return ["python3", "-", *arguments] if inside else ["-", *arguments]


def entering(via: str | None) -> list[str]:
    """The words of --via; `docker exec` and its like pass stdin on only with -i. Raises UsageError."""
    try:
        words = shlex.split(via or "")
    except ValueError as error:
        raise UsageError(f"--via: {via!r} is no command: {error}") from None
    if (
        len(words) > 1
        and _ENTERS.search(words[0])
        and words[1] == "exec"
        and not {"-i", "-it", "--interactive"} & {*words}
    ):
        words.insert(2, "-i")
    return words


def job_of(given: str) -> SlurmJob:
    """The number and nodes of a running job. Raises UsageError where Slurm has none."""
    if not _JOB.fullmatch(given):
        raise UsageError(f"--job: {given[:40]!r} is not a job number: 4711, or 4711_3 of an array")
    output = process.run(
        ["squeue", "--noheader", "--jobs", given, "--format", "%A|%T|%N"], _ASK_S, env=_environment()
    )
    if isinstance(output, Unread):
        raise UsageError(f"--job: {output.why}")
    rows = [line.split("|") for line in output.out.splitlines() if line.count("|") == 2]
    running = [row for row in rows if row[1] in ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED")]
    if not running:
        states = ", ".join(sorted({row[1] for row in rows})) or output.err.strip()[:200] or "it knows no such job"
        raise UsageError(f"--job: Slurm runs no job {given}: {states}")
    if len({row[0] for row in running}) > 1:
        raise UsageError(f"--job: {given} are several jobs ({', '.join(row[0] for row in running[:8])}); name one")
    return SlurmJob(running[0][0], nodelist.expand(running[0][2], "squeue"))


def _step(job: SlurmJob, nodes: Sequence[str]) -> list[str]:
    count = str(len(nodes))
    return [
        "srun", f"--jobid={job.number}", "--overlap", "--job-name=ncclcheck-hang",
        f"--nodes={count}", f"--ntasks={count}",
        "--ntasks-per-node=1", f"--nodelist={nodelist.fold(nodes)}", "--export=ALL", "--input=all", "--mpi=none",
        "--cpu-bind=none", "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--quiet",
    ]  # fmt: skip


def _environment() -> dict[str, str]:
    """Ours, without what a surrounding step would say to srun."""
    return {name: value for name, value in os.environ.items() if not OF_ANOTHER_STEP.fullmatch(name)}


def _pods(selector: str, of: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name, and why it cannot be entered. Raises UsageError."""
    output = process.run(
        ["kubectl", "get", "pods", *of, "--selector", selector, "--output", "json"], _ASK_S, most=_MOST
    )
    if isinstance(output, Unread):
        raise UsageError(f"--pods: {output.why}")
    if output.status:
        raise UsageError(f"--pods: kubectl: {output.err.strip()[:300] or f'it ended with {output.status}'}")
    try:
        items: list[dict[str, Any]] = json.loads(output.out)["items"]
        phases = [(str(pod["metadata"]["name"]), str(pod.get("status", {}).get("phase", ""))) for pod in items]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"--pods: kubectl's output is not a list of pods: {error}") from None
    if not phases:
        raise UsageError(f"--pods: no pod has {selector!r}; kubectl get pods --show-labels has their labels")
    for name, phase in phases:
        if not _POD.fullmatch(name):
            raise UsageError(f"--pods: {name[:60]!r} is no name of a pod")
        yield name, "" if phase in ("Running", "") else f"the pod is {phase}"


def answers(ways: Sequence[HostChild], program: bytes, limit: float) -> list[HostAnswer]:
    """What the program says on each host, in their order. Never raises, waits no longer than `limit` seconds."""
    at_once = max(1, process.make_room(3 * min(len(ways), _AT_ONCE)) // 3)
    rounds = [ways[at : at + at_once] for at in range(0, len(ways), at_once)]
    return [answer for some in rounds for answer in _round(some, program, limit)]


def in_job(
    job: SlurmJob, arguments: Sequence[str], via: str | None, program: bytes, limit: float
) -> list[HostAnswer]:
    """The same in a job of Slurm: one step, and for nodes that it did not reach one each."""
    answered = answers(in_steps(job, arguments, via), program, limit)
    left = [answer.host for answer in answered if answer.problem]
    if not left or len(job.nodes) == 1:
        return answered
    ways = in_steps(job._replace(nodes=left), arguments, via, each=True)
    again: dict[str, HostAnswer] = {}
    for at in range(0, len(ways), _ONE_BY_ONE):
        again.update((answer.host, answer) for answer in answers(ways[at : at + _ONE_BY_ONE], program, limit))
    return [again.get(answer.host, answer) for answer in answered]


def _round(ways: Sequence[HostChild], program: bytes, limit: float) -> Iterator[HostAnswer]:
    begun = [_begun(way) for way in ways]
    children = [begin for begin in begun if not isinstance(begin, str)]
    ended = iter(process.watch_all(children, program, limit, most=_MOST))
    for way, child in zip(ways, begun, strict=True):
        if isinstance(child, str):
            yield from (HostAnswer(host, problem=child) for host in way.hosts)
        else:
            yield from _answer(way, limit, *next(ended))


def _begun(way: HostChild) -> Popen[bytes] | str:
    """The child, or why there is none."""
    if way.problem:
        return way.problem
    try:
        return process.start(way.argv, control=True, env=_environment())
    except OSError as error:
        return f"{way.argv[0]}: {error.strerror or error}"


def _answer(way: HostChild, limit: float, status: int | None, out: str, err: str) -> Iterator[HostAnswer]:
    why = f"it gave no answer in {limit:g} s" if status is None else _last_words(way.argv[0], status, err)
    lines_by_host = _named(out.split("\n")) if way.named else {}
    if not way.named:
        lines = [line for line in out.splitlines() if line.startswith("{")]
        lines_by_host = {way.hosts[0]: lines[-1]} if lines else {}
    for host in way.hosts:
        yield HostAnswer(host, lines_by_host[host]) if host in lines_by_host else HostAnswer(host, problem=why)


def _named(lines: Iterable[str]) -> dict[str, str]:
    """What each node said, put together again."""
    pieces: dict[str, list[str]] = {}
    for line in lines:
        name, _, part = line.partition(" ")
        pieces.setdefault(name, []).append(part)
    whole = {name: "".join(piece) for name, piece in pieces.items()}
    return {name: text for name, text in whole.items() if text.startswith("{")}


def _last_words(tool: str, status: int, err: str) -> str:
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return (lines[-1] if lines else f"{os.path.basename(tool)} ended with status {status}")[:200]
