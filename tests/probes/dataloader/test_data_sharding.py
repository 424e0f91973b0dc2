"""Sharding: real emulated ranks that call real factories, the rules on what they saw, nodes beside each other."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from ncclcheck.probes.dataloader.children import child
from ncclcheck.probes.dataloader.children.interpreter import Interpreter
from ncclcheck.probes.dataloader.ranks import sharding
from ncclcheck.probes.dataloader.source.callers import set_epoch_callers
from ncclcheck.probes.facts import Cluster, Measurements, Node, replace
from ncclcheck.probes.facts.data import DataReport, Sharding
from ncclcheck.probes.facts.data.sharding import (
    Account,
    DifferingSample,
    EpochOrder,
    IndexMap,
    Print,
    Randomness,
    Share,
    SharedStream,
    Stream,
)
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

CODES = ("DAT011", "DAT016", "DAT017", "DAT018", "DAT019")
OK, NOTE, WARN, FAIL, SKIPPED = State.OK, State.NOTE, State.WARN, State.FAIL, State.SKIPPED
FACTORIES = Path(__file__).resolve().parents[2] / "samples/sharding_datasets.py"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The factories alone: the files beside them are searched for calls of set_epoch."""
    shutil.copy(FACTORIES, tmp_path)
    return str(tmp_path)


def look(folder: str, name: str, ranks: int = 1) -> Sharding:
    """In a child, as `examine` does it: nothing of the user's is imported here. ranks: of the job."""
    plan = DataPlan(factory=f"sharding_datasets.py:{name}", directory=folder, ranks_per_node=ranks)
    ended = child.run(lambda: sharding.look(plan, 80.0), Sharding, 110.0)
    assert ended.value is not None, ended.how
    return ended.value


def verdicts(*seen: Sharding) -> dict[str, Verdict]:
    reports = [DataReport(node=f"n{i}", factory="f", sharding=share) for i, share in enumerate(seen)]
    cluster = Cluster(
        command="data",
        nodes=[Node(name=report.node) for report in reports],
        measurements=Measurements(data=reports),
    )
    return {verdict.code: verdict for verdict in judge(cluster, [r for r in all_rules() if r.code in CODES])}


def states(*seen: Sharding) -> list[State]:
    return [verdict.state for _, verdict in sorted(verdicts(*seen).items())]


def test_a_stream_shared_out_by_the_rank_of_a_node_is_told_the_rank_of_the_job(folder: str) -> None:
    """The printed fix is by_rank."""

    def on_two_nodes(name: str) -> Verdict:
        plan = DataPlan(
            factory=f"sharding_datasets.py:{name}", directory=folder, nodes=2, ranks=4, ranks_per_node=2
        )
        ended = child.run(lambda: sharding.look(plan, 80.0), Sharding, 110.0)
        assert ended.value is not None, ended.how
        return verdicts(ended.value)["DAT016"]

    finding, *_ = on_two_nodes("by_local_rank").findings
    assert (finding.state, "ranks 0 and 2, 1 and 3 read" in finding.what) == (FAIL, True), finding
    assert 'os.environ["RANK"]' in finding.remedies[0].commands[0]
    assert on_two_nodes("by_rank").state is OK


@pytest.mark.parametrize(
    ("factory", "words"), [("weighted_alike", "WeightedRandomSampler"), ("balanced_alike", "[rank::world]")]
)
def test_a_sampler_that_draws_alike_on_all_ranks_is_one_finding(folder: str, factory: str, words: str) -> None:
    (finding,) = verdicts(look(folder, factory, 2))["DAT016"].findings
    assert finding.state is FAIL
    assert "draws the same" in finding.what
    assert "ranks 0 and 1" in finding.what
    assert words in " ".join([finding.remedies[0].text, *finding.remedies[0].commands])


