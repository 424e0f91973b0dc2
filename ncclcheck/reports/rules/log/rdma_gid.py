"""LOG033-LOG035, LOG037: by the log, RoCE cards have addresses that reach each other."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Evidence, Finding, Where, admin, seen, you
from ncclcheck.reports.subjects.logs.logged import by_host, cause, events_of, log_rule
from ncclcheck.reports.subjects.logs.network import (
    AUTOMATIC_GID,
    card_gone,
    culprit,
    gid_reason,
    link,
    meant_off,
    retries_by_gid,
    subnets_differ,
)
from ncclcheck.reports.subjects.logs.reported import setting, settings_seen, version, version_seen

_NOT_ROUTED = ("101", "113")
_UNREACHABLE = ("Network is unreachable", "No route to host")
_LOOK = ("show_gids", "grep . /sys/class/infiniband/*/ports/1/gid_attrs/types/* 2>/dev/null")


_NO_ADDRESS = ("Invalid argument", "No such device", "No data available")
_ONE_FABRIC = you(
    "Where ports are InfiniBand, or of two fabrics, let NCCL take those of one on all hosts.",
    "ibv_devinfo | grep -E 'hca_id|link_layer|state'",
    "export NCCL_IB_HCA==mlx5_0:1",
)


@log_rule("LOG033", "every RoCE port has an address at the GID index in use")
def gid_exists(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `Call to ibv_modify_qp failed with 22 Invalid argument`, or with `No such device`: the GID table of the card is
    empty at the index that NCCL takes, or its network interface is not in this container. `Call to ibv_query_gid
    failed`: the table has no such index.

    ## Why it matters
    The connection cannot be made, and the job ends in its first collective.

    ## Seen as
    dies

    ## How we know
    The error of the call; NCCL 2.24 and later add index and address. Most often NCCL_IB_GID_INDEX names an entry
    that only some hosts have: entries come and go with IP addresses. On InfiniBand the same error is a matter of
    the partition (pkey) or of the MTU.

    ## Fix
    - **you** `unset NCCL_IB_GID_INDEX` with NCCL 2.21 and later. Confirm: `show_gids` on both hosts.
    - **admin** give the interface of the port its address; in containers use the host's network.

    ## Source
    NCCL user guide, NCCL_IB_GID_INDEX; NCCL user guide, Troubleshooting, Networking; ibv_modify_qp(3).
    """
    refused = [event for event in _modified(logs) if _failed_with(event, ("22", "19", "61"), _NO_ADDRESS)]
    events = [event for event in refused if not card_gone(logs, event)]  # else LOG187
    for own in by_host([*events, *events_of(logs, "ib-gid-missing")]).values():
        on = own[0].fields.get("device") or "a card"
        index = own[0].fields.get("index") or setting(logs, "NCCL_IB_GID_INDEX", own[0])
        if link(logs, own[0]) == "IB":
            fix = [admin("Confirm partition and MTU of both ends.", "cat /sys/class/infiniband/*/ports/1/pkeys/0",
                         "ibv_devinfo | grep mtu")]  # fmt: skip
        else:
            fix = [
                you("Confirm on both hosts that the entry is there; let NCCL 2.21 and later choose it.",
                    *_LOOK, "unset NCCL_IB_GID_INDEX"),
                admin("Give the interface its address; use the host's network in containers.", "ip addr show"),
                *([] if index or link(logs, own[0]) else [_ONE_FABRIC]),
            ]  # fmt: skip
        yield cause(
            own,
            f"{on} has no usable address at GID index {index}"
            if index
            else f"{on} refused a connection: most often the GID index in use has no address, or the two ends are "
            "of different fabrics",
            why="A connection needs the addresses of both ends; that of one is empty, or not in this container.",
            owner="job",
            fix=fix,
            more=[*settings_seen(logs, "NCCL_IB_GID_INDEX", "NCCL_IB_PKEY"), *version_seen(logs, own[0])],
        )


