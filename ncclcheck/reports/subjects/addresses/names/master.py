"""Where a job is to meet: MASTER_ADDR or the endpoint that was typed, and who has that address."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Cluster, Unread, at, value_or, variables
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.subjects.nccl import lan

_NEXT, _LAST, _USUAL_OTHER = 11, 32768, "29511"  # ports; from 32768 on the kernel gives them to others
_NOT_SET = "no MASTER_ADDR, and no endpoint was given"
_LEFT_OVER = "MASTER_ADDR is set on some of the nodes alone: left over (RUN006)"


@dataclass(frozen=True)
class Master:
    """Where the job is to meet, and what says so: MASTER_ADDR, or --rdzv-endpoint."""

    source: str
    host: str

    @property
    def address(self) -> str | None:
        """The host as an address, where it is one."""
        try:
            return str(ipaddress.ip_address(self.host))
        except ValueError:
            return None

    @property
    def is_loopback(self) -> bool:
        """Whether it means another machine on each machine."""
        return self.host == "localhost" or lan.is_loopback(self.host)


def master_of(cluster: Cluster) -> Master:
    """The endpoint that was typed, else MASTER_ADDR. Raises NothingToJudge."""
    meeting = cluster.job.meeting
    if meeting is not None:
        source = "--rdzv-endpoint" if "--rdzv-endpoint" in meeting.told_by else "MASTER_ADDR"
        return Master(source, meeting.endpoint.rpartition(":")[0].strip("[]"))
    addresses = set_on(cluster)
    if not addresses or left_over(cluster):
        raise NothingToJudge(_LEFT_OVER if addresses else _NOT_SET)
    return Master("MASTER_ADDR", next(iter(addresses.values())))


def set_on(cluster: Cluster) -> dict[str, str]:
    """MASTER_ADDR by node, where it is set."""
    own = {node.name: variables(node) for node in cluster.nodes}
    return {name: environment["MASTER_ADDR"] for name, environment in own.items() if "MASTER_ADDR" in environment}


def left_over(cluster: Cluster) -> dict[str, str]:
    """The same where some nodes have it and others do not: a profile's; a launcher sets it on all."""
    addresses = set_on(cluster)
    return addresses if len(addresses) < len(cluster.nodes) and len(cluster.nodes) > 1 else {}


def named_anew(cluster: Cluster) -> list[str]:
    """What is typed in place of what was: node 0's own address where it is known here, else where to read it."""
    address = address_of_node_0(cluster)
    where = [] if address else ["ip -br addr   # on node 0: ADDRESS is that of the job's network"]
    host, meeting = address or "ADDRESS", cluster.job.meeting
    if meeting is not None and "--rdzv-endpoint" in meeting.told_by:
        return [*where, _endpoint(host, meeting.endpoint.rpartition(":")[2])]
    return [*where, f"export MASTER_ADDR={host}   # on every node"]


def another_port(cluster: Cluster, port: str) -> str:
    """The same place, at another port than this one."""
    other = str(int(port) + _NEXT) if port.isdecimal() and int(port) < _LAST - _NEXT else _USUAL_OTHER
    meeting = cluster.job.meeting
    if meeting is not None and "--rdzv-endpoint" in meeting.told_by:
        return _endpoint(meeting.endpoint.rpartition(":")[0].strip("[]"), other)
    return f"export MASTER_PORT={other}   # on every node"


def _endpoint(host: str, port: str) -> str:
    return f"--rdzv-endpoint {quote(f'[{host}]' if ':' in host else host)}:{quote(port)}   # on every node"


def address_of_node_0(cluster: Cluster) -> str:
    """That of the network which the job would use; empty where the facts of node 0 are not here."""
    meeting = cluster.job.meeting
    here = cluster.nodes[0] if cluster.nodes and (meeting is None or meeting.node_rank == 0) else None
    if here is None or isinstance(at(here, "network.interfaces"), Unread):
        return ""
    link = lan.link(here, lan.choice_of_job(cluster, here))
    return link.address if link and not lan.is_loopback(link.address) else ""


def holders_of(cluster: Cluster, addresses: list[str]) -> dict[str, str]:
    """Nodes that have one of the addresses, with the interface."""
    holders: dict[str, str] = {}
    for node in cluster.nodes:
        for interface in value_or(at(node, "network.interfaces"), []):
            for address in value_or(interface.addresses, []):
                if address.address in addresses and not lan.is_loopback(address.address):
                    holders.setdefault(node.name, interface.name)
    return holders
