"""What is said of the contents of samples: raised, not raised, not seen."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ncclcheck.probes.facts import Cluster, Measurements, Node
from ncclcheck.probes.facts.data import Content, DataReport, Structure
from ncclcheck.probes.facts.data import Made as MadeFacts
from ncclcheck.probes.facts.data.content import (
    Beyond,
    Contest,
    Differs,
    Fallback,
    Inherited,
    LeafKind,
    NotFinite,
    Overwritten,
    UnreadableSample,
    WrittenFile,
    Wrong,
)
from ncclcheck.probes.facts.data.made import Code, FactoryFailure, Method
from ncclcheck.probes.facts.data.report import Unseen
from ncclcheck.reports.judgement.causal import causes_first
from ncclcheck.reports.judgement.findings import Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

CODES = ("DAT001", "DAT002", "DAT004", "DAT005", "DAT006", "DAT007", "DAT008", "DAT012", "DAT027", "DAT028")
FIXED = LeafKind(leaf="image", dtype="float32", kind="fixed", bytes=4096, of=64)
LOOSE = LeafKind(
    leaf="t", dtype="float", kind="uncontrolled", bytes=8, example=Differs(index=0, first="1", second="2")
)
HIDDEN = LeafKind(leaf="image", dtype="float32", kind="hidden", bytes=4096, differing=3, of=64)
CALM = Contest(workers=4, reads=900)
WRONG = Contest(
    workers=4, reads=900, wrong=3, examples=[Wrong(index=5, worker=1, leaf="image", alone="1", got="2")]
)
STUCK = Contest(workers=4, reads=900, stuck=["worker 1 gave no answer in 4 s\n"])
OFFSET = Inherited(how="offset", what="/data/a.rec", index=3)
HUNG = UnreadableSample(index=0, kind="hung", error="gave no answer in 4 s")
NAN = NotFinite(leaf="0", count=2, nan=2, examples=[164, 165])
CRASH = UnreadableSample(index=7, kind="signal", error="ended by SIGSEGV")
GOOD: dict[str, Any] = {"indices": 64, "swept": 500, "leaves": [FIXED], "first_touch": CALM, "stress": CALM}


def verdicts(content: Content | None, made: MadeFacts | None = None) -> dict[str, Verdict]:
    """By code."""
    report = DataReport(
        node="sim0",
        factory="train:dataset",
        made=made or MadeFacts(length=500),
        content=content,
        unseen=[] if content else [Unseen(aspect="content", why="the time budget was used up")],
    )
    cluster = Cluster(command="data", nodes=[Node(name="sim0")], measurements=Measurements(data=[report]))
    return {v.code: v for v in judge(cluster, [rule for rule in all_rules() if rule.code in CODES])}


def seen(**changes: Any) -> Content:
    """A sound dataset, but for this."""
    return Content(**{**GOOD, **changes})


def test_a_sound_dataset_is_ok_everywhere() -> None:
    assert {v.state.value for v in verdicts(seen()).values()} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "code", "state"),
    [
        ({"unreadable": [CRASH]}, "DAT002", "fail"),
        ({"not_finite": [NAN]}, "DAT002", "warn"),
        ({"not_finite": [replace(NAN, meant=True)]}, "DAT002", "note"),
        ({"not_finite": [replace(NAN, nan=0)]}, "DAT002", "warn"),
        ({"not_finite": [replace(NAN, nan=0, count=400)]}, "DAT002", "note"),
        ({"not_finite": [replace(NAN, count=100)]}, "DAT002", "note"),
        ({"beyond": Beyond(length=500, end=505, told=False)}, "DAT002", "warn"),
        ({"beyond": Beyond(length=500, end=505, told=True)}, "DAT002", "note"),
        ({"stress": WRONG}, "DAT004", "fail"),
        ({"stress": STUCK}, "DAT004", "fail"),
        ({"stress": STUCK, "unreadable": [CRASH]}, "DAT004", "ok"),
        ({"raced": ["image"]}, "DAT004", "fail"),
        ({"stress": None}, "DAT004", "unknown"),
        ({"leaves": [LOOSE]}, "DAT004", "unknown"),
        ({"inherited": [OFFSET]}, "DAT005", "fail"),
        ({"inherited": [Inherited(how="socket", what="socket:[7]")]}, "DAT005", "fail"),
        ({"inherited": [Inherited(how="library", what="h5py.File", path="self.f")]}, "DAT005", "warn"),
        ({"leaves": [HIDDEN]}, "DAT006", "fail"),
        ({"leaves": [FIXED, LOOSE]}, "DAT006", "ok"),
        ({"complete": False}, "DAT006", "unknown"),
        ({"overwritten": [Overwritten(index=0, leaf="", before="1", after="2")]}, "DAT007", "fail"),
        ({"first_touch": WRONG}, "DAT008", "fail"),
        ({"first_touch": WRONG, "stress": WRONG}, "DAT008", "ok"),
        ({"written": [WrittenFile(path="/tmp/a.pt", readers=2)]}, "DAT008", "warn"),
        ({"leaves": [FIXED, LOOSE]}, "DAT012", "note"),
        ({"leaves": [LOOSE]}, "DAT012", "unknown"),
        ({"fallbacks": [Fallback(index=3, of_index=9, error="OSError: bad")]}, "DAT027", "warn"),
        ({"fallbacks": [Fallback(index=3, of_index=9, error="OSError", placeholder=True)]}, "DAT027", "warn"),
        ({"swept": 0}, "DAT027", "skipped"),
        ({"stuck": HUNG}, "DAT028", "fail"),
    ],
)
def test_what_was_seen_is_judged(changes: dict[str, Any], code: str, state: str) -> None:
    assert verdicts(seen(**changes))[code].state.value == state


@pytest.mark.parametrize(
    ("made", "changes", "code", "state"),
    [
        (MadeFacts(failure=FactoryFailure(error="KeyError: 'ROOT'")), {}, "DAT001", "fail"),
        (MadeFacts(length=0), {}, "DAT001", "warn"),
        (MadeFacts(locks=["self.lock"]), {"inherited": [OFFSET]}, "DAT005", "note"),
        (MadeFacts(locks=["self.lock"]), {"inherited": [OFFSET], "stress": WRONG}, "DAT005", "fail"),
        (MadeFacts(cuda=True), {}, "DAT005", "warn"),
        (
            MadeFacts(options={"batch_size": "None"}),
            {"overwritten": [Overwritten(index=0, leaf="", before="1", after="2")]},
            "DAT007",
            "warn",
        ),
        (MadeFacts(locks=["self.lock"]), {"written": [WrittenFile(path="/tmp/a.pt", readers=2)]}, "DAT008", "ok"),
        (MadeFacts(threads=["tqdm"]), {}, "DAT028", "note"),
    ],
)
def test_what_the_factory_left_counts(made: MadeFacts, changes: dict[str, Any], code: str, state: str) -> None:
    assert verdicts(seen(**changes), made)[code].state.value == state


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            "TypeError: make() missing 2 required positional arguments: 'root' and 'split'",
            '{"root": ..., "split": ...}',
        ),
        ("SystemExit: 2", "argparse"),
        ("gave no answer in 300 s", "--factory-limit"),
    ],
)
def test_a_factory_that_fails_as_many_do_is_told_what_to_type(error: str, advice: str) -> None:
    finding = verdicts(seen(), MadeFacts(failure=FactoryFailure(error=error)))["DAT001"].findings[0]
    assert advice in " ".join([finding.remedies[0].text, *finding.remedies[0].commands])


def test_a_first_read_that_computes_is_not_called_a_deadlock() -> None:
    busy = UnreadableSample(index=0, kind="hung", error="gave no answer in 4 s", busy_s=3.9)
    assert verdicts(Content(stuck=busy))["DAT028"].state.value == "unknown"


def test_what_was_not_looked_at_says_why() -> None:
    judged = verdicts(None)
    assert {v.state.value for code, v in judged.items() if code != "DAT001"} == {"skipped"}
    assert judged["DAT004"].reason == "the time budget was used up"
    assert verdicts(Content(stuck=HUNG))["DAT006"].reason == "no sample could be read"


def test_two_kinds_of_trouble_are_two_findings() -> None:
    raised = UnreadableSample(
        index=3, kind="raised", error="ValueError: corrupt", place="data.py:7 in __getitem__"
    )
    findings = verdicts(seen(unreadable=[CRASH, raised]))["DAT002"].findings
    assert [finding.what for finding in findings] == [
        "index 7 cannot be read (1 of 500): ended by SIGSEGV",
        "index 3 cannot be read (1 of 500): ValueError: corrupt at data.py:7 in __getitem__",
    ]


def test_the_content_of_another_sample_is_named() -> None:
    stolen = Wrong(index=261, worker=2, leaf="image", alone="1, 2", got="8, 9", of_index=448)
    content = seen(stress=Contest(workers=4, reads=900, wrong=1, examples=[stolen]))
    [finding] = verdicts(content)["DAT004"].findings
    assert (
        "sample 261, part image, is 8, 9 in worker 2 (that is sample 448); one process alone gets 1, 2"
        in finding.what
    )


@pytest.mark.parametrize(("workers", "state"), [("2", "fail"), ("0", "warn")])
def test_a_batch_that_is_filled_again_counts_where_workers_make_the_next(workers: str, state: str) -> None:
    structure = Structure(collate="Refilled", custom=True, overwritten=["0"])
    code = Code(collate=Method(name="fill", parameters=["rows"], returns=["OUT"]))
    made = MadeFacts(options={"num_workers": workers}, code=code)
    report = DataReport(node="a", factory="a:b", made=made, content=seen(), structure=structure)
    cluster = Cluster(command="data", nodes=[Node(name="a")], measurements=Measurements(data=[report]))
    judged = {
        verdict.code: verdict
        for verdict in judge(cluster, [rule for rule in all_rules() if rule.code == "DAT007"])
    }
    assert judged["DAT007"].state.value == state
    assert judged["DAT007"].findings[0].remedies[0].commands == ["return copy.deepcopy(OUT)"]


def test_a_thread_is_started_anew_by_the_object_that_runs_it() -> None:
    made = MadeFacts(threads=["Thread-1 (_serve)"], thread_owners=["self.reader"])
    finding = verdicts(seen(stuck=HUNG), made)["DAT028"].findings[0]
    assert any("target=self.reader._serve" in line for line in finding.remedies[0].commands)


def test_a_thread_that_workers_lack_stands_before_the_read_that_hangs() -> None:
    hung = UnreadableSample(index=9, kind="hung", error="gave no answer in 4 s")
    judged = verdicts(seen(stuck=HUNG, unreadable=[hung]), MadeFacts(threads=["Thread-1 (_serve)"]))
    bad = [verdict.code for verdict in causes_first([*judged.values()]) if verdict.state.value == "fail"]
    assert bad[0] == "DAT028"


def test_a_handle_that_workers_share_stands_before_the_samples_that_are_wrong() -> None:
    ordered = causes_first([*verdicts(seen(inherited=[OFFSET], stress=WRONG)).values()])
    assert [verdict.code for verdict in ordered if verdict.state.value == "fail"] == ["DAT005", "DAT004"]
