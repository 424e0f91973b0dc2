"""The collection of datasets is whole: names, kinds, factories that can be called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from benchmarks.data import Result, named, summary
from benchmarks.data_run import Outcome
from benchmarks.datasets import CASES, Case
from benchmarks.datasets.kinds import KINDS, NAMED_IS_ENOUGH

_UNUSUAL = {"loader_refused": "ValueError", "raises_in_factory": "FileNotFoundError", "gives_nothing": "None"}
_RUNNABLE = [case for case in CASES if all(find_spec(name) for name in case.needs)]


_CALLS = """
import importlib, json, sys
said = []
for factory in sys.argv[1:]:
    module, name = factory.split(":")
    try:
        said.append("None" if getattr(importlib.import_module(module), name)() is None else "made")
    except Exception as error:
        said.append(type(error).__name__)
print(json.dumps(said))
"""


def _factory(case: Case) -> Any:
    module, name = case.factory.split(":")
    return getattr(import_module(module), name)


def test_each_case_has_a_name_of_its_own() -> None:
    assert [name for name, times in Counter(case.name for case in CASES).items() if times > 1] == []


def test_there_are_enough() -> None:
    assert sum(not case.clean for case in CASES) >= 45
    assert sum(case.clean for case in CASES) >= 25


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_clean_or_says_which_defect_it_has(case: Case) -> None:
    assert case.clean == (not case.expects)
    assert set(case.expects) <= set(KINDS)
    assert _factory(case).__doc__


def test_every_kind_has_a_case() -> None:
    assert {kind for case in CASES for kind in case.expects} == set(KINDS)
    assert set(KINDS) >= NAMED_IS_ENOUGH


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each factory gave or raised, in a process that takes its threads and helpers along."""
    environment = {**os.environ, "DATASETS_SCRATCH": str(tmp_path_factory.mktemp("scratch"))}
    command = [sys.executable, "-W", "ignore", "-c", _CALLS, *(case.factory for case in _RUNNABLE)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True, env=environment)
    return dict(zip((case.name for case in _RUNNABLE), json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", _RUNNABLE, ids=lambda case: case.name)
def test_a_factory_needs_no_arguments(case: Case, called: dict[str, str]) -> None:
    assert called[case.name] == _UNUSUAL.get(case.name, "made")


@pytest.mark.parametrize(
    ("states", "clean", "good"),
    [
        ({"DAT004": "fail"}, False, True),
        ({"DAT004": "unknown", "DAT006": "fail"}, False, False),
        ({"DAT004": "note"}, True, True),
        ({"DAT006": "warn"}, True, False),
        ({"RUN004": "unknown"}, True, True),
    ],
)
def test_what_counts_as_found_and_as_an_alarm(states: dict[str, str], clean: bool, good: bool) -> None:
    case = Case("one", "module:one", () if clean else ("race",), clean)
    assert Result(case, [Outcome(1.0, states)]).good is good


def test_entropy_need_only_be_named() -> None:
    assert named(Case("clock", "module:clock", ("uncontrolled",)), Outcome(1.0, {"DAT012": "note"})) == ("DAT012",)


def test_runs_that_disagree_are_counted() -> None:
    case = Case("one", "module:one", ("race",))
    result = Result(case, [Outcome(1.0, {"DAT004": "fail"}), Outcome(2.0, {"DAT004": "ok"})])
    assert not result.good
    assert result.differing() == {"DAT004"}
    assert "same verdicts in 2 runs: 0 of 1 cases" in summary([result])