@pytest.mark.parametrize(
    ("faulty", "fixed"),
    [("shards_in_own_orders", "shards_in_one_order"), ("shards_by_own_dice", "shards_by_one_seed")],
)
def test_shards_in_an_order_without_a_seed_are_told_so(folder: str, faulty: str, fixed: str) -> None:
    """The printed fix is a seed that all ranks share."""
    (finding,) = verdicts(look(folder, faulty, 2))["DAT016"].findings
    assert (finding.state, "random order of its own" in finding.what) == (FAIL, True)
    assert "seed" in finding.remedies[0].commands[0]
    assert verdicts(look(folder, fixed, 2))["DAT016"].state is OK


@pytest.mark.parametrize(
    ("factory", "limit", "words"),
    [("short_of_memory_on_rank_1", 80.0, "MemoryError"), ("stands_still_on_rank_1", 1.0, "gave no answer in")],
)
def test_a_rank_that_was_ended_from_outside_is_unknown(
    folder: str, factory: str, limit: float, words: str
) -> None:
    plan = DataPlan(factory=f"sharding_datasets.py:{factory}", directory=folder, ranks_per_node=2)
    seen = child.run(lambda: sharding.look(plan, limit), Sharding, 110.0).value
    assert seen is not None
    assert seen.unjudged.startswith("rank ")
    assert words in seen.unjudged
    judged = verdicts(seen)
    assert [judged[code].state for code in CODES[1:]] == [SKIPPED] * 4
    assert words in (judged["DAT016"].reason or "")


def test_parts_that_were_cut_apart_are_told_to_be_cut_before(folder: str) -> None:
    """The printed fix is left_out_before_the_part."""
    (finding,) = verdicts(look(folder, "left_out_after_the_part", 2))["DAT018"].findings
    assert (finding.state, finding.remedies[0].commands[2]) == (FAIL, "rows = rows[rank::world]"), finding
    assert verdicts(look(folder, "left_out_before_the_part", 2))["DAT018"].state is OK


def test_a_factory_that_fails_once_on_a_rank_is_called_again(folder: str) -> None:
    seen = look(folder, "fails_once_on_rank_1", 2)
    assert [share.error + share.cut for share in seen.shares] == ["", ""]


def test_a_split_that_changes_with_the_interpreter_is_no_part_that_the_rank_was_given(folder: str) -> None:
    judged = verdicts(look(folder, "from_a_set_on_each_rank", 2))
    finding = judged["DAT019"].findings[0]
    assert (finding.state, "PYTHONHASHSEED" in finding.what) == (FAIL, True), finding


def test_ranks_that_draw_an_order_each_are_told_to_draw_one(folder: str) -> None:
    """The printed fix, a seed that all ranks share, is one_order."""
    finding, *_ = verdicts(look(folder, "own_orders"))["DAT016"].findings
    assert (finding.state, "order of its own" in finding.why) == (FAIL, True)
    assert "(seed, epoch)" in finding.remedies[0].commands[0]
    assert verdicts(look(folder, "one_order"))["DAT016"].state in (OK, NOTE)


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("alone", [OK, SKIPPED, SKIPPED, SKIPPED, OK]),
        ("plain", [OK, NOTE, OK, OK, OK]),
        ("shared_out", [OK, NOTE, OK, OK, OK]),
        ("seeded_by_rank", [OK, NOTE, OK, OK, OK]),
        ("seeded_alike", [WARN, NOTE, OK, OK, OK]),
        ("rank_0_everywhere", [OK, FAIL, OK, OK, OK]),
        ("weighted_alike", [OK, NOTE, NOTE, OK, OK]),
        ("weighted_by_rank", [OK, SKIPPED, OK, OK, OK]),
        ("balanced_alike", [OK, NOTE, OK, OK, OK]),
        ("balanced", [OK, SKIPPED, OK, OK, OK]),
        ("uneven", [OK, OK, WARN, FAIL, OK]),
        ("tells_its_sampler", [OK, NOTE, OK, OK, OK]),
        ("keeps_the_epoch", [OK, NOTE, WARN, OK, OK]),
        ("goes_on", [OK, NOTE, OK, OK, OK]),
        ("not_one_batch", [OK, SKIPPED, SKIPPED, OK, OK]),
        ("part_of_each_rank", [OK, OK, OK, OK, SKIPPED]),
        ("from_a_set", [OK, SKIPPED, SKIPPED, SKIPPED, FAIL]),
        ("from_a_sorted_set", [OK, SKIPPED, SKIPPED, SKIPPED, OK]),
        ("shuffled_without_a_seed", [OK, SKIPPED, SKIPPED, SKIPPED, FAIL]),
        ("from_a_listing", [OK, SKIPPED, SKIPPED, SKIPPED, WARN]),
        ("fails_on_rank_1", [SKIPPED, FAIL, SKIPPED, SKIPPED, SKIPPED]),
        ("stream_of_all", [OK, NOTE, SKIPPED, OK, SKIPPED]),
        ("stream_by_worker", [OK, NOTE, SKIPPED, OK, SKIPPED]),
        ("stream_by_rank", [OK, FAIL, SKIPPED, OK, SKIPPED]),
        ("stream_by_both", [OK, OK, SKIPPED, OK, SKIPPED]),
        ("stream_without_an_end", [OK, OK, SKIPPED, SKIPPED, SKIPPED]),
    ],
)
def test_real_factories_on_emulated_ranks(folder: str, factory: str, expected: list[State]) -> None:
    assert states(look(folder, factory)) == expected


