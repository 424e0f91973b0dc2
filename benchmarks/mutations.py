"""Whether the tests notice when rules, readers and culprit code are wrong: one small fault at a time, planted.

    pip install pytest-cov
    python benchmarks/mutations.py [--count 100] [--seed 0] [--only reports/culprit] [--tests tests/reports]

The tests run once to learn which of them execute which line. Then each fault (a comparison turned, a number
changed, a condition negated, `and` for `or`, True for False) is written into a copy of the repository, and the
tests that execute its line run there until one fails. The faults that none of them notices are listed with their
lines: a missing test, or a place where both ways are right. Tests that fail in the copy without any fault notice
nothing.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
COPIED = ("ncclcheck", "tests", "benchmarks", "docs", "examples", "pyproject.toml", "README.md", "CHANGELOG.md")
FOR_ONE_S = 300  # all tests that execute one line of a rule take up to 100 s of CPU on the 2 cores of 2026-11
FOR_ALL_S = 3600

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


def executed_by(tests: list[str], data: Path) -> dict[tuple[str, int], list[str]]:
    """(module, line) -> the tests that execute it, as pytest names them."""
    import coverage  # noqa: PLC0415

    if not data.exists():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not nightly"]
        measured = ["--cov=ncclcheck", "--cov-context=test", "--cov-report="]
        environment = os.environ | {"COVERAGE_FILE": str(data)}
        subprocess.run([*command, *measured, *tests], cwd=ROOT, env=environment, timeout=FOR_ALL_S, check=True)
    found: dict[tuple[str, int], list[str]] = {}
    seen = coverage.CoverageData(str(data))
    seen.read()
    for file in seen.measured_files():
        for line, contexts in seen.contexts_by_lineno(file).items():
            ran = sorted({context.partition("|")[0] for context in contexts if "|run" in context})
            found[str(Path(file).relative_to(ROOT)), line] = ran
    return found


def run(tests: list[str], copy: Path, limit: float, *options: str) -> subprocess.CompletedProcess[str]:
    """These tests, against the package in the copy."""
    listed = copy / "tests.txt"
    listed.write_text("\n".join(tests))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *options, f"@{listed}"]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=copy, env=environment, timeout=limit, capture_output=True, text=True, check=False
    )


def failing(tests: list[str], copy: Path) -> set[str]:
    """Tests that fail in the copy as it is."""
    lines = run(tests, copy, FOR_ALL_S, "-rfE").stdout.splitlines()
    return {line.split(" ", 1)[1].split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))}


def noticed(fault: Fault, tests: list[str], copy: Path) -> bool:
    """Whether one of these tests fails, or none ends in time, with the fault in the copy."""
    place = copy / fault.file.relative_to(ROOT)
    try:
        place.write_text(fault.text())
        return run(tests, copy, FOR_ONE_S, "-x").returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        shutil.copyfile(fault.file, place)


def chosen(count: int, seed: int, only: str, ran: dict[tuple[str, int], list[str]]) -> list[Fault]:
    """So many faults, by chance, on lines that some test executes; at most one a line."""
    files = [
        file for place in PLACES if only in place for file in sorted((ROOT / "ncclcheck" / place).rglob("*.py"))
    ]
    lines: dict[tuple[str, int], list[Fault]] = {}
    for file in files:
        for fault in faults(file):
            lines.setdefault((str(file.relative_to(ROOT)), fault.line), []).append(fault)
    dice = random.Random(seed)
    picked = dice.sample(sorted(set(lines) & {place for place, tests in ran.items() if tests}), count)
    return [dice.choice(lines[place]) for place in picked]


def main() -> None:
    """Plant the faults, print who noticed and list what nobody noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="how many faults (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="which faults (default 0)")
    parser.add_argument("--only", default="", help="of places whose path has these words")
    parser.add_argument("--tests", nargs="*", default=["tests"], help="tests that may notice (default: all)")
    parser.add_argument("--data", type=Path, help="which tests execute which lines, kept from an earlier run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            shutil.copytree(source, copy / name, symlinks=True) if source.is_dir() else shutil.copy(source, copy)
        ran = executed_by(options.tests, options.data or copy / ".coverage")
        planted = chosen(options.count, options.seed, options.only, ran)
        tests = {fault: ran[str(fault.file.relative_to(ROOT)), fault.line] for fault in planted}
        useless = failing(sorted(set().union(*tests.values())), copy)
        print(f"{len(useless)} tests fail in the copy without a fault and are left out", file=sys.stderr)
        rows: list[tuple[str, str, str, str]] = []
        for number, (fault, able) in enumerate(tests.items()):
            seen = noticed(fault, [test for test in able if test not in useless], copy)
            place = f"{fault.file.relative_to(ROOT / 'ncclcheck')}:{fault.line}"
            print(f"{number + 1} {place} {'noticed' if seen else 'NOT NOTICED'}", file=sys.stderr)
            if not seen:
                rows.append((place, fault.old, fault.new, str(len(able))))
    print(f"{len(planted) - len(rows)} of {len(planted)} faults were noticed. The others:")
    print(tabulate(rows, headers=("place", "was", "became", "tests that execute it")))


if __name__ == "__main__":
    main()
