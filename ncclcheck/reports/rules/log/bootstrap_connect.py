"""LOG014, LOG015, LOG025, LOG026 and LOG029: connections that NCCL could not make over the right network."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import NamedTuple

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, Where, admin, seen, you
from ncclcheck.reports.subjects.logs.dialled_addresses import (
    FailedDial,
    dialled,
    names,
    reach,
    taken,
    targets,
    twins,
)
from ncclcheck.reports.subjects.logs.logged import (
    at_host,
    by_known_host,
    cause,
    events_of,
    log_rule,
    process_of,
    where,
)
from ncclcheck.reports.subjects.logs.reported import finished_start, hosts_with, settings_seen, starting

_NO_ROUTE_TO_HOST = "No route to host"  # EHOSTUNREACH: no answer to ARP, or ICMP of a firewall
_PORTS = "sysctl net.ipv4.ip_local_port_range"


def _at_hosts(attempts: list[FailedDial]) -> Iterator[tuple[str, list[LogEvent], list[FailedDial]]]:
    for host, events in by_known_host(attempt.event for attempt in attempts).items():
        yield host, events, [attempt for attempt in attempts if attempt.event.host == host]


def _unsaid(event: LogEvent) -> str:
    return "NCCL does not say why" if "POLLOUT" in event.text else "timed out"


def _errors(events: list[LogEvent]) -> str:
    return ", ".join(dict.fromkeys(event.fields.get("error", _unsaid(event)) for event in events))


def _word(attempts: list[FailedDial]) -> str:
    """The address, as a word to paste."""
    return quote(attempts[0].address) if attempts[0].address else "ADDRESS"


def _owners(logs: Logs, attempts: list[FailedDial]) -> list[str]:
    return [
        host
        for attempt in attempts
        for host in (hosts_with(logs, attempt.address) if attempt.address else _only_peer(logs, attempt.event))
    ]


def _only_peer(logs: Logs, event: LogEvent) -> list[str]:
    """The host of the other rank where there are two, on two hosts: NCCL up to 2.26 does not say whom it dials."""
    others = {process.host for process in logs.processes} - {event.host}
    return [*others] if logs.world == 2 and len(others) == 1 and event.host else []


@log_rule("LOG014", "the nodes' addresses are routed to each other")
def unreached(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL connected to an ordinary address of another node, and the network or a firewall blocked it.

    ## Why it matters
    NCCL listens on ports that the kernel picks (net.ipv4.ip_local_port_range, mostly 32768 to 60999), not on
    MASTER_PORT. A firewall that lets ping, ssh and MASTER_PORT through still ends the job in its start.

    ## Seen as
    dies

    ## How we know
    The error of connect(2) in NCCL's line. `No route to host` between nodes of one subnet is nearly always a
    firewall that rejects, else a node that is down; `Connection timed out` one that drops, or a wrong route;
    `Network is unreachable` that the node has no route. The place is the node that was dialled where it answered
    `No route to host`, or where several could not reach it, else the one that dialled. Where NCCL took an
    interface named ib* it did so because it prefers them: partitions without IP between them look the same. The
    log does not show which; the commands can.

    ## Fix
    - **you** measure it: `ncclcheck env --hosts A,B` tries each direction; name an interface that works in
      NCCL_SOCKET_IFNAME.
    - **admin** open the range of local ports between the nodes (firewalld, ufw, iptables, security group), or
      repair the route.

    ## Source
    NVIDIA/nccl#352, NVIDIA/nccl-tests#162; NCCL user guide, Troubleshooting, Networking, and NCCL_SOCKET_IFNAME;
    connect(2).
    """
    failed = dialled(logs, "unreached")
    end = _common_end(logs, failed)
    for host, events, here in _at_hosts(failed):
        own, peers = process_of(logs, events[0]), _owners(logs, here)
        over = own.bootstrap.interface if own and own.bootstrap else ""
        stood = all(event.sign == "connection-gone" for event in events)
        whose = f" ({names(peers)})" if peers else _of_rank_0(logs, host, here)
        strange = _strange(logs, host, peers) if "Network is unreachable" in _errors(events) else None
        yield cause(
            events,
            f"{names([host])} {'lost' if stood else 'cannot open'} its connection to {targets(here)}{whose}: "
            + _errors(events)
            + (f"; {strange.what}" if strange else ""),
            why=strange.why if strange else _by_error(events) or _why(over),
            owner="site",
            at=(strange.at if strange else None) or end or _far_end(events, peers) or at_host(host, events),
            fix=[
                *(_OWN_ADDRESS if strange else ()),
                *_first_by_error(events),
                you("Confirm: try every node from every other, on ports as NCCL takes them.",
                    reach(logs, host, *peers), f"ip route get {_word(here)}"),
                you("Take another interface where this one leads nowhere.", "export NCCL_SOCKET_IFNAME==eth0"),
                admin("Let the nodes reach each other on all local ports.", _PORTS, "firewall-cmd --list-all",
                      "iptables -S | grep -E 'REJECT|DROP'"),
            ],
            more=[*taken([own] if own else []), *settings_seen(logs, "NCCL_SOCKET_IFNAME")],
        )  # fmt: skip


