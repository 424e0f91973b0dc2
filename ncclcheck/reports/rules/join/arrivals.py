"""Rules about a join: who came, what each node was told, and why node rank 0 was not reached."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import (
    Arrival,
    Cluster,
    Meeting,
    Neighbour,
    Node,
    Unread,
    at,
    replace,
    value_or,
    variables,
)
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
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.addresses.names import misnamed
from ncclcheck.reports.subjects.addresses.names.master import another_port, named_anew
from ncclcheck.reports.subjects.failures.entering import cut_off
from ncclcheck.reports.subjects.links.filters import firewall, kept
from ncclcheck.reports.subjects.links.paths import detours, own_way, unrouted
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements
from ncclcheck.reports.text.words.fold import fold_names

_WHY_LEAD = "No job can run before the nodes can talk; torchrun would wait here in silence."
_NO_JOIN = "no join: the launcher numbers the nodes"


def _arrivals(cluster: Cluster, *outcomes: str) -> list[Arrival]:
    meeting = cluster.job.meeting
    return [arrival for arrival in meeting.arrivals if arrival.outcome in outcomes] if meeting else []


@rule(
    "RUN008",
    "node ranks are distinct, and every node that connected could join",
    worst=State.FAIL,
    over="",
    between_machines=True,
)
def node_ranks(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether two nodes have the same node rank, and whether a node was rejected: it ran another
    command, another ncclcheck, or it came too late. In Slurm also whether NODE_RANK is the same on all nodes.

    ## Why it matters
    Of two nodes with one rank the second finds its place taken, and the place that should have been its own stays
    empty: plain torchrun and `init_process_group` wait there until a time-out, and name nobody. A script
    that exports `NODE_RANK=$SLURM_PROCID` before srun gives every task the 0 of the batch script.

    ## Seen as
    hangs

    ## How we know
    Each node reports its node rank, its name and its address to the rendezvous on node rank 0 before
    anything runs. The one that came first has the rank; both are named. Node rank 0, where the endpoint is no
    address of its own, asks there every two seconds whether another machine leads this very run.

    ## Fix
    - **you** number the nodes 0, 1, 2, ..., each once: `--node-rank 1`. In a Kubernetes Job take
      `--node-rank $JOB_COMPLETION_INDEX`; in Slurm set NODE_RANK inside of srun, not before it. Where two
      processes of one node came, end the one that is left over of an earlier start.

    ## Source
    torchrun's documentation, `--node-rank`; NVIDIA/Megatron-LM#1371 (such a script); Kubernetes documentation,
    Jobs, "Completion mode".
    """
    if cluster.job.meeting is None and cluster.job.launcher != "slurm":
        raise NothingToJudge(_NO_JOIN)
    names = {a.node_rank: a.name for a in _arrivals(cluster, "joined")}
    names[0] = cluster.nodes[0].name if cluster.nodes else "node 0"
    meeting = cluster.job.meeting
    if meeting and meeting.node_rank == 0 and meeting.outcome == "turned_away":
        yield _second_lead(cluster, meeting)
    for arrival in _arrivals(cluster, "same rank"):
        yield _same_rank(arrival, names.get(arrival.node_rank, "another node"))
    for arrival in _arrivals(cluster, "other command", "other protocol", "late"):
        yield _turned_away(arrival)
    if cluster.job.launcher == "slurm":
        yield from _same_in_slurm(cluster.nodes)


def _second_lead(cluster: Cluster, meeting: Meeting) -> Finding:
    """On the machine that has not the endpoint's address: there another one leads the same run."""
    name = cluster.nodes[0].name if cluster.nodes else "this node"
    host, _, _ = meeting.endpoint.rpartition(":")
    return fail(
        Where(node=name),
        f"{name} was started as node rank 0, and another machine is that already: {meeting.endpoint}, "
        f"whose address {name} does not have ({meeting.detail})",
        why="Each of the two waits for a node that never comes: both are the first one.",
        owner="job",
        evidence=[
            seen(f"asked at {meeting.endpoint}", meeting.detail),
            seen(f"{host} resolves to", ", ".join(meeting.addresses)),
        ],
        fix=[
            you(
                f"Give {name} another node rank; the machine with {host} stays node rank 0.",
                "--node-rank 1   # 0, 1, 2, ..., each once",
            )
        ],
    )


