"""What LOG rules about the network share: links, how data is sent, who broke a connection, and when."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.probes.facts.log.fields import first_named
from ncclcheck.reports.judgement.findings import Where
from ncclcheck.reports.subjects.logs.logged import events_of, process_of
from ncclcheck.reports.subjects.logs.reported import owner_of, setting, version
from ncclcheck.reports.subjects.logs.words import meanings

_NO_ANSWER = "12"  # IBV_WC_RETRY_EXC_ERR
_ROCE_V1 = ("0", "2")  # where mlx5 keeps its addresses of RoCE v1
_USUAL = "3"  # and that of RoCE v2 over IPv4
# NCCL that looks for a RoCE v2 entry by itself. Source: release notes of 2.21, NCCL_IB_GID_INDEX
AUTOMATIC_GID = (2, 21, 0)
_DONE = re.compile(r"SeqNum=\d{3,12}\b|last completed (?:NCCL )?work: \d{3,12}\b")
_ENOUGH = 64  # lines to find a culprit by
_LONG = 600.0  # seconds after which a connection had worked before it broke


def link(logs: Logs, event: LogEvent) -> str:
    """IB or RoCE: of the card that the line names, else of all cards of its process, else of all; or not told."""
    own = process_of(logs, event)
    name = event.fields.get("hca") or event.fields.get("device", "")
    devices = [own.devices] if own and own.devices else [process.devices for process in logs.processes]
    if name:
        named = {kind for table in devices for card, kind in table.items() if name.partition(":")[0] in card}
        if len(named) == 1:
            return named.pop()
    kinds = {kind for table in devices for kind in table.values()}
    return kinds.pop() if len(kinds) == 1 else ""


def over_sockets(process: LogProcess) -> bool:
    """Whether this process sends over TCP."""
    return process.network == "Socket" or any(kind == "NET/Socket" for kind in process.vias)


def over_verbs(process: LogProcess) -> bool:
    """Whether this process sends over NCCL's own RDMA transport, or a plugin's of the same kind."""
    return process.network.startswith("IB") or any(kind.startswith("NET/IB") for kind in process.vias)


def culprit(logs: Logs, events: list[LogEvent]) -> Where:
    """The one host that is an end of every connection that broke, else the writer of the first line."""
    first = events[0]
    pairs = [{event.host, owner_of(logs, event.fields.get("peer", ""))} - {""} for event in events[:_ENOUGH]]
    ends = Counter(host for pair in pairs for host in pair)
    common = [host for host, count in ends.items() if count == len(pairs)]
    host = common[0] if len(common) == 1 else first.host
    own = next((event for event in events if event.host == host), None)
    device = (own.fields.get("hca") or own.fields.get("device")) if own else None
    return Where(node=host or None, device=device, rank=own.rank if own else None)


def worked_before(logs: Logs, event: LogEvent) -> str:
    """What shows that the job had run when this line was written; empty where nothing does."""
    steps = [step for step in events_of(logs, "training-goes-on") if step.order < event.order]
    if steps:
        return f"{steps[-1].file}:{steps[-1].line} shows a step before it"
    if done := next((match for event in logs.events if (match := _DONE.search(event.text))), None):
        return f"{done[0]}: collectives had been completed"
    times = [other.time for other in logs.events if other.time is not None and other.order <= event.order]
    if event.time is not None and times and event.time - min(times) > _LONG:
        return f"{(event.time - min(times)) / 60:.0f} minutes after the first line with a time"
    return ""


def through_plugin(logs: Logs) -> bool:
    """Whether HPC-X's own RDMA plugin is at work, which has switches of its own."""
    return any(process.network.startswith("IBext") for process in logs.processes)


def subnets_differ(local: str, remote: str) -> bool:
    """Whether two GIDs are of IPv4 addresses in different /24, as rails mostly are."""
    ends = [_inside(gid) for gid in (local, remote)]
    return None not in ends and str(ends[0]).rpartition(".")[0] != str(ends[1]).rpartition(".")[0]


def _inside(gid: str) -> str | None:
    try:
        address = ip_address(gid)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else address
    return str(mapped) if mapped else None


