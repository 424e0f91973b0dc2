"""LOG098, LOG099: a rank that leaves early, and a process group that is not there when it is used."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Where, you
from ncclcheck.reports.subjects.logs.logged import (
    at_teller,
    cause,
    events_of,
    log_rule,
    own_exceptions,
    root_cause,
)
from ncclcheck.reports.subjects.logs.words import meanings

_LOST = ("remote-closed", "connection-reset", "broken-pipe")


@log_rule("LOG098", "all ranks exit together")
def leaves_early(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A rank that came to the end of its program while the others still called collectives.

    ## Why it matters
    Its end is no failure to torchrun (exit code 0), so that it is named nowhere. The others lose it in their next
    collective, and they are named.

    ## How we know
    torchrun lists every process of its node that failed or was ended. Where one local rank before the last of
    those is not in the list, all listed ones only report that another one went away, and nothing else failed, that
    one ended with 0. Told of gloo, where the list is of one node and short.

    ## Fix
    - **you** let all ranks do the same number of steps: the same length of data (`drop_last=True`,
      DistributedSampler, or `Join`), no `return` or `sys.exit(0)` in one rank only; a barrier before the end.

    ## Source
    PyTorch documentation, torchrun (Error Propagation), Distributed Optimizers and Join, DistributedSampler.
    """
    root, ranks = root_cause(logs), events_of(logs, "root-cause-rank")
    hosts = {event.fields["host"] for event in events_of(logs, "root-cause-host")}
    if root is None or len(hosts) != 1 or any(rank.count > 1 for rank in ranks) or _failed(logs):
        return
    away, lost = _unlisted(ranks), [event for event in events_of(logs, *_LOST) if "gloo" in event.text]
    if away and lost and away[0] not in {event.rank for event in lost}:
        yield cause(
            lost,
            f"rank {away[0]} had ended without an error while the others still called collectives",
            why="torchrun names only those that failed, and these only lost the one that had ended.",
            owner="job",
            at=Where(node=root.host or None, rank=away[0]),
            fix=[
                you("Confirm: let each rank print its number of steps before it ends.",
                    "grep -rnE 'sys.exit|os._exit|return$|drop_last|DistributedSampler' train.py"),
                you("Give all ranks the same number of batches, and end them together.",
                    'python -c "import torch.distributed as d; d.barrier(); d.destroy_process_group()"   # last'),
            ],
        )  # fmt: skip


def _unlisted(ranks: list[LogEvent]) -> list[int]:
    """Ranks of the node, below the last one in torchrun's list, that are not in it."""
    local = {int(rank.fields["local_rank"]): int(rank.fields["rank"]) for rank in ranks}
    firsts = {rank - number for number, rank in local.items()}
    missing = sorted({*range(max(local, default=0))} - {*local})
    return [firsts.pop() + number for number in missing[:1]] if len(firsts) == 1 and len(missing) == 1 else []


def _failed(logs: Logs) -> list[LogEvent]:
    """Whatever tells of a failure of its own, a signal too."""
    exits = [event for event in events_of(logs, "root-cause-exit") if event.fields["exitcode"] not in ("1", "-15")]
    known = {*meanings.CONSEQUENCES, *meanings.HARMLESS}
    warned = [event for event in logs.events if event.level == "WARN" and event.sign not in known]
    return [
        *exits,
        *own_exceptions(logs),
        *warned,
        *events_of(logs, "watchdog-timeout", "gloo-timeout", "oom-killed", "store-broken"),
    ]


@log_rule("LOG099", "the process group is initialized once, before it is used")
def group(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A collective was called before init_process_group or after destroy_process_group, or the group was made twice.

    ## Why it matters
    The rank ends with a ValueError; where only some ranks take that way, the others wait for it.

    ## Seen as
    dies

    ## How we know
    `Default process group has not been initialized`, `trying to initialize the default process group twice!`.

    ## Fix
    - **you** call init_process_group once, first of all; with accelerate, Lightning or DeepSpeed let the framework
      do it; guard it with `if not dist.is_initialized()`; no collective behind destroy_process_group.

    ## Source
    PyTorch documentation, torch.distributed, Initialization and Shutdown.
    """
    missing, twice = events_of(logs, "group-not-made"), events_of(logs, "group-made-twice")
    if events := missing or twice:
        yield cause(
            events,
            "torch.distributed was used before init_process_group, or after destroy_process_group" if missing
            else "init_process_group was called twice",
            why="The program made no group by then: its own order, or it was started without the launcher "
            "for which it makes one." if missing
            else "The script and a framework both make the default process group.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm: see where it is made and left.",
                    "grep -rnE 'init_process_group|destroy_process_group|Accelerator\\(|init_distributed' ."),
                *([you("Where it was started by python alone, start it by its launcher.",
                       "torchrun --nproc-per-node=gpu train.py ...")] if missing else []),
                you("Make it once, first of all, and only where nobody has.",
                    'python -c "import torch.distributed as d; d.is_initialized() or d.init_process_group()"'),
            ],
        )  # fmt: skip
