"""Loaders as many more libraries write them, a file for each kind: sound ones raise no alarm, others are named."""

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
RULES = [rule for rule in all_rules() if rule.code.startswith(("DAT", "RUN"))]
ALARMS = (State.FAIL, State.WARN)
SOUND = {
    "vision": [
        "references_classification", "timm_repeated", "detectron", "detection_references", "yolox", "mmdet",
        "segmentation", "two_streams", "identities", "balanced", "persistent",
    ],
    "text": [
        "megatron", "packed", "grouped_by_length", "masked", "frozen_batches", "minibatches", "by_duration", "mel",
        "global_indices",
    ],
    "streams": [
        "shuffle_buffer", "streaming", "many_shards", "stateful", "titan", "replay", "Module", "memmapped",
        "sqlite_rows", "zipped", "tarred", "archived", "graphs", "series",
    ],
}  # fmt: skip
BROKEN = [
    ("vision", "persistent_in_place", "DAT008", "first reads are wrong, later ones are not"),
    ("vision", "none_for_missing", "DAT014", "not there in 9 of 96 samples"),
    ("vision", "constant_seed", "DAT010", "the second epoch draws the random numbers of the first: numpy"),
    ("vision", "composed", "DAT009", "is in the same state in each"),
    ("vision", "constant_rank", "DAT016", "72 of 96 samples are read by no rank"),
    ("vision", "named", "DAT019", "part 1 of the samples has other values on rank 1, one for one"),
    ("text", "PackedInPlace", "DAT006", "changed by reading: self.packs[0]['labels']"),
    ("text", "constant_length", "DAT016", "150 of 150 samples of the stream are read by every rank"),
    ("text", "frozen_uneven", "DAT018", "rank 1 has 7 batches an epoch, another has 8"),
    ("text", "Standardised", "DAT002", "holds NaN: 3 of the 96 samples"),
    ("streams", "one_shard", "DAT016", "of 2 workers 1 read no sample"),
    ("streams", "Unseeded", "DAT019", "a random order without a seed"),
    ("streams", "left_open", "DAT020", "256 more are open after 256 reads"),
    ("streams", "normalized", "DAT006", "changed by reading: self.data['reals']"),
    ("streams", "prefetched", "DAT028", "the factory had started Thread-1 (_work)"),
    ("streams", "remembered", "DAT021", "grows with each read: self.memory"),
]
# Seen at each change; the others each night.
QUICK = {"timm_repeated", "detectron", "yolox", "frozen_batches", "titan", "one_shard", "composed", "Standardised"}
ALONE = {"two_streams"}  # written for one GPU
IN_FOLDER = {
    "persistent", "persistent_in_place", "megatron", "memmapped", "sqlite_rows", "zipped", "tarred", "archived",
    "left_open",
}  # fmt: skip


def examined(kind: str, name: str, folder: Path) -> dict[str, Verdict]:
    """What `data --nproc-per-node 2` says, by code."""
    plan = DataPlan(
        factory=f"popular_{kind}:{name}", kwargs={"folder": str(folder)} if name in IN_FOLDER else {},
        directory=SAMPLES, node="sim0", workers=2, ranks=2, ranks_per_node=1 if name in ALONE else 2,
    )  # fmt: skip
    parts: list[DataReport] = []
    phases.examine(plan, lambda _: None, parts.append)
    cluster = Cluster(command="data", nodes=[Node(name="sim0")], measurements=Measurements(data=by_node(parts)))
    assert f"popular_{kind}" not in sys.modules, "user code belongs to the children"
    return {verdict.code: verdict for verdict in judge(cluster, RULES)}


def _marked(kind: str, name: str, *rest: str) -> Any:
    marks = [] if name in QUICK else [pytest.mark.nightly]
    return pytest.param(kind, name, *rest, marks=marks, id=f"{kind}-{name}")


@pytest.mark.parametrize(
    ("kind", "name"), [_marked(kind, name) for kind, names in SOUND.items() for name in names]
)
def test_a_sound_loader_raises_no_alarm(tmp_path: Path, kind: str, name: str) -> None:
    verdicts = examined(kind, name, tmp_path)
    assert {
        code: verdict.findings
        for code, verdict in verdicts.items()
        if verdict.state in ALARMS and code != "DAT025"
    } == {}
    assert verdicts["RUN004"].state in (State.OK, State.SKIPPED), verdicts["RUN004"].findings
    assert verdicts["DAT003"].state is State.OK
    assert verdicts["DAT014"].state is State.OK


@pytest.mark.parametrize(("kind", "name", "code", "words"), [_marked(*defect) for defect in BROKEN])
def test_a_defect_is_named(tmp_path: Path, kind: str, name: str, code: str, words: str) -> None:
    verdict = examined(kind, name, tmp_path)[code]
    assert verdict.state in ALARMS, verdict
    texts = [finding.what for finding in verdict.findings]
    texts += [
        f"{evidence.source}: {evidence.value}" for finding in verdict.findings for evidence in finding.evidence
    ]
    assert words in " ".join(texts)
