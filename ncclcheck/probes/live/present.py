"""The environment that a process has now: /proc/PID/environ holds the one that it was started with.

A part of the streamed probe: standard library only, Python 3.6. What a program sets itself, as the processes of
torch.multiprocessing.spawn and Ray's workers set RANK, stands in its own memory alone. It is read as a debugger
does by `p environ`: the pointer of that name, the pointers behind it, and of the strings those that are asked for.
That needs the right to trace the process; nothing is stopped or written.
"""

import os
import struct
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ncclcheck.probes.live.machine.proc import Proc

_MOST_POINTERS = 4096  # variables
_STRING = 512  # bytes of a variable; those that are asked for are shorter
_MOST_TABLE = 2**22  # bytes of an ELF file's table of symbols, or of its strings: glibc's have 0.1 MB
_DYNSYM = 11  # sh_type, elf(5)
_NAMES = (b"environ", b"__environ", b"_environ")

_known: Dict[Tuple[int, int], Optional[Tuple[int, bool]]] = {}


def environment(proc: Proc, pid: str, names: Tuple[str, ...]) -> Dict[str, str]:
    """Those of these variables that it has now; empty where its memory may not be read."""
    try:
        memory = os.open(os.path.join(proc.root, pid, "mem"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        return dict(_variables(memory, _places(proc, pid), names))
    except (OSError, ValueError, struct.error, OverflowError):
        return {}
    finally:
        os.close(memory)


def _variables(memory: int, places: List[int], names: Tuple[str, ...]) -> Iterator[Tuple[str, str]]:
    wanted = {name.encode(): name for name in names}
    for place in places:
        (array,) = struct.unpack("=Q", os.pread(memory, 8, place))
        if not array:
            continue
        for pointer in _pointers(memory, array):
            head, equals, rest = os.pread(memory, _STRING, pointer).partition(b"\0")[0].partition(b"=")
            if equals and head in wanted:
                yield wanted[head], rest.decode(errors="replace")
        return


def _pointers(memory: int, array: int) -> Iterator[int]:
    """Until the null that ends them."""
    for at in range(0, 8 * _MOST_POINTERS, 4096):
        data = os.pread(memory, 4096, array + at)
        for (pointer,) in struct.iter_unpack("=Q", data[: len(data) // 8 * 8]):
            if not pointer:
                return
            yield pointer
        if len(data) < 4096:
            return


def _places(proc: Proc, pid: str) -> List[int]:
    """Where its pointer may be: in the program, into which the linker copies it, else in libc."""
    places: List[int] = []
    program = proc.link(pid, "exe")
    for line in proc.text(pid, "maps").splitlines():
        row = line.split(None, 5)
        if len(row) < 6 or row[2] != "00000000":
            continue
        name = os.path.basename(row[5])
        if row[5] != program and not name.startswith(("libc.", "libc-", "ld-musl")):
            continue
        try:
            symbol = _symbol(os.path.join(proc.root, pid, "root", row[5].lstrip("/")))
        except OSError:  # it was replaced, or is gone
            continue
        if symbol is not None:
            value, moved = symbol
            place = value + (int(row[0].partition("-")[0], 16) if moved else 0)
            places.insert(0 if row[5] == program else len(places), place)
    return places


def _symbol(path: str) -> Optional[Tuple[int, bool]]:
    """The value of `environ` in a file of ELF, and whether it counts from where the file is mapped."""
    with open(path, "rb") as file:
        inode = os.fstat(file.fileno())
        key = (inode.st_dev, inode.st_ino)
        if key not in _known:
            _known[key] = _read(file)
    return _known[key]


def _read(file: Any) -> Optional[Tuple[int, bool]]:
    """By elf(5): 64 bits, little-endian."""
    head = file.read(64)
    if head[:6] != b"\x7fELF\x02\x01":
        return None
    kind = struct.unpack_from("<H", head, 16)[0]
    (sections,) = struct.unpack_from("<Q", head, 40)
    size, count = struct.unpack_from("<HH", head, 58)
    file.seek(sections)
    rows = [file.read(size) for _ in range(min(count, 256))]
    for row in rows:
        if struct.unpack_from("<I", row, 4)[0] != _DYNSYM:
            continue
        strings = _table(file, rows[struct.unpack_from("<I", row, 40)[0]])
        symbols = _table(file, row)
        for name, _, _, section, value, _ in struct.iter_unpack("<IBBHQQ", symbols[: len(symbols) // 24 * 24]):
            end = strings.find(b"\0", name)
            if section and value and end - name < 10 and strings[name:end] in _NAMES:
                return value, kind == 3  # ET_DYN
    return None


def _table(file: Any, row: bytes) -> bytes:
    offset, size = struct.unpack_from("<QQ", row, 24)
    file.seek(offset)
    return bytes(file.read(min(size, _MOST_TABLE)))
