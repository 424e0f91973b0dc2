"""LOG036, LOG041, LOG042: by the log, what is sent over RDMA arrives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, State, Where, admin, seen, you
from ncclcheck.reports.subjects.logs.ending import ended_before
from ncclcheck.reports.subjects.logs.logged import by_host, cause, events_of, lines, log_rule
from ncclcheck.reports.subjects.logs.network import (
    culprit,
    link,
    of_status,
    retries,
    retries_by_gid,
    silent_end,
    worked_before,
)
from ncclcheck.reports.subjects.logs.reported import settings_seen, version_seen

_BYTES = {"1": 256, "2": 512, "3": 1024, "4": 2048, "5": 4096}
_COUNTERS = "grep . /sys/class/infiniband/*/ports/1/counters/{link_downed,symbol_error,port_rcv_errors}"


@log_rule("LOG036", "the RDMA network has no link failure and no permanent packet loss")
def no_timeouts(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `error 12` or `status=12` (IBV_WC_RETRY_EXC_ERR, vendor err 129): a packet was sent again and again and never
    acknowledged. Or `Got async event : port error`: a link went down.

    ## Why it matters
    The connection is lost for good, the job with it. A port that comes back (`port active`) within the time-out
    costs a pause only: that is a warning, for it will happen again.

    ## Seen as
    hangs

    ## How we know
    The completion's status, and the port's events before it: the first host and card with a port error is named,
    else the host that is an end of all broken connections. It rests on what else the log shows that this is the
    network and not the address (LOG034): a port error, InfiniBand, training steps before it, NCCL 2.21 or later.
    Where a process was killed or crashed before it, its queues were gone, and nothing is reported here. Where the
    lines hold the other end's process and it says nothing, while a broken link makes both ends complain as a rule,
    that process may be gone, and is named beside the network.
    Time-outs: NCCL_IB_TIMEOUT is 14 up to NCCL 2.13, 18 up to 2.22, then 20 (about 30 s with 7 retries).

    ## Fix
    - **admin** confirm with the port's counters (link_downed, symbol_error) and `dmesg`; change cable or
      transceiver, look at the switch's log of that time.
    - **you** leave the host out; `export NCCL_IB_TIMEOUT=22` only outlasts short flaps.

    ## Source
    NCCL user guide, NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT; NVIDIA/nccl#426 (the same words, for a wrong GID).
    """
    down = [event for event in events_of(logs, "ib-port-event") if event.fields["event"] == "port error"]
    lost = [] if retries_by_gid(logs) else retries(logs)
    if down:
        yield _flapped(logs, down, lost)
    elif lost and not ended_before(logs, lost[0]):
        yield _lost(logs, lost)


def _flapped(logs: Logs, down: list[LogEvent], lost: list[LogEvent]) -> Finding:
    first, back = (
        down[0],
        [event for event in events_of(logs, "ib-port-event") if event.fields["event"] == "port active"],
    )
    card = first.fields.get("device", "")
    events = sorted([*down[:2], *lost[:1]], key=lambda event: event.order)
    returned = any(event.order > first.order and event.host == first.host for event in back)
    return cause(
        events,
        f"the link of {card or 'an RDMA card'} on {first.host or 'a host'} went down"
        + (", and connections were lost" if lost else ", and came back" if returned else ""),
        why="While a link is down nothing arrives; after NCCL_IB_TIMEOUT its connections are lost for good.",
        owner="site",
        fix=_mend(first.host),
        state=State.FAIL if lost or not returned else State.WARN,
        at=Where(node=first.host or None, device=card or None, rank=first.rank),
        more=[*lines(back)[:1], *settings_seen(logs, "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT")],
    )


