"""LOG020, LOG027 and LOG170: the master that all dial, by its name, as an address, and whether it answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import first_named
from ncclcheck.reports.judgement.findings import Finding, Where, admin, you
from ncclcheck.reports.rules.log.bootstrap_store import RENDEZVOUS
from ncclcheck.reports.rules.log.values import before_a_refusal
from ncclcheck.reports.subjects.logs.ending import came_through
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule, where
from ncclcheck.reports.subjects.logs.reported import owner_of, starts_later

_NETWORK = {"110", "113", "101"}
_RETRIES = 20  # a start that goes well tells it once or twice a rank
# tries at the end of a log; a start that goes well logs one or two a rank: chosen between that and _RETRIES
_IN_VAIN = 5
# As clouds and Ray fold them.
_SIMILAR = re.compile(r"^\[(?P<cloud>\d{1,6}) similar log lines\]|\[repeated (?P<ray>\d{1,6})x across cluster\]")
_RAISED = re.compile(r"^\S{0,80}Error: ")
_WHY = ("error", "told", "error_of", "nccl", "ssh")
_WEB = re.compile(
    r"HTTPS?Connection|https?://|huggingface|urllib3?\.|requests\.|aiohttp|httpx|Max retries exceeded"
)
_CHAIN = 200  # lines of tracebacks from a name that has no address to the last exception that follows from it


@log_rule("LOG020", "the master's hostname resolves on every node")
def name(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The host of MASTER_ADDR, or of --rdzv-endpoint, has no address on a node that dials it.

    ## Why it matters
    The node never reaches torch's store: it tries until its time-out (minutes), and all others wait for it.

    ## Seen as
    hangs

    ## How we know
    `The IPv6 network addresses of (HOST, PORT) cannot be retrieved (gai error: -2 ...)` and then the time-out for
    the same host, or so many times that it cannot be the one try that precedes IPv4, or again and again to the end
    of the log; `-3 - Temporary failure` as its last line. Else, once alone, it is harmless.

    ## Fix
    - **you** give the address itself: `export MASTER_ADDR=10.0.3.17`, `--rdzv-endpoint=10.0.3.17:29500`; look for
      a typo.
    - **admin** put the name into the DNS or /etc/hosts of every node.

    ## Source
    pytorch/pytorch#79388, pytorch/pytorch#76367; getaddrinfo(3), hosts(5).
    """
    lost = {_host(event) for event in events_of(logs, "store-unreachable")}
    wrong = malformed(logs)
    tried = [event for event in events_of(logs, "name-unresolved") if event.fields["host"] not in wrong]
    total = sum(max(event.count, event.count - 1 + _folded(event)) for event in tried)
    in_vain = total > _RETRIES or _to_the_end(logs, tried) or _nothing_after(logs, tried)
    in_vain = in_vain or any(_RAISED.search(event.text) for event in tried)
    events = [event for event in tried if event.fields["host"] in lost or in_vain]
    if lost or not tried:
        asked = events_of(logs, "python-name-unresolved")  # of NCCL_RAS_ADDR too, without which NCCL goes on
        refused = [
            of for event in events_of(logs, "setting-refused") if (of := before_a_refusal(logs, event))
        ]  # LOG072
        events += [
            event
            for event in asked
            if event not in refused and not _of_the_web(logs, event) and not came_through(logs, event)
        ]
    if not events or wrong or starts_later(logs, events[-1]):
        return
    host = next((event.fields["host"] for event in events if "host" in event.fields), "")
    by_ssh = events[0].text.startswith("ssh:")  # mpirun's and pdsh's way to the other nodes
    yield cause(
        events,
        f"{f'the name {host}' if host else 'the name of the master'} has no address on the node that dials it: "
        f"{_unknown(events)}",
        why="A typo in the list of hosts, a name that only some nodes know, or a node (a pod) that is not up yet."
        if by_ssh else "A typo in MASTER_ADDR or --rdzv-endpoint, or a name that only some nodes know.",
        owner="job",
        fix=[
            you("Confirm on each node: it must print an address.",
                f"getent ahosts {quote(host) if host else '$MASTER_ADDR'}"),
            you("Start mpirun once all names resolve; in Kubernetes the workers need a headless service, and must "
                "be up before the launcher.",
                f"for i in $(seq 60); do getent ahosts {quote(host or 'NODE')} && break; sleep 5; done") if by_ssh
            else you("Give the address instead of the name.",
                     "export MASTER_ADDR=$(getent ahostsv4 HEAD | awk 'NR==1{print $1}')"),
            admin("Make the name known on all nodes.", "cat /etc/hosts"),
        ],
    )  # fmt: skip


