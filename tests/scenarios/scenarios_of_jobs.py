"""Scenarios of jobs: what happens to ranks and nodes while torchrun runs, and jobs that are not started at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ncclcheck.reports.judgement.findings import State
from tests.lab import faults
from tests.scenarios.scenario import ALL, Expect, Play, Scenario, Scene

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
def _no_tcp(scene: Scene) -> Iterator[None]:
    """h2 drops TCP from the moment in which its torchrun has started: all ways were tried before."""
    scene.running_on("h2", "torch.distributed.run")
    with faults.drop_tcp(scene["h2"]):
        yield


def _meanwhile(strike: Callable[[Scene], None]) -> Play:
    """Something that happens to the job in its middle, and is over when the job goes on."""

    @contextmanager
    def play(scene: Scene) -> Iterator[None]:
        scene.rank_on("h2", _AFTER)
        strike(scene)
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
        expect=(
            Expect(code="RUN003", node="h2", words="NET006"),
            Expect(code="NET006", node="h2", device="eth0", words="passed before the job"),
        ),
        seconds=_DEADLINE_S + 5,
    ),
    Scenario(
        name="bench: a limit of connections that 3 of 4 hosts do not reach",
        hosts=4,
        fault=lambda scene: faults.connections_limited(scene.lab.hosts, 2),
        command=("bench", "--quick", "--nproc-per-node", "1", "--deadline", "240"),
        expect=(Expect(code="BEN019", words="from 4 nodes on, whichever they are"),),
        also=("NET006",),
        seconds=250,
    ),
    Scenario(
        name="bench: TCP of a host dropped while torchrun meets",
        command=_LONG,
        strike=_no_tcp,
        expect=(
            Expect(code="RUN002", node="h2", words="NET006"),
            Expect(code="NET006", node="h2", device="eth0", words="passed before the job"),
        ),
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


_FEW = ("bench", "--nproc-per-node", "1", "--time-budget", "15")
_HELD_UP = (
    Scenario(
        name="bench: link of a host lost for 3 s",
        command=_FEW,
        strike=_meanwhile(lambda s: faults.flap(s["h2"], 3)),
        expect=(Expect(code="BEN018", node="h2", device="eth0", words="lost its link once"),),
        also=("BEN003", "BEN004"),
        seconds=90,
    ),
    Scenario(
        name="bench: link of a host lost twice for 3 s",
        launcher="join",
        command=_FEW,
        strike=_meanwhile(lambda s: faults.flap(s["h2"], 3, times=2)),
        expect=(Expect(code="BEN018", node="h2", device="eth0", words="lost its link 2 times"),),
        also=("BEN003", "BEN004"),
        seconds=90,
    ),
    Scenario(
        name="bench: a host frozen for 8 s",
        launcher="join",
        mgmt=False,
        command=_FEW,
        strike=_meanwhile(lambda s: faults.frozen(s["h2"], 8)),
        expect=(Expect(code="BEN018", node="h2", words="stood still for", state=State.WARN),),
        also=("BEN003", "BEN004"),
        exits=dict.fromkeys(("h1", "h2", "h3"), (0, 1)),  # BEN003 fails of a rank that stood still in its row
        seconds=90,
    ),
)


_ONE = (*_QUICK, "--nproc-per-node", "1")
_MAY_READ = "+dac_read_search,+dac_override"
_ANOTHER_USER = (
    *("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"),
    *(f"--inh-caps={_MAY_READ}", f"--ambient-caps={_MAY_READ}"),
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
        name="bench: TORCH_DISTRIBUTED_DEBUG=DETAIL on one host",
        hosts=2,
        launcher="join",
        mgmt=False,
        command=_QUICK,
        env={"h2": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}},
        refused=True,
        expect=(Expect(code="NCC005", words="TORCH_DISTRIBUTED_DEBUG", remedy="TORCH_DISTRIBUTED_DEBUG"),),
        also=("NCC006",),
        gate=True,
    ),
    Scenario(
        name="bench: too few processes on one host",
        hosts=2,
        launcher="join",
        mgmt=False,
        command=_ONE,
        under={"h2": (*_ANOTHER_USER, "prlimit", "--nproc=22", "--")},
        refused=True,
        expect=(Expect(code="HST011", node="h2", words="user 54321", remedy="ulimit -u"),),
        also=("STO004", "VER013"),
    ),
    Scenario(
        name="bench: too small an address space on one host",
        hosts=2,
        launcher="join",
        mgmt=False,
        command=_ONE,
        under={"h2": ("prlimit", f"--as={800 * 2**20}", "--")},
        refused=True,
        expect=(Expect(code="HST014", node="h2", words="torch alone needs", remedy="ulimit -v"),),
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

OF_JOBS = (*_DURING, *_HELD_UP, *_REFUSED)
