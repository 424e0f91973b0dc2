"""The facts of all nodes, folded: what is the same is said once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ncclcheck.probes.facts import Node
from ncclcheck.reports.text.words.fold import fold_names

_SUBJECTS = [name for name in Node.__struct_fields__ if name not in ("name", "simulated", "probes")]
_MOST_VALUES = 8  # of one fact that are listed one by one: chosen; beyond it three examples and a count
_MOST_NODES = 200  # are folded by name; more are counted


@dataclass(frozen=True)
class Fact:
    """One value of one fact and where it holds; empty where it holds on all nodes."""

    path: str
    value: str
    nodes: str


def folded(nodes: Sequence[Node], most: int) -> tuple[list[Fact], int]:
    """What differs between nodes comes first; and how many lines there was no room for."""
    by_path: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for subject in _SUBJECTS:
        for facts, names in _alike(nodes, subject).items():
            for path, value in _flat(msgspec.json.decode(facts), subject):
                by_path[path].setdefault(value, []).extend(names)
    everywhere = {path for path, values in by_path.items() if _is_same(values, len(nodes))}
    differs = [path for path in by_path if path not in everywhere]
    lines = [line for path in differs for line in _lines(path, by_path[path], len(nodes))]
    lines += [Fact(path, next(iter(by_path[path])), "") for path in by_path if path in everywhere]
    return lines[:most], max(0, len(lines) - most)


def _alike(nodes: Sequence[Node], subject: str) -> dict[bytes, list[str]]:
    """Nodes by what was read of one subject, so that what is the same is taken apart once."""
    alike: dict[bytes, list[str]] = {}
    for node in nodes:
        alike.setdefault(msgspec.json.encode(getattr(node, subject)), []).append(node.name)
    return alike


def _is_same(values: dict[str, list[str]], many: int) -> bool:
    return len(values) == 1 and len(next(iter(values.values()))) >= many


def _lines(path: str, values: dict[str, list[str]], many: int) -> Iterator[Fact]:
    """The rarest value first, for it is the one to look at."""
    ranked = sorted(values.items(), key=lambda pair: len(pair[1]))
    if len(ranked) > _MOST_VALUES:
        examples = ", ".join(value for value, _ in ranked[:3])
        yield Fact(path, f"{len(ranked)} different values, such as {examples}", "")
        return
    for value, names in ranked:
        yield Fact(path, value, _on(names, many))


def _on(names: list[str], many: int) -> str:
    if len(names) == many:
        return ""
    return fold_names(names) if len(names) <= _MOST_NODES else f"{len(names)} of {many} nodes"


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if value.get("type") == "unread":
            yield path, f"unread ({value['kind']}): {value['why']}"
            return
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{_key(inner, number)}]")
        if not value:
            yield path, "none"
    else:
        yield path, "null" if value is None else str(value)


def _key(value: Any, number: int) -> str:
    """By its name where it has one, so that lists in another order are the same."""
    name = value.get("name") if isinstance(value, dict) else None
    return str(name) if isinstance(name, str) and name else str(number)
