"""The smallest reader of ELF64 files that finds a section. Any bytes are survived.

Source: elf(5). Only little endian 64-bit files are read: NCCL is built for no other machine.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

ReadAt = Callable[[int, int], bytes]

_HEADER = struct.Struct("<40xQ10xHHH")  # e_shoff, e_shentsize, e_shnum, e_shstrndx
_SECTION = struct.Struct("<I20xQQ24x")  # sh_name, sh_offset, sh_size
_MOST_SECTIONS = 4096  # chosen, shared libraries have some dozens; more is a damaged file
_MOST_NAMES_BYTES = 2**20  # of the table of section names, some 500 in a shared library: chosen


@dataclass(frozen=True)
class Section:
    """Where a section stands in its file."""

    name: str
    offset: int
    size: int


def find_section(read_at: ReadAt, name: str) -> Section | None:
    """The section of this name, or None where there is none or the file is no readable ELF64 file.

    read_at(offset, most) gives the bytes of the file there, fewer at its end, none on an error.
    """
    return next((section for section in _sections(read_at) if section.name == name), None)


def _sections(read_at: ReadAt) -> Iterator[Section]:
    header = read_at(0, 64)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        return
    table, entry, count, names_index = _HEADER.unpack_from(header)
    if entry != _SECTION.size or not names_index < count <= _MOST_SECTIONS:
        return
    raw = read_at(table, entry * count)
    rows = list(_SECTION.iter_unpack(raw[: len(raw) - len(raw) % entry]))
    if names_index >= len(rows):
        return
    names = read_at(rows[names_index][1], min(rows[names_index][2], _MOST_NAMES_BYTES))
    for at, offset, size in rows:
        yield Section(names[at : names.find(b"\0", at)].decode(errors="backslashreplace"), offset, size)