def test_the_cause_of_another_order_is_named(folder: str) -> None:
    causes = {
        name: look(folder, name).index_map for name in ("from_a_listing", "shuffled_without_a_seed", "from_a_set")
    }
    assert [cause and cause.cause for cause in causes.values()] == ["listing", "entropy", "interpreter"]


def test_an_interpreter_that_was_started_early_is_used_and_ends(folder: str) -> None:
    plan = DataPlan(factory="sharding_datasets.py:from_a_set", directory=folder)
    interpreter = Interpreter.start()
    try:
        ended = child.run(lambda: sharding.look(plan, 80.0, interpreter), Sharding, 110.0)
        assert ended.value is not None
        assert ended.value.index_map is not None
        assert ended.value.index_map.differing
    finally:
        interpreter.close()
    assert not os.path.exists(f"/proc/{interpreter.running.pid}/exe")


def test_ranks_that_hang_cost_no_more_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import time\ndef data():\n    time.sleep(600)\n")
    plan = DataPlan(factory="mine.py:data", directory=str(tmp_path))
    began = time.monotonic()
    ended = child.run(lambda: sharding.look(plan, 1.0), Sharding, 30.0)
    assert time.monotonic() - began < 15
    assert ended.value is not None
    assert len(ended.value.shares) == 2
    assert all("no answer" in share.cut for share in ended.value.shares)


def test_files_that_call_set_epoch_and_files_that_train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("for batch in loader():\n    loss.backward()\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "loop.py").write_text("loader.sampler.set_epoch(epoch)\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "other.py").write_text("x.set_epoch(1)\n")
    assert set_epoch_callers(str(tmp_path), "train:loader") == (["lib/loop.py"], ["train.py"])


def of_main(loop: str, before: str = "", made: str = "train_data()") -> str:
    return f"def train_data(): ...\n{before}\ndef main():\n    data, other = {made}, other_data()\n{loop}\n"


BACKWARD = "            loss(batch).backward()\n"


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (of_main(f"    for epoch in range(9):\n        for batch in data:\n{BACKWARD}"), True),
        (of_main(f"    for n, batch in enumerate(tqdm(data)):\n{BACKWARD}"), True),
        (of_main(f"    for batch in DataLoader(data, sampler=DistributedSampler(data)):\n{BACKWARD}"), True),
        (of_main("    run(model, data)", f"def run(model, loader):\n    for batch in loader:\n{BACKWARD}"), True),
        (of_main("    run(loader=data)", f"def run(loader):\n    for batch in loader:\n{BACKWARD}"), True),
        (of_main("    run(other)", f"def run(loader):\n    for batch in loader:\n{BACKWARD}", "1"), False),
        (of_main(f"    for epoch in range(9):\n        for batch in rest:\n{BACKWARD}"), False),
        (of_main("    for batch in data:\n        evaluate(batch)"), False),
        ("def train_data(:\n    x.backward()", False),
    ],
)
def test_a_loop_counts_where_it_trains_on_what_the_factory_gives(tmp_path: Path, text: str, counts: bool) -> None:
    (tmp_path / "train.py").write_text(text)
    assert set_epoch_callers(str(tmp_path), "train.py:train_data") == ([], ["train.py"] if counts else [])


