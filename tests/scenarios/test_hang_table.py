"""The table of hangs, a job a test: real gloo jobs of an ordinary user, by ssh and in Slurm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.hang_runs import Named, Site, once, site, verdict
from tests.scenarios.hang_table import HANGS, SOUND, Run

_HERE = [pytest.mark.nightly, pytest.mark.timeout(600)]
_PARTLY = ("pipe throttled",)  # it advances, at a hundredth of a core: who holds it back is not seen every time


@pytest.fixture(scope="module")
def hosts() -> Iterator[Site]:
    with site() as place:
        yield place


@pytest.fixture(scope="module")
def cluster() -> Iterator[Site]:
    with site(hosts=3, slurm=True) as place:
        yield place


def _runs(by: str) -> list[object]:
    return [pytest.param(run, marks=_HERE, id=run.name) for run in [*HANGS, *SOUND] if run.by == by]


def _holds(place: Site, run: Run) -> None:
    seen = once(place, run)
    assert seen.verdict in ("right", "fine") or run.name.startswith(_PARTLY), seen


@pytest.mark.parametrize("run", _runs("ssh"))
def test_it_is_named(hosts: Site, run: Run) -> None:
    _holds(hosts, run)


@pytest.mark.parametrize("run", _runs("slurm"))
def test_it_is_named_in_a_job_of_slurm(cluster: Site, run: Run) -> None:
    _holds(cluster, run)


@pytest.mark.parametrize(
    ("run", "named", "weight"),
    [
        (Run("ddp", "stopped", "stopped"), [Named("HNG002", 1, "h1", "")], "right"),
        (Run("ddp", "stopped", "stopped"), [Named("HNG003", 1, "h1", "")], "partly"),
        (Run("ddp", "stopped", "stopped"), [Named("HNG002", 2, "h2", "")], "wrong"),
        (Run("ddp", "stopped", "stopped"), [Named("HNG002", n, "h1", "") for n in (1, 2)], "wrong"),
        (Run("ddp", "stopped", "stopped"), [], "missed"),
        (Run("ddp", "gil sleeps", "gil"), [Named("HNG004", 1, "h1", "rank 1 sleeps")], "partly"),
        (Run("ddp", "barrier", "all wait", -1), [Named("HNG007", None, "", "")], "right"),
        (Run("ddp", "cut off", "network", 2, 3, 1), [Named("HNG011", 2, "h3", "")], "right"),
        (Run("ddp", "cut off", "network", 2, 3, 1), [Named("HNG011", 0, "h1", "")], "wrong"),
        (Run("ddp", "none", "sound"), [], "fine"),
        (Run("ddp", "none", "sound"), [Named("HNG005", 0, "h1", "")], "accused"),
    ],
)
def test_what_is_named_is_weighed(run: Run, named: list[Named], weight: str) -> None:
    assert verdict(run, named) == weight
