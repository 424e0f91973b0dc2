"""RUN001, RUN004: the tool's own run. A silent node and a broken probe are unknown, never fine."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ncclcheck.probes.facts import Cluster, Node, Silence, Unread, unread_in
from ncclcheck.reports import launching
from ncclcheck.reports.findings import Finding, State, Where, admin, seen, unknown, you
from ncclcheck.reports.fold import fold_names
from ncclcheck.reports.rule import NothingToJudge, rule

_MOST_TOLD = 16


@rule("RUN001", "every node answered", worst=State.UNKNOWN, over="")
def every_node_answered(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Every node that was asked for has sent its facts, and has said how its part of the job ended.

    ## Why it matters
    A node that is silent is neither healthy nor broken: nothing is known of it, and the run cannot be
    called ready. The exit code is 3.

    ## How we know
    Each node's agent announces every step before it starts. The report shows the last step that arrived,
    how long ago that was, and what its process printed. Where no agent could start, ssh's or srun's words
    say why: a key, a name, a port, no interpreter or ncclcheck there, a slurmd that does not answer. Where
    `--deadline` left less than 15 s for the facts, the deadline is named and not the node.

    ## Fix
    - **you**: look at the step it stopped at, and try it by hand on that node.
    - **you**: for ssh, `ssh -o BatchMode=yes NODE true` must end without a question.
    - **admin**: a node whose probes never end often has a hung driver or file system: look at the
      kernel log there.

    ## Source
    gpu-monitoring-tools#46 and sglang PR#31229: nvidia-smi that never returns. ssh(1), srun(1), munge(7).
    """
    if not cluster.nodes and not cluster.run.silent:
        raise NothingToJudge("no nodes to judge")
    told = [(silence, launching.recognised(silence)) for silence in cluster.run.silent]
    yield from (entry for _, entry in told if entry is not None)
    silent = [silence for silence, entry in told if entry is None]
    if silent and launching.hurried(cluster.run):
        yield _hurried(cluster.command, silent)
        return
    for silence in silent:
        detail = [seen("its process", silence.detail)] if silence.detail else []
        yield unknown(
            Where(node=silence.node),
            _silent(silence),
            why="Nothing is known of this node, so it is neither ready nor broken.",
            evidence=[seen("last step", silence.last_step or "none"), *detail],
            fix=[
                you("See whether it answers at all, and what its own report says.", "ncclcheck env -v"),
                admin("Look at its kernel log for a hung driver or file system.", "dmesg -T | tail -50"),
            ],
        )


def _hurried(command: str, silent: list[Silence]) -> Finding:
    names = fold_names(silence.node for silence in silent)
    return unknown(
        Where(),
        f"--deadline is too short: it came before the facts of {names} were there",
        why="Reading the facts takes seconds on a sound node, so this says nothing of the node.",
        owner="job",
        evidence=[seen(f"last step of {one.node}", one.last_step or "none") for one in silent[:_MOST_TOLD]],
        fix=[you("Give it more time, or leave the option out.", f"ncclcheck {command} --deadline 60")],
    )


@rule("RUN004", "every probe and rule ran", worst=State.UNKNOWN, over="", last=True)
def every_probe_and_rule_ran(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    No probe timed out or broke, no rule raised, and every process that was started has ended.

    ## Why it matters
    What was not read was not judged, so the result is not finished: the exit code is 3, never 0.

    ## How we know
    Every probe runs under a time limit, every rule under a guard; a process that SIGKILL does not end
    is in state D, and its wait channel names the driver or file system that it waits for.

    ## Fix
    - **you**: report a broken probe or rule with the file of `--save`.
    - **admin**: a probe that times out points at a hung driver, name service or file system on that node.

    ## Source
    proc(5): states of a process, wchan.
    """
    for node in cluster.nodes:
        for path, fact in _failed(node):
            yield unknown(
                Where(node=node.name),
                f"{path}: {fact.why}",
                why="It was asked and gave no usable answer, so nothing that needs it was judged.",
                evidence=[seen(path, f"{fact.kind}: {fact.why}")],
                fix=[admin("Look at why this does not answer on that node.")],
            )
    for crash in cluster.crashes:
        yield unknown(
            Where(), f"{crash.code} raised {crash.error}", why="A defect of ncclcheck, not of the cluster.",
            owner="tool", evidence=[seen(crash.code, crash.error)],
            fix=[you("Report it with the file of --save.")],
        )  # fmt: skip
    for left in cluster.run.leftovers:
        yield unknown(
            Where(node=left.node, device=f"pid {left.pid}"),
            f"{left.command} could not be ended: state {left.state}, waiting in {left.wchan or 'unread'}",
            why="The kernel ends no process that waits for a device; it stays until the device answers.",
            evidence=[seen(f"/proc/{left.pid}/wchan", left.wchan)],
            fix=[admin("Look at that driver or file system in the kernel log; often only a reboot helps.")],
        )


def _failed(node: Node) -> Iterator[tuple[str, Unread]]:
    """What could not be read though it is there. Few nodes have any, and JSON tells it far sooner than a walk."""
    written = msgspec.json.encode(node)
    if b'"timed_out"' in written or b'"broken"' in written:
        for path, fact in unread_in(node):
            if fact.kind in ("timed_out", "broken") and not path.startswith("probes"):
                yield path, fact


def _silent(silence: Silence) -> str:
    if not silence.last_step:
        return f"it never answered, for {silence.since_s:.0f} s"
    return f"no answer; the last it said, {silence.since_s:.0f} s before, was {silence.last_step!r}"
