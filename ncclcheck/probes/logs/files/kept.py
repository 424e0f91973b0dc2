"""What is kept of a file while it is read: its events, an exception whose message goes on, where it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ncclcheck.probes.facts.log.fields import LogFields
from ncclcheck.probes.logs.boxes import LogBox
from ncclcheck.probes.logs.files.prefixes import HEAD
from ncclcheck.probes.logs.files.times import when
from ncclcheck.probes.logs.files.wrapped import Wrapped
from ncclcheck.probes.logs.nccl_lines.records import NcclProcess
from ncclcheck.probes.logs.repeats import Repeats
from ncclcheck.probes.logs.tracebacks import Writer

# characters of a line that is kept: chosen, NCCL's own have up to 1024, their meaning stands at the beginning
TEXT = 600
LONG = 2 * TEXT
_NEXT = re.compile(r"\s*(?:Traceback|During handling|The above|\[|\^|terminate called|Exception |[EWIF]\d{4} )")
_MOST_BELOW, _MOST_CALLS = 4, 16  # lines; of an error stack of MPICH: chosen, those seen have up to nine
STACK = "error stack:"  # of MPICH and Intel MPI: the calls stand below, the innermost last
_CALL = re.compile(r"\s*[\w()]{3,60}\(\d{0,5}\)\.{0,40}:")


@dataclass
class KeptEvent:
    """An event whose writer is not yet known for sure. group: its file and what the launcher calls the writer."""

    sign: str
    line: int
    text: str
    order: int
    group: tuple[str, str]
    process: NcclProcess | None
    host: str
    pid: int | None
    rank: int | None
    time: float | None
    level: str
    fields: LogFields
    count: int = 1

    def again(
        self, line: int, text: str, order: int, clock: float | None, fields: LogFields | None = None
    ) -> None:
        """Said once more: of what is said often the first ones are kept, and the last."""
        self.line, self.text, self.order, self.time = line, text[:LONG], order, clock
        self.fields = self.fields if fields is None else fields
        self.count += 1


@dataclass
class Message:
    """What goes on in the lines below an exception. number: the line until which it may."""

    of: list[KeptEvent]
    writer: Writer
    number: int
    below: list[str] = field(default_factory=list)

    def ends_with(self, text: str, number: int) -> bool:
        """Take one more line of the writer; whether it was the last one or none of the message."""
        if number > self.number or _NEXT.match(text) or (self.below and not text.strip()):
            return True
        of_calls = STACK in self.of[0].text
        if of_calls and not _CALL.match(text):
            return True
        self.below += [" ".join(text.split())] if text.strip() else []
        if self.below:
            for kept in self.of:
                kept.text = f"{kept.text.rstrip()} {self.below[-1]}"[:LONG]
                kept.fields["text"] = f"{kept.fields.get('text', '').rstrip()} {self.below[-1]}".strip()[:LONG]
        return len(self.below) >= (_MOST_CALLS if of_calls else _MOST_BELOW)


@dataclass
class File:
    name: str
    lines: int = 0
    bytes: int = 0
    records: int = 0
    operations: int = 0
    last_record: int = 0
    advanced: int = 0
    familiar: bool = False
    time: float | None = None
    stamp: str = ""
    problem: str = ""
    empty_folder: bool = False
    last_error_of: tuple[int | None, str] | None = None
    message: Message | None = None
    frames_until: int = 0
    number: int = 0
    timed: bool = False
    bad: bool = False
    box: LogBox | None = None
    wrapped: Wrapped = field(default_factory=Wrapped)
    repeats: Repeats[KeptEvent] = field(default_factory=Repeats)

    @property
    def wants_next(self) -> bool:
        """Whether the next line is wanted, whatever is in it."""
        return (
            self.last_error_of is not None
            or self.message is not None
            or self.number < self.frames_until
            or (self.box is not None)
            or self.wrapped.pending != b""
        )

    def seen(self, text: str) -> None:
        """Keep the time of a line that is worth it, from its head or from what stood before it."""
        before, self.repeats.last = self.repeats.last, None
        time = when(self.stamp + text)
        self.timed = time is not None
        if time is None and before is not None:
            time = when(before[0] + before[1][:HEAD].decode(errors="replace"))
        self.time = time or self.time
