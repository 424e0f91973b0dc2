"""Every scenario through the real command: code, place, mend, exit code, seconds, and nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.scenario import Scenario
from tests.scenarios.scenario_run import Labs
from tests.scenarios.scenarios import SCENARIOS


@pytest.fixture(scope="module")
def labs() -> Iterator[Labs]:
    with Labs() as labs:
        yield labs


def _cases() -> list[pytest.param]:  # type: ignore[valid-type]
    """Those that need the like of lab stand together."""
    ordered = sorted(SCENARIOS, key=lambda scenario: scenario.needs)
    marks = {True: (), False: (pytest.mark.nightly, pytest.mark.timeout(300))}  # a cure runs the job twice
    return [pytest.param(scenario, id=scenario.name, marks=marks[scenario.gate]) for scenario in ordered]


@pytest.mark.parametrize("scenario", _cases())
def test_scenario(labs: Labs, scenario: Scenario) -> None:
    assert labs.run(scenario).problems(scenario) == []


def test_names_are_unique() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