ALIKE = Randomness(shared=[SharedStream(generator="numpy", where="the first worker", ranks=[0, 1])])
RANKS = [Share(rank=rank, length=100, samples=50, batches=7) for rank in (0, 1)]
HEALTHY = Sharding(
    ranks=2, wanted=2, given="loader", sampler="DistributedSampler", batch=8, shares=RANKS,
    account=Account(by="index", there=100, read=100, distinct=100),
    order=EpochOrder(samples=50, sequential=False, repeats=False),
    index_map=IndexMap(compared=16, lengths=[100, 100]),
    randomness=Randomness(drawn_from=["torch"]),
    prints=[Print(index=i, leaves={"x": f"{i}"}) for i in range(16)],
)  # fmt: skip
REPEATS = EpochOrder(samples=50, sequential=False, repeats=True, with_set_epoch=False)
MOVED = IndexMap(compared=16, differing=16, moved=3, lengths=[100, 100])
EXAMPLE = DifferingSample(index=3, rank=1, leaf="x", one="1", other="2", there=9)
STREAM = Stream(items=[50, 50], worker_items=[50, 50], ended=True, told_by=["0"], compared=50, workers=2)

BARE = {"given": "tuple", "sampler": "RandomSampler"}  # a dataset and options, without a sampler of the user's
ENDLESS = replace(STREAM, ended=False)


def account(**changes: object) -> Account:
    return replace(Account(by="index", there=100, read=100, distinct=100), **changes)


