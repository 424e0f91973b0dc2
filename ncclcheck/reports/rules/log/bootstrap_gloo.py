"""LOG023, LOG024 and LOG028: gloo's addresses."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import first_named
from ncclcheck.reports.judgement.findings import Finding, Where, admin, you
from ncclcheck.reports.subjects.logs.dialled_addresses import reach
from ncclcheck.reports.subjects.logs.ending import ended_before
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule, own_exceptions
from ncclcheck.reports.subjects.logs.reported import several_hosts, starts_later, within_a_host

_NAME_IT = you("Tell gloo the interface, on all nodes.", "export GLOO_SOCKET_IFNAME=eth0")


def _peer(event: LogEvent) -> str:
    return first_named(event.fields, "remote", "dialled", "refused", "own")


def _loops(event: LogEvent) -> bool:
    if _peer(event) == "localhost":
        return True
    try:
        return ip_address(_peer(event).removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False


@log_rule("LOG023", "a node's own hostname resolves to an address that others can reach")
def loopback(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    gloo gave the other ranks a loopback address, 127.0.0.1 or Debian's 127.0.1.1, to be dialled at; or it found no
    address at all for the host's own name.

    ## Why it matters
    gloo listens on the address of the host's own name unless it is told an interface. Where /etc/hosts, or a pod
    with hostNetwork, gives that name a loopback address, ranks on other nodes dial themselves.

    ## How we know
    `Gloo connectFullMesh failed ... remote=[127.0.0.1]`, `connect [127.0.1.1]:PORT: Connection refused`; torch's
    warning that it falls back to loopback counts only together with a failure of gloo: on one node it does no
    harm. `rp != nullptr. Unable to find address for: NAME` is the own name that has none. On one node loopback
    is right: nothing is reported where the log shows that it has all ranks, or steps or another failure before
    (a rank that is started again dials one that is gone).

    ## Fix
    - **you** `export GLOO_SOCKET_IFNAME=eth0` on all nodes.
    - **admin** take the host's name off the lines of 127.0.0.1 and 127.0.1.1 in /etc/hosts.

    ## Source
    aws-samples/aws-do-eks#69; PyTorch documentation, torch.distributed, Choosing the network interface; hosts(5).
    """
    dialled = [] if within_a_host(logs) else [event for event in events_of(logs, "gloo-connect") if _loops(event)]
    dialled = [event for event in dialled if several_hosts(logs) or not _started_again(logs, event)]
    if nameless := [event for event in events_of(logs, "gloo-interface") if _of_host(event)]:
        yield _nameless(nameless)
    fell_back = events_of(logs, "gloo-loopback")
    if not dialled and not (fell_back and events_of(logs, "gloo-connect", "gloo-mesh")):
        return
    address = _peer(dialled[0]) if dialled else "127.0.0.1"
    yield cause(
        [*dialled, *fell_back],
        f"gloo ranks are given the address {address}, which is each node itself",
        why="The host's own name leads to a loopback address there, and gloo listens on that.",
        owner="node",
        fix=[
            you("Confirm on each node: it must not print 127.", "getent ahosts $(hostname)"),
            _NAME_IT,
            admin("Take the name off the loopback lines.", "grep -n '^127' /etc/hosts"),
        ],
    )


def _of_host(event: LogEvent) -> bool:
    """Whether gloo looked for an address of the host's own name, and not of an interface."""
    return "rp != nullptr" in event.text


def _is_address(name: str) -> bool:
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def _nameless(events: list[LogEvent]) -> Finding:
    name = events[0].fields["name"]
    return cause(
        events,
        f"the node's own name, {name}, has no address, and gloo looks for one",
        why="Without GLOO_SOCKET_IFNAME gloo listens on the address of the host's own name.",
        owner="node",
        fix=[
            you("Confirm: it prints an address.", "getent ahosts $(hostname)"),
            _NAME_IT,
            admin("Give the name an address.", "grep -n $(hostname) /etc/hosts"),
        ],
        at=Where(node=name.partition(".")[0]),
    )