def values_of(events: Iterable[LogEvent], field: str) -> list[str]:
    """What the lines name in this field, each once, in their order."""
    return list(dict.fromkeys(value for event in events if (value := first_named(event.fields, field))))


def of_status(logs: Logs, status: str) -> list[LogEvent]:
    """Completions that failed with this status (enum ibv_wc_status)."""
    return [event for event in events_of(logs, "ib-completion") if event.fields["status"] == status]


def retries(logs: Logs) -> list[LogEvent]:
    """Sent again and again, and never acknowledged."""
    return of_status(logs, _NO_ANSWER)


def retries_by_gid(logs: Logs) -> list[LogEvent]:
    """What got no answer because of the address that was used."""
    unanswered = [event for event in events_of(logs, "ib-modify-qp")
                  if "Connection timed out" in event.text and not meant_off(logs, event)]  # fmt: skip
    events = sorted([*retries(logs), *unanswered], key=lambda event: event.order)
    return events if events and gid_reason(logs, events[0]) else []


def gid_reason(logs: Logs, event: LogEvent) -> str:
    """Why the address is to blame; empty where it is not."""
    if link(logs, event) == "IB" or events_of(logs, "ib-port-event") or worked_before(logs, event):
        return ""
    ends = [event.fields.get("local", ""), event.fields.get("remote", "")]
    if local := [end for end in ends if end.startswith("fe80") or end == "::"]:
        return f"{local[0]} is link-local" if local[0] != "::" else "the entry is empty"
    index, known = setting(logs, "NCCL_IB_GID_INDEX", event), version(logs, event)
    if all(ends) and index not in _ROCE_V1:
        return ""
    if index is not None:
        return "" if index == _USUAL else f"NCCL_IB_GID_INDEX={index} names it"
    process = process_of(logs, event)
    if process is not None and "IB" in process.devices.values():
        return ""  # of two fabrics: the pair need not be of RoCE
    if known is not None:
        return "" if known >= AUTOMATIC_GID else "NCCL before 2.21 takes index 0 unless set"
    old = "with error" in event.text
    return "NCCL of these words (before 2.24) may take index 0 unless set" if old else ""


def meant_off(logs: Logs, event: LogEvent) -> bool:
    """Whether a plugin does what NCCL_IB_DISABLE was to forbid, or may: LOG039's matter."""
    if not logs.processes:
        return bool(values_of(events_of(logs, "ib-plugin"), "network"))
    if not through_plugin(logs):
        return False
    own = process_of(logs, event)
    return any(ignores_disable(process) for process in ([own] if own else logs.processes))


def ignores_disable(process: LogProcess) -> bool:
    """Whether HPC-X's plugin sends though RDMA was to be off, or no setting is told."""
    off = process.settings.get("NCCL_IB_DISABLE", "0") != "0" if process.settings else True
    return off and process.network.startswith("IBext")


def silent_end(logs: Logs, events: list[LogEvent]) -> list[LogProcess]:
    """The processes at the other end of every connection that broke, where that end says nothing of it.

    Where a link fails both ends complain; one that was killed says nothing. None where these lines lack them.
    """
    writers = {event.host for event in events}
    peers = {owner_of(logs, event.fields.get("peer", "")) for event in events[:_ENOUGH]}
    if len(peers) != 1 or peers & {"", *writers}:
        return []
    there = [process for process in logs.processes if process.host in peers]
    loud = [event for event in logs.events if event.level in ("WARN", "ERROR")]
    spoke = {(event.host, event.pid) for event in loud if event.sign not in meanings.HARMLESS}
    quiet = [process for process in there if (process.host, process.pid) not in spoke]
    return quiet if len(quiet) == len(there) else []


_GONE = ("No such device", "Input/output error", "Remote I/O error", "No such device or address")


def card_gone(logs: Logs, event: LogEvent) -> bool:
    """Whether a refused connection means that the card went away. On RoCE ENODEV is of the GID's interface."""
    error = event.fields.get("error", "").strip() or event.text
    if not any(word in error for word in _GONE):
        return False
    return "No such device" not in error or link(logs, event) == "IB" or "GID N/A" in event.text
