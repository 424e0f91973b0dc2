"""Files -> `Logs`: one pass, bounded memory, every line counted, the known ones kept with who said them."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import BinaryIO

from ncclcheck.probes.facts import LogEvent, LogFile, Logs
from ncclcheck.probes.facts.guard.secrets import masked
from ncclcheck.probes.facts.log.fields import LogFields, WrittenFields, set_only
from ncclcheck.probes.logs import writers
from ncclcheck.probes.logs.boxes import LogBox, begins, is_rule
from ncclcheck.probes.logs.files.kept import LONG, STACK, TEXT, File, KeptEvent, Message
from ncclcheck.probes.logs.files.lines import LONGEST, MARK, OtherLine, Record, blocks, split
from ncclcheck.probes.logs.files.prefixes import HEAD, Prefix, plain, prefix, rank_of, short
from ncclcheck.probes.logs.files.times import when
from ncclcheck.probes.logs.match import Matcher, SignPattern
from ncclcheck.probes.logs.nccl_lines.calls import CallReader, LoggedCall
from ncclcheck.probes.logs.nccl_lines.records import Communicator, End, Log, NcclProcess
from ncclcheck.probes.logs.nccl_lines.table import communicators
from ncclcheck.probes.logs.signs.failure_words import complains, ended_badly
from ncclcheck.probes.logs.signs.progress import advances
from ncclcheck.probes.logs.tracebacks import BEGIN, Tracebacks, Writer

_MOST_EVENTS = 50_000  # lines that are kept of all files: chosen, bounds memory; all are counted
_TAIL = 40  # lines: some steps, as they are printed between other lines
_MOST_OF_A_SIGN = 5  # of one process
_OF_WORDS = ("complaint", "explains", "ended-badly")
# Of one process and such a sign: what many say of one failure must not hide the one line that says why.
_MOST_KINDS, _KIND = 32, 40  # kinds; letters by which two lines are of one
_NO_LETTER = re.compile(r"[^A-Za-z]+")
_MOST_RAISED = 20  # exceptions: of several attempts the last ones count
# lines that are remembered as understood, and bytes of the longest: chosen, bounds memory
_MOST_CONNECTIONS, _CONNECTION = 65536, 512
_MOST_GROUPS, _MOST_IN_A_GROUP = 65536, 4096  # tasks of a launcher, and processes of each: chosen, bounds memory
_NOBODY = Prefix()
_NAMES = (
    *(b"nccl", b"torch", b"c10d", b"gloo", b"[rank", b"local_rank", b"world_size", b"slurm", b"srun:", b"mpirun"),
    *(b"orte", b"prterun", b"deepspeed", b"vllm", b"sglang", b"raylet", b"ray::", b"lightning"),
    *(b"open mpi", b"openmpi", b"ompi", b"openfabrics", b"pmix", b"mpich", b"mca_", b"btl", b" ucx ", b"horovod"),
    *(b"nrt:", b"tdrv:", b"neuron", b"tensorflow", b"jaxlib", b"jax.", b"cuda", b"nvidia", b"rocm"),
    *(b"launch.py", b"accelerate launch", b"/accelerate", b"accelerate.", b"accelerator.", b"processgroup"),
    *(b"distributeddataparallel", b"fsdp", b"hip failure", b"hiperror", b"rccl", b"hccl", b"ray gcs", b"ray stop"),
    *(b"llamafactory", b"axolotl", b"openrlhf", b"transformers", b"megatron"),
    *(
        b"xla/",
        b"coordinationservice",
        b"coordination service",
        b"jax_worker",
        b"pytorchjob",
        b"kubelet",
        b"kubectl",
    ),
    *(b"gcs_server", b"mlx5_", b"libfabric", b"ibv_", b"nvshmem", b"mooncake", b"kvtransfer", b"transfer engine"),
)
_OF_TORCH = re.compile(rb"\[W(?:\d{3,4} [\d:.]{8,20} )? ?\w{1,40}\.cpp:\d{1,5}\] ")  # glog's form, of its C++
_WARNING = "nccl-warning"
_BAD = ("ended-badly", "complaint")
_GENERAL = (*_BAD, "explains", _WARNING)  # what is said of a line that no other sign knows
_LISTED = "hca-listed"  # that a card is named says nothing of why NCCL warns
_OPERATIONS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll", "Send", "Recv")
_CALLS = tuple(f"{name}: ".encode() for name in _OPERATIONS)
_STAMPED = (b"T", b" ")
_LAST_ERROR = "Last error:"  # of ncclGetLastError, as torch prints it: a warning of NCCL follows, or nothing
_NO_ERROR = ("Exception raised from", "frame #", "Traceback", "[")
_BULK = ("Channel ", "Ring ", "Tree ", "Trees ", "Coll")
_RAISED, _INTERRUPTED, _TRACEBACK, _STOOD = "python-error", "ended-by-order", "traceback", "crashed-thread"
_WORKER, _CUT, _BOX = "worker-killed", "traceback-cut", "mpi-box"
# An exception whose message stands below it: a list, or what a check of settings found.
_GOES_ON = re.compile(r":\s*$|\bvalidation errors? for \w{1,80}$")
_MILD = re.compile(r"\[?[WID]\d{3,4} \d\d:|(?:\S{1,40} ){0,4}\[?(?:WARNING|DEBUG)\b")  # the level of a line
# What a test or a lesson wants to fail.
_MEANT = re.compile(
    r"\b[Cc]aught (?:an? |the )?expected\b|\b(?:[Ee]rror|[Ee]xception) (?:caught )?as (?:expected|intended)\b"
)
_SEVERE = re.compile(r"\b(?:ERROR|CRITICAL)\b")  # in what stands before a line
_GLUED = re.compile(
    r"^[^'\"`]{0,400}(?:[\]%|](?=Traceback \(most recent call last\):)|\d {0,2}/ {0,2}\d{1,12} \[[^\]]{4,80}\] ?"
    r"(?=\[[EWF](?:\d{3,4})? |\[rank\d|\[\d{4}-\d\d-\d\d |(?:ERROR|CRITICAL)\b"
    r"|(?:\w{1,40}\.){0,4}\w{1,40}(?:Error|Exception): ))"
)
_SOON = 40  # lines of all writers within which it goes on
_FRAME = 12  # lines of all writers between two frames of a traceback, or the last one and its exception


@dataclass
class LogReading:
    """Takes one file after the other.

    until: by time.monotonic, when no more is read. groups: which processes wrote under which prefix of which file.
    """

    until: float = float("inf")
    progress: Callable[[str], None] | None = None
    log: Log = field(default_factory=Log)
    kept: list[KeptEvent] = field(default_factory=list)
    groups: dict[tuple[str, str], set[tuple[str, int]]] = field(default_factory=dict)
    begins: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    _files: list[File] = field(default_factory=list)
    _counts: dict[tuple[object, ...], list[KeptEvent]] = field(default_factory=dict)
    _kinds: dict[tuple[object, ...], set[str]] = field(default_factory=dict)
    _matcher: Matcher = field(default_factory=Matcher)
    _calls: CallReader = field(default_factory=CallReader)
    _tracebacks: Tracebacks = field(default_factory=Tracebacks)
    _connections: dict[bytes, tuple[NcclProcess, int, Communicator, End]] = field(default_factory=dict)
    _order: int = 0
    _dropped: int = 0
    _often: list[KeptEvent] = field(default_factory=list)

    def take(self, name: str, file: BinaryIO) -> None:
        """Read a file to its end. An error on the way ends that file, and is kept."""
        here = File(name)
        self._files.append(here)
        try:
            for block in blocks(file):
                here.bytes += len(block)
                self._block(here, block)
                self._pause(here)
        except (EOFError, zlib.error) as error:
            here.problem = f"the gzip data is damaged or cut off: {error}"[:200]
        except (OSError, ValueError) as error:
            here.problem = str(getattr(error, "strerror", None) or error)[:200]
        self._cut_off(here)

    def _cut_off(self, here: File) -> None:
        """Of tracebacks that are open at the end of a file where they stood."""
        self._wholes(here, here.wrapped.rest(), b"", ())
        if here.box:
            self._box(here, _NOBODY)
        for (_, task, rank), number, fields in self._tracebacks.cut_off(here.name, here.lines):
            order = self._order + number - here.lines
            text = f"a traceback without its last line ends at {fields['raised_at']}"
            known = set_only(fields)
            group = (here.name, task)
            self.kept.append(
                KeptEvent(_CUT, number, text, order, group, None, "", None, rank, here.time, "ERROR", known)
            )

    def _pause(self, here: File) -> None:
        """Between two blocks. Raises TimeoutError."""
        if self.progress:
            self.progress(f"{here.name}: {here.bytes / 1e6:.0f} MB")
        if time.monotonic() > self.until:
            raise TimeoutError(f"the deadline passed after {here.bytes / 1e6:.0f} MB")

    def problem(self, name: str, why: str) -> None:
        """A file that could not be opened."""
        self._files.append(File(name, problem=why))

    def empty_folder(self, name: str) -> None:
        """A folder without a file."""
        self._files.append(File(name, empty_folder=True))

    def _block(self, here: File, block: bytes) -> None:
        """What is said often is passed over within a part: the last lines are one, to know how far a job came."""
        block = block.removesuffix(b"\n")
        *most, tail = block.rsplit(b"\n", _TAIL)
        last = b"\n".join((*most[1:], tail))
        for part in (most[0], last) if most else (last,):
            self._part(here, part)

    def _part(self, here: File, block: bytes) -> None:
        matcher = self._matcher
        matcher.again()
        here.familiar = here.familiar or _is_familiar(block)
        bars = b"\r" in block
        operations, matcher.every = here.operations, here.wants_next
        for number, line, shape, at in matcher.worth_reading(block, here.lines + 1):
            here.number = number
            if bars and b"\r" in (line := line.rstrip(b"\r")):  # progress bars are one line to an editor
                parts = line.split(b"\r")
                for part in parts:
                    self._line(here, part, number)
                here.advanced = number if advances(parts) else here.advanced
                matcher.every = here.wants_next
                continue
            if line[10:11] in _STAMPED and line[4:5] == b"-" and line[:4].isdigit():
                line, here.stamp = self._unstamped(line)  # noqa: PLW2901
                at = line.find(MARK)  # noqa: PLW2901
            if at >= 0:
                here.last_record = number
                if line.startswith(_CALLS, at + 10) and line.find(MARK, at + 5) < 0:
                    operations += 1
                    self._calls.keep(here.name, number, line, at)
                elif not self._connects(here, line, at):
                    self._records(here, line, number)
            elif not here.wants_next and here.repeats.counted(line, shape, number, here.stamp):
                continue
            elif (patterns := matcher.may(line[:LONGEST])) or here.wants_next:
                self._wholes(here, here.wrapped.take(line, number), line, patterns)
                if self._often:
                    if here.timed:
                        here.repeats.learn(line, shape, self._often)
                    self._often = []
            else:
                matcher.pass_over(shape, line[:LONGEST])
            matcher.every = here.wants_next
        self._again(here)
        here.records += operations - here.operations
        here.operations = operations
        lines = block.count(b"\n") + 1
        self._order += lines
        here.lines += lines

    def _wholes(
        self, here: File, wholes: list[tuple[bytes, int]], line: bytes, patterns: tuple[SignPattern, ...]
    ) -> None:
        """Lines that were cut are read as one."""
        for whole, number in wholes:
            self._other(here, whole, number, patterns if whole is line else self._matcher.may(whole[:LONGEST]))

    def _again(self, here: File) -> None:
        """Of lines that were only counted the last one is read."""
        for repeat in here.repeats.taken():
            text = plain(repeat.line[:LONGEST].decode(errors="backslashreplace"))
            clock = when(repeat.stamp + text)  # only lines with a time of their own are counted
            order = self._order + repeat.number - here.lines
            for kept in repeat.signs:
                self._dropped += repeat.count
                count = kept.count + repeat.count
                if repeat.number > kept.line:
                    kept.again(repeat.number, text[prefix(text[:HEAD]).end :], order, clock)
                kept.count = count

    @staticmethod
    def _unstamped(line: bytes) -> tuple[bytes, str]:
        """A line without the time that containers' logs begin with, which differs in each, and that time."""
        end = line.find(b" ", 19) + 1
        return (line[end:], line[:end].decode(errors="replace")) if 0 < end < 44 else (line, "")

    def _line(self, here: File, line: bytes, number: int) -> None:
        if MARK in line:
            here.last_record = number
            self._records(here, line, number)
        elif patterns := self._matcher.may(line[:LONGEST]):
            self._other(here, line, number, patterns)

    def _connects(self, here: File, line: bytes, at: int) -> bool:
        """One more connection, which only its channel tells from another: most lines of a large job's start."""
        if line[at + 10 : at + 18] != b"Channel ":
            return False
        known = self._connections.get(line[:at] + line[line.find(b" : ", at) :])
        if known is None or known[0].turns != known[1]:
            return False
        known[2].seen[known[3]] += 1
        here.records += 1
        return True

    def _records(self, here: File, line: bytes, number: int) -> None:
        before, head = _NOBODY, ""
        parts = split(line, number)
        for cut, after in zip(parts, (*parts[1:], None), strict=True):
            part = self._whole(cut, after) if isinstance(after, Record) else cut
            if isinstance(part, Record):
                here.records += 1
                self._record(here, part, before, line, head)
                continue
            before, head = prefix(part.text), part.text
            if (rest := part.text[before.end :].rstrip()).strip():  # blanks before a line are part of its form
                self.log.take((part,))
                self._other(here, part.text.encode(), number, self._matcher.may(rest.encode()))

    def _whole(self, cut: Record | OtherLine, after: Record) -> Record | OtherLine:
        """With its last word, which seems to be part of the next one's host: `to 96 bytesgpu-a17:1:2`."""
        host = self.log.process(after.host, after.pid).host
        return cut._replace(text=cut.text + after.host.removesuffix(host))

    def _record(self, here: File, record: Record, before: Prefix, line: bytes, head: str) -> None:
        process = self.log.process(record.host, record.pid)
        process.connected = None
        process.take(record)
        key = (process.host, process.pid)
        if key not in self.begins:
            self.begins[key] = (here.name, record.number)
        group = (here.name, before.task)
        if group in self.groups or len(self.groups) < _MOST_GROUPS:
            known = self.groups.setdefault(group, set())
            if len(known) < _MOST_IN_A_GROUP:
                known.add(key)
        if record.level == "INFO" and record.text.startswith(_BULK):
            self._remember(process, line)
            return
        patterns = self._matcher.may(record.text.encode())
        if patterns or record.level == "WARN":
            here.seen(head)
            self._keep(here, record.text, record.number, patterns, before, process, record.level, record.place)

    def _remember(self, process: NcclProcess, line: bytes) -> None:
        at, counted = line.find(MARK), process.connected
        if counted is not None and len(line) <= _CONNECTION and line.find(MARK, at + 5) < 0:
            if len(self._connections) >= _MOST_CONNECTIONS:
                self._connections.clear()
            key = line[:at] + line[line.find(b" : ", at) :]
            self._connections[key] = (process, process.turns, *counted)

    def _other(self, here: File, line: bytes, number: int, patterns: tuple[SignPattern, ...]) -> None:
        if not patterns and not here.wants_next:
            return
        text = plain(line[:LONGEST].decode(errors="backslashreplace"))
        here.seen(text)
        before = prefix(text[:HEAD])
        words = text[before.end :]
        if glued := _GLUED.search(words):  # behind a progress bar, which does not end its line
            bar = words[: glued.end()]
            self._keep(here, bar, number, self._matcher.may(bar.encode()), before, None, "")
            words = words[glued.end() :]
            patterns = self._matcher.may(words.encode())
        level = "WARN" if self._is_last_error(here, words, before) else ""
        here.bad = _SEVERE.search(text, 0, before.end) is not None
        self._boxed(here, words, number, before)
        self._keep(here, words, number, patterns, before, None, level)

    @staticmethod
    def _is_last_error(here: File, words: str, before: Prefix) -> bool:
        """Whether a line repeats a warning of NCCL, which may stand nowhere else: after or below `Last error:`."""
        if here.last_error_of is None and _LAST_ERROR not in words:
            return False
        who = (before.rank, before.task)
        head, _, rest = words.partition(_LAST_ERROR)
        if not head.strip() and _LAST_ERROR in words:
            here.last_error_of = None if rest.strip() else who
            return bool(rest.strip())
        below = here.last_error_of == who
        if below:
            here.last_error_of = None
        return below and bool(words.strip()) and not words.lstrip().startswith(_NO_ERROR)

    def _boxed(self, here: File, words: str, number: int, before: Prefix) -> None:
        """A line of what Open MPI says between two rules, or a rule."""
        if here.box is None:
            here.box = LogBox(number) if is_rule(words) else LogBox(number - 1) if begins(words) else None
            if here.box and here.box.number < number:
                here.box.ends_with(words, number)
            return
        if here.box.ends_with(words, number):
            self._box(here, before)

    def _box(self, here: File, before: Prefix) -> None:
        """What Open MPI has said, whole."""
        assert here.box is not None
        text, at, here.box = here.box.text, here.box.number, None
        if text:
            group = (here.name, before.task)
            order = self._order + at - here.lines
            self.kept.append(
                KeptEvent(
                    _BOX, at + 1, text, order, group, None, before.host, None, before.rank, here.time, "ERROR", {}
                )
            )

    def _keep(
        self, here: File, text: str, number: int, patterns: tuple[SignPattern, ...], before: Prefix,
        process: NcclProcess | None, level: str, place: str = "",
    ) -> None:  # fmt: skip
        host, pid = (process.host, process.pid) if process else (before.host, None)
        level = level or ("WARN" if "NCCL WARN " in text else "")  # a record whose head was cut off
        known = rank_of(text) if before.rank is None else before.rank  # of the world; others are within a group
        group, order = (here.name, before.task), self._order + number - here.lines
        if process is None and (here.message is not None or text[:1] in BEGIN):
            self._read_on(here, (*group, known), text, number)
        if process is None and before.rank is not None and not level:
            kepts = self._said_often(patterns, (host, pid, known, group))
            for kept in kepts:
                self._dropped += 1
                kept.again(number, text, order, here.time)
            if kepts:
                self._often = kepts
                return
        signs = _told([*Matcher.signs(text, patterns)], level)
        signs = [] if signs and not process and _MEANT.search(text) else signs
        if process is None and here.number < here.frames_until and all(sign in _GENERAL for sign, _ in signs):
            raised = self._tracebacks.exception((*group, known), text)
            signs = signs if raised is None else [(_RAISED, raised)]
        said_now: list[KeptEvent] = []
        ignored = self._tracebacks.ignored((*group, known))
        for sign, fields in signs:
            self._place(sign, fields, (*group, known), ignored=ignored, mild=_MILD.match(text) is not None)
            if place := fields.get("place") or place:
                fields["place"] = place.rpartition("/src/")[2]  # some builds print whole paths
            me = fields.pop("me", "") or fields.pop("self", "")
            rank = known if known is not None or not me.isdecimal() or len(me) > 7 else int(me)
            at = host or short(fields.pop("here", ""))
            same = self._counts.get(key := self._key(sign, (at, pid, rank, group), text), [])
            if (
                len(same) >= (_MOST_RAISED if sign == _RAISED else _MOST_OF_A_SIGN)
                or len(self.kept) >= _MOST_EVENTS
            ):
                self._dropped += 1
                if same:
                    same[-3:] = [*same[-2:], *same[-3:-2]]  # the last three are known, by which steps advance
                    same[-1].again(number, text, order, here.time, fields)
                continue
            self._counts[key] = same
            if not level and _is_bad(text, signs):  # asked only of what is kept: it takes long
                level = "ERROR"
            kept = KeptEvent(
                sign, number, text[:LONG], order, group, process, at, pid, rank, here.time, level, fields
            )
            same.append(kept)
            self.kept.append(kept)
            said_now += [kept] if sign in (_RAISED, _STOOD) or STACK in text else []
        if said_now and _GOES_ON.search(text):
            here.message = Message(said_now, (*group, known), number + _SOON)

    def _key(self, sign: str, who: tuple[object, ...], text: str) -> tuple[object, ...]:
        """What lines are counted by; those that words alone make one sign by what they begin with, too."""
        if sign not in _OF_WORDS:
            return (sign, *who)
        kinds = self._kinds.setdefault((sign, *who), set())
        kind = _NO_LETTER.sub("", text[:HEAD])[:_KIND]
        if kind not in kinds:
            if len(kinds) >= _MOST_KINDS:
                return (sign, *who)
            kinds.add(kind)
        return (sign, *who, kind)

    def _place(self, sign: str, fields: LogFields, writer: Writer, *, ignored: bool, mild: bool) -> None:
        """Add what the traceback above a line tells of it.

        ignored: it is one that Python only tells of. mild: the line itself says that it is a warning at most.
        """
        if sign in (_RAISED, _INTERRUPTED):
            fields.update(self._tracebacks.raised(writer))
            fields |= {"ends": "nothing"} if sign == _RAISED and mild else {}
        elif sign == _TRACEBACK:
            self._tracebacks.begun(writer, fields)
        elif sign == _WORKER and ignored:
            fields["ends"] = "nothing"

    def _read_on(self, here: File, writer: Writer, text: str, number: int) -> None:
        """A line that may belong to a traceback, or to the message of an exception above it."""
        if self._tracebacks.see(writer, text, number, bad=here.bad):
            here.frames_until = number + _FRAME
        message = here.message
        if message and message.writer == writer and message.ends_with(text, number):
            here.message = None

    def _said_often(self, patterns: tuple[SignPattern, ...], who: tuple[object, ...]) -> list[KeptEvent]:
        """The last of each sign where a rank said all of them often: a line of the same shape tells nothing new.

        Empty where it may do: where digits, or a host in the line, decide what it is.
        """
        kepts: list[KeptEvent] = []
        known = not any(sign.last for sign in patterns)
        for pattern in patterns:
            if pattern.last:
                break  # what is looked for last is not, where another sign is known
            same = self._counts.get((pattern.name, *who), [])
            if (
                pattern.digits
                or len(same) < _MOST_OF_A_SIGN
                or not (who[0] or "here" not in pattern.search.groupindex)
            ):
                return []
            known = known or not pattern.often
            kepts.append(same[-1])
        return kepts if known else []

    def logs(self) -> Logs:
        """All that was said."""
        ranks: dict[tuple[str, str], set[int]] = {}
        for kept in self.kept:
            if kept.rank is not None:
                ranks.setdefault(kept.group, set()).add(kept.rank)
        alone = {group: min(numbers) for group, numbers in ranks.items() if len(numbers) == 1}
        who = writers.Writers(self.log, self.groups, alone)
        events = [self._event(entry, who) for entry in self.kept]
        events += [self._call(call) for call in self._calls.differing(self.log)]
        processes = writers.processes(self.log, who, self.begins)
        return Logs(
            files=[
                LogFile(
                    name=file.name,
                    bytes=file.bytes,
                    lines=file.lines,
                    records=file.records,
                    operations=file.operations,
                    last_record=file.last_record,
                    advanced=file.advanced,
                    familiar=file.familiar,
                    problem=file.problem,
                    empty_folder=file.empty_folder,
                )
                for file in self._files
            ],
            events=events,
            processes=processes,
            communicators=communicators(self.log, self.begins),
            ranks=_ranks(
                [event.rank for event in events]
                + [process.rank for process in processes]
                + [rank for process in processes for rank in process.several]
            ),
            world=max((process.nranks for process in processes if process.nranks), default=None),
            version=self.log.version,
            dropped=self._dropped,
        )

    def _call(self, call: LoggedCall) -> LogEvent:
        """A collective that ranks of a communicator called differently."""
        return LogEvent(
            sign="collective-differs",
            file=call.file,
            line=call.line,
            text=call.text,
            order=self._order,
            host=call.host,
            pid=call.pid,
            rank=call.rank,
            fields=call.fields if call.place is None else call.fields | {"place": str(call.place)},
        )

    def _event(self, kept: KeptEvent, who: writers.Writers) -> LogEvent:
        host = kept.process.host if kept.process else kept.host  # its true name may be known later
        host, pid, rank = who.of(kept.group, host, kept.pid, kept.rank)
        return LogEvent(
            sign=kept.sign,
            file=kept.group[0],
            line=kept.line,
            text=_quoted(kept.text),
            order=kept.order,
            host=host,
            pid=pid,
            rank=rank,
            time=kept.time,
            level=kept.level,
            fields=kept.fields,
            count=kept.count,
        )


def _is_familiar(block: bytes) -> bool:
    """Whether NCCL, torch, a launcher or what runs on them is named at all, whatever stands before its lines."""
    lower = block.lower()
    return any(name in lower for name in _NAMES) or (b"[w" in lower and _OF_TORCH.search(block) is not None)


def _told(signs: list[tuple[str, WrittenFields]], level: str) -> list[tuple[str, WrittenFields]]:
    """What a line says. level: of NCCL's own lines, where words of failure mean less than their level."""
    if not level:
        return signs
    known = [pair for pair in signs if pair[0] not in _GENERAL]
    if level == "WARN" and all(sign == _LISTED for sign, _ in known):
        known.append((_WARNING, {}))
    return known


def _is_bad(text: str, signs: list[tuple[str, WrittenFields]]) -> bool:
    """Whether a line has words of failure, beside what it is known by."""
    return any(sign in _BAD for sign, _ in signs) or complains(text) or ended_badly(text)


def _quoted(line: str) -> str:
    """The line as it may be shown; a secret that the cut would halve is seen whole before."""
    return masked(line)[:TEXT]


def _ranks(numbers: Iterable[int | None]) -> list[int]:
    return sorted({rank for rank in numbers if rank is not None})
