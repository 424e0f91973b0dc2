"""Words that depend on where a thing stands; faults planted there were noticed by no other test of the rule."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import Cluster, Gpus, LogEvent, Measurements, Node, RankSpeed
from ncclcheck.probes.facts.data import DataResources
from ncclcheck.probes.facts.log.fields import LogFields
from ncclcheck.probes.facts.machine.health import Waiting
from ncclcheck.probes.facts.training import Smoke, StepTimes
from ncclcheck.reports.rules.data.workers import _fitting
from ncclcheck.reports.rules.host.failing import _stuck
from ncclcheck.reports.rules.log.bootstrap_store import _who_came
from ncclcheck.reports.rules.log.usage_start import _not_launched
from ncclcheck.reports.rules.nccl.numbers import _is_power_of_two
from ncclcheck.reports.rules.nccl.variables import _remove
from ncclcheck.reports.rules.rdma.choice import _shown
from ncclcheck.reports.rules.training.side import _where
from ncclcheck.reports.subjects.nccl.hca import HcaEntry
from ncclcheck.reports.subjects.nccl.variables import ValueInForce
from tests.helpers import clusters
from tests.helpers.cards import card


@pytest.mark.parametrize(
    ("source", "who", "commands"),
    [
        ("environment", "you", ["unset NCCL_DEBUGG"]),
        ("/etc/nccl.conf:3", "admin", []),
        ("/home/kim/.nccl.conf:1", "you", []),
    ],
)
def test_a_wrong_name_is_removed_where_it_stands(source: str, who: str, commands: list[str]) -> None:
    fix = _remove("NCCL_DEBUGG", ValueInForce("INFO", source))
    assert (fix.who, fix.commands) == (who, commands)
    assert source in fix.text or source == "environment"


def test_an_entry_names_its_port_where_it_has_one() -> None:
    assert _shown(HcaEntry("mlx5_0")) == "'mlx5_0'"
    assert _shown(HcaEntry("mlx5_0", 2)) == "'mlx5_0' port 2"


def test_only_several_waiting_processes_have_others() -> None:
    node: Node = clusters.node("a")
    waiting = [Waiting(name="python", pid=pid, seconds=2.0, user="kim") for pid in (7, 8, 9)]
    assert "python (pid 7 of kim) waits" in _stuck(node, waiting[:1], []).what
    assert "python (pid 7 of kim) and 2 more waits" in _stuck(node, waiting, []).what


def test_the_key_that_was_waited_for_is_named_where_it_is_known() -> None:
    event = LogEvent(sign="store-wait", file="a", line=1, text="", order=1, fields={"keys": "rank3"})
    assert _who_came(event).endswith("never set (key rank3)")
    assert _who_came(LogEvent(sign="store-wait", file="a", line=1, text="", order=1)).endswith("never set")


def test_numbers_that_nccl_takes_as_powers_of_two() -> None:
    assert [number for number in range(-2, 10) if _is_power_of_two(number)] == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("cores", "ranks", "workers"), [(8.0, 4, 2), (7.0, 2, 3), (2.0, 8, 1), (4.0, 0, 4), (4.0, 1, 4)]
)
def test_workers_that_fit_the_cores_of_a_rank(cores: float, ranks: int, workers: int) -> None:
    assert _fitting(DataResources(cores=cores, ranks_per_node=ranks)) == workers


@pytest.mark.parametrize(
    ("fields", "is_of_the_clock"),
    [
        ({"why": "Munge decode failed"}, True),
        ({"launch": "Invalid job credential"}, True),
        ({"launch": "Communication connection failure"}, False),
        ({}, False),
    ],
)
def test_only_a_refused_credential_is_of_clock_or_munge(fields: LogFields, is_of_the_clock: bool) -> None:
    event = LogEvent(sign="slurm-launch-failed", file="a", line=1, text="", order=1, fields=fields)
    assert ("munge key" in _not_launched([event]).why) == is_of_the_clock


def test_what_all_ranks_share_stands_at_the_first_of_them() -> None:
    steps = [StepTimes(rank=rank, node=f"n{rank}") for rank in (3, 1, 2)]
    smoke = Smoke(steps=steps)
    at = _where(Cluster(nodes=[], measurements=Measurements(smoke=smoke)))
    assert (at.node, at.rank) == ("n1", 1)
    assert _where(Cluster(nodes=[], measurements=Measurements())).node is None


def test_a_sound_gpu_of_a_known_model_is_judged() -> None:
    node = clusters.node("a", gpus=Gpus(pci=[], devices=["nvidia0"], usable=1, cards=[card(0)]))
    speed = RankSpeed(rank=0, node="a", device="cuda:0", matmul_gflop_s=7e5, memory_gb_s=2.6e3)
    verdict = clusters.verdict("BEN041", node, command="bench", measurements=Measurements(rank_speeds=[speed]))
    assert (verdict.state.value, verdict.findings) == ("ok", [])
