"""Tracebacks of Python, line by line: where the exception below them was raised."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

BEGIN = (" ", "\t", "T", "D", "F", "E", "-")  # first letters of lines that `see` knows
_BEGINS = "Traceback (most recent call last)"
_FRAME = re.compile(r'File "(?P<path>[^"]{1,400})", line (?P<line>\d{1,7}), in (?P<function>.{1,100})')
_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib(?:64)?/python\d[\d.]{0,5}|bin)/|^<")
_PACKAGES = re.compile(r".*/(?:site-packages|dist-packages|lib(?:64)?/python\d[\d.]{0,5})/")
# Python tells of it, and the program goes on: nobody was there to take it, or it was about a line of the log.
_IGNORED = (
    "Exception ignored in",
    "--- Logging error ---",
    "Error in atexit._run_exitfuncs",
    "Error in sys.excepthook",
)
_OF_A_THREAD = ("Exception in thread", "Exception in callback", "Task exception was never retrieved")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_MOST_WRITERS = 4096
_LONG, _MOST_PARTS = 48, 3  # characters; of a longer path the file and two folders tell which program it is

Writer = tuple[str, str, "int | None"]  # file, what the launcher calls the process, rank


@dataclass
class _Stack:
    """What was printed of a traceback: its last frame, its last one of the program's own, and whether it is the
    second exception of a chain. ends: "nothing" or "thread", where it does not end the process.
    """

    last: str = ""
    own: str = ""
    chained: bool = False
    ends: str = ""


class Tracebacks:
    """The open traceback of each writer."""

    def __init__(self) -> None:
        self._open: OrderedDict[Writer, _Stack] = OrderedDict()

    def see(self, writer: Writer, text: str) -> None:
        """Take a line that may be part of one."""
        said = text.lstrip()
        if said.startswith('File "'):
            if found := _FRAME.match(said):
                stack = self._of(writer)
                stack.last = _place(found)
                stack.own = stack.own if _LIBRARY.search(found["path"]) else stack.last
        elif said.startswith(_BEGINS):
            stack = self._of(writer)
            stack.last = stack.own = ""
        elif said.startswith(_CHAINED):
            self._of(writer).chained = True
        elif said.startswith(_IGNORED):
            self._open.pop(writer, None)
            self._of(writer).ends = "nothing"
        elif said.startswith(_OF_A_THREAD):
            self._open.pop(writer, None)
            self._of(writer).ends = "thread"

    def begun(self, writer: Writer) -> dict[str, str]:
        """What an open traceback ends, as a field of the line that begins it."""
        stack = self._open.get(writer)
        return {"ends": stack.ends} if stack and stack.ends else {}

    def raised(self, writer: Writer) -> dict[str, str]:
        """Where the exception that ends the traceback was raised, as fields of its line."""
        stack = self._open.pop(writer, None)
        if stack is None:
            return {}
        at = stack.own or stack.last
        told = {
            "raised_at": at,
            "raised_in": stack.last if stack.last != at else "",
            "chained": "yes" if stack.chained else "",
            "ends": stack.ends,
        }
        return {name: value for name, value in told.items() if value}

    def _of(self, writer: Writer) -> _Stack:
        if writer not in self._open and len(self._open) >= _MOST_WRITERS:
            self._open.popitem(last=False)
        return self._open.setdefault(writer, _Stack())


def _place(found: re.Match[str]) -> str:
    """`data/loader.py:14 (__getitem__)`: of a library from its package on, else the end of the path."""
    path = found["path"]
    shown = _PACKAGES.sub("", path)
    if shown == path and len(path) > _LONG:
        shown = "/".join(path.split("/")[-_MOST_PARTS:])
    function = found["function"].strip()
    return f"{shown}:{found['line']}" + ("" if function.startswith("<") else f" ({function})")