def _lost(logs: Logs, lost: list[LogEvent]) -> Finding:
    before, kind = worked_before(logs, lost[0]), link(logs, lost[0])
    at = culprit(logs, lost)
    what = "RDMA packets were not acknowledged: a link, switch or host in between failed"
    why = "The card sent a packet NCCL_IB_RETRY_CNT times and heard nothing; its connection is lost."
    changed = _changed(logs, lost[0])
    if changed:
        what += ", after the addresses (GIDs) of a port had changed"
    quiet = silent_end(logs, lost)
    if quiet:
        who = f"rank {quiet[0].rank} (pid {quiet[0].pid} of {quiet[0].host})" if len(quiet) == 1 else quiet[0].host
        what += f", or {who}, which says nothing of it, is gone"
        why += (
            " A card acknowledges for its process as long as that lives, also while it stands still; where a link "
            "fails both ends complain as a rule, and here one does."
        )
    if not before and kind != "IB":
        why += (
            " The log does not show whether it ever worked: if not, on RoCE, suspect the GID or a missing route."
        )
    return cause(
        lost,
        what + (f" on the way to {at.node}" if at.node and len({event.host for event in lost}) > 1 else ""),
        why=why,
        owner="site",
        fix=[*([_alive(quiet)] if quiet else []), *_mend(at.node or "")],
        at=at,
        more=[
            *([seen("it had worked", before)] if before else []),
            *([seen("NET/IB : Using", kind)] if kind else []),
            *changed,
            *settings_seen(logs, "NCCL_IB_TIMEOUT", "NCCL_IB_GID_INDEX"),
            *version_seen(logs, lost[0]),
        ],
    )


def _changed(logs: Logs, lost: LogEvent) -> list[Evidence]:
    """That the addresses of a port changed before: harmless by itself, and a reason for what no longer arrives."""
    events = [event for event in events_of(logs, "ib-notice") if event.order < lost.order]
    return lines([event for event in events if _ADDRESSES.search(event.text)])[:1]


_ADDRESSES = re.compile(r"GID table|LID change|P_Key change|event type \(?18\b|\(18\)")  # 18: IBV_EVENT_GID_CHANGE


def _alive(quiet: list[LogProcess]) -> Remedy:
    return you(
        "Confirm: whether what ran there still runs, or how it ended, and whether the host answers.",
        f"ssh {quote(quiet[0].host)} 'ps -o pid,stat,etime,cmd -p {','.join(str(own.pid) for own in quiet)}'",
    )


def _mend(host: str) -> list[Remedy]:
    leave = f"srun --exclude={quote(host)} ..." if host else "export NCCL_IB_TIMEOUT=22"
    return [
        admin("Confirm by the counters of the port and by dmesg; then cable, transceiver, switch.",
              _COUNTERS, "dmesg -T | grep -i 'link down'"),
        you("Leave the host out, or outlast short flaps.", leave, "export NCCL_IB_TIMEOUT=22"),
    ]  # fmt: skip


