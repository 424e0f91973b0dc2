"""Scenarios in which everything works, and one host, rank or direction is slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from ncclcheck.reports.findings import State
from tests.lab import faults, slowness
from tests.scenario import Expect, Play, Scenario, Scene

_ONE_A_HOST = ("bench", "--nproc-per-node", "1", "--time-budget", "8")
# A slow way is seen in bursts, in the bandwidth and in the pairs; who is to blame is said by BEN004.
_SYMPTOMS = ("NET008", "NET009", "BEN002", "BEN003")


def _rank_of(name: str, slowed: Callable[[int], AbstractContextManager[None]]) -> Play:
    """The rank of a host is slowed from its first collective on."""

    @contextmanager
    def play(scene: Scene) -> Iterator[None]:
        with slowed(scene.rank_on(name, 3)):
            yield

    return play


def _sends_slowly(name: str, hosts: int, slow: str, state: State = State.FAIL) -> Scenario:
    return Scenario(
        name=name,
        hosts=hosts,
        command=_ONE_A_HOST,
        fault=lambda s: faults.limited(s[slow], "200mbit"),
        expect=(Expect(code="NET008", node=slow), Expect(code="BEN004", node=slow, state=state)),
        also=_SYMPTOMS,
        first=f"NET008 on {slow}",
        seconds=75,
    )


def _rank_slowed(name: str, slowed: Callable[[int], AbstractContextManager[None]]) -> Scenario:
    return Scenario(
        name=name,
        hosts=3,
        command=_ONE_A_HOST,
        strike=_rank_of("h2", slowed),
        expect=(Expect(code="BEN003", node="h2", state=State.WARN),),
        also=(*_SYMPTOMS, "BEN004"),
        exit_code=0,
        seconds=75,
    )


OF_SPEED = (
    _sends_slowly("slow: one host sends slowly, 3 hosts", 3, "h2"),
    _sends_slowly("slow: one host sends slowly, 4 hosts", 4, "h3"),
    _sends_slowly("slow: one of two hosts sends slowly", 2, "h2", State.WARN),
    _rank_slowed("slow: a rank is stopped for 20 ms again and again", slowness.stuttering),
    _rank_slowed("slow: a rank has a fifth of a core", slowness.short_of_cpu),
)
