"""The variables that NCCL, torch and gloo read: our reference list, and how each parses its values."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec
from msgspec import Struct

from ncclcheck.probes.facts import Node, Unread, at, variables
from ncclcheck.reports.judgement.derived import derived

Version = tuple[int, int, int]
Mismatch = Literal["must-match", "risky", "harmless", "per-node-ok"]


# Who gives a variable to every login on a node.
STARTUP_FILES = (
    "/etc/environment /etc/bash.bashrc /etc/bashrc /etc/profile.d /etc/ssh/sshd_config ~/.bashrc ~/.profile "
    "~/.ssh/environment"
)
IFNAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class Known(Struct, frozen=True, kw_only=True):
    """One variable of the reference list.

    type: how its reader parses it. int: strtoll with base 0. flag: an int that also takes true and false
    since 2.30.7. word: one of `words` in any case. exact: one of `words` in this case, or a digit. list: words
    with commas. torch_bool, torch_int: torch raises for anything else. since, until: first and last version
    that reads it (of NCCL, or of torch). instead: what replaces it.
    """

    name: str
    component: Literal["nccl", "torch", "cuda", "plugin"]
    type: Literal["int", "flag", "word", "exact", "list", "text", "torch_bool", "torch_int"]
    words: list[str] = []
    allowed: str = ""
    low: int | None = None
    high: int | None = None
    since: str = ""
    until: str = ""
    default: str = ""
    mismatch: Mismatch
    debugging: bool = False
    undocumented: bool = False
    deprecated: str = ""
    instead: str = ""
    effect: str = ""


@cache
def reference() -> Mapping[str, Known]:
    """The list by name; read once, when it is first asked for."""
    data = importlib.resources.files("ncclcheck.reports").joinpath("variables.json").read_bytes()
    return {entry.name: entry for entry in msgspec.json.decode(data, type=list[Known])}


@dataclass(frozen=True)
class ValueInForce:
    """A value in force and where it comes from: "environment", or a file with its line."""

    value: str
    source: str


@derived
def effective(node: Node) -> Mapping[str, ValueInForce]:
    """What NCCL sees on a node: the environment, then the nccl.conf files in their order; the first wins."""
    settings = {name: ValueInForce(value, "environment") for name, value in variables(node).items()}
    files = at(node, "nccl.conf_files")
    for file in [] if isinstance(files, Unread) else files:
        for line in [] if isinstance(file.lines, Unread) else file.lines:
            if line.name.startswith("NCCL_"):
                settings.setdefault(line.name, ValueInForce(line.value, f"{file.path}:{line.line}"))
    return settings


@derived
def values(node: Node) -> Mapping[str, str]:
    """`effective` without the sources: what the choice of interfaces takes."""
    return {name: setting.value for name, setting in effective(node).items()}


def assigned(name: str, value: str) -> str:
    """`NAME=value`, in quotes where blanks at an end would not be seen."""
    return f"{name}={value!r}" if value != value.strip() else f"{name}={value}"


def blank_end(value: str) -> str:
    """`ends with a space`; empty where no blank stands at either end. Neither NCCL nor torch takes any off."""
    kinds = {" ": "a space", "\t": "a tab", "\n": "a newline", "\r": "a carriage return"}
    ends = [("starts", value[:1]), ("ends", value[-1:])]
    return " and ".join(f"{how} with {kinds.get(end, 'a blank')}" for how, end in ends if end.isspace())


def as_version(text: object) -> Version | None:
    """ "2.30.7" as (2, 30, 7); None for an Unread or what names no version."""
    match = re.match(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", text) if isinstance(text, str) else None
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


@derived
def nccl_version(node: Node) -> Version | None:
    """The version of the libnccl that torch would load on this node."""
    return as_version(at(node, "nccl.loaded.version"))


@dataclass(frozen=True)
class Parsed:
    """How a value is read. value: what it becomes (None: the default). complaint: why that may surprise.

    raises: the reader ends the process instead. mild: it is read as written, only outside of what is documented.
    """

    value: int | str | None
    complaint: str = ""
    raises: bool = False
    mild: bool = False


# What is held against a name, a path or a word as it stands; a blank at the end of others is passed over or meant.
_TAKEN_WHOLE = re.compile(r"\w+_(IFNAME|HCA|FILE|PLUGIN|LIB|PATH|HOSTID|SUBSYS)|NCCL_NET")
_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_LISTS_ARE_REFUSED_SINCE: Version = (2, 24, 3)  # NCCL, for names that it does not know in NCCL_ALGO and NCCL_PROTO
_OPERATIONS = {"allgather", "allreduce", "broadcast", "reduce", "reducescatter"}
_TRUE = {"y", "yes", "1", "t", "true"}
_FALSE = {"n", "no", "0", "f", "false"}


def parse_int(text: str) -> Parsed:
    """strtoll with base 0: hex, octal; a word is 0, what follows the digits is lost, overflow is the default."""
    if not text:
        return Parsed(None)
    match = _INTEGER.match(text)
    if match is None:
        return Parsed(0, "is not a number, so it means 0")
    digits = match[2]
    if len(digits) > 40:
        return Parsed(None, "is too large and is replaced by the default")
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    value = int(digits, base) * (-1 if match[1] == "-" else 1)
    if not -(2**63) <= value < 2**63:
        return Parsed(None, "is too large and is replaced by the default")
    if rest := text[match.end() :].strip():
        return Parsed(value, f"is read as {value}: NCCL ignores {rest!r} after the digits")
    if base == 8 and digits.strip("0") and int(digits) != int(digits, 8):
        return Parsed(value, f"is read as {value}: a leading 0 makes it octal")
    return Parsed(value)


def parse(known: Known, text: str, version: Version | None = None) -> Parsed:
    """How the reader of this variable reads this value."""
    if known.type in ("torch_bool", "torch_int"):
        return _parse_torch(known, text)
    if (
        known.type == "flag"
        and text.lower() in ("t", "true", "f", "false")
        and (version or (99, 0, 0)) >= (2, 30, 7)
    ):
        return Parsed(int(text.lower() in ("t", "true")))
    if known.type in ("int", "flag"):
        return _in_range(known, parse_int(text))
    if known.type == "word":
        allowed = text.upper() in (word.upper() for word in known.words)
        return Parsed(text.upper()) if allowed or not text else Parsed(None, _not_one_of(known))
    if known.type == "exact":
        return _parse_exact(known, text)
    if known.type == "list":
        return _parse_list(known, text, version or (99, 0, 0))
    return _parse_text(known, text)


def _parse_text(known: Known, text: str) -> Parsed:
    if known.name == "NCCL_NET" and not text:
        return Parsed(None, "is empty, and NCCL looks for a network of that very name", raises=True)
    if _TAKEN_WHOLE.fullmatch(known.name) and (ends := blank_end(text)):
        return Parsed(text, f"{ends}, which is taken for a part of it")
    return Parsed(text)


def _not_one_of(known: Known) -> str:
    ends = "prints nothing" if known.name == "NCCL_DEBUG" else "is ignored"
    return f"is not one of {', '.join(known.words)} and {ends}"


def _in_range(known: Known, parsed: Parsed) -> Parsed:
    """A documented range is only a hint: NCCL takes other numbers as they are; -1 and -2 often mean automatic."""
    value = parsed.value
    if parsed.complaint or not isinstance(value, int) or value in (-1, -2) or known.high is None:
        return parsed
    inside = (known.low or 0) <= value <= known.high
    return (
        parsed if inside else Parsed(value, f"is outside of the documented {known.low} to {known.high}", mild=True)
    )


def _parse_exact(known: Known, text: str) -> Parsed:
    levels = "SYS" in known.words
    if text in known.words or not text or (levels and text[:1].isdigit()):
        return Parsed(text)
    near = next((word for word in known.words if word == text.strip().upper()), "")
    return Parsed(None, _not_one_of(known) + (f" (write {near}, exactly so)" if near else ""))


def _refused_list(known: Known, text: str) -> str:
    """Why NCCL refuses `[^]word,...;operation:[^]word,...`, where an operation may be left out first only."""
    taken = {word.lower() for word in known.words}
    for number, entry in enumerate(text.split(";")):
        parts = [part for part in entry.split(":") if part]
        if entry and not parts:
            return "has an entry of colons alone"
        if number and len(parts) == 1:
            return f"has {parts[0]!r} without an operation, which only the first entry may have"
        if len(parts) > 1 and parts[0].lower() not in _OPERATIONS:
            return f"names the operation {parts[0]}, which is none of {', '.join(sorted(_OPERATIONS))}"
        words = parts[-1].removeprefix("^").split(",") if parts else []
        wrong = [word for word in words if word and word.lower() not in taken]
        if wrong:
            return f"names {', '.join(map(_shown, wrong))}, which is none of {', '.join(known.words)}"
    return ""


def _shown(word: str) -> str:
    return word if word == word.strip() else repr(word)


def _parse_list(known: Known, text: str, version: Version) -> Parsed:
    if version >= _LISTS_ARE_REFUSED_SINCE:
        refused = _refused_list(known, text)
        return Parsed(None, refused, raises=True) if refused else Parsed(text)
    wanted = {word.lower() for word in known.words}
    tokens = [part.rpartition(":")[2].strip().lstrip("^").lower() for part in re.split("[,;]", text)]
    wrong = [token for token in tokens if token and token not in wanted]
    return (
        Parsed(None, f"names {', '.join(wrong)}, which is none of {', '.join(known.words)}")
        if wrong
        else Parsed(text)
    )


def _parse_torch(known: Known, text: str) -> Parsed:
    if known.type == "torch_int":
        match = re.match(r"\s*([+-]?)0*(\d{1,10})(?!\d)", text, re.ASCII)
        value = int(match[1] + match[2]) if match else 2**31
        ends = Parsed(None, "is not a number that torch accepts: it raises an exception", raises=True)
        return Parsed(value) if -(2**31) <= value < 2**31 else ends
    if text.lower() in _TRUE | _FALSE:
        return Parsed(int(text.lower() in _TRUE))
    return Parsed(
        None, "is none of 1, true, yes, y, t, 0, false, no, n, f: torch raises an exception", raises=True
    )


def parsed_value(name: str, text: str | None, version: Version | None = None) -> int | str | None:
    """What a variable amounts to, for comparing nodes: an unset one and one at its default are the same."""
    known = reference().get(name)
    if known is None:
        return text
    default = int(known.default) if re.fullmatch(r"-?\d+", known.default) else known.default or None
    if text is None:
        return default
    value = parse(known, text, version).value
    return default if value is None else value
