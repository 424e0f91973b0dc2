"""RDM005 to RDM008: the state of the ports that NCCL would use, and their error counters."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Unread, value_or
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
from ncclcheck.reports.subjects.nccl import carrying, wiring
from ncclcheck.reports.subjects.nccl.hca import HcaChoice, UsedPort, parse_hca
from ncclcheck.reports.subjects.nccl.variables import values
from ncclcheck.reports.text.words.fold import fold_names

_HALF_UP = ("INIT", "ARMED")
_FEWER = "NCCL skips a port that is not ACTIVE: the job continues over fewer links, or stops."


@rule("RDM005", "the ports that NCCL would use are up", worst=State.FAIL, needs=("rdma.devices",))
def ports_up(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Each port that NCCL would take is ACTIVE. A port that is down is FAIL where NCCL_IB_HCA names it or where the
    same port is up on other nodes and would carry data; a warning where it is one of storage or management, or
    where the same port of an equal card of this node carries data; else a note, for spare ports are common.

    ## Why it matters
    NCCL leaves such a port out and says nothing. The node then has fewer links than the others, and the whole
    job goes at its pace; with as many rails as GPUs it may also fail while it connects.

    ## Seen as
    slow

    ## How we know
    /sys/class/infiniband/HCA/ports/N/state and phys_state. Polling: no partner answers at the other end of the
    cable. Disabled: switched off by software. INIT and ARMED on InfiniBand are reported by RDM006.

    ## Fix
    - **admin** `ibstat`, `ibdev2netdev`; reseat or replace cable and transceiver, look at the switch port;
      `ip link set NETDEV up` for RoCE, `ibportstate` or a reboot for a disabled InfiniBand port.
    - **you** leave the node out until then.

    ## Source
    NCCL user guide, Troubleshooting, Networking; ibstat(8), ibportstate(8).
    """
    choices = list(wiring.choosing(cluster))
    up = {(node.name, port.hca.name, port.port.name) for node, taken in choices for port in taken.used}
    if not any(wiring.wanted(taken) for _, taken in choices):
        raise NothingToJudge("no port of an HCA that NCCL could use")
    idle: dict[str, list[tuple[str, UsedPort]]] = {}
    for node, taken in choices:
        yield from (_unseen(node.name, port) for port in taken.unseen)
        down = [port for port in taken.inactive if port.is_roce or port.port.state not in _HALF_UP]
        exact = _named_exactly(values(node).get("NCCL_IB_HCA", ""))
        for down_port in down:
            others = {n for n, hca, port in up if (hca, port) == (down_port.hca.name, down_port.port.name)}
            data, named = carrying.would_carry(node, taken.used, down_port), down_port.hca.name in exact
            if others or named or (data and _alike_up(down_port, taken)):
                yield _down(node.name, down_port, others, fails=named or (data and bool(others)), named=named)
            else:
                idle.setdefault(down_port.name, []).append((node.name, down_port))
        if not down and taken.used:
            yield fine(Where(node=node.name), f"{len(taken.used)} ports are ACTIVE: {fold_names(taken.names)}")
    yield from (_idle(name, places) for name, places in idle.items())


def _named_exactly(value: str) -> set[str]:
    pattern = parse_hca(value)
    return set() if pattern.exclude else {entry.name for entry in pattern.entries}


def _alike_up(port: UsedPort, taken: HcaChoice) -> bool:
    """Whether an equal card of this node is up, on the same port: by its number, and its PCI function's."""
    board = port.hca.board if isinstance(port.hca.board, str) else port.hca.model
    alike = [other for other in taken.used if board in (other.hca.board, other.hca.model)]
    return isinstance(board, str) and any(_same_port(port, other) for other in alike)


def _same_port(port: UsedPort, other: UsedPort) -> bool:
    functions = {value_or(end.hca.pci, "").rpartition(".")[2] for end in (port, other)}
    return port.port.name == other.port.name and len(functions) == 1


def _unseen(node: str, port: UsedPort) -> Finding:
    why = port.port.state.why if isinstance(port.port.state, Unread) else ""
    return unknown(
        Where(node=node, device=port.name),
        f"the state of {port.name} could not be read: {why}",
        why="Not observed, so neither healthy nor faulty.",
        evidence=[seen("state", why)],
    )


