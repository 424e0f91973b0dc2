"""LOG186 to LOG189, LOG194: what NCCL's own warnings are about where no other check knows them, by their words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, admin, you
from ncclcheck.reports.rules.log.bootstrap_agree import SHARED
from ncclcheck.reports.rules.log.handed_up import without_a_warning
from ncclcheck.reports.rules.log.machines import taken_for_one
from ncclcheck.reports.rules.log.nccl_errno import SYSTEM
from ncclcheck.reports.rules.log.nccl_results import RESULTS
from ncclcheck.reports.rules.log.nccl_words import (
    AROUND,
    ASKED,
    CUDA,
    OWN_CHECKS,
    VERBS,
    Meaning,
    meaning,
    stage,
)
from ncclcheck.reports.rules.log.shm import host_memory_failures
from ncclcheck.reports.rules.log.topology import found_wrong
from ncclcheck.reports.rules.log.ways import not_opened
from ncclcheck.reports.subjects.logs.ending import gave_up
from ncclcheck.reports.subjects.logs.logged import at_teller, by_known_host, cause, events_of, log_rule
from ncclcheck.reports.subjects.logs.logged_node import BY_NCCL, in_nvls
from ncclcheck.reports.subjects.logs.network import card_gone
from ncclcheck.reports.subjects.logs.reported import set_apart, version_seen
from ncclcheck.reports.subjects.logs.start.machines import of_the_job
from ncclcheck.reports.subjects.logs.words import meanings
from ncclcheck.reports.subjects.nccl.variables import reference

_QUOTED = 160  # characters of NCCL's line in a heading
_CALL = re.compile(
    r"Call to (?P<call>ibv_\w{3,40})(?:\(\))? failed(?: with)?(?: error)?:? ?(?:\d{1,3} )?"
    r"(?P<error>[A-Z][\w /-]{2,60})"
)
_MEAN_NOTHING = {*meanings.CONSEQUENCES, *meanings.HARMLESS, *meanings.CONTEXT, "hca-listed"}
_VARIABLE = re.compile(r"\bNCCL_[A-Z0-9_]{2,40}\b")
_KNOWN = {  # calls whose other errors have checks of their own, and those errors
    "ibv_modify_qp": (
        *("Invalid argument", "No such device", "timed out"),
        *("Network is unreachable", "No route to host"),
    ),
    "ibv_reg_mr": ("Cannot allocate memory", "Bad address"),
    "ibv_create_": ("Cannot allocate memory", "Bad address"),
    "ibv_alloc_pd": ("Cannot allocate memory", "Bad address"),
}  # fmt: skip


@log_rule("LOG186", "CUDA, the driver and the host carry out NCCL's calls")
def cuda_calls(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    CUDA refused a call of NCCL with an error for which there is no check of its own: peer access, the MPS server,
    a driver that lacks a call, a capture of a CUDA graph, an argument that it does not take. Or NCCL warns that a
    library, GDRCopy, a local socket or a buffer's registration failed it.

    ## Why it matters
    The rank ends with `unhandled cuda error`, and all others wait for it or end with it.

    ## Seen as
    dies

    ## How we know
    `NCCL WARN Cuda failure N '...'`: CUDA's error, and the file of NCCL's sources that stands before it, which
    shows what NCCL was doing.

    ## Fix
    - **you** what the error asks for; where it is an argument, set the rank's GPU first, and compare the versions
      of driver, CUDA and NCCL on all hosts.

    ## Source
    CUDA Runtime API, cudaError_t; NVIDIA/nccl src, the files named in the lines.
    """
    other = [
        *host_memory_failures(logs),
        *in_nvls(logs),
        *not_opened(logs),
        *taken_for_one(logs, of_the_job(logs)),
    ]
    if events_of(logs, "shm-segment", "shm-extend"):  # the file's own error, in what CUDA said last before it
        other += [
            event
            for event in events_of(logs, *BY_NCCL)
            if "misc/shmutils" in event.fields.get("place", event.text)
        ]
    if set_apart(logs, SHARED):  # LOG191
        other += [event for event in events_of(logs, *BY_NCCL) if "/p2p.cc" in event.fields.get("place", "")]
    events = [event for event in events_of(logs, *BY_NCCL) if event not in other]
    yield from _findings(logs, events, CUDA, lambda event: f" ({event.fields['error']}){stage(event)}")
    yield from _findings(logs, _own_words(logs), AROUND, _words)


