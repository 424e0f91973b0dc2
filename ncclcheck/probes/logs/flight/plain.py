"""Bytes of a dump -> lists, dicts, texts and numbers. No class is ever looked up, and memory is bounded.

A pickle is a program. Its instructions are read first, and only those that build plain data may occur. C's
unpickler then runs it; left to itself it would set aside 64 GiB for one instruction of five bytes.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

import msgspec

MOST_BYTES = 64 * 2**20  # a full ring of 2000 calls with stacks has a few MB
_MOST_CONTAINERS = 3_000_000  # lists and dicts: chosen, 15 an entry at most; an empty list has 56 bytes in CPython
_RUN = 4096  # instructions that one match takes, which bounds the memory of the matcher: chosen
_AHEAD = 2**20  # what has no peek() is read a few bytes at a time

_LONG = b"|".join(b"\\x8a" + re.escape(bytes([size])) + b".{%d}" % size for size in range(17))
_BUILDING = re.compile(
    rb"(?:[}\])(tuseaN\x85\x86\x87\x88\x89\x94]|\x80[\x02-\x05]|[Kqh].|M..|[Jj].{4}|r..[\x00-\x3f]\x00"
    rb"|[G\x95].{8}|" + _LONG + rb"){1,%d}" % _RUN,
    re.DOTALL,
)
_CALLING = {
    0x63: "GLOBAL", 0x93: "STACK_GLOBAL", 0x52: "REDUCE", 0x69: "INST", 0x6F: "OBJ", 0x62: "BUILD",
    0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x50: "PERSID", 0x51: "BINPERSID",
    0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4",
}  # fmt: skip


class RefusedDump(Exception):
    """The file is not taken, with the reason. hostile: it asks for code to be run. replaced: by a newer one."""

    def __init__(self, why: str, *, hostile: bool = False, replaced: bool = False) -> None:
        super().__init__(why)
        self.hostile = hostile
        self.replaced = replaced


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise RefusedDump(f"it asks for {module[:60]}.{name[:60]}", hostile=True)

    def persistent_load(self, pid: object) -> NoReturn:
        del pid
        raise RefusedDump("it asks for an object from elsewhere", hostile=True)


def plain(raw: bytes) -> Any:
    """The data in a pickle or JSON. Raises RefusedDump."""
    if len(raw) > MOST_BYTES:
        raise RefusedDump(f"it has more than {MOST_BYTES >> 20} MiB")
    if not raw:
        raise RefusedDump("it is empty")
    try:
        return _pickled(raw) if raw[0] == 0x80 else _json(raw)
    except RefusedDump:
        raise
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        raise RefusedDump(f"it is damaged or cut short ({type(error).__name__})") from None


def _json(raw: bytes) -> Any:
    if raw.lstrip()[:1] != b"{":
        raise RefusedDump("it is neither a pickle of protocol 2 to 5 nor a JSON object")
    if raw.count(b"[") + raw.count(b"{") > _MOST_CONTAINERS:
        raise RefusedDump(f"it has more than {_MOST_CONTAINERS} lists and dicts")
    return msgspec.json.decode(raw)


def _pickled(raw: bytes) -> Any:
    if sum(raw.count(opcode) for opcode in b"]})(\x85\x86\x87") > 4 * _MOST_CONTAINERS:
        raise RefusedDump(f"it has more than {4 * _MOST_CONTAINERS} lists, dicts and tuples")
    _proofread(raw)
    return _Plain(io.BufferedReader(io.BytesIO(raw), _AHEAD)).load()


def _proofread(raw: bytes) -> None:
    """Raises RefusedDump for an instruction that builds no plain data."""
    at, end = 0, len(raw)
    while at < end:
        if match := _BUILDING.match(raw, at):
            at = match.end()
            continue
        code = raw[at]
        if code == 0x2E:  # STOP
            return
        if code == 0x58:  # BINUNICODE
            at += 5 + int.from_bytes(raw[at + 1 : at + 5], "little")
        elif code == 0x8C:  # SHORT_BINUNICODE
            at += 2 + int.from_bytes(raw[at + 1 : at + 2], "little")
        else:
            raise _not_plain(raw, at)
    raise RefusedDump(f"it is cut short: {end} bytes and no end")


def _not_plain(raw: bytes, at: int) -> RefusedDump:
    if name := _CALLING.get(raw[at]):
        about = raw[at + 1 : at + 80].split(b"\n", 2)[:2] if name == "GLOBAL" else []
        asked = ".".join(word.decode("ascii", "replace") for word in about)
        return RefusedDump(f"it asks for code to be run: {name} {asked}".rstrip() + f" at byte {at}", hostile=True)
    if len(raw) - at < 25:
        return RefusedDump(f"it is cut short: {len(raw)} bytes and no end")
    return RefusedDump(f"byte {at} is no instruction that a dump has (0x{raw[at]:02x})")
