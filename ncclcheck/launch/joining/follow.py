"""The other nodes' side of a join: reach node rank 0, pass on what both sides say, end with its outcome."""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass, field, replace

from msgspec import structs

from ncclcheck import __version__
from ncclcheck.launch.given import endpoint
from ncclcheck.launch.joining import join_protocol
from ncclcheck.launch.joining.connection import LeadConnection, SocketLines, words
from ncclcheck.launch.joining.hail import hail
from ncclcheck.launch.joining.trust import sealed
from ncclcheck.launch.joining.trust.identity import JoinIdentity
from ncclcheck.launch.joining.trust.secret import WITH
from ncclcheck.launch.joining.unrouted import Patience
from ncclcheck.launch.remote.segments import connect
from ncclcheck.probes.facts import KeptBy, Meeting, Resolver, Unread, value_or
from ncclcheck.probes.machine.net import unsent as kept
from ncclcheck.probes.machine.net.addresses import neighbours, source_to, way_to
from ncclcheck.probes.machine.net.resolver import known, resolver

_CONNECT_S = 3.0  # s for a TCP connection: one lost SYN, repeated after 1 s, is survived; chosen
_GREETING_S = 2.0  # s for the first line of node 0 once connected; chosen
_AGAIN_S = (0.2, 2.0)  # s between attempts, growing from the first to the second; chosen
_MISFIT_S = 5.0  # somebody else may hold the port for a moment, so that one misfit is not the end
_REMIND_S = 30.0  # s after which the same reason for waiting is printed again; chosen
_MOST_OTHERS = 16  # other addresses that are tried for node 0; bounds hostile answers
_MOST_ASIDE = 4  # each may take 10 s: it connects, greets, and then says nothing
# Seconds after which node rank 0 is looked for at its other addresses, and between two such looks: as long as a
# missing route is borne (unrouted.PATIENCE_S), and a start by hand on the other machine is late by more.
_ASIDE_AFTER_S, _ASIDE_EVERY_S = 8.0, 15.0
_NAMED_WRONGLY = ("unresolved", "silent", "no_route", "refused", "stranger", "unrouted")


@dataclass(frozen=True)
class NotReached:
    """Why node rank 0 was not reached this time; it may be tried again unless it was turned away."""

    outcome: str
    detail: str
    addresses: list[str] = field(default_factory=list)
    refused: bool = False  # by another ncclcheck that answered
    kept: KeptBy = ""


class StoppedBySignal(Exception):
    """Raised where a signal ended the wait."""


def reach(
    who: JoinIdentity, command: str, wait: float, say: Callable[[str], None], stop: Callable[[], bool]
) -> LeadConnection | Meeting:
    """Try until node rank 0 lets us join, turns us away, or the wait is over. Raises StoppedBySignal."""
    begun = time.monotonic()
    shown, said_at, pause, patience = "", 0.0, _AGAIN_S[0], Patience()
    failure: NotReached | None = None
    aside_at = _ASIDE_AFTER_S
    while True:
        outcome = _try_all(who, command)
        waited = time.monotonic() - begun
        if isinstance(outcome, LeadConnection):
            return outcome
        if outcome.outcome == "misfit" and waited > _MISFIT_S:
            outcome = replace(outcome, outcome="turned_away")
        failure = _more_telling(failure, outcome)
        is_over = waited + pause > wait or outcome.outcome == "turned_away" or patience.is_over(outcome.outcome)
        if is_over or waited > aside_at:
            record, aside_at = _unreached(who, failure, waited), waited + _ASIDE_EVERY_S
            if (by_another := _aside(who, command, outcome, record)) is not None:
                return by_another
            if is_over:
                return record
        if outcome.detail != shown or time.monotonic() - said_at > _REMIND_S:
            say(f"node rank 0 is not reached yet: {outcome.detail}; trying for another {wait - waited:.0f} s")
            shown, said_at = outcome.detail, time.monotonic()
        _sleep(pause, stop)
        pause = min(_AGAIN_S[1], pause * 1.5)


