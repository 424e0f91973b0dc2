"""Rules about MASTER_ADDR, or the host of the endpoint that was typed: where all nodes are to meet."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Arrival, Cluster, Node, Resolution, Unread, at
from ncclcheck.reports.judgement.findings import (
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    note,
    seen,
    unknown,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.addresses.names import hosts_file
from ncclcheck.reports.subjects.addresses.names.master import (
    Master,
    address_of_node_0,
    holders_of,
    left_over,
    master_of,
    named_anew,
    set_on,
)
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements
from ncclcheck.reports.text.words.fold import fold_names


def _several(cluster: Cluster) -> None:
    if cluster.job.nodes_asked < 2:
        raise NothingToJudge("one node")


@rule(
    "RUN005",
    "MASTER_ADDR is an address of node 0 on the job's network",
    worst=State.FAIL,
    over="",
    between_machines=True,
    gates_job="by any failure",
)
def master_is_node_0(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether the host of MASTER_ADDR (or of `--rdzv-endpoint`) belongs to node 0 alone, and lies on the network that
    the job would use.

    ## Why it matters
    Node 0 opens the store there and all ranks connect to it. Where it is another machine's address, nobody
    listens: the others retry until a time-out that names the address and not the mistake. Where every node has it
    (172.17.0.1 of docker0), each one connects to itself.

    ## Seen as
    hangs

    ## How we know
    What the host resolves to on the nodes, compared with the addresses of all interfaces of all nodes. An address
    that no node has may be a proxy (a Kubernetes service): a note if nodes came through it. Another network
    than the chosen one is a note too: the store carries little, but its port must be open there.

    ## Fix
    - **you** `export MASTER_ADDR=` the address of node 0 on the job's network, the same on every node. In Slurm:
      `MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)`.
    - **admin** one address for that name on all nodes (/etc/hosts, DNS).

    ## Source
    PyTorch documentation, torch.distributed, "Environment variable initialization"; torchrun, "Rendezvous";
    pytorch/pytorch#79388.
    """
    _several(cluster)
    master = master_of(cluster)
    meeting = cluster.job.meeting
    if master.is_loopback:
        raise NothingToJudge("its ground failed: RUN006")
    addresses = _resolved(cluster, master)
    holders = holders_of(cluster, addresses)
    if not cluster.nodes or (meeting is not None and meeting.node_rank != 0):
        if not holders:
            raise NothingToJudge("the facts of node 0 are not here")
        yield _of_itself(cluster, master, *next(iter(holders.items())), addresses)
        return
    if not addresses:
        raise NothingToJudge(f"{master.host} resolves on no node that answered (RUN006)")
    first = cluster.nodes[0].name
    if first in holders and len(holders) > 1:
        if _is_real(cluster.nodes[0], holders[first]):
            raise NothingToJudge("its ground failed: NET010")
        yield _of_many(cluster, master, holders)
    elif first in holders:
        yield _of_node_0(cluster, master, holders[first])
    elif holders:
        yield _of_another(cluster, master, first, next(iter(holders)), addresses)
    else:
        yield from _of_nobody(cluster, master, first, addresses)


def _resolved(cluster: Cluster, master: Master) -> list[str]:
    """What the other nodes take it for; node 0's own view only where nobody else tells one."""
    if master.address is not None:
        return [master.address]
    views = [at(node, "job.master") for node in [*cluster.nodes[1:], *cluster.nodes[:1]]]
    for view in views:
        if isinstance(view, Resolution) and view.name == master.host and view.addresses:
            return view.addresses
    return list(cluster.job.meeting.addresses) if cluster.job.meeting else []


def _is_real(node: Node, name: str) -> bool:
    """Whether it is a network card, whose address NET010 wants to be unique."""
    listed = lan.interfaces(node)
    return any(interface.name == name and lan.is_real(interface, listed) for interface in listed)


