"""Relays: the first host of a group starts the others' agents, and whom it loses is started from here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from ncclcheck.base import wire
from ncclcheck.launch import relays
from ncclcheck.launch.agents import AgentRecord, Closed, Event, Events
from ncclcheck.probes.facts import replace
from ncclcheck.probes.facts.guard import alike
from tests.helpers import dgx
from tests.launch.test_ssh_launch import Server, heard, needs_sshd, server

__all__ = ["server"]
_NAMES = ["h0", "h1", "h2", "h3", "h4", "h5", "h6"]


def _count_calls(server: Server, refused: str = "") -> Path:
    """Let the wrapper say who calls whom: `here` or, within a login, `relay`; a relay cannot reach `refused`."""
    calls, wrapper = server.folder / "calls", server.folder / "bin/ssh"
    refuse = f'case "$*" in *" -- {refused} "*) echo no key for it >&2; exit 255;; esac' if refused else ":"
    real = wrapper.read_text().splitlines()[1]
    who = f'who=here; [ -z "$SSH_CONNECTION" ] || {{ who=relay; {refuse}; }}'
    wrapper.write_text(f'#!/bin/sh\n{who}\n[ "$1" != -T ] || echo $who >>{calls}\n{real}\n')
    return calls


def _calls(path: Path) -> dict[str, int]:
    calls = path.read_text().split()
    return {who: calls.count(who) for who in ("here", "relay")}


@needs_sshd
def test_one_connection_for_a_group(server: Server) -> None:
    server.configure(*_NAMES)
    calls = _count_calls(server)
    answer = heard(server, ",".join(_NAMES), group=4, env={"NCCL_DEBUG": "it's WARN"}, patient=True)
    assert list(answer.variables) == _NAMES
    assert {variables["NCCL_DEBUG"] for variables in answer.variables.values()} == {"it's WARN"}
    assert _calls(calls) == {"here": 2, "relay": 5}


@needs_sshd
def test_a_host_that_its_relay_cannot_reach_is_reached_from_here(server: Server) -> None:
    server.configure(*_NAMES[:4])
    calls = _count_calls(server, refused="h2")
    answer = heard(server, "h0,h1,h2,h3", group=4, patient=True)
    assert list(answer.variables) == _NAMES[:4]
    assert _calls(calls) == {"here": 2, "relay": 2}


@needs_sshd
def test_a_relay_that_is_not_there_loses_itself_alone(server: Server) -> None:
    server.configure("h0", Port="9")
    server.configure("h1", "h2")
    answer = heard(server, "h0,h1,h2", group=3)
    assert list(answer.variables) == ["h1", "h2"]
    assert "port 9" in answer.details["h0"]


@contextmanager
def _struck(mark: str, number: int) -> Iterator[list[int]]:
    """The first relay that is seen with this mark in its environment gets a signal."""
    struck: list[int] = []
    over = threading.Event()

    def strike() -> None:
        while not over.wait(0.01) and not struck:
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    words = process.cmdline()
                    if words[-1:] == [there_program()] and process.environ().get("NCCL_MARK") == mark:
                        process.send_signal(number)
                        struck.append(process.pid)
                        return

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield struck
    finally:
        over.set()
        thread.join()
        for pid in struck:
            with suppress(psutil.Error):
                psutil.Process(pid).kill()


def there_program() -> str:
    from ncclcheck.launch.remote import doorstep  # noqa: PLC0415

    return doorstep.RELAY


@needs_sshd
@pytest.mark.parametrize("number", [9, 19], ids=["killed", "stopped"])
def test_a_relay_that_dies_loses_nobody(server: Server, number: int) -> None:
    server.configure(*_NAMES[:4])
    calls, mark = _count_calls(server), f"mark{os.getpid()}"
    with _struck(mark, number) as struck:
        answer = heard(server, "h0,h1,h2,h3", group=4, env={"NCCL_MARK": mark})
    assert struck
    assert list(answer.variables) == _NAMES[:4]
    assert _calls(calls)["here"] >= 5  # the relay, then each of the four, and looks at those that are silent


class _Asked:
    """In the place of the door and of a host's own connection."""

    def __init__(self, node: int) -> None:
        self.nodes = {node: f"h{node}"}
        self.sent: list[object] = []

    def send(self, _: int | None, order: object) -> None:
        self.sent.append(order)


