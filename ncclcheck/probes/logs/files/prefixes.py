"""What launchers write before a line: which rank, task, pod or host it came from."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

HEAD = 200  # of a line, where prefixes stand
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK = re.compile(
    r"\[rank(\d{1,6})\]:|\[Rank (\d{1,6})\]|\[PG (?:ID )?0(?: PG GUID 0)?[ (][^\]]{0,80}\bRank (\d{1,6})\]"
)
_OF_TORCH = re.compile(r"\[rank(\d{1,6})\]:\s?(?=\[[EWIF]\d{3,4} )")  # then glog's own head: nothing else follows
_BLANKS = (" ", "\t")
_INDENTED = re.compile(r"[ \t]{1,8}(?=\[rank\d)")  # as a paste may be
_MOST = 6  # prefixes of one line: chosen, launchers within launchers write one each
_TIME = r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?\s*"
_FORMS = (
    r"(?:> ){1,3}(?=[\[(\w])",  # a log that was quoted in a mail or a ticket
    _TIME,  # docker logs -t, kubectl logs --timestamps
    r"std(?:out|err) [FP] |\|\s*",  # after a time: a container's log as it lies on the node
    r" {2,12}\| ",  # a traceback within an ExceptionGroup
    r"- [\w.]{1,60} - INFO - (?=\[rank\d)",  # a logger that hands on what a rank printed
    r"\[rank(?P<rank>\d{1,6})\](?::\s?|\s)",  # torch 2.2 and later, of itself
    r"\[(?P<task>[A-Za-z][A-Za-z_-]{0,40}\d{1,5})\]:\s?",  # torchrun --tee: role and local rank
    # mpirun --tag-output, of version 5 too; SageMaker
    r"\[(?:[\w.-]{1,200}@)?\d{1,5},(?:mpirank:)?(?P<rank>\d{1,6})(?:,[\w.-]{1,63})?\]<std(?:out|err|diag)>:\s?",
    r"(?P<task>\d{1,6}): ",  # srun --label
    # vLLM, and what FastChat makes of standard error
    r"E?(?:RROR|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[\S{1,80}\]|\S{1,80}\])\s",
    r"ERROR \d{1,8} \[\w[\w.]{1,60}:\d{1,5}\] ",  # the same, of an older version: with the process
    r"\|\s(?:ERROR|INFO|WARNING)\s{0,3}\|\sstd(?:err|out)\s\|\s",
    # Ray, vLLM
    r"\((?:\w{1,80}(?:\[[^\]]{1,40}\])? )?(?:rank=(?P<rank>\d{1,6}) )?"
    r"(?P<task>pid=\d{1,10}(?:, ip=(?P<host>[\w.:]{1,64}))?)\)\s",
    r"\[(?P<task>pod/[\w.-]{1,253}/[\w.-]{1,63})\]\s",  # kubectl logs --prefix
    r"(?P<task>[\w.-]{1,128})\s+(?:\|\s|\[std(?:out|err)\] )",  # docker compose, launchers of models
    r"(?P<host>(?=[a-z-]{0,60}\d)[a-z][a-z0-9.-]{0,62}|\d{1,3}(?:\.\d{1,3}){3}): (?!error)",  # pdsh, DeepSpeed
)
_NUMBERED = (re.sub(r"\?P<(\w+)>", rf"?P<\1_{number}>", form) for number, form in enumerate(_FORMS))
_ONE = re.compile("|".join(_NUMBERED))  # one search is faster than ten


def plain(text: str) -> str:
    """Without colours, and without the NUL that torch writes after what it says of a worker's signal."""
    text = text.lstrip("\0")
    return _COLOUR.sub("", text) if "\x1b" in text else text


class Prefix(NamedTuple):
    """rank: of the world. task: what the launcher calls it, the same for all lines of one process or node.

    host: its name without the domain, or its address.
    """

    rank: int | None = None
    task: str = ""
    host: str = ""
    end: int = 0


def prefix(text: str) -> Prefix:
    """What stands before a line, as far as it is known; `end` is where the line itself begins."""
    if match := _OF_TORCH.match(text):
        return Prefix(int(match[1]), end=match.end())
    if text[:1] in _BLANKS and (indent := _INDENTED.match(text)):
        inner = prefix(text[indent.end() :])
        return inner._replace(end=inner.end + indent.end())
    return _prefix(text)


@lru_cache(maxsize=4096)
def _prefix(text: str) -> Prefix:
    rank, task, host, end = None, [], "", 0
    for _ in range(_MOST):
        match = _ONE.match(text, end)
        if match is None:
            break
        fields = {name.partition("_")[0]: value for name, value in match.groupdict().items() if value}
        rank = int(fields["rank"]) if fields.get("rank") else rank
        host = fields.get("host") or host
        task += [fields["task"]] if fields.get("task") else []
        end = match.end()
    return Prefix(rank, " ".join(task), short(host), end)


def rank_of(text: str) -> int | None:
    """What torch writes before its own lines, where something else stands before it: a progress bar, a time.

    Of a group that is not the default one the rank within it is another matter.
    """
    match = _RANK.search(text[:HEAD])
    return int(next(filter(None, match.groups()))) if match else None


def short(host: str) -> str:
    """A host's name without its domain, or its address."""
    return host if is_address(host) else host.partition(".")[0]


def is_address(host: str) -> bool:
    """Whether a host is told by its address."""
    return host[:1].isdecimal() or ":" in host
