"""All facts of one node."""

from __future__ import annotations

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.unread import NOT_RECORDED, Unread, at
from ncclcheck.probes.facts.machine.fabric import Fabric, Rdma
from ncclcheck.probes.facts.machine.gpu import Gpus
from ncclcheck.probes.facts.machine.health import Health
from ncclcheck.probes.facts.machine.host import Host
from ncclcheck.probes.facts.machine.nccl import Nccl
from ncclcheck.probes.facts.machine.network import Network
from ncclcheck.probes.facts.machine.place import Container, Storage, System
from ncclcheck.probes.facts.machine.software import JobFacts, Stack


class ProbeRun(Struct, frozen=True, kw_only=True):
    """How one probe went on one node."""

    name: str
    seconds: float
    unread: Unread | None = None


class Node(Struct, frozen=True, kw_only=True, dict=True):  # its __dict__: what reports derive from these facts
    """All facts of one node, under the name that the launcher gave it."""

    name: str
    simulated: bool = False
    host: Host | Unread = NOT_RECORDED
    network: Network | Unread = NOT_RECORDED
    nccl: Nccl | Unread = NOT_RECORDED
    stack: Stack | Unread = NOT_RECORDED
    job: JobFacts | Unread = NOT_RECORDED
    gpus: Gpus | Unread = NOT_RECORDED
    rdma: Rdma | Unread = NOT_RECORDED
    fabric: Fabric | Unread = NOT_RECORDED
    container: Container | Unread = NOT_RECORDED
    storage: Storage | Unread = NOT_RECORDED
    system: System | Unread = NOT_RECORDED
    health: Health | Unread = NOT_RECORDED
    probes: list[ProbeRun] = field(default_factory=list)


def variables(node: Node) -> dict[str, str]:
    """The environment of a node's job as a mapping; empty where it was not read."""
    listed = at(node, "job.variables")
    return {} if isinstance(listed, Unread) else {v.name: v.value for v in listed}