class _Way:
    """In the place of the ssh to a relay."""

    def __init__(self, events: Events) -> None:
        self.events, self.sent = events, list[tuple[object, object]]()

    def send(self, node: int | None, order: object) -> None:
        self.sent.append((node, order))


class _Group:
    """A relay link of three nodes of which nothing is real but itself."""

    def __init__(self) -> None:
        self.events, self.added = Events(), list[object]()
        self.ways: list[_Way] = []
        links = {node: _Asked(node) for node in range(3)}
        self.links = links
        self.link = relays.RelayLink(0, links, {}, self._begun, self, self.events)  # type: ignore[arg-type]
        self.link.start()

    def _begun(self, _: object, *, events: Events) -> _Way:
        self.ways.append(_Way(events))
        return self.ways[0]

    def add(self, link: object) -> None:
        self.added.append(link)

    def say(self, *events: Event) -> None:
        for event in events:
            self.ways[0].events.put(event)


def test_once_there_are_orders_an_end_is_an_end() -> None:
    group = _Group()
    order = wire.Listen(address="10.0.0.1")
    group.link.send(None, order)
    group.say(AgentRecord(1, wire.RelayedEnd(detail="Connection reset", exit=255)))
    assert group.events.get(timeout=5) == Closed(1, "Connection reset", "", "ssh", 255)
    group.say(Closed(0, "Broken pipe", "", "ssh", 255))
    assert [group.events.get(timeout=5).node for _ in range(2)] == [0, 2]  # type: ignore[union-attr]
    assert group.added == []
    assert group.ways[0].sent[1:] == [(None, order)]


def test_facts_that_fit_no_prototype_are_asked_for_anew() -> None:
    group = _Group()
    group.say(AgentRecord(2, wire.Alike(like=7, differences={})))
    end = time.monotonic() + 5
    while not group.added and time.monotonic() < end:
        time.sleep(0.01)
    assert group.added == [group.links[2]]
    group.link.send(None, wire.Alive())
    group.link.send(2, wire.Stop())
    assert group.links[2].sent == [wire.Alive(), wire.Stop()]


def test_equal_facts_travel_once(tmp_path: Path) -> None:
    """The real relay, over agents that are files: 12 nodes are one and some lines each."""
    nodes = [replace(node, name=f"h{at}") for at, node in enumerate(dgx.cluster(12).nodes)]
    for at, node in enumerate(nodes):
        lines = [
            *wire.lines(wire.Hello(protocol=1, version="", node=at, hostname="", pid=1, python="", path=""), at, 1)
        ]
        lines += wire.lines(wire.Facts(node=node), at, 2)
        (tmp_path / str(at)).write_bytes(b"".join(lines))
    agents = {at: ["sh", "-c", f"cat {tmp_path}/{at}; read line"] for at in range(12)}
    running = subprocess.Popen(
        [sys.executable, "-c", "from ncclcheck.launch.remote.relay import main; main()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(wire.order(wire.RELAY, wire.SpreadOrder(here=0, agents=agents)))
    running.stdin.flush()
    assemblers = {at: wire.Assembler() for at in [*range(12), wire.RELAY]}
    records: dict[int, wire.FromAgent] = {}
    size = 0
    for line in running.stdout:
        record = assemblers[wire.node_of(line)].feed(line)
        if isinstance(record, (wire.Facts, wire.Alike)):
            records[wire.node_of(line)] = record
        size += len(line)
        if len(records) == 12:
            break
    running.stdin.close()
    running.wait(10)
    whole = {at: message.node for at, message in records.items() if isinstance(message, wire.Facts)}
    assert len(whole) <= 2  # one of them is broken, and much unlike the others
    for at, sent in records.items():
        if isinstance(sent, wire.Alike):
            assert alike.applied(whole[sent.like], sent.differences) == nodes[at]
    assert size < 3 * len(msgspec.json.encode(nodes[0]))
