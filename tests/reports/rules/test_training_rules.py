"""The rules of the training run's checks: what they raise, what they let pass, and what was not looked at."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ncclcheck.probes.facts import Cluster, Job, Measurements, Node, RankState, Run
from ncclcheck.probes.facts.training import Checks, EnteredCollective, Setup, Smoke, Unchecked
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

RULES = {rule.code: rule for rule in all_rules() if "TRN001" <= rule.code <= "TRN012"}
APART = {"tensors": 9, "differ": 1, "differing": [{"name": "w", "ranks": [2], "count": 1}]}
LOCAL = {
    "tensors": 9,
    "differ": 1,
    "differing": [{"name": "bn.mean", "kind": "buffer", "ranks": [2], "local": True}],
}
BUFFER = {"tensors": 9, "differ": 1, "differing": [{"name": "ema", "kind": "buffer", "ranks": [2], "count": 1}]}
GRADS = {"tolerance": 1e-4, "samples": 8, "errors": [{"rank": 0, "error": 1e-7}], "joined": 1e-7}
SAMPLES = {"sampler": "DistributedSampler", "dataset": 1000, "ranks": 4, "batch": 32, "read": 1000}
LAYER = {"name": "aux.w", "ranks": [0, 1, 2, 3]}


def cluster(checks: Checks | None, **setup: Any) -> Cluster:
    given = {"model": "transformer", "data": "transformer", "strategy": "ddp", "precision": "fp32", "steps": 20}
    smoke = Smoke(setup=Setup(**{**given, "batch": 8, **setup}), checks=checks)
    return Cluster(
        command="smoke",
        nodes=[Node(name="a"), Node(name="b")],
        job=Job(ranks=4),
        run=Run(ranks=[RankState(rank=rank, node="ab"[rank // 2]) for rank in range(4)], started_job=True),
        measurements=Measurements(smoke=smoke),
    )


def verdict(code: str, checks: dict[str, Any], **setup: Any) -> Verdict:
    return judge(cluster(msgspec.convert(checks, Checks), **setup), [RULES[code]])[0]


@pytest.mark.parametrize(
    ("code", "checks", "state", "words"),
    [
        ("TRN001", {"fixed_batch": {"steps": 10, "first": 4.4, "last": 2.2}}, State.OK, "4.4 before, 2.2 after"),
        ("TRN001", {"fixed_batch": {"steps": 10, "first": 4.4, "last": 4.0}}, State.FAIL, "does not fall"),
        ("TRN001", {"fixed_batch": {"steps": 10, "first": 4.4, "last": None}}, State.FAIL, "no number after 10"),
        ("TRN002", {"before_wrap": {"tensors": 9}}, State.OK, "9 tensors are the same"),
        ("TRN002", {"before_wrap": APART}, State.WARN, "rank 2 began with other weights than the others: w"),
        ("TRN002", {"before_wrap": {**APART, "tied": True}}, State.WARN, "than rank 0"),
        ("TRN003", {"trained": {"steps": 20, "every": 5, "agreement": APART}}, State.FAIL, "20 steps rank 2"),
        ("TRN003", {"trained": {"steps": 20, "every": 5, "agreement": LOCAL}}, State.OK, "the same on all ranks"),
        ("TRN003", {"trained": {"steps": 20, "every": 5, "agreement": BUFFER}}, State.WARN, "ema"),
        (
            "TRN003",
            {"trained": {"steps": 20, "every": 5, "agreement": APART, "taken": [{"rank": 2, "steps": 19}]}},
            State.FAIL,
            "rank 2 took 19 of 20 steps",
        ),
        ("TRN004", {"gradients": GRADS}, State.OK, "those of one process"),
        ("TRN004", {"gradients": {**GRADS, "joined": 0.5}}, State.FAIL, "but not those of the joined batch"),
        ("TRN004", {"gradients": {**GRADS, "joined": None, "not_joined": "BatchNorm"}}, State.NOTE, "BatchNorm"),
        (
            "TRN004",
            {"gradients": {**GRADS, "errors": [{"rank": 3, "error": None}], "wrong": 1}},
            State.FAIL,
            "rank 3 has other gradients",
        ),
        (
            "TRN005",
            {"accumulation": {**GRADS, "micro_batches": 2, "errors": [{"rank": 1, "error": 0.3}], "wrong": 4}},
            State.FAIL,
            "(and 3 other ranks)",
        ),
        ("TRN006", {"samples": SAMPLES}, State.OK, "every sample is read once"),
        ("TRN006", {"samples": {**SAMPLES, "repeated": 3, "missing": 30}}, State.OK, "padding or drop_last"),
        ("TRN006", {"samples": {**SAMPLES, "read": 4000, "repeated": 3000}}, State.FAIL, "every rank reads all"),
        ("TRN006", {"samples": {**SAMPLES, "repeated": 100, "twice": [{"index": 1, "ranks": [0, 3]}]}}, State.FAIL,
         "100 samples are read again"),
        ("TRN006", {"samples": {**SAMPLES, "missing": 400}}, State.WARN, "400 of 1000 samples are"),
        ("TRN006", {"samples": {**SAMPLES, "sampler": "WeightedRandomSampler", "repeated": 4}}, State.NOTE, ""),
        ("TRN007", {"orders": {"sampler": "S", "shuffled": True, "same": [0, 1, 2, 3], "count": 4},
                    "samples": SAMPLES}, State.WARN, "all ranks read epoch 1"),
        ("TRN007", {"orders": {"sampler": "S", "shuffled": True, "same": [1], "count": 1}, "samples": SAMPLES},
         State.FAIL, "rank 1 read"),
        ("TRN008", {"metric": {"samples": 32, "reduced": 1.5, "whole": 1.5000001}}, State.OK, "32 samples"),
        ("TRN008", {"metric": {"samples": 32, "reduced": 1.5, "whole": 1.6}}, State.FAIL, "not that of the whole"),
        ("TRN008", {"metric": {"samples": 32, "reduced": None, "whole": 1.6}}, State.FAIL, "no number by all"),
        (
            "TRN009",
            {"generators": {"looked_at": ["torch"], "shared": [
                {"generator": "torch", "ranks": [0, 3], "count": 2, "when": "made"},
                {"generator": "torch", "ranks": [0, 3], "count": 2, "when": "trained"}]}},
            State.WARN,
            "ranks 0 and 3 have the same state of torch's generator",
        ),
        ("TRN010", {"unused": {"parameters": 9, "count": 1, "unused": [LAYER]}}, State.FAIL, "on any rank"),
        (
            "TRN010",
            {"unused": {"parameters": 9, "count": 1, "unused": [{**LAYER, "ranks": [1], "everywhere": False}]}},
            State.FAIL,
            "aux.w gets no gradient on rank 1, and others do",
        ),
        ("TRN011", {"lengths": {"least": 5, "most": 5}}, State.OK, "every rank has 5 batches"),
        ("TRN011", {"lengths": {"least": 20, "most": 20, "upto": 20}}, State.OK, "at least 20"),
        (
            "TRN011",
            {"lengths": {"least": 5, "most": 7, "short": [{"rank": 1, "batches": 5}], "count": 1}},
            State.FAIL,
            "rank 1 has fewer batches than the others (rank 1: 5); the most is 7",
        ),
        ("TRN012", {"precision": {"precision": "bf16", "loss": 4.0, "full": 4.01}}, State.OK, "4 in bf16"),
        ("TRN012", {"precision": {"precision": "fp16", "loss": 4.0, "full": 5.0}}, State.WARN, "4 in fp16, 5 in"),
        (
            "TRN012",
            {"precision": {"precision": "fp16", "loss": 4.0, "full": 4.0, "count": 1,
                           "bad": [{"rank": 1, "parameters": ["h.w"]}]}},
            State.FAIL,
            "in fp16 the gradient of h.w is infinite or NaN on rank 1",
        ),
    ],
)  # fmt: skip
def test_what_was_seen_is_judged(code: str, checks: dict[str, Any], state: State, words: str) -> None:
    judgement = verdict(code, checks)
    assert judgement.state is state
    assert any(words in finding.what for finding in judgement.findings), judgement.findings


@pytest.mark.parametrize(
    ("code", "checks", "setup", "state"),
    [
        ("TRN001", {"fixed_batch": {"steps": 10, "first": 4.4, "last": 4.0}}, {"model": "t.py:M"}, State.OK),
        ("TRN001", {"fixed_batch": {"steps": 10, "first": 4.4, "last": 4.5}}, {"model": "t.py:M"}, State.WARN),
        ("TRN002", {"before_wrap": APART}, {"strategy": "fsdp"}, State.FAIL),
        ("TRN004", {"gradients": {**GRADS, "joined": 0.5}}, {"model": "t.py:M"}, State.WARN),
        (
            "TRN010",
            {"unused": {"parameters": 9, "count": 1, "unused": [LAYER]}},
            {"find_unused": True},
            State.NOTE,
        ),
        ("TRN010", {"unused": {"parameters": 9, "count": 1, "unused": [LAYER]}}, {"strategy": "fsdp"}, State.NOTE),
        ("TRN007", {"orders": {"sampler": "S", "shuffled": False, "same": [0], "count": 1}}, {}, State.SKIPPED),
    ],
)
def test_how_it_was_trained_counts(code: str, checks: dict[str, Any], setup: dict[str, Any], state: State) -> None:
    assert verdict(code, checks, **setup).state is state


CHECK = {
    "TRN001": "fixed_batch", "TRN002": "before_wrap", "TRN003": "trained", "TRN004": "gradients",
    "TRN005": "accumulation", "TRN006": "samples", "TRN007": "orders", "TRN008": "metric",
    "TRN009": "generators", "TRN010": "unused", "TRN011": "lengths", "TRN012": "precision",
}  # fmt: skip


@pytest.mark.parametrize("code", CHECK)
def test_what_was_not_looked_at_is_not_called_well(code: str) -> None:
    (nothing,) = judge(cluster(None), [RULES[code]])
    assert (nothing.state, nothing.reason) == (State.SKIPPED, "no training was checked")
    assert verdict(code, {}).reason == "the training did not come so far"
    why = Unchecked(check=CHECK[code], why="it cannot be")
    assert verdict(code, {"unchecked": [msgspec.to_builtins(why)]}).reason == "it cannot be"
    late = verdict(code, {"unchecked": [{"check": CHECK[code], "why": "no time", "late": True}]})
    assert late.state is State.UNKNOWN


@pytest.mark.parametrize(
    ("more", "why", "command"),
    [
        ({}, "not a mean over samples", "* dist.get_world_size() / tokens"),
        ({"metric": {"samples": 8, "reduced": 1.0, "whole": 2.0}}, "TRN008", "register_buffer"),
        ({"metric": {"samples": 8, "reduced": 1.0, "whole": 1.0}}, "not a mean over samples", "get_world_size"),
        ({"hooked": ["w"]}, "Hooks on parameters", "clip_grad_norm_"),
    ],
)
def test_why_a_joined_batch_has_other_gradients(more: dict[str, Any], why: str, command: str) -> None:
    gradients = {**GRADS, "joined": 0.5, "hooked": more.get("hooked", [])}
    checks = {"gradients": gradients, **{name: value for name, value in more.items() if name != "hooked"}}
    finding = verdict("TRN004", checks, model="m:Net").findings[0]
    assert why in (finding.why or "")
    assert command in finding.remedies[0].commands[0]


def test_a_stream_is_not_told_of_a_sampler() -> None:
    lengths = {"least": 5, "most": 7, "short": [{"rank": 1, "batches": 5}], "count": 1}
    for upto, words in ((0, "DistributedSampler"), (20, "ReduceOp.MIN")):
        finding = verdict("TRN011", {"lengths": {**lengths, "upto": upto}}).findings[0]
        assert words in finding.remedies[0].commands[0]


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("none", EnteredCollective("none")),
        ("barrier at a.py:3", EnteredCollective("barrier", ("a.py:3",))),
        ("all_gather of 4, 5 elements", EnteredCollective("all_gather", (), "4, 5 elements")),
        (
            "all_reduce at m.py:20 in mean, called at t.py:51 in step",
            EnteredCollective("all_reduce", ("m.py:20 in mean", "t.py:51 in step")),
        ),
    ],
)
def test_a_call_is_read_as_it_was_told(text: str, call: EnteredCollective) -> None:
    assert EnteredCollective.read(text) == call
    assert str(call) == text
