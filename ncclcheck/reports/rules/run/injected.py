"""RUN011: what was measured with faults of the user's own says nothing of the machine."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, State, Where, note, seen, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule


@rule("RUN011", "no fault was injected", worst=State.NOTE, over="", commands=("bench", "smoke"))
def no_fault_was_injected(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The job ran without `--inject`, so that what was measured is the machine's own.

    ## Why it matters
    `--inject` shows what the report would say of a fault; such a report must not be taken for one of the machine,
    nor kept as a baseline. `slow-rank=2:20ms`: rank 2 is 20 ms late in every iteration. `slow-link=0-1:20ms`: in
    the exchanges two by two each MiB between nodes 0 and 1 takes 20 ms longer (three nodes or more show it).
    `corrupt=1`: one bit of one operation's results is flipped on rank 1. `hang=3@5`: rank 3 sleeps for ever from
    its iteration 5 on. `crash=2@5`: rank 2 kills itself there; both in the first one without `@`. Of a training
    (`smoke`): `rank-init=1` (other weights), `no-sync=1` (its own gradients only), `skip-step=1@3`, `uneven=1`
    (fewer batches), `leak=1`, `stray=1` (a tensor that should not be there), `slow-data=1:50ms`, `unused` (a
    parameter that takes no part), `no-set-epoch`, `one-file` (all ranks write to one).

    ## Seen as
    hangs, does not start, slow, wrong results, dies

    ## How we know
    The option is written into the result (`job.injected`) with the faults as they were asked for. All other
    checks judge as ever, also between simulated nodes, which are otherwise one machine: that is the purpose.

    ## Fix
    - **you**: run it again without `--inject` to judge the machine.

    ## Source
    ncclcheck's own; no other tool takes part.
    """
    if not cluster.run.started_job:
        raise NothingToJudge("no job was started")
    if faults := cluster.job.injected:
        yield note(
            Where(),
            f"injected: {', '.join(faults)}",
            why="What this report blames may be nothing but these.",
            evidence=[seen("--inject", ", ".join(faults))],
            fix=[you("Judge the machine without them: drop --inject.")],
        )
