"""Lines of the user's file that make samples differ where they must not, and as they would be written instead."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress

from ncclcheck.probes.dataloader.ours import is_users
from ncclcheck.probes.facts.data.made import Rewrite, RewriteKind

_MOST = 24  # of one file: chosen, a loader has a few
_MOST_BYTES = 300_000  # of a file: written source is shorter
_MOST_LINE = 160  # characters of a line that a report repeats: chosen
_DRAWN = "int(torch.randint(2**31, ()))"  # of torch's generator, which DataLoader seeds in each worker
_RANK = 'int(os.environ.get("RANK", 0))'

Parents = dict[ast.AST, ast.AST]
# The new text of an expression; empty where there is nothing to change.
Change = Callable[[ast.Call, str, Parents], str]


def read(owner: type) -> list[Rewrite]:
    """Of the file of this class. Empty where it is not the user's or has no text."""
    with suppress(Exception):  # the user's objects, and files that may be gone
        file = inspect.getsourcefile(owner) or ""
        if not is_users(file):
            return []
        with open(file, encoding="utf-8") as opened:
            text = opened.read(_MOST_BYTES + 1)
        if len(text) <= _MOST_BYTES:
            return _of_file(ast.parse(text), {kind.__name__ for kind in owner.__mro__}, text.splitlines(), file)
    return []


def _of_file(tree: ast.Module, own: set[str], lines: list[str], file: str) -> list[Rewrite]:
    """Of the class itself first, then of functions; of other classes where there are no others of the kind."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    parts: list[list[ast.stmt]] = [
        [node for node in classes if node.name in own],
        [node for node in tree.body if node not in classes],
        [node for node in classes if node.name not in own],
    ]
    name, rewrites = file.rpartition("/")[2], list[Rewrite]()
    for part in parts:
        known = {rewrite.kind for rewrite in rewrites} if part is parts[-1] else set[RewriteKind]()
        for node in part:
            rewrites += [rewrite for rewrite in _rewrites(node, lines, name) if rewrite.kind not in known]
    return rewrites[:_MOST]


def _rewrites(tree: ast.stmt, lines: list[str], file: str) -> Iterator[Rewrite]:
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for kind, change in _CHANGES.items():
                if new := change(node, ast.unparse(node.func), parents):
                    yield from _line(lines, file, kind, node, new, ast.unparse(node.func))
        elif isinstance(node, ast.For | ast.comprehension) and _is_set(node.iter):
            yield from _line(lines, file, "interpreter", node.iter, "sorted({})", "set")
        elif isinstance(node, ast.FunctionDef) and node.name == "__getitem__":
            yield from _changed(node, lines, file)


def _line(
    lines: list[str], file: str, kind: RewriteKind, node: ast.expr, new: str, call: str
) -> Iterator[Rewrite]:
    """The line in which this expression stands, with the new one in its place. {}: the expression itself."""
    if node.end_lineno != node.lineno or node.end_col_offset is None:
        return
    line = lines[node.lineno - 1].encode()
    old = line[node.col_offset : node.end_col_offset].decode()
    changed = line[: node.col_offset].decode() + new.replace("{}", old) + line[node.end_col_offset :].decode()
    if len(changed) <= _MOST_LINE:
        yield Rewrite(kind=kind, place=f"{file}:{node.lineno}", call=call, new=changed.strip())


def _entropy(node: ast.Call, name: str, _parents: Parents) -> str:
    """What the system or the clock seeds, from torch's generator instead."""
    last = name.rpartition(".")[2]
    if node.args or node.keywords:
        sized = {"urandom": "random.randbytes", "token_bytes": "random.randbytes"}
        return f"{sized[last]}({ast.unparse(node.args[0])})" if last in sized and node.args else ""
    if last in ("default_rng", "RandomState", "Random"):
        return f"{name}({_DRAWN})"
    if last == "SystemRandom":
        return f"random.Random({_DRAWN})"
    return _DRAWN if name in ("time.time", "time.time_ns", "time.perf_counter_ns", "os.getpid") else ""


