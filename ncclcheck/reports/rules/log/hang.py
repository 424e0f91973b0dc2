"""LOG: hangs, as the watchdogs of all ranks tell of them: who did not come, and what is stuck."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, Where, admin, seen, you
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.subjects.job.pairing import WHY_PAIRING, confirm_pairing, pairing
from ncclcheck.reports.subjects.logs import hangs
from ncclcheck.reports.subjects.logs.flight.view import RECORD
from ncclcheck.reports.subjects.logs.hangs import Hang
from ncclcheck.reports.subjects.logs.logged import cause, events_of, in_order, lines, log_rule
from ncclcheck.reports.text.words.fold import fold_ranks


def _last(hang: Hang) -> list[Evidence]:
    return [seen(f"rank {rank}", f"its last collective was {hang.last[rank]}") for rank in hang.behind[:4]]


def _recorded(logs: Logs) -> list[Remedy]:
    """Where the Flight Recorder told nothing yet."""
    recorded = logs.flight is not None and logs.flight.dumps
    return [] if recorded else [you("Confirm: have the Flight Recorder on the next time.", *RECORD)]


@log_rule("LOG080", "every rank entered the collective in which the others waited")
def every_rank_came(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The ranks that did not enter the collective in which the watchdogs of the others timed out.

    ## Why it matters
    The ranks that print the time-out are the healthy ones: they waited. The culprit is the rank that did not
    come: it works alone (rank 0 that evaluates, writes a checkpoint or calls a collective alone), it hangs
    elsewhere, or it is dead.

    ## Seen as
    hangs

    ## How we know
    `Watchdog caught collective operation timeout` names rank and number of the collective; `last enqueued work`
    shows how far each rank came (torch 2.2 and later). A rank whose last is smaller did not come; where none is
    behind, ranks of the world whose watchdog is silent, if their lines would be in these files: one rank's log
    accuses nobody else. After a rank's first send or receive, of which torch warns and which is recorded nowhere,
    no rank is named (see LOG132).

    ## Fix
    - **you** look what the named rank does at that place (py-spy dump --pid PID); call collectives, and what
      holds them (save, evaluate, barrier), on all ranks; give long work of one rank a longer time-out, or a
      gloo group.
    - **admin** where the rank is gone, look at its host.

    ## Source
    PyTorch documentation, torch.distributed (time-outs) and Flight Recorder; alan-turing-institute/autocast#386,
    EleutherAI/bergson#444, goodfire-ai/spd#536 (rank 0 alone).
    """
    waited = events_of(logs, "watchdog-timeout", "gloo-timeout")
    if not waited:
        raise NothingToJudge("no watchdog gave up")
    yield from _silent_in_gloo(logs)
    for hang in hangs.of_kind(logs, "absent"):
        if began := [line for rank, line in pairing(logs).items() if rank in hang.absent]:
            yield _pairing(hang, began)
            continue
        alone = hang.absent == [0]
        saving = hangs.lines_of(logs, hang.absent, "saving", "save-frame") if alone else []
        busy = (
            ". It was saving"
            if saving
            else ". What rank 0 alone does there is the first thing to look for"
            if alone
            else ""
        )
        how = "did not come" if hang.behind else "printed nothing, and may not have come,"
        yield cause(
            hang.events,
            f"{fold_ranks(hang.absent)} {how} to {hangs.waited(hang)}{busy}",
            why="The ranks that print the time-out only waited; the one that did not come stops them all.",
            owner="job",
            at=hangs.place(logs, hang.absent[0]),
            more=[*_last(hang), *lines(saving[:1])],
            fix=[
                you("Confirm: see where that rank is.", "py-spy dump --pid PID"),
                *_recorded(logs),
                you("Call every collective, and save, evaluate and barrier calls that hold one, on all ranks; "
                    "give long work of one rank a longer timeout= in init_process_group."),
            ],
        )  # fmt: skip


def _pairing(hang: Hang, began: list[LogEvent]) -> Finding:
    """Whoever sends or receives waits as well, or stays away after it: no rank is named."""
    return cause(
        [*hang.events[:2], *began],
        f"{fold_ranks(hang.absent)} did not come to {hangs.waited(hang)}, after a first send or receive whose "
        "peer may not have called the other half",
        why=WHY_PAIRING,
        owner="job",
        at=Where(),
        more=_last(hang),
        fix=[confirm_pairing(began)],
    )


