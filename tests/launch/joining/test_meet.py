"""The meeting point of a join, with real processes and sockets: who comes, who never comes, who is hostile."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from ncclcheck.base import wire
from ncclcheck.launch.agents import AgentRecord, Closed, Event, Events
from ncclcheck.launch.joining import join_protocol
from ncclcheck.launch.joining.meeting import MeetingPoint, PortTaken, open_port
from ncclcheck.launch.joining.trust import sealed
from ncclcheck.probes.facts import replace
from tests.conftest import ROOT, environment

Start = Callable[..., "Process"]


class Process:
    """A process of a join."""

    def __init__(self, *arguments: str, **env: str) -> None:
        argv = [sys.executable, "-m", "tests.jobs.join_node", *arguments]
        self.child = subprocess.Popen(
            argv, cwd=ROOT, env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def end(self, seconds: float = 30) -> tuple[int, dict[str, Any], str]:
        """Exit code, what it printed, and the last line of stderr."""
        out, self.err = self.child.communicate(timeout=seconds)
        return self.child.returncode, json.loads(out or "{}"), (self.err.splitlines() or [""])[-1]

    def until(self, text: str) -> None:
        """Wait for a line of stderr."""
        assert self.child.stderr is not None
        for line in self.child.stderr:
            if text in line:
                return
        raise AssertionError(f"it never said {text!r}")


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes of a join; none is left behind."""
    started: list[Process] = []

    def begin(*arguments: str, **env: str) -> Process:
        started.append(Process(*arguments, **env))
        return started[-1]

    yield begin
    for process in started:
        if process.child.poll() is None:
            process.child.kill()
            process.child.communicate()


@pytest.fixture
def port() -> int:
    """Four ports in a row that are free at this moment."""
    for first in range(21000 + os.getpid() % 9000, 32000, 4):
        with ExitStack() as sockets:
            try:
                for port in range(first, first + 4):
                    sockets.enter_context(socket.create_server(("", port)))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def _node(rank: int, nodes: int, port: int, host: str = "127.0.0.1") -> tuple[str, ...]:
    return ("env", "--nodes", str(nodes), "--node-rank", str(rank), "--rdzv-endpoint", f"{host}:{port}")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_three_nodes_end_alike(start: Start, port: int, host: str) -> None:
    nodes = [start(*_node(rank, 3, port, host)) for rank in (2, 0, 1)]
    ends = [node.end() for node in nodes]
    assert [code for code, _, _ in ends] == [0, 0, 0]
    assert ends[1][1]["answered"] == ["host0", "host1", "host2"]
    assert [ends[0][1], ends[2][1]] == [{}, {}]
    assert ends[0][2] == "host2: decided for 3 nodes"
    assert "--node-rank 1 --rdzv-endpoint" in nodes[1].err
    assert ends[1][1]["endpoint"].rpartition(":")[2] != str(port)


def test_nothing_listens_afterwards(start: Start, port: int) -> None:
    ends = [process.end() for process in [start(*_node(rank, 2, port)) for rank in (0, 1)]]
    assert [code for code, _, _ in ends] == [0, 0]
    with socket.socket() as plain:  # without SO_REUSEADDR: not even a TIME_WAIT is in the way
        plain.bind(("127.0.0.1", port))


def test_equal_names_are_told_apart(start: Start, port: int) -> None:
    nodes = [start(*_node(rank, 3, port), "--name", "pod") for rank in range(3)]
    assert sorted(nodes[0].end()[1]["answered"]) == ["pod", "pod#2", "pod#3"]


def test_the_same_rank_twice(start: Start, port: int) -> None:
    lead = start(*_node(0, 3, port), "--wait", "30")
    twins = [start(*_node(1, 3, port), "--name", name) for name in ("b", "c")]
    begun = time.monotonic()
    code, summary, _ = lead.end()
    assert time.monotonic() - begun < 15
    assert (code, list(summary["silent"])) == (3, ["node rank 2"])
    turned = [a for a in summary["meeting"]["arrivals"] if a["outcome"] == "same rank"]
    assert len(turned) == 1
    assert "node rank 1 came twice: " in turned[0]["detail"]
    ends = sorted(twin.end()[0] for twin in twins)
    assert ends == [2, 3]


