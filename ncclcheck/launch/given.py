"""What options and variables say in one place: endpoints, counts and numbers, read with care."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder

from ncclcheck.base.errors import UsageError
from ncclcheck.run.plan.options import Options

Env = Mapping[str, str]

TORCHRUN_PORT = 29400  # what torchrun takes where an endpoint names no port
_NUMBERS = re.compile(r"[\d.]+")
_ENDPOINT = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^:\s\[\]]+)(?::(?P<port>\d{1,5}))?")


def endpoint(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """localhost, 127.0.0.0/8 and ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class GivenPlace:
    """Where node 0 is, and what says so."""

    host: str
    port: int
    source: str


def endpoint_of(options: Options, env: Env) -> GivenPlace | None:
    """HOST:PORT that was typed, else torchrun's, else MASTER_ADDR and MASTER_PORT."""
    if options.rdzv_endpoint is not None:
        return _parsed(options.rdzv_endpoint, "--rdzv-endpoint")
    if env.get("PET_RDZV_ENDPOINT"):
        return _parsed(env["PET_RDZV_ENDPOINT"], "PET_RDZV_ENDPOINT")
    for prefix in ("", "PET_"):
        if env.get(f"{prefix}MASTER_ADDR"):
            read = NumberReader(env, f"{prefix}MASTER_ADDR is set")
            return GivenPlace(
                host_of(env[f"{prefix}MASTER_ADDR"], f"{prefix}MASTER_ADDR"),
                read.number(f"{prefix}MASTER_PORT", 1, 65535),
                f"{prefix}MASTER_ADDR",
            )
    return None


def _parsed(text: str, source: str) -> GivenPlace:
    match = _ENDPOINT.fullmatch(text)
    port = int(match["port"] or TORCHRUN_PORT) if match else 0
    if match is None or not 1 <= port <= 65535:
        raise UsageError(f"{source}: {text!r} is not HOST:PORT with a port from 1 to 65535")
    return GivenPlace(host_of(match["host"].strip("[]"), source), port, source)


def host_of(text: str, source: str) -> str:
    """A name or an address, nothing that a shell or a resolver could take for something else."""
    bare = text.strip().strip("[]")
    if not re.fullmatch(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})|[0-9a-fA-F:.]+(?:%[A-Za-z0-9_.-]+)?", bare):
        raise UsageError(f"{source}: {text!r} is no host name or address")
    if _NUMBERS.fullmatch(bare) and not _is_address(bare):
        raise UsageError(
            f"{source}: {text!r} is no address of four numbers from 0 to 255 without leading zeros; a resolver "
            "would take it for another one (010 is octal, 8)"
        )
    return bare


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def tasks_of(text: str, node: int) -> int | None:
    """`8(x2),4` -> how many tasks the node with this number has."""
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if match is None:
            return None
        if node < int(match[2] or 1):
            return int(match[1])
        node -= int(match[2] or 1)
    return None


def count(text: str, name: str) -> int | None:
    """`4`, or torchrun's `4:4`; None for nothing and for a range, which leaves the number open."""
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", text)
    if match is None or int(match[1]) < 1:
        raise UsageError(f"{name}: {text!r} is not a number of nodes; allowed are N and MIN:MAX")
    return int(match[1]) if match[2] in (None, match[1]) else None


class NumberReader:
    """Variables as numbers; what is missing or wrong is named with the reason why it is needed."""

    def __init__(self, env: Env, why: str) -> None:
        self._env, self._why = env, why

    def text(self, name: str) -> str:
        """A variable that must be there."""
        if not self._env.get(name):
            raise UsageError(f"{name}: is not set, though {self._why}")
        return self._env[name]

    def number(self, name: str, low: int, high: int = 1_000_000) -> int:
        """A number within its range."""
        text = self.text(name)
        if not re.fullmatch(r"\d{1,9}", text) or not low <= int(text) <= high:
            raise UsageError(f"{name}: {text!r} is out of range; allowed are {low} to {high}")
        return int(text)

    @staticmethod
    def shared(name: str, world: int, size: int) -> int:
        """How many nodes: the world in equal shares."""
        if world % size:
            raise UsageError(f"{name}: {world} processes do not share out evenly, {size} on each node")
        return world // size


def working_directory() -> str:
    """One that was deleted has no modules."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def must_be_here(option: str, reference: str) -> None:
    """Look for the user's file or module, but run nothing of it. Raises UsageError."""
    place, colon, _ = reference.partition(":")
    if not colon:
        return
    if place.endswith(".py"):
        if not os.path.isfile(place):
            raise UsageError(f"{option} {reference}: there is no file {place}")
    elif PathFinder.find_spec(place.partition(".")[0], [os.getcwd(), *sys.path]) is None:
        raise UsageError(
            f"{option} {reference}: there is no module {place}, neither here nor among those installed"
        )
