"""How this host comes by the addresses of a name: what /etc/hosts says, and who of its name servers answers."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import struct
import threading
from collections.abc import Iterator

from ncclcheck.probes.facts import NameServer, Resolver, Unread
from ncclcheck.probes.machine.access import Machine

# Seconds that a server has for an answer: resolv.conf(5) gives 5; those of a site answer in milliseconds, and one
# that has to ask further is asked twice.
_ANSWER_S = 1.5
_MOST_SERVERS = 3  # MAXNS of resolv.conf(5)
_MOST_KNOWN = 16  # other machines of /etc/hosts that are told: chosen, a few show whose names they are
_A, _AAAA = 1, 28  # types of a record. Source: RFC 1035, RFC 3596
_HEADER = struct.Struct(">HHHHHH")
_RECURSE = 0x0100  # RD. Source: RFC 1035, 4.1.1


def resolver(name: str, addresses: list[str], seconds: float) -> Resolver:
    """For a name that getaddrinfo(3) gave these addresses for, after so many seconds. Never raises."""
    machine = Machine()
    lines = _of_hosts(machine)
    own = [line for line in lines if name.lower() in map(str.lower, line[1:])]
    files = list(dict.fromkeys(line[0] for line in own))
    beside = [alias for line in lines if line and line not in own and line[0] in addresses for alias in line[1:]]
    uses = [line for line in _text(machine, "/etc/nsswitch.conf").splitlines() if line.startswith("hosts:")]
    dns = not uses or any(word in uses[0] for word in ("dns", "resolve"))
    return Resolver(
        name=name,
        known=_known(lines),
        seconds=round(seconds, 2),
        files=files,
        beside=list(dict.fromkeys(beside)),
        order=" ".join(uses[0].split()[1:]) if uses else "",
        servers=_asked(name, _text(machine, "/etc/resolv.conf")) if dns else [],
    )


def known() -> dict[str, list[str]]:
    """Other machines in /etc/hosts, a few, with their names. Never raises."""
    return _known(_of_hosts(Machine()))


def _of_hosts(machine: Machine) -> list[list[str]]:
    return [line.partition("#")[0].split() for line in _text(machine, "/etc/hosts").splitlines()]


def _known(lines: list[list[str]]) -> dict[str, list[str]]:
    hosts: dict[str, list[str]] = {}
    for line in lines:
        if line[1:] and _leads_out(line[0]) and (line[0] in hosts or len(hosts) < _MOST_KNOWN):
            hosts.setdefault(line[0], []).extend(line[1:4])
    return hosts


def _leads_out(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified)


def _text(machine: Machine, path: str) -> str:
    text = machine.read(path)
    return "" if isinstance(text, Unread) else text


def _asked(name: str, conf: str) -> list[NameServer]:
    """What each name server of resolv.conf answers for a name; all are asked at once."""
    lines = [line.split() for line in conf.splitlines()]
    servers = [line[1] for line in lines if line[:1] == ["nameserver"] and len(line) > 1][:_MOST_SERVERS]
    search = next((line[1:3] for line in reversed(lines) if line[:1] in (["search"], ["domain"])), [])
    names = [name] if "." in name else [*(f"{name}.{domain}" for domain in search), name]
    answered: dict[str, NameServer] = {}
    threads = [threading.Thread(target=_ask, args=(server, names, answered), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _ANSWER_S)
    return [answered.get(server, NameServer(address=server, answered=False)) for server in servers]


def _ask(server: str, names: list[str], servers: dict[str, NameServer]) -> None:
    """One server, twice: a packet may be lost."""
    for _ in range(2):
        try:
            answers = _answers(server, names)
        except (OSError, ValueError):
            continue
        servers[server] = NameServer(address=server, answered=True, answers=answers)
        return


def _answers(server: str, names: list[str]) -> list[str]:
    """The addresses that it gives. Raises OSError where it does not answer."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_ANSWER_S / 2)
        sock.connect((server, 53))
        for name in names:
            answers = [answer for kind in (_A, _AAAA) for answer in _one(sock, name, kind)]
            if answers:
                return answers
    return []


def _one(sock: socket.socket, name: str, kind: int) -> list[str]:
    number = secrets.randbelow(2**16)
    labels = b"".join(bytes([len(label)]) + label for label in name.encode("idna").rstrip(b".").split(b"."))
    sock.send(_HEADER.pack(number, _RECURSE, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, kind, 1))
    for _ in range(8):  # late answers to what was asked before
        data = sock.recv(4096)
        if len(data) >= _HEADER.size and _HEADER.unpack_from(data)[0] == number:
            return list(_addresses(data, kind))
    return []


def _addresses(data: bytes, kind: int) -> Iterator[str]:
    """The records of a kind in an answer, which may be cut off or no answer at all."""
    _, _, questions, answers, _, _ = _HEADER.unpack_from(data)
    at = _HEADER.size
    for _ in range(min(questions, 4)):
        at = _after_name(data, at) + 4
    for _ in range(min(answers, 64)):
        at = _after_name(data, at)
        if at + 10 > len(data):
            return
        of_kind, _, _, length = struct.unpack_from(">HHIH", data, at)
        value, at = data[at + 10 : at + 10 + length], at + 10 + length
        if of_kind == kind and len(value) == {_A: 4, _AAAA: 16}[kind]:
            yield str(ipaddress.ip_address(value))


def _after_name(data: bytes, at: int) -> int:
    """Behind a name, which ends with an empty label or a pointer."""
    while at < len(data):
        length = data[at]
        if length >= 0xC0:
            return at + 2
        if length == 0:
            return at + 1
        at += 1 + length
    return at
