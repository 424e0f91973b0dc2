"""Real datasets are examined by real children: what is broken is named, and what is sound raises nothing."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from ncclcheck.probes.dataloader import phases
from ncclcheck.probes.dataloader.children import child
from ncclcheck.probes.dataloader.races import content
from ncclcheck.probes.facts import Cluster, Measurements, Node
from ncclcheck.probes.facts.data import DataReport
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

SAMPLES = str(Path(__file__).resolve().parents[2] / "samples")
CODES = ("DAT001", "DAT002", "DAT004", "DAT005", "DAT006", "DAT007", "DAT008", "DAT012", "DAT027", "DAT028")
RULES = [rule for rule in all_rules() if rule.code in CODES]
ALARMS = (State.FAIL, State.WARN)

SOUND = [
    "Plain", "Augmented", "LazyGenerator", "OpensByPid", "Pread", "Guarded", "AtomicCache", "Stamped", "Unseeded",
    "SharedCache", "Logging", "MissingLabels", "Pooled", "Stream", "opened_by_init",
]  # fmt: skip
BROKEN = [
    ("SharedOffset", {"DAT005"}, "moves with index"),
    ("SharedConnection", {"DAT005"}, "sqlite3.Connection"),
    ("SharedSocket", {"DAT004", "DAT005"}, "socket:["),
    ("SharedDecoder", {"DAT005"}, "the pipes to one child process, python"),
    ("SharedScratch", {"DAT004"}, "in worker"),
    ("CacheInPlace", {"DAT008"}, "read"),
    ("Counts", {"DAT006"}, "in another order"),
    ("CountsTogether", {"DAT006"}, "in another order"),
    ("ChangesInPlace", {"DAT006"}, "a second time"),
    ("ReturnsItsBuffer", {"DAT007"}, "after others were"),
    ("ThreadsShareSelf", {"DAT004"}, "threads inside one worker"),
    ("WaitsForThread", {"DAT028"}, "tickets"),
    ("AnotherSample", {"DAT027"}, "OSError: bad file"),
    ("Zeros", {"DAT027"}, "the same placeholder as index"),
    ("NextSample", {"DAT027"}, "the content of index"),
    ("RarelyBroken", {"DAT002"}, "index 222 cannot be read (1 of 300): ValueError: corrupt at content_data"),
    ("RarelyCrashing", {"DAT002"}, "index 222 cannot be read (1 of 299): ended by SIGSEGV"),
    ("TooLong", {"DAT002"}, "len() says 303, but index 300, 301, 302 is not there"),
    ("TooShort", {"DAT002"}, "len() says 295, but samples up to index 299 can be read"),
    ("Empty", {"DAT001"}, "without a sample"),
    ("crashes", {"DAT001"}, "SIGSEGV"),
    ("raises", {"DAT001"}, "KeyError: 'DATA_ROOT' at content_datasets.py"),
    ("ends", {"DAT001"}, "exit status 3"),
    ("Missing", {"DAT001"}, "Missing gives no dataset: content_datasets has no Missing"),
]  # fmt: skip


def examine(name: str) -> Cluster:
    """The dataset made and its content looked at, in a host process, as `data` does it."""
    plan = DataPlan(factory=f"content_datasets:{name}", directory=SAMPLES, node="sim0", workers=2)

    def work() -> DataReport:
        facts, made = phases.make(plan)
        seen = content.look(made, plan, 9.0) if made else None
        return DataReport(node="sim0", factory=plan.factory, made=facts, content=seen)

    ended = child.run(work, DataReport, 60.0)
    report = ended.value if ended.ok else None
    if report is None:  # the factory took its process with it
        parts: list[DataReport] = []
        phases.examine(plan, lambda _: None, parts.append)
        report = next(part for part in parts if part.made)
    return Cluster(command="data", nodes=[Node(name="sim0")], measurements=Measurements(data=[report]))


def alarms(cluster: Cluster) -> dict[str, str]:
    """Codes of what failed or was warned about, with what was said."""
    return {
        verdict.code: " ".join(finding.what for finding in verdict.findings)
        for verdict in judge(cluster, RULES)
        if verdict.state in ALARMS
    }


@pytest.fixture(autouse=True)
def _files_of_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """User code belongs to the children; the files that it leaves are the test's."""
    assert "content_datasets" not in sys.modules
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_raises_no_alarm(name: str) -> None:
    cluster = examine(name)
    assert alarms(cluster) == {}
    [report] = cluster.measurements.data
    assert report.content is not None
    assert report.content.unseen == []
    assert report.content.complete


@pytest.mark.parametrize(("name", "codes", "words"), BROKEN, ids=[name for name, *_ in BROKEN])
def test_what_is_broken_is_named(name: str, codes: set[str], words: str) -> None:
    by_code = alarms(examine(name))
    assert codes <= set(by_code)
    assert words in " ".join(by_code[code] for code in sorted(codes))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["SharedScratch", "SharedOffset", "CacheInPlace", "ThreadsShareSelf", "Augmented"]
)
def test_ten_repetitions_give_one_verdict(name: str) -> None:
    expected = next((codes for broken, codes, _ in BROKEN if broken == name), set[str]())
    for _ in range(10):
        alarmed = set(alarms(examine(name)))
        assert expected <= alarmed
        assert bool(alarmed) == bool(expected)
