"""Run by test_ssh_launch.py as a process of its own: a session over ssh, and what was heard in it as JSON."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

import ncclcheck
from ncclcheck.base import wire
from ncclcheck.base.clock import Deadline
from ncclcheck.base.progress import Progress
from ncclcheck.launch import relays, ssh
from ncclcheck.launch.agents import Events
from ncclcheck.probes.facts import at, value_or
from ncclcheck.run.session import Session


class Told(msgspec.Struct):
    """What is said to the other side instead of the truth."""

    python: str = sys.executable
    protocol: int = wire.PROTOCOL
    home: str = str(Path(ncclcheck.__file__).parent.parent)


class Order(msgspec.Struct):
    """What to do. group: hosts behind each relay; 0: as ever. patient: a relay may be silent for 30 s."""

    hosts: str
    via: str | None
    told: Told
    group: int = 0
    patient: bool = False


class Heard(msgspec.Struct):
    """Variables of the nodes that answered, and what was seen of the others, by node."""

    variables: dict[str, dict[str, str]]
    details: dict[str, str]


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    sys.executable = order.told.python
    wire.PROTOCOL = order.told.protocol
    ncclcheck.__file__ = f"{order.told.home}/ncclcheck/__init__.py"
    if order.group:
        ssh.RELAYED_FROM, ssh._GROUP = 2, order.group
    if order.patient:
        relays._SILENT = 30.0
    events = Events()
    env = {**os.environ, "PYTHONPATH": ""}
    links = ssh.start(ssh.hosts(order.hosts, None, None), order.via, events, env, "--probe-seconds", "10")
    session = Session(links, events, Deadline(60), Progress(quiet=True))
    session.facts(40)
    nodes = session.gathered.answered
    run = session.gathered.run(started_job=False, stopped_by="")
    session.close()
    variables = {node.name: {v.name: v.value for v in value_or(at(node, "job.variables"), [])} for node in nodes}
    details = {silence.node: silence.detail for silence in run.silent}
    sys.stdout.buffer.write(msgspec.json.encode(Heard(variables, details)))


if __name__ == "__main__":
    main()