@log_rule("LOG041", "GPUDirect RDMA works without errors")
def no_protection_error(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A completion with status 4 (IBV_WC_LOC_PROT_ERR), mostly with vendor err 81: the card was refused when it read
    or wrote local memory.

    ## Why it matters
    The job ends in its first large collective. Nearly always PCIe Access Control Services (ACS) send the card's
    accesses to GPU memory through the root complex, which refuses them.

    ## Seen as
    dies

    ## How we know
    The status; NCCL 2.30.7 and later says the same as a HINT. It holds where GPUDirect RDMA is in use; with a run
    with NCCL_NET_GDR_LEVEL=LOC that works it is sure.

    ## Fix
    - **you** confirm: the job works with `export NCCL_NET_GDR_LEVEL=LOC` (slower).
    - **admin** turn ACS off on all PCIe bridges, in the firmware or by setpci after each boot; in virtual machines
      turn ATS on in the card.

    ## Source
    NVIDIA/nccl-tests#252; NCCL user guide, Troubleshooting, PCI Access Control Services (ACS).
    """
    for events in by_host(of_status(logs, "4")).values():
        yield cause(
            events,
            "the RDMA card may not reach the memory of a GPU: ACS is on, most likely",
            why="With ACS the card's accesses to GPU memory are sent through the root complex and refused.",
            owner="node",
            fix=[
                you("Confirm: without GPUDirect RDMA the job works.", "export NCCL_NET_GDR_LEVEL=LOC"),
                admin("Look for SrcValid+ on bridges, and turn ACS off.",
                      "lspci -vvv | grep -i acsctl", "setpci -v -s BRIDGE ECAP_ACS+6.w=0000"),
            ],
            more=version_seen(logs, events[0]),
        )  # fmt: skip


@log_rule("LOG042", "the RDMA MTU is the same on all hosts")
def same_mtu(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A completion with status 1 (IBV_WC_LOC_LEN_ERR), an event `local access violation work queue error`, or hosts
    whose cards use different path MTUs (`mtu 5` is 4096 bytes, 4 is 2048, 3 is 1024).

    ## Why it matters
    A card drops packets larger than its MTU. Small messages pass, so that the job starts well and then hangs or
    dies with the first large one.

    ## Seen as
    hangs, dies

    ## How we know
    The status, or the MTU in NCCL's NET lines (NCCL_DEBUG_SUBSYS=NET) of each host. Where no MTU is printed, it is
    the most likely reason and not a proven one: since NCCL 2.20 both sides agree on a size by what each believes.
    Of InfiniBand, where the subnet manager sets the MTU, the event is LOG047.

    ## Fix
    - **admin** the same MTU on all ports and switches; confirm with `ibv_devinfo | grep active_mtu` on all hosts
      and `ping -M do -s 8972 HOST` for an MTU of 9000.
    - **you** leave the odd host out.

    ## Source
    NVIDIA/nccl#1524, NVIDIA/nccl#2135; ibv_poll_cq(3), ping(8).
    """
    violated = [event for event in events_of(logs, "ib-access-violation") if link(logs, event) != "IB"]
    events = sorted([*of_status(logs, "1"), *violated], key=lambda event: event.order)
    sizes = _mtus(logs)
    odd = _odd(sizes)
    own = [event for event in events_of(logs, "ib-path-mtu") if event.host == odd] if odd else []
    if not events and not odd:
        return
    more = [seen(host, f"path MTU {size}") for host, size in [*sizes.items()][:4]] if odd else []
    what = (
        f"{odd} has a path MTU of {sizes[odd]}, other hosts another" if odd else "RDMA cards disagree about a size"
    )
    yield cause(
        events or own,
        f"{what}{'' if odd else ': the MTU differs between hosts, most likely'}",
        why="Packets above the smaller MTU are dropped: small messages pass, large ones end in errors or a hang.",
        owner="site",
        fix=[
            admin("Confirm on all hosts, and set one MTU on all ports and switches.",
                  "ibv_devinfo | grep -E 'hca_id|active_mtu'", "ip link | grep mtu", "ping -M do -s 8972 HOST"),
        ],
        state=State.FAIL if events or _died(logs) else State.WARN,
        at=Where(node=odd) if odd else None,
        more=[*more, *version_seen(logs, (events or own)[0])],
    )  # fmt: skip


def _mtus(logs: Logs) -> dict[str, int]:
    """Host -> the smallest path MTU that one of its processes told."""
    smallest: dict[str, int] = {}
    for event in events_of(logs, "ib-path-mtu"):
        size = _BYTES[event.fields["mtu"]]
        smallest[event.host] = min(size, smallest.get(event.host, size))
    return smallest


def _odd(sizes: dict[str, int]) -> str:
    """The host that is not as most are; of two the one with less; empty where all agree."""
    values = [*sizes.values()]
    if len(set(values)) < 2:
        return ""
    return min(sizes, key=lambda host: (values.count(sizes[host]), sizes[host]))


def _died(logs: Logs) -> bool:
    return bool(events_of(logs, "ib-completion")) or any(
        process.began > process.completed for process in logs.processes
    )
