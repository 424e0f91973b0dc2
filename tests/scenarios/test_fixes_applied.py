"""The printed fix works: what a report puts first is done as it says, the next run is clean, and no harm is done.

`pytest -m nightly -s tests/scenarios/test_fixes_applied.py` prints the table of all scenarios at its end.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tabulate import tabulate

from tests.scenarios.fixes import HEADERS, Attempt, attempts
from tests.scenarios.scenario import Scenario
from tests.scenarios.scenarios import SCENARIOS

_CABLE = "stands for a cable or a switch port: somebody has to go there"
_NO_INDEX = "the fix installs a package, and the lab has no index"
_NO_SYSTEMD = "the fix starts a service, and the lab's hosts have no systemd"
_CLOCK = "the lab's clock is a library in every process, which no tool sets"
_OF_THE_SITE = "a rule that the site made, and that its administrator has to want otherwise"

_HARD_LIMIT = "the limit is a hard one of the command that starts it, and the lab may not raise any"

# Faults that no command cures from inside of the lab, and why.
BY_A_PERSON = {
    "3 % of packets lost": _CABLE,
    "join: packets are lost from h2 to h3, and a job shows it": _CABLE,
    "cut off from the data network": _CABLE,
    "no route to a host for ssh": _CABLE,
    "clock +90 s": _CLOCK,
    "clock -90 s": _CLOCK,
    "join: clock -90 s": _CLOCK,
    "bench: not started with a clock -90 s": _CLOCK,
    "ssh refused": _NO_SYSTEMD,
    "a silent slurmd among four": _NO_SYSTEMD,
    "a silent slurmd, and MTU 1400 elsewhere": _NO_SYSTEMD,
    "slurm: a dead slurmd": _NO_SYSTEMD,
    "wrong ssh key": "whoever has the key has to let another one in; without it nobody enters",
    "no ncclcheck there": _NO_INDEX,
    "another protocol there": _NO_INDEX,
    "another ncclcheck there": _NO_INDEX,
    "another torch there": _NO_INDEX,
    "another NCCL there": _NO_INDEX,
    "join: other records on one host": _NO_INDEX,
    "slurm: a prolog that fails": _OF_THE_SITE,
    "ssh: an account that is closed": _OF_THE_SITE,
    "ssh: an account for files only": _OF_THE_SITE,
    "ssh: an sshd that says nothing": "stands for a machine that hangs: somebody has to look at its console",
    "ssh: another host key": "only its administrator can say whether the key is the right one",
    "ssh: a login shell that does not come back": "the user's own .bashrc, which only its owner may rewrite",
    "ssh: a login shell that becomes another": "the user's own .bashrc, which only its owner may rewrite",
    "bench: too few processes on one host": _HARD_LIMIT,
    "bench: too small an address space on one host": _HARD_LIMIT,
    "join: the address of node 1 as master": "the node that sees it does not know the address of node rank 0",
    "join: working directory apart on one host": "stands for a mount that is missing",
    "join: duplicate address": "which of the two hosts answers is chance, so each report names one step of two",
    "join: a node that was never started": "somebody has to start it on a machine that is not there",
    "join: a secret that one host does not have": "whoever has the secret has to hand it over",
}


def _tried(scenario: Scenario) -> bool:
    """A fault that strikes in the middle of a run is over before the next one."""
    return bool(scenario.expect) and not scenario.strikes and scenario.name not in BY_A_PERSON


_CASES = sorted((scenario for scenario in SCENARIOS if _tried(scenario)), key=lambda scenario: scenario.needs)
_TABLE: list[Attempt] = []


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    yield
    print("\n" + tabulate([attempt.row() for attempt in _TABLE], HEADERS))


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", [pytest.param(scenario, id=scenario.name) for scenario in _CASES])
def test_the_printed_fix_cures_and_harms_nothing(scenario: Scenario) -> None:
    tried = attempts(scenario)
    _TABLE.extend(tried)
    shown = "\n".join(f"{attempt.who}: {attempt}" for attempt in tried)
    assert any(attempt.cures for attempt in tried), shown
    assert not [line for attempt in tried for line in attempt.harm], shown


def test_what_only_a_person_can_cure_is_a_scenario() -> None:
    assert set(BY_A_PERSON) <= {scenario.name for scenario in SCENARIOS}