@log_rule("LOG187", "the RDMA driver carries out NCCL's calls")
def verbs_calls(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A call of libibverbs failed with an error for which there is no check of its own: the card went away, the
    process may not use it, its objects are used up.

    ## Why it matters
    No connection over that card is made, and the rank ends with ncclSystemError.

    ## Seen as
    dies

    ## How we know
    `Call to ibv_... failed with error ...`: the call and the words of its error (errno).

    ## Fix
    - **you** confirm with `ibv_devinfo` inside of the container, and leave the card out (`NCCL_IB_HCA`).
    - **admin** look into the kernel's log for the card, and compare rdma-core with the driver.

    ## Source
    libibverbs's manual pages (ibv_create_qp(3) and others), errno(3); NVIDIA/nccl src/misc/ibvwrap.cc.
    """
    groups: dict[tuple[str, str], list[LogEvent]] = {}
    for event in events_of(logs, "nccl-warning", "ib-memory", "ib-modify-qp"):
        match = _CALL.search(event.text)
        if match and (card_gone(logs, event) or not _has_its_check(match["call"], match["error"])):
            groups.setdefault((match["call"], match["error"].strip()), []).append(event)
    for (call, error), events in groups.items():
        known = next((entry for entry in VERBS if entry.words.search(error)), None)
        what = known.what if known else "is refused by the card"
        for host, lines in by_known_host(events).items():
            yield _finding(
                logs, lines, f"{call}{f' on {host}' if host else ''} {what}: {error}", known or VERBS[-1]
            )


def _has_its_check(call: str, error: str) -> bool:
    return any(
        call.startswith(begin) and any(part in error for part in errors) for begin, errors in _KNOWN.items()
    )


@log_rule("LOG188", "NCCL can do what the program asks of it")
def asked(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL refused what the program asked for: a call out of order, an argument that it does not take, a structure
    of another NCCL, a feature that this NCCL, GPU or driver does not have.

    ## Why it matters
    The call fails on this rank with ncclInvalidUsage or ncclInvalidArgument, and the others wait for it.

    ## How we know
    NCCL's own words, as `ncclGroupEnd: not in a group call`, `Broadcast : invalid root 9`, `ncclConfig_t argument
    not initialized via NCCL_CONFIG_INITIALIZER`, `FP8 reduction support begins with sm90 capable devices`.

    ## Fix
    - **you** correct the call; torch itself makes none of these, so look at what calls NCCL beside it.

    ## Source
    NVIDIA NCCL documentation, API and Troubleshooting; NVIDIA/nccl src/misc/argcheck.cc, init.cc, group.cc,
    enqueue.cc.
    """
    yield from _findings(logs, _own_words(logs), ASKED, _words)


@log_rule("LOG194", "the system carries out NCCL's calls: threads, sockets, cores")
def system_calls(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The system refused a call of NCCL: it may start no more threads, make no socket, send no packet, or there is no
    memory for it.

    ## Why it matters
    The rank ends with `unhandled system error`, and all others wait for it or end with it.

    ## Seen as
    dies

    ## How we know
    NCCL's own line: the call, and the system's answer to it (errno), as `Call to pthread_create failed: Resource
    temporarily unavailable`, `Call to bind failed: Permission denied`. The same answer means another thing for
    another call. Open files are LOG025, ports LOG019, /dev/shm LOG050 to LOG052, connections LOG014.

    ## Fix
    - **you** fewer threads, another port, what the line asks for; raise the limit before the ranks start.
    - **admin** the limits of the service that starts jobs, filters of system calls, policies of the network.

    ## Source
    errno(3), pthread_create(3), socket(7), bind(2), tcp(7), sched_setaffinity(2), cgroups(7); NVIDIA/nccl
    src/include/checks.h, src/misc/socket.cc.
    """
    yield from _findings(logs, events_of(logs, "nccl-warning"), SYSTEM, _words)


def _own_words(logs: Logs) -> list[LogEvent]:
    """NCCL's warnings, without those about a call of the system."""
    return [event for event in events_of(logs, "nccl-warning") if meaning(event, SYSTEM) is None]


@log_rule("LOG189", "NCCL's own checks hold, and it gives up nowhere", asks_why=True)
def own_checks(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL found its own state wrong: a graph of the machine that does not close, a socket in a state in which it
    cannot be, a device that it knew and does not find. Or it gave up after a warning that no other check knows.

    ## Why it matters
    The communicator is of no use after it, and the job ends.

    ## Seen as
    dies

    ## How we know
    NCCL's own words, and the result that its files hand on below them, as `init.cc:1393 -> 3`: 1 a call of CUDA, 2
    of the system, 3 a check of its own, 4 an argument, 5 how it is used, 6 a peer. Where none is handed on, it
    is a warning. Where no warning stands above the result, the innermost file tells which part gave up, and the
    plugin that it took last which one. Why a check of its own fails it does not tell; memory that the program
    overwrote, hosts with different builds, files of another machine (NCCL_TOPO_FILE) and defects of NCCL have been
    seen as reasons.

    ## Fix
    - **you** confirm with the newest NCCL, without NCCL_TOPO_FILE and NCCL_GRAPH_FILE; search for the words in
      NVIDIA/nccl's issues.

    ## Source
    NVIDIA/nccl src/nccl.h.in (ncclResult_t), src/include/checks.h, src/graph, src/misc/socket.cc, src/enqueue.cc.
    """
    of_files = found_wrong(logs)  # LOG073
    warned = (event for event in _own_words(logs) if event not in of_files)
    unexplained = [event for event in warned if meaning(event, (*AROUND, *ASKED)) is None]
    given = [event for event in unexplained if gave_up(logs, event) and not _is_known(logs, event)]
    yield from _findings(
        logs, [event for event in unexplained if event not in given], OWN_CHECKS, _words, state=State.WARN
    )
    groups: dict[Meaning, list[LogEvent]] = {}
    for event in given:
        known = meaning(event, OWN_CHECKS) or RESULTS.get(gave_up(logs, event))
        if known is not None:
            groups.setdefault(known, []).append(event)
    for known, events in groups.items():
        for host, its in by_known_host(events).items():
            doing = stage(its[0])
            what = f"{known.what}{f' on {host}' if host else ''}{doing}{_words(its[0])}"
            yield _finding(logs, its, what, _with_variables(known, its[0]))
    yield from without_a_warning(logs)


def _is_known(logs: Logs, event: LogEvent) -> bool:
    """Whether another check knows the line, or another warning of its process: they tell of one failure."""
    if _CALL.search(event.text):
        return True
    others = (
        entry
        for entry in logs.events
        if entry.level == "WARN" and (entry.file, entry.host, entry.pid) == (event.file, event.host, event.pid)
    )
    return any(
        meaning(event, (*SYSTEM, *AROUND, *ASKED)) is not None
        if event.sign == "nccl-warning"
        else event.sign not in _MEAN_NOTHING
        for event in others
    )


def _with_variables(known: Meaning, event: LogEvent) -> Meaning:
    """With what to do about a variable that the line names."""
    names = [name for name in dict.fromkeys(_VARIABLE.findall(event.text)) if name in reference()]
    remedies = tuple(
        ("Look at the value that the line names.", f"printenv {name}", f"unset {name}") for name in names
    )
    return known._replace(fix=(*remedies, *known.fix))


def _words(event: LogEvent) -> str:
    text = event.text.partition("NCCL WARN ")[2] or event.text
    return f": {text.strip()[:_QUOTED]}"


def _findings(
    logs: Logs,
    events: list[LogEvent],
    of: Iterable[Meaning],
    more: Callable[[LogEvent], str],
    *,
    state: State = State.FAIL,
) -> Iterator[Finding]:
    """One for each kind and host."""
    groups: dict[Meaning, list[LogEvent]] = {}
    for event in events:
        if (known := meaning(event, of)) is not None:
            groups.setdefault(known, []).append(event)
    for known, lines in groups.items():
        for host, its in by_known_host(lines).items():
            what = f"{known.what}{f' on {host}' if host else ''}{more(its[0])}"
            yield _finding(logs, its, what, known, state)


def _finding(logs: Logs, events: list[LogEvent], what: str, known: Meaning, state: State = State.FAIL) -> Finding:
    remedy = admin if known.owner == "node" else you
    fixes: list[Remedy] = [remedy(*fix) for fix in known.fix]
    return cause(
        events,
        what,
        why=known.why,
        owner=known.owner,
        state=state,
        at=at_teller(logs, events),
        fix=fixes,
        more=version_seen(logs, events[0]),
    )
