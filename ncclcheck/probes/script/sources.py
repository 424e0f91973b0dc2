"""Files of a script -> syntax trees: the named ones, and what they import from their own folder."""

from __future__ import annotations

import ast
import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

# Bounds of what is followed, not of what people write: transformers' whole `examples` has 250 files.
_MOST_FILES = 500
_MOST_BYTES = 2_000_000
_MOST_BYTES_OF_ALL = 20_000_000
# Deeper nesting than this is made by machines; Python's own parser gives up at 100 indents and 200 brackets.
_MOST_DEPTH = 200


class NotRead(Exception):
    """A file that cannot be read as Python; the text says why."""


@dataclass(frozen=True)
class Source:
    """One file. tree: None where it was not read, `problem` says why. local: module as imported -> file."""

    name: str
    lines: list[str] = field(default_factory=list)
    tree: ast.Module | None = None
    problem: str = ""
    local: dict[str, str] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree; a walk costs more than what is looked for in it."""
        return [*ast.walk(self.tree)] if self.tree else []


def read(names: Sequence[str]) -> list[Source]:
    """The named files, which must be readable, and what they import. Raises NotRead."""
    found: dict[str, Source] = {}
    waiting = [(os.path.normpath(name), os.path.dirname(name), True) for name in names]
    left = _MOST_BYTES_OF_ALL
    while waiting and len(found) < _MOST_FILES:
        name, root, named = waiting.pop(0)
        if name in found:
            continue
        try:
            source = _read(name, root, min(left, _MOST_BYTES))
        except NotRead as error:
            if named:
                raise
            source = Source(name, problem=str(error))
        found[name] = source
        left -= sum(map(len, source.lines))
        waiting += [(path, root, False) for path in dict.fromkeys(source.local.values())]
    for name, _, _ in waiting:
        found.setdefault(name, Source(name, problem=f"more than {_MOST_FILES} files are imported"))
    return [*found.values()][: 2 * _MOST_FILES]


def _read(name: str, root: str, most: int) -> Source:
    data = _bytes(name, most)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise NotRead(f"{name}:{line}: this is not UTF-8") from None
    tree = _parsed(name, text)
    return Source(name, text.removesuffix("\n").split("\n"), tree, local=_local(tree, name, root))


def _bytes(name: str, most: int) -> bytes:
    """A regular file; a pipe is not waited for."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotRead(f"{name}: this is no regular file")
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise NotRead(f"{name}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > most:
        raise NotRead(f"{name}: this is larger than {most:,} bytes, which no script is")
    return data


def _parsed(name: str, text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        raise NotRead(f"{name}:{error.lineno or 1}: this is not Python 3: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotRead(f"{name}: this cannot be parsed: {str(error) or type(error).__name__}") from None
    if _depth(tree) > _MOST_DEPTH:
        raise NotRead(f"{name}: this is nested more than {_MOST_DEPTH} deep")
    return tree


def _depth(tree: ast.AST) -> int:
    """Level by level: a walk by recursion would end in an error of its own."""
    level, depth = [tree], 0
    while level and depth <= _MOST_DEPTH:
        level, depth = [child for node in level for child in ast.iter_child_nodes(node)], depth + 1
    return depth


def _local(tree: ast.Module, name: str, root: str) -> dict[str, str]:
    """Modules that it imports from the script's folder, and not through a link that leads out of it."""
    found = {}
    for module in dict.fromkeys(_imported(tree)):
        if path := _file_of(module, name, root):
            found[module] = path
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    """Modules as written, relative ones with their dots; `from a import b` may mean the module a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if node.module:
                yield module
            yield from (f"{module}{'.' if node.module else ''}{one.name}" for one in node.names)


def _file_of(module: str, name: str, root: str) -> str:
    dots = len(module) - len(module.lstrip("."))
    folder = root
    if dots:
        folder = os.path.join(os.path.dirname(name), *[".."] * (dots - 1))
    path = os.path.normpath(os.path.join(folder, *module.lstrip(".").split(".")))
    inside = os.path.realpath(root or ".") + os.sep
    for file in (f"{path}.py", os.path.join(path, "__init__.py")):
        if os.path.isfile(file) and os.path.realpath(file).startswith(inside):
            return file
    return ""
