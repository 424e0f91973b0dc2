"""How long node rank 0 takes over the facts of many hosts by ssh, and how much memory, with relays and without.

    python benchmarks/gathering.py [--nodes 2000] [--plain]

Only what node rank 0 does is measured: its ssh is a program that prints what a relay of 32 hosts, or with --plain
an agent, has to say, and waits for its end. The facts are those of a DGX-like machine (tests/helpers/dgx.py), told
with the relay's own code. One real relay with its hosts is timed beside it. Targets at 2,000 nodes: 20 s, 500 MB.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck.base import wire
from ncclcheck.base.clock import Deadline
from ncclcheck.base.progress import Progress
from ncclcheck.launch import ssh
from ncclcheck.launch.agents import AgentRecord, Events
from ncclcheck.launch.hosts import hostfile
from ncclcheck.launch.remote.relay import Relay
from ncclcheck.probes.facts import Node
from ncclcheck.run.session import Session
from tests.helpers import dgx

# The host is the word behind --; what follows it is not run.
_SSH = (
    '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\ncat "{folder}/$2"\n'
    'while sleep 2; do cat "{folder}/beat" || exit; done &\ncat >/dev/null; kill $!\n'
)


def main() -> None:
    """Print a line for the relay, and one for node rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--plain", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = max(ssh._GROUP, -(-asked.nodes // ssh.AT_ONCE))
        # In a process of its own: what it holds is not node rank 0's memory.
        if (pid := os.fork()) == 0:
            _write(Path(folder), asked.nodes, 1 if asked.plain else size)
            os._exit(0)
        os.waitpid(pid, 0)
        received = sum(path.stat().st_size for path in Path(folder).glob("n*"))
        if not asked.plain:
            _one_relay(Path(folder), size)
        _gathered(Path(folder), asked.nodes, received, plain=asked.plain)


def _write(folder: Path, nodes: int, size: int) -> None:
    """What each connection carries, by the relay's own code."""
    (folder / "ssh").write_text(_SSH.format(folder=folder))
    (folder / "ssh").chmod(0o755)
    (folder / "beat").write_bytes(b"".join(wire.lines(wire.AgentBeat(), wire.RELAY, 1)))
    listed = [entry.facts for entry in dgx.unjudged(nodes).nodes]
    for first in range(0, nodes, size):
        with (folder / f"n{first}").open("wb") as file:
            relay = Relay(file.fileno())
            for number in range(first, min(nodes, first + size)):
                relay._pass_back(AgentRecord(number, _hello(number)))
                facts = listed[number]
                assert isinstance(facts, Node)
                relay._pass_back(AgentRecord(number, wire.Facts(node=facts)))
    for number in range(min(nodes, size)):
        facts = listed[number]
        assert isinstance(facts, Node)
        lines = [*wire.lines(_hello(number), number, 1), *wire.lines(wire.Facts(node=facts), number, 2)]
        (folder / f"agent{number}").write_bytes(b"".join(lines))


def _hello(number: int) -> wire.Hello:
    return wire.Hello(
        protocol=wire.PROTOCOL, version="", node=number, hostname=f"n{number}", pid=1, python="", path=""
    )


def _one_relay(folder: Path, size: int) -> None:
    """The real one, from its start to the last of its hosts' facts."""
    agents = {at: ["sh", "-c", f"cat {folder}/agent{at}; exec cat >/dev/null"] for at in range(size)}
    program = [sys.executable, "-c", "from ncclcheck.launch.remote.relay import main; main()"]
    begun = time.monotonic()
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(wire.order(wire.RELAY, wire.SpreadOrder(here=0, agents=agents)))
        child.stdin.flush()
        assemblers = {at: wire.Assembler() for at in range(size)}
        left, got = set(assemblers), 0
        while left:
            line = child.stdout.readline()
            got += len(line)
            node = wire.node_of(line)
            if node in assemblers and isinstance(assemblers[node].feed(line), (wire.Facts, wire.Alike)):
                left.discard(node)
        spent = time.monotonic() - begun
        child.stdin.close()
        child.stdout.read()
        _, _, used = os.wait4(child.pid, 0)
        child.returncode = 0
    print(
        f"a relay of {size} hosts: {spent:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU with theirs, "
        f"{used.ru_maxrss / 1e3:.0f} MB, {got / 1e6:.2f} MB sent"
    )


def _gathered(folder: Path, nodes: int, received: int, *, plain: bool) -> None:
    """Node rank 0, from its first ssh to the last facts."""
    if plain:
        ssh.RELAYED_FROM = nodes + 1
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    of = hostfile.from_option(",".join(f"n{number}" for number in range(nodes)))
    begun, events = time.monotonic(), Events()
    links = ssh.start(of, None, events, env)
    session = Session(links, events, Deadline(300), Progress(quiet=True))
    session.facts(60)
    spent, used = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF)
    threads, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
    print(
        f"{nodes} hosts, {'no relays' if plain else f'{len(links)} relays'}: facts of "
        f"{len(session.gathered.answered)} in {spent:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU, "
        f"{used.ru_maxrss / 1e3:.0f} MB, {received / 1e6:.1f} MB received, {threads} threads, {files} files"
    )
    session.close()


if __name__ == "__main__":
    main()
