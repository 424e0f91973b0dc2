"""What a job printed of its own end: the last exception, and how torchrun says that its workers ended."""

from __future__ import annotations

import re
from typing import Any

_BLOCK = re.compile(
    r"^Traceback \(most recent call last\):\n((?:[ \t].*\n|\n)+)([A-Za-z_][\w.]*)(?:: (.*))?$", re.MULTILINE
)
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,3})\) local_rank: \d+ \(pid: (\d{1,10})\)")
# libstdc++'s terminate handler, assert(3), glibc's own checks, glog's and abseil's CHECK.
_ABORT = re.compile(
    r"terminate called after throwing an instance of '(?P<kind>[^'\n]+)'\n(?:  what\(\): +(?P<words>[^\n]+))?"
    r"|^(?P<other>[^\n]*(?:Assertion [`'][^\n]+ failed\.|terminate called without an active exception"
    r"|free\(\): |double free or corruption|malloc\(\): |malloc_consolidate\(\)|munmap_chunk\(\)|realloc\(\): "
    r"|corrupted (?:size|double-linked)|stack smashing detected|buffer overflow detected|Check failed: "
    r"|pure virtual method called)[^\n]*)$",
    re.MULTILINE,
)
_LATER = re.compile(
    r"^(?:\[\w+\]:)?Timeout \(([\d:.]+)\)!\n((?:(?:Current t|T)hread 0x.*\n|  .*\n|\n)+)", re.MULTILINE
)
_DUMPED = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_PLACE = re.compile(r"^(?:\[enforce fail at [^\]]+\] |\[\S+:\d+\] )")


def statuses(text: str) -> dict[int, int]:
    """pid -> status as waitpid(2) has it, of the workers that torchrun reports."""
    return {int(pid): int(code) << 8 if int(code) >= 0 else -int(code) for code, pid in _FAILED.findall(text)}


def exception(text: str) -> dict[str, Any]:
    """type, message and frames of it; empty where none was printed."""
    blocks = [*_BLOCK.finditer(text.replace("\r\n", "\n"))]
    if not blocks:
        return {}
    frames = [f"{file}:{line} in {name}" for file, line, name in _FRAME.findall(blocks[-1][1])]
    return {
        "type": blocks[-1][2].rpartition(".")[2],
        "message": (blocks[-1][3] or "")[:2000],
        "frames": frames[-24:],
        "printed": True,
    }


def dumped(text: str) -> tuple[str, list[str]]:
    """What `faulthandler.dump_traceback_later` printed last, and the frames of the program's main thread."""
    dumps = [*_LATER.finditer(text.replace("\r\n", "\n"))]
    if not dumps:
        return "", []
    threads = re.split(r"^(?:Current thread|Thread) 0x\w+[^\n]*\n", dumps[-1][2], flags=re.MULTILINE)[1:]
    frames = _DUMPED.findall(threads[-1]) if threads else []  # the main thread is the last one
    return dumps[-1][1], [f"{file}:{line} in {name}" for file, line, name in frames[:24]]


def abort(text: str) -> list[str]:
    """What a process printed that aborted itself, the first one first, each in one line."""
    lines = []
    for named in _ABORT.finditer(text.replace("\r\n", "\n")):
        kind, words = named["kind"] or "", " ".join((named["words"] or named["other"] or "").split())
        words = _PLACE.sub("", words)
        lines.append(f"{kind}: {words}"[:500] if kind and words else (kind or words)[:500])
    return lines
