"""LOG010 to LOG013: the interface that NCCL takes for its first connections."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Remedy, Where, admin, fail, you
from ncclcheck.reports.subjects.logs.dialled_addresses import (
    FailedDial,
    dialled,
    in_bridge,
    is_virtual,
    listed,
    names,
    of_a_bridge,
    of_no_network,
    reach,
    taken,
    targets,
)
from ncclcheck.reports.subjects.logs.logged import (
    at_host,
    by_known_host,
    cause,
    events_of,
    lines,
    log_rule,
    process_of,
)
from ncclcheck.reports.subjects.logs.reported import (
    hosts_with,
    setting,
    settings_seen,
    several_hosts,
    starting,
    version_seen,
    within_a_host,
)

_NAME_IT = you(
    "Name the interface of the nodes' common network, on all nodes.",
    "export NCCL_SOCKET_IFNAME==eth0    # or all but these: ^docker,br-,veth,virbr,cni,lo",
)
_LOOK = you("Confirm: look at the interfaces of that node, where the job runs.", "ip -br addr")
_HOST_NETWORK = you(
    "Start all containers with the host's network: NCCL_SOCKET_IFNAME has nothing else to name in them.",
    "docker run --network=host --ipc=host ...",
)
_CONTAINER = re.compile(r"[0-9a-f]{12}")  # its number is the name of a container's host
_ZERO = "0"
_OF_COMM_ID = (
    "No usable listening interface"  # NCCL looks for one in the subnet of NCCL_COMM_ID (src/bootstrap.cc)
)


@log_rule("LOG010", "NCCL chose interfaces that reach the other nodes")
def virtual(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL took a bridge of containers or virtual machines, a tunnel, or a link-local address for its connections.

    ## Why it matters
    docker0 and virbr0 have the same address on every host: a rank that dials 172.17.0.1 reaches its own host, and
    is refused or waits. A link-local address (fe80::) is reached on its own wire only. The start hangs or ends.

    ## Seen as
    hangs, does not start

    ## How we know
    `Bootstrap : Using docker0:172.17.0.1<0>` or `NET/Socket : Using ...` of processes on several hosts that did
    not come through their start; or a connection failed to such an address, or to one that two hosts call their
    own; Open MPI's `connect() to 172.17.0.1 failed`. NCCL leaves out lo and docker by itself, virbr from 2.28 on
    only; other bridges never. By the names of interfaces alone: one that leads to the other nodes after all (a
    VPN) is not blamed where the start worked.

    ## Fix
    - **you** `export NCCL_SOCKET_IFNAME==eth0` with the interface of the nodes' network, or
      `^docker,br-,veth,virbr`; for link-local addresses also `NCCL_SOCKET_FAMILY=AF_INET`.
    - **admin** put it in /etc/nccl.conf of every node.

    ## Source
    NVIDIA/nccl#697, horovod/horovod#310, pytorch/pytorch#68893; NCCL user guide, NCCL_SOCKET_IFNAME.
    """
    failed = dialled(logs, "virtual", "link-local")
    for host, events in by_known_host(attempt.event for attempt in failed).items():
        here, own = [attempt for attempt in failed if attempt.event.host == host], process_of(logs, events[0])
        owners = {owner for attempt in here for owner in hosts_with(logs, attempt.address)}
        local = here[0].kind == "link-local"
        yield cause(
            events,
            f"NCCL on {names([host])} dials {targets(here)}, "
            + ("link-local: it is reached on its own wire only" if local else "an address of a host's own bridge"),
            why="Such an address does not lead to the other node: the rank dials its own host, or nobody.",
            owner="job",
            at=Where(node=owners.pop()) if len(owners) == 1 else at_host(host, events),
            fix=_of_a_container(logs, here)
            or [_same_address(logs), _NAME_IT, admin("Make it the default of every node.", "cat /etc/nccl.conf")],
            more=[*taken([own] if own else []), *settings_seen(logs, "NCCL_SOCKET_IFNAME")],
        )
    if not failed and several_hosts(logs):
        yield from _stuck(logs)
    yield from _dialled_by_mpi(logs)


