"""Hosts as network namespaces on one bridge; each runs a real Listener and `measure` in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from ncclcheck.probes.facts import Cluster, Door, Job, JobFacts, Measurements, Node, NodeReach
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.net import network
from ncclcheck.probes.reach import Listener, measure

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 6.0


class _Seen(Struct):
    """What one host's process prints."""

    node: Node
    reach: NodeReach


def can_make_hosts() -> bool:
    """Root with the right to make namespaces."""
    name = f"ncc{os.getpid()}try"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return made


class Hosts:
    """h1, h2, ... with eth0 at 10.77.0.11, .12, ... on one bridge in a namespace of its own."""

    def __init__(self, count: int) -> None:
        self.prefix = f"ncc{os.getpid()}"
        self.names = [f"h{i + 1}" for i in range(count)]
        self.addresses = {name: f"10.77.0.{11 + i}" for i, name in enumerate(self.names)}
        self.clocks = dict.fromkeys(self.names, 0.0)
        self._spaces = [f"{self.prefix}sw", *(self.prefix + name for name in self.names)]

    def make(self) -> None:
        for space in self._spaces:
            _run("ip", "netns", "add", space)
        self.switch("ip", "link", "add", "br0", "type", "bridge")
        self.switch("ip", "link", "set", "br0", "up")
        for name in self.names:
            self.run(name, "ip", "link", "set", "lo", "up")
            self.run(name, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns",
                     f"{self.prefix}sw")  # fmt: skip
            self.run(name, "ip", "link", "set", "eth0", "up")
            self.run(name, "ip", "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            self.switch("ip", "link", "set", name, "master", "br0", "up")

    def remove(self) -> None:
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def run(self, name: str, *command: str) -> None:
        _run("ip", "netns", "exec", self.prefix + name, *command)

    def switch(self, *command: str) -> None:
        self.run("sw", *command)

    def firewall(self, name: str, hook: str, rule: str) -> None:
        """One nftables rule on a host's way in (input) or out (output)."""
        table = f"table ip {hook} {{\nchain c {{\ntype filter hook {hook} priority 0\n{rule}\n}}\n}}\n"
        self.run(name, "sh", "-c", f"printf '%s' '{table}' | nft -f -")

    def look(self, seconds: float = _SECONDS) -> Cluster:
        """The network facts of every host, and what each sees of the others, all at the same time."""
        children = [self._start(index, name, seconds) for index, name in enumerate(self.names)]
        try:
            doors = b" ".join(_line(child) for child in children)
            for child in children:
                assert child.stdin is not None
                child.stdin.write(b"[" + doors.replace(b" ", b",") + b"]\n")
                child.stdin.flush()
            seen = [msgspec.json.decode(_line(child), type=_Seen) for child in children]
        finally:
            for child in children:
                child.kill()
                child.communicate()
        return Cluster(
            nodes=[host.node for host in seen],
            job=Job(nodes_asked=len(seen)),
            measurements=Measurements(reach=[host.reach for host in seen]),
        )

    def _start(self, index: int, name: str, seconds: float) -> subprocess.Popen[bytes]:
        argv = ["ip", "netns", "exec", self.prefix + name, sys.executable, "-m", "tests.helpers.reach_hosts"]
        return subprocess.Popen(
            [*argv, str(index), name, self.addresses[name], str(seconds), str(self.clocks[name])],
            cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip


def _line(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=10)


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Hosts that are gone afterwards."""
    made = Hosts(count)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def _host(index: str, name: str, address: str, seconds: str, clock: str) -> None:
    right = time.time_ns
    time.time_ns = lambda: right() + int(float(clock) * 1e9)
    listener = Listener(address, node=int(index), name=name)
    print(msgspec.json.encode(listener.door).decode(), flush=True)
    doors = msgspec.json.decode(sys.stdin.readline(), type=list[Door])
    me = next(door for door in doors if door.name == name)
    names = {door.name: door.address for door in doors}
    node = Node(name=name, network=network.probe(Machine()), job=JobFacts(variables=[]))
    seen = _Seen(node=node, reach=measure(me, doors, names, float(seconds)))
    print(msgspec.json.encode(seen).decode(), flush=True)
    sys.stdin.read()  # others may still be at it
    listener.close()


def main(argv: Sequence[str]) -> None:
    """One host's process."""
    _host(*argv)


if __name__ == "__main__":
    main(sys.argv[1:])
