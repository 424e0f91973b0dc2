"""The other nodes' side of a join: reach node rank 0, pass on what both sides say, end with its outcome."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ncclcheck import __version__
from ncclcheck.launch import meet
from ncclcheck.launch.connection import Connection, Lines, words
from ncclcheck.launch.identity import Identity
from ncclcheck.launch.told import endpoint
from ncclcheck.probes.facts import Meeting

_CONNECT_S = 3.0
_GREETING_S = 2.0
_AGAIN_S = (0.2, 2.0)
_REMIND_S = 30.0


@dataclass(frozen=True)
class Failure:
    """Why node rank 0 was not reached this time; it may be tried again unless it was turned away."""

    outcome: str
    detail: str
    addresses: list[str] = field(default_factory=list)


class Stopped(Exception):
    """A signal ended the wait."""


def reach(
    who: Identity, command: str, wait: float, say: Callable[[str], None], stop: Callable[[], bool]
) -> Connection | Meeting:
    """Try until node rank 0 lets us join, turns us away, or the wait is over. Raises Stopped."""
    begun = time.monotonic()
    shown, said_at, pause = "", 0.0, _AGAIN_S[0]
    while True:
        found = _try_all(who, command)
        waited = time.monotonic() - begun
        if isinstance(found, Connection):
            return found
        if waited + pause > wait or found.outcome == "turned_away":
            return _unreached(who, found, waited)
        if found.detail != shown or time.monotonic() - said_at > _REMIND_S:
            say(f"node rank 0 is not reached yet: {found.detail}; trying for another {wait - waited:.0f} s")
            shown, said_at = found.detail, time.monotonic()
        _sleep(pause, stop)
        pause = min(_AGAIN_S[1], pause * 1.5)


def _sleep(seconds: float, stop: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stop():
            raise Stopped
        time.sleep(min(0.05, left))


def _unreached(who: Identity, failure: Failure, waited: float) -> Meeting:
    return Meeting(
        endpoint=who.endpoint,
        told_by=who.chosen_by,
        outcome=failure.outcome,  # type: ignore[arg-type]
        node_rank=who.node_rank,
        detail=failure.detail,
        addresses=failure.addresses,
        seconds=round(waited, 1),
    )


def _try_all(who: Identity, command: str) -> Connection | Failure:
    """Every address on the first port; the next port only where a host answers and no lead is on this one."""
    addresses = resolve(who.host)
    if isinstance(addresses, Failure):
        return addresses
    first: Failure | None = None
    for port in who.ports:
        found = _try_port(who, command, addresses, port)
        if isinstance(found, Connection) or found.outcome == "turned_away":
            return found
        first = first or found
        if found.outcome not in ("refused", "stranger"):
            break
    assert first is not None
    return first


_PLAIN = ("unresolved", "silent", "no_route", "refused", "stranger", "turned_away")


def _try_port(who: Identity, command: str, addresses: list[str], port: int) -> Connection | Failure:
    """The first address on which the lead answers; else the failure that came furthest."""
    failures: list[Failure] = []
    for address in addresses:
        found = _try(who, command, address, port)
        if isinstance(found, Connection):
            return found
        failures.append(Failure(found.outcome, found.detail, addresses))
    return max(failures, key=lambda failure: _PLAIN.index(failure.outcome))


def resolve(host: str) -> list[str] | Failure:
    """The addresses of a host. The resolver may wait for a dead name server; nobody waits for it."""
    answers: list[list[str] | Failure] = []
    asking = threading.Thread(target=lambda: answers.append(_ask(host)), daemon=True, name="getaddrinfo")
    asking.start()
    asking.join(2 * _CONNECT_S)
    slow = Failure("unresolved", f"no name server answers for {host} within {2 * _CONNECT_S:.0f} s")
    return answers[0] if answers else slow


def _ask(host: str) -> list[str] | Failure:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Failure("unresolved", f"{host} does not resolve: {getattr(error, 'strerror', None) or error}")
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _try(who: Identity, command: str, address: str, port: int) -> Connection | Failure:
    where = endpoint(address, port)
    try:
        connection = socket.create_connection((address, port), _CONNECT_S)
    except OSError as error:
        return _unconnected(where, error)
    try:
        found = _join(connection, who, command, where)
    except OSError:
        found = Failure(
            "stranger", f"{where} accepts the connection and says nothing: something else listens there"
        )
    except ValueError as error:
        found = Failure("stranger", f"something else answers at {where}: {error}")
    if isinstance(found, Failure):
        connection.close()
    return found


def _unconnected(where: str, error: OSError) -> Failure:
    if isinstance(error, ConnectionRefusedError):
        return Failure("refused", f"nothing listens at {where} (connection refused)")
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return Failure(
            "silent", f"no answer from {where}: packets are dropped on the way, or that machine is down"
        )
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return Failure("no_route", f"no way to {where}: {words(error)}")
    return Failure("silent", f"{where} cannot be reached: {words(error)}")


def _join(connection: socket.socket, who: Identity, command: str, where: str) -> Connection | Failure:
    """Greeting, join, welcome. Raises OSError where nothing comes, ValueError for what no lead says."""
    said = Lines(connection)
    greeting = _greeting(said.line(_GREETING_S))
    join = meet.Join(
        protocol=meet.PROTOCOL,
        version=__version__,
        command=command,
        nodes=who.nodes,
        node_rank=who.node_rank,
        name=who.name,
        address=connection.getsockname()[0].partition("%")[0],
        nonce=meet.nonce(),
        proof=meet.proof_of_node(who.run_id, greeting, who.nodes, who.node_rank),
    )
    connection.sendall(meet.encode(join))
    answer = meet.from_meeting(said.line(meet.HANDSHAKE_S))
    if isinstance(answer, meet.Refused):
        foreign = answer.kind == "other run"
        return Failure(
            "stranger" if foreign else "turned_away", f"{answer.reason}" + (f" ({where})" if foreign else "")
        )
    if not isinstance(answer, meet.Welcome) or not meet.same(
        answer.proof, meet.proof_of_meeting(who.run_id, join)
    ):
        raise ValueError("it does not know this run's --rdzv-id")
    said.trust()
    return Connection(connection, answer.name, said)


def _greeting(line: bytes) -> meet.Greeting:
    try:
        found = meet.from_meeting(line)
    except ValueError:
        shown = line[:60].decode(errors="backslashreplace").strip()
        raise ValueError(repr(shown) if shown else "it closes the connection at once") from None
    if not isinstance(found, meet.Greeting):
        raise ValueError("it speaks out of turn")
    return found