def _aside(who: JoinIdentity, command: str, failure: NotReached, record: Meeting) -> LeadConnection | None:
    """Join at another address of node rank 0, where it greets at one, to say why the endpoint fails."""
    if failure.outcome not in _NAMED_WRONGLY or failure.refused or who.on_loopback:
        return None
    place = join_protocol.place_digest(who.run_id, who.endpoint)
    known = [(elsewhere, who.ports[0]) for elsewhere in record.elsewhere]
    places = [*known, *_that_greet(who, hail(who.ports, place))][:_MOST_ASIDE]
    if places and isinstance(it_came := _try_all(who, command), LeadConnection):
        return it_came
    for address, port in places:
        if isinstance(outcome := _try(who, command, address, port), LeadConnection):
            outcome.unreached = record
            return outcome
    return None


def is_reached(who: JoinIdentity) -> bool:
    """Whether node rank 0 of this run greets at the endpoint now."""
    addresses = resolve(who.host)
    return not isinstance(addresses, NotReached) and any(
        _greets(who, address, who.ports[0]) for address in addresses
    )


def _greets(who: JoinIdentity, address: str, port: int) -> bool:
    with suppress(OSError, ValueError), connect(address, port, _GREETING_S) as there:
        return _greeting(SocketLines(there).line(_GREETING_S)).place == join_protocol.place_digest(
            who.run_id, who.endpoint
        )
    return False


def _more_telling(before: NotReached | None, now: NotReached) -> NotReached:
    """A refusal by ncclcheck itself says why; that nobody listens any more only follows from it."""
    return before if before is not None and before.refused and not now.refused else now


