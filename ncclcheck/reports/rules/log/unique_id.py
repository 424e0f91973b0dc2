"""LOG192, LOG193: ranks of a communicator share one id, and understand what they hand each other."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogMember, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Finding, Where, fail, seen, you
from ncclcheck.reports.rules.log.bootstrap import alone, unwritten
from ncclcheck.reports.rules.log.bootstrap_agree import SHARED
from ncclcheck.reports.subjects.logs.dialled_addresses import names
from ncclcheck.reports.subjects.logs.logged import (
    at_host,
    by_known_host,
    cause,
    events_of,
    lines,
    log_rule,
    process_of,
)
from ncclcheck.reports.subjects.logs.reported import one_version, set_apart
from ncclcheck.reports.subjects.logs.start.communicators import apart, begun, begun_again, numbered
from ncclcheck.reports.text.words.fold import fold_ranks

_MOST_LINES = 2  # of each kind beside what ranks began: chosen, a third shows nothing more


@log_rule("LOG192", "the ranks of a communicator share one unique id, used once")
def shared_id(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Ranks of one job begin different communicators: each made an id of its own, NCCL_COMM_ID differs, one never
    received the id, or they make several in different orders. Or an id is used for a second communicator.

    ## Why it matters
    Ranks find each other by the id: it holds the address at which rank 0 waits, and a number that all must show.
    With another id a rank dials an address where nobody of this job waits, is turned away, or waits for ever. Rank
    0 closes that address once all have met, so that an id serves one communicator only.

    ## Seen as
    does not start, hangs

    ## How we know
    NCCL names the communicator in `... rank 1 nranks 2 ... commId 0x... - Init START`. Ranks of one size that
    begin with different commIds, none of which came through, in one version of NCCL, while no process began
    anything else; or a process
    that begins a commId again that it had completed (not under NCCL_COMM_ID, where all ids are the same). A rank
    that dials an address of family 0 holds an id that nobody filled.

    ## Fix
    - **you** let rank 0 alone call ncclGetUniqueId, send what it returns to all others (MPI_Bcast, a store, a file
      that is written whole and renamed), and make a new one for each communicator.
    - **you** NCCL_COMM_ID: rank 0's address and one port, the same on all ranks; or unset it.

    ## Source
    NCCL user guide, Creating a communicator, and NCCL_COMM_ID; NVIDIA/nccl src/bootstrap.cc, src/init.cc.
    """
    if again := begun_again(logs):
        yield fail(
            Where(node=again[0].host, rank=again[0].rank),
            f"a unique id is used a second time: {numbered(again)} began a communicator with it again, after it "
            "had come through",
            why="Rank 0 closes the address in an id as soon as all ranks have met: nobody listens there any more.",
            owner="job",
            evidence=begun(again),
            fix=[
                you("Confirm: each communicator has a commId of its own.",
                    "grep -o 'commId.*Init START' LOG | sort | uniq -c"),
                you("Call ncclGetUniqueId once for each communicator, on one rank, and send it to the others."),
            ],
        )  # fmt: skip
    elif first := apart(logs):
        yield _differ(logs, first)


def _differ(logs: Logs, first: list[LogMember]) -> Finding:
    set_to = _comm_ids(logs)
    nobody = [event for event in events_of(logs, "socket-family") if event.fields.get("family") == "0"]
    few = [member for member in first if member.rank][:1] or first
    at = Where(node=few[0].host, rank=few[0].rank)
    fix = [
        you("Confirm: compare what each rank began.", "grep 'Init START' LOG"),
        you("Let rank 0 alone call ncclGetUniqueId, and send what it returns to all others before they begin."),
        you("Let all ranks make their communicators in the same order."),
    ]
    what = (
        f"the ranks of this job each began another communicator, with {len(first)} different unique ids: most "
        "likely each made its own, one is left of another job, or they make communicators in different orders"
    )
    why = "A rank finds the others by the id: with another one it waits where none of them comes."
    if len(set_to) > 1:
        values = ", ".join(f"{value} on {who}" for value, who in [*set_to.items()][:3])
        what = f"NCCL_COMM_ID differs between ranks: {values}"
        fix = [
            you("Confirm: compare it on all ranks.", "env | grep NCCL_COMM_ID"),
            you(
                "Give rank 0's address and one port to all, or let the program hand out the id.",
                "unset NCCL_COMM_ID",
            ),
        ]
    elif nobody:
        at = Where(node=nobody[0].host or None, rank=nobody[0].rank)
        what = (
            f"{names(event.host for event in nobody)} began with a unique id that holds no address: it never got "
            "the one of rank 0"
        )
    strangers = [event for event in events_of(logs, "wrong-magic") if event.file][:_MOST_LINES]
    return fail(
        at,
        what,
        why=why,
        owner="job",
        evidence=[*lines([*nobody[:_MOST_LINES], *strangers]), *begun(first)],
        fix=fix,
    )


