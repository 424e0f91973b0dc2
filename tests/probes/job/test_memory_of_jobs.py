"""Memory of our own jobs: real ranks on CPUs, the fake NVML and libcuda for GPUs, and the rules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ncclcheck.probes.facts import (
    Cluster,
    Elsewhere,
    JobMemory,
    Measurements,
    Node,
    Policy,
    RankMemory,
    replace,
    together,
)
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.conftest import ROOT
from tests.helpers import fake_nvml

GIB, MIB = 2**30, 2**20


def rank(number: int, **more: object) -> RankMemory:
    device = f"cuda:{number}"
    seen = RankMemory(rank=number, node="a", device=device, by="nvml", peak=10 * GIB, total=80 * GIB, elsewhere=[])
    return replace(seen, **more)


def verdict(code: str, *ranks: RankMemory, **thresholds: float) -> Verdict:
    cluster = Cluster(
        command="bench",
        nodes=[Node(name="a")],
        measurements=Measurements(memory=JobMemory(ranks=list(ranks))),
        policy=Policy(thresholds={name.replace("_", "."): value for name, value in thresholds.items()}),
    )
    return judge(cluster, [rule for rule in all_rules() if rule.code == code])[0]


GUEST = Elsewhere(device="cuda:0", bytes=871 * MIB)
NAMELESS = Elsewhere(device="cuda:0")
CPU = {"by": "rss", "device": "cpu", "total": None}


@pytest.mark.parametrize(
    ("code", "ranks", "state"),
    [
        ("MEM004", [rank(0), rank(1, elsewhere=[GUEST])], State.FAIL),
        ("MEM004", [rank(0), rank(1, elsewhere=[NAMELESS])], State.FAIL),
        ("MEM004", [rank(0), rank(1)], State.OK),
        ("MEM004", [rank(0), rank(1, elsewhere=None)], State.UNKNOWN),
        ("MEM004", [rank(0, **CPU), rank(1, **CPU)], State.SKIPPED),
        ("MEM004", [], State.SKIPPED),
        ("MEM005", [rank(0, peak=50 * GIB), rank(1, peak=30 * GIB), rank(2, peak=30 * GIB)], State.FAIL),
        ("MEM005", [rank(0, peak=37 * GIB), rank(1, peak=30 * GIB), rank(2, peak=30 * GIB)], State.WARN),
        ("MEM005", [rank(0, peak=4 * GIB), rank(1, peak=2 * GIB), rank(2, peak=2 * GIB)], State.OK),
        ("MEM005", [rank(0, peak=3 * GIB, **CPU), rank(1, peak=GIB, **CPU), rank(2, peak=GIB, **CPU)], State.WARN),
        ("MEM005", [rank(0, peak=GIB + MIB, **CPU), rank(1, peak=GIB, **CPU)], State.OK),
        ("MEM005", [rank(0)], State.SKIPPED),
        ("MEM005", [rank(0, peak=None), rank(1, peak=None)], State.SKIPPED),
        ("MEM006", [rank(0, grown=100 * MIB, iterations=1000)], State.WARN),
        ("MEM006", [rank(0, grown=100 * MIB, iterations=10**6)], State.OK),
        ("MEM006", [rank(0, grown=8 * MIB, iterations=100)], State.OK),
        ("MEM006", [rank(0, grown=0, iterations=0)], State.OK),
        ("MEM007", [rank(0, peak=78 * GIB)], State.FAIL),
        ("MEM007", [rank(0, peak=75 * GIB)], State.WARN),
        ("MEM007", [rank(0, peak=30 * GIB, retries=1)], State.WARN),
        ("MEM007", [rank(0)], State.OK),
        ("MEM007", [rank(0, **CPU)], State.SKIPPED),
    ],
)
def test_rules(code: str, ranks: list[RankMemory], state: State) -> None:
    """Each rule, raised, not raised, and with nothing to judge."""
    assert verdict(code, *ranks).state is state


def test_thresholds_are_the_users() -> None:
    """A site may set its own limit."""
    assert verdict("MEM006", rank(0, grown=8 * MIB, iterations=10), MEM006_mib=4.0).state is State.WARN


def test_parts_of_many_ranks_become_one() -> None:
    """Every rank hands over its own memory."""
    parts = [Measurements(memory=JobMemory(ranks=[rank(number)])) for number in range(3)]
    assert [seen.rank for seen in together(parts).memory.ranks] == [0, 1, 2]


def run(program: str, **env: str) -> str:
    """A process of its own: what it holds is what is asked for."""
    given = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **env}
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, env=given, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


_GROWS = """
import msgspec, torch
from ncclcheck.probes.job.usage.memory import MemoryWatch
watch = MemoryWatch(torch.device("cpu"))
watch.mark("before_init")
kept = torch.ones(16 * 2**20)
watch.mark("after_init")
before = watch.now()
more = [torch.ones(2**20) for _ in range(8)]
watch.grew(before, 8)
del kept
print(msgspec.json.encode(watch.report(3, "a")).decode())
"""


def test_a_rank_on_cpus() -> None:
    """Resident memory: 64 MiB before init's end, 32 MiB in eight iterations, and a peak above the end."""
    seen = msgspec.json.decode(run(_GROWS), type=RankMemory)
    assert (seen.rank, seen.node, seen.by, seen.iterations) == (3, "a", "rss", 8)
    assert seen.before_init is not None
    assert seen.after_init is not None
    assert seen.peak is not None
    assert seen.after_init - seen.before_init >= 60 * MIB
    assert 28 * MIB <= seen.grown <= 48 * MIB
    assert seen.end is not None
    assert seen.peak >= seen.end


