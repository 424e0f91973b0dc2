"""Join: the same command on every node. Node rank 0 leads; ncclcheck.run.follower is what the others do."""

from __future__ import annotations

import ipaddress
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ncclcheck.base import endpoint as ports
from ncclcheck.base.progress import Progress
from ncclcheck.launch.agents import Closed, Events, Link, agent_here
from ncclcheck.launch.given import endpoint
from ncclcheck.launch.joining.follow import resolve
from ncclcheck.launch.joining.meeting import MeetingPoint, PortTaken
from ncclcheck.launch.joining.second_lead import SecondLead
from ncclcheck.launch.joining.siblings import SiblingOutcome, Siblings
from ncclcheck.launch.joining.trust.identity import JoinIdentity
from ncclcheck.probes import facts

WAIT_S = 600.0  # s to wait for the other nodes of a join: time to type the line on each; chosen
_LOOPBACK_WAIT_S = 15.0  # s where the address is loopback, which only this machine can reach; chosen
_OURS = ("--nodes", "--node-rank", "--rdzv-endpoint")


def wait_of(who: JoinIdentity, asked: float | None) -> float:
    """How long to wait for the others: `--wait`, else ten minutes; not so long where nobody can come."""
    return asked or (_LOOPBACK_WAIT_S if who.on_loopback else WAIT_S)


def line_for_other(node_rank: int, nodes: int, argv: Sequence[str], address: str, port: int) -> str:
    """The line to type on another machine: this one's command with that machine's node rank."""
    program = "python -m ncclcheck" if argv[0].endswith("__main__.py") else os.path.basename(argv[0])
    words, rest = [], iter(argv[1:])
    for word in rest:
        if word in _OURS:
            next(rest, None)
        elif not word.startswith(tuple(f"{option}=" for option in _OURS)):
            words.append(word)
    place = f"--nodes {nodes} --node-rank {node_rank} --rdzv-endpoint {endpoint(address, port)}"
    return " ".join(part for part in (program, shlex.join(words), place) if part)


def own_address(host: str) -> str:
    """The address by which other machines find this one: as it was told, unless that is loopback."""
    with suppress(ValueError):
        if not (ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified):
            return host
    if host not in ("localhost", "") and not host[:1].isdigit() and ":" not in host:
        return host
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: the kernel only chooses the source address
        return str(probe.getsockname()[0])
    return socket.gethostname()


class JoinLead:
    """Node rank 0: opens the meeting point, runs the session with links to all, and tells all the outcome."""

    def __init__(self, who: JoinIdentity, command: str) -> None:
        self.who, self._command = who, command
        self._meeting: MeetingPoint | None = None
        self._problem = ""
        self._waited = 0.0
        self._siblings = Siblings(who) if who.local_size > 1 else None

    def start(self, events: Events, wait: float, progress: Progress, *agent_options: str) -> list[Link]:
        """Start our own agent, and wait for the others. A signal ends the wait, and is left in `events`."""
        heard = Events()  # until the wait is over only a signal comes to `events`
        own = agent_here(0, self.who.name, heard, *agent_options)
        others = self._gather(events, heard, wait, progress) if self.who.nodes > 1 else []
        threading.Thread(target=_pass_on, args=(heard, events), daemon=True, name="events").start()
        return [own, *others]

    def _gather(self, events: Events, heard: Events, wait: float, progress: Progress) -> list[Link]:
        who, begun = self.who, time.monotonic()
        try:
            self._meeting = MeetingPoint(
                who.host,
                who.ports,
                who.nodes,
                who.run_id,
                name=who.name,
                command=self._command,
                events=heard,
                secret=who.secret,
            )
        except PortTaken as error:
            self._problem = str(error)
            return [_Absent(who.nodes, f"they could not join: {error}", heard)]
        self._announce(progress, self._meeting.port)
        other = SecondLead(who, self._command, self._meeting)
        self._meeting.wait(wait, progress.say, lambda: not events.empty() or other.refusal != "")
        other.close()
        self._problem = other.refusal
        self._waited = time.monotonic() - begun
        return [self._meeting.link()]

    def _announce(self, progress: Progress, port: int) -> None:
        who, address = self.who, own_address(self.who.host)
        if who.on_loopback:
            here = line_for_other(0, who.nodes, sys.argv, address, who.ports[0])
            progress.say(
                f"{who.host} is each machine's own address: no other machine can come to it; type here\n  {here}"
            )
        if who.chosen_by.startswith("--node-rank"):
            more = f" (and so on, to --node-rank {who.nodes - 1})" if who.nodes > 2 else ""
            line = line_for_other(1, who.nodes, sys.argv, address, who.ports[0])
            progress.say(f"on the other machine type{more}:\n  {line}")
        if port != who.ports[0]:
            progress.say(
                f"port {who.ports[0]} is taken; the rendezvous is on port {port}, which the others try next"
            )

    @property
    def fact(self) -> facts.Meeting | None:
        """How the nodes met; None where there was nobody to meet."""
        if self.who.nodes == 1:
            return None
        addresses = resolve(self.who.host)
        meeting = self._meeting
        return facts.Meeting(
            endpoint=self.who.endpoint,
            told_by=self.who.chosen_by,
            outcome=("turned_away" if self._problem else "open") if meeting else "taken",
            detail=self._problem or ("; ".join(meeting.problems) if meeting else ""),
            secret=self.who.secret.kind,
            addresses=addresses if isinstance(addresses, list) else [],
            arrivals=meeting.arrivals if meeting else [],
            seconds=round(self._waited, 1),
        )

    def endpoint(self) -> str:
        """Where torchrun's store can be: the address on which the others reached us, and a port that is free now.

        Not the meeting's own port, which stays open as the channel. Raises OSError.
        """
        address = self.addresses.get(0) or ("127.0.0.1" if self.who.nodes == 1 else own_address(self.who.host))
        return endpoint(address, ports.free_port(address))

    @property
    def addresses(self) -> Mapping[int, str]:
        """The address of every node on the network of the meeting."""
        return self._meeting.addresses if self._meeting else {}

    def done(self, exit_code: int, decision: str, document: bytes | None = None) -> None:
        """The outcome for all nodes and all processes; afterwards nothing of ours listens on a port."""
        if self._meeting is not None:
            self._meeting.done(exit_code, decision, document)
        if self._siblings is not None:
            self._siblings.tell_at_exit(SiblingOutcome(exit_code, decision))


class _Absent:
    """A Link to nodes that could not even come."""

    def __init__(self, nodes: int, why: str, events: Events) -> None:
        self.nodes: Mapping[int, str] = {rank: f"node rank {rank}" for rank in range(1, nodes)}
        self._why = why
        for rank in self.nodes:
            events.put(Closed(rank, why))

    def send(self, node: int | None, order: object) -> None:
        """Nothing: no such node is connected."""

    def describe(self, node: int) -> Closed:
        """The end of a channel that never was, with its reason."""
        return Closed(node, self._why)

    def close(self, seconds: float) -> None:
        """Nothing: there is no connection."""


def _pass_on(heard: Events, events: Events) -> None:
    while True:
        events.put(heard.get())