def _interpreter(node: ast.Call, name: str, _parents: Parents) -> str:
    """What changes with PYTHONHASHSEED."""
    if name == "hash" and len(node.args) == 1:
        return f"zlib.crc32(repr({ast.unparse(node.args[0])}).encode())"
    if name in ("list", "tuple", "enumerate") and node.args and _is_set(node.args[0]):
        ordered = f"sorted({ast.unparse(node.args[0])})"
        return ordered if name == "list" else f"{name}({ordered})"
    return ""


def _is_set(node: ast.expr) -> bool:
    return isinstance(node, ast.SetComp) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    )


def _listing(node: ast.Call, name: str, parents: Parents) -> str:
    """What the file system lists in an order of its own; in a set that order is lost anyway."""
    parent = above = parents.get(node)
    while isinstance(above, ast.expr | ast.comprehension):
        if isinstance(above, ast.expr) and _is_set(above):
            return ""
        above = parents.get(above)
    within = ast.unparse(parent.func) if isinstance(parent, ast.Call) else ""
    lists = name.rpartition(".")[2] in ("listdir", "glob", "rglob", "iterdir")
    if not lists or within in ("sorted", "len", "set"):
        return ""
    return "{}" if within == "list" else "sorted({})"


def _order(node: ast.Call, name: str, _parents: Parents) -> str:
    """An order or a split that is drawn without a seed, with one that all ranks share."""
    given = [ast.unparse(argument) for argument in (*node.args, *node.keywords)]
    rest = ", ".join(ast.unparse(argument) for argument in node.args)
    module, _, last = name.rpartition(".")
    if module == "random" and last in ("shuffle", "sample"):
        return f"random.Random(0).{last}({rest})"
    if module in ("np.random", "numpy.random") and last in ("shuffle", "permutation"):
        return f"{module}.default_rng(0).{last}({rest})"
    if last in ("randperm", "random_split") and not any("generator" in text for text in given):
        return f"{name}({', '.join(given)}, generator=torch.Generator().manual_seed(0))"
    return ""


def _seed(node: ast.Call, name: str, _parents: Parents) -> str:
    """A seed that is the same on all ranks, and by rank."""
    last = name.rpartition(".")[2]
    if last not in ("manual_seed", "seed", "seed_everything", "set_seed") or len(node.args) != 1:
        return ""
    seed = ast.unparse(node.args[0])
    known = any(word in seed.lower() for word in ("rank", "worker", "epoch", "index", "idx"))
    return "" if known else f"{name}({seed} + {_RANK})"


_CHANGES: dict[RewriteKind, Change] = {
    "entropy": _entropy,
    "interpreter": _interpreter,
    "listing": _listing,
    "order": _order,
    "seed": _seed,
}


def _changed(method: ast.FunctionDef, lines: list[str], file: str) -> Iterator[Rewrite]:
    """`value = self.records[index]`, where value is changed in place afterwards."""
    changed = {name for node in ast.walk(method) if (name := _changes(node))}
    for node in ast.walk(method):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            read = isinstance(node.value, ast.Subscript | ast.Call) and _of_dataset(node.value)
            if node.targets[0].id in changed and read:
                yield from _line(lines, file, "changed", node.value, "copy.deepcopy({})", ast.unparse(node.value))


def _changes(node: ast.AST) -> str:
    """The name of what this changes in place: `x += 1`, `x["boxes"] *= 2`, `x[0] = 1`, `x.mul_(2)`, `x.sort()`."""
    if isinstance(node, ast.AugAssign):
        return _name(node.target)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return _name(node.targets[0])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        in_place = node.func.attr in ("append", "pop", "sort", "update", "insert", "remove", "reverse")
        return _name(node.func.value) if in_place or node.func.attr.endswith("_") else ""
    return ""


def _name(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) and node.id != "self" else ""


def _of_dataset(node: ast.expr) -> bool:
    """Whether it is asked of the dataset or of a function of the user's, which may give the same thing again."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return True
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id == "self"
