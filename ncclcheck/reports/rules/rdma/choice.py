"""RDM009 to RDM012: which HCAs NCCL would use, and whether these go together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node, Port, Unread, at, known
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
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.output.settings_forms import quoted
from ncclcheck.reports.subjects.nccl import carrying, data_cards, wiring
from ncclcheck.reports.subjects.nccl.hca import HcaChoice, HcaEntry, HcaPattern, UsedPort, parse_hca, port_number
from ncclcheck.reports.subjects.nccl.variables import effective, nccl_version, values
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements
from ncclcheck.reports.text.words.fold import fold_names

_SLOWEST = "The slowest link sets the pace of all nodes."
_TCP = "NCCL then finds no device and silently uses TCP."
_WHY: dict[Callable[..., Finding], str] = {
    fail: _TCP,
    warn: "The job then uses other links than those meant, slower ones perhaps.",
    note: "No data would go over it: other cards are nearer to every GPU.",
}


@rule(
    "RDM009",
    "NCCL_IB_HCA selects existing HCAs, and only the intended ones",
    worst=State.FAIL,
    needs=("rdma.devices", "job.variables"),
)
def selection(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Every name in NCCL_IB_HCA stands for an HCA of the node, and none takes more than it seems to.

    ## Why it matters
    A list copied from another machine selects nothing, and the job runs over TCP. A name is a prefix unless the
    list begins with `=`: `mlx5_1` also takes mlx5_10 to mlx5_19, among them often a slow card for management,
    which sets the pace where data goes over it. A blank after a comma belongs to the name and makes it match
    nothing. What `^` excludes need not be on every node.

    ## Seen as
    slow

    ## How we know
    NCCL's own grammar, `[^][=]hca[:port[:rail[:plane]]],...` with at most 32 entries (rail and plane since 2.30),
    over the names in /sys/class/infiniband; the value as it is in force, nccl.conf included. A prefix that also
    takes cards over which no data would go, being farther from every GPU than others, is a note.

    ## Fix
    - **you** write the names of this machine, with `=` in front: `export NCCL_IB_HCA==mlx5_0,mlx5_1`. Names may
      differ between nodes: then a per-node /etc/nccl.conf, or a prefix that fits all.

    ## Source
    NCCL user guide, Environment Variables, NCCL_IB_HCA; NVIDIA/nccl src/misc/socket.cc, parseStringList.
    """
    nodes = [node for node, _ in wiring.choosing(cluster) if values(node).get("NCCL_IB_HCA")]
    if not nodes:
        raise NothingToJudge("NCCL_IB_HCA is not set")
    anywhere = {hca.name for node, _ in wiring.choosing(cluster) for hca in known(at(node, "rdma.devices"))}
    for node in nodes:
        setting = effective(node)["NCCL_IB_HCA"]
        pattern = parse_hca(setting.value, nccl_version(node))
        problems = list(_problems(node, pattern))
        evidence = [
            seen(setting.source, f"NCCL_IB_HCA={setting.value}"),
            seen("/sys/class/infiniband", ", ".join(hca.name for hca in known(at(node, "rdma.devices")))),
        ]
        for level, what in problems:
            yield level(
                Where(node=node.name), what, why=_WHY[level], owner="job", evidence=evidence,
                fix=_rewrite(node, pattern, anywhere),
            )  # fmt: skip
        if not problems:
            yield fine(Where(node=node.name), f"it selects {fold_names(wiring.choice(node).names)}", *evidence)