@pytest.mark.parametrize(
    ("code", "changes", "state"),
    [
        ("DAT011", {}, OK),
        ("DAT011", {"randomness": None}, SKIPPED),
        (
            "DAT011",
            {"randomness": ALIKE},
            WARN,
        ),
        ("DAT016", {}, OK),
        ("DAT016", {"account": None}, SKIPPED),
        ("DAT016", {"account": account(shared=1, read=101)}, NOTE),
        ("DAT016", {"account": account(shared=2, read=102)}, FAIL),
        ("DAT016", {"account": account(distinct=99, read=99)}, NOTE),
        ("DAT016", {"account": account(distinct=90, read=90)}, NOTE),
        ("DAT016", {"account": account(distinct=80, read=80)}, FAIL),
        ("DAT016", {"account": account(distinct=84, read=84, slack=16)}, NOTE),
        ("DAT016", {"account": account(read=200, shared=100, everywhere=True)}, FAIL),
        ("DAT016", {"account": account(read=200, shared=100, everywhere=True), "given": "module"}, NOTE),
        ("DAT016", {"account": account(read=200, shared=100, everywhere=True), **BARE}, NOTE),
        ("DAT016", {"account": account(read=200, shared=100, everywhere=True), "given": "tuple"}, FAIL),
        ("DAT016", {"account": account(read=200, shared=100, everywhere=True), "wanted": 1}, NOTE),
        ("DAT016", {"account": None, "stream": replace(STREAM, between_ranks=50), "wanted": 1}, NOTE),
        ("DAT016", {"account": None, "stream": STREAM}, OK),
        ("DAT016", {"account": None, "stream": replace(STREAM, between_ranks=50)}, FAIL),
        ("DAT016", {"account": None, "stream": replace(ENDLESS, between_ranks=50, ranks_alike=False)}, NOTE),
        ("DAT016", {"account": None, "stream": replace(ENDLESS, between_workers=50)}, FAIL),
        ("DAT016", {"account": None, "stream": replace(ENDLESS, between_workers=50, workers_alike=False)}, NOTE),
        ("DAT016", {"account": None, "stream": replace(STREAM, between_workers=100)}, FAIL),
        ("DAT016", {"account": None, "stream": replace(STREAM, between_workers=100, workers=None)}, NOTE),
        ("DAT016", {"account": None, "stream": replace(STREAM, between_workers=100, workers=0)}, NOTE),
        ("DAT016", {"account": None, "stream": replace(STREAM, whole=120, lost_to_ranks=20)}, FAIL),
        ("DAT016", {"account": None, "stream": replace(STREAM, unjudged="all alike")}, SKIPPED),
        ("DAT017", {}, OK),
        ("DAT017", {"order": None}, SKIPPED),
        ("DAT017", {"order": replace(REPEATS, sequential=True)}, OK),
        ("DAT017", {"order": replace(REPEATS, samples=3)}, OK),
        ("DAT017", {"order": REPEATS}, NOTE),
        ("DAT017", {"order": replace(REPEATS, callers=["train.py"])}, OK),
        ("DAT017", {"order": replace(REPEATS, loops=["train.py"])}, WARN),
        ("DAT017", {"order": replace(REPEATS, with_set_epoch=True)}, WARN),
        ("DAT017", {"order": replace(REPEATS, with_set_epoch=None)}, WARN),
        ("DAT017", {"order": replace(REPEATS, with_keyword=False)}, OK),
        ("DAT017", {"order": replace(REPEATS, with_keyword=True)}, WARN),
        ("DAT018", {}, OK),
        ("DAT018", {"shares": [RANKS[0], replace(RANKS[1], batches=6)]}, FAIL),
        ("DAT018", {"shares": [RANKS[0], replace(RANKS[1], batches=None)]}, SKIPPED),
        ("DAT018", {"iterable": True, "shares": [Share(rank=0, samples=5), Share(rank=1, samples=4)]}, NOTE),
        ("DAT018", {"iterable": True, "shares": [Share(rank=0, samples=90), Share(rank=1, samples=60)]}, WARN),
        ("DAT018", {"ranks": 1}, SKIPPED),
        ("DAT019", {}, OK),
        ("DAT019", {"index_map": None}, SKIPPED),
        ("DAT019", {"index_map": replace(MOVED, cause="entropy", examples=[EXAMPLE])}, FAIL),
        ("DAT019", {"index_map": replace(MOVED, cause="listing")}, WARN),
        ("DAT019", {"index_map": replace(MOVED, moved=0)}, WARN),
        ("DAT019", {"index_map": replace(MOVED, moved=0, own=True)}, NOTE),
        ("DAT019", {"index_map": replace(MOVED, by_design=True)}, SKIPPED),
        ("DAT019", {"index_map": replace(MOVED, unseen="it raised")}, SKIPPED),
        ("DAT019", {"index_map": IndexMap(compared=9, lengths=[100, 99])}, FAIL),
    ],
)
def test_rules(code: str, changes: dict[str, object], state: State) -> None:
    assert verdicts(replace(HEALTHY, **changes))[code].state is state


def test_nodes_must_hold_the_same() -> None:
    longer = replace(HEALTHY, shares=[replace(share, length=101) for share in RANKS])
    other = replace(HEALTHY, prints=[Print(index=i, leaves={"x": f"{15 - i}"}) for i in range(16)])
    assert verdicts(HEALTHY, HEALTHY)["DAT019"].state is OK
    for unlike in (longer, other):
        verdict = verdicts(HEALTHY, HEALTHY, unlike)["DAT019"]
        assert verdict.state is FAIL
        assert [f.where.node for f in verdict.findings if f.state is FAIL] == ["n2"]


def test_a_leaf_that_agrees_on_all_nodes_settles_it() -> None:
    prints = [Print(index=i, leaves={"x": f"{i}", "noise": f"a{i}"}) for i in range(16)]
    two = [Print(index=i, leaves={"x": f"{i}", "noise": f"b{i}"}) for i in range(16)]
    assert verdicts(replace(HEALTHY, prints=prints), replace(HEALTHY, prints=two))["DAT019"].state is OK


def test_an_aspect_that_was_not_reached_is_skipped_with_its_reason() -> None:
    assert set(states()) == {SKIPPED}
