"""Where a job is to meet: MASTER_ADDR or the endpoint that was typed, and who has that address."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, at, value_or, variables
from ncclcheck.reports import lan
from ncclcheck.reports.rule import NothingToJudge

_NOT_SET = "no MASTER_ADDR, and no endpoint was given"


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
    told = [variables(node)["MASTER_ADDR"] for node in cluster.nodes if "MASTER_ADDR" in variables(node)]
    if not told:
        raise NothingToJudge(_NOT_SET)
    return Master("MASTER_ADDR", told[0])


def holders_of(cluster: Cluster, addresses: list[str]) -> dict[str, str]:
    """Nodes that have one of the addresses, with the interface."""
    found: dict[str, str] = {}
    for node in cluster.nodes:
        for interface in value_or(at(node, "network.interfaces"), []):
            for held in value_or(interface.addresses, []):
                if held.address in addresses and not lan.is_loopback(held.address):
                    found.setdefault(node.name, interface.name)
    return found