def _idle(name: str, places: list[tuple[str, UsedPort]]) -> Finding:
    """A port that is up on no node: one note for all of them."""
    nodes = fold_names(node for node, _ in places)
    states = sorted(
        {f"{port.port.state}, physically {value_or(port.port.physical, 'unknown')}" for _, port in places}
    )
    return note(
        Where(node=places[0][0] if len(places) == 1 else None, device=name),
        f"its port is {'; '.join(states)}" + (f" on {nodes}" if len(places) > 1 else ""),
        why="Nothing says that it should be up.",
        owner="node",
        evidence=[seen(f"/sys/class/infiniband/{places[0][1].hca.name}/ports", f"{states[0]} on {nodes}")],
    )


def _down(node: str, port: UsedPort, others: set[str], *, fails: bool, named: bool) -> Finding:
    physical = value_or(port.port.physical, "unknown")
    where, what = Where(node=node, device=port.name), f"its port is {port.port.state}, physically {physical}"
    evidence = [
        seen(f"/sys/class/infiniband/{port.hca.name}/ports/{port.port.name}", f"{port.port.state}, {physical}")
    ]
    if named:
        evidence.append(seen("NCCL_IB_HCA", f"names {port.hca.name}"))
    if others:
        evidence.append(seen("the same port", f"ACTIVE on {fold_names(sorted(others))}"))
    level = fail if fails else warn
    return level(where, what, why=_FEWER, owner="node", evidence=evidence, fix=_mend_port(node, port))


def _mend_port(node: str, port: UsedPort) -> list[Remedy]:
    return [
        admin(
            "Look at the port, its cable and the switch port at the other end.",
            f"ibstat {port.hca.name} {port.port.name}",
            f"dmesg | grep -i {port.hca.name.rpartition('_')[0] or port.hca.name}",
        ),
        you("Leave the node out until it is repaired.", f"#SBATCH --exclude={quote(node)}"),
    ]


@rule(
    "RDM006",
    "a subnet manager has configured the InfiniBand ports",
    worst=State.FAIL,
    needs=("rdma.devices",),
)
def subnet_manager(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    No InfiniBand port waits for its subnet manager (state INIT or ARMED), and each ACTIVE one has an address (LID)
    and knows its manager.

    ## Why it matters
    The cable is well and the light is on, yet nothing can be sent: without a subnet manager there are no
    addresses and no routes. NCCL leaves the port out and uses TCP. It is the usual end of a new or rebooted
    fabric, and of one whose only manager ran on a node that was drained.

    ## How we know
    state, lid and sm_lid in /sys/class/infiniband/HCA/ports/N. Ethernet has none of this.

    ## Fix
    - **admin** start one: `systemctl start opensmd` on one node, or the switch's own; `sminfo` shows which one
      rules, `ibdiagnet` what it left out.

    ## Source
    NCCL user guide, Troubleshooting, Networking; opensm(8), sminfo(8), ibstat(8).
    """
    infiniband = [
        (node.name, wanted)
        for node, taken in wiring.choosing(cluster)
        for wanted in wiring.wanted(taken)
        if wanted.port.link_layer == "InfiniBand"
    ]
    if not infiniband:
        raise NothingToJudge("no InfiniBand port that NCCL would use")
    for node, port in infiniband:
        state, lid, manager = port.port.state, port.port.lid, port.port.sm_lid
        if state in _HALF_UP:
            yield _no_manager(node, port, f"its port waits in {state}: no subnet manager has set it up")
        elif state == "ACTIVE" and 0 in (lid, manager):
            lacks = "no address (LID 0)" if lid == 0 else "no subnet manager (SM LID 0)"
            yield _no_manager(node, port, f"its port is ACTIVE and has {lacks}")


def _no_manager(node: str, port: UsedPort, what: str) -> Finding:
    return fail(
        Where(node=node, device=port.name),
        what,
        why="NCCL cannot use the port, and continues over fewer links or over TCP.",
        owner="site",
        evidence=[
            seen("state", port.port.state),
            seen("lid, sm_lid", f"{_lid(port.port.lid)}, {_lid(port.port.sm_lid)}"),
        ],
        fix=[
            admin(
                "Start a subnet manager in that fabric, or find out where it is.",
                "sminfo",
                "systemctl start opensmd",
            )
        ],
    )


def _lid(fact: int | Unread) -> str:
    return "unread" if isinstance(fact, Unread) else str(fact)