def _same_rank(arrival: Arrival, first: str) -> Finding:
    if arrival.name == first:
        return _again(arrival)
    return fail(
        Where(node=arrival.name, peer=first),
        f"{arrival.name} ({arrival.address}) and {first} both came as node rank {arrival.node_rank}",
        why="One node rank is given twice, so that another one is missing: the job would wait for it.",
        owner="job",
        evidence=[seen("meeting point", arrival.detail)],
        fix=[you("Give each node a rank of its own.", "--node-rank 1   # 0, 1, 2, ..., each once")],
    )


def _again(arrival: Arrival) -> Finding:
    return fail(
        Where(node=arrival.name),
        f"two processes of {arrival.name} came as node rank {arrival.node_rank}; the second was rejected",
        why="One is left of an earlier start, such as a pod whose successor has begun, or the node is listed"
        " twice: the job would meet both.",
        owner="job",
        evidence=[seen("meeting point", arrival.detail)],
        fix=[you("End the one that is left over, and start again.", "pgrep -af ncclcheck   # on that node")],
    )


def _turned_away(arrival: Arrival) -> Finding:
    mends = {
        "other command": you("Type the same command on every node."),
        "other protocol": you("Install the same ncclcheck on all nodes.", "pip install --upgrade ncclcheck"),
        "late": you("Start it sooner, or let node rank 0 wait longer.", "--wait 1800"),
    }
    return fail(
        Where(node=arrival.name),
        f"it came as node rank {arrival.node_rank} and was turned away: {arrival.detail}",
        why="Without it the job is not complete.",
        owner="job",
        evidence=[seen("meeting point", arrival.detail)],
        fix=[mends[arrival.outcome]],
    )


def _same_in_slurm(nodes: list[Node]) -> Iterator[Finding]:
    ranks = {node.name: variables(node)["NODE_RANK"] for node in nodes if "NODE_RANK" in variables(node)}
    if len(ranks) > 1 and len(set(ranks.values())) == 1:
        value = next(iter(ranks.values()))
        yield warn(
            Where(),
            f"NODE_RANK is {value} on all {len(ranks)} nodes",
            why="It was set before srun, which hands the same value to every task.",
            owner="job",
            evidence=[seen("environment", f"NODE_RANK={value} on {fold_names(ranks)}")],
            fix=[you("Set it inside of the step.", "srun bash -c 'NODE_RANK=$SLURM_NODEID torchrun ...'")],
        )


