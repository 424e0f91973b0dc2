"""Connections over RDMA that got no answer: for a wrong address (GID), or for the network between."""

from __future__ import annotations

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.subjects.logs.logged import process_of, said
from ncclcheck.reports.subjects.logs.network import AUTOMATIC_GID, link, through_plugin, values_of, worked_before
from ncclcheck.reports.subjects.logs.reported import setting, version

_NO_ANSWER = "12"  # IBV_WC_RETRY_EXC_ERR
_ROCE_V1 = ("0", "2")  # where mlx5 keeps its addresses of RoCE v1
_USUAL = "3"  # and that of RoCE v2 over IPv4


def of_status(logs: Logs, status: str) -> list[LogEvent]:
    """Completions that failed with this status (enum ibv_wc_status)."""
    return [one for one in said(logs, "ib-completion") if one.fields["status"] == status]


def retries(logs: Logs) -> list[LogEvent]:
    """Sent again and again, and never acknowledged."""
    return of_status(logs, _NO_ANSWER)


def retries_by_gid(logs: Logs) -> list[LogEvent]:
    """What got no answer because of the address that was used."""
    unanswered = [one for one in said(logs, "ib-modify-qp")
                  if "Connection timed out" in one.text and not meant_off(logs, one)]  # fmt: skip
    events = sorted([*retries(logs), *unanswered], key=lambda one: one.order)
    return events if events and gid_reason(logs, events[0]) else []


def gid_reason(logs: Logs, event: LogEvent) -> str:
    """Why the address is to blame; empty where it is not."""
    if link(logs, event) == "IB" or said(logs, "ib-port-event") or worked_before(logs, event):
        return ""
    ends = [event.fields.get(end, "") for end in ("local", "remote")]
    if local := [end for end in ends if end.startswith("fe80") or end == "::"]:
        return f"{local[0]} is link-local" if local[0] != "::" else "the entry is empty"
    index, known = setting(logs, "NCCL_IB_GID_INDEX", event), version(logs, event)
    if all(ends) and index not in _ROCE_V1:
        return ""
    if index is not None:
        return "" if index == _USUAL else f"NCCL_IB_GID_INDEX={index} names it"
    if known is not None:
        return "" if known >= AUTOMATIC_GID else "NCCL before 2.21 takes index 0 unless set"
    old = "with error" in event.text
    return "NCCL of these words (before 2.24) may take index 0 unless set" if old else ""


def meant_off(logs: Logs, event: LogEvent) -> bool:
    """Whether a plugin does what NCCL_IB_DISABLE was to forbid, or may: LOG039's matter."""
    if not logs.processes:
        return bool(values_of(said(logs, "ib-plugin"), "network"))
    if not through_plugin(logs):
        return False
    own = process_of(logs, event)
    return any(ignores_disable(one) for one in ([own] if own else logs.processes))


def ignores_disable(one: LogProcess) -> bool:
    """Whether HPC-X's plugin sends though RDMA was to be off, or no setting is told."""
    off = one.settings.get("NCCL_IB_DISABLE", "0") != "0" if one.settings else True
    return off and one.network.startswith("IBext")