def _of_node_0(cluster: Cluster, master: Master, interface: str) -> Finding:
    node = cluster.nodes[0]
    link = lan.link(node, lan.choice_of_job(cluster, node))
    if link is None or link.interface.name == interface:
        return fine(Where(node=node.name), f"{master.source} {master.host} is {interface} of {node.name}")
    return note(
        Where(node=node.name, device=interface),
        f"{master.source} {master.host} is on {interface}; the job's data goes over {link.interface.name}",
        why="That works if the port is open on that network too.",
        evidence=[seen(interface, master.host), seen("chosen interface", f"{link.interface.name} {link.address}")],
    )


def _of_many(cluster: Cluster, master: Master, holders: dict[str, str]) -> Finding:
    return fail(
        Where(),
        f"{master.source} {master.host} is an address of {len(holders)} nodes: {fold_names(holders)}",
        why="Each of these nodes connects to itself and waits for the others until a time-out.",
        owner="job",
        evidence=[seen("getifaddrs", ", ".join(f"{node} {name}" for node, name in list(holders.items())[:8]))],
        fix=[you("Take an address that only node 0 has.", "ip -br addr   # on node 0", *named_anew(cluster))],
    )


def _of_itself(cluster: Cluster, master: Master, node: str, interface: str, addresses: list[str]) -> Finding:
    return fail(
        Where(node=node, device=interface),
        f"{master.source} {master.host} is an address of this very node, which is not node 0",
        why="It looks for the store of node 0 on itself, where nobody listens, until a time-out.",
        owner="job",
        evidence=[seen(master.host, ", ".join(addresses)), seen("interface", interface)],
        fix=[you("Name node 0 by an address that it alone has.", *named_anew(cluster))],
    )


def _of_another(cluster: Cluster, master: Master, first: str, other: str, addresses: list[str]) -> Finding:
    return fail(
        Where(node=first, peer=other),
        f"{master.source} {master.host} is an address of {other}, and node 0 is {first}",
        why="Node 0 opens the store and the others look for it elsewhere: they wait until a time-out.",
        owner="job",
        evidence=[seen(master.host, ", ".join(addresses)), seen("node 0", first)],
        fix=[you(f"Name node 0, or give {other} node rank 0.", *named_anew(cluster))],
    )


def _came_through(arrival: Arrival) -> bool:
    return arrival.outcome == "joined" and arrival.unreached is None


def _of_nobody(cluster: Cluster, master: Master, first: str, addresses: list[str]) -> Iterator[Finding]:
    evidence = [seen(master.host, ", ".join(addresses)), seen("node 0", first)]
    meeting = cluster.job.meeting
    if meeting is not None and any(_came_through(arrival) for arrival in meeting.arrivals):
        yield note(
            Where(node=first),
            f"{master.source} {master.host} is no address of its own; the others came through it all the same",
            why="A service or NAT passes on this port only; the job connects to node 0 directly on others.",
            evidence=evidence,
        )
    elif any(isinstance(at(node, "network.interfaces"), Unread) for node in cluster.nodes) or cluster.run.silent:
        yield unknown(
            Where(node=first),
            f"{master.source} {master.host} is an address of no node whose interfaces were read",
            why="It may belong to a node that did not answer.",
            evidence=evidence,
            fix=[you("If it is not meant, name node 0 by an address of its own.", *named_anew(cluster))],
        )
    else:
        yield fail(
            Where(node=first),
            f"{master.source} {master.host} ({', '.join(addresses)}) is an address of no node of this job",
            why="Nobody of this job listens there: the ranks wait for a time-out.",
            owner="job",
            evidence=evidence,
            fix=[you("Name node 0 by an address of its own.", *named_anew(cluster))],
        )


