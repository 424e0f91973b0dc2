"""Rules about tcp://HOST:PORT: its address, its port where rank 0 runs, and the way of every node to it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, InitSeen, TcpInit
from ncclcheck.probes.facts.run.init import tcp_url
from ncclcheck.reports.judgement.findings import Finding, Remedy, Where, admin, fail, fine, seen, you
from ncclcheck.reports.judgement.findings import State as S
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.addresses.names.master import address_of_node_0
from ncclcheck.reports.subjects.links.filters import firewall

_JOBS = ("bench", "smoke")
_FIRST_OWN_PORT = 1024  # net.ipv4.ip_unprivileged_port_start of a kernel that nobody changed, ip(7)
_EPHEMERAL = 32768  # from here on the kernel gives ports to others, net.ipv4.ip_local_port_range of ip(7)
_USUAL = 23456  # the port of torch's own examples of tcp://, above the services and below the ephemeral ports
_WAITS = "init_process_group waits there until its time-out (30 minutes on gloo, 10 on NCCL) and names nobody."


def _tried(cluster: Cluster) -> list[tuple[InitSeen, TcpInit]]:
    """What the nodes saw, that of rank 0 first. Raises NothingToJudge."""
    tries = [(init, init.tcp) for init in cluster.measurements.init if init.tcp is not None]
    if not tries:
        raise NothingToJudge("no tcp:// is tried")
    return sorted(tries, key=lambda pair: not pair[1].hosts)


def _is_astray(cluster: Cluster, tcp: TcpInit) -> bool:
    """The address leads this node to itself, and rank 0 runs on another machine."""
    return not (tcp.hosts or cluster.job.simulated) and (tcp.loopback or tcp.own)


def _leads_nowhere(tcp: TcpInit) -> bool:
    """Rank 0 runs here, the address is not this machine's, and nothing leads from it back to this machine."""
    return tcp.hosts and not tcp.own and tcp.connect != "ok"


def _instead(cluster: Cluster, tcp: TcpInit, *, port: int = 0) -> list[str]:
    """What is written in place of the URL, and where its address is read when it is not known here."""
    address = address_of_node_0(cluster)
    where = [] if address else ["ip -br addr   # where rank 0 runs: ADDRESS is that of the job's network"]
    host = tcp.host if port else address or "ADDRESS"
    return [*where, f"init_method={tcp_url(host, port or tcp.port)!r}   # on every node"]


