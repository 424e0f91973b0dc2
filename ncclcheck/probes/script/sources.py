"""Files of a script -> syntax trees: the named ones, and what they import from their own folder."""

from __future__ import annotations

import ast
import os
import re
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ncclcheck.probes.facts.guard.collection import without_collection

Node = TypeVar("Node", bound=ast.AST)

# Bounds of what is followed, not of what people write: transformers' whole `examples` has 250 files.
_MOST_FILES = 500
_MOST_BYTES = 2_000_000  # of one file; chosen, more is generated
_MOST_BYTES_OF_ALL = 20_000_000  # chosen, parsed in some seconds
# Deeper nesting than this is made by machines; Python's own parser gives up at 100 indents and 200 brackets.
_MOST_DEPTH = 200


class NotRead(Exception):
    """A file that cannot be read as Python; the text says why."""


# A file without any of these neither starts, feeds, saves nor ends a job of several ranks: it is not parsed, only
# its imports are followed. Parsing is most of the time that reading takes.
_SPEAKS_OF_RANKS = re.compile(
    rb"\.distributed|distributed[._]|Distributed|FullyShardedDataParallel|fully_shard|DataParallel|DataLoader"
    rb"|torch\.(?:save|load)\b|[rR]ank|RANK|environ|getenv|backward\(|set_device|spawn|barrier|set_epoch|Accelerator"
    rb"|deepspeed|Trainer|is_main|master|__getitem__|(?:torch|th)\.rand"
)
# All files are parsed as long as they are no more than this together: what they hand on is followed. A small
# repository has as much, and it takes some 0.15 s (a judgement).
_MOST_BYTES_IN_ANY_CASE = 200_000
_SIGNS = (".git", "setup.py", "pyproject.toml", "setup.cfg")  # of a repository's own folder
_MOST_AROUND = 6  # folders around a script that are asked for them (chosen; deeper ones were not seen)
_FOLDERS = ("src", "source", "code", "app")  # as people call that of their modules
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([^\n(]*))", re.MULTILINE
)


@dataclass(frozen=True)
class ParsedFile:
    """One file. tree: None where it was not parsed; `problem` says why, or it does not speak of ranks.

    named: on the command line. nodes: those of the tree by type, outer ones first. local: module as imported ->
    file. missing: file of the repository's own that is imported and not there -> line. cut: no newline ends the
    last line.
    """

    name: str
    named: bool = False
    lines: list[str] = field(default_factory=list)
    tree: ast.Module | None = None
    problem: str = ""
    local: dict[str, str] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    nodes: dict[type[ast.AST], list[ast.AST]] = field(default_factory=dict)
    cut: bool = False

    def of(self, kind: type[Node]) -> list[Node]:
        """All nodes of one type; a walk costs more than what is looked for in it."""
        return self.nodes.get(kind, [])  # type: ignore[return-value]


def read(names: Sequence[str]) -> list[ParsedFile]:
    """The named files, which must be readable, and what they import. Raises NotRead."""
    sources: dict[str, ParsedFile] = {}
    waiting = [(os.path.normpath(name), _roots(name), True) for name in names]
    left = _MOST_BYTES_OF_ALL
    with without_collection():
        while waiting and len(sources) < _MOST_FILES:
            name, roots, named = waiting.pop(0)
            if name in sources:
                continue
            try:
                whole = not sources or _MOST_BYTES_OF_ALL - left < _MOST_BYTES_IN_ANY_CASE
                source, size = _read(name, roots, min(left, _MOST_BYTES), named=named, whole=whole)
            except NotRead as error:
                if named:
                    raise
                source, size = ParsedFile(name, problem=str(error)), 0
            sources[name] = source
            left -= size
            waiting += [(path, roots, False) for path in dict.fromkeys(source.local.values())]
    left_out = [name for name in dict.fromkeys(name for name, _, _ in waiting) if name not in sources]
    if left_out:
        problem = f"more than {_MOST_FILES} files are imported; from this one on, {len(left_out)} were not read"
        sources[left_out[0]] = ParsedFile(left_out[0], problem=problem)
    return [*sources.values()]


def _roots(name: str) -> tuple[str, ...]:
    """Where its imports lie, nearest first: its folder, those around it up to the repository's, and their `src`.

    The repository is where the command was typed, or, if the script lies elsewhere, where a sign of one is.
    """
    own = os.path.dirname(os.path.normpath(name))
    package = own
    while package and os.path.isfile(os.path.join(package, "__init__.py")):
        package = os.path.dirname(package)
    outer = _repository(package) if os.path.isabs(own) or own.startswith("..") else ""
    around = [package]
    while around[-1] != outer:
        around.append(os.path.dirname(around[-1]))
    sources = [os.path.join(folder, "src") for folder in around]
    beside = [folder for folder in sources if os.path.isdir(folder) and not os.path.islink(folder)]
    return tuple(dict.fromkeys((own, *around, *beside)))


def _repository(folder: str) -> str:
    """The nearest folder around it with a sign of a repository; itself where there is none."""
    outer = folder
    for _ in range(_MOST_AROUND):
        if any(os.path.exists(os.path.join(outer, sign)) for sign in _SIGNS):
            return outer
        above = os.path.dirname(outer)
        if above in ("", outer) or os.path.basename(outer) == "..":
            return folder
        outer = above
    return folder