def _of_the_web(logs: Logs, event: LogEvent) -> bool:
    """Whether it was the name of a hub or a service, as the exceptions that follow from it tell."""
    after = (
        error for error in events_of(logs, "python-error") if error.file == event.file and error.line >= event.line
    )
    return any(error.line - event.line <= _CHAIN and _WEB.search(error.text) for error in after)


def _folded(event: LogEvent) -> int:
    """How often it was said, where only one of the lines is there."""
    match = _SIMILAR.search(event.text)
    return int(match["cloud"] or match["ray"]) if match else 1


def _nothing_after(logs: Logs, tried: list[LogEvent]) -> bool:
    """Whether the log ends with a try that no name server answered: IPv4 would ask the same one."""
    last = {file.name: file.lines for file in logs.files}
    return any(
        "Temporary failure" in event.fields["error"] and event.line >= last.get(event.file, 0) for event in tried
    )


def _to_the_end(logs: Logs, tried: list[LogEvent]) -> bool:
    """Whether a log ends with tries, of which there are more than a start that goes well has."""
    last = {file.name: file.lines for file in logs.files}
    here = [event for event in tried if event.line >= last.get(event.file, 0)]
    return any(sum(event.count for event in tried if event.file == end.file) >= _IN_VAIN for end in here)


def _unknown(events: list[LogEvent]) -> str:
    return next(
        (reason for event in events if (reason := first_named(event.fields, *_WHY))),
        "unknown",
    )


def malformed(logs: Logs) -> dict[str, LogEvent]:
    """What was dialled as the master and is no host's address -> the first line that tells it."""
    events: dict[str, LogEvent] = {}
    for event in events_of(logs, "address-malformed"):
        events.setdefault(event.fields.get("host") or event.fields.get("dialled", ""), event)
    return events