def _dialled_by_mpi(logs: Logs) -> Iterator[Finding]:
    """Open MPI's own connections, which mpirun's settings lead, and no variable of NCCL's."""
    events = [event for event in events_of(logs, "mpi-connect-failed") if of_no_network(event.fields["peer"])]
    if not events:
        return
    peer = events[0].fields["peer"]
    local = of_no_network(peer) == "link-local"
    yield cause(
        events,
        f"Open MPI dials {peer}, "
        + ("link-local: it is reached on its own wire only" if local else "an address of a host's own bridge"),
        why="Such an address does not lead to the other node: the process dials its own host, or nobody.",
        owner="job",
        fix=[
            you("Confirm: which interface has it.", "ip -br addr"),
            you("Let Open MPI take the nodes' own network alone.",
                "mpirun --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 ..."),
        ],
    )  # fmt: skip


def _stuck(logs: Logs) -> Iterator[Finding]:
    """No connection failed aloud: the ranks of each host talk to themselves and wait."""
    begun = [process for process in logs.processes if starting(process)]
    first = [process for process in begun if process.bootstrap and is_virtual(process.bootstrap.interface)]
    data = [process for process in begun if process.network == "Socket" and listed([process])]
    if processes := first or data:
        which = "its first connections" if first else "data"
        yield fail(
            Where(node=processes[0].host),
            f"NCCL uses an interface of containers or a tunnel for {which} on "
            f"{names(process.host for process in processes)}",
            why="It leads to no other node as a rule; the start of this job did not come to its end.",
            owner="job",
            evidence=taken(processes) if first else listed(processes),
            fix=[_same_address(logs), _NAME_IT, admin("Make it the default of every node.", "cat /etc/nccl.conf")],
        )


def _of_a_container(logs: Logs, failed: list[FailedDial]) -> list[Remedy]:
    """Where containers have a bridge's address as their own, none of their interfaces leads to another host."""
    inside = {process.host for process in logs.processes if in_bridge(process)}
    named_by_id = [
        attempt for attempt in failed if _CONTAINER.fullmatch(attempt.event.host) and of_a_bridge(attempt.address)
    ]
    if not named_by_id and not (inside and all(of_a_bridge(attempt.address) for attempt in failed)):
        return []
    return [
        you("Confirm: inside the container eth0 has such an address, and no other interface is there.",
            "ip -br addr"),
        _HOST_NETWORK,
    ]  # fmt: skip


def _same_address(logs: Logs) -> Remedy:
    return you(
        "Confirm: two nodes have the same address there, or cannot reach it from each other.",
        "ip -br addr",
        reach(logs),
    )