def _sleep(seconds: float, stop: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stop():
            raise StoppedBySignal
        time.sleep(min(0.05, left))


def _unreached(who: JoinIdentity, failure: NotReached, waited: float) -> Meeting:
    entries = value_or(neighbours(), {})
    ways = [way for address in failure.addresses if not isinstance(way := way_to(address), Unread)]
    looks = failure.outcome in _NAMED_WRONGLY and not failure.refused
    named = _resolver(who) if looks else None
    return Meeting(
        endpoint=who.endpoint,
        told_by=who.chosen_by,
        outcome="turned_away" if failure.outcome == "misfit" else failure.outcome,  # type: ignore[arg-type]
        node_rank=who.node_rank,
        detail=failure.detail,
        addresses=failure.addresses,
        neighbours={address: entries[address] for address in failure.addresses if address in entries},
        sources=[value_or(source_to(address), "") for address in failure.addresses],
        seconds=round(waited, 1),
        kept=failure.kept,
        secret=who.secret.kind,
        ways=ways,
        resolver=named,
        elsewhere=_elsewhere(who, failure.addresses, named) if looks else [],
    )


def _resolver(who: JoinIdentity) -> Resolver | None:
    """How this host comes by the addresses of node rank 0, where it was given a name."""
    with suppress(ValueError):
        ipaddress.ip_address(who.host.partition("%")[0])
        return None
    begun = time.monotonic()
    addresses = resolve(who.host)
    seconds = time.monotonic() - begun
    return resolver(who.host, [] if isinstance(addresses, NotReached) else addresses, seconds)


def _elsewhere(who: JoinIdentity, tried: list[str], named: Resolver | None) -> list[str]:
    """Other addresses that this host knows, at which node rank 0 of this run greets."""
    answers = [answer for server in named.servers for answer in server.answers] if named else []
    listed = named.known if named else known()
    others = [other for other in dict.fromkeys([*answers, *listed]) if other not in tried][:_MOST_OTHERS]
    return [address for address, _ in _that_greet(who, [(other, who.ports[0]) for other in others])]


def _that_greet(who: JoinIdentity, places: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those at which node rank 0 of this run greets, or somebody who says the same; all are asked at once."""
    greeting: list[tuple[str, int]] = []

    def look(address: str, port: int) -> None:
        if _greets(who, address, port):
            greeting.append((address, port))

    threads = [threading.Thread(target=look, args=place, daemon=True, name="elsewhere") for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _GREETING_S)
    return [place for place in places if place in greeting]


def _try_all(who: JoinIdentity, command: str) -> LeadConnection | NotReached:
    """Every address on the first port; the next port only where a host answers and no lead is on this one."""
    addresses = resolve(who.host)
    if isinstance(addresses, NotReached):
        return addresses
    first: NotReached | None = None
    for port in who.ports:
        outcome = _try_port(who, command, addresses, port)
        if isinstance(outcome, LeadConnection) or outcome.outcome == "turned_away":
            return outcome
        first = outcome if first is None or (outcome.refused and not first.refused) else first
        if outcome.outcome not in ("refused", "stranger", "misfit"):
            break
    assert first is not None
    return first


_PLAIN = ("unresolved", "unrouted", "silent", "no_route", "refused", "stranger", "misfit", "turned_away")


def _try_port(who: JoinIdentity, command: str, addresses: list[str], port: int) -> LeadConnection | NotReached:
    """The first address on which the lead answers; else the failure that came furthest."""
    failures: list[NotReached] = []
    for address in addresses:
        outcome = _try(who, command, address, port)
        if isinstance(outcome, LeadConnection):
            return outcome
        failures.append(replace(outcome, addresses=addresses))
    return max(failures, key=lambda failure: _PLAIN.index(failure.outcome))


def resolve(host: str) -> list[str] | NotReached:
    """The addresses of a host. The resolver may wait for a dead name server; nobody waits for it."""
    answers: list[list[str] | NotReached] = []
    asking = threading.Thread(target=lambda: answers.append(_ask(host)), daemon=True, name="getaddrinfo")
    asking.start()
    asking.join(2 * _CONNECT_S)
    slow = NotReached("unresolved", f"no name server answers for {host} within {2 * _CONNECT_S:.0f} s")
    return answers[0] if answers else slow


def _ask(host: str) -> list[str] | NotReached:
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return NotReached("unresolved", f"{host} does not resolve: {getattr(error, 'strerror', None) or error}")
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def refused_as_lead(who: JoinIdentity, command: str, ours: Container[str]) -> str:
    """Why another node rank 0 of this run, at the endpoint, turns this one away; "" where none does.

    ours: the nonces with which this node's own meeting point has greeted: a proxy may lead back to it.
    """
    addresses = resolve(who.host)
    for address in [] if isinstance(addresses, NotReached) else addresses:
        outcome = _try(who, command, address, who.ports[0], ours)
        if isinstance(outcome, LeadConnection):  # it waits for another number of nodes: we are none of them
            outcome.close()
        elif outcome.outcome == "turned_away":
            return outcome.detail
    return ""


def _try(
    who: JoinIdentity, command: str, address: str, port: int, ours: Container[str] = ()
) -> LeadConnection | NotReached:
    where = endpoint(address, port)
    unanswered: list[KeptBy] = []
    try:
        connection = connect(address, port, _CONNECT_S, lambda sock: unanswered.append(kept.of_unanswered(sock)))
    except OSError as error:
        by = kept.of_error(error, address) or (unanswered[0] if isinstance(error, TimeoutError) else "")
        failure = _unconnected(where, error)
        if by in ("", "neighbour"):
            return failure
        detail = f"this host itself does not send to {where}" if by == "filter" else failure.detail
        return replace(failure, outcome="unrouted", detail=detail, kept=by)
    try:
        outcome = _join(connection, who, command, where, ours)
    except OSError:
        outcome = NotReached(
            "stranger", f"{where} accepts the connection and says nothing: something else listens there"
        )
    except ValueError as error:
        outcome = NotReached("stranger", f"something else answers at {where}: {error}")
    if isinstance(outcome, NotReached):
        connection.close()
    return outcome


def _unconnected(where: str, error: OSError) -> NotReached:
    if isinstance(error, ConnectionRefusedError):
        return NotReached("refused", f"nothing listens at {where} (connection refused)")
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return NotReached(
            "silent", f"no answer from {where}: packets are dropped in transit, or that machine is down"
        )
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return NotReached("no_route", f"no route to {where}: {words(error)}")
    return NotReached("silent", f"{where} cannot be reached: {words(error)}")


def _join(
    connection: socket.socket, who: JoinIdentity, command: str, where: str, ours: Container[str]
) -> LeadConnection | NotReached:
    """Greeting, join, welcome. Raises OSError where nothing comes, ValueError for what no lead says."""
    lines = SocketLines(connection)
    greeting = _greeting(lines.line(_GREETING_S))
    if greeting.nonce in ours:
        return NotReached("stranger", f"{where} leads back to this node")
    other = _of_others(who, greeting, where)
    if other is not None and other.outcome == "stranger":
        return other
    key, credential = who.secret.offer() if other is None else (b"", "")
    join = join_protocol.Join(
        protocol=join_protocol.PROTOCOL,
        version=__version__,
        command=command,
        nodes=who.nodes,
        node_rank=who.node_rank,
        name=who.name,
        address=connection.getsockname()[0].partition("%")[0],
        nonce=sealed.nonce(),
        secret=who.secret.kind,
        credential=credential,
    )
    hand = join_protocol.Handshake(sealed.run_key(key, who.run_id), greeting, join)
    connection.sendall(join_protocol.encode(structs.replace(join, proof=hand.of_node() if other is None else "")))
    if other is not None:  # it was said who came, so that node rank 0 can say it too
        return other
    answer = join_protocol.from_meeting(lines.line(join_protocol.HANDSHAKE_S))
    if not isinstance(answer, (join_protocol.Welcome, join_protocol.RefusedJoin)):
        raise ValueError("it speaks out of turn")
    if not sealed.same(answer.proof, hand.of_meeting(answer)):
        if isinstance(answer, join_protocol.RefusedJoin):
            return NotReached("misfit", f"turned away at {where}: {answer.reason}", refused=True)
        raise ValueError("it does not know this run's secret")
    if isinstance(answer, join_protocol.RefusedJoin):
        return NotReached("turned_away", answer.reason)
    lines.trust()
    return LeadConnection(connection, answer.name, lines, hand.seals())


def _of_others(who: JoinIdentity, greeting: join_protocol.Greeting, where: str) -> NotReached | None:
    """Why who greets there is not our node rank 0, or one that we cannot understand."""
    if greeting.protocol != join_protocol.PROTOCOL:
        theirs = f"ncclcheck {greeting.version}" + ("" if greeting.version != __version__ else " of another build")
        why = f"{theirs} at {where} does not understand {__version__} here; install the same on all nodes"
        return NotReached("misfit", why, refused=True)
    if greeting.run != join_protocol.run_digest(who.run_id):
        return NotReached("stranger", f"another run meets at {where}: its --rdzv-id differs", refused=True)
    if greeting.secret != who.secret.kind:
        why = f"node rank 0 at {where} comes {WITH[greeting.secret]}, this node {WITH[who.secret.kind]}"
        return NotReached("misfit", why, refused=True)
    return None


def _greeting(line: bytes) -> join_protocol.Greeting:
    try:
        greeting = join_protocol.from_meeting(line)
    except ValueError:
        shown = line[:60].decode(errors="backslashreplace").strip()
        raise ValueError(repr(shown) if shown else "it closes the connection at once") from None
    if not isinstance(greeting, join_protocol.Greeting):
        raise ValueError("it speaks out of turn")
    return greeting
