"""Fixes with the expressions of the user's own class."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts.data.made import Method
from ncclcheck.reports.subjects.data.own_names import longer, returned


def method(*texts: str) -> Method:
    return Method(name="__getitem__", parameters=["row"], returns=[*texts])


@pytest.mark.parametrize(
    ("text", "leaf", "expected"),
    [
        ("self.x[row]", "", ["return self.x[row].clone()"]),
        ("self.x[row]", "sample", ["return self.x[row].clone()"]),
        ("(row, self.x[row])", "1", ["return (row, self.x[row].clone())"]),
        ("{'é': 1, 'ids': a + b}", "ids", ["return {'é': 1, 'ids': (a + b).clone()}"]),
        ("{'of': {'one': x}}", "of.one", ["return {'of': {'one': x.clone()}}"]),
        ("pair", "1", ["return (*pair[:1], pair[1].clone(), *pair[2:])"]),
        ("sample", "ids", ['sample["ids"] = sample["ids"].clone()\nreturn sample']),
        ("sample", 'a"]; b', []),
        ("self.of(row)", "1", []),
        ("(1, 2)", "5", []),
        ("(", "", []),
        ("", "", []),
    ],
)
def test_the_part_that_has_to_change_is_changed(text: str, leaf: str, expected: list[str]) -> None:
    assert returned(method(text), "{}.clone()", leaf) == expected


def test_all_returns_or_none() -> None:
    assert returned(method("a", "b"), "f({})") == ["return f(a)", "return f(b)"]
    assert returned(method("a", ""), "f({})") == []
    assert returned(None, "f({})") == []


@pytest.mark.parametrize(
    ("text", "by", "expected"),
    [
        ("120", 10, "130"),
        ("len(self.x)", -3, "len(self.x) - 3"),
        ("len(self.x) - 3", 3, "len(self.x)"),
        ("len(self.x) - self.window", 1, "len(self.x) - self.window + 1"),
        ("a if b else c", 1, "(a if b else c) + 1"),
        ("", 1, ""),
        ("(", 1, ""),
    ],
)
def test_a_length_is_corrected(text: str, by: int, expected: str) -> None:
    assert longer(method(text), by) == expected