@rule(
    "RUN006",
    "MASTER_ADDR is the same on all nodes and not loopback",
    worst=State.FAIL,
    over="",
    between_machines=True,
)
def master_is_one(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    MASTER_ADDR on every node and what it resolves to there; or the host of `--rdzv-endpoint`.

    ## Why it matters
    127.0.0.1 and localhost are on every machine that machine itself: a script that was written for one node makes
    each node wait for the others at its own door. Nodes that disagree wait for each other in different places.
    Where `--rdzv-endpoint` says where to meet, MASTER_ADDR is not used: a note. So is one that some nodes have and
    others do not, which a launcher would set on all: somebody's profile has it from another job.

    ## How we know
    The environment of each node, and getaddrinfo(3) asked there. On node 0 itself the name may be 127.0.1.1
    (NET005 judges that); on any other node it may not.

    ## Fix
    - **you** `export MASTER_ADDR=` the name or address of node 0, on every node the same.
    - **admin** the real address of node 0 in /etc/hosts or DNS on every node.

    ## Source
    PyTorch documentation, torch.distributed, "Environment variable initialization"; NVIDIA/Megatron-LM#343 (a
    script with MASTER_ADDR=localhost); hosts(5), getaddrinfo(3).
    """
    _several(cluster)
    addresses = set_on(cluster)
    if cluster.job.meeting is None and (some := left_over(cluster)):
        yield _left_over(f"the {len(cluster.nodes) - len(some)} other nodes go without it", some)
        return
    master = master_of(cluster)
    if master.is_loopback:
        yield _loopback(cluster, master)
        return
    if addresses and master.source != "MASTER_ADDR":
        yield _left_over(f"{master.source} says where the nodes meet", addresses)
        return
    if len(addresses) > 1:
        yield from disagreements(
            addresses,
            "MASTER_ADDR",
            "environment",
            level=fail,
            why="The nodes wait for each other in different places.",
            owner="job",
            fix=[
                you(
                    "Set it to node 0, the same on every node.",
                    *named_anew(cluster),
                )
            ],
        )
    for index, node in enumerate(cluster.nodes):
        yield from _resolves(cluster, node, is_first=index == 0)


def _left_over(reason: str, addresses: dict[str, str]) -> Finding:
    """The nodes meet without it; torchrun sets it anew for the ranks."""
    return note(
        Where(node=next(iter(addresses)) if len(addresses) == 1 else None),
        f"MASTER_ADDR is set on {fold_names(addresses)} and not used: {reason}",
        why="A script that starts ranks without torchrun would take it.",
        owner="job",
        evidence=[seen(node, f"MASTER_ADDR={value}") for node, value in sorted(addresses.items())[:8]],
        fix=[you("Take it away where it is left over from another job.", "unset MASTER_ADDR MASTER_PORT")],
    )


def _loopback(cluster: Cluster, master: Master) -> Finding:
    return fail(
        Where(),
        f"{master.source} is {master.host}, which is on every machine that machine itself",
        why=f"None of the {cluster.job.nodes_asked} nodes can find another one there; each waits alone.",
        owner="job",
        evidence=[seen(master.source, master.host)],
        fix=[
            you("Give the address of node 0 on the job's network, on every node the same.", *named_anew(cluster))
        ],
    )


def _name_of_node_0(cluster: Cluster, node: Node, view: Resolution) -> Iterator[Remedy]:
    """Its line in /etc/hosts of the node that resolves it wrongly, where node 0 has told its address."""
    if address := address_of_node_0(cluster):
        line = hosts_file.named(view.name, address, view.addresses)
        yield admin("Give it the address of node 0 in DNS, or in /etc/hosts.", f"{line}   # on {node.name}")


def _resolves(cluster: Cluster, node: Node, *, is_first: bool) -> Iterator[Finding]:
    view = at(node, "job.master")
    if isinstance(view, Unread):
        return
    lonely = bool(cluster.job.meeting and cluster.job.meeting.node_rank)  # RUN010 says why node 0 was not reached
    if not view.addresses and not lonely:
        what = f"MASTER_ADDR {view.name} does not resolve on this node"
        why = "Its ranks cannot even begin to look for node 0."
    elif (
        view.addresses and not (is_first or lonely) and all(lan.is_loopback(address) for address in view.addresses)
    ):
        what = f"MASTER_ADDR {view.name} is {view.addresses[0]} on this node: itself"
        why = "Its ranks wait for node 0 on their own machine."
    else:
        return
    evidence = [seen(f"getaddrinfo({view.name})", ", ".join(view.addresses) or "no address")]
    mend = [
        you("Give an address in place of the name.", *named_anew(cluster)),
        *_name_of_node_0(cluster, node, view),
    ]
    yield fail(Where(node=node.name), what, why=why, owner="node", evidence=evidence, fix=mend)
