"""Loaders as popular repositories write them: the healthy ones raise no alarm, the others are named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.probes.dataloader import phases
from ncclcheck.probes.facts import Cluster, Measurements, Node
from ncclcheck.probes.facts.data import DataReport
from ncclcheck.probes.facts.data.report import by_node
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

SAMPLES = str(Path(__file__).resolve().parents[2] / "samples")
RULES = [rule for rule in all_rules() if rule.code.startswith("DAT")]
ALARMS = (State.FAIL, State.WARN)
LONG = {
    "web_loader", "pretokenized", "pretokenized_alike", "Served", "Crops", "Cached", "cached_augmented", "photos",
    "noisy", "lines", "seeded_shuffle",
}  # fmt: skip
SOUND = [
    "infinite", "web_loader", "Configured", "Mosaic", "pretokenized", "by_rank", "Crops", "Cached", "Stamped",
    "OpenedByEach", "spawned",
]  # fmt: skip
BROKEN = [
    ("Unpickled", "DAT005", "workers share the offset of"),
    ("FlippedInPlace", "DAT006", "held by the dataset, changed by reading: self.records["),
    ("pretokenized_alike", "DAT016", "samples of the stream are read by every rank"),
    ("get_batch", "DAT001", "it gave one batch, a tuple of Tensor, Tensor (12x64, 12x64)"),
    ("both_loaders", "DAT001", "give a function that returns one of them"),
    ("Replaced", "DAT027", "by reading that one itself (line"),
    ("AnyLength", "DAT014", "cannot make a batch of samples that differ"),
    ("Served", "DAT005", "workers share the connection socket:["),
    ("cached_augmented", "DAT010", "is random, and stays what it was first"),
    ("noisy", "DAT009", "self.rng is in the same state in each"),
    ("lines", "DAT016", "samples of the stream are read by every rank"),
    ("photos", "DAT014", "cannot make a batch of samples that differ"),
    ("Lite", "DAT001", "a Lite with a next_batch() of its own"),
]


def examined(name: str) -> dict[str, Verdict]:
    """What `data --nproc-per-node 2` says, by code."""
    plan = DataPlan(
        factory=f"popular_loaders:{name}", directory=SAMPLES, node="sim0", workers=2, ranks=2, ranks_per_node=2
    )
    parts: list[DataReport] = []
    phases.examine(plan, lambda _: None, parts.append)
    cluster = Cluster(command="data", nodes=[Node(name="sim0")], measurements=Measurements(data=by_node(parts)))
    assert "popular_loaders" not in sys.modules, "user code belongs to the children"
    return {verdict.code: verdict for verdict in judge(cluster, RULES)}


def _slow(name: str, *rest: str) -> Any:
    return pytest.param(name, *rest, marks=[pytest.mark.nightly] if name in LONG else [], id=name)


@pytest.mark.parametrize("name", [_slow(name) for name in SOUND])
def test_a_sound_loader_raises_no_alarm(name: str) -> None:
    verdicts = examined(name)
    assert {
        code: verdict.findings
        for code, verdict in verdicts.items()
        if verdict.state in ALARMS and code != "DAT025"
    } == {}
    assert verdicts["DAT003"].state is State.OK


@pytest.mark.parametrize(("name", "code", "words"), [_slow(*defect) for defect in BROKEN])
def test_a_defect_is_named(name: str, code: str, words: str) -> None:
    verdict = examined(name)[code]
    assert verdict.state in ALARMS
    texts = [finding.what for finding in verdict.findings]
    texts += [
        f"{evidence.source}: {evidence.value}" for finding in verdict.findings for evidence in finding.evidence
    ]
    assert words in " ".join(texts)


@pytest.mark.nightly
def test_a_loader_with_a_fixed_seed_is_noted() -> None:
    verdict = examined("seeded_shuffle")["DAT017"]
    assert verdict.state is State.NOTE
    assert "begins with the same order whenever the loader is made" in verdict.findings[0].what


def test_padding_of_the_users_own_is_no_alarm() -> None:
    verdicts = examined("bucketed")
    assert verdicts["DAT014"].state is State.OK
    assert verdicts["DAT003"].state is State.OK


def test_generators_that_a_worker_init_fn_gives_are_seen_where_it_runs() -> None:
    verdicts = examined("noisy_reseeded")
    assert {verdicts[code].state for code in ("DAT009", "DAT010", "DAT011")} == {State.OK}