def test_different_numbers_of_nodes(start: Start, port: int) -> None:
    lead, other = start(*_node(0, 2, port), "--wait", "30"), start(*_node(1, 3, port))
    code, summary, _ = lead.end(15)
    assert (code, summary["meeting"]["arrivals"][0]["outcome"]) == (3, "other count")
    code, _, line = other.end()
    assert (code, "host0 was told of 2 nodes, host1 of 3" in line) == (2, True)


def test_another_command_is_turned_away(start: Start, port: int) -> None:
    lead, other = start(*_node(0, 2, port), "--wait", "30"), start("bench", *_node(1, 2, port)[1:])
    assert lead.end(15)[1]["meeting"]["arrivals"][0]["outcome"] == "other command"
    assert "host0 runs ncclcheck env, host1 runs ncclcheck bench" in other.end()[2]


_SECRETS = ("a secret of the first run", "a secret of the second")


def test_a_secret_lets_its_own_nodes_in(start: Start, port: int, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(_SECRETS[0] + "\n")
    file.chmod(0o600)
    by_file = start(*_node(1, 2, port), "--secret-file", str(file))
    lead = start(*_node(0, 2, port), NCCLCHECK_SECRET=_SECRETS[0])
    code, summary, _ = lead.end()
    assert (code, summary["answered"], summary["meeting"]["secret"]) == (0, ["host0", "host1"], "secret")
    assert by_file.end()[0] == 0


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (_SECRETS[0], _SECRETS[1]),
        pytest.param(_SECRETS[0], "", marks=pytest.mark.nightly),
        pytest.param("", _SECRETS[1], marks=pytest.mark.nightly),
    ],
)
def test_another_secret_is_turned_away_by_both_sides(start: Start, port: int, ours: str, theirs: str) -> None:
    lead = start(*_node(0, 2, port), "--wait", "8", NCCLCHECK_SECRET=ours)
    other = start(*_node(1, 2, port), "--wait", "30", NCCLCHECK_SECRET=theirs)
    code, _, line = other.end()
    assert code == 2
    assert "secret" in line
    code, summary, _ = lead.end()
    assert (code, summary["answered"], summary["meeting"]["arrivals"]) == (3, ["host0"], [])
    if ours and theirs:
        assert "somebody at 127.0.0.1 was turned away: its secret" in summary["silent"]["node rank 1"]


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [("0123456789abcdef", 0o640, "mode 0640"), ("short", 0o600, "it has 5 bytes"), (None, 0, "cannot be read")],
)
def test_a_secret_that_is_none(
    start: Start, port: int, tmp_path: Path, content: str | None, mode: int, words: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    code, _, line = start(*_node(1, 2, port), "--secret-file", str(file)).end()
    assert (code, line.startswith("usage: --secret-file: ")) == (2, True)
    assert words in line


def test_another_run_id_is_another_run(start: Start, port: int) -> None:
    lead = start(*_node(0, 2, port), "--wait", "3", "--rdzv-id", "one")
    other = start(*_node(1, 2, port), "--wait", "2", "--rdzv-id", "two")
    assert other.end()[1]["meeting"]["outcome"] in ("stranger", "refused")
    code, summary, _ = lead.end()
    assert (code, summary["meeting"]["arrivals"]) == (3, [])


def test_nobody_comes(start: Start, port: int) -> None:
    code, summary, _ = start(*_node(0, 3, port), "--wait", "1").end()
    assert (code, summary["answered"]) == (3, ["host0"])
    assert summary["silent"]["node rank 2"] == "it did not join within 1 s"


@pytest.mark.parametrize(
    ("host", "outcome", "words"),
    [
        ("127.0.0.1", "refused", "nothing listens at 127.0.0.1:"),
        ("no-such-host.invalid", "unresolved", "no-such-host.invalid does not resolve"),
    ],
)
def test_node_0_never_comes(start: Start, port: int, host: str, outcome: str, words: str) -> None:
    code, summary, line = start(*_node(1, 2, port, host), "--wait", "1").end()
    assert (code, summary["nodes"], summary["meeting"]["outcome"]) == (3, 1, outcome)
    assert words in line


@pytest.mark.parametrize(("banner", "words"), [(b"", "says nothing"), (b"SSH-2.0-x\r\n", "'SSH-2.0-x'")])
def test_something_else_listens(start: Start, port: int, banner: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", port)) as server:
        other = start(*_node(1, 2, port), "--wait", "1")
        server.settimeout(10)
        kept = [server.accept()[0]]
        kept[0].sendall(banner)
        server.settimeout(0.2)
        while other.child.poll() is None:
            try:
                kept.append(server.accept()[0])
                kept[-1].sendall(banner)
            except OSError:
                continue
        code, summary, line = other.end()
    assert (code, summary["meeting"]["outcome"]) == (3, "stranger")
    assert words in line


def test_a_taken_port_is_named_and_the_next_is_found(start: Start, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        nodes = [start(*_node(rank, 2, port)) for rank in (0, 1)]
        code, summary, _ = nodes[0].end()
    assert (code, nodes[1].end()[0]) == (0, 0)
    assert f"127.0.0.1:{port} cannot be opened: Address already in use; held by" in summary["meeting"]["detail"]


def test_all_ports_taken(start: Start, port: int) -> None:
    with ExitStack() as sockets:
        for number in range(port, port + 4):
            sockets.enter_context(socket.create_server(("127.0.0.1", number)))
        code, summary, _ = start(*_node(0, 2, port)).end()
    assert (code, summary["meeting"]["outcome"], summary["answered"]) == (3, "taken", ["host0"])
    assert "Address already in use" in summary["silent"]["node rank 1"]


def test_a_follower_is_killed(start: Start, port: int) -> None:
    lead, other = start(*_node(0, 2, port), "--linger", "3"), start(*_node(1, 2, port))
    lead.until("2 of 2 nodes are here")
    time.sleep(0.5)
    other.child.kill()
    _, summary, _ = lead.end()
    assert summary["answered"][0] == "host0"
    assert summary["closed"] == {"host1": "its connection closed; it had joined from 127.0.0.1"}


def test_node_0_is_killed(start: Start, port: int) -> None:
    lead, other = start(*_node(0, 2, port), "--linger", "20"), start(*_node(1, 2, port))
    lead.until("2 of 2 nodes are here")
    time.sleep(0.5)
    lead.child.kill()
    code, summary, line = other.end(10)
    assert (code, summary) == (3, {})
    assert line.startswith("host1: node rank 0 is gone: ")


def test_a_signal_on_node_0_ends_all(start: Start, port: int) -> None:
    lead, other = start(*_node(0, 2, port), "--linger", "20"), start(*_node(1, 2, port))
    lead.until("2 of 2 nodes are here")
    time.sleep(0.3)
    lead.child.send_signal(signal.SIGTERM)
    assert (lead.end(15)[0], other.end(15)[0]) == (143, 143)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_ends_the_wait(start: Start, port: int, rank: int) -> None:
    process = start(*_node(rank, 2, port), "--wait", "60")
    process.until("waiting for at most" if rank == 0 else "is not reached yet")
    process.child.send_signal(signal.SIGINT)
    assert process.end(10)[0] == 130


def test_a_follower_that_left_may_come_again(start: Start, port: int) -> None:
    lead, first = start(*_node(0, 3, port), "--wait", "20"), start(*_node(1, 3, port), "--name", "first")
    first.until("joined as first")
    first.child.kill()
    first.end()
    again = [start(*_node(rank, 3, port), "--name", f"again{rank}") for rank in (1, 2)]
    code, summary, _ = lead.end()
    assert (code, summary["answered"]) == (0, ["host0", "again1", "again2"])
    assert [process.end()[0] for process in again] == [0, 0]


def test_inside_torchrun_every_rank_ends_alike(start: Start, port: int) -> None:
    def env(group: int, local: int) -> dict[str, str]:
        numbers = {"RANK": group * 2 + local, "LOCAL_RANK": local, "GROUP_RANK": group, "WORLD_SIZE": 4}
        more = {"LOCAL_WORLD_SIZE": 2, "GROUP_WORLD_SIZE": 2, "MASTER_PORT": port - 1, "NODE_NAME": f"n{group}"}
        texts = {name: str(value) for name, value in {**numbers, **more}.items()}
        return {**texts, "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": f"test{port}"}

    ranks = [start("env", **env(group, local)) for group in (0, 1) for local in (1, 0)]
    ends = [rank.end() for rank in ranks]
    assert [code for code, _, _ in ends] == [0, 0, 0, 0]
    assert [summary.get("answered") for _, summary, _ in ends] == [None, ["n0", "n1"], None, None]


# Raw sockets against the meeting point


@pytest.fixture
def meeting(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[MeetingPoint, Events, int]]:
    """A meeting point of two nodes in this process, with less patience."""
    monkeypatch.setattr(join_protocol, "HANDSHAKE_S", 1.0)
    events = Events()
    point = MeetingPoint("127.0.0.1", [port], 2, "id", name="a", command="env", events=events)
    yield point, events, port
    point.done(0, "over")


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 5)
    connection.settimeout(10)
    return connection


def _greeting(lines: BinaryIO) -> join_protocol.Greeting:
    greeting = join_protocol.from_meeting(lines.readline())
    assert isinstance(greeting, join_protocol.Greeting)
    return greeting


class Guest:
    """A node that speaks by hand; `changes` are to what it says of itself, after its proof where `late`."""

    def __init__(
        self, connection: socket.socket, greeting: join_protocol.Greeting | None = None, **changes: Any
    ) -> None:
        self.connection = connection
        self.lines = connection.makefile("rb")
        self.greeting = greeting or _greeting(self.lines)
        run_id, key = changes.pop("run_id", "id"), changes.pop("key", b"")
        self.proof = changes.pop("proof", None)
        given: dict[str, Any] = {
            "protocol": join_protocol.PROTOCOL, "version": "1", "command": "env", "nodes": 2, "name": "b",
            "address": "127.0.0.1", "nonce": sealed.nonce(), "node_rank": 1,
        }  # fmt: skip
        self.join = join_protocol.Join(**{**given, **changes})
        self.hand = join_protocol.Handshake(sealed.run_key(key, run_id), self.greeting, self.join)
        self.ours, self.theirs = self.hand.seals()

    def ask(self, **forged: Any) -> Guest:
        """Ask to take part. forged: what is changed after the proof was made."""
        proof = self.hand.of_node() if self.proof is None else self.proof
        self.connection.sendall(join_protocol.encode(replace(self.join, proof=proof, **forged)))
        return self

    def answer(self) -> join_protocol.FromMeeting:
        return join_protocol.from_meeting(self.lines.readline())

    def say(self, line: bytes) -> None:
        self.connection.sendall(self.ours.close(line))

    def hear(self) -> bytes:
        return self.theirs.open(self.lines.readline())


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"\n",
    b"[" * 60_000 + b"\n",
    b'{"type":"join"}\n',
    b'{"type":"beat"}\n',
    b"1 1 1/1 {}\n",
    b"x" * 200_000,
    b"\xff\xfe\n",
]


def _is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(65536):
            continue
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_dropped_without_a_trace(meeting: tuple[MeetingPoint, Events, int], garbage: bytes) -> None:
    point, events, port = meeting
    with _connect(port) as connection:
        connection.sendall(garbage)
        assert _is_closed(connection)
    assert (point.arrivals, point.here, events.empty()) == ([], {0: "a"}, True)


@pytest.mark.parametrize(
    "changes",
    [{"run_id": "other"}, {"key": b"x"}, {"proof": "0" * 64}, {"proof": "\ud7ff"}, {"address": "nonsense"},
     {"node_rank": 7}, {"node_rank": -1}, {"secret": "secret"}, {"secret": "munge", "credential": "MUNGE:AA:"}],
)  # fmt: skip
def test_who_proves_nothing_leaves_no_trace(
    meeting: tuple[MeetingPoint, Events, int], changes: dict[str, Any]
) -> None:
    point, _, port = meeting
    with _connect(port) as connection:
        Guest(connection, **changes).ask()
        assert _is_closed(connection)
    assert (point.arrivals, point.here) == ([], {0: "a"})


@pytest.mark.parametrize("forged", [{"name": "c"}, {"address": "127.0.0.2"}, {"node_rank": 1, "nodes": 3}])
def test_a_proof_covers_all_that_a_node_says(
    meeting: tuple[MeetingPoint, Events, int], forged: dict[str, Any]
) -> None:
    point, _, port = meeting
    with _connect(port) as connection:
        answer = Guest(connection).ask(**forged).answer()
    assert isinstance(answer, join_protocol.RefusedJoin)
    assert (answer.kind, point.here) == ("other secret", {0: "a"})


def test_a_proof_is_good_for_one_greeting_only(meeting: tuple[MeetingPoint, Events, int]) -> None:
    point, _, port = meeting
    with _connect(port) as first, _connect(port) as second:
        Guest(second, Guest(first).greeting).ask()
        assert _is_closed(second)
    assert point.here == {0: "a"}


def test_many_who_say_nothing_keep_nobody_out_for_long(meeting: tuple[MeetingPoint, Events, int]) -> None:
    point, _, port = meeting
    with ExitStack() as sockets:
        for _ in range(80):
            sockets.enter_context(_connect(port))
        begun = time.monotonic()
        while 1 not in point.here and time.monotonic() - begun < 15:
            with _connect(port) as connection:
                try:
                    assert isinstance(Guest(connection).ask().answer(), join_protocol.Welcome)
                    break
                except (OSError, ValueError):
                    time.sleep(0.2)
    assert time.monotonic() - begun < join_protocol.HANDSHAKE_S + 5


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[2J" + "x" * 1000, "__2J" + "x" * 60),
        ("w;touch X;$(id)", "w_touch_X___id_"),
        ("--drain", "drain"),
        ("", "unnamed"),
    ],
)
def test_a_name_may_stand_in_a_command(meeting: tuple[MeetingPoint, Events, int], name: str, shown: str) -> None:
    point, _, port = meeting
    with _connect(port) as connection:
        Guest(connection, name=name).ask().answer()
        assert point.here[1] == shown


