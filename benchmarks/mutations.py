"""Whether the tests notice when rules, readers and culprit code are wrong: one small fault at a time, planted.

    python benchmarks/mutations.py [--count 100] [--seed 0] [--only reports/culprit] [--whole]

Each fault is a comparison turned, a number changed, a condition negated, `and` for `or`, True for False. Package
and tests are imported once; for each fault a fork of that process gets the changed code of one function, and runs
the files of tests that name its module or its codes, or those of its room. With --whole what nobody noticed meets
all recorded clusters too. What is left is listed with its line: a missing test, or a place where both ways are
right. A fault in a function that runs while modules are imported is not seen, nor one that only a process of its
own would show.
"""

from __future__ import annotations

import argparse
import ast
import gc
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
PLACES = (
    "reports/rules",
    "reports/culprit",
    "reports/recommend",
    "reports/judgement",
    "probes/logs",
    "probes/live",
)
FOR_ONE_S = 150  # the tests of one module take up to 40 s of CPU on the 2 cores of 2026-11
_QUICK = "not nightly and not slow"
_MOST_FILES = 5  # of tests for one fault: more seldom notice what these do not; chosen
_STORIES = "tests/reports/judgement/test_snapshots.py"
_LOOK_S = 0.2  # how often it is asked whether a fork has ended; chosen

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One change of one line: what stands there (start to end, in bytes of the line) and what shall."""

    file: Path
    line: int
    start: int
    end: int
    old: str
    new: str

    def text(self) -> str:
        """The module with the fault in it."""
        lines = self.file.read_bytes().split(b"\n")
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.start] + self.new.encode() + line[self.end :]
        return b"\n".join(lines).decode()

    def plant(self) -> bool:
        """Give the functions of this process the changed code; whether there was one to change."""
        before, after = (_codes(compile(text, self.file, "exec")) for text in (self.file.read_text(), self.text()))
        changed = {key: code for key, code in after.items() if code != before[key]}
        types = [function for function in gc.get_objects() if isinstance(function, FunctionType)]
        types = [function for function in types if function.__code__.co_filename == str(self.file)]
        planted = False
        for function in types:
            if code := changed.get((function.__code__.co_name, function.__code__.co_firstlineno)):
                function.__code__ = code
                planted = True
        return planted


def _codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """By name and first line, this code and all within it."""
    within = (co_const for co_const in code.co_consts if isinstance(co_const, CodeType))
    return {(code.co_name, code.co_firstlineno): code} | {
        k: v for inner in within for k, v in _codes(inner).items()
    }


def faults(file: Path) -> list[Fault]:
    """Every fault that can be planted into the functions of a module, on lines of their own."""
    tree = ast.parse(file.read_bytes())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    nodes = {id(node): node for function in functions for body in function.body for node in ast.walk(body)}
    return [
        Fault(file, node.lineno, node.col_offset, node.end_col_offset or 0, ast.unparse(node), new)
        for node in nodes.values()
        if isinstance(node, ast.expr) and node.lineno == node.end_lineno
        for new in _changes(node)
    ]


def _changes(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = _TURNED[type(node.ops[0])]()
        yield f"({ast.unparse(ast.Compare(node.left, [other], node.comparators))})"
    elif isinstance(node, ast.BoolOp):
        other_way = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"({ast.unparse(ast.BoolOp(other_way, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"bool({ast.unparse(node.operand)})"
    elif isinstance(node, ast.IfExp):
        yield f"({ast.unparse(ast.IfExp(node.test, node.orelse, node.body))})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield repr(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield repr(node.value + 1)


def tests_of(file: Path) -> list[str]:
    """The files of tests that may notice a fault in a module, those that name it or its codes most often first."""
    place, text = file.relative_to(ROOT / "ncclcheck"), file.read_text()
    room = next(room for room in place.parents if (ROOT / "tests" / room).is_dir())
    codes = re.findall(r'^(?:@\w*rule\(|    )"([A-Z]{3}\d{3})",', text, re.MULTILINE)
    named = re.compile("|".join([*codes, rf"import (?:.*, )?{file.stem}\b", rf"\b{file.stem} import"]))
    files = [
        path for name in {f"tests/{room}", "tests/reports/rules"} for path in (ROOT / name).rglob("test_*.py")
    ]
    times = {str(path.relative_to(ROOT)): len(named.findall(path.read_text())) for path in files}
    noticing = [test for test in sorted(times, key=lambda test: (-times[test], test)) if times[test]]
    if place.is_relative_to("reports/rules"):
        return noticing[:_MOST_FILES] or [_STORIES]
    return [*noticing[:_MOST_FILES], f"tests/{room}"]


def ran(tests: list[str], fault: Fault | None, limit_s: float) -> str:
    """What a fork of this process makes of these tests: "passed", "noticed", "not planted" or "no end".

    A fault by which a loop has no end would be noticed in the gate; here it looks like a busy machine.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        if fault is not None and not fault.plant():
            os._exit(100)
        command = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", _QUICK, *tests]
        os._exit(int(pytest.main(command)))
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return {0: "passed", 100: "not planted"}.get(os.waitstatus_to_exitcode(status), "noticed")
        time.sleep(_LOOK_S)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "no end"


def chosen(count: int, seed: int, only: str) -> list[Fault]:
    """So many faults, by chance; at most one a line."""
    files = [
        file for place in PLACES if only in place for file in sorted((ROOT / "ncclcheck" / place).rglob("*.py"))
    ]
    lines: dict[tuple[str, int], list[Fault]] = {}
    for file in files:
        for fault in faults(file):
            lines.setdefault((str(file), fault.line), []).append(fault)
    dice = random.Random(seed)
    return [dice.choice(lines[place]) for place in dice.sample(sorted(lines), count)]


def main() -> None:
    """Plant the faults, print who noticed and list what nobody noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="how many faults (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="which faults (default 0)")
    parser.add_argument("--only", default="", help="of places whose path has these words")
    parser.add_argument(
        "--skip", type=int, default=0, help="leave out the first so many, which an earlier run had"
    )
    parser.add_argument("--whole", action="store_true", help="show survivors all recorded clusters too")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    planted = chosen(options.count, options.seed, options.only)[options.skip :]
    files = sorted({test for fault in planted for test in tests_of(fault.file)} | {_STORIES})
    stdout = os.dup(1)
    os.dup2(2, 1)
    pytest.main(["-q", "-q", "--collect-only", "-p", "no:cacheprovider", "-m", _QUICK, *files])
    os.dup2(stdout, 1)
    rows: list[tuple[str, str, str, str]] = []
    number = 0
    for fault in planted:
        tests = tests_of(fault.file)
        seen = ran(tests, fault, FOR_ONE_S)
        if seen == "passed" and options.whole:
            seen = ran([_STORIES], fault, FOR_ONE_S)
        place = f"{fault.file.relative_to(ROOT / 'ncclcheck')}:{fault.line}"
        number += seen in ("passed", "noticed")
        print(f"{number} {place} {seen}", file=sys.stderr, flush=True)
        if seen == "passed":
            rows.append((place, fault.old, fault.new, " ".join(tests)))
    print(f"{number - len(rows)} of {number} faults were noticed. The others:")
    print(tabulate(rows, headers=("place", "was", "became", "tests")))


if __name__ == "__main__":
    main()
