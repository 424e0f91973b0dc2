"""The fields of the lines of logs: one list, that of what signs name and of what readers add, and as it says."""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import ncclcheck
from ncclcheck.probes.facts.log.fields import Digits, LogFields, WrittenFields, first_named, named_in
from ncclcheck.probes.facts.log.logs import LogEvent
from ncclcheck.probes.logs.nccl_lines import calls
from ncclcheck.probes.logs.signs import all_signs

_PACKAGE = Path(ncclcheck.__file__).parent
_KINDS = typing.get_type_hints(WrittenFields, include_extras=True)
_OF_READERS = {  # what no pattern names: of the traceback above a line, and of a collective
    *(
        "raised_at",
        "raised_in",
        "called_at",
        "chained",
        "client",
        "code_line",
        "condition",
        "ends",
        "helper",
        "main",
    ),
    *("spawned", "unreadable", "place", "communicator"),
}


def _of_signs() -> set[str]:
    patterns = [*(re.compile(sign.pattern) for sign in all_signs()), calls._CALL]
    return {name for pattern in patterns for name in pattern.groupindex}


def test_every_name_in_a_sign_is_a_field() -> None:
    assert _of_signs() - _KINDS.keys() == set()


def test_every_field_is_named_by_a_sign_or_added_by_a_reader() -> None:
    assert _KINDS.keys() - _of_signs() == _OF_READERS - _of_signs()


def test_digits_are_digits_in_every_example() -> None:
    wrong = [
        (sign.name, name, text)
        for sign in all_signs()
        for example in sign.examples
        if (match := re.search(sign.pattern, example))
        for name, text in named_in(match).items()
        if _KINDS[name] == Digits and not str(text).isdecimal()
    ]
    assert wrong == []


def _tables(module: ast.Module) -> dict[str, ast.expr]:
    return {
        ast.unparse(target): statement.value
        for statement in ast.walk(module)
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    }


def _asked_for() -> Iterator[tuple[str, str]]:
    """Every name that is given to first_named as a literal, or by a table of the module."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        if "first_named(" not in (text := path.read_text()):
            continue
        tables = _tables(module := ast.parse(text))
        for call in ast.walk(module):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "first_named":
                for given in call.args[1:]:
                    table = tables[ast.unparse(given.value)] if isinstance(given, ast.Starred) else given
                    names = (text for text in ast.walk(table) if isinstance(text, ast.Constant))
                    yield from ((path.name, str(text.value)) for text in names)


def test_names_that_are_asked_for_are_fields() -> None:
    asked = [*_asked_for()]
    assert len(asked) > 40
    assert [(where, name) for where, name in asked if name not in _KINDS] == []


def test_the_first_that_is_named_counts() -> None:
    fields: LogFields = {"remote": "10.0.0.2", "own": "10.0.0.1"}
    assert first_named(fields, "dialled", "remote", "own") == "10.0.0.2"
    assert first_named(fields, "dialled") == ""


def test_saved_events_stay_readable() -> None:
    """A name of another version is passed over; a value that is no text is refused."""
    saved = b'{"sign": "s", "file": "f", "line": 1, "text": "t", "order": 1, "fields": %s}'
    event = msgspec.json.decode(saved % b'{"rank": "3", "of_tomorrow": "x"}', type=LogEvent)
    assert event.fields == {"rank": "3"}
    for given in (b'{"rank": [3]}', b'{"world": "four"}', b'{"world": ""}'):
        with pytest.raises(msgspec.ValidationError, match=r"rank|world"):
            msgspec.json.decode(saved % given, type=LogEvent)