_ASKS = """
import json, os
from ncclcheck.probes.job.usage.own_gpu import OwnGpus
with open(os.environ["FAKE_NVML"]) as file:
    told = file.read().replace("PID", str(os.getpid()))
with open(os.environ["FAKE_NVML"], "w") as file:
    file.write(told)
gpus = OwnGpus()
others = gpus.elsewhere(1)
print(json.dumps([gpus.used(1), others and [[other.device, other.bytes] for other in others]]))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.built(tmp_path_factory.mktemp("libraries"))


@fake_nvml.needs_gcc
@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (["1 context = 1", "1 processes = 7:1000, PID:5000"], "[5000, []]"),
        (["0 context = 1", "1 context = 1", "0 processes = PID:871"], '[null, [["cuda:0", 871]]]'),
        (["0 context = 1", "1 context = 1", "* processes = 7:871"], '[null, [["cuda:0", null]]]'),
        (["0 context = 1", "1 processes = PID:none", "0 processes = PID:none"], '[null, [["cuda:0", null]]]'),
        (["cuda_error = 802"], "[null, null]"),
        (["init = 18", "0 context = 1"], '[null, [["cuda:0", null]]]'),
        (["hang = cuDevicePrimaryCtxGetState"], "[null, null]"),
    ],
)
def test_what_a_process_holds_on_gpus(libraries: Path, tmp_path: Path, lines: list[str], answer: str) -> None:
    """Contexts by libcuda, bytes by NVML where it knows the pid; a library that fails or hangs says nothing."""
    env = fake_nvml.environment(libraries, tmp_path / "told", "gpus = 2", *lines)
    assert run(_ASKS, **env).strip() == answer


_WATCHES = """
import json, os, torch
from ncclcheck.probes.job.usage.memory import MemoryWatch
watch = MemoryWatch(torch.device("cuda", 1))
watch.mark("before_init")
with open(os.environ["FAKE_NVML"], "a") as file:
    file.write("0 context = 1\\n")
watch.mark("after_wrap")
seen = watch.report(0, "a")
print(json.dumps([[[other.device, other.since] for other in seen.elsewhere], seen.total]))
"""


@fake_nvml.needs_gcc
def test_when_a_context_was_first_seen(libraries: Path, tmp_path: Path) -> None:
    """It came between the two looks."""
    env = fake_nvml.environment(libraries, tmp_path / "told", "gpus = 2", "1 context = 1", "1 total_mib = 1024")
    assert run(_WATCHES, **env).strip() == '[[["cuda:0", "after_wrap"]], 1073741824]'


_STEPS = """
import json, torch
from ncclcheck.probes.job.usage.memory import MemoryWatch
watch = MemoryWatch(torch.device("cpu"))
before = torch.ones(32 * 2**20)
del before
watch.begin_steps()
held = torch.ones(8 * 2**20)
del held
watch.end_steps()
seen = watch.report(0, "a")
print(json.dumps([seen.in_steps, seen.peak]))
"""


def test_the_peak_of_the_steps_is_their_own() -> None:
    """128 MiB were held before them, 32 MiB in them."""
    in_steps, peak = json.loads(run(_STEPS))
    assert 90 * MIB <= peak - in_steps <= 100 * MIB


def test_without_a_driver() -> None:
    """No libcuda: nothing is known, nothing is raised."""
    program = "from ncclcheck.probes.job.usage.own_gpu import OwnGpus as G; print(G().used(0), G().elsewhere(0))"
    assert run(program).strip() == "None None"