@rule(
    "RUN009",
    "all nodes agree on the number of nodes and ranks",
    worst=State.FAIL,
    over="",
    between_machines=True,
)
def world_size(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    `--nodes`, WORLD_SIZE and PET_NNODES of every node, and how WORLD_SIZE was read: as pods or as processes.

    ## Why it matters
    A node that was told of more nodes than there are waits for those that never come; one that was told of fewer
    begins without the others. Kubeflow's WORLD_SIZE counted pods in older versions and processes in newer ones,
    while for torch it is always processes: a job of 2 pods with 8 GPUs each may so run on 2 ranks.

    ## How we know
    What each node says to the meeting point, and the environment of each node. RANK without LOCAL_RANK means pods;
    PET_NPROC_PER_NODE or `--nodes` tell the two readings apart.

    ## Fix
    - **you** the same `--nodes` on every node; where WORLD_SIZE was read wrongly, say it with `--nodes N`.

    ## Source
    kubeflow/trainer#1790, kubeflow/pytorch-operator#331; PyTorch documentation, torch.distributed, "Environment
    variable initialization".
    """
    by_name = {
        name: {node.name: variables(node)[name] for node in cluster.nodes if name in variables(node)}
        for name in ("WORLD_SIZE", "PET_NNODES")
    }
    counts = _arrivals(cluster, "other count")
    if not any(by_name.values()) and cluster.job.meeting is None:
        raise NothingToJudge("no WORLD_SIZE is set, and the launcher counts the nodes")
    for arrival in counts:
        yield _other_count(cluster, arrival)
    for name, values in by_name.items():
        if len(set(values.values())) > 1:
            yield from disagreements(
                values,
                name,
                "environment",
                level=fail,
                why="One part of the job waits for ranks that the other part does not have.",
                owner="job",
                fix=[you("Set it to the same number on every node, or give --nodes N.", f"echo ${name}")],
            )
    if "WORLD_SIZE" in cluster.job.chosen_by and not counts:
        yield fine(Where(), f"read from {cluster.job.chosen_by}")


def _other_count(cluster: Cluster, arrival: Arrival) -> Finding:
    lead = cluster.nodes[0].name if cluster.nodes else "node rank 0"
    return fail(
        Where(node=arrival.name, peer=lead),
        f"{arrival.name} was told of {arrival.nodes} nodes, {lead} of {cluster.job.nodes_asked}",
        why="The two would wait for different sets of nodes.",
        owner="job",
        evidence=[seen("meeting point", arrival.detail)],
        fix=[you("Give the same number on every node.", f"--nodes {cluster.job.nodes_asked}")],
    )


@rule(
    "RUN010",
    "node rank 0 is reachable",
    worst=State.FAIL,
    over="",
    between_machines=True,
    unfinished=True,
    gates_job="by any failure",
)
def lead_was_reached(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether this node could join node rank 0. Only a node that never reached it writes a report of its own.

    ## Why it matters
    torchrun only waits here, for minutes, and says neither that the name does not resolve, nor that packets are
    dropped, nor that something else listens on the port.

    ## How we know
    The name is resolved and each of its addresses is tried again and again until `--wait` is over. Refused: the
    machine answers and nothing listens, so node rank 0 was not started, or it is another machine. No answer: a
    firewall drops packets, or the machine is down. No route: a machine on the path says so. Something else: who
    listens there does not greet as ncclcheck does. Whose fault that is cannot be seen from one side, so the
    state is unknown and the exit code 3. Where this node's own kernel has no route for 6 s, it is a failure of
    this node, and nothing more is waited for. It is one too where its kernel sends to an address in the subnet
    of one interface by another one, which a more specific route or a bridge with a part of the subnet makes it
    do. A node that fails for 8 s looks for node rank 0 at its other addresses: those that /etc/hosts and name
    servers here know, and by a question to all IPv6 hosts of its links. If the same run greets there, it joins
    by that address, so that node rank 0 says why the endpoint fails, with the facts of both; until the run
    begins the endpoint is tried again. Where nothing comes back, the kernel here is asked for its route to the
    address (what `ip route get` prints), and the first of these is the cause: IPv6 that is off, an address that
    failed duplicate address detection, a link without carrier, an address on a bridge's port, a route or policy
    rule that leads into a tunnel or by another interface, another interface's address as the sender, a gateway
    that answers no ARP. Where a name was given, /etc/hosts and each name server are asked for it, and up to 16
    other addresses that they know: if node rank 0 greets at one of them, the name is wrong here.

    ## Fix
    - **you** start the same command with `--node-rank 0` on that machine; compare `ip -br addr` there with the
      address here.
    - **admin** a route between the subnets; the port open between the nodes.

    ## Source
    connect(2), getaddrinfo(3), ip-route(8); pytorch/pytorch#76367, pytorch/pytorch#79388.
    """
    meeting = cluster.job.meeting
    if meeting is None:
        raise NothingToJudge(_NO_JOIN)
    if meeting.node_rank != 0:
        yield from _not_reached(cluster, meeting)
    elif came := cut_off.arrivals(cluster, meeting):
        yield from _came_otherwise(cluster, meeting, came)
    else:
        raise NothingToJudge("this is node rank 0's own report")


def _came_otherwise(cluster: Cluster, meeting: Meeting, came: list[Arrival]) -> Iterator[Finding]:
    """On node rank 0: nodes that the endpoint failed, by what they and all others know."""
    arrivals = [
        arrival
        for arrival in came
        if arrival.unreached and not cut_off.by_another_holder(cluster, arrival.unreached)
    ]
    if not arrivals:
        raise NothingToJudge("its ground failed: RUN005")
    for lead, group in cut_off.by_cause(cluster, arrivals):
        first = group[0]
        assert first.unreached is not None
        node = next((node for node in cluster.nodes if node.name == first.name), None)
        names = fold_names(arrival.name for arrival in group)
        does = "does not reach" if len(group) == 1 else "do not reach"
        if lead is None and node is not None:
            there = replace(first.unreached, node_rank=1, endpoint=meeting.endpoint)
            alone = replace(cluster, nodes=[node], job=replace(cluster.job, meeting=there))
            yield from map(_as_certain, _not_reached(alone, first.unreached))
            continue
        if lead is None:
            continue
        yield fail(
            Where(
                node=lead.node,
                device=lead.device or None,
                peer="node rank 0" if lead.node == first.name else names,
            ),
            f"{names} {does} node rank 0 at {meeting.endpoint}: {lead.words}",
            why=_WHY_LEAD,
            owner="node",
            evidence=[
                seen(f"connect(2) on {first.name}", first.unreached.detail),
                seen("meeting point", f"{first.name} came by another address of this node"),
                *lead.evidence,
                *(own_way.evidence(node, way) for way in first.unreached.ways if node),
            ],
            fix=list(lead.fix),
        )


def _as_certain(finding: Finding) -> Finding:
    """Node rank 0 runs and answers at another address, so that it is the way to the endpoint that fails."""
    return replace(finding, state=State.FAIL)


def _not_reached(cluster: Cluster, meeting: Meeting) -> Iterator[Finding]:
    """Why the one node of this cluster did not reach node rank 0."""
    name = cluster.nodes[0].name if cluster.nodes else None
    evidence = [
        seen("endpoint", f"{meeting.endpoint}, by {meeting.told_by}"),
        seen("resolves to", ", ".join(meeting.addresses) or "nothing"),
        *(seen("neighbour entry", _entry(text, neighbour)) for text, neighbour in meeting.neighbours.items()),
        *(seen("from here", way) for node in cluster.nodes for way in _ways(node, meeting)),
        *(own_way.evidence(node, way) for node in cluster.nodes for way in meeting.ways),
        *misnamed.evidence(meeting),
    ]
    why = _WHY_LEAD
    named = misnamed.cause(cluster, meeting)
    own_cause = named or _by_own_way(cluster, meeting)
    if own_cause is not None:
        yield fail(
            Where(node=name, device=own_cause.device or None, peer="node rank 0"),
            f"this node does not reach node rank 0 at {meeting.endpoint}: {own_cause.words}",
            why=why,
            owner="node",
            evidence=[seen("connect(2)", meeting.detail), *evidence],
            fix=list(own_cause.fix),
        )
        return
    if meeting.outcome == "unrouted" and cluster.nodes and meeting.addresses:
        address = meeting.addresses[0].partition("%")[0]
        if meeting.kept in ("filter", "resources"):
            own = kept.cause(cluster.nodes[0], meeting.kept, address)
            yield fail(
                Where(node=name, peer="node rank 0"),
                f"this node itself does not send to node rank 0 at {meeting.endpoint}: {own.words}",
                why=why,
                owner="node",
                evidence=[seen("connect(2)", meeting.detail), *own.evidence, *evidence],
                fix=list(own.fix),
            )
            return
        cause = unrouted.cause(cluster.nodes[0], ipaddress.ip_address(address))
        yield fail(
            Where(node=name, device=cause.device, peer="node rank 0"),
            f"this node has no route to node rank 0 at {meeting.endpoint}: {cause.words}",
            why=why,
            owner="node",
            evidence=[seen("connect(2)", meeting.detail), *evidence],
            fix=cause.fix,
        )
        return
    if meeting.outcome in ("silent", "no_route") and (led := _detour(cluster, meeting)):
        detour, peer = led
        yield fail(
            Where(node=name, device=detour.route.interface, peer="node rank 0"),
            f"this node sends to node rank 0 at {peer} by {detour.route.interface}, not by {detour.meant}, in "
            f"whose subnet it is: its route {detour.line} comes before {detour.network}",
            why=why,
            owner="node",
            evidence=[seen("connect(2)", meeting.detail), *evidence],
            fix=detour.fix(peer),
        )
        return
    doubts = [*misnamed.doubts(meeting), *filter(None, map(own_way.unanswered, meeting.ways))]
    yield unknown(
        Where(node=name, peer="node rank 0"),
        f"not reached at {meeting.endpoint} in {meeting.seconds:.0f} s: {'; '.join([meeting.detail, *doubts])}",
        why=why,
        owner="job",
        evidence=evidence,
        fix=_mends(cluster, meeting),
    )


@rule("RUN012", "the nodes of a join share a secret", worst=State.NOTE, over="", between_machines=True)
def nodes_know_each_other(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether the nodes of a join share a secret: from NCCLCHECK_SECRET, from `--secret-file`, or in a step
    of Slurm from munge.

    ## Why it matters
    Without one, whoever reaches the port of the meeting may come as a node, or answer in node rank 0's place, and
    say what he likes of it. Such a join takes facts and measurements alone: no code of the user's is run by it,
    and what it says of a node may be somebody else's words.

    ## How we know
    Both sides prove that they know the secret over all that they have sent, and every later line is sealed under a
    key made from it (HMAC-SHA256). A run's id (`--rdzv-id`) stands on the command line and is no secret.

    ## Fix
    - **you** give every node the same NCCLCHECK_SECRET (in Kubernetes from a Secret), or `--secret-file` with a
      file of mode 0600; or let ssh or Slurm start the nodes: `--hosts`, or `ncclcheck` inside of `salloc`.

    ## Source
    docs/security.md; RFC 2104 (HMAC); munge(7).
    """
    meeting = cluster.job.meeting
    if meeting is None or not meeting.secret:
        raise NothingToJudge(_NO_JOIN)
    if meeting.secret != "none":
        yield fine(
            Where(), {"secret": "a secret that all of them have", "munge": "munge's credentials"}[meeting.secret]
        )
        return
    yield note(
        Where(),
        "this join has no secret: whoever reaches its port can come as a node",
        why="What it says of a node may be somebody else's words, so it runs no code of the user's own.",
        owner="job",
        evidence=[seen("meeting point", f"{meeting.endpoint}, by {meeting.told_by}")],
        fix=[
            you(
                "Give every node the same secret.",
                "export NCCLCHECK_SECRET=...   # on every node the same, from: openssl rand -hex 32",
            )
        ],
    )


def _entry(address: str, neighbour: Neighbour) -> str:
    if not neighbour.permanent:
        return f"{address} is at the MAC address {neighbour.mac} on {neighbour.interface}"
    return (
        f"{address} is at {neighbour.mac} on {neighbour.interface}, permanently: if node rank 0 has another MAC "
        f"address (ip link), that is the cause: ip neigh del {quote(address)} dev {quote(neighbour.interface)}"
    )


def _by_own_way(cluster: Cluster, meeting: Meeting) -> own_way.WayCause | None:
    """What this node's own kernel says of the way, where nothing came back."""
    if meeting.outcome not in ("silent", "no_route", "unrouted") or meeting.kept == "filter":
        return None
    causes = (own_way.cause(node, way) for node in cluster.nodes for way in meeting.ways)
    return next((cause for cause in causes if cause), None)


def _detour(cluster: Cluster, meeting: Meeting) -> tuple[detours.Detour, str] | None:
    """A detour to node rank 0 that the kernel was seen to take: its source address is that interface's own."""
    for node in cluster.nodes:
        addresses = {
            interface.name.partition(":")[0]: {address.address for address in value_or(interface.addresses, [])}
            for interface in value_or(at(node, "network.interfaces"), [])
        }
        for text, source in zip(meeting.addresses, meeting.sources, strict=False):
            peer = text.partition("%")[0]
            detour = detours.to(node, ipaddress.ip_address(peer))
            if detour and source in addresses.get(detour.route.interface, ()):
                return detour, peer
    return None


def _ways(node: Node, meeting: Meeting) -> Iterator[str]:
    """How this node would send to each address: on its subnet, by a gateway, or not at all."""
    listed = at(node, "network.interfaces")
    if isinstance(listed, Unread):
        return
    subnets = [(i.name, net) for i in listed for _, net in lan.global_networks(i)]
    for text in meeting.addresses:
        peer = ipaddress.ip_address(text.partition("%")[0])
        inside = [name for name, net in subnets if peer in net]
        way = lan.Routes(node).way(peer.version, int(peer))
        if peer.is_loopback:
            yield f"{peer} is this machine itself"
        elif detour := detours.to(node, peer):
            yield f"{peer} goes by {detour.route.interface}: {detour.evidence}"
        elif inside:
            yield f"{peer} is in the subnet of {inside[0]}"
        else:
            shown = ", ".join(f"{name} {net}" for name, net in subnets) or "none"
            by = (
                f"it goes by {way.interface}" + (f" through {way.gateway}" if way.gateway else "")
                if way
                else "no route"
            )
            yield f"{peer} is in none of this node's subnets ({shown}); {by}"


def _mends(cluster: Cluster, meeting: Meeting) -> list[Remedy]:
    host, _, port = meeting.endpoint.rpartition(":")
    on_wire = [remedy for way in meeting.ways if (remedy := own_way.wire(way, _here(cluster)))]
    start = you(
        "See whether node rank 0 runs, and on which address.", f"ss -ltn | grep {quote(port)}   # on node 0"
    )
    if "--rdzv-id" in meeting.detail:
        return [
            you(
                "Give every node of one run the same --rdzv-id; two runs at once need a port each.",
                "--rdzv-id job1   # on every node",
            )
        ]
    mends = {
        "unresolved": [
            you("Give the address of node rank 0 in place of its name.", *named_anew(cluster)),
            admin(
                "Put the name into DNS or /etc/hosts of this node.", f"getent ahosts {quote(host)}   # on node 0"
            ),
        ],
        "no_route": [
            you("Take an address of node 0 that this node can reach.", *named_anew(cluster)),
            admin(
                "Give this node a route to that subnet, or an address in it.",
                f"ip route get {quote(host)}",
                "ip route",
            ),
        ],
        "silent": [*on_wire, start, *([] if on_wire else _opened(cluster, meeting))],
        "stranger": [
            you(
                "Take another port, on every node the same.",
                f"ss -ltnp | grep {quote(port)}   # on node 0",
                another_port(cluster, port),
            )
        ],
    }
    return mends.get(meeting.outcome, [start])


def _here(cluster: Cluster) -> str:
    return cluster.nodes[0].name if cluster.nodes else "this node"


def _opened(cluster: Cluster, meeting: Meeting) -> Iterator[Remedy]:
    """A firewall of node rank 0 for the subnets of both ends, as far as they are known here."""
    networks = [str(net) for node in cluster.nodes for net in _networks(node, meeting)]
    if networks:
        yield firewall.let_in(
            "Let the nodes of the job's network connect to each other on all high ports, also in the cloud's "
            "security group.",
            networks,
            "node rank 0",
        )


def _networks(node: Node, meeting: Meeting) -> Iterator[lan.IPNetwork]:
    """The subnet from which this node sends to node rank 0, and that of node rank 0 where it is another one."""
    listed = value_or(at(node, "network.interfaces"), [])
    for text, source in zip(meeting.addresses[:1], meeting.sources, strict=False):
        peer = ipaddress.ip_address(text.partition("%")[0])
        own = [
            net
            for interface in listed
            for address, net in lan.global_networks(interface)
            if address.address == source
        ]
        yield from own[:1]
        if own and peer not in own[0]:
            yield ipaddress.ip_network(f"{peer}/{own[0].prefixlen}", strict=False)