@log_rule("LOG011", "NCCL does not use loopback in a multi-node job")
def loopback(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL took `lo` for its first connections, or dials 127.0.0.1, although the job has several nodes.

    ## Why it matters
    The other nodes are told "reach me at 127.0.0.1", dial themselves, and wait or are refused.

    ## Seen as
    does not start

    ## How we know
    `Bootstrap : Using lo:127.0.0.1<0>` of processes on several hosts that did not come through their start, or a
    connection failed to a loopback address. NCCL takes lo where no other interface is up, where NCCL_SOCKET_IFNAME
    says so, and by a fault of 2.29 with NCCL_COMM_ID (fixed in 2.30.3).

    ## Fix
    - **you** `export NCCL_SOCKET_IFNAME==eth0`, or unset it where it says lo.
    - **admin** bring the node's interface up: `ip -br link`.

    ## Source
    NVIDIA/nccl#2047, NVIDIA/nccl#286; NCCL user guide, NCCL_SOCKET_IFNAME.
    """
    failed = [attempt.event for attempt in dialled(logs, "loopback")]
    on_lo = [
        process
        for process in logs.processes
        if process.bootstrap and process.bootstrap.interface == "lo" and starting(process)
    ]
    fix = [
        you("Confirm: see which interfaces are up on that node, and what the variable says.",
            "ip -br addr", "env | grep NCCL_SOCKET_IFNAME"),
        _NAME_IT,
        admin("Bring the interface up that the nodes share.", "ip -br link", "ip link set eth0 up"),
    ]  # fmt: skip
    why = "Its address is 127.0.0.1 for everybody: ranks of other nodes dial themselves."
    more = settings_seen(logs, "NCCL_SOCKET_IFNAME", "NCCL_COMM_ID")
    if failed:
        dialling, took = {event.host for event in failed}, {process.host for process in on_lo}
        announced = took if took - dialling else set()
        yield cause(
            failed,
            f"NCCL on {names(dialling)} dials a loopback address"
            + (f": {names(announced)} took lo, and told it so" if announced else ""),
            why=why,
            owner="node",
            fix=fix,
            at=Where(node=next(iter(announced))) if len(announced) == 1 else None,
            more=[*taken(on_lo if announced else []), *more],
        )
    elif on_lo and several_hosts(logs):
        gone = [event for event in events_of(logs, "connect-failed") if "peer" not in event.fields]
        yield fail(
            Where(node=on_lo[0].host),
            f"NCCL took lo for its first connections on {names(process.host for process in on_lo)}",
            why=why,
            owner="node",
            evidence=[*lines(gone), *taken(on_lo), *more],
            fix=fix,
        )
    elif on_lo and not within_a_host(logs) and len(refused := _refused_again(logs)) > 1:
        yield fail(
            Where(node=on_lo[0].host),
            f"NCCL took lo on {names(process.host for process in on_lo)}, and its connections are refused "
            "again and again: over lo no other node is reached",
            why=why,
            owner="node",
            evidence=[*lines(refused), *taken(on_lo), *more],
            fix=fix,
        )


def _refused_again(logs: Logs) -> list[LogEvent]:
    """What NCCL dials again after a refusal."""
    return [event for event in events_of(logs, "connect-retried") if "refused" in event.text]


@log_rule("LOG012", "NCCL finds the interface named in NCCL_SOCKET_IFNAME")
def no_interface(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    No interface of the node fits NCCL_SOCKET_IFNAME, or the node has none that NCCL would take.

    ## Why it matters
    The rank ends at once or, in newer versions, goes on with an address that nobody wrote, and ends with a line
    about a family that "is neither AF_INET nor AF_INET6". Nothing names the variable.

    ## Seen as
    dies

    ## How we know
    `Bootstrap : no socket interface found`; or the line about the family together with NCCL_SOCKET_IFNAME in the
    log or with a number that is no family of any kind (memory that was never written). Where the number is 0 and
    no interface was asked for, or a peer's message was truncated, ranks that differ are likelier: LOG018. One
    letter alone is taken for no name.

    ## Fix
    - **you** compare the value with `ip -br addr` on the node that says it; name all in one list where nodes
      differ: `NCCL_SOCKET_IFNAME="=eno1,eth0"`; without `=` a name is a prefix.
    - **admin** one /etc/nccl.conf for each kind of node.

    ## Source
    NVIDIA/nccl#1837, NVIDIA/nccl-tests#219; NCCL user guide, NCCL_SOCKET_IFNAME.
    """
    events = [
        *events_of(logs, "no-socket-interface"),
        *(event for event in events_of(logs, "socket-family") if unwritten(logs, event)),
    ]
    for host, own in by_known_host(events).items():
        asked = setting(logs, "NCCL_SOCKET_IFNAME", own[0])
        yield cause(
            own,
            f"no interface of {names([host])} fits NCCL_SOCKET_IFNAME={asked}"             if asked
            else _no_address(host, own) + _restricted(logs, own[0]),
            why="Without an interface the rank has no address that the others could dial."
            if asked or own[0].sign != "socket-family"
            else "An address that no rank wrote: as a rule one of them found no interface that it may take, or "
            "ranks of different versions or settings of NCCL meet.",
            owner="job",
            at=at_host(host, own),
            fix=[_LOOK, _HOST_NETWORK] if in_bridge(process_of(logs, own[0])) and asked is None else [
                _LOOK,
                you("Let NCCL choose. Where a name is needed take one that this node has; a list where nodes "
                    'differ: NCCL_SOCKET_IFNAME="=eth0,eno1".', "unset NCCL_SOCKET_IFNAME") if asked
                else you("Name an interface that this node has; a list where nodes differ.",
                         'export NCCL_SOCKET_IFNAME="=eth0,eno1"'),
                admin("Set it for each kind of node.", "cat /etc/nccl.conf"),
            ],
            more=[
                *settings_seen(logs, "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_COMM_ID"),
                *version_seen(logs, own[0]),
            ],
        )  # fmt: skip


def _restricted(logs: Logs, event: LogEvent) -> str:
    """What else keeps NCCL from an interface: the family of addresses that it is held to, or NCCL_COMM_ID."""
    if _OF_COMM_ID in event.text:
        return ": none is in the subnet of the address in NCCL_COMM_ID"
    family = setting(logs, "NCCL_SOCKET_FAMILY", event)
    return f": NCCL_SOCKET_FAMILY={family} allows addresses of that family alone" if family else ""


def unwritten(logs: Logs, event: LogEvent) -> bool:
    """An address of memory that nobody wrote, rather than one of ranks that differ: in version, or in channels."""
    versions = {process.version for process in logs.processes if process.version}
    if len(versions) > 1 or _had_an_address(logs, event):
        return False
    if setting(logs, "NCCL_SOCKET_IFNAME", event) is not None:
        return True
    return event.fields.get("family") != _ZERO and not events_of(logs, "bootstrap-truncated")


@log_rule("LOG013", "the node has a network that NCCL can use")
def no_network(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL could not make a socket for the address that it took, since the system has no such family of addresses, or
    could not listen on it, since it is none of the host's.

    ## Why it matters
    A container without a network (`--network none`), or one with IPv6 addresses on a kernel that has IPv6 switched
    off, has no address to be dialled at. The rank ends with "unhandled system error". A line about libibverbs
    before it is no cause.

    ## Seen as
    dies

    ## How we know
    `Socket creation failed : Address family not supported by protocol` of NCCL (torch's own line about IPv6 with
    errno 97 is harmless, for it tries IPv4 next), or the line about family 0 where one host only is in the log.
    `Call to bind failed: Cannot assign requested address`: NCCL_COMM_ID with an address of another host, or an
    IPv6 address that the kernel still checks or has refused as a duplicate.

    ## Fix
    - **you** `docker run --network host ...`; or `export NCCL_SOCKET_FAMILY=AF_INET`.
    - **admin** give the container a network; look at `sysctl net.ipv6.conf.all.disable_ipv6`.

    ## Source
    NVIDIA/nccl-tests#14, NVIDIA/nccl#210; NCCL user guide, NCCL_SOCKET_FAMILY; socket(2).
    """
    events = [*events_of(logs, "no-address-family"), *alone(logs)]
    for host, own in by_known_host(events).items():
        yield cause(
            own,
            f"NCCL cannot make a socket on {names([host])}: there is no usable IP address",
            why="Even ranks of one node find each other over TCP first.",
            owner="node",
            at=at_host(host, own),
            fix=[
                you("Confirm: see whether the container has more than lo.", "ip -br addr"),
                you("Give it the host's network, or keep NCCL to IPv4.", "docker run --network host ...",
                    "export NCCL_SOCKET_FAMILY=AF_INET"),
                admin("See whether IPv6 is off while addresses of it are there.",
                      "sysctl net.ipv6.conf.all.disable_ipv6"),
            ],
        )  # fmt: skip
    yield from _not_own(logs)


def _not_own(logs: Logs) -> Iterator[Finding]:
    """Addresses on which NCCL could not listen."""
    for host, events in by_known_host(events_of(logs, "bind-failed")).items():
        process, address = process_of(logs, events[0]), setting(logs, "NCCL_COMM_ID", events[0])
        taken_by = process.bootstrap if process else None
        own = (
            f"{taken_by.address.partition('%')[0]} ({taken_by.interface})"
            if taken_by
            else "the address that it took"
        )
        yield cause(
            events,
            f"NCCL_COMM_ID={address} is no address of {names([host])}, where rank 0 was to listen" if address
            else f"NCCL cannot listen on {own} of {names([host])}: it is not usable there",
            why="Rank 0 listens at that address first of all, and the others wait for it.",
            owner="job" if address else "node",
            at=at_host(host, events),
            fix=[
                you("Confirm: look whether it is there, and not tentative or dadfailed.", "ip addr"),
                *([_HOST_NETWORK] if in_bridge(process) else []),
                you("Let NCCL choose, or write rank 0's own address on all ranks.", "unset NCCL_COMM_ID")
                if address
                else you("Keep NCCL to IPv4, or name another interface.", "export NCCL_SOCKET_FAMILY=AF_INET"),
            ],
        )  # fmt: skip


def _no_address(host: str, events: list[LogEvent]) -> str:
    """In the words of the line, where no interface was asked for."""
    if events[0].sign != "socket-family":
        return f"NCCL finds no interface on {names([host])} that it may take"
    return f"NCCL on {names([host])} dials an address that is none (of family {events[0].fields['family']})"


def _had_an_address(logs: Logs, event: LogEvent) -> bool:
    """Whether NCCL's start came through: what was dialled later was not handed over, or overwritten."""
    process = process_of(logs, event)
    return process is not None and process.completed >= process.began > 0


def alone(logs: Logs) -> list[LogEvent]:
    """The line about family 0 where one host only speaks, one version, and no interface was asked for."""
    return [
        event
        for event in events_of(logs, "socket-family")
        if within_a_host(logs) and not (unwritten(logs, event) or _had_an_address(logs, event))
    ]
