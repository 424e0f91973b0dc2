"""Test logs with known causes, tests/data/logs/cases/*.case: read, and mixed with the ranks that suffer with them.

A header of `key: value` lines, `---`, then one log line a line, with the global rank that printed it before `| `,
or `*` for nobody's (torchrun's own). `also` may be left out, and so may `nodes` and `ends` (sound, dies or hangs)
where the lines tell them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

from msgspec import Struct

from tests.helpers import bystanders
from tests.helpers.bystanders import Place

FOLDER = Path(__file__).resolve().parents[1] / "data/logs/cases"
NEEDED = {"mode", "about", "host", "rank", "world", "nccl"}
KEYS = NEEDED | {"also", "nodes", "ends"}
LAUNCHERS = ("srun", "mpirun", "ray", "kubernetes", "torchrun", "bare")
UNDER_TORCHRUN = ("torchrun", "kubernetes", "bare")

Line = tuple["int | None", str]

BAD = re.compile(
    r"NCCL WARN|Traceback|Watchdog caught|Error\b|ERROR|Segmentation fault|core dumped|killed by signal"
)
HARMLESS = re.compile(r"libibverbs|libnccl-|OMP_NUM_THREADS|OFI")
WHERE = re.compile(r"(?:^|\] )([\w.-]+):(\d+):\d+ (?:\[-?\d+\] )?.*?NCCL (?:INFO|WARN)")


class Case(Struct, frozen=True, kw_only=True):
    """One log and what is true of it."""

    name: str
    mode: str
    about: str
    also: tuple[str, ...] = ()
    host: str | None
    rank: int | None
    world: int
    nccl: str
    nodes: int = 0
    ends: str = ""
    lines: tuple[Line, ...]

    def clean(self) -> bytes:
        """The lines as they were printed."""
        return "".join(f"{text}\n" for _, text in self.lines).encode()

    def interleaved(self, seed: int) -> bytes:
        """All ranks of the run in one file, under the prefixes of one launcher."""
        chance = Random(f"{self.name} {seed}")
        return "".join(f"{line}\n" for line in _dressed(self, _mixed(self, chance), chance)).encode()


def cases(folder: Path = FOLDER) -> list[Case]:
    """All of them, in the order of their names."""
    return [load(path) for path in sorted(folder.glob("*.case"))]


def load(path: Path) -> Case:
    """Read one file; what is wrong with it is named."""
    head, separator, body = path.read_text().partition("\n---\n")
    header = dict(_pair(path, line) for line in head.splitlines())
    lost = sorted(NEEDED - header.keys()) + sorted(header.keys() - KEYS)
    if not separator or lost:
        raise ValueError(f"{path.name}: {'missing or unknown: ' + ', '.join(lost) if lost else 'no --- line'}")
    world = int(header["world"])
    return Case(
        name=path.stem,
        mode=header["mode"],
        about=header["about"],
        also=tuple(header.get("also", "").replace(",", " ").split()),
        host=None if header["host"] == "-" else header["host"],
        rank=None if header["rank"] == "-" else int(header["rank"]),
        world=world,
        nccl=header["nccl"],
        nodes=int(header.get("nodes", "0")),
        ends=header.get("ends", ""),
        lines=tuple(_line(path, world, line) for line in body.splitlines()),
    )


def _pair(path: Path, line: str) -> tuple[str, str]:
    key, colon, value = line.partition(":")
    if not colon:
        raise ValueError(f"{path.name}: no header line: {line!r}")
    return key.strip(), value.partition(" #")[0].strip()


# What stands before a line of one of several writers: of srun, mpirun, torchrun, torch, Ray, vLLM, NCCL.
_WRITER = re.compile(
    rb"\s*(?:(\d{1,5}): |\[\d+,(\d+)\]<std\w+>:|\[(?:default|rank)(\d+)\]:|.{0,80}?\[Rank (\d+)\]"
    rb"|\(\w+ (?:\w+=\d+ )*pid=(\d+)|([\w.-]+:\d+):\d+ \[\d+\])"
)


def by_writer(data: bytes) -> list[bytes]:
    """The lines of a log in one file for each of its writers; those of nobody in the last one."""
    files: dict[bytes, list[bytes]] = {}
    for line in data.splitlines(keepends=True):
        match = _WRITER.match(line)
        files.setdefault(next(filter(None, match.groups()), b"") if match else b"", []).append(line)
    return [b"".join(files[writer]) for writer in sorted(files, key=lambda writer: (not writer, writer))]


def _line(path: Path, world: int, line: str) -> Line:
    mark, bar, text = line.partition("|")
    if not bar or not (mark == "*" or (mark.isdecimal() and int(mark) < world)):
        raise ValueError(f"{path.name}: no rank of {world} before: {line[:60]!r}")
    return (None if mark == "*" else int(mark)), text.removeprefix(" ")


# --- who is where ---


def _places(case: Case) -> dict[int, Place]:
    """Host and process of every rank: those that the lines tell, and likely ones for the rest."""
    processes = {
        rank: (match[1], int(match[2]))
        for rank, text in reversed(case.lines)
        if rank is not None and (match := WHERE.search(text))
    }
    if case.host and case.rank is not None:
        processes.setdefault(case.rank, (case.host, 21400 + 7 * case.rank))
    share = _share(case, {rank: host for rank, (host, _) in processes.items()})
    hosts = {rank // share: host for rank, (host, _) in processes.items()}
    first, known = min(hosts.items(), default=(0, case.host or "node01"))
    stem = known.rstrip("0123456789")
    digits = known[len(stem) :]
    places = {}
    for rank in range(case.world):
        block = rank // share
        name = hosts.get(block, f"{stem}{int(digits or 1) + block - first:0{len(digits)}}")
        host, pid = processes.get(rank, (name, 21400 + 7 * rank))
        places[rank] = Place(host, pid, rank % share, block)
    return places


def _share(case: Case, hosts: dict[int, str]) -> int:
    """Ranks a node: as the header says, or the most with which each known host has a block of its own."""
    if case.nodes:
        return case.world // case.nodes
    for share in range(case.world, 1, -1):
        blocks = {(rank // share, host) for rank, host in hosts.items()}
        if case.world % share == 0 and len(blocks) == len(set(hosts.values())) == len(dict(blocks)):
            return share
    return 1 if hosts else case.world


# --- the order ---


def _ends(case: Case) -> str:
    """How the run ended, by the header or by the lines."""
    if case.mode[0] in "hF":
        return "sound"
    wrong = [text for _, text in case.lines if BAD.search(text) and not HARMLESS.search(text)]
    hung = any("operation timeout" in text for text in wrong) and not any("NCCL WARN" in text for text in wrong)
    return case.ends or ("hangs" if hung else "dies" if wrong else "sound")


def _mixed(case: Case, chance: Random) -> list[Line]:
    """All lines in an order in which they can have been printed: nobody suffers before the cause."""
    places = _places(case)
    seen = {rank for rank, _ in case.lines} - {None}
    silent = [rank for rank in range(case.world) if rank not in seen] if seen else []
    ends = _ends(case)
    cut = len(case.lines) if ends == "sound" else _cause(case)
    beginnings: list[list[Line]] = [
        [(rank, text) for text in bystanders.beginning(case, rank, places)] for rank in silent
    ]
    reported = cut < len(case.lines) and case.lines[cut][0] is None  # by torchrun, after all the ranks have ended
    calm = cut if reported else cut + 3
    lines = _merged(chance, [list(case.lines[:cut]), *beginnings]) + list(case.lines[cut:calm])
    endings: list[list[Line]] = []
    if ends == "hangs":
        endings = [[(rank, text) for text in bystanders.waited(case, rank, chance)] for rank in silent]
    elif ends == "dies":
        endings = [[(rank, text) for text in bystanders.suffered(case, rank, places, chance)] for rank in silent]
    if reported:
        return lines + _merged(chance, endings) + list(case.lines[cut:])
    return lines + _merged(chance, [list(case.lines[calm:]), *endings])


def _cause(case: Case) -> int:
    """The index of the first bad line of the rank at fault, or of anyone."""
    bad = [index for index, (_, text) in enumerate(case.lines) if BAD.search(text) and not HARMLESS.search(text)]
    own = [index for index in bad if case.lines[index][0] == case.rank and case.rank is not None]
    return min(own or bad, default=len(case.lines))


def _merged(chance: Random, streams: list[list[Line]]) -> list[Line]:
    """One list of many: a few lines at a time from any of them, each in its own order."""
    lines: list[Line] = []
    while streams := [stream for stream in streams if stream]:
        stream = chance.choices(streams, [len(stream) for stream in streams])[0]
        burst = chance.randint(1, 4)
        lines += stream[:burst]
        del stream[:burst]
    return lines


# --- how it reaches the file ---


def _dressed(case: Case, lines: list[Line], chance: Random) -> Iterator[str]:
    """The lines under a launcher's prefixes; ranks that share a pipe may glue two records together."""
    elastic = any("elastic" in text or "torchrun" in text for _, text in case.lines)
    launcher = chance.choice(UNDER_TORCHRUN if elastic else LAUNCHERS)
    coloured, shared, clock, line = chance.random() < 0.25, launcher in ("bare", "kubernetes"), 0.0, ""
    places = _places(case)
    if launcher in UNDER_TORCHRUN and _ends(case) == "dies" and any(rank is not None for rank, _ in case.lines):
        lines = [*lines, *((None, text) for text in bystanders.stopped(case, places, chance))]
    for (rank, text), (other, after) in zip(lines, [*lines[1:], (None, "")], strict=True):
        clock += chance.uniform(0.0001, 0.02)
        if not line:
            line = _label(case, launcher, rank, text, places, clock)
            line = f"\x1b[36m{line}\x1b[0m" if coloured and line else line
        line += f"\x1b[33m{text}\x1b[0m" if coloured and "NCCL WARN" in text else text
        records = other != rank and "NCCL INFO" in text and "NCCL INFO" in after
        glued = shared and records and chance.random() < 0.1
        if not glued:
            yield line
            line = ""


def _label(case: Case, launcher: str, rank: int | None, text: str, places: dict[int, Place], clock: float) -> str:
    if launcher == "kubernetes":
        return f"2026-03-04T07:21:{clock % 60:012.9f}Z "
    if rank is None or launcher == "bare":
        return ""
    if launcher == "srun":
        return f"{rank:>{len(str(case.world - 1))}}: "
    if launcher == "mpirun":
        return f"[1,{rank}]<{'stdout' if 'NCCL' in text else 'stderr'}>:"
    if launcher == "ray":
        return f"(RayWorkerWrapper pid={places[rank].pid}) "
    return f"[default{places[rank].local}]:"