def _of_rank_0(logs: Logs, host: str, here: list[FailedDial]) -> str:
    """Whom a process dials first in its start, where its line names nobody."""
    hosts = {process.host for process in logs.processes if process.rank == 0}
    starts = all(starting(own) for attempt in here if (own := process_of(logs, attempt.event)))
    root = hosts.pop() if len(hosts) == 1 else host
    told = any(attempt.address for attempt in here)
    return f" (in its start that is rank 0's host, {root})" if starts and not told and root != host else ""


class _Strange(NamedTuple):
    """A host whose address is of another network than the others', or two either of which may be so."""

    what: str
    why: str
    at: Where | None


_OWN_ADDRESS = (
    you("See which addresses both have: NCCL announces the first one of the interface that it takes.",
        "ip -br addr; ip route", "export NCCL_SOCKET_IFNAME==eth1"),
)  # fmt: skip


def _strange(logs: Logs, host: str, peers: list[str]) -> _Strange | None:
    """Whose address it is, by those of all hosts; None where the two ends seem to be of one network."""
    own = {process.host: process.bootstrap.address for process in reversed(logs.processes) if process.bootstrap}
    networks = {name: _network(address) for name, address in own.items()}
    peer = next(iter(dict.fromkeys(peers)), "")
    if peer == host or not networks.get(peer) or not networks.get(host) or networks[peer] == networks[host]:
        return None
    for odd, other in ((peer, host), (host, peer)):
        like = [name for name, network in networks.items() if network == networks[other]]
        alone = [name for name, network in networks.items() if network == networks[odd]]
        if len(like) > 1 and len(alone) == 1:
            return _Strange(
                f"{odd} is at {own[odd]}, {names(like)} at addresses like {own[other]}",
                f"{odd} announced an address of another network than the others have: they have no route to it, "
                "or it has none to them. A firewall does not answer so.",
                Where(node=odd),
            )
    return _Strange(
        f"{host} itself is at {own[host]}, so one of the two may have taken the wrong address",
        f"The two took addresses of different networks, and no route leads from {host} to that of {peer}: either "
        f"{peer} announced an address that is not for this job (a second one of its interface), or {host} has the "
        "wrong one or lacks a route. A firewall does not answer so.",
        Where(),
    )


def _network(address: str) -> str:
    """As far as one sees: the first two numbers of an IPv4 address, of which a site's hosts have the same."""
    parts = address.split(".")
    return ".".join(parts[:2]) if len(parts) == 4 else ""


def _common_end(logs: Logs, failed: list[FailedDial]) -> Where | None:
    """The one host that several others could not reach."""
    owners = [_owners(logs, [attempt]) for attempt in failed]
    ends, known = {owner for some in owners for owner in some}, all(owners)
    several = len({attempt.event.host for attempt in failed} - {""}) > 1
    return Where(node=ends.pop()) if known and several and len(ends) == 1 else None


def _far_end(events: list[LogEvent], peers: list[str]) -> Where | None:
    """The node that was dialled, where the answer says that it, or a firewall before it, did not take the dial."""
    return Where(node=peers[0]) if _errors(events) == _NO_ROUTE_TO_HOST and len({*peers}) == 1 else None


