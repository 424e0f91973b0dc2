"""DAT rules over what a real loader showed: raised, not raised, unread."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import Cluster, Measurements, Node, Policy, Unread, replace
from ncclcheck.probes.facts.data import DataReport, Streams, Structure
from ncclcheck.probes.facts.data.made import FactoryFailure, Made
from ncclcheck.probes.facts.data.report import Unseen
from ncclcheck.probes.facts.data.streams import (
    Dependence,
    Frozen,
    NewEpoch,
    RefusedOptions,
    Repeated,
    ReseededGenerator,
    Shared,
    WorkerStop,
)
from ncclcheck.probes.facts.data.structure import Mixed, Shape, Unstacked
from ncclcheck.reports.judgement.findings import Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.reports.culprit.test_any_measurements import _of_type as of_type

CODES = ("DAT003", "DAT009", "DAT010", "DAT013", "DAT014", "DAT015")
ABSENT = Unread("absent", "samples could not be read: gave no answer in 4 s")
OWN = [
    Dependence(generator="self.rng", private=True, kind="random.Random", leaves=["image"], values=["0.1", "0.2"])
]


def verdict(code: str, *reports: DataReport, **thresholds: float) -> Verdict:
    cluster = Cluster(
        command="data",
        nodes=[Node(name="a")],
        measurements=Measurements(data=list(reports)),
        policy=Policy(thresholds={name.replace("_", "."): value for name, value in thresholds.items()}),
    )
    return judge(cluster, [rule for rule in all_rules() if rule.code == code])[0]


def streams(code: str, **facts: Any) -> Verdict:
    """Of two workers that came through two epochs."""
    seen = Streams(**{"workers": 2, "epochs": 2, "samples": 32, "asked": 2, "batches": 9, **facts})
    return verdict(code, DataReport(node="a", factory="f", streams=seen))


def shared(**changes: Any) -> list[Shared]:
    return [
        Shared(**{"generator": "self.rng", "workers": [0, 1], "state": "3a00", "indices": ["0", "4"], **changes})
    ]


REPEATED = [Repeated(generator="self.rng", workers=[0, 1], state="3a00", of=2)]
STALE = NewEpoch(told="set_epoch(1)", leaf="", index=3, old="0.1", new="0.2", got="0.1", count=6, of=6)


def seeded(**changes: Any) -> list[ReseededGenerator]:
    return [
        ReseededGenerator(**{"generator": "torch", "index": 3, "constant": True, "count": 8, "of": 8, **changes})
    ]


FROZEN = [Frozen(leaf="image", index=3, value="0.1", other="0.2", count=8, of=8)]


@pytest.mark.parametrize(
    ("code", "facts", "state"),
    [
        ("DAT003", {}, "ok"),
        ("DAT003", {"epochs": 0}, "unknown"),
        ("DAT003", {"epochs": 0, "context": "spawn"}, "ok"),
        ("DAT003", {"depends": ABSENT}, "skipped"),
        ("DAT003", {"depends": ABSENT, "stops": [WorkerStop(kind="hung", alone=True, seconds=4)]}, "fail"),
        ("DAT003", {"stops": [WorkerStop(kind="hung", alone=True, seconds=4, busy=True)]}, "warn"),
        ("DAT003", {"stops": [WorkerStop(kind="hung", alone=True, seconds=4, busy=True, usual=0.01)]}, "fail"),
        ("DAT003", {"stops": [WorkerStop(kind="raised", worker=1, error="ValueError: x", alone=True)]}, "ok"),
        ("DAT003", {"stops": [WorkerStop(kind="raised", worker=1, error="BadZipFile: x", together=True)]}, "note"),
        ("DAT003", {"stops": [WorkerStop(kind="raised", worker=1, error="AssertionError: daemonic")]}, "fail"),
        ("DAT009", {}, "ok"),
        ("DAT009", {"shared": shared(), "depends": OWN}, "fail"),
        ("DAT009", {"shared": shared(), "depends": OWN, "asked": None}, "fail"),
        ("DAT009", {"shared": shared(), "depends": OWN, "asked": 1}, "warn"),
        ("DAT009", {"shared": shared(generator="numpy")}, "fail"),
        ("DAT009", {"shared": ABSENT}, "skipped"),
        ("DAT009", {"epochs": 0}, "skipped"),
        ("DAT010", {}, "ok"),
        ("DAT010", {"repeated": REPEATED, "depends": OWN}, "fail"),
        ("DAT010", {"repeated": REPEATED, "depends": OWN, "asked": 0}, "warn"),
        ("DAT010", {"reseeded": seeded()}, "fail"),
        ("DAT010", {"reseeded": seeded(constant=False)}, "warn"),
        ("DAT010", {"frozen": FROZEN, "asked": 0}, "fail"),
        ("DAT010", {"frozen": FROZEN}, "warn"),
        ("DAT010", {"frozen": FROZEN, "persistent": True}, "fail"),
        ("DAT010", {"epochs": 1}, "skipped"),
        ("DAT013", {"new_epoch": [STALE]}, "fail"),
        ("DAT013", {"new_epoch": [replace(STALE, count=1, of=1)]}, "note"),
        ("DAT013", {"new_epoch": ABSENT}, "skipped"),
        ("DAT013", {"new_epoch": []}, "ok"),
        ("DAT015", {}, "ok"),
        ("DAT015", {"batches": 0}, "fail"),
        ("DAT015", {"refused": RefusedOptions(options=[], error="ValueError: something new")}, "fail"),
    ],
)
def test_streams(code: str, facts: dict[str, Any], state: str) -> None:
    assert streams(code, **facts).state.value == state


def structure(**facts: Any) -> Verdict:
    shapes = [Shape(leaves=["image: float32 [3]"], count=97, indices=[0])]
    seen = Structure(**{"read": 100, "length": 100, "shapes": shapes, **facts})
    return verdict("DAT014", DataReport(node="a", factory="f", structure=seen))


LONGER = [Mixed(leaf="image", kind="shape", usual="float32 [3]", other="float32 [4]", count=3, indices=[7])]
DOUBLE = [Mixed(leaf="image", kind="dtype", usual="float32 [3]", other="float64 [3]", count=3, indices=[7])]
REFUSED = [Unstacked(indices=[0, 7], error="RuntimeError: stack expects each tensor to be equal size")]
LENGTHS = [Shape(leaves=["text: int64 [5]"], count=20, indices=[0])]


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, "ok"),
        ({"mixed": LONGER, "collated": ["batch: float32 [2, 4]"], "custom": True, "collate": "pad"}, "ok"),
        ({"mixed": LONGER, "batch_size": 1}, "ok"),
        ({"mixed": DOUBLE}, "warn"),
        ({"mixed": DOUBLE, "custom": True}, "ok"),
        ({"mixed": LONGER, "unstacked": REFUSED, "batch_size": 8}, "fail"),
        ({"mixed": LONGER, "unstacked": REFUSED}, "fail"),
        ({"mixed": LONGER, "unstacked": REFUSED, "shapes": LENGTHS}, "warn"),
        ({"read": 0}, "skipped"),
    ],
)
def test_structure(facts: dict[str, Any], state: str) -> None:
    assert structure(**facts).state.value == state


def test_a_refusal_within_the_factory() -> None:
    error = "ValueError: prefetch_factor option could only be specified in multiprocessing."
    report = DataReport(node="a", factory="f", made=Made(failure=FactoryFailure(error=error)))
    judgement = verdict("DAT015", report)
    assert judgement.state.value == "fail"
    assert judgement.findings[0].remedies[0].commands == ["prefetch_factor=2 if num_workers > 0 else None"]


def test_one_line_at_which_all_hang_is_told_once() -> None:
    stops = [WorkerStop(kind="hung", worker=w, index=str(w), place="a.py:3 in f", seconds=4) for w in range(4)]
    assert [f.what for f in streams("DAT003", stops=stops).findings] == [
        "worker 0 gave no answer in 4 s at sample 0 (a.py:3 in f)"
    ]


def test_who_shares_is_told() -> None:
    finding = streams("DAT009", shared=shared(), depends=OWN).findings[0]
    assert finding.what.startswith("workers 0, 1 draw the same random numbers: self.rng is in the same state")
    assert finding.what.endswith("(part image of the sample depends on it)")
    assert "    info.dataset.rng = random.Random(info.seed)" in finding.remedies[0].commands


def test_rare_is_what_the_user_says() -> None:
    seen = Structure(read=100, shapes=LENGTHS, mixed=LONGER, unstacked=REFUSED)
    report = DataReport(node="a", factory="f", structure=seen)
    assert verdict("DAT014", report, DAT014_rare=0.9).state.value == "fail"


@pytest.mark.parametrize("code", CODES)
def test_nothing_was_looked_at(code: str) -> None:
    unseen = [Unseen(aspect=aspect, why="no time was left") for aspect in ("streams", "structure")]
    judgement = verdict(code, DataReport(node="a", factory="f", unseen=unseen))
    assert (judgement.state.value, judgement.reason) == ("skipped", "no time was left")
    assert verdict(code).state.value == "skipped"


_TEXTS = st.sampled_from(["", "a", "self.x", "\x1b[31m", "9" * 30])
_REPORTS = st.builds(
    DataReport, node=_TEXTS, factory=_TEXTS, streams=of_type(Streams, _TEXTS), structure=of_type(Structure, _TEXTS)
)


@settings(deadline=None, max_examples=60, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(reports=st.lists(_REPORTS, min_size=1, max_size=2))
def test_whatever_a_file_says_is_judged(reports: list[DataReport]) -> None:
    verdicts = [verdict(code, *reports) for code in CODES]
    assert not [f.what for v in verdicts for f in v.findings if "could not be judged" in f.what]
