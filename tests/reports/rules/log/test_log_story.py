"""The story of a log: which cause stands first and why, what only follows, and the facts that people look for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, State, Verdict, Where, fail, seen, warn, you
from ncclcheck.reports.subjects.logs.answer.story import LogDiagnosis, diagnosis
from ncclcheck.reports.subjects.logs.words import meanings
from tests.helpers.logs import judged, parsed

_SHM = "{at}gpu-a17:47:48 [3] include/shm.h:28 NCCL WARN Error: failed to extend /dev/shm/nccl-x6bwvx to 96 bytes"
_GONE = "{at}gpu-a18:47:48 [2] x.cc:49 NCCL WARN socketProgress: Connection closed by remote peer gpu-a17<40112>"
_VALUE = "{at}[rank5]: ValueError: no such column: text_field"
_KILLED = "{at}[E1109 22:47:01.5 x.cpp:1] failed (exitcode: 1) local_rank: 3 (pid: 47) of binary: /usr/bin/python"


def _story(*lines: str, at: Sequence[str] = ()) -> LogDiagnosis:
    """Of a log of these lines. at: the time before each."""
    clock = [f"{moment} " for moment in at] or [""] * len(lines)
    log = "\n".join(line.format(at=when) for line, when in zip(lines, clock, strict=True))
    story = diagnosis(parsed(log), list(judged(log).values()))
    assert story is not None
    return story


def _codes(story: LogDiagnosis) -> list[str]:
    return [cause.code for cause in story.causes]


@pytest.mark.parametrize("lines", [(_GONE, _SHM), (_SHM, _GONE), (_GONE, _GONE, _KILLED, _SHM, _GONE)])
def test_a_consequence_is_never_first(lines: tuple[str, ...]) -> None:
    story = _story(*lines)
    assert story.causes[0].code == "LOG050"
    assert story.causes[0].where.node == "gpu-a17"
    assert [consequence.text.partition(" ")[0] for consequence in story.consequences] == ["socketProgress:"]
    assert story.first is not None
    assert "closed by remote" not in story.first.text


def test_what_was_seen_stands_behind_what_explains_it() -> None:
    story = _story(_VALUE, _SHM)
    assert _codes(story)[0] == "LOG050"
    behind = [(cause.code, cause.confidence) for cause in story.causes[1:]]
    assert ("LOG004", "possible") in behind
    assert all(confidence == "possible" for _, confidence in behind)
    assert "LOG050 says why" in story.causes[-1].reason


def test_a_warning_that_is_none_of_them_is_what_came_first() -> None:
    verdict = judged(_GONE.format(at=""), _SHM.format(at=""))["LOG001"]
    assert "failed to extend" in verdict.findings[0].what


def test_consequences_alone_have_no_cause_that_is_sure() -> None:
    story = _story(_GONE, _GONE)
    assert _codes(story) == ["LOG001"]
    assert story.causes[0].confidence == "possible"
    assert story.first is None


def test_only_one_cause_is_sure_of_several_the_first_is_likely() -> None:
    assert _ranked(_at(1, "LOG950")) == [("LOG950", "sure")]
    assert _ranked(_at(1, "LOG950"), _at(2, "LOG951")) == [("LOG950", "likely"), ("LOG951", "possible")]


def test_what_came_earlier_is_likelier() -> None:
    assert [code for code, _ in _ranked(_at(9, "LOG950"), _at(3, "LOG951"), _at(5, "LOG952"))] == [
        "LOG951",
        "LOG952",
        "LOG950",
    ]


def test_a_risk_stands_behind_what_ended_the_job() -> None:
    causes = _ranked(_at(9, "LOG951"), _at(1, "LOG950", State.WARN))
    assert causes == [("LOG951", "sure"), ("LOG950", "possible")]


@pytest.mark.parametrize(
    ("times", "first"),
    [((200.0, 100.0), "LOG951"), ((200.0, None), "LOG950"), ((None, None), "LOG950"), ((100.0, 100.0), "LOG950")],
)
def test_the_clock_counts_where_all_have_one(times: tuple[float | None, float | None], first: str) -> None:
    events = [_event(1, times[0]), _event(2, times[1])]
    verdicts = [_verdict(_finding(1), "LOG950"), _verdict(_finding(2), "LOG951")]
    story = diagnosis(Logs(events=events), verdicts)
    assert story is not None
    assert _codes(story)[0] == first
    assert story.first is not None
    assert story.first.place == ("train.log:1" if first == "LOG950" else "train.log:2")


def test_files_are_ordered_by_their_clocks() -> None:
    late = _SHM.format(at="[2026-03-01 10:00:07] ")
    early = _SHM.format(at="[2026-03-01 10:00:03] ").replace("gpu-a17", "gpu-a11")
    story = diagnosis(parsed(late, early), list(judged(late, early).values()))
    assert story is not None
    assert story.first is not None
    assert (story.first.where.node, story.first.place) == ("gpu-a11", "log1:1")


def test_other_families_are_no_part_of_it() -> None:
    story = diagnosis(Logs(events=[_event(1)]), [_verdict(_finding(1), "NET003")])
    assert story == LogDiagnosis()
    assert diagnosis(None, []) is None


def test_what_a_finding_rests_on_is_not_called_harmless() -> None:
    harmless = next(iter(meanings.HARMLESS))
    events = [_event(1, sign=harmless), _event(2, sign=harmless)]
    alone = diagnosis(Logs(events=events), [])
    used = diagnosis(Logs(events=events), [_verdict(_finding(1), "LOG950")])
    assert alone is not None
    assert used is not None
    assert [(lines.place, lines.count) for lines in alone.harmless] == [("train.log:1", 2)]
    assert [(lines.place, lines.count) for lines in used.harmless] == [("train.log:2", 1)]


_RANK = """\
gpu-a{n}:47:47 [0] NCCL INFO Bootstrap : Using eth0:10.0.3.{n}<0>
gpu-a{n}:47:48 [0] NCCL INFO NCCL version 2.2{v}.5+cuda12.4
gpu-a{n}:47:48 [0] NCCL INFO NCCL_IB_TC set by environment to 106.
gpu-a{n}:47:48 [0] NCCL INFO Using network Socket
gpu-a{n}:47:48 [0] NCCL INFO comm 0x5 rank {r} nranks 4 cudaDev 0 busId a commId 0x7 - Init START
gpu-a{n}:47:48 [0] NCCL INFO Connected all rings
gpu-a{n}:47:48 [0] NCCL INFO Connected all trees
"""
_DONE = "gpu-a{n}:47:48 [0] NCCL INFO comm 0x5 rank {r} nranks 4 cudaDev 0 busId a commId 0x7 - Init COMPLETE\n"


@pytest.mark.parametrize(
    ("log", "facts"),
    [
        (
            "".join((_RANK + _DONE).format(n=11 + r, r=r, v=1) for r in range(4)),
            {
                "NCCL": "2.21.5",
                "world": "4 ranks, all heard of",
                "nodes": "gpu-a[11-14]",
                "initialisation": "4 of 4 processes came to Init COMPLETE, rings and trees connected",
                "bootstrap": "eth0",
                "network": "Socket",
                "settings": "NCCL_IB_TC=106",
            },
        ),
        (
            "".join(_RANK.format(n=11 + r, r=r, v=r) + _DONE.format(n=11, r=0) for r in (0, 3)),
            {
                "NCCL": "2.20.5 (1 process), 2.23.5 (1 process)",
                "world": "4 ranks; 1-2 are not in these files",
                "nodes": "gpu-a[11,14]",
                "initialisation": "1 of 2 processes came to Init COMPLETE, rings and trees connected",
            },
        ),
        (_VALUE.format(at="") + "\n", {"world": "rank 5 is heard of"}),
        ("step 1\n", {}),
    ],
)
def test_the_facts_are_told(log: str, facts: dict[str, str]) -> None:
    story = diagnosis(parsed(log), [])
    assert story is not None
    values = {fact.source: fact.value for fact in story.facts}
    assert {name: values.get(name) for name in facts} == facts
    assert bool(values) is bool(facts)


def _event(line: int, at: float | None = None, sign: str = "nccl-warning") -> LogEvent:
    return LogEvent(sign=sign, file="train.log", line=line, text=f"line {line}", order=line, time=at)


def _finding(line: int, state: State = State.FAIL) -> Finding:
    make = fail if state is State.FAIL else warn
    return make(
        Where(),
        f"line {line}",
        why="because",
        owner="job",
        evidence=[seen(f"train.log:{line}", f"line {line}", line)],
        fix=[you("Look.")],
    )


def _verdict(finding: Finding, code: str) -> Verdict:
    return Verdict(code=code, title="all is well", state=finding.state, reason=None, url="", findings=[finding])


def _at(line: int, code: str, state: State = State.FAIL) -> Verdict:
    return _verdict(_finding(line, state), code)


def _ranked(*verdicts: Verdict) -> list[tuple[str, str]]:
    story = diagnosis(Logs(events=[_event(line) for line in range(1, 10)]), verdicts)
    assert story is not None
    return [(cause.code, cause.confidence) for cause in story.causes]


def test_those_that_came_to_a_monitored_barrier_do_not_name_rank_0() -> None:
    """torch says `from rank 0` whoever is missing: rank 0 collects them, and its own log names who."""
    came = (
        "[rank{0}]: RuntimeError: Rank {0} successfully reached monitoredBarrier, but received errors while "
        "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    )
    (finding,) = judged("\n".join(came.format(rank) for rank in (1, 2)))["LOG096"].findings
    assert (finding.where.rank, finding.what.partition(" came")[0]) == (None, "ranks 1-2")
    first = "[rank0]: RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 1800000 ms\n"
    (finding,) = judged(first + came.format(1))["LOG096"].findings
    assert finding.where.rank == 3