def _problems(node: Node, pattern: HcaPattern) -> Iterator[tuple[Callable[..., Finding], str]]:
    """What is wrong, and how bad it is: no HCA left, others than those meant, others that stay idle."""
    ports = [(hca.name, number) for hca in known(at(node, "rdma.devices")) for number in _numbers(hca.ports)]
    if ports and not any(pattern.takes(*port) for port in ports):
        yield fail, "NCCL_IB_HCA leaves no HCA of this node"
        return
    idle = [entry for entry in pattern.entries if not any(pattern.names(entry, *port) for port in ports)]
    if idle and ports and not pattern.exclude:
        yield warn, f"NCCL_IB_HCA names what is not here: {', '.join(_shown(entry) for entry in idle)}"
    names = {name for name, _ in ports}
    sending = {port.hca.name for port in carrying.choice(node).used}
    for entry in pattern.entries:
        more = sorted(name for name in names if name != entry.name and name.startswith(entry.name))
        if more and entry.name in names and not pattern.exact:
            level = warn if pattern.exclude or sending & {*more} else note
            yield level, f"{entry.name} in NCCL_IB_HCA also means {fold_names(more)}: it is a prefix without `=`"
    if pattern.lost:
        yield warn, f"NCCL_IB_HCA has {pattern.lost} entries more than the 32 that NCCL reads"


def _numbers(ports: list[Port] | Unread) -> list[int]:
    """Port numbers; a device whose ports were not read counts with its first."""
    if isinstance(ports, list):
        return [number for port in ports if (number := port_number(port))]
    return [1]


def _shown(entry: HcaEntry) -> str:
    return repr(entry.name) if entry.port < 0 else f"{entry.name!r} port {entry.port}"


def _rewrite(node: Node, pattern: HcaPattern, anywhere: set[str]) -> list[Remedy]:
    """The same names as whole ones; without it where all HCAs go together; else those that data would go over.

    A name that other nodes have is meant: the list stays theirs, and it is this node that lacks the card.
    """
    names = [entry.name for entry in pattern.entries]
    own = {hca.name for hca in known(at(node, "rdma.devices"))}
    lost = [name for name in names if name in anywhere - own]
    if lost and not pattern.exclude and {*names} <= anywhere:
        gone = you(f"Leave the node out until {fold_names(lost)} is back: other nodes have it.",
                   "#SBATCH --exclude=NODE")  # fmt: skip
        return [gone] if pattern.exact else [gone, _listed(pattern, names)]
    up = [*wiring.choice(node).used, *wiring.choice(node).unwanted]
    if not pattern.exact and names and {*names} <= {port.hca.name for port in up}:
        return [_listed(pattern, names)]
    if not up:
        return [you("List the HCAs that are meant, or unset it.", "ls /sys/class/infiniband")]
    if len(data_cards.fastest(up)) == len(up):
        return [you("Unset it: the HCAs of this node go together, and NCCL takes them all.", "unset NCCL_IB_HCA")]
    value = "=" + ",".join(dict.fromkeys(port.hca.name for port in up))
    return [you("List the HCAs that are meant, with = for whole names.", f"export NCCL_IB_HCA={quoted(value)}")]


def _listed(pattern: HcaPattern, names: list[str]) -> Remedy:
    value = ("^=" if pattern.exclude else "=") + ",".join(names)
    return you("List the HCAs that are meant, with = for whole names.", f"export NCCL_IB_HCA={quoted(value)}")


