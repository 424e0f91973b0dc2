"""Who is heard on the wire where node rank 0 is not reached: strangers answer, ask and tell, and gain nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from ncclcheck.launch.agents import Events
from ncclcheck.launch.joining import follow, hail, join_protocol
from ncclcheck.launch.joining.connection import LeadConnection
from ncclcheck.launch.joining.hearsay import sound
from ncclcheck.launch.joining.meeting import MeetingPoint
from ncclcheck.launch.joining.trust.identity import JoinIdentity
from ncclcheck.launch.joining.trust.secret import Secret
from ncclcheck.probes.facts import (
    Arrival,
    Cluster,
    Hop,
    Job,
    KernelRoute,
    Meeting,
    NameServer,
    Neighbour,
    Resolver,
    replace,
)
from ncclcheck.reports.judgement.findings import Finding
from ncclcheck.results import safe
from tests.helpers.clusters import nic, node, verdict
from tests.helpers.reach_clusters import hosts, measured
from tests.launch.joining.test_join_attacks import FakeLead

PORTS = (29500, 29501, 29502, 29503)
NONCE = b"12345678"
RUN = join_protocol.place_digest("", "h1:29500")
QUESTION = b"ncclcheck?" + RUN.encode() + NONCE
EVIL = "$(reboot)'; reboot #\x1b[2J"


def _free_port() -> int:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as free:
        free.bind(("::", 0))
        return int(free.getsockname()[1])


# Node rank 0 is asked


@contextmanager
def _asking() -> Iterator[tuple[socket.socket, tuple[str, int]]]:
    port = _free_port()
    with (
        closing(hail.Answering("h1", (port, 29501), RUN)),
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as asker,
    ):
        asker.settimeout(0.3)
        yield asker, ("::1", port)


def test_who_names_the_run_is_answered_with_fewer_bytes() -> None:
    with _asking() as (asker, lead):
        asker.settimeout(5)
        asker.sendto(QUESTION, lead)
        answer = asker.recv(256)
    assert answer == b"ncclcheck!12345678" + b"29501"
    assert len(answer) < len(QUESTION)


@pytest.mark.parametrize(
    "question",
    [
        b"ncclcheck?" + join_protocol.place_digest("", "h9:29500").encode() + NONCE,
        QUESTION + b"x",
        QUESTION[:-1],
        b"",
        QUESTION * 40,
        QUESTION.ljust(60000),
    ],
)
def test_nobody_else_is_answered(question: bytes) -> None:
    with _asking() as (asker, lead):
        asker.sendto(question, lead)
        with pytest.raises(TimeoutError):
            asker.recv(256)


def test_a_flood_is_answered_twenty_times_a_second() -> None:
    answers = 0
    with _asking() as (asker, lead):
        begun = time.monotonic()
        for _ in range(3000):
            with suppress(OSError):
                asker.sendto(QUESTION, lead)
        with suppress(TimeoutError):
            while asker.recv(256):
                answers += 1
        seconds = time.monotonic() - begun
    assert 1 <= answers <= 20 * (int(seconds) + 2)


@pytest.mark.parametrize(
    ("address", "is_near"),
    [
        ("fe80::1%eth0", True),
        ("fe80::1", True),
        ("2001:db8::1", False),
        ("fd00::1", False),
        ("::ffff:10.1.0.9", False),
    ],
)
def test_who_is_farther_away_is_not_heard(address: str, is_near: bool) -> None:
    assert hail._is_near((address, 29500, 0, 2)) is is_near


# A node asks


@pytest.mark.parametrize(
    ("answer", "port"),
    [
        (b"ncclcheck!12345678" + b"29501", 29501),
        (b"ncclcheck!12345678" + b"   22", 0),  # a port that node rank 0 of this run would not take
        (b"ncclcheck!87654321" + b"29501", 0),
        (b"ncclcheck!12345678" + b"29501 ", 0),
        (b"ncclcheck!12345678" + b"2950\xb2", 0),
        (b"ncclcheck!12345678" + b"9" * 238, 0),
        (b"ncclcheck!12345678", 0),
        (b"ncclcheck!12345678-29501", 0),
        (b"", 0),
        (QUESTION, 0),
    ],
)
def test_what_is_an_answer(answer: bytes, port: int) -> None:
    assert hail.port_of(answer, NONCE, PORTS) == port


def _stranger(sock: socket.socket, stop: threading.Event) -> None:
    """Answers a question a thousand times: with what is none, and with what is right."""
    sock.settimeout(0.1)
    while not stop.is_set():
        with suppress(TimeoutError):
            question, who = sock.recvfrom(256)
            for number in range(1000):
                right = b"ncclcheck!" + question[-8:] + b"%5d" % PORTS[number % 4]
                sock.sendto((right, b"x" * 9000, b"ncclcheck!" + bytes(13), right + b" ")[number % 4], who)


def test_thousands_of_answers_are_one_place_and_take_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hail, "_ALL_HOSTS", "::1")
    stop = threading.Event()
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind(("::1", 0))
        ports = (sock.getsockname()[1], *PORTS)
        thread = threading.Thread(target=_stranger, args=(sock, stop), daemon=True)
        thread.start()
        begun = time.monotonic()
        leads = hail.hail(ports, RUN)
        took = time.monotonic() - begun
        stop.set()
        thread.join(5)
    assert [address for address, _ in leads] == ["::1"]
    assert took < 5  # a second, and what a busy machine adds


# A stranger's place comes before node rank 0's


def _who(secret: Secret, port: int) -> JoinIdentity:
    return JoinIdentity(1, 2, "h1.invalid", (port,), "", "h2", "--node-rank and --rdzv-endpoint", secret=secret)


_FAILURE = follow.NotReached("unresolved", "h1.invalid does not resolve")


def _aside(
    monkeypatch: pytest.MonkeyPatch, who: JoinIdentity, places: list[tuple[str, int]]
) -> LeadConnection | None:
    monkeypatch.setattr(follow, "hail", lambda _ports, _place: places)
    monkeypatch.setattr(follow, "_try_all", lambda _who, _command: _FAILURE)
    record = Meeting(endpoint=who.endpoint, told_by=who.chosen_by, outcome="unresolved", node_rank=1)
    return follow._aside(who, "env", _FAILURE, record)


def test_a_stranger_who_is_first_is_passed_over_with_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret("secret", b"the true secret of this run")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    place = join_protocol.place_digest("", f"h1.invalid:{port}")
    stranger = FakeLead(key=b"what a stranger would guess", place=place)
    mute = socket.create_server(("127.0.0.1", 0))
    point = MeetingPoint("h1.invalid", [port], 2, "", name="h1", command="env", events=Events(), secret=secret)
    places = [("127.0.0.1", stranger.port), ("127.0.0.1", mute.getsockname()[1]), ("127.0.0.1", point.port)]
    try:
        connection = _aside(monkeypatch, _who(secret, port), places)
        assert connection is not None
        assert [arrival.name for arrival in point.arrivals] == ["h2"]
        assert stranger.said == []
        connection.close()
    finally:
        point.done(0, "over")
        stranger.close()
        mute.close()


def test_strangers_alone_are_not_followed_with_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    place = join_protocol.place_digest("", "h1.invalid:29500")
    strangers = [FakeLead(key=b"what a stranger would guess", place=place) for _ in range(6)]
    places = [("127.0.0.1", lead.port) for lead in strangers]
    who = _who(Secret("secret", b"the true secret of this run"), 29500)
    assert _aside(monkeypatch, who, places) is None
    assert [lead.said for lead in strangers] == [[]] * 6
    for stranger in strangers:
        stranger.close()


# What a node tells of its way


def _honest() -> Meeting:
    return Meeting(
        endpoint="h1:29500",
        told_by="--node-rank and --rdzv-endpoint",
        outcome="silent",
        node_rank=1,
        detail="no answer",
        addresses=["10.1.0.1", "fe80::1%eth0"],
        sources=["10.1.0.2", ""],
        neighbours={"10.1.0.1": Neighbour(mac="02:00:00:00:00:01", interface="eth0", permanent=False)},
        ways=[
            KernelRoute(
                address="10.1.0.1", kind="unicast", source="10.1.0.2", destination="10.1.0.0/24", table="main",
                hops=[Hop(interface="eth0.100", address="10.1.0.1", state="failed")], routers=["10.1.0.254"],
            )
        ],
        resolver=Resolver(
            name="h1", seconds=0.1, files=["10.1.0.1"], beside=["other"], known={"10.1.0.3": ["h3"]},
            servers=[NameServer(address="10.1.0.53", answered=True, answers=["10.1.0.1"])],
        ),
        elsewhere=["10.1.0.9"],
    )  # fmt: skip


def test_what_an_honest_node_tells_stays() -> None:
    assert sound(_honest()) == _honest()


def _changed(**parts: Any) -> Meeting:
    """The honest one with something else of its way, its next hop or its names."""
    meeting = _honest()
    assert meeting.resolver is not None
    way, names = meeting.ways[0], meeting.resolver
    of_way, of_names = parts.pop("way", {}), parts.pop("names", {})
    hop = parts.pop("hop", {})
    way = replace(way, **of_way, **({"hops": [replace(way.hops[0], **hop)]} if hop else {}))
    return replace(meeting, **({"ways": [way], "resolver": replace(names, **of_names)} | parts))


@pytest.mark.parametrize(
    "meeting",
    [
        _changed(addresses=[EVIL]),
        _changed(addresses=["fe80::1%;reboot"]),  # ipaddress takes any text for a scope
        _changed(addresses=["fd00::1%'; reboot #"]),
        _changed(elsewhere=["fd00::1%$(reboot)"]),
        _changed(sources=[EVIL]),
        _changed(neighbours={EVIL: Neighbour(mac="", interface="eth0", permanent=True)}),
        _changed(endpoint="h1:29500; reboot"),
        _changed(endpoint="h1:99999"),
        _changed(endpoint="-h1:29500"),
        _changed(endpoint=f"{EVIL}:29500"),
        _changed(endpoint="h1"),
        _changed(names={"name": "pypi.org"}),
        _changed(way={"address": EVIL}),
        _changed(way={"source": EVIL}),
        _changed(way={"destination": EVIL}),
        _changed(way={"destination": "fd00::%;reboot/64"}),
        _changed(way={"routers": [EVIL]}),
        _changed(hop={"address": EVIL}),
    ],
)
def test_what_no_node_says_is_refused(meeting: Meeting) -> None:
    with pytest.raises(ValueError, match=r"address|network|endpoint|host bits|name"):
        sound(meeting)


@pytest.mark.parametrize(
    "meeting",
    [
        _changed(hop={"interface": EVIL}),
        _changed(way={"table": EVIL}),
        _changed(way={"error": EVIL}),
        _changed(detail=EVIL, told_by=EVIL),
        _changed(neighbours={"10.1.0.1": Neighbour(mac=EVIL, interface=EVIL, permanent=True)}),
        _changed(names={"files": [EVIL], "beside": [EVIL], "known": {EVIL: [EVIL], "10.1.0.3": [EVIL]}}),
        _changed(names={"servers": [NameServer(address=EVIL, answered=False)]}),
        _changed(names={"servers": [NameServer(address="10.1.0.53", answered=True, answers=[EVIL])]}),
        _changed(seconds=1e308, names={"seconds": -1e308}),
        _changed(addresses=["10.1.0.1"] * 3000, elsewhere=["10.1.0.9"] * 3000),
    ],
)
@pytest.mark.parametrize("outcome", ["silent", "stranger", "unresolved", "no_route", "refused", "unrouted"])
def test_no_word_of_it_comes_into_a_command(meeting: Meeting, outcome: Any) -> None:
    for finding in _run010(sound(replace(meeting, outcome=outcome))):
        commands = [line for remedy in finding.remedies for line in remedy.commands]
        assert not [line for line in commands if "$(reboot" in line or "; reboot" in line]
        assert not [line for line in commands if "\x1b" in line or len(line) > 2000]
        assert "\x1b" not in finding.what
        assert len(finding.what) < 2000


def _run010(meeting: Meeting, secret: Any = "") -> list[Finding]:
    nodes = hosts(3)
    came = Arrival(outcome="joined", node_rank=1, name="h2", address="10.1.0.2", unreached=meeting)
    met = Meeting(endpoint="h1:29500", told_by="--rdzv-endpoint", outcome="open", arrivals=[came], secret=secret)
    job = Job(launcher="join", nodes_asked=3, meeting=met)
    return verdict("RUN010", *nodes, job=job, measurements=measured(nodes)).findings


def _commands(findings: list[Finding]) -> str:
    return " ".join(line for finding in findings for remedy in finding.remedies for line in remedy.commands)


def test_another_address_counts_only_where_node_0_has_it() -> None:
    meeting = _changed(addresses=["10.1.0.1"], elsewhere=["6.6.6.6"])
    assert "6.6.6.6" not in _commands(_run010(sound(meeting)))


def test_without_a_secret_no_other_name_is_mapped() -> None:
    names = Resolver(name="pypi.org", seconds=0.0)
    meeting = sound(_changed(endpoint="pypi.org:29500", addresses=["6.6.6.6"], resolver=names))
    assert "pypi.org" not in _commands(_run010(meeting, "none"))
    assert "10.1.0.1 pypi.org" in _commands(_run010(meeting, "secret"))  # so that the test above can fail


def test_addresses_of_nodes_are_one_word_of_a_shell() -> None:
    evil = nic("eth0", "fd00::1%;reboot/64")
    (safe_node,) = safe.cluster(Cluster(command="env", nodes=[node("h1", evil)])).nodes
    assert ";" not in str(safe_node.network)