@rule(
    "INI001",
    "the address of tcp:// is that of the node of rank 0, on every node",
    worst=S.FAIL,
    over="",
    commands=_JOBS,
    gates_job="by any failure",
)
def address(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    What HOST of `init_method="tcp://HOST:PORT"` resolves to on each node, and whose address that is.

    ## Why it matters
    Rank 0 opens the store on its own machine, whatever HOST says; all others connect to HOST. With `localhost`,
    or a name that /etc/hosts turns into 127.0.1.1, each node looks for rank 0 on itself: a script that ran on
    one machine hangs on two, until the time-out, without a word about the address.

    ## Seen as
    hangs, setting without effect

    ## How we know
    getaddrinfo(3) on every node, the addresses of its interfaces, and a connection to HOST. An address that no
    node has is fine where the connection ends at rank 0, as behind NAT or a Kubernetes Service.

    ## Fix
    - **you** write the address of rank 0's node on the job's network, or a name that every node resolves to it.
    - **admin** correct the name in DNS or /etc/hosts.

    ## Source
    torch/distributed/rendezvous.py, `_tcp_rendezvous_handler`; PyTorch documentation, "TCP initialization";
    pytorch/pytorch#76367.
    """
    tried = _tried(cluster)
    first = next((init.node for init, tcp in tried if tcp.hosts), tried[0][0].node)
    sound = True
    for view, tcp in tried:
        host = tcp.host
        if tcp.unresolved:
            what = f"{host} does not resolve on {view.node}: {tcp.unresolved}"
        elif tcp.loopback and _is_astray(cluster, tcp):
            what = f"{host} is {view.node} itself ({', '.join(tcp.addresses[:1])}), and rank 0 runs on {first}"
        elif _is_astray(cluster, tcp):
            what = f"{host} is an address of {view.node}, and rank 0 runs on {first}"
        elif _leads_nowhere(tcp):
            what = f"{host} ({', '.join(tcp.addresses[:3])}) is no address of {view.node}, where rank 0 runs"
        else:
            continue
        sound = False
        yield fail(
            Where(node=view.node),
            what,
            why=f"{_WAITS} All ranks must find rank 0 at this address.",
            owner="site" if tcp.unresolved else "job",
            evidence=[
                seen("the init method", tcp.url),
                seen(f"getaddrinfo({host}) on {view.node}", tcp.unresolved or ", ".join(tcp.addresses)),
            ],
            fix=[
                you(f"Write the address of {first} on the job's network.", *_instead(cluster, tcp)),
                *([admin(f"Or let {host} resolve to {first} on every node.", f"getent hosts {quote(host)}")]
                  if not _is_address(host) and host != "localhost" else []),
            ],
        )  # fmt: skip
    if sound:
        yield fine(Where(), f"{tried[0][1].url} leads to {first}")


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return False


@rule(
    "INI002",
    "the port of tcp:// can be opened where rank 0 runs",
    worst=S.FAIL,
    over="",
    commands=_JOBS,
    gates_job="by any failure",
)
def port(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether the port of `tcp://HOST:PORT` is free on the node of rank 0, and whether this user may open it.

    ## Why it matters
    Rank 0 ends with "Address already in use" or "Permission denied", and all others wait until their time-out: on
    their nodes the log says only that nothing answered. What holds the port is often the job before.

    ## Seen as
    hangs, does not start, dies

    ## How we know
    The node of rank 0 opens the very port on all addresses, as torch's TCPStore does, shortly before the job.
    Ports below net.ipv4.ip_unprivileged_port_start (1024 where nobody changed it) are for root.

    ## Fix
    - **you** another port above 1023 and below the ephemeral ports, or end the process that holds it.

    ## Source
    torch/csrc/distributed/c10d/TCPStore.cpp; ip(7), `ip_unprivileged_port_start`.
    """
    view, tcp = next(((init, tcp) for init, tcp in _tried(cluster) if tcp.hosts), (None, None))
    if view is None or tcp is None or not tcp.listened:
        raise NothingToJudge("the node of rank 0 has not answered")
    number = tcp.port
    if tcp.listened == "ok":
        yield fine(Where(node=view.node), f"port {number} is free on {view.node}")
        return
    words = {
        "in use": f"port {number} is in use on {view.node}, where rank 0 has to listen: {tcp.detail}",
        "denied": f"this user may not open port {number} on {view.node}, where rank 0 has to listen: {tcp.detail}",
    }
    other = number + 11 if _FIRST_OWN_PORT <= number < _EPHEMERAL - 11 else _USUAL
    look = [f"ss -ltnp sport = :{number}   # on {view.node}"] if tcp.listened == "in use" else []
    yield fail(
        Where(node=view.node),
        words.get(tcp.listened, f"port {number} cannot be opened on {view.node}: {tcp.detail}"),
        why="Rank 0 ends at once, and all other ranks wait for it until their time-out.",
        owner="job",
        evidence=[seen("the init method", tcp.url), seen(f"bind(2) to port {number}", tcp.detail or tcp.listened)],
        fix=[you("Take another port.", *_instead(cluster, tcp, port=other), *look)],
    )


@rule(
    "INI003",
    "every node connects to the port of tcp://",
    worst=S.FAIL,
    over="",
    commands=_JOBS,
    gates_job="by any failure",
)
def connection(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    A connection from every node to the very port at which rank 0 will listen.

    ## Why it matters
    A firewall may let pass the ports that everything else uses and drop this one. The rank behind it waits in
    silence until the time-out, and so does everybody who waits for that rank.

    ## Seen as
    hangs

    ## How we know
    The node of rank 0 listens on the port for some seconds and greets; all nodes connect at the address that torch
    would take.

    ## Fix
    - **you** take a port that is open between the nodes.
    - **admin** open the port between the nodes.

    ## Source
    connect(2); torch/csrc/distributed/c10d/TCPStore.cpp.
    """
    tried = _tried(cluster)
    first, there = tried[0][0].node, tried[0][1]
    if there.listened != "ok" or _leads_nowhere(there) or any(tcp.unresolved for _, tcp in tried):
        raise NothingToJudge("its ground failed: INI001 or INI002")
    here = [(init, tcp) for init, tcp in tried if not _is_astray(cluster, tcp)]
    closed = [(init, tcp) for init, tcp in here if tcp.connect not in ("", "ok")]
    reached = any(tcp.connect == "ok" for _, tcp in here if not tcp.hosts)
    for view, tcp in closed:
        answer = "something else answers there" if tcp.connect == "stranger" else tcp.connect_detail
        yield fail(
            Where(node=view.node, peer=first if first != view.node else None),
            f"{view.node} does not reach port {tcp.port} of {first}: {answer}",
            why=_WAITS,
            owner="node" if reached else "site",  # where nobody else gets there, the port is at fault
            evidence=[
                seen(f"connect(2) to {tcp.url}", answer),
                seen(f"listen(2) on {first}", "the port was open there"),
            ],
            fix=_opened(cluster, view, tcp, first),
        )
    if not closed:
        yield fine(Where(), f"{len(here)} nodes reach {tried[0][1].url}")


def _opened(cluster: Cluster, view: InitSeen, tcp: TcpInit, first: str) -> list[Remedy]:
    other = you("Or take a port that is open between the nodes.", *_instead(cluster, tcp, port=_USUAL + 11))
    if tcp.connect not in ("timed_out", "refused", "unreachable"):
        return [
            you("See what answers there.", f"getent ahosts {quote(tcp.host)}   # on {view.node}"),
            other,
        ]
    network = next((f"{each}/32" for each in tcp.addresses if ":" not in each), "")
    if not network:
        return [
            admin(f"Open TCP port {tcp.port} of {first} for {view.node}.", f"nft list ruleset   # on {first}"),
            other,
        ]
    text = f"Let {view.node} pass to TCP port {tcp.port} of {first}."
    return [firewall.let_in(text, [network], first, (tcp.port, tcp.port)), other]