def _comm_ids(logs: Logs) -> dict[str, str]:
    """NCCL_COMM_ID -> the ranks that have it, the most first."""
    by_value: dict[str, list[LogProcess]] = {}
    for process in logs.processes:
        if "NCCL_COMM_ID" in process.settings:
            by_value.setdefault(process.settings["NCCL_COMM_ID"], []).append(process)
    return {
        value: f"{fold_ranks(member.rank for member in who if member.rank is not None)} "
        f"({names(member.host for member in who)})"
        for value, who in sorted(by_value.items(), key=lambda pair: -len(pair[1]))
    }


@log_rule("LOG193", "what ranks hand each other to connect is what the peer waits for")
def understood_by_the_peer(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A rank got something else from a peer than what it waited for, though all have the same NCCL version: an
    address of no family, a message of another length.

    ## Why it matters
    Ranks that connect read each other's messages in the order of their own calls. Where one sends first and the
    other sends too, or another operation, peer or communicator is called, each takes the other's message for what
    it is not.

    ## Seen as
    dies, hangs

    ## How we know
    `connecting to address ... with family 0 is neither AF_INET(2) nor AF_INET6(10)` or `Message truncated`, where
    all hosts tell one version (LOG018), no setting differs (LOG191), the unique id is shared (LOG192) and no
    interface is asked for in vain (LOG012). libnccl 2.27.7 says so of two ranks that both send before they
    receive.

    ## Fix
    - **you** compare the calls of both ranks: every send has its receive, in one ncclGroupStart/ncclGroupEnd where
      both send; all ranks call the same collectives of a communicator in the same order.
    - **you** end processes that an earlier job left on the nodes.

    ## Source
    NCCL user guide, Point-to-point communication, and Group calls; NVIDIA/nccl src/bootstrap.cc, src/transport.cc.
    """
    version = one_version(logs)
    if not version or set_apart(logs, SHARED) or apart(logs):
        return
    on_one_host = alone(logs)
    events = [
        *(
            event
            for event in events_of(logs, "socket-family")
            if event not in on_one_host and not unwritten(logs, event)
        ),
        *events_of(logs, "bootstrap-truncated"),
    ]
    for host, own in by_known_host(events).items():
        process = process_of(logs, own[0])
        started = process is not None and process.completed >= process.began > 0
        calls = "as when both send before they receive, or call different operations"
        yield cause(
            own,
            f"{names([host])} read from a peer what this did not send for it"
            + (f": ranks do not make the calls that belong together, {calls}" if started else ""),
            why="All hosts tell one NCCL version: what differs are the calls of the ranks, or their settings.",
            owner="job",
            at=at_host(host, own),
            fix=[
                you("Confirm: see which call each rank is in.", "py-spy dump --pid PID"),
                you("Give each send its receive, both within ncclGroupStart and ncclGroupEnd (torch: "
                    "batch_isend_irecv), and call collectives in one order on all ranks."),
                you("See that no variable differs, and that no process of an earlier job is left.",
                    "env | grep NCCL_", "pgrep -af python"),
            ],
            more=[seen("NCCL", version)],
        )  # fmt: skip
