"""DAT020 to DAT025 against what nodes may say: raised, not raised, not known, and whatever a file holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import Cluster, Limits, Measurements, Node, Space, Unread, replace
from ncclcheck.probes.facts.data import DataReport, DataResources
from ncclcheck.probes.facts.data.resources import CollatedBatch, Cpu, Growth, ObjectContainer, Pickled, Start
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.probes.dataloader.test_data_resources import CODES, GIB, MIB, verdict
from tests.reports.culprit.test_any_measurements import _of_type as of_type

SOUND = DataResources(
    length=10_000,
    workers=4,
    asked=True,
    again=Growth(reads=512, memory=[0] * 4, copied=[0] * 4),
    fresh=Growth(reads=512, memory=[0] * 8, copied=[0] * 8),
    inherited=GIB,
    batch=CollatedBatch(samples=32, size=32, tensors=2, used=MIB, held=MIB, piped=50),
    start=Start(method="fork", asked=False, pickled=[Pickled(what="dataset", bytes=100)]),
    cpu=Cpu(share=1.0, threads=0),
    shm=Space(size=GIB, free=GIB, path="/dev/shm"),
    nofile=Limits(soft=1024, hard=4096),
    cores=8.0,
    memory=64 * GIB,
)
LOST = Unread("denied", "not for this user")
BIG = CollatedBatch(samples=32, size=64, tensors=2, used=20 * MIB, held=20 * MIB, piped=50)
LOOSE = CollatedBatch(samples=64, size=256, tensors=128, used=MIB, held=MIB, piped=50)
DICTS = [ObjectContainer(path="files", kind="list of dict", items=10**7, bytes=3 * GIB)]
COPIED = Growth(reads=512, memory=[0] * 8, copied=[24_576] * 8)


def kept(*runs: int) -> Growth:
    return Growth(reads=512, memory=list(runs), copied=[0] * len(runs))


@pytest.mark.parametrize(
    ("code", "changes", "state"),
    [
        *((code, {}, State.OK) for code in CODES),
        ("DAT020", {"again": Growth(reads=512, descriptors=512)}, State.FAIL),
        ("DAT020", {"again": Growth(reads=512, descriptors=40)}, State.WARN),
        ("DAT020", {"again": Growth(reads=512, descriptors=12)}, State.OK),
        ("DAT020", {"again": LOST}, State.UNKNOWN),
        ("DAT021", {"again": kept(MIB, MIB, MIB, MIB)}, State.WARN),
        ("DAT021", {"again": kept(MIB, MIB, MIB, MIB), "memory": 64 * MIB}, State.FAIL),
        ("DAT021", {"again": kept(4 * MIB, 0, 0, 0)}, State.OK),
        ("DAT021", {"length": 10**7, "fresh": COPIED, "containers": DICTS}, State.WARN),
        ("DAT021", {"length": 10**7, "fresh": COPIED, "containers": DICTS, "memory": 8 * GIB}, State.FAIL),
        ("DAT021", {"length": 10**7, "fresh": COPIED, "containers": DICTS, "workers": 0}, State.OK),
        ("DAT021", {"length": 10**4, "fresh": COPIED, "containers": DICTS}, State.OK),
        ("DAT021", {"length": 10**7, "fresh": COPIED}, State.WARN),
        ("DAT021", {"length": 10**7, "fresh": replace(COPIED, memory=[50_000] * 8)}, State.OK),
        ("DAT021", {"length": 10**7, "fresh": Growth(reads=512, copied=[24_576] * 7 + [0])}, State.OK),
        (
            "DAT021",
            {"length": 10**7, "fresh": Growth(reads=512, copied=[196_608, 98_304, 90_112, 12_288])},
            State.OK,
        ),
        (
            "DAT021",
            {"length": 10**7, "fresh": COPIED, "again": Growth(reads=512, copied=[8_192, 122_880])},
            State.OK,
        ),
        ("DAT021", {"again": LOST}, State.UNKNOWN),
        ("DAT022", {"batch": replace(BIG, held=400 * MIB)}, State.WARN),
        ("DAT022", {"batch": replace(BIG, used=100, held=100_000)}, State.OK),
        ("DAT022", {"batch": LOST}, State.UNKNOWN),
        ("DAT023", {"batch": BIG}, State.OK),
        ("DAT023", {"batch": BIG, "ranks_per_node": 8}, State.FAIL),
        ("DAT023", {"batch": BIG, "ranks_per_node": 8, "asked": False}, State.WARN),
        ("DAT023", {"batch": BIG, "ranks_per_node": 8, "workers": 0}, State.OK),
        ("DAT023", {"batch": BIG, "shm": Space(size=GIB, free=400 * MIB)}, State.WARN),
        ("DAT023", {"batch": LOOSE}, State.FAIL),
        ("DAT023", {"batch": LOOSE, "nofile": Limits(soft=-1, hard=-1)}, State.OK),
        ("DAT023", {"batch": LOST}, State.UNKNOWN),
        ("DAT024", {"start": LOST}, State.UNKNOWN),
        ("DAT025", {"workers": 12}, State.NOTE),
        ("DAT025", {"workers": 17}, State.WARN),
        ("DAT025", {"workers": 17, "asked": False}, State.OK),
        ("DAT025", {"workers": 32, "cpu": Cpu(share=0.1, threads=0)}, State.NOTE),
        ("DAT025", {"workers": 72, "cpu": Cpu(share=0.1, threads=0)}, State.WARN),
        ("DAT025", {"workers": 10, "cpu": Cpu(share=1.0, threads=7)}, State.WARN),
        ("DAT025", {"cores": LOST}, State.UNKNOWN),
    ],
)
def test_rules(code: str, changes: dict[str, Any], state: State) -> None:
    """Each rule, raised, not raised, and not known."""
    assert verdict(code, replace(SOUND, **changes)).state is state


@pytest.mark.parametrize("code", CODES)
def test_nothing_was_looked_at(code: str) -> None:
    judgement = verdict(code, None)
    assert (judgement.state, judgement.reason) == (State.SKIPPED, "no dataset was examined")


def test_thresholds_are_the_users() -> None:
    assert verdict("DAT025", replace(SOUND, workers=12), DAT025_ratio=1.2).state is State.WARN


_TEXTS = st.sampled_from(["", "a", "self.x", "\x1b[31m", "9" * 30])
_REPORTS = st.builds(DataReport, node=_TEXTS, factory=_TEXTS, resources=of_type(DataResources, _TEXTS))


@settings(deadline=None, max_examples=40, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(reports=st.lists(_REPORTS, min_size=1, max_size=2))
def test_whatever_a_file_says_is_judged(reports: list[DataReport]) -> None:
    cluster = Cluster(command="data", nodes=[Node(name="a")], measurements=Measurements(data=reports))
    verdicts = judge(cluster, [rule for rule in all_rules() if rule.code in CODES])
    assert not [f.what for v in verdicts for f in v.findings if "could not be judged" in f.what]