@log_rule("LOG170", "MASTER_ADDR is the hostname or address of one host")
def master_is_a_host(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    MASTER_ADDR, or the host of --rdzv-endpoint, is empty, a bare number, a netmask, a list of hosts, or holds a
    blank.

    ## Why it matters
    Nobody can dial it. A bare number is taken for an address (15 is 0.0.0.15), so no resolver complains; the ranks
    try until their time-out and speak of the network.

    ## Seen as
    hangs

    ## How we know
    What torch says that it dials: `network addresses of (, 29500)`, `trying to connect to (255.255.255.0, 29500)`,
    `(gpu-[01-04], 29500)`. A script that cuts a word out of `hostname -I`, `ip addr` or SLURM_NODELIST took the
    wrong one, or the variable was not exported.

    ## Fix
    - **you** print it where the job starts: `echo "[$MASTER_ADDR]"`; under Slurm
      `MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)`.

    ## Source
    PyTorch documentation, torch.distributed (environment variables); inet(3), scontrol(1), hostname(1).
    """
    for host, event in [*malformed(logs).items()][:1]:
        same = [event for event in events_of(logs, "address-malformed") if _dialled(event) == host]
        yield cause(
            same,
            f"what is dialled as the master is {_kind(host)}",
            why="Nobody has this address; every rank tries until its time-out.",
            owner="job",
            at=where(event),
            fix=[
                you("Confirm, where the ranks start.", 'echo "[$MASTER_ADDR]"'),
                you("Give the first node's name.",
                    'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)'),
            ],
        )  # fmt: skip


def _dialled(event: LogEvent) -> str:
    return event.fields.get("host") or event.fields.get("dialled", "")


def _kind(host: str) -> str:
    if not host.strip():
        return "empty: MASTER_ADDR is not set"
    if host.isdigit():
        return f"the bare number {host}, which is read as an address"
    if host.startswith("255."):
        return f"a netmask, {host}"
    if host == "0.0.0.0":
        return "0.0.0.0, which is no host: a place to listen at, not one to dial"
    listed = "," in host or "[" in host
    return f"a list of hosts, {host}" if listed else f"no name of a host: {host!r}"


@log_rule("LOG027", "every node reaches the master's port", symptom=True)
def store(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A process dialled torch's store, or torchrun's rendezvous, and got no answer until its time-out.

    ## Why it matters
    Without the store no rank learns of the others. The process of rank 0 was not started, had ended, listens
    elsewhere, or a firewall stands between.

    ## How we know
    `The client socket has timed out after ... while trying to connect to (HOST, PORT)`, or
    `RendezvousConnectionError`. The errno of the tries before it says more: 113 and 110 are the network's, 111
    says that the host is there and nobody listens: not started, ended, or another port. torchrun lets that node
    listen whose own name or address is the endpoint's: with an alias no node does, and all dial. 127.0.0.1 and
    localhost are each node itself. A connection that stood and was lost is no case of this: the master ended.

    ## Fix
    - **you** the same endpoint on all nodes, as an address of the first one; start that one too; look at its log.
    - **admin** open the port between the nodes.

    ## Source
    pytorch/pytorch#79388, pytorch/pytorch#76367, pytorch/pytorch#73656 (aliases); PyTorch documentation, torchrun.
    """
    tries = events_of(logs, "store-refused")
    names = {event.fields["host"] for event in events_of(logs, "name-unresolved")}
    lost = events_of(logs, "store-unreachable") or [event for event in tries if event.fields["errno"] in _NETWORK]
    stood = events_of(logs, "store-broken")
    events = lost if stood else [*lost, *events_of(logs, "rendezvous-unreachable")]
    if not events or starts_later(logs, events[-1]) or any(_host(event) in names for event in lost):
        return
    first = next((event for event in events if event.fields), events[0])
    host = _host(first)
    number = first.fields.get("port") or first.fields.get("at", "")
    yield cause(
        [first, *(event for event in events if event is not first)],
        f"no answer from {host or 'the master'}{f', port {number}' if number else ''}" + _errno(tries),
        why=_itself(host) + _reason(tries),
        owner="job",
        at=_master(logs, first),
        fix=[
            you("Confirm: on the first node, then from each other one.",
                f"ss -ltn 'sport = :{number or '$MASTER_PORT'}'".replace("'", '"' if not number else "'"),
                f"nc -vz {quote(host) if host else '$MASTER_ADDR'} {number or '$MASTER_PORT'}"),
            you("Give all nodes the same endpoint: an address of the first node, not an alias.", RENDEZVOUS),
            you("Look at the log of the first node for an earlier error."),
            admin("Open the port between the nodes.", "firewall-cmd --list-all"),
        ],
    )  # fmt: skip


def _host(event: LogEvent) -> str:
    return event.fields.get("host") or event.fields.get("name", "")


def _itself(host: str) -> str:
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return f"{host} is each node itself: with several nodes give the address of the first one. "
    return ""


def _master(logs: Logs, event: LogEvent) -> Where:
    """The node that did not answer, where a log tells which one has the address; else who dialled it."""
    host = _host(event)
    is_name = bool(host) and not host[0].isdigit() and ":" not in host and host != "localhost"
    owner = owner_of(logs, host) or (host.partition(".")[0] if is_name else "")
    return Where(node=owner) if owner else where(event)


def _errno(tries: list[LogEvent]) -> str:
    error = next((event.fields["error"] for event in tries), "")
    return f" ({error})" if error else ""


def _reason(tries: list[LogEvent]) -> str:
    numbers = {event.fields["errno"] for event in tries}
    if "111" in numbers:
        return (
            "That host answers, and nobody listens: rank 0 was not started, had ended, or listens on another port."
        )
    if numbers & _NETWORK:
        return "The network does not let it through: a firewall, a wrong address, or a node that is down."
    return (
        "Rank 0 was not started or had ended, the address is wrong or an alias, or a firewall drops the packets."
    )