@log_rule("LOG034", "RoCE GIDs in use are routable between hosts")
def gid_routed(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Right at the start a connection over RoCE gets no answer: `error 12 .. vendor err 129`, `ibv_modify_qp failed
    with error Connection timed out`. And the GID in use is link-local (fe80::), of RoCE v1, or one that NCCL took
    blindly.

    ## Why it matters
    Each RoCE port has several addresses. NCCL before 2.21 takes the first (index 0), which is link-local and RoCE
    v1: most switches do not carry it between hosts, so nothing arrives.

    ## How we know
    The addresses in the line (NCCL 2.18 and later), or NCCL_IB_GID_INDEX, or an NCCL before 2.21 without it: its
    wording gives it too (`with error 12` was `status=12` from 2.20). Not on InfiniBand, and not once the job has
    trained for a while: then it is the network (LOG036).

    ## Fix
    - **you** with NCCL 2.21 and later `unset NCCL_IB_GID_INDEX`; before, name the RoCE v2 entry of an IPv4
      address, mostly 3. Confirm: `show_gids`, then `ib_write_bw -x 3` between the two hosts.

    ## Source
    NVIDIA/nccl#426, NVIDIA/nccl#769, pytorch/pytorch#81628; NCCL user guide, NCCL_IB_GID_INDEX.
    """
    events = retries_by_gid(logs)
    if not events:
        return
    reason = gid_reason(logs, events[0])
    yield cause(
        events,
        f"RoCE cards do not reach each other by the address (GID) in use: {reason}",
        why="The connection is set up over TCP, but the first packets over RoCE get no answer and time out.",
        owner="job",
        fix=[
            you("Confirm: find the RoCE v2 entry of an IPv4 address on both hosts, and send over it.",
                "show_gids", "ib_write_bw -d mlx5_0 -x 3", "ib_write_bw -d mlx5_0 -x 3 OTHER_HOST"),
            you("NCCL 2.21 and later chooses that entry by itself.", "unset NCCL_IB_GID_INDEX")
            if (version(logs, events[0]) or (0,)) >= AUTOMATIC_GID
            else you("Name that entry; NCCL 2.21 and later chooses it by itself.", "export NCCL_IB_GID_INDEX=3"),
        ],
        more=[*settings_seen(logs, "NCCL_IB_GID_INDEX"), *version_seen(logs, events[0])],
        at=_linklocal(events) or culprit(logs, events),
    )  # fmt: skip


def _linklocal(events: list[LogEvent]) -> Where | None:
    event = next((entry for entry in events if entry.fields.get("local", "").startswith("fe80")), None)
    if event is None:
        return None
    return Where(
        node=event.host or None, device=event.fields.get("hca") or event.fields.get("device"), rank=event.rank
    )


@log_rule("LOG035", "RoCE ports of different hosts have a route to each other")
def cards_routed(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `ibv_modify_qp failed` with `Network is unreachable` or `No route to host`; or with `Connection timed out`
    though the addresses are proper ones: there is no route from this card to that of the other host.

    ## Why it matters
    Rails are often separate networks: card 0 reaches only the other hosts' card 0. Ring all_reduce keeps to a rail
    and works; all_to_all, gather and trees cross rails and end here.

    ## How we know
    The error of the call, and since NCCL 2.24 both addresses: when they are in different networks, the connection
    crosses rails. GIDs that cannot work at all are LOG034's.

    ## Fix
    - **you** `export NCCL_CROSS_NIC=0` keeps rings and trees on their rail; for all_to_all use NCCL 2.29 with CUDA
      13.1. Confirm: `ip route get ADDRESS` for the other card's address.
    - **admin** route the networks of the rails to each other, or name only cards of one network in NCCL_IB_HCA.

    ## Source
    NVIDIA/nccl#2013, NVIDIA/nccl-tests#185; NCCL user guide, NCCL_CROSS_NIC.
    """
    ours = retries_by_gid(logs)
    timed_out = [
        event
        for event in _modified(logs)
        if _failed_with(event, ("110",), ("Connection timed out",)) and event not in ours
    ]
    events = sorted(
        [*(event for event in _modified(logs) if _failed_with(event, _NOT_ROUTED, _UNREACHABLE)), *timed_out],
        key=lambda event: event.order,
    )
    if not events:
        return
    local, remote = events[0].fields.get("local", ""), events[0].fields.get("remote", "")
    crossed = subnets_differ(local, remote)
    across = f" {local} and {remote} are in different networks" if crossed else " an RDMA card of another host"
    target = remote.removeprefix("::ffff:") or "ADDRESS"
    yield cause(
        events,
        f"no route between RDMA cards:{across}" if crossed else f"no route to{across}",
        why="The card has no route to the other address: rails are separate, or a route is missing.",
        owner="site",
        fix=[
            you("Confirm: ask the kernel for the route, and send over these two cards.",
                f"ip route get {quote(target)}", "ib_write_bw -d mlx5_0 OTHER_HOST"),
            you("Keep connections on one rail.", "export NCCL_CROSS_NIC=0"),
            admin("Route the networks of the rails to each other, or add the missing route.", "ip route"),
        ],
        more=[*_addresses(events[0]), *settings_seen(logs, "NCCL_CROSS_NIC", "NCCL_IB_HCA"),
              *version_seen(logs, events[0])],
    )  # fmt: skip


def _addresses(event: LogEvent) -> list[Evidence]:
    local, remote = event.fields.get("local"), event.fields.get("remote")
    return [seen("addresses", f"{local} -> {remote}")] if local and remote else []


def _modified(logs: Logs) -> list[LogEvent]:
    """Connections that failed, but for those of a plugin that was meant to be off."""
    return [event for event in events_of(logs, "ib-modify-qp") if not meant_off(logs, event)]


def _failed_with(event: LogEvent, numbers: tuple[str, ...], texts: tuple[str, ...]) -> bool:
    return event.fields.get("errno") in numbers or event.fields.get("error", "").strip() in texts


@log_rule("LOG037", "NCCL can read the GID tables of all RoCE ports")
def gid_table(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument` (or `open failed`).

    ## Why it matters
    In a pod or container only some entries of the card's GID table are shown. NCCL 2.21 to 2.25 takes an entry
    that it cannot read for an error and gives up; the job dies while it connects.

    ## Seen as
    dies

    ## How we know
    The line itself. NCCL 2.26 steps over such entries.

    ## Fix
    - **you** use NCCL 2.26 or later; until then name the entry of the pod's own address: `export
      NCCL_IB_GID_INDEX=N`. Confirm: `cat /sys/class/infiniband/*/ports/1/gid_attrs/types/*` inside of the pod says
      `Invalid argument`.

    ## Source
    NVIDIA/nccl#1573; NCCL user guide, NCCL_IB_GID_INDEX.
    """
    if events := events_of(logs, "ib-gid-unreadable"):
        yield cause(
            events,
            "NCCL cannot read an entry of the card's GID table in this container, and gives up",
            why="Entries of other network namespaces are hidden; NCCL 2.21 to 2.25 takes that for an error.",
            owner="job",
            fix=[
                you("Confirm inside of the container.", _LOOK[1]),
                you("Use NCCL 2.26 or later.", "python -m pip install --upgrade nvidia-nccl-cu12"),
                you("Until then name the entry of the container's own address.", "export NCCL_IB_GID_INDEX=3"),
            ],
            more=version_seen(logs, events[0]),
        )