class _ConnectAnswer(NamedTuple):
    """What the kernel's answer to connect(2) means, and where to look."""

    why: str
    look: str
    commands: tuple[str, ...]


_ANSWERS = {  # by strerror(); of those that are not here any link between the two can be the reason
    "Cannot assign requested address": _ConnectAnswer(
        "No local port is free for another connection (net.ipv4.ip_local_port_range), or the address that the "
        "peer announced is none that can be dialled (port 0, the wrong family).",
        "Confirm: ports in use on this host, and the range.",
        ("ss -s; sysctl net.ipv4.ip_local_port_range", "ss -tan state time-wait | wc -l"),
    ),
    "Network is unreachable": _ConnectAnswer(
        "This host has no route to that address: its own address, prefix or default route is wrong or missing. A "
        "firewall does not answer so.",
        "Confirm, on this host: addresses and routes.",
        ("ip -br addr; ip route",),
    ),
    "Network is down": _ConnectAnswer(
        "The interface that leads there is down on this host.",
        "Confirm, on this host, and when it went down.",
        ("ip -br link; dmesg -T | grep -iE 'link|carrier'",),
    ),
    "Operation not permitted": _ConnectAnswer(
        "This host itself forbids the connection: a route or rule (prohibit), its own firewall, or a policy of "
        "the container.",
        "Confirm, on this host.",
        ("ip route; ip rule", "nft list ruleset | grep -A9 'hook output'; iptables -S OUTPUT"),
    ),
    "Invalid argument": _ConnectAnswer(
        "A route of this host throws away what goes there (blackhole), or the address cannot be dialled as it was "
        "announced: link-local (fe80::) without its interface, or of another family.",
        "Confirm, on this host: the routes, and what the peer announced.",
        ("ip route; ip rule; ip -br addr",),
    ),
}
_ANSWERS["Permission denied"] = _ANSWERS["Operation not permitted"]


def _answer(events: list[LogEvent]) -> _ConnectAnswer | None:
    return _ANSWERS.get(events[0].fields.get("error", "").strip())


def _by_error(events: list[LogEvent]) -> str:
    known = _answer(events)
    return known.why if known else ""


def _first_by_error(events: list[LogEvent]) -> list[Remedy]:
    known = _answer(events)
    return [you(known.look, *known.commands)] if known else []


def _why(interface: str) -> str:
    if interface.startswith("ib"):
        return f"A firewall, or {interface}: NCCL prefers ib*, and this one may lead to its own partition only."
    return (
        "A firewall on the ports that NCCL listens on (not MASTER_PORT), a missing route, or a node that is down."
    )


