"""The folder of a box -> facts. It may come from elsewhere: nothing in it is trusted, followed or waited for."""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import Iterator
from typing import Any

import msgspec

from ncclcheck.probes.box.read import forms, printed, series, spoken
from ncclcheck.probes.box.read.folders import listed
from ncclcheck.probes.facts import (
    Box,
    BoxProcess,
    BoxRaised,
    BoxRoom,
    BoxStall,
)
from ncclcheck.probes.facts.live.box import WENT_ON_S
from ncclcheck.probes.machine import files

_MOST_FILE = 16 * 2**20  # bytes of one file; the watcher's own bounds are below it
# of a box: nodes, files of exceptions, events of a kind, samples of a node: chosen, a box may come from elsewhere
_MOST_NODES, _MOST_SAID, _MOST_LISTED, _MOST_SAMPLES = 4096, 4096, 1000, 600
_ALL_SAMPLES, _LEAST_SAMPLES = 10_000, 60  # of all nodes together, and of each
_MOST_CLOCK_S = 86400.0  # off by more than a day is no clock
_OUTPUT_END = 65536  # characters of each output file: chosen, some hundred lines
_STACK_LINES = 12  # frames, the innermost: chosen, from torch's collective up to the training loop
# Of sys.exit() up to the end, for torch closes its groups meanwhile: launchers give their ranks as long. At a load
# of 31 on 2 cores one needed 10 s.
_LEAVES_S = 30.0
_MOST_THREADS = 16  # of one process: chosen
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|/site/sitecustomize\.py|<frozen|<string>")
_CRASH = "Fatal Python error"
_FRAME = re.compile(r'  File "(.+)", line (\d+|\?\?\?) in (.+)')
_Raw = dict[str, Any]


class NoBox(Exception):
    """A folder that is none; the text says why."""


def is_box(path: str) -> bool:
    """Whether a folder holds the record of a job, or records of several nodes."""
    return os.path.isdir(path) and bool(_nodes(path))