def _silent_in_gloo(logs: Logs) -> Iterator[Finding]:
    """gloo names nobody: where most ranks waited in vain, the silent ones are what they waited for."""
    waited = in_order(event for event in events_of(logs, "gloo-timeout") if event.rank is not None)
    ranks = sorted({event.rank for event in waited if event.rank is not None})
    absent = sorted({*range(max(ranks, default=0))} - {*logs.ranks})
    if ranks and 0 < len(absent) <= len(ranks) and hangs.is_of_several(logs):
        yield cause(
            waited,
            f"{fold_ranks(absent)} did not come: {fold_ranks(ranks)} waited in vain, and of the others "
            "nothing is heard",
            why="The ranks that print the time-out only waited.",
            owner="job",
            at=hangs.place(logs, absent[0]),
            fix=[you("Confirm: see where that rank is.", "py-spy dump --pid PID"),
                 you("Call every collective on all ranks; give long work of one rank a longer timeout=.")],
        )  # fmt: skip


@log_rule("LOG089", "no rank hangs in its data loader")
def no_rank_hangs_in_its_loader(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A rank that did not come to a collective and whose stack stands in the data loader.

    ## Why it matters
    Slow storage, or a worker that was forked with a lock held, looks like a hang of NCCL on all other ranks.

    ## Seen as
    hangs

    ## How we know
    The rank is behind in the watchdogs' numbers, and a stack in the log (py-spy, faulthandler, a traceback)
    shows it in `torch/utils/data` or in a queue of its workers.

    ## Fix
    - **you** `timeout=` for the DataLoader, `multiprocessing_context="spawn"`; `ncclcheck data MODULE:FACTORY`.
    - **admin** compare the storage of its node with that of the others.

    ## Source
    PyTorch documentation, torch.utils.data (multi-process data loading).
    """
    for hang in hangs.of_kind(logs, "loader"):
        stuck = hangs.in_loader(hang, logs) or []
        frames = hangs.lines_of(logs, stuck, "loader-frame") or events_of(logs, "loader-frame")
        who = f"{fold_ranks(stuck)} hangs" if stuck else "a rank hangs"
        yield cause(
            [*frames[:1], *hang.events],
            f"{who} in its data loader and did not come to {hangs.waited(hang)}",
            why="All others wait in NCCL for a rank that waits for its data.",
            owner="job",
            at=hangs.place(logs, stuck[0]) if stuck else Where(),
            fix=[you("Confirm: measure the loader alone.", "ncclcheck data MODULE:FACTORY"),
                 admin("Compare the storage of its node with that of the others.")],
        )  # fmt: skip


@log_rule("LOG094", "every collective that all ranks entered completes")
def what_all_entered_ends(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A collective that every rank of the world entered and none completed.

    ## Why it matters
    Then no rank is missing: the network or the path between GPUs is stuck, or one GPU is.

    ## How we know
    The watchdogs of all ranks gave up at the same number and operation of the group.

    ## Fix
    - **you** run `ncclcheck bench --hosts HOST1,HOST2`: it times pairs and names the node or link; try
      `NCCL_P2P_DISABLE=1` (one node) and `NCCL_NET_GDR_LEVEL=LOC` (several), each alone, to see which transport
      hangs.
    - **admin** ACS and IOMMU on PCIe bridges, port counters, `dmesg` of all hosts.

    ## Source
    NVIDIA NCCL documentation, Troubleshooting; NVIDIA/nccl#2079, NVIDIA/nccl#257.
    """
    for hang in hangs.of_kind(logs, "together"):
        yield cause(
            hang.events,
            f"all {len(hang.waits)} ranks are in {hangs.waited(hang)}, and none completed it: the transport is "
            "stuck",
            why="No rank is missing: the network, the path between GPUs or a GPU itself is stuck.",
            owner="node",
            at=Where(),
            fix=[you("Confirm: time pairs of nodes.", "ncclcheck bench --hosts HOST1,HOST2"),
                 admin("Look at ACS, port counters and the kernel's log on all hosts.", "dmesg -T | tail -50")],
        )  # fmt: skip


@log_rule("LOG095", "no watchdog timed out", symptom=True, asks_why=True)
def no_watchdog_gave_up(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A watchdog timeout whose log does not name the missing rank.

    ## Why it matters
    The ranks that print it waited; which rank did not come is in the logs of the others.

    ## How we know
    `Watchdog caught collective operation timeout`, without the numbers of all ranks; or gloo waited in vain.

    ## Fix
    - **you** give the logs of all ranks, or turn the Flight Recorder on and give its dumps.

    ## Source
    PyTorch documentation, Flight Recorder for Debugging Stuck Jobs.
    """
    for hang in hangs.of_kind(logs, "unclear"):
        yield cause(
            hang.events,
            f"{fold_ranks(wait.rank for wait in hang.waits)} gave up in {hangs.waited(hang)}; "
            "the missing rank is not named",
            why="The ranks that print the time-out only waited.",
            owner="job",
            at=Where(),
            fix=[you("Give the logs of all ranks."), *_recorded(logs)],
        )
    if (cut := events_of(logs, "watchdog-cut")) and not events_of(logs, "watchdog-timeout"):
        ranks = sorted({event.rank for event in cut if event.rank is not None})
        who = fold_ranks(ranks) if ranks else "a watchdog"
        number = {event.fields["seq"] for event in cut if "seq" in event.fields}
        which = f"collective {number.pop()}" if len(number) == 1 else "a collective"
        silent = [rank for rank in range(ranks[-1]) if rank not in logs.ranks] if len(ranks) > 1 else []
        yield cause(
            cut,
            f"{who} gave up in {which}; the lines are cut, and the missing rank is not named"
            + (f" (not in these files: {fold_ranks(silent)})" if 0 < len(silent) < len(ranks) else ""),
            why="The ranks that print the time-out only waited.",
            owner="job",
            at=Where(),
            fix=[you("Give the logs of all ranks."), *_recorded(logs)],
        )
    if waited := in_order(events_of(logs, "gloo-timeout")):
        yield cause(
            waited,
            f"gloo waited in vain for another rank{_called(logs, waited)}",
            why="The rank that prints it waited; another did not come.",
            owner="job",
            fix=[you("Give the logs of all ranks.", "export TORCH_DISTRIBUTED_DEBUG=DETAIL")],
        )


def _called(logs: Logs, waited: list[LogEvent]) -> str:
    """Where the program called the collective in which it waited."""
    raised = {
        (event.file, event.line): event.fields.get("raised_at", "") for event in events_of(logs, "python-error")
    }
    at = next(filter(None, (raised.get((event.file, event.line), "") for event in waited)), "")
    return f", called at {at}" if at else ""


@log_rule("LOG097", "all ranks launch the collectives of two groups in the same order")
def same_order_of_groups(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Two process groups with common ranks that hang together, though every rank has entered both collectives.

    ## Why it matters
    A collective of NCCL occupies its GPU until all have come. Where rank 0 launches group A before group B, and
    rank 1 B before A, each waits on the GPU for what the other has queued behind.

    ## How we know
    The watchdogs of both groups gave up, and the numbers of all their ranks are the same. A stuck network can
    look alike; the order of launches is in the dumps of the Flight Recorder.

    ## Fix
    - **you** launch the collectives of all groups in one order on all ranks, or one after the other;
      `NCCL_LAUNCH_ORDER_IMPLICIT=1` (NCCL 2.26 and later).

    ## Source
    NVIDIA NCCL documentation, Using multiple NCCL communicators concurrently; NCCL_LAUNCH_ORDER_IMPLICIT.
    """
    crossed = hangs.of_kind(logs, "crossed")
    if crossed:
        groups = ", ".join(f"{hang.op} of group {hang.group}" for hang in crossed[:4])
        yield cause(
            [line for hang in crossed for line in hang.events[:2]],
            f"groups with common ranks hang at once, and all ranks have entered both: {groups}",
            why="Ranks that launch two groups in different orders wait for each other on the GPU.",
            owner="job",
            at=Where(),
            fix=[*_recorded(logs),
                 you("Launch them in one order on all ranks.", "export NCCL_LAUNCH_ORDER_IMPLICIT=1")],
        )  # fmt: skip