@rule(
    "RDM010",
    "a node with HCAs has one that NCCL can use",
    worst=State.FAIL,
    needs=("rdma.devices",),
    ground=("RDM009",),
)
def any_usable(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    On a node that has HCAs, at least one port is ACTIVE, of a link layer that NCCL knows, and not excluded.

    ## Why it matters
    With none, NCCL takes TCP. Where the other nodes take RDMA the job ends in `wrong type 3 != 4` or hangs; where
    none does, it crawls. It is the sum of what RDM005 and RDM006 report of single ports.

    ## Seen as
    hangs, dies

    ## How we know
    NCCL's choice by sysfs. FAIL where RDMA is asked for (NCCL_NET=IB, NCCL_IB_HCA) or other nodes have it; a
    warning for InfiniBand cards; a note for Ethernet cards, many of which can do RoCE and are meant for TCP.
    Nodes with EFA are judged by RDM004.

    ## Fix
    - **admin** bring the ports up: `ibstat`, RDM005 and RDM006 name them.
    - **you** leave the node out until then.

    ## Source
    NVIDIA/nccl#451, NVIDIA/nccl#952; NVIDIA/nccl-tests#188.
    """
    choices = [(node, taken) for node, taken in wiring.choosing(cluster) if not wiring.efa(node)]
    ready = {node.name for node, taken in choices if taken.used}
    for node, taken in choices:
        if taken.used:
            yield fine(
                Where(node=node.name), f"NCCL would use {fold_names(taken.names)} ({taken.reason}){_idle(node)}"
            )
        elif not taken.unseen and known(at(node, "rdma.devices")):
            yield _none(node, taken, ready)


def _idle(node: Node) -> str:
    """What NCCL lists and leaves alone."""
    data = carrying.choice(node).names
    idle = [name for name in wiring.choice(node).names if name not in data]
    return f"; {fold_names(idle)} idle, for no GPU is near" if idle else ""


def _none(node: Node, taken: HcaChoice, ready: set[str]) -> Finding:
    states = (
        ", ".join(f"{port.name} {port.port.state}" for port in taken.inactive) or "no port that NCCL could use"
    )
    env = values(node)
    asked = env.get("NCCL_NET", "").upper() == "IB" or bool(env.get("NCCL_IB_HCA"))
    infiniband = any(port.port.link_layer == "InfiniBand" for port in taken.inactive)
    where, what = Where(node=node.name), f"NCCL can use none of its HCAs: {states}"
    evidence = [seen("/sys/class/infiniband", states)]
    if ready:
        evidence.append(seen("other nodes", f"{fold_names(sorted(ready))} would use theirs"))
    fix = [you("Leave the node out until its ports are up.", f"#SBATCH --exclude={quote(node.name)}")]
    if not (asked or ready or infiniband):
        return note(where, what, why="The job would use TCP.", owner="node", evidence=evidence)
    level = fail if asked or ready else warn
    why = "The node would use TCP, and cannot talk to nodes that use RDMA."
    return level(where, what, why=why, owner="node", evidence=evidence, fix=fix)


@rule(
    "RDM011",
    "the HCAs that NCCL would use have the same link layer",
    worst=State.WARN,
    needs=("rdma.devices",),
    ground=("RDM005", "RDM006"),
)
def link_layers(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL would not send data over InfiniBand and Ethernet (RoCE) ports at once.

    ## Why it matters
    A port of the other kind is nearly always the card for storage or management (mlx5_bond_0): it cannot talk to
    its partners, which ends in `Attempted to connect incompatible devices` or `ibv_modify_qp failed`, or it is one
    slow rail of many.

    ## Seen as
    slow, dies

    ## How we know
    link_layer of each port that carries data: ACTIVE, not excluded by NCCL_IB_HCA, and to some GPU the widest and
    nearest path in the PCIe tree. NCCL lists the others as well and leaves them idle, so they do no harm.

    ## Fix
    - **you** name the ports that are meant: `export NCCL_IB_HCA='=mlx5_0,mlx5_1'`.
    - **admin** put that line into /etc/nccl.conf of the image.

    ## Source
    NVIDIA/nccl#302, NVIDIA/nccl#1401; NCCL user guide, NCCL_IB_HCA; NVIDIA/nccl src/transport/net_ib.
    """
    for node, taken in carrying.using(cluster):
        roce = [port for port in taken.used if port.is_roce]
        infiniband = [port for port in taken.used if not port.is_roce]
        if roce and infiniband:
            yield _mixed(cluster, node, roce, infiniband)


def _mixed(cluster: Cluster, node: Node, roce: list[UsedPort], infiniband: list[UsedPort]) -> Finding:
    kinds = [f"InfiniBand on {_named(infiniband)}", f"Ethernet on {_named(roce)}"]
    return warn(
        Where(node=node.name),
        f"NCCL would use {' and '.join(kinds)}",
        why="Ports of two kinds cannot talk to each other; one kind is usually for storage or management.",
        owner="job",
        evidence=[seen("link_layer", kind) for kind in kinds],
        fix=[_name_data_cards(cluster)],
    )


def _name_data_cards(cluster: Cluster) -> Remedy:
    """One list for all nodes, and the one that is recommended; `ibdev2netdev` where the facts do not say which."""
    value = data_cards.list_for(cluster.nodes)
    command = f"export NCCL_IB_HCA={quoted(value)}" if value else "ibdev2netdev"
    return you("Name the cards of the data network, with = in front.", command)


def _named(ports: list[UsedPort]) -> str:
    return fold_names(port.name for port in ports)


@rule(
    "RDM012",
    "the links that NCCL would use have the same rate",
    worst=State.WARN,
    needs=("rdma.devices",),
    ground=("RDM002", "RDM005", "RDM006"),
)
def rates(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    All ports that would carry data run at the same rate: on each node, and on all nodes.

    ## Why it matters
    A ring is as fast as its slowest link. A port falls back to a lower rate when a cable or transceiver is bad,
    or when the switch port was set so; and a slow card for management that is as near to a GPU as the others
    becomes one of the rails. No error is written for either.

    ## Seen as
    slow

    ## How we know
    /sys/class/infiniband/HCA/ports/N/rate, compared by majority among the ports of one link layer; the odd ones
    are named. Ports that are nearest to no GPU, such as those of storage, are left out: NCCL leaves them idle.
    So is a node on which a port is down (RDM005, RDM006) or cannot be opened (RDM002), where NCCL falls back to
    what is left.

    ## Fix
    - **admin** `mlxlink -d HCA` shows what both ends can; replace cable or transceiver, look at the switch port.
    - **you** where a card is not meant for the job, name those that are: `export NCCL_IB_HCA='=mlx5_0,mlx5_1'`.

    ## Source
    NCCL user guide, NCCL_IB_HCA; ibstat(8); facebookresearch/gcm, check-ibstat.
    """
    usual: dict[str, str] = {}
    everywhere = Counter(
        (port.port.link_layer, rate)
        for _, taken in carrying.using(cluster)
        for port in taken.used
        if not isinstance(rate := port.port.rate_gbit, Unread)
    )
    for node, taken in carrying.using(cluster):
        for layer in ("InfiniBand", "Ethernet"):
            ports = [port for port in taken.used if port.port.link_layer == layer]
            read = [(port, port.port.rate_gbit) for port in ports if not isinstance(port.port.rate_gbit, Unread)]
            counted = Counter(rate for _, rate in read)
            # Of as many ports of the node the rate that most of all nodes have decides, then the higher one.
            most = sorted(counted.items(), key=lambda had: (had[1], everywhere[layer, had[0]], had[0]))[-1:]
            for slow in sorted({rate for _, rate in read if rate != most[0][0]}):
                yield _odd(cluster, node, [port for port, rate in read if rate == slow], slow, most[0][0])
            if most:
                usual.setdefault(node.name, f"{most[0][0]:g} Gb/s")
    if len(usual) > 1:
        yield from disagreements(
            usual,
            "the rate of the links",
            "/sys/class/infiniband/*/ports/*/rate",
            level=warn,
            why=_SLOWEST,
            owner="node",
            fix=[admin("Look at cables, transceivers and switch ports of the slower node.", "mlxlink -d mlx5_0")],
        )


def _odd(cluster: Cluster, node: Node, ports: list[UsedPort], rate: float, usual: float) -> Finding:
    of_others = data_cards.list_for(cluster.nodes) is not None
    return warn(
        Where(node=node.name, device=_named(ports)),
        f"{'they run' if len(ports) > 1 else 'it runs'} at {rate:g} Gb/s, most links of the node at {usual:g}",
        why=_SLOWEST,
        owner="node",
        evidence=[seen(f"rate of {_named(ports)}", f"{rate:g} Gb/s"), seen("most others", f"{usual:g} Gb/s")],
        fix=[
            admin("Look at cable, transceiver and switch port.", f"mlxlink -d {quote(ports[0].hca.name)}"),
            _name_data_cards(cluster)
            if of_others
            else you("Leave the node out until then.", f"#SBATCH --exclude={quote(node.name)}"),
        ],
    )
