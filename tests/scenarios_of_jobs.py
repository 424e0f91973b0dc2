"""Scenarios of jobs: what happens to ranks and nodes while torchrun runs, and jobs that are not started at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from ncclcheck.reports.findings import State
from tests.lab import faults
from tests.scenario import ALL, Expect, Play, Scenario, Scene

_DEADLINE_S = 60
# Announced by a rank: 1 import torch, 2 init_process_group, 3 the first collective, then every iteration.
_BEFORE, _FIRST, _AFTER = 1, 3, 60
_QUICK = ("bench", "--quick")
_LONG = ("bench", "--nproc-per-node", "1", "--time-budget", "50", "--deadline", str(_DEADLINE_S))


def _signal(steps: int, number: int) -> Play:
    """The rank of h2 gets a signal once it has announced so many steps."""

    @contextmanager
    def play(scene: Scene) -> Iterator[None]:
        pid = scene.rank_on("h2", steps)
        os.kill(pid, number)
        yield

    return play


def _cut(*devices: str) -> Play:
    @contextmanager
    def play(scene: Scene) -> Iterator[None]:
        scene.rank_on("h2", _AFTER)
        with faults.cut_off(scene["h2"], *devices):
            yield

    return play


@contextmanager
def _ctrl_c(scene: Scene) -> Iterator[None]:
    """The terminal sends SIGINT to the whole foreground process group."""
    scene.rank_on("h2", _AFTER)
    os.killpg(scene.started["h1"].pid, signal.SIGINT)
    yield


def _lost(
    name: str, steps: int, code: str, number: int = signal.SIGKILL, words: str = "SIGKILL", *, gate: bool = False
) -> Scenario:
    return Scenario(
        name=name,
        hosts=2,
        command=_LONG,
        strike=_signal(steps, number),
        expect=(Expect(code=code, node="h2", words=words),),
        seconds=_DEADLINE_S + 5,
        gate=gate,
    )


_DURING = (
    Scenario(name="bench: healthy-2-ssh", hosts=2, command=_QUICK, exit_code=0, seconds=45),
    Scenario(
        name="bench: healthy-4-join",
        hosts=4,
        launcher="join",
        mgmt=False,
        command=("bench", "--quick", "--nproc-per-node", "1"),
        exit_code=0,
        seconds=60,
    ),
    Scenario(
        name="bench: healthy-4-slurm",
        hosts=4,
        launcher="slurm",
        command=("bench", "--quick", "--nproc-per-node", "1"),
        exit_code=0,
        seconds=60,
    ),
    _lost("bench: a rank killed before the first collective", _BEFORE, "RUN002"),
    _lost("bench: a rank killed in the first collective", _FIRST, "RUN003"),
    _lost("bench: a rank killed after the first collective", _AFTER, "RUN003", gate=True),
    _lost("bench: a rank stopped", _AFTER, "RUN003", signal.SIGSTOP, "stopped"),
    Scenario(
        name="bench: data network of a host lost",
        command=_LONG,
        strike=_cut("eth0"),
        expect=(Expect(code="RUN003", node="h2"),),
        seconds=_DEADLINE_S + 5,
    ),
    Scenario(
        name="bench: a host cut off",
        command=_LONG,
        strike=_cut(),
        expect=(Expect(code="RUN001", node="h2", state=State.UNKNOWN),),
        exit_code=3,
        seconds=_DEADLINE_S + 5,
        gone_within=95,  # nothing tells an agent that is cut off but its lease
    ),
    Scenario(
        name="bench: join, a host cut off",
        launcher="join",
        mgmt=False,
        command=_LONG,
        strike=_cut(),
        expect=(Expect(code="RUN001", node="h2", state=State.UNKNOWN),),
        exit_code=3,
        seconds=_DEADLINE_S + 5,
    ),
    Scenario(name="bench: ^C", hosts=2, command=_LONG, strike=_ctrl_c, exit_code=130, seconds=_DEADLINE_S),
    Scenario(
        name="bench: join, ^C on node 0",
        hosts=2,
        launcher="join",
        mgmt=False,
        command=_LONG,
        strike=_ctrl_c,
        exit_code=130,
        seconds=_DEADLINE_S,
    ),
)


_REFUSED = (
    Scenario(
        name="bench: not started where ports are dropped",
        hosts=2,
        command=_QUICK,
        fault=lambda s: faults.drop_high_ports(s["h2"], "in"),
        refused=True,
        expect=(Expect(code="NET006", node="h2", device="eth0"),),
        gate=True,
    ),
    Scenario(
        name="bench: not started with a clock -90 s",
        command=_QUICK,
        fault=lambda s: faults.clock(s["h2"], -90),
        refused=True,
        expect=(Expect(code="HST009", node="h2"),),
    ),
    Scenario(
        name="bench: GLOO_SOCKET_IFNAME=docker0",
        command=_QUICK,
        fault=lambda s: faults.docker_bridge(*s.lab.hosts),
        refused=True,
        env={ALL: {"GLOO_SOCKET_IFNAME": "docker0"}},
        expect=(Expect(code="NET010", device="docker0", remedy="GLOO_SOCKET_IFNAME"),),
    ),
    Scenario(
        name="bench: two runs at once",
        hosts=2,
        command=("bench", "--quick", "--nproc-per-node", "1"),
        again=True,
        exit_code=0,
        seconds=60,
    ),
    Scenario(
        name="bench: join, rendezvous port taken",
        hosts=2,
        launcher="join",
        mgmt=False,
        command=_QUICK,
        fault=lambda s: faults.listener(s["h1"], 29500),
        expect=(Expect(code="RUN007", node="h1", words="29500"),),
        seconds=45,
    ),
)

OF_JOBS = (*_DURING, *_REFUSED)
