"""Tracebacks of Python, line by line: where the exception below them was raised."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field

from ncclcheck.probes.facts.log.fields import LogFields, WrittenFields, named_in, set_only

BEGIN = (" ", "\t", "T", "D", "F", "E", "-", "a")  # first letters of lines that `see` knows
_BEGINS = "Traceback (most recent call last)"
_FRAME = re.compile(r'File "(?P<path>[^"]{1,400})", line (?P<line>\d{1,7}), in (?P<function>.{1,100})')
_UNREADABLE = re.compile(r'File "(?P<path>[^"]{1,400})", line (?P<line>\d{1,7})(?P<function>)\s*$')
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
# What a loader, a queue or a manager of multiprocessing runs beside its program.
_HELPER = re.compile(
    r"\((?:_feed|_worker_loop|_pin_memory_loop|serve_client|_handle_(?:workers|tasks|results)|_try_get_data)\)$"
)
_SPAWNED = re.compile(r"-- Process (\d{1,6}) terminated with the following error")
_ASSERTED = re.compile(r"assert\b\s{0,3}(.{1,160})")
# An exception by any name, where a traceback is open: a name without a dot and without a hump may begin any line.
_ANY_TYPE = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,60}\.){1,8}[A-Z]\w{1,80}|(?:[A-Z][a-z0-9]{1,30}){2,6}|Stop(?:Async)?Iteration|GeneratorExit|BadZipFile)"
    r"(?:: {0,2}(?P<text>\S.{0,299})|:?\s{0,9}$)"
)
# What carries a request: the package that sent it stands above these frames.
_CARRIES = re.compile(
    r"(?:urllib3|requests|http|httpx|httpcore|aiohttp|aiohappyeyeballs|anyio|asyncio|urllib|websockets?|tornado)/"
    r"|(?:socket|ssl|selectors|threading|contextlib)\.py"
)
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_MOST_WRITERS = 4096  # ranks and files with a traceback that is not over: chosen, bounds memory
# frames that are a stack and no mention of a place; lines below the last one that still belong to it: chosen
_A_STACK, _AT_THE_END = 4, 2
_MOST_OF_CODE = 160  # characters of a line of code: two lines of a terminal
_LONG, _MOST_PARTS = 48, 3  # characters; of a longer path the file and two folders tell which program it is

Writer = tuple[str, str, "int | None"]  # file, what the launcher calls the process, rank


@dataclass
class _OpenTraceback:
    """What was printed of a traceback: its last frame, its last one of the program's own, and whether it is the
    second exception of a chain. ends: "nothing" or "thread", where it does not end the process. main: the
    file of the program that it goes through. spawned: the number of the process, as torch's spawn says it. helper:
    it goes through a process or thread that only feeds another one. client: the package of the last frame of a
    library that is not about carrying requests. fields: fields of the line that begins it.
    line: the number of its last frame. frames: how many.
    wants_code: the line of `own` is the next one.
    bad: a line of it says that it is an error, or begins a traceback.
    unreadable: where Python could not read a file. condition: of the assertion at its last frame. code: what
    stands in the line of `own`.
    """

    last: str = ""
    own: str = ""
    chained: bool = False
    ends: str = ""
    main: str = ""
    spawned: str = ""
    unreadable: str = ""
    helper: bool = False
    condition: str = ""
    code: str = ""
    client: str = ""
    line: int = 0
    frames: int = 0
    bad: bool = False
    wants_code: bool = False
    fields: LogFields = field(default_factory=LogFields)


class Tracebacks:
    """The open traceback of each writer."""

    def __init__(self) -> None:
        self._open: OrderedDict[Writer, _OpenTraceback] = OrderedDict()

    def see(self, writer: Writer, text: str, number: int = 0, *, bad: bool = False) -> bool:
        """Take a line that may be part of one; whether it is a frame. bad: its level is that of an error."""
        line = text.lstrip()
        if line.startswith('File "'):
            if match := _FRAME.match(line):
                stack = self._of(writer)
                stack.last, stack.condition, stack.line = _place(match), "", number
                stack.bad, stack.frames = stack.bad or bad, stack.frames + 1
                library = _LIBRARY.search(match["path"]) is not None
                stack.own = stack.own if library else stack.last
                stack.code = stack.code if library else ""
                stack.wants_code = not library
                carries = not library or _CARRIES.match(stack.last) is not None
                stack.client = stack.client if carries else stack.last.partition("/")[0]
                if not library and match["function"] == "<module>" and not stack.main:
                    stack.main = match["path"].rpartition("/")[2]
                stack.helper = stack.helper or _HELPER.search(stack.last) is not None
            elif match := _UNREADABLE.match(line):
                if match["path"].rpartition("/")[2] == self._of(writer).main:  # it ran before: in another attempt
                    self._open.pop(writer)
                self._of(writer).unreadable = _place(match)
        elif writer in self._open and self._code(self._open[writer], line, indented=line != text):
            pass
        elif line.startswith(_BEGINS):
            stack = self._of(writer)
            stack.last, stack.own, stack.main, stack.client, stack.helper = "", "", "", "", False
            stack.code, stack.wants_code = "", False
            stack.bad = True
        elif line.startswith(_CHAINED):
            self._of(writer).chained = True
        elif match := _SPAWNED.match(line):
            self._open.pop(writer, None)
            self._of(writer).spawned = match[1]
        elif line.startswith(_IGNORED):
            self._open.pop(writer, None)
            self._of(writer).ends = "nothing"
        elif line.startswith(_OF_A_THREAD):
            self._open.pop(writer, None)
            self._of(writer).ends = "thread"
        return line.startswith('File "')

    @staticmethod
    def _code(stack: _OpenTraceback, line: str, *, indented: bool) -> bool:
        """Whether a line is the code of a frame, which is kept where it says more than the frame."""
        if match := _ASSERTED.match(line):
            stack.condition, stack.wants_code = match[1].rstrip(), False
            return True
        if not (stack.wants_code and indented):
            return False
        stack.code, stack.wants_code = line[:_MOST_OF_CODE].rstrip(), False
        return True

    def begun(self, writer: Writer, fields: LogFields) -> None:
        """Say in the fields of the line that begins a traceback what it ends, as soon as that is known."""
        stack = self._of(writer)
        stack.fields = fields
        if stack.ends:
            fields["ends"] = stack.ends

    def ignored(self, writer: Writer) -> bool:
        """Whether the open traceback is one that Python only tells of."""
        return writer in self._open and self._open[writer].ends == "nothing"

    def is_open(self, writer: Writer) -> bool:
        """Whether frames were printed, and not yet the exception below them."""
        return writer in self._open and self._open[writer].last != ""

    def cut_off(self, file: str, last: int) -> list[tuple[Writer, int, LogFields]]:
        """Those of a file that has come to its end without their exceptions: who, the last frame's line, where.

        last: its last line. Frames alone, whose beginning was cut off, too, are one where the file ends with them.
        """
        left = [(writer, stack) for writer, stack in self._open.items() if writer[0] == file]
        for writer, _ in left:
            del self._open[writer]
        return [
            (writer, stack.line, {"raised_at": stack.last, "called_at": stack.own, "condition": stack.condition})
            for writer, stack in left
            if (stack.bad or (stack.frames >= _A_STACK and last - stack.line <= _AT_THE_END))
            and stack.line
            and not stack.ends
        ]

    def exception(self, writer: Writer, text: str) -> WrittenFields | None:
        """Type and text of an exception whose name tells nothing, below the frames of an open traceback."""
        match = _ANY_TYPE.match(text) if self.is_open(writer) else None
        return named_in(match) if match else None

    def raised(self, writer: Writer) -> LogFields:
        """Where the exception that ends the traceback was raised, as fields of its line."""
        stack = self._open.pop(writer, None)
        if stack is None:
            return {}
        at = stack.own or stack.last
        if stack.helper and not (stack.main or stack.ends):
            stack.fields["ends"] = "helper"
        fields: LogFields = {
            "raised_at": at,
            "raised_in": stack.last if stack.last != at else "",
            "chained": "yes" if stack.chained else "",
            "ends": stack.ends or stack.fields.get("ends", ""),
            "helper": "yes" if stack.helper else "",
            "main": stack.main,
            "spawned": stack.spawned,
            "unreadable": stack.unreadable,
            "condition": stack.condition,
            "code_line": stack.code if stack.own else "",
            "client": stack.client if _CARRIES.match(stack.last) and ".py:" not in stack.client else "",
        }
        return set_only(fields)

    def _of(self, writer: Writer) -> _OpenTraceback:
        if writer not in self._open and len(self._open) >= _MOST_WRITERS:
            self._open.popitem(last=False)
        return self._open.setdefault(writer, _OpenTraceback())


def _place(match: re.Match[str]) -> str:
    """`data/loader.py:14 (__getitem__)`: of a library from its package on, else the end of the path."""
    path = match["path"]
    shown = _PACKAGES.sub("", path)
    if shown == path and len(path) > _LONG:
        shown = "/".join(path.split("/")[-_MOST_PARTS:])
    function = match["function"].strip()
    return f"{shown}:{match['line']}" + (f" ({function})" if function and not function.startswith("<") else "")
