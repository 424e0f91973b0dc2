"""RUN001, RUN004: the tool's own run. A silent node and a broken probe are unknown, never fine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ncclcheck.probes.facts import Cluster, Node, RankState, Run, Unread, unread_in
from ncclcheck.probes.facts.data import DataReport
from ncclcheck.probes.facts.live.processes import is_frozen
from ncclcheck.probes.facts.run.course import signal_name
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, not_read, seen, unknown, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.addresses import name_service
from ncclcheck.reports.subjects.failures import lost, silent, stopped

_MOST_TOLD = 16  # nodes that are named; chosen


@rule("RUN001", "every node responded", worst=State.UNKNOWN, over="", unfinished=True)
def every_node_answered(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Every requested node has sent its facts, and has reported how its part of the job ended.

    ## Why it matters
    A node that is silent is neither healthy nor broken: nothing is known of it, and the run cannot be
    called ready. The exit code is 3.

    ## How we know
    Each node's agent announces every step before it starts. The report shows the last step that arrived, how
    long the node was heard in it, what its process printed and its exit status. Where no agent could start,
    ssh's or srun's words say why: a key, a host key, a name, a port, an sshd that sends no banner, no
    interpreter or ncclcheck there, a prolog that failed, a slurmd that does not answer, a job that was
    cancelled or has ended. A node that says nothing for 9 s gets a second look, by another ssh or job step:
    its agent is stopped (state T), gone (killed), waits in the kernel (state D), or its login shell never ran
    the command; in a join the node's own ncclcheck says so. A node whose channel closes before it is told to
    leave is silent, though its facts are here. Where `--deadline` left less than 15 s for the
    facts, the deadline is named and not the node.

    ## Fix
    - **you**: for ssh, `ssh -o BatchMode=yes NODE true` must end at once, without a question.
    - **you**: for a join, start the command on every node; one that runs says itself why it does not come.
    - **you**: of what remains, look at the step it stopped in, and try it by hand on that node.
    - **admin**: where the last word was a probe, look for a hung driver or file system in the kernel log.

    ## Source
    gpu-monitoring-tools#46 and sglang PR#31229: nvidia-smi that never returns. ssh(1), srun(1), munge(7).
    """
    if not cluster.nodes and not cluster.run.silent:
        raise NothingToJudge("no nodes to judge")
    yield from silent.findings(cluster)