def _read(name: str, roots: Sequence[str], most: int, *, named: bool, whole: bool) -> tuple[ParsedFile, int]:
    """The file, and how large it is."""
    data = _bytes(name, most)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise NotRead(f"{name}:{line}: this is not UTF-8") from None
    if not whole and not _SPEAKS_OF_RANKS.search(data):
        return ParsedFile(name, local=_local(_imported_as_text(data), name, roots)), len(data)
    tree, nodes = _parsed(name, text)
    source = ParsedFile(
        name, named, text.removesuffix("\n").split("\n"), tree, nodes=nodes, cut=not text.endswith("\n")
    )
    source.local.update(_local(_imported(source), name, roots))
    source.missing.update(_missing(source, roots))
    return source, len(data)


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


def _parsed(name: str, text: str) -> tuple[ast.Module, dict[type[ast.AST], list[ast.AST]]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        raise NotRead(f"{name}:{error.lineno or 1}: this is not Python 3: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotRead(f"{name}: this cannot be parsed: {str(error) or type(error).__name__}") from None
    return tree, _by_type(name, tree)


# Nodes that only say how another one is meant: Load, Add, Not, Eq, And.
_MARKS = {
    kind
    for base in (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
    for kind in base.__subclasses__()
}
_PLAIN = {str, int, float, bool, bytes, complex, type(None), type(...)}


def _by_type(name: str, tree: ast.AST) -> dict[type[ast.AST], list[ast.AST]]:
    """Level by level: a walk by recursion would end in an error of its own."""
    level, depth = [tree], 0
    by_type: dict[type[ast.AST], list[ast.AST]] = {}
    while level:
        depth += 1
        if depth > _MOST_DEPTH:
            raise NotRead(f"{name}: this is nested more than {_MOST_DEPTH} deep")
        below: list[ast.AST] = []
        for node in level:
            by_type.setdefault(type(node), []).append(node)
            for value in vars(node).values():
                kind = type(value)
                if kind is list:
                    below += value
                elif kind not in _PLAIN:
                    below.append(value)
        level = [node for node in below if type(node) not in _MARKS and isinstance(node, ast.AST)]
    return by_type


def _local(modules: Iterator[str], name: str, roots: Sequence[str]) -> dict[str, str]:
    """Modules that it imports from the script's folder, and not through a link that leads out of it."""
    paths = {}
    inside = [os.path.realpath(root or ".") + os.sep for root in roots]
    for module in dict.fromkeys(modules):
        places = [*zip(roots, inside, strict=True)]
        for root, bound in [(roots[0], min(inside, key=len))] if module.startswith(".") else places:
            if path := _file_of(module, name, root, bound):
                paths[module] = path
                break
        else:
            # `src.data` in a folder src that was copied under another name
            outer, _, inner = module.partition(".")
            if outer in _FOLDERS and inner and (path := _file_of(inner, name, roots[0], inside[0])):
                paths[module] = path
    return paths


def _imported(source: ParsedFile) -> Iterator[str]:
    """Modules as written, relative ones with their dots; `from a import b` may mean the module a.b."""
    for plain in source.of(ast.Import):
        yield from (name.name for name in plain.names)
    for node in source.of(ast.ImportFrom):
        yield from _of_from("." * node.level + (node.module or ""), [name.name for name in node.names])


def _missing(source: ParsedFile, roots: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Relative imports, and those from packages of the repository, of which there is no file.

    Not those in a `try`, nor of names with `_`: these are compiled, or made as the package is built.
    """
    tried = {id(node) for attempt in source.of(ast.Try) for node in ast.walk(attempt)}
    written = [(node, [name.name for name in node.names]) for node in source.of(ast.Import)]
    relative = [(node, ["." * node.level + (node.module or "")]) for node in source.of(ast.ImportFrom)]
    for node, modules in (*written, *relative):
        for module in modules if id(node) not in tried else ():
            last = module.rpartition(".")[2]
            if last and not last.startswith("_") and module not in source.local:
                path = _expected(module, source.name, roots)
                if path and not os.path.isdir(path) and not os.path.isfile(f"{path}.pyx"):
                    yield f"{path}.py", node.lineno


def _expected(module: str, name: str, roots: Sequence[str]) -> str:
    """Where the file of a module of the repository's own would lie, less `.py`; empty if it is none of these."""
    parts = module.lstrip(".").split(".")
    if dots := len(module) - len(module.lstrip(".")):
        return os.path.normpath(os.path.join(os.path.dirname(name), *[".."] * (dots - 1), *parts))
    if len(parts) > 1:
        for root in roots:
            if os.path.isfile(os.path.join(root, parts[0], "__init__.py")):
                return os.path.normpath(os.path.join(root, *parts))
    return ""


def _imported_as_text(data: bytes) -> Iterator[str]:
    """The same of a file that is not parsed; a line of a long string may look like one, and names no file."""
    for module, names, plain in _IMPORT.findall(data):
        if module:
            listed = re.findall(
                r"(\w+)(?:\s+as\s+\w+)?\s*(?:,|$)", names.decode(errors="replace").strip("() \t\n")
            )
            yield from _of_from(module.decode(errors="replace"), listed)
        else:
            yield from re.findall(r"([\w.]+)(?:\s+as\s+\w+)?\s*(?:,|$)", plain.decode(errors="replace").strip())


def _of_from(module: str, names: Sequence[str]) -> Iterator[str]:
    if module.strip("."):
        yield module
    yield from (f"{module}{'.' if module.strip('.') else ''}{name}" for name in names)


def _file_of(module: str, name: str, root: str, inside: str) -> str:
    dots = len(module) - len(module.lstrip("."))
    folder = root
    if dots:
        folder = os.path.join(os.path.dirname(name), *[".."] * (dots - 1))
    path = os.path.normpath(os.path.join(folder, *module.lstrip(".").split(".")))
    for file in (f"{path}.py", os.path.join(path, "__init__.py")):
        if os.path.isfile(file) and os.path.realpath(file).startswith(inside):
            return file
    return ""
