"""Healthy hosts of a busy machine: nobody is accused, and nothing is left out for want of time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.sound import COMMANDS, JOINS, SLURM, Command, load, scenario, wrongs
from tests.scenarios.scenario_run import Labs

ALL = (*COMMANDS, *JOINS, *SLURM)
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def labs() -> Iterator[Labs]:
    with Labs() as labs:
        yield labs


@pytest.mark.parametrize("command", ALL, ids=[command.name for command in ALL])
def test_nobody_is_accused(labs: Labs, command: Command) -> None:
    with load(6):
        assert wrongs(labs.run(scenario(command))) == []