@rule("RUN004", "every probe and rule ran", worst=State.UNKNOWN, over="", last=True, unfinished=True)
def every_probe_and_rule_ran(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    No probe timed out or broke, no rule, no rank and no examiner of a dataset raised by a defect of ncclcheck, and
    every process that was started has ended.

    ## Why it matters
    What was not read was not judged, so the result is not finished: the exit code is 3, never 0.

    ## How we know
    Every probe runs under a time limit, every rule under a guard; a process that SIGKILL does not end
    is in state D, and its wait channel names the driver or file system that it waits for. A rank reports the
    exception that ended it: where wrong code raised it (an AttributeError, say) in a line of ncclcheck, or in a
    call of torch from there, no node is to blame. The examiner tries the dataset in child processes, so its own
    end is none of the dataset's. An exception there is ours where its traceback ends in ncclcheck and passes no
    line of yours.

    ## Fix
    - **you**: report a broken probe, rule or rank with the file of `--save`.
    - **admin**: a probe that times out points at a hung driver, name service or file system on that node.

    ## Source
    proc(5): states of a process, wchan.
    """
    sound: set[int] = set()
    for node in cluster.nodes:
        for path, fact in _failed(node, sound):
            if path == "host.own_name" and name_service.mute(node):
                continue  # HST005 says why
            yield not_read(
                Where(node=node.name),
                path,
                fact,
                path,
                why="It gave no usable answer, so nothing that needs it was judged.",
                fix=[admin("Look at why this does not answer on that node.")],
            )
    for crash in cluster.crashes:
        yield unknown(
            Where(), f"{crash.code} raised {crash.error}", why="A defect of ncclcheck, not of the cluster.",
            owner="tool", evidence=[seen(crash.code, crash.error)],
            fix=[you("Report it with the file of --save.")],
        )  # fmt: skip
    yield from _defects(cluster.run)
    yield from _of_datasets(cluster.measurements.data)
    yield from _examiners(cluster.run)
    for left in cluster.run.leftovers:
        yield unknown(
            Where(node=left.node, device=f"pid {left.pid}"),
            f"{left.command} could not be ended: state {left.state}, waiting in {left.wchan or 'unread'}",
            why="The kernel ends no process that waits for a device; it stays until the device answers."
            if not is_frozen(left.state, left.wchan)
            else "Its control group is frozen (docker pause, a suspended step): it ends when that is thawed.",
            evidence=[seen(f"/proc/{left.pid}/wchan", left.wchan)],
            fix=stopped.let_go_on("F", left.pid)
            if is_frozen(left.state, left.wchan)
            else [admin("Look at that driver or file system in the kernel log; often only a reboot helps.")],
        )


def _defects(run: Run) -> Iterator[Finding]:
    """What ended ranks and is no fault of theirs; the same line of ncclcheck is reported once."""
    by_place: dict[str, list[RankState]] = {}
    for rank in run.ranks:
        if rank.defect:
            by_place.setdefault(rank.defect, []).append(rank)
    for place, ranks in by_place.items():
        error = lost.last_line(ranks[0].error)
        yield unknown(
            Where(),
            f"ncclcheck's worker raised {error}, in {ranks[0].last_step!r}",
            why="A defect of ncclcheck, or an incompatible torch: no node is at fault.",
            owner="tool",
            evidence=[
                seen(f"ncclcheck/{place}", error),
                seen("ranks", ", ".join(f"{rank.rank} on {rank.node}" for rank in ranks[:_MOST_TOLD])),
            ],
            fix=[you("Report it with the file of --save.")],
        )


def _of_datasets(reports: Sequence[DataReport]) -> Iterator[Finding]:
    """Exceptions of ours while a dataset was looked at; the same one is reported once."""
    by_trace: dict[str, list[tuple[str, str]]] = {}
    for report in reports:
        for unseen in report.unseen:
            if unseen.defect:
                by_trace.setdefault(unseen.defect, []).append((report.node, unseen.aspect))
    for trace, places in by_trace.items():
        nodes = [*dict.fromkeys(node for node, _ in places)]
        aspects = ", ".join(dict.fromkeys(aspect for _, aspect in places))
        yield unknown(
            Where(node=nodes[0] if len(nodes) == 1 else None),
            f"internal error of ncclcheck: {trace.splitlines()[-1]}",
            why=f"What it was examining ({aspects} of the dataset) is unknown. Your code did not raise this.",
            owner="tool",
            evidence=[seen("nodes", ", ".join(nodes[:_MOST_TOLD])), seen("traceback", trace)],
            fix=[you("Please report it with the file of --save.")],
        )


def _examiners(run: Run) -> Iterator[Finding]:
    """What ended the examiners of a dataset; the same words are reported once."""
    by_words: dict[str, list[str]] = {}
    for end in run.examiners:
        how = (
            "could not be started" if end.exit is None
            else f"was killed by {signal_name(-end.exit)}" if end.exit < 0
            else f"ended with status {end.exit}"
        )  # fmt: skip
        last = f": {lost.last_line(end.detail)}" if end.detail else " and no word"
        by_words.setdefault(how + last, []).append(end.node)
    for words, nodes in by_words.items():
        yield unknown(
            Where(),
            f"the examiner of the dataset {words}",
            why="What it had not reported by then was not judged. The dataset itself is tried in its children.",
            owner="tool",
            evidence=[seen("examiner", words), seen("nodes", ", ".join(nodes[:_MOST_TOLD]))],
            fix=[
                you("Where it was killed, give it more memory.", "dmesg -T | grep -i 'killed process'"),
                you("Else report it with the file of --save."),
            ],
        )


def _failed(node: Node, sound: set[int]) -> Iterator[tuple[str, Unread]]:
    """What could not be read though it is there. Few nodes have any, and JSON tells it far sooner than a walk.

    sound: ids of parts, which outlive the call, that hold nothing of the kind: nodes share most of theirs.
    """
    for name in node.__struct_fields__:
        part = getattr(node, name)
        if id(part) in sound or name == "probes":
            continue
        written = msgspec.json.encode(part)
        if b'"timed_out"' in written or b'"broken"' in written:
            yield from (
                (path, fact) for path, fact in unread_in(part, name) if fact.kind in ("timed_out", "broken")
            )
        else:
            sound.add(id(part))
