"""BOX011: who made a watched job slow."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.box import pace, words


@rule("BOX011", "no rank or node held up the job", worst=State.WARN, over="", commands=("watch",))
def nobody_held_it_up(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The job went on, and from some moment to its end each step took at least two thirds longer than before. One
    rank or node stands out: a rank that works while all the others wait, a GPU whose clock fell, or a node whose
    data waits to be sent.

    ## Why it matters
    All ranks wait for the slowest one in every step, and nothing in the job's own output names it.

    ## Seen as
    slow

    ## How we know
    The bytes that each rank writes a second, as gloo's messages or a line a step, give the pace where all ranks
    became slower at once; else those that the nodes send, for every step sends the same. Once a second the watcher
    sees whether each rank's main thread waits for others, how much data waits to be sent, and NVML's clocks. Ranks
    on NCCL are busy while they wait; there the clocks are the only sign.

    ## Fix
    - **you** see what changed on that node at that time, which the evidence lists; if nothing did, that rank has
      more to do than the others.
    - **admin** look at the node: cooling, power cap, other processes, its link.

    ## Source
    docs/watch.md; Meta, The Llama 3 Herd of Models, section 3.3.4, on stragglers.
    """
    if not cluster.measurements.boxes:
        raise NothingToJudge("no job was watched")
    slowdown = pace.slow(cluster)
    if slowdown is None:
        return
    rank = slowdown.process.rank if slowdown.process is not None else None
    who = f"rank {rank} on {slowdown.box.host}" if rank is not None else slowdown.box.host
    changes = slowdown.changes or ["nothing else that was recorded changed on this node"]
    yield warn(
        Where(node=slowdown.box.host, rank=rank),
        f"{who} has held up the job since {words.clock(slowdown.t)} UTC: each step takes {slowdown.ratio:.1f} "
        "times as long",
        why="All ranks wait for the slowest one in every step.",
        owner="node",
        evidence=[seen("who", slowdown.what), *(seen("changed there", text) for text in changes[:6])],
        fix=[
            you(
                "See what changed on that node at that time; if nothing did, this rank has more to do than others."
            ),
            admin("Look at the node: cooling, power cap, other processes, its link."),
        ],
    )
