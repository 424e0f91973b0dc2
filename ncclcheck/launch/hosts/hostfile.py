"""Hosts as people write them: `--hosts a,b:8,user@c`, and the host files of OpenMPI, MPICH and DeepSpeed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ncclcheck.base.errors import UsageError
from ncclcheck.launch.hosts.nodelist import MOST_NODES
from ncclcheck.probes.machine import files

_MOST_BYTES = 4 * 2**20  # bytes: 20,000 names fit several times; bounds the input
_MOST_SLOTS = 1024  # ranks on a host: more than any machine has GPUs or cores for; bounds the input
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}", re.ASCII)
_ENTRY = re.compile(
    r"(?:(?P<user>.*)@)?(?:\[(?P<ip6>[^\]]*)\]|(?P<host>[^:\[\]]*))(?::(?P<slots>[^:]*))?", re.DOTALL
)
_SLOTS = ("slots", "count", "cpu", "cpus")
_LIMITS = ("max_slots", "max-slots", "slots_max", "slots-max")


@dataclass(frozen=True)
class HostLine:
    """One line of a host file. target: what ssh is given; name: the host alone, the node's name in reports."""

    target: str
    name: str
    slots: int | None = None


def from_option(text: str, option: str = "--hosts") -> tuple[HostLine, ...]:
    """`a,b:8,user@c,[fe80::1]:4`. Raises UsageError."""
    return _collect((option, part.strip()) for part in text.split(","))


def from_file(path: str) -> tuple[HostLine, ...]:
    """A host file, one host a line. Raises UsageError that names file and line."""
    try:
        content = files.content(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"--hostfile: {path} cannot be read: {error.strerror or error}") from None
    return from_lines(content.decode(errors="backslashreplace"), path)


def from_lines(content: str, path: str) -> tuple[HostLine, ...]:
    """The content of a host file; blank lines and what follows a # are nothing. Raises UsageError."""
    lines = enumerate(re.split(r"\r\n|\r|\n", content), 1)
    entries = ((f"{path}, line {number}", line.split("#", 1)[0].strip()) for number, line in lines)
    hosts = _collect((where, line) for where, line in entries if line)
    if not hosts:
        raise UsageError(f"--hostfile: {path} names no host")
    return hosts


def _collect(entries: Iterable[tuple[str, str]]) -> tuple[HostLine, ...]:
    """All hosts, each once."""
    hosts: dict[str, HostLine] = {}
    for where, entry in entries:
        host = _host(entry, where)
        if host.name in hosts:
            raise UsageError(f"{where}: {host.name} stands there twice; write a host once, with slots=N")
        if len(hosts) == MOST_NODES:
            raise UsageError(f"{where}: more than {MOST_NODES:,} hosts")
        hosts[host.name] = host
    return tuple(hosts.values())


def _host(entry: str, where: str) -> HostLine:
    first, *words = re.sub(r"\s*=\s*", "=", entry).split() or [""]
    match = _ENTRY.fullmatch(first)
    if match is None:
        raise UsageError(f"{where}: {first[:80]!r} is no host; an IPv6 address stands in brackets: [fe80::1]")
    name = _address(match["ip6"], where) if match["ip6"] is not None else match["host"]
    user = match["user"]
    if match["ip6"] is None and not _HOST.fullmatch(name):
        raise UsageError(f"{where}: {name[:80]!r} is no host name; allowed are letters, digits, '.', '-' and '_'")
    if user is not None and not _USER.fullmatch(user):
        raise UsageError(f"{where}: {user[:80]!r} is no user name that ssh takes; set User in ~/.ssh/config")
    slots = _after_colon(match["slots"], where)
    for count in _keywords(words, where):
        slots = count
    return HostLine(target=name if user is None else f"{user}@{name}", name=name, slots=slots)


def _address(text: str, where: str) -> str:
    address, _, zone = text.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        raise UsageError(f"{where}: [{text[:80]}] is no IPv6 address") from None
    if zone and not _HOST.fullmatch(zone):
        raise UsageError(f"{where}: {zone[:80]!r} is no interface name")
    return text


def _after_colon(text: str | None, where: str) -> int | None:
    """`host:8` are slots. 22 and what is too large for slots was meant as a port."""
    if text is None:
        return None
    if text.isdecimal() and text.isascii() and (int(text[:9]) > _MOST_SLOTS or text == "22"):
        raise UsageError(
            f"{where}: ':{text[:9]}' looks like a port, and would be read as slots; "
            "put the port into ~/.ssh/config (Host ..., Port ...), or write slots=N"
        )
    return _count("slots", text, where)


def _keywords(words: list[str], where: str) -> Iterator[int]:
    """The slots out of `slots=8 max_slots=16`; a limit is read and not used."""
    for word in words:
        key, _, value = word.partition("=")
        if key in _SLOTS:
            yield _count(key, value, where)
        elif key in _LIMITS:
            _count(key, value, where)
        else:
            raise UsageError(
                f"{where}: {word[:80]!r} is not understood; after a host are allowed slots=N, max_slots=N"
            )


def _count(key: str, value: str, where: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 10 and 1 <= int(value) <= _MOST_SLOTS):
        raise UsageError(f"{where}: {key} is {value[:80]!r}; allowed are 1 to {_MOST_SLOTS}")
    return int(value)
