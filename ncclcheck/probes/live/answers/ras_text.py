"""The text of RAS's VERBOSE STATUS -> facts: NCCL 2.24 and 2.25, and 2.26 and later."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.live.ras import (
    RasCommunicator,
    RasGroup,
    RasLaunched,
    RasLook,
    RasRank,
    RasStatus,
)

_VERSION = re.compile(r"NCCL version (\d{1,2}\.\d{1,3}\.\d{1,3}) compiled with CUDA")
_GROUP = re.compile(
    r" *\d{1,7} +(\d{1,9}) +\d{1,9} +[\d-]{1,19} +(\d{1,9}) +(\d{1,12}) +([A-Z]{2,12}) +([A-Z,]{2,40})$"
)
_SECTION = re.compile(r"(?:#(\d{1,9})-(\d{1,9}) \(([0-9a-f]{1,16})\) )?([A-Z]{4,12})$")
_WHERE = (
    r"(?:GPU ([\d, ]{1,40}(?:\(NVML [\d,]{1,40}\))?) managed by process (\d{1,10}) on node (\S{1,253})"
    r"|\[process information not found\])"
)
_RANK = re.compile(
    rf"  Rank (\d{{1,7}})(?: has status (\w{{1,20}})| has launched up to operation (\d{{1,18}})"
    rf"| has (not) launched any operations| reported (.{{1,200}}?))?(?: -- {_WHERE})?$"
)
_SHARE = re.compile(
    r"  (\d{1,7}) ranks (?:have status (\w{1,20})|have launched up to operation (\d{1,18})"
    r"|have (not) launched any operations|reported (.{1,200}))$"
)
_COUNTS = re.compile(r"  Communicator ranks have different (?:(\w{1,20}) operation counts|status)$")
_OLD_MISSING = re.compile(r"  The missing ranks?: ([\d, ]{1,100000})$")
_PROCESS = re.compile(r"  Process (\d{1,10}) on node (\S{1,253}) managing GPUs? \S")
_DEAD = re.compile(r"  (\d{1,7}) job process(?:es are| is) considered dead")
_TIMEOUTS = re.compile(r"  Encountered (\d{1,9}) communication timeout")
_KNOWN = re.compile(
    r"  (?:Missing communicator data from|\[could not find|Initialization error|Asynchronous error)"
)
# of one answer, and communicators with trouble: chosen, an answer is not trusted to end
_MOST_LINES, _MOST_TROUBLED = 200_000, 4096


class NoStatus(ValueError):
    """What was answered is no status of RAS."""


def read(text: str) -> RasLook:
    """One answer. Raises NoStatus."""
    version = _VERSION.search(text[:400])
    if version is None:
        raise NoStatus(f"no status of RAS: {text[:60]!r}")
    body = _Body()
    lines = text.splitlines()[:_MOST_LINES]
    groups = [_group(match) for line in lines if (match := _GROUP.fullmatch(line))]
    below = next((at for at, line in enumerate(lines) if line in ("Errors", "Warnings")), len(lines))
    for line in lines[below:]:
        body.take(line)
    return RasLook(
        version=version[1],
        groups=groups,
        troubled=[*body.troubled()],
        processes=body.processes,
        dead=body.dead,
        timeouts=body.timeouts,
        unread=body.unread,
    )


def _group(match: re.Match[str]) -> RasGroup:
    communicators, ranks, answered, status, errors = match.groups()
    return RasGroup(
        communicators=int(communicators),
        ranks=int(ranks),
        answered=int(answered),
        status=status,
        errors=[] if errors == "OK" else errors.split(","),
    )


class _Body:
    """What is said below `Errors` and `Warnings`, line by line; a rank's line belongs to the heads above it."""

    def __init__(self) -> None:
        self.processes: list[tuple[str, int]] = []
        self.dead = self.timeouts = self.unread = 0
        self.communicators: dict[str, RasCommunicator] = {}
        self.current: RasCommunicator | None = None
        self.section, self.op = "", ""
        self.share: RasLaunched | RasStatus | None = None

    def troubled(self) -> Iterator[RasCommunicator]:
        """The communicators, each once."""
        yield from self.communicators.values()

    def take(self, line: str) -> None:
        """One line."""
        if not line.startswith("  "):
            self._head(line)
        elif match := _COUNTS.fullmatch(line):
            self.op, self.share = match[1] or "", None
            self.op = "" if self.op == "collective" else self.op
        elif match := _SHARE.fullmatch(line):
            self._shared(match)
        elif match := _RANK.fullmatch(line):
            self._rank(match)
        elif match := _OLD_MISSING.fullmatch(line):
            numbers = [word for word in match[1].replace(",", " ").split() if len(word) < 8]
            self._add_missing(*(RasRank(rank=int(word)) for word in numbers))
        elif match := _PROCESS.match(line):
            self.processes.append((match[2], int(match[1])))
        elif match := _DEAD.match(line):
            self.dead += int(match[1])
        elif match := _TIMEOUTS.match(line):
            self.timeouts += int(match[1])
        elif not _KNOWN.match(line):
            self.unread += 1

    def _head(self, line: str) -> None:
        self.share = None
        if match := _SECTION.fullmatch(line):
            self.section = match[4]
            name = match[3] and f"{match[1]}-{match[2]} {match[3]}"
            self.current = self.communicators.get(name) if name else None
            if name and self.current is None and len(self.communicators) < _MOST_TROUBLED:
                self.current = self.communicators[name] = RasCommunicator(hash=match[3])
        elif line.strip("=") and line not in ("Errors", "Warnings"):
            self.unread += 1

    def _shared(self, match: re.Match[str]) -> None:
        count, status, launched, none, error = match.groups()
        self._share(int(count), status or error, 0 if none else launched)

    def _share(self, count: int, status: str | None, launched: str | int | None) -> None:
        if self.current is None:
            return
        if launched is not None:
            self.share = RasLaunched(op=self.op, launched=int(launched), count=count)
            self.current.launched.append(self.share)
        elif status:
            self.share = RasStatus(status=status, count=count)
            self.current.statuses.append(self.share)

    def _rank(self, match: re.Match[str]) -> None:
        rank, status, launched, none, error, gpu, pid, host = match.groups()
        missing = RasRank(rank=int(rank), host=host or "", pid=int(pid or 0), gpu=(gpu or "").strip())
        if status or launched or none or error:
            self._share(1, status or error, 0 if none else launched)
            if self.share is not None:
                self.share.ranks.append(missing)
            self.share = None
        elif self.section == "INCOMPLETE":
            self._add_missing(missing)
        elif self.share is not None:
            self.share.ranks.append(missing)

    def _add_missing(self, *ranks: RasRank) -> None:
        if self.current is not None:
            self.current.missing.extend(ranks)
