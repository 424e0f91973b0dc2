"""Dotted paths of facts, which mypy does not see, lead to fields: in rules, in comparisons, and in `at(...)`."""

from __future__ import annotations

import ast
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ncclcheck.probes import facts
from ncclcheck.probes.facts import Cluster, Node
from ncclcheck.reports.compare import watched
from ncclcheck.reports.judgement.rule import Rule, all_rules

PACKAGE = Path(facts.__file__).resolve().parents[2]
# What `at` is given in the code, where the name says of what type it is.
_STARTS: dict[str, type] = {
    "node": Node,
    "one.facts": Node,
    "mine": Node,
    "here": Node,
    "there": Node,
    "lead": Node,
}


def _below(kind: Any) -> Iterator[type]:
    """The structs that a field may hold, through unions, lists and dicts."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    elif typing.get_origin(kind) in (typing.Union, types.UnionType, list, dict):
        for each in typing.get_args(kind):
            yield from _below(each)
    elif typing.get_origin(kind) is typing.Annotated:
        yield from _below(typing.get_args(kind)[0])


def resolved(start: type, path: str) -> set[type]:
    """The structs where a path ends; empty where it ends in a plain value. Raises AssertionError for no field."""
    structs = {start}
    for part in path.split(".") if path else ():
        kinds: list[Any] = []
        for struct in structs:
            hints = typing.get_type_hints(struct, include_extras=True)
            if part in hints:
                kinds.append(hints[part])
            elif isinstance(member := getattr(struct, part, None), property) and member.fget:
                kinds.append(typing.get_type_hints(member.fget).get("return"))
        assert kinds, (
            f"{part} of {path} is no field of {', '.join(kind.__name__ for kind in structs) or 'a plain value'}"
        )
        structs = {struct for kind in kinds for struct in _below(kind)} - {facts.Unread}
    return structs


def _rules() -> list[Rule]:
    return [rule for rule in all_rules() if rule.over or rule.needs]


@pytest.mark.parametrize("rule", _rules(), ids=lambda rule: rule.code)
def test_paths_of_rules(rule: Rule) -> None:
    for path in rule.node_needs if rule.over.startswith("nodes") or not rule.over else rule.needs:
        resolved(Node, path)
    subjects = resolved(Cluster, rule.over)
    for path in rule.item_needs:
        for subject in subjects:
            resolved(subject, path)


def test_paths_that_are_compared() -> None:
    listed = [fact for value in vars(watched).values() if isinstance(value, tuple) for fact in value]
    watches = [fact for fact in listed if isinstance(fact, watched.WatchedFact)]
    assert len(watches) > 40
    for watch in watches:
        assert any(_leads(start, watch.path) for start in _structs()), watch.path


def _structs() -> list[type]:
    return [
        struct
        for struct in vars(facts).values()
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct)
    ]


def _leads(start: type, path: str) -> bool:
    try:
        resolved(start, path)
    except AssertionError:
        return False
    return True


def test_paths_in_the_code() -> None:
    """`at(node, "host.memlock.soft")`: of what is called a node the path leads through a node's fields."""
    asked = [
        (f"{path.name}:{call.lineno}", _STARTS[ast.unparse(call.args[0])], call.args[1].value)
        for path in sorted(PACKAGE.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("at", "known")
        and len(call.args) > 1
        and isinstance(call.args[1], ast.Constant)
        and ast.unparse(call.args[0]) in _STARTS
    ]
    assert len(asked) > 150
    wrong = [f"{where}: {path!r}" for where, start, path in asked if not _leads(start, str(path))]
    assert wrong == []


def test_a_misspelt_path_is_found() -> None:
    assert not _leads(Node, "host.memlok.soft")
    assert not _leads(Node, "host.hostname.length")