def test_a_node_speaks_for_itself_only(meeting: tuple[MeetingPoint, Events, int]) -> None:
    point, events, port = meeting
    lines: list[str] = []
    with _connect(port) as connection:
        guest = Guest(connection).ask()
        guest.answer()
        point.wait(1, lines.append)
        guest.say(next(wire.lines(wire.StepNotice(text="forged"), 0, 1)))
        guest.say(next(wire.lines(wire.StepNotice(text="own"), 1, 2)))
        assert events.get(timeout=5) == AgentRecord(1, wire.StepNotice(text="own"))
        point.send(1, b"1 order\n")
        point.send(None, b"* order\n")
        assert {guest.hear() for _ in range(3)} >= {b"1 order\n", b"* order\n"}
        guest.lines.close()
    closed = events.get(timeout=5)
    assert isinstance(closed, Closed)
    assert closed.detail == "its connection closed; it had joined from 127.0.0.1"
    assert lines[-1] == "2 of 2 nodes are here: a, b"


@pytest.mark.parametrize("way", ["unsealed", "forged", "changed", "repeated", "left out", "sent back"])
def test_a_line_that_is_not_sealed_ends_the_conversation(
    meeting: tuple[MeetingPoint, Events, int], way: str
) -> None:
    point, events, port = meeting
    first, second = (next(wire.lines(wire.StepNotice(text=text), 1, 1)) for text in ("first", "second"))
    with _connect(port) as connection:
        guest = Guest(connection).ask()
        guest.answer()
        point.wait(1, lambda _: None)
        sealed_first, sealed_second = guest.ours.close(first), guest.ours.close(second)
        hostile = {
            "unsealed": second,
            "forged": sealed.Seal(b"another key", "node", b"").close(second),
            "changed": sealed_second.replace(b"second", b"secone"),
            "repeated": sealed_first,
            "left out": guest.ours.close(second),
            "sent back": guest.lines.readline(),
        }[way]
        connection.sendall(sealed_first + hostile + sealed_second)
        assert events.get(timeout=5) == AgentRecord(1, wire.StepNotice(text="first"))
        assert isinstance(events.get(timeout=5), Closed)
        guest.lines.close()


