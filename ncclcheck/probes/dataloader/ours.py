"""Whether an exception is a defect of ncclcheck, and not something that the user's code said."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from types import FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_MOST_TEXT = 8000  # characters of a traceback
_DEEPEST = 60  # frames that are looked at for a line of the user's
# Raised by the machine, by the user's exit, or by ^C: no line of ours is wrong.
_OF_THE_MACHINE = (OSError, MemoryError)
# Lines of ours that call the user's objects, whose code may be C without a frame; and those that say `raise`.
_HANDS_OVER = re.compile(
    r"^raise\b|dataset\[|\biter\(|\bnext\(|\blen\(|collate|sampler|together\(|init\(|target\(|own\(|__getitems__|dump"
)


class Defect(BaseException):
    """A defect of ours, which passes all guards around the user's code: what was being looked at is unknown."""

    def __init__(self, trace: str) -> None:
        super().__init__(trace)
        self.trace = trace


def trace_of(error: BaseException) -> str:
    """The traceback of a defect of ours; empty for all else.

    It is ours where no frame is the user's and the last one is ncclcheck's, at a line that calls nothing of his.
    """
    if isinstance(error, Defect):
        return error.trace
    frames = traceback.extract_tb(error.__traceback__)
    if not isinstance(error, Exception) or isinstance(error, _OF_THE_MACHINE) or not frames:
        return ""
    last = frames[-1]
    if not last.filename.startswith(_PACKAGE) or _HANDS_OVER.search(last.line or ""):
        return ""
    return "" if any(is_users(frame.filename) for frame in frames) else shown(error)


def pass_on(error: BaseException) -> None:
    """Raise a Defect where this is one: to be called wherever an exception of the user's is caught."""
    if trace := trace_of(error):
        raise Defect(trace) from error


def shown(error: BaseException) -> str:
    """Its traceback, the end of it where it is long."""
    return "".join(traceback.format_exception(error)).strip()[-_MOST_TEXT:]


def is_users(filename: str) -> bool:
    """Whether this is neither code of Python, nor of an installed package, nor of this tool."""
    return not filename.startswith((_PACKAGE, _PYTHON, "<frozen")) and "/site-packages/" not in filename


def users_line() -> str:
    """`train.py:20 in loss`: the innermost line of the user's own; empty where there is none."""
    return next(_users_lines(), "")


def users_lines() -> list[str]:
    """All lines of the user's own that led here, the innermost first."""
    return [*_users_lines()]


def _users_lines() -> Iterator[str]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None:
            return
        code = frame.f_code
        if is_users(code.co_filename):
            yield f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
