"""Where the user's own code raised an exception, or stands: file, line, function and the index of the sample."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from types import FrameType

import ncclcheck

_OURS = os.path.dirname(os.path.abspath(ncclcheck.__file__)) + os.sep
_OTHERS = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_PACKAGES = ("site-packages", "dist-packages")
# What calls the user's factories: what they do not take is raised here.
_CALLERS = tuple(
    os.path.join(_OURS, "probes", *parts)
    for parts in (
        ("training", "given.py"),
        ("training", "wraps", "lightning.py"),
        ("training", "course", "bounds.py"),
        ("dataloader", "factory.py"),
    )
)
# A loader's worker hands its traceback over as text.
_IN_WORKER = "Original Traceback"
_LINE = re.compile(r'File "([^"\n]+)", line (\d+), in (\w+)')
_COLLECTIVE = re.compile(r"torch[/\\]distributed[/\\]")
_TORCH = f"{os.sep}torch{os.sep}"
_WAITS = ("backward", "__next__")  # DDP waits in the one, loaders in the other
_OF_RANK = re.compile(r"rank|is_main|is_master|main_process|process_index|global_zero|process_zero|world_process")
_LONGEST_CONDITION = 60  # characters; chosen: one line of a report
_MOST_FRAMES = 6  # of a stack, the innermost that are told apart: chosen for a finding
_MOST_TEXT = 4000  # characters of a traceback


def place(error: BaseException) -> str:
    """`train.py:128 in __getitem__, index 77`: the innermost line of the user's own; empty where there is none."""
    if _IN_WORKER in (text := str(error)):
        lines = [match.groups() for match in _LINE.finditer(text) if _is_users(match[1])]
        return _said(lines[-1][0], int(lines[-1][1]), lines[-1][2]) if lines else ""
    frames = [step for step in traceback.walk_tb(error.__traceback__) if _is_users(step[0].f_code.co_filename)]
    if not frames:
        return ""
    frame, line = frames[-1]
    index = next(filter(None, (_index(step) for step, _ in reversed(frames))), "")
    return _said(frame.f_code.co_filename, line, frame.f_code.co_name) + index


def trace(error: BaseException) -> str:
    """Its traceback from the user's first own frame on, at most the end of it."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    first = next((n for n, (frame, _) in enumerate(frames) if _is_users(frame.f_code.co_filename)), 0)
    tb = error.__traceback__
    for _ in range(first):
        tb = tb.tb_next if tb else None
    return "".join(traceback.format_exception(type(error), error, tb, chain=False)).strip()[-_MOST_TEXT:]


def by_call(error: BaseException) -> bool:
    """Whether the call of what the user named raised it: arguments that it lacks, or what it gave is of no use."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename in _CALLERS


def standing() -> list[str]:
    """Where this process's main thread stands, the innermost first: the collective, and the user's own lines, each
    with the condition on the rank that it is under: `train.py:7 in save, under if rank == 0`.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return [*dict.fromkeys(_standing(frame))][:_MOST_FRAMES]


def _standing(frame: FrameType | None) -> Iterator[str]:
    collective = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if _COLLECTIVE.search(file):
            name = frame.f_code.co_name
            # A module of torch that is being imported waits for a disk, not for other ranks.
            collective = "" if name == "<module>" else collective if name == "wrapper" else name
        else:
            waits = frame.f_code.co_name in _WAITS and _TORCH in file
            # What was called is the outermost of torch's: get_model_state_dict, not what it calls in its turn.
            if collective and (waits or not _is_torchs(file)):
                yield collective
                collective = ""
            if waits:
                yield f"{frame.f_code.co_name}()"
            elif _is_users(file):
                line = _said(file, frame.f_lineno, frame.f_code.co_name)
                yield line + (f", under {test}" if (test := condition(file, frame.f_lineno)) else "")
        frame = frame.f_back


def _is_torchs(file: str) -> bool:
    return _TORCH in file or (file.startswith(_OTHERS[:2]) and "packages" not in file)


@functools.lru_cache(maxsize=512)
def condition(file: str, line: int) -> str:
    """The innermost condition on the rank under which this line is reached: `if rank == 0`. Of an else, and of
    what comes after `if rank != 0: return`, it is `if not (rank != 0)`.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ""
    text = ""
    for node in ast.walk(tree):  # breadth first: the innermost comes last
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and _spans(node, line):
            text = ""  # a condition around a definition holds when it is made
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(block, list) and any(_spans(statement, line) for statement in block):
                text = next(filter(None, (_passed(statement, line) for statement in reversed(block))), text)
    return text


def _passed(statement: ast.stmt, line: int) -> str:
    """The condition that an `if` on the rank sets for this line: in it, or after it."""
    if not isinstance(statement, ast.If) or not _OF_RANK.search(ast.unparse(statement.test)):
        return ""
    test = " ".join(ast.unparse(statement.test).split())[:_LONGEST_CONDITION]
    if any(_spans(node, line) for node in statement.body):
        return f"if {test}"
    leaves = isinstance(statement.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
    if any(_spans(node, line) for node in statement.orelse) or (leaves and (statement.end_lineno or 0) < line):
        return f"if not ({test})"
    return ""


def _spans(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", None) or 0)


def _index(frame: FrameType) -> str:
    """Of the sample that a dataset was asked for."""
    code = frame.f_code
    if code.co_name not in ("__getitem__", "__getitems__") or code.co_argcount < 2:
        return ""
    value = frame.f_locals.get(code.co_varnames[1])
    return f", index {value}" if isinstance(value, int) else ""


def is_installed(file: str) -> bool:
    """Whether this file is ncclcheck's, Python's or that of an installed package: not the user's own."""
    return not _is_users(file)


def _is_users(file: str) -> bool:
    if file.startswith(("<", _OURS, *_OTHERS)):
        return False
    return not any(f"{os.sep}{name}{os.sep}" in file for name in _PACKAGES)


def _said(file: str, line: int, function: str) -> str:
    folder = os.getcwd() + os.sep
    within = file.removeprefix(folder) if file.startswith(folder) else os.path.basename(file)
    return f"{within}:{line}" + ("" if function == "<module>" else f" in {function}")