def test_what_was_said_before_all_had_come_is_not_lost(meeting: tuple[MeetingPoint, Events, int]) -> None:
    point, events, port = meeting
    with _connect(port) as connection:
        guest = Guest(connection).ask()
        guest.say(next(wire.lines(wire.StepNotice(text="early"), 1, 1)))
        guest.answer()
        time.sleep(0.2)
        assert events.empty()
        point.wait(1, lambda _: None)
        event: Event = events.get(timeout=5)
        assert event == AgentRecord(1, wire.StepNotice(text="early"))


def test_a_flood_is_bounded(meeting: tuple[MeetingPoint, Events, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that never ends: the node is dropped."""
    point, events, port = meeting
    monkeypatch.setattr(wire, "MOST_RECORD", 2**20)
    with _connect(port) as connection:
        guest = Guest(connection).ask()
        guest.answer()
        point.wait(1, lambda _: None)
        part = 0
        with suppress(OSError):
            while part < 10_000:
                part += 1
                guest.say(b"1 1 %d/100000 %s\n" % (part, b"x" * 30_000))
        guest.lines.close()
    assert isinstance(events.get(timeout=5), Closed)
    assert part < 1000


def test_what_is_kept_of_one_agent_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_KEPT", 2**20)
    assembler = wire.Assembler()
    line = next(wire.lines(wire.Bye(reason="x" * 700), 1, 1))
    for _ in range(2**20 // len(line)):
        assert assembler.feed(line) is not None
    with pytest.raises(wire.TooMuch, match="records of more than 1 MiB"):
        [assembler.feed(line) for _ in range(200)]


def test_many_open_records_are_one() -> None:
    """`1 N 1/2` with ever new N: the last one alone is kept."""
    assembler = wire.Assembler()
    for number in range(2000):
        assert assembler.feed(b"1 %d 1/2 %s\n" % (number, b"x" * 60_000)) is None
    assert sum(map(len, assembler._pieces)) == 60_000


def test_much_before_the_run_begins_is_refused(meeting: tuple[MeetingPoint, Events, int]) -> None:
    point, _, port = meeting
    with _connect(port) as connection:
        guest = Guest(connection).ask()
        guest.answer()
        for number in range(1000):
            try:
                guest.say(next(wire.lines(wire.StepNotice(text="x"), 1, number)))
            except OSError:
                break
        assert _is_closed(connection)
        guest.lines.close()
    assert point.missing == [1]


def test_a_late_node_is_told_so(meeting: tuple[MeetingPoint, Events, int]) -> None:
    point, _, port = meeting
    point.wait(0.1, lambda _: None)
    with _connect(port) as connection:
        guest = Guest(connection).ask()
        refused = guest.answer()
    assert isinstance(refused, join_protocol.RefusedJoin)
    assert (refused.kind, refused.proof) == ("late", guest.hand.of_meeting(refused))
    assert "without node rank 1" in refused.reason


def test_the_holder_of_a_port_is_named(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PortTaken, match=f"held by .*pid {os.getpid()}"):
        open_port("127.0.0.1", [port])


def test_all_addresses_of_both_families(port: int) -> None:
    listening, problems = open_port("some-name", [port])
    with listening:
        assert problems == []
        _connect(port).close()
        if listening.family == socket.AF_INET6:
            socket.create_connection(("::1", port), 5).close()
