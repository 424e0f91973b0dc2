"""What a line of a box's files must have. One that is damaged is left out, and the rest is read."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ncclcheck.probes.facts.guard.bounds import Amount, Pid, Whole

_Rank = Annotated[int, Meta(ge=-1, le=2**31)]
_Signed = Annotated[int, Meta(ge=-(2**31), le=2**31)]
_Frame = tuple[str, int, str]  # file, line, function
_Fields = dict[str, Any]

# By `what`; `meta` and `sample` are lines of files that have no such word. What is in a tuple need not be there.
_WANTED: dict[str, _Fields] = {
    "meta": {"host": str, "command": str, "started": Amount},
    "sample": {
        "t": Amount, "p": list[list[int | str]], "free": dict[str, Whole], "unsent": (Whole,), "held": (Whole,),
        "net": (dict[str, tuple[Whole, Whole]],), "node": (tuple[Whole, Whole, Whole],),
        "gpus": (list[list[Whole | None]],),
    },
    "begin": {"t": Amount, "kmsg": bool, "oom": list[str], "addresses": (list[str],)},
    "process": {
        "t": Amount, "pid": Pid, "parent": Whole, "rank": _Rank, "world": Whole, "helper": bool, "root": bool,
        "command": str, "local_rank": (_Rank,), "meets": (str,), "named": (bool,),
    },
    "gone": {"t": Amount, "pid": Pid, "status": Whole | None, "rss_most": Whole, "name": (str,), "rank": (_Rank,),
             "injected": (bool | None,)},
    "stall": {"t": Amount, "silent": Amount, "limit": Amount, "states": list[tuple[Pid, _Rank, str, str]],
              "stacks": (list[tuple[Pid, Whole]],)},
    "raised": {"t": Amount, "pid": Pid, "type": str, "frames": list[_Frame], "rank": (_Rank,), "message": (str,),
               "cause": (str,), "host": (str,), "thread": (str,), "not_finite": (list[str],), "port": (Whole,),
               "holder": (Whole,), "holds": (str,)},
    "began": {"t": Amount, "pid": Pid, "rank": _Rank, "command": str, "at": list[_Frame]},
    "lock": {"pid": Pid, "file": str},
    "left": {"t": Amount, "pid": Pid, "code": Whole, "at": list[_Frame], "type": (str,), "frames": (list[_Frame],),
             "rank": (_Rank,), "message": (str,), "cause": (str,), "host": (str,), "not_finite": (list[str],)},
    "sent": {"t": Amount, "pid": Pid, "rank": _Rank, "number": Whole, "to": Pid, "group": bool,
             "at": list[_Frame]},
    "resumed": {"t": Amount},
    "start": {"t": Amount, "pid": Pid},
    "end": {"t": Amount, "status": (_Signed,)},
    "signal": {"t": Amount, "number": Whole, "sender": (Whole,), "by": (str,), "of_group": (bool,)},
    "oom": {"t": Amount, "by": dict[str, Whole], "limit": (Whole | None,)},
    "kernel": {"t": Amount, "text": str},
    "mapped": {"t": Amount, "pid": Pid, "text": str},
    "pipe": {"t": Amount, "pid": Pid, "file": str},
    "limit": {"t": Amount, "pid": Pid, "text": str},
    "network": {"t": Amount, "name": str, "trouble": dict[str, int]},
    "xid": {"t": Amount, "gpu": _Rank, "code": Whole},
    "gpus": {"pids": list[list[Pid]]},
    "unanswered": {"t": Amount, "by": dict[str, int] | list[str]},
    "clock": {"offset": float},
    "silent": {"host": str},
}  # fmt: skip


def _form(name: str, fields: _Fields) -> type[msgspec.Struct]:
    """A tuple stands for what need not be there."""
    columns: list[Any] = [(field, kind) for field, kind in fields.items() if not isinstance(kind, tuple)]
    columns += [(field, kind[0], None) for field, kind in fields.items() if isinstance(kind, tuple)]
    return msgspec.defstruct(name, columns)


_FORMS = {name: _form(name, fields) for name, fields in _WANTED.items()}


def fits(row: dict[str, Any], kind: str = "") -> bool:
    """Whether it has what a line of its kind must have. kind: of a line that has no `what`."""
    form = _FORMS.get(kind or str(row.get("what", "")))
    try:
        if form is not None:
            msgspec.convert(row, type=form)
    except msgspec.ValidationError:
        return False
    return not (kind == "sample" and not all(_is_process(process) for process in row["p"]))


def _is_process(row: list[int | str]) -> bool:
    """pid, ticks, KiB, bytes moved, state, whether it waited for nobody, and bytes written."""
    return (
        len(row) >= 5
        and isinstance(row[4], str)
        and all(isinstance(number, int) for number in [*row[:4], *row[5:]])
    )
