"""RDMA devices (InfiniBand, RoCE, EFA) by their names in /sys/class/infiniband."""

from __future__ import annotations

from ncclcheck.probes.facts import Rdma, Unread
from ncclcheck.probes.machine import Machine


def probe(machine: Machine) -> Rdma:
    """The names of the devices."""
    names = machine.names("/sys/class/infiniband")
    none = names == [] or (isinstance(names, Unread) and names.kind == "absent")
    return Rdma(hcas=Unread("absent", "no RDMA device on this machine") if none else names)