@log_rule("LOG015", "NCCL's peers accept connections", symptom=True)
def refused(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL connected to an ordinary address, the host answered, but nothing listened on the port.

    ## Why it matters
    Either the address belongs to another host than the one that announced it (two with the same address), or
    the peer's process had died before. In the second case this line follows from what killed the peer. Where all
    processes there still wait in their start, a firewall answers in their place.

    ## Seen as
    dies

    ## How we know
    `Connection refused` in NCCL's line, after its retries (NCCL tries several times for seconds; its lines about
    retries alone are harmless). Counts as a cause only where the log has nothing more exact; addresses of bridges,
    of loopback and those that two hosts have are LOG010 and LOG011.

    ## Fix
    - **you** look at the log of the peer: its first error is the cause. If it has none, see who owns the address.
    - **admin** remove a duplicate address from the network.

    ## Source
    horovod/horovod#789; NCCL user guide, Troubleshooting, Networking; connect(2).
    """
    for host, events, here in _at_hosts(dialled(logs, "refused")):
        peers = _owners(logs, here)
        whose = f" of {names(peers)}" if peers else ""
        what = f"nobody listens at {targets(here)}{whose}, which NCCL on {names([host])} dials"
        if alive := _all_wait(logs, peers, events[0]):
            dials = f"what NCCL on {names([host])} dials ({targets(here)})"
            what = f"{names(peers)} refuses {dials}, and NCCL waits there"
        yield cause(
            events,
            what,
            why=_ALIVE if alive
            else "The process there had ended before, or another host has the address as well.",
            owner="site" if alive else "job",
            at=Where(node=peers[0]) if len(set(peers)) == 1 else at_host(host, events),
            fix=_open_the_ports(logs, host, peers, here) if alive else [
                you("Confirm: look for the first error of the process there.",
                    "grep -nE 'WARN|Error|signal' LOG_OF_THAT_HOST | head"),
                you("If it has none, see which host has the address.",
                    f"ip neigh show {_word(here)}", reach(logs, host, *peers)),
            ],
        )  # fmt: skip


_ALIVE = (
    "The processes there began and wait, without an error before it: a firewall that answers with a reset on the "
    "ports that NCCL listens on, or another host with the same address."
)


def _all_wait(logs: Logs, peers: list[str], event: LogEvent) -> bool:
    """Whether every process of the hosts that were dialled is still in its start, and none complained before."""
    there = [process for process in logs.processes if process.host in peers]
    bad = {
        (entry.host, entry.pid)
        for entry in logs.events
        if entry.order < event.order and (entry.level == "WARN" or entry.sign in ("python-error", "propagated"))
    }
    # One that only made the id does not wait: since 2.18.3 NCCL says of each that it began.
    told = any(process.began for process in logs.processes)
    waits = (starting(process) and (process.began or not told) for process in there)
    return bool(there) and all(waits) and not any((process.host, process.pid) in bad for process in there)


def _open_the_ports(logs: Logs, host: str, peers: list[str], here: list[FailedDial]) -> list[Remedy]:
    return [
        you("Confirm: try every node from every other, on ports as NCCL takes them.", reach(logs, host, *peers),
            f"ip neigh show {_word(here)}"),
        admin("Let the nodes reach each other on all local ports, not on MASTER_PORT alone.", _PORTS,
              "firewall-cmd --list-all", "iptables -S | grep -E 'REJECT|DROP'"),
    ]  # fmt: skip


@log_rule("LOG026", "no node has two interfaces in one subnet")
def twin(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Connections fail on a node of which NCCL uses two interfaces with addresses of what looks like one subnet.

    ## Why it matters
    The kernel sends to a subnet through one of them, whichever route comes first; NCCL does not bind the other.
    Answers go to an address that the peer did not dial, and connections time out although the interface was named.

    ## Seen as
    hangs

    ## How we know
    `NET/Socket : Using [0]eth0:10.0.3.17<0> [1]eth1:10.0.3.117<0>`: addresses that differ in the last byte only,
    and a connection of that process that no host answered. The netmask is not in a log: confirm it.

    ## Fix
    - **you** keep NCCL to one of them: `export NCCL_SOCKET_IFNAME==eth0`.
    - **admin** give each interface a subnet of its own, or source routing (rules by address) for both.

    ## Source
    NVIDIA/nccl#1581; ip-route(8), ip-rule(8).
    """
    for host, events, here in _at_hosts(dialled(logs, "twin")):
        first, second = twins(process_of(logs, events[0]))
        yield cause(
            events,
            f"{names([host])} has {first.interface} and {second.interface} in one subnet, "
            f"and cannot reach {targets(here)}: {_errors(events)}",
            why="The kernel picks one of the two for all that it sends to that subnet, whatever NCCL chose.",
            owner="node",
            at=at_host(host, events),
            fix=[
                you("Confirm: see through which of them the kernel goes.", "ip -br addr",
                    f"ip route get {_word(here)} from {quote(second.address)}"),
                you("Use one of them.", f"export NCCL_SOCKET_IFNAME=={quote(first.interface)}"),
                admin("Put them into different subnets."),
            ],
            more=[seen("NET/Socket", f"{endpoint.interface} {endpoint.address}") for endpoint in (first, second)],
        )  # fmt: skip


