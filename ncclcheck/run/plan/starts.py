"""How ranks are started and find each other: --start, --init and --init-method -> one wish. Pure."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import get_args

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import InitKind, Start
from ncclcheck.probes.facts.run.init import host_and_port

STARTS: tuple[Start, ...] = get_args(Start)
INITS: tuple[InitKind, ...] = get_args(InitKind)
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}|[0-9a-fA-F:.]+(?:%[\w.-]{1,15})?")
_FORMS = "env://, tcp://HOST:PORT or file:///PATH"


@dataclass(frozen=True)
class JobStart:
    """start: what starts the ranks of a node. init: how they find each other; url: as the user's script has it.

    An empty url of tcp or file is chosen when the nodes are known.
    """

    start: Start = "torchrun"
    init: InitKind = "env"
    url: str = ""


def read(start: str | None, init: str | None, url: str | None) -> JobStart:
    """The three options, each None where it was not given. Raises UsageError.

    Without --start, tcp:// and file:// are started by spawn: scripts under torchrun have env://, and under it
    tcp:// opens no store (INI007).
    """
    kind = _kind(url) if url is not None else None
    if init is not None and kind is not None and init != kind:
        raise UsageError(f"--init {init} and --init-method {url}: they name two methods; drop --init")
    wanted: InitKind = kind or init or "env"  # type: ignore[assignment]
    begun: Start = start or ("torchrun" if wanted == "env" else "spawn")  # type: ignore[assignment]
    return JobStart(start=begun, init=wanted, url="" if url is None or kind == "env" else url)


def _kind(url: str) -> InitKind:
    """The kind of a URL that torch understands as it was meant. Raises UsageError."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in INITS:
        raise UsageError(f"--init-method: {url!r} is no init method; allowed are {_FORMS}")
    if "?" in rest or "#" in rest:
        raise UsageError(f"--init-method: {url!r}: rank and world size are given by the launcher, not in the URL")
    if scheme == "env":
        if rest:
            raise UsageError(f"--init-method: {url!r}: env:// takes nothing; allowed are {_FORMS}")
        return "env"
    return _tcp(url, rest) if scheme == "tcp" else _file(url, rest)


def _tcp(url: str, rest: str) -> InitKind:
    try:
        host, _ = host_and_port(rest)
    except ValueError as error:
        raise UsageError(f"--init-method: {url}: {error}; allowed is tcp://HOST:PORT") from None
    if not _HOST.fullmatch(host):
        raise UsageError(f"--init-method: {url!r} has no host name or address; allowed is tcp://HOST:PORT")
    return "tcp"


def _file(url: str, rest: str) -> InitKind:
    """torch takes what stands before the third slash for a host, and goes on with the rest."""
    host, slash, path = rest.partition("/")
    if not slash:
        raise UsageError(f"--init-method: {url!r} names no path; write file:///{host or 'PATH'}")
    if host:
        raise UsageError(
            f"--init-method: {url!r}: torch takes {host!r} for a host and would use /{path}; write file:///{host}/{path}"
        )
    if "\0" in path or "\n" in path or posixpath.normpath(f"/{path}") != f"/{path}" or path in ("", "."):
        raise UsageError(f"--init-method: {url!r} is no plain path of a file; allowed is file:///PATH")
    return "file"