def _started_again(logs: Logs, event: LogEvent) -> bool:
    """Whether steps, a signal, or another exception stand before this line: an earlier start went well."""
    signalled = events_of(logs, "worker-signalled", "oom-killed", "training-goes-on")
    return any(
        entry.file == event.file and entry.line < event.line for entry in [*own_exceptions(logs), *signalled]
    )


@log_rule("LOG024", "gloo finds the interface named in GLOO_SOCKET_IFNAME")
def interface(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    GLOO_SOCKET_IFNAME names no interface of the node.

    ## Why it matters
    gloo knows exact names in a list with commas and no more. NCCL's forms, `^lo` for all but lo and `=eth0`, are
    names to it that no interface has; the process group cannot be made.

    ## How we know
    `Unable to find address for: NAME` of gloo's own check.

    ## Fix
    - **you** `export GLOO_SOCKET_IFNAME=eth0` with a name that `ip -br addr` shows and that has an address; where
      nodes differ, set it on each.
    - **admin** give that interface an address.

    ## Source
    aws-samples/aws-do-eks#51; PyTorch documentation, torch.distributed, Choosing the network interface.
    """
    if events := [event for event in events_of(logs, "gloo-interface") if not _of_host(event)]:
        name = events[0].fields["name"]
        syntax = name.startswith(("^", "="))
        address = _is_address(name)
        yield cause(
            events,
            f"gloo finds no interface {name!r}"
            + (": only NCCL knows that form" if syntax else ": that is an address, not a name" if address else ""),
            why="gloo takes exact names only, and each needs an address.",
            owner="job",
            fix=[
                you("Confirm: see the names on that node.", "ip -br addr", "env | grep GLOO_SOCKET_IFNAME"),
                _NAME_IT,
            ],
        )  # fmt: skip


_WHY = "A firewall on the kernel's own ports, an interface that leads nowhere, or a rank that had ended."


@log_rule("LOG028", "gloo's ranks can connect to each other")
def mesh(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    gloo could not connect its ranks with each other, at addresses that are not loopback.

    ## Why it matters
    Each rank dials each other one on ports that the kernel picks. A firewall on them, an interface that leads
    nowhere (172.17.0.1 is docker's bridge on every host), a host name that leads to loopback, or a rank that ended
    before stops the start.

    ## How we know
    `Gloo connectFullMesh failed`, `connect [ADDRESS]:PORT: ...` of gloo. Newer versions print "no error" and no
    address: then the host's own name is the first to look at. A rank that had ended before shows the same: where
    the log shows its end, nothing is reported here.

    ## Fix
    - **you** `export GLOO_SOCKET_IFNAME=eth0` on all nodes; look whether a rank had failed before.
    - **admin** open the range of local ports between the nodes.

    ## Source
    aws-samples/aws-do-eks#69; PyTorch documentation, torch.distributed, Choosing the network interface;
    connect(2).
    """
    events = [event for event in events_of(logs, "gloo-connect") if not _loops(event)] or events_of(
        logs, "gloo-mesh"
    )
    looped = any(map(_loops, events_of(logs, "gloo-connect"))) or events_of(logs, "gloo-loopback")
    if events and not (looped or starts_later(logs, events[-1]) or ended_before(logs, events[0])):
        address = _peer(events[0])
        yield cause(
            events,
            f"gloo's ranks do not reach each other{f' at {address}' if address else ''}",
            why=_WHY if address else f"On a node the host's own name leads to loopback. Else: {_WHY}",
            owner="site",
            fix=[
                you("Confirm: on each node the first must not print 127; then try each node from each other.",
                    "getent ahosts $(hostname)", reach(logs)),
                _NAME_IT,
                admin("Let the nodes reach each other on all local ports.", "sysctl net.ipv4.ip_local_port_range"),
            ],
        )  # fmt: skip