@log_rule("LOG025", "the open-file limit is high enough for NCCL's sockets")
def too_many_files(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A process reached its limit of open files while NCCL made connections.

    ## Why it matters
    Each rank holds sockets to many peers, the root of the bootstrap one of every rank: 1024 files are too few from
    some hundred ranks on. The rank that gets none ends the start of all.

    ## How we know
    `Accept failed: Too many open files`, `Call to socket failed : Too many open files`: errno 24 of NCCL's own
    calls.

    ## Fix
    - **you** `ulimit -n 131072` in the script that starts the ranks, as far as the hard limit lets you.
    - **admin** raise it in limits.conf and in the unit of slurmd or docker, which hand their own limit on.

    ## Source
    NCCL user guide, Troubleshooting, Runtime and MPI issues; getrlimit(2), limits.conf(5).
    """
    full = events_of(logs, "nccl-too-many-files")
    of_host = [event for event in full if "open files in system" in event.text]
    for host, events in by_known_host(of_host).items():
        yield cause(
            events,
            f"the whole host reached its limit of open files (fs.file-max): {names([host])}",
            why="No process of that host gets another file or socket (ENFILE), whatever its own limit is.",
            owner="node",
            at=at_host(host, events),
            fix=[
                admin("Confirm: files in use, and how many may be; end what leaks them.",
                      "cat /proc/sys/fs/file-nr"),
                admin("Raise it.", "sysctl -w fs.file-max=9223372036854775807"),
            ],
        )  # fmt: skip
    for host, events in by_known_host([event for event in full if event not in of_host]).items():
        yield cause(
            events,
            f"NCCL reached the limit of open files on {names([host])}",
            why="The rank gets no more sockets, and the start of all ranks ends.",
            owner="node",
            at=at_host(host, events),
            fix=[
                you("Confirm: look at the limit as the launcher hands it on.",
                    "srun bash -c 'ulimit -Sn; ulimit -Hn'"),
                you("Raise it before the ranks start.", "ulimit -n 131072"),
                admin("Raise the hard limit, also of the service that starts jobs.",
                      "systemctl show slurmd docker -p LimitNOFILE"),
            ],
            more=_world(logs),
        )  # fmt: skip


def _world(logs: Logs) -> list[Evidence]:
    return [seen("ranks", logs.world)] if logs.world else []


_BROKEN = ("connection-reset", "remote-closed", "broken-pipe", "wrong-magic", "connect-failed", "gloo-mesh")


@log_rule("LOG029", "no service mesh intercepts traffic between ranks", symptom=True)
def sidecar(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A sidecar of a service mesh (Istio, Envoy) takes the connections of the ranks over.

    ## Why it matters
    NCCL, gloo and torch's store speak their own protocols over ports that nobody declared. A proxy that waits for
    HTTP or TLS, or knows no such port, resets the connections; ranks end in their start, or after an idle hour.

    ## Seen as
    dies

    ## How we know
    Connections come from 127.0.0.6, from which Istio's sidecar passes on what it took, or the log has Envoy's own
    lines; and connections were reset or closed, or something foreign came. Counts as a cause only where the log
    has nothing more exact: resets alone do not distinguish a mesh from a peer that ended.

    ## Fix
    - **you** leave the sidecar out of the job's pods: the annotation `sidecar.istio.io/inject: "false"`.
    - **admin** leave the namespace out, and look at NetworkPolicy: all ports between the pods of one job.

    ## Source
    Kubernetes documentation, Network Policies; NCCL user guide, Troubleshooting, Networking.
    """
    events = events_of(logs, "mesh-sidecar")
    broken = events_of(logs, *_BROKEN)
    if events and broken and not finished_start(logs):
        yield cause(
            [*events, *(event for event in broken if event not in events)],
            "a service mesh's sidecar takes the ranks' connections over",
            why="It does not understand what NCCL and torch say to each other, and resets the connections.",
            owner="site",
            at=where(events[0]),
            fix=[
                you("Confirm: see whether the pods have a second container.",
                    "kubectl get pods -o custom-columns=NAME:.metadata.name,CONTAINERS:.spec.containers[*].name"),
                you("Leave it out of the job's pods.", "kubectl explain pod.metadata.annotations   # "
                    'sidecar.istio.io/inject: "false"'),
                admin("Let the pods of one job reach each other on all ports.", "kubectl get networkpolicy -A"),
            ],
        )  # fmt: skip
