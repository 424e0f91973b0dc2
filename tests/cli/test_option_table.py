"""The table of options: what click gives where nothing is typed is what a record has by itself."""

from __future__ import annotations

import re
from typing import Any

import click
import pytest

from ncclcheck.cli import cli
from ncclcheck.cli.common import GroupedOption
from ncclcheck.commands.hang import HangOptions
from ncclcheck.commands.watch import WatchOptions
from ncclcheck.run.plan.config import KEYS, RECORDS
from ncclcheck.run.plan.option_table import Json, options_of, read, sources

_OTHERS: dict[str, dict[str, Any]] = {"": {"command": "env"}, "data": {"factory": "a:b"}, "watch": {"command": ()}}
_RECORDS = {**RECORDS, "hang": HangOptions, "watch": WatchOptions}


@pytest.mark.parametrize("name", _RECORDS)
def test_nothing_typed_is_the_default_of_the_record(name: str) -> None:
    record, others = _RECORDS[name], _OTHERS.get(name, {})
    given = {option.key: {} if option.kind == Json() else option.default for option in options_of(record)}
    assert read(record, given, **others) == record(**others)


@pytest.mark.parametrize("name", [name for name in _RECORDS if name])
def test_every_option_of_a_record_is_one_of_its_command(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    given = {param.name for param in command.params if isinstance(param, GroupedOption)}
    assert {option.key for _, source in sources(_RECORDS[name]) for option in source.options} <= given


def test_what_chooses_machines_is_guarded_in_the_site_file() -> None:
    choosing = {key for key in KEYS if re.search("host|launch|via|endpoint", key)}
    assert choosing == {key for key, option in KEYS.items() if option.guarded}