def read(path: str) -> list[Box]:
    """One box for each node of the last attempt. Raises NoBox."""
    folders = _nodes(path)
    metas = [next(_rows(os.path.join(folder, "meta.json"), "meta"), {}) for folder in folders]
    clocks: _Raw = next((meta["clocks"] for meta in metas if isinstance(meta.get("clocks"), dict)), {})
    most = max(_LEAST_SAMPLES, min(_MOST_SAMPLES, _ALL_SAMPLES // max(1, len(folders))))
    boxes = [box for folder in folders if (box := _node(folder, clocks, most)) is not None]
    if not boxes:
        raise NoBox(f"{path} holds no record of a job")
    last = max(boxes, key=lambda box: box.started)
    same = [box for box in boxes if (box.ended or _latest(box)) >= last.started]
    return sorted(same, key=lambda box: (box.host, box.folder))


def _latest(box: Box) -> float:
    """When anything was written there; where there is no wrapper (--print-env) that is what its ranks raised."""
    return max([box.last, box.started, *(raised.t for raised in box.raised)])


def logs_of(folder: str) -> list[str]:
    """What `ncclcheck logs` can read there: the job's output, NCCL's files, Flight Recorder's dumps."""
    there = listed(folder)
    names = [name for name in there if re.fullmatch(r"output(\.\d)?\.log|nccl\..+|fr_\w+", name)]
    names = [name for name in names if f"{name}.head" not in there]  # its beginning is kept, and it has a hole
    paths = [path for name in names if _is_file(path := os.path.join(folder, name)) and os.path.getsize(path)]
    return sorted(paths, key=lambda path: ("/output." not in path, os.path.getmtime(path)))


def look_of(folder: str) -> str:
    """What the look at a stalled job told, as it was written."""
    return _text(os.path.join(folder, "look.json"))


def _nodes(path: str) -> list[str]:
    if _is_file(os.path.join(path, "meta.json")):
        return [path]
    below = [os.path.join(path, name) for name in listed(path)[:_MOST_NODES]]
    return [
        folder for folder in below if not os.path.islink(folder) and _is_file(os.path.join(folder, "meta.json"))
    ]


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _text(path: str) -> str:
    if not _is_file(path):
        return ""
    try:
        return files.content(path, _MOST_FILE).decode(errors="backslashreplace")
    except OSError:
        return ""


def _rows(path: str, kind: str = "") -> Iterator[_Raw]:
    """Lines of JSON; the last one may be cut. kind: of lines that do not say what they are."""
    for line in _text(path).splitlines():
        try:
            row = msgspec.json.decode(line)
        except (msgspec.MsgspecError, RecursionError):
            continue
        if isinstance(row, dict) and forms.fits(row, kind):
            yield row


def _node(folder: str, clocks: _Raw, most: int) -> Box | None:
    try:
        return _NodeFolder(folder, clocks, most).box()
    except (msgspec.MsgspecError, TypeError, ValueError, KeyError, RecursionError):
        return None


class _NodeFolder:
    """One node's folder while it is read."""

    def __init__(self, folder: str, clocks: _Raw, most: int) -> None:
        self.folder = folder
        self.meta: _Raw = next(_rows(os.path.join(folder, "meta.json"), "meta"), {})
        self.events = [*_rows(os.path.join(folder, "events.jsonl"))]
        self.wrapper = [*_rows(os.path.join(folder, "wrapper.jsonl"))]
        samples = [row for n in (0, 1) for row in _rows(os.path.join(folder, f"samples.{n}.jsonl"), "sample")]
        self.samples = sorted(samples, key=lambda row: float(row["t"]))
        self.clock = self._clock(clocks)
        for row in (self.meta, *self.events, *self.wrapper, *self.samples):
            self._shift(row)
        self.groups = series.thinned(self.samples, most)

    def _clock(self, clocks: _Raw) -> float | None:
        """By what other nodes saw before the job, else by the file system of the box."""
        seen = [-float(clocks[self.meta["host"]])] if self.meta["host"] in clocks else []
        seen = seen or sorted(float(row["offset"]) for row in self._of("clock"))
        middle = seen[len(seen) // 2] if seen else None
        return middle if middle is not None and abs(middle) < _MOST_CLOCK_S else None

    def _shift(self, row: _Raw) -> _Raw:
        for name in ("t", "started"):
            if self.clock and name in row:
                row[name] += self.clock
        return row

    def box(self) -> Box:
        """All of it."""
        end: _Raw = next((row for row in self.wrapper if row["what"] == "end"), {})
        facts = {
            "host": self.meta["host"],
            "folder": self.folder,
            "command": self.meta["command"],
            "started": self.meta["started"],
            "ended": end.get("t"),
            "status": end.get("status"),
            "last": max([row["t"] for row in (*self.events[-1:], *self.samples[-1:])], default=0.0),
            "closed": any(row["what"] == "end" for row in self.events),
            "world": max((row["world"] for row in self._of("process")), default=0),
            "processes": self._processes(),
            "raised": self._raised(),
            "signals": [row for row in self.wrapper if row["what"] == "signal"],
            "sent": self._spoken_of("sent")[:_MOST_LISTED],
            "began": self._spoken_of("began")[-_MOST_LISTED:],
            "ooms": self._of("oom"),
            "stalls": self._stalls(),
            "kernel": self._of("kernel"),
            "limits": self._of("limit"),
            "network": [{"t": row["t"], "text": _counted(row)} for row in self._of("network")],
            "rooms": self._rooms(),
            "samples": series.samples(self.groups),
            "clock": self.clock,
            "addresses": next((row.get("addresses", []) for row in self._of("begin")), []),
            "silent": [row["host"] for row in self.wrapper if row["what"] == "silent"][:_MOST_LISTED],
            "xids": self._of("xid"),
            "peers": [{"t": row["t"], "by": [*row["by"]]} for row in self._of("unanswered")],
            "gpu_pids": next((row["pids"] for row in self._of("gpus")[::-1]), []),
            "lost": self._lost(),
        }  # fmt: skip
        return msgspec.convert(facts, type=Box)

    def _of(self, what: str) -> list[_Raw]:
        return [row for row in self.events if row["what"] == what][:_MOST_LISTED]

    def _processes(self) -> list[BoxProcess]:
        processes: dict[int, _Raw] = {}
        roots: set[int] = set()
        for row in self._of("process"):
            role = "helper" if row["helper"] else "rank" if row["rank"] >= 0 else "other"
            if row["root"]:
                role = "rank" if row.get("named") else "root"
                roots.add(row["pid"])
            known = processes.setdefault(row["pid"], {"pid": row["pid"], "born": row["t"]})
            known.update(parent=row["parent"], rank=row["rank"], role=role, command=row["command"])
            known["local_rank"] = row.get("local_rank", -1)
            known.update(world=row["world"], meets=row.get("meets") or "")
        for row in self.wrapper:
            if row["what"] == "start" and row["pid"] not in processes:  # it ended before the watcher looked
                command = self.meta["command"].partition(" ")[0]
                root = {"pid": row["pid"], "born": row["t"], "role": "root", "command": command}
                processes[row["pid"]] = root
                roots.add(row["pid"])
        for row in self._of("gone"):
            known = processes.get(row["pid"], {})
            if known and "gone" not in known:
                known.update(gone=row["t"], status=row["status"], rss_most=row["rss_most"])
                known["injected"] = row.get("injected")
        self._looked_at(processes)
        end = next((row["status"] for row in self.wrapper if row["what"] == "end"), None)
        for pid in roots:
            processes[pid]["status"] = _status(end, processes[pid].get("status"))
        unseen = [pid for pid, known in processes.items() if known.get("gone") and known.get("status") is None]
        statuses = printed.statuses(self._output_end()) if unseen else {}
        for pid in unseen:  # its parent had waited for it before the watcher could look
            processes[pid]["status"] = statuses.get(pid)
        self._measured(processes)
        stalled = self._last_stall()
        for pid, _, state, wchan in stalled.get("states", ()):
            processes.get(pid, {}).update(state=state, wchan=wchan)
        self._spoken(processes)
        self._left(processes)
        self._aborted(processes)
        self._gave_up(processes)
        then = {pid: size for pid, size in (stalled.get("stacks") or ()) if size}
        for pid, process in processes.items():
            text = _text(os.path.join(self.folder, "fault", f"{pid}.txt"))
            if pid in then and _CRASH not in text[then[pid] :]:
                text = text[: then[pid]]  # a rank that is being ended says nothing of the stall
            stack, process["threads"] = _stacks(text)
            process.setdefault("stack", stack)
            if process["role"] == "rank":
                process.update(series.of_process(pid, self.groups)._asdict())
        return [msgspec.convert(process, type=BoxProcess) for process in processes.values()]

    def _looked_at(self, processes: dict[int, _Raw]) -> None:
        """What the watcher looked for as one crashed, and as all stood still."""
        for row in self._of("mapped"):
            processes.get(row["pid"], {})["mapped"] = row["text"]
        for row in self._of("pipe"):
            processes.get(row["pid"], {})["pipe"] = row["file"] or "one that is not known"
        for row in self._of("stall"):
            for pid, _, state, wchan in row["states"]:
                processes.get(pid, {}).update(state=state, wchan=wchan)

    def _last_stall(self) -> _Raw:
        """The stall in which the job ended or still is; nothing where it went on for long."""
        stall: _Raw = next(iter(self._of("stall")[-1:]), {})
        on = next((row["t"] for row in self._of("resumed") if stall and row["t"] > stall["t"]), None)
        if on is None:
            return stall
        ranks = {row["pid"] for row in self._of("process") if row["rank"] >= 0 and not row["helper"]}
        ends = [row["t"] for row in self._of("gone") if row["pid"] in ranks and row["t"] > on]
        ends += [row["t"] for row in self.wrapper if row["what"] == "end"]
        return stall if ends and min(ends) <= on + WENT_ON_S else {}

    def _measured(self, processes: dict[int, _Raw]) -> None:
        """Memory, and for how long there was no CPU time, by the samples."""
        used: dict[int, int] = {}
        since: dict[int, float] = {}
        for row in self.samples:
            for pid, cpu, rss, _, state, *_ in row["p"]:
                if used.get(pid) != cpu:
                    used[pid], since[pid] = cpu, row["t"]
                if known := processes.get(pid):
                    known["rss_most"] = max(known.get("rss_most", 0), rss << 10)
                    known["idle_s"] = max(0.0, row["t"] - since[pid])
                    known["state"] = state

    def _spoken(self, processes: dict[int, _Raw]) -> None:
        """What each printed last; where there are no ranks all that was printed is COMMAND's."""
        last, ranks = spoken.Last(self.folder), any(process["role"] == "rank" for process in processes.values())
        for pid, known in processes.items():
            rank = known["rank"] if known["role"] == "rank" else -1
            known["printed"], known["odd"] = last.of(pid, rank), last.odd_of(pid, rank)
            if known["role"] == "root" and not ranks:
                known["printed"] = [*last.any]
        known_ranks = [known for known in processes.values() if known["role"] == "rank"]
        if not any(known["printed"] for known in known_ranks):  # Python itself, before it runs anything
            for known in known_ranks:
                known["printed"] = [*last.loose]

    def _left(self, processes: dict[int, _Raw]) -> None:
        """Where those called sys.exit() that ended by it."""
        for row in self._said():
            known = processes.get(row["pid"], {})
            if row["what"] == "lock":
                known["lock"] = row["file"]
            if row["what"] == "left" and _ended_by(row, known):
                if not row["code"]:
                    known["left"] = self._shift(row)["t"]
                else:
                    known.update(asked=self._shift(row)["t"], code=row["code"])
                known["left_at"] = _places(row["at"])[:_STACK_LINES]
                known["caught"] = f"{row['type']}: {row['message']}" if row.get("type") and not row["code"] else ""

    def _said(self) -> list[_Raw]:
        folder = os.path.join(self.folder, "said")
        rows = [row for name in listed(folder)[:_MOST_SAID] for row in _rows(os.path.join(folder, name))]
        return [row for row in rows if row["what"] in ("raised", "left", "sent", "began", "lock")]

    def _spoken_of(self, what: str) -> list[_Raw]:
        rows = [row for row in self._said() if row["what"] == what]
        return sorted(({**self._shift(row), "at": _places(row["at"])} for row in rows), key=lambda row: row["t"])

    def _aborted(self, processes: dict[int, _Raw]) -> None:
        """What a C++ exception or an assertion printed, where it can be only one process's."""
        whose = [known for known in processes.values() if (known.get("status") or 0) & 0x7F == signal.SIGABRT]
        words = printed.abort(self._output_end()) if whose else []
        if words and (len(whose) == 1 or len({*words}) == 1):
            for process in whose:
                process["aborted"] = words[0]

    def _gave_up(self, processes: dict[int, _Raw]) -> None:
        """Where the only rank was that said nothing and ended with exit code 1, by its faulthandler's timer."""
        speakers = {row["pid"] for row in self._said() if row["what"] in ("raised", "left")}
        silent = [
            known for pid, known in processes.items() if pid not in speakers and known.get("status") == 1 << 8
            and known["role"] == "rank"
        ]  # fmt: skip
        after, frames = printed.dumped(self._output_end()) if len(silent) == 1 else ("", [])
        if frames:
            silent[0].update(stack=frames[:_STACK_LINES], left_at=frames[:_STACK_LINES], gave_up=after)

    def _raised(self) -> list[BoxRaised]:
        rows, ends = self._said(), {row["pid"]: {**row, "gone": row["t"]} for row in self._of("gone")}
        raised_rows = [
            {**self._shift(row), "frames": _places(row["frames"])}
            for row in rows
            if row["what"] == "raised"
            or (row.get("type") and row.get("code") and _ended_by(row, ends.get(row["pid"], {})))
        ]
        for record in raised_rows:
            record["host"] = "" if record.get("host") == self.meta["host"] else record.get("host", "")
        if not [raised for raised in raised_rows if not raised.get("thread")]:
            raised_rows += self._printed()
        return sorted((msgspec.convert(row, type=BoxRaised) for row in raised_rows), key=lambda raised: raised.t)

    def _printed(self) -> list[_Raw]:
        """The exception that the only Python process which could not say it into the box has printed."""
        failed = [row for row in self._of("gone") if row.get("injected") is False and row["status"] == 1 << 8]
        python = [(row["t"], row["pid"], row["rank"]) for row in failed if "python" in row.get("name", "")]
        if not self._of("process"):  # it ended before the watcher looked
            ends = [row["t"] for row in self.wrapper if row["what"] == "end" and row.get("status") == 1]
            python = [(t, row["pid"], -1) for row in self.wrapper if row["what"] == "start" for t in ends]
        if len(python) != 1:
            return []
        raised = printed.exception(self._output_end())
        [(t, pid, rank)] = python
        return [{**raised, "t": t - 0.001, "pid": pid, "rank": rank}] if raised else []

    def _output_end(self) -> str:
        """What the job printed last."""
        names = sorted((n for n in listed(self.folder) if re.fullmatch(r"output(\.\d)?\.log", n)), key=self._age)
        return "".join(_text(os.path.join(self.folder, name))[-_OUTPUT_END:] for name in names[-2:])

    def _age(self, name: str) -> float:
        return os.path.getmtime(os.path.join(self.folder, name))

    def _stalls(self) -> list[BoxStall]:
        killed = bool(self._of("killed"))
        resumed = [row["t"] for row in self._of("resumed")]
        return [
            BoxStall(
                t=row["t"], silent=row["silent"], limit=row["limit"], killed=killed,
                resumed=next((t for t in resumed if t > row["t"]), None),
            )
            for row in self._of("stall")
        ]  # fmt: skip

    def _rooms(self) -> list[BoxRoom]:
        least: dict[str, BoxRoom] = {}
        for row in self.samples:
            for folder, free in row["free"].items():
                if folder not in least or free < least[folder].free:
                    least[folder] = BoxRoom(folder=folder, free=free, t=row["t"])
        return [*least.values()][:_MOST_LISTED]

    def _lost(self) -> list[str]:
        begin: _Raw = next(iter(self._of("begin")), {})
        gaps = [] if self.events else ["the watcher wrote nothing"]
        gaps += ["the kernel's log may not be read"] if begin and not begin["kmsg"] else []
        gaps += (
            ["the kernel does not count processes killed for memory here"] if begin and not begin["oom"] else []
        )
        return gaps


def _status(end: int | None, seen: int | None) -> int | None:
    """Of COMMAND, as waitpid(2) has it: the wrapper may have waited for it before the watcher."""
    return seen if end is None else end << 8 if end >= 0 else -end


def _ended_by(row: _Raw, process: _Raw) -> bool:
    """Whether its call of sys.exit() ended it, or its launcher meanwhile: a program may catch it and go on."""
    status, gone = process.get("status"), process.get("gone")
    if status is None:
        return True
    return bool(status == row["code"] << 8 or (status & 0x7F and gone and gone < row["t"] + _LEAVES_S))


def _places(rows: list[list[str | int]]) -> list[str]:
    return [f"{file}:{line} in {function}" for file, line, function in rows]


def _counted(row: _Raw) -> str:
    return f"{row['name']}: " + ", ".join(f"{name} +{count}" for name, count in row["trouble"].items())


def _stacks(text: str) -> tuple[list[str], list[str]]:
    """The current thread of the last dump in a file of faulthandler, the innermost frame first.

    Where that is none of Python's, as one of gloo's that aborts, the main thread: it is the last one of a dump.
    And the user's own lines in which the other threads before it were.
    """
    text = text[max(text.rfind(_CRASH), 0) :]
    marks = re.findall(r"^(Current thread|Thread) 0x", text, flags=re.MULTILINE)
    blocks = re.split(r"^(?:Current thread|Thread) 0x\w+[^\n]*\n", text, flags=re.MULTILINE)[1:]
    dumped = [
        (mark, frames)
        for mark, block in zip(marks, blocks, strict=True)
        if (frames := _FRAME.findall(block.partition("\n\n")[0]))
    ]
    current = [frames for mark, frames in dumped if mark == "Current thread"] or [stack for _, stack in dumped]
    frames = current[-1] if current else []
    ends = [at for at, (mark, _) in enumerate(dumped) if mark == "Current thread"]
    others = dumped[ends[-2] + 1 if len(ends) > 1 else 0 : ends[-1] if ends else 0]
    own = [
        [frame for frame in _shown(stack) if not _LIBRARY.search(frame)] for _, stack in others[-_MOST_THREADS:]
    ]
    return _shown(frames), [frame[0] for frame in own if frame]


def _shown(frames: list[tuple[str, str, str]]) -> list[str]:
    return [f"{file}:{line} in {name}"[:300] for file, line, name in frames[:_STACK_LINES]]
