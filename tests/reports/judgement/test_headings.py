"""What heads a block: what happened, and where; of several statements one that covers them."""

from __future__ import annotations

import pytest

from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.output import terminal
from ncclcheck.reports.text import block_text
from ncclcheck.reports.text.groups import FindingBlock, FoldedPlaces
from ncclcheck.reports.text.headings import heading
from tests.helpers import stories


def _block(*places: FoldedPlaces, state: State = State.FAIL) -> FindingBlock:
    return FindingBlock(state, ["NET001"], "all is well", "", [], [*places])


@pytest.mark.parametrize(
    ("where", "what", "text"),
    [
        ("gpu-b03", "eth0 is down", "gpu-b03: eth0 is down"),
        ("gpu-b03  eno1", "eno1 is in 10.42.8.0/24", "gpu-b03: eno1 is in 10.42.8.0/24"),
        ("gpu-b03  eno1", "eno10 is in its way", "gpu-b03 eno1: eno10 is in its way"),
        ("a  eth0  to b", "eth0 has no route", "a to b: eth0 has no route"),
        ("a  to b", "a and b are too far apart", "a and b are too far apart"),
        ("rank 0", "rank 0 did not come", "rank 0 did not come"),
        ("rank 1", "rank 10 waits", "rank 1: rank 10 waits"),
        ("", "the loss does not fall", "the loss does not fall"),
    ],
)
def test_a_place_is_named_once(where: str, what: str, text: str) -> None:
    assert heading(_block(FoldedPlaces(where, what))).text == text


def test_the_first_sentence_heads_and_the_others_stand_below() -> None:
    head = heading(_block(FoldedPlaces("a", "it waited for 600 s. Rank 0 alone knows why")))
    assert (head.text, [str(places) for places in head.below]) == (
        "a: it waited for 600 s",
        ["Rank 0 alone knows why"],
    )


@pytest.mark.parametrize(
    ("places", "text", "below"),
    [
        ([("a[1-3]", "64 MiB are free"), ("a7", "61 MiB are free")], "a[1-3], a7: 61 to 64 MiB are free", 2),
        ([("a  mlx5_0", "it is down"), ("a  mlx5_1", "it is down")], "a mlx5_[0-1]: it is down", 2),
        ([("a", "(x_1) is off"), ("b", "(x_2) is off")], "a, b: (x_[1-2]) is off", 2),
        ([("a", "rank 1 waits"), ("b", "rank 2 waits")], "a: rank 1 waits (and 1 more)", 1),
        ([("a", "it is hot"), ("b", "it is far too cold")], "a: it is hot (and 1 more)", 1),
        ([("a", "1 2 3 4 is hot"), ("b", "5 6 7 8 is hot")], "a: 1 2 3 4 is hot (and 1 more)", 1),
    ],
)
def test_several_statements_share_a_heading(places: list[tuple[str, str]], text: str, below: int) -> None:
    head = heading(_block(*(FoldedPlaces(*place) for place in places)))
    assert (head.text, len(head.below)) == (text, below)


def test_what_is_not_shown_is_counted() -> None:
    rest = FoldedPlaces("", "and 17 more like these: n[3-19]", more=17)
    assert heading(_block(FoldedPlaces("n1", "it is hot"), FoldedPlaces("n2", "it is hot"), rest)).text == (
        "n[1-2]: it is hot (and 17 more)"
    )


def test_what_is_well_is_headed_by_its_check() -> None:
    assert heading(_block(FoldedPlaces("a", "eth0 is up"), state=State.OK)).text == "all is well"


def test_the_check_stands_below_when_all_is_asked_for() -> None:
    block = _block(FoldedPlaces("a", "eth0 is down"))
    assert "all is well" not in block_text.text(block, block_text.Style())
    assert "check all is well" in block_text.text(block, block_text.Style(verbose=True))


@pytest.mark.parametrize("name", stories.NAMES)
def test_no_failure_is_headed_by_what_would_be_well(name: str) -> None:
    titles = tuple(f"  {rule.title}" for rule in all_rules())
    report = terminal.text(stories.document(name), terminal.Style(width=10_000))
    bad = [line for line in report.splitlines() if line.startswith(("FAIL", "warn"))]
    assert [line for line in bad if line.endswith(titles)] == []
