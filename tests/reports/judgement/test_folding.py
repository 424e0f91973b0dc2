"""A thousand nodes with one finding are one block: what differs is their own names and addresses alone."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import replace
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, seen, warn
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output import markdown, terminal
from ncclcheck.reports.text.groups import MOST, MOST_KINDS, FindingBlock, blocks
from ncclcheck.reports.text.words.fold import fold_some
from tests.helpers import dgx, stories
from tests.helpers.clusters import nic, node, verdict

NODES = 20
OTHERS = "and 17 more like these: dgx-[00003-00019]"


@cache
def _document() -> Document:
    return dgx.document(NODES)


def _forms() -> Iterator[str]:
    yield terminal.text(_document(), terminal.Style(width=10_000))
    yield terminal.short(_document(), terminal.Style())
    yield markdown.text(_document()).replace("\\", "")


def test_many_nodes_are_a_few_and_the_rest() -> None:
    for text in _forms():
        assert OTHERS in text
        assert "own name dgx-00002 resolves to 10.99.0.3" in text
        assert "own name dgx-00003 resolves" not in text
        assert len(text.splitlines()) < 320  # Markdown has an empty line between any two


def test_the_page_for_the_browser_folds_them_too() -> None:
    pytest.importorskip("matplotlib")
    text = importlib.import_module("ncclcheck.reports.output.html").text(_document())
    assert OTHERS in text
    assert "own name dgx-00003 resolves" not in text


def test_json_and_verbose_keep_all() -> None:
    judgement = next(entry for entry in _document().verdicts if entry.code == "NET005")
    assert len(judgement.findings) == NODES
    assert f"own name dgx-{NODES - 1:05d} resolves" in terminal.text(_document(), terminal.Style(verbose=True))


def test_what_is_broken_on_one_node_is_not_hidden_among_the_others() -> None:
    text = terminal.text(_document(), terminal.Style(width=10_000))
    for line in ("dgx-00000: Slurm gave 8 GPUs, and the driver lists 7", "dgx-00001 mlx5_0: its port is DOWN"):
        assert line in text


def test_a_command_of_one_node_says_whose_it_is() -> None:
    block = next(block for block in blocks(_document(), [State.WARN]) if block.codes == ["NET005"])
    says_where = {remedy.commands[0].split()[0]: "Here for dgx-00000;" in remedy.text for remedy in block.remedies}
    assert says_where == {"export": False, "getent": True}


def _blocks(findings: list[Finding]) -> list[FindingBlock]:
    healthy = stories.document("healthy")
    alone = replace(healthy.verdicts[0], state=State.WARN, findings=findings)
    return [*blocks(replace(healthy, verdicts=[alone]), [State.WARN])]


def _finding(number: int, what: str, fix: str = "Look.") -> Finding:
    where = Where(node=f"n{number}")
    return warn(where, what, why="w", owner="node", evidence=[seen("s", number)], fix=[admin(fix)])


def test_a_few_are_told_one_by_one() -> None:
    [block] = _blocks([_finding(number, f"n{number} has 10.1.0.{number}") for number in range(MOST)])
    assert len(block.places) == MOST


def test_what_differs_in_more_than_its_own_names_is_told_apart() -> None:
    findings = [_finding(number, f"n{number} is slow") for number in range(20)]
    [block] = _blocks([*findings, _finding(30, "n30 is on fire")])
    assert [str(place) for place in block.places[-2:]] == ["n2 is slow", "and 17 more like these: n[3-19]"]
    assert str(block.places[0]) == "n30 is on fire"


def test_findings_without_anything_in_common_are_counted() -> None:
    words = ["".join(letters) for letters in product("abcde", repeat=3)][:100]
    made = _blocks([_finding(number, f"it is {word}", f"Take {word} out.") for number, word in enumerate(words)])
    assert len(made) == 4
    assert len(made[-1].places) == MOST_KINDS + 1
    assert str(made[-1].places[-1]) == "and 81 more of 81 other kinds (--json has all): n[19-99]"


def test_eight_rails_in_one_subnet_are_one_finding() -> None:
    rails = [nic(f"ib{rail}", f"100.126.0.{rail + 1}/16") for rail in range(8)]
    judgement = verdict("NET011", node("a", nic("eth0", "10.1.0.1/24"), *rails))
    assert [finding.what for finding in judgement.findings] == ["ib[0-7] (100.126.0.0/16) share a subnet"]


CROWD = 2_000
LINES = 200  # of text, however many nodes there are


def _of_each_kind(number: int) -> Iterator[Finding]:
    """A failure, a warning and a note whose words hold the node's own name, address and numbers."""
    name, address = f"n{number}", f"10.{number // 250}.{number % 250}.7"
    for state in (State.FAIL, State.WARN, State.NOTE):
        made = _finding(number, f"{name} at {address} waited {number * 37 % 9973} ms", f"Look at {address}.")
        yield replace(made, state=state, why=f"All wait {number * 11 % 997} ms for {name}.")


def _crowded(count: int) -> Document:
    """Each of many nodes has them, and three have something of their own."""
    crowd = [finding for number in range(count) for finding in _of_each_kind(number)]
    faults = ("has no GPU", "lost its disk", "is on fire")
    own = [replace(_finding(number, f"n{number} {what}"), state=State.FAIL) for number, what in enumerate(faults)]
    healthy = stories.document("healthy")
    alone = replace(healthy.verdicts[0], state=State.FAIL, findings=[*crowd, *own])
    return replace(healthy, verdicts=[alone])


@pytest.mark.parametrize("verbose", [False, True])
def test_a_report_of_thousands_of_nodes_is_short_and_the_faulty_ones_stand_first(verbose: bool) -> None:
    document = _crowded(CROWD)
    text = terminal.text(document, terminal.Style(verbose=verbose))
    assert len(text.splitlines()) <= (LINES if not verbose else 600)
    for fault in ("n0 has no GPU", "n1 lost its disk", "n2 is on fire"):
        assert text.index(fault) < text.index("and 1,997 more like these: n[3-1999]")
    assert text.count("and 1,997 more like these: n[3-1999]") == 3
    assert len(markdown.text(document)) <= markdown.MOST


def test_the_page_of_thousands_of_nodes_is_small() -> None:
    pytest.importorskip("matplotlib")
    page = importlib.import_module("ncclcheck.reports.output.html").text(_crowded(CROWD))
    assert len(page.encode()) <= 5_000_000
    assert "n2 is on fire" in page


def test_the_text_does_not_grow_with_the_cluster() -> None:
    few, many = (len(terminal.text(_crowded(count), terminal.Style()).splitlines()) for count in (100, 1_000))
    assert many - few <= 5


def test_names_with_many_gaps_fill_no_page() -> None:
    assert fold_some(f"n{number}" for number in range(0, 10_000, 2)).endswith("20,22] and 4,988 more")
    assert fold_some(["b", "a7", "a8"]) == "b, a[7-8]"


CAUSES = (
    *("Xid 79", "Xid 48", "exit code 137", "exit code 1", "NCCL 2.18.5", "NCCL 2.21.5", "error NET003"),
    *("driver 535", "driver 570", "CUDA_ERROR 9", "its link is down", "its disk is full"),
)


@pytest.mark.parametrize(
    ("common", "rare"),
    [
        *(("Xid 13", "Xid 79"), ("exit code 1", "exit code 137"), ("signal 6", "signal 9")),
        *(("NCCL 2.18.5", "NCCL 2.21.5"), ("driver 535", "driver 570"), ("CUDA_ERROR 9", "CUDA_ERROR 2")),
    ],
)
def test_another_cause_among_many_alike_is_shown(common: str, rare: str) -> None:
    """What names a cause is no number, however many nodes differ in theirs."""
    crowd = [_finding(number, f"it saw {common} after {number} ms") for number in range(50)]
    made = _blocks([*crowd, _finding(60, f"it saw {rare} after 3 ms")])
    assert str(made[0].places[0]) == f"n60: it saw {rare} after 3 ms"


def _named_by(block: FindingBlock) -> str:
    return " ".join([block.why, *(remedy.text for remedy in block.remedies), *map(str, block.places)])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kinds=st.lists(st.sampled_from(CAUSES), min_size=1, max_size=7, unique=True),
    crowd=st.integers(0, 40),
    part=st.sampled_from(["what", "why", "fix"]),
)
def test_no_finding_hides_another_with_another_cause_or_fix(kinds: list[str], crowd: int, part: str) -> None:
    """Whichever part of it differs, each kind and each node is there."""
    findings = [_with(100 + number, part, f"boom after {number} ms") for number in range(crowd)]
    findings += [_with(number, part, kind) for number, kind in enumerate(kinds)]
    names = [_named_by(block) for block in _blocks(findings)]
    for number, kind in enumerate(kinds):
        assert any(kind in text and re.search(rf"\bn{number}\b|n\[", text) for text in names)


def _with(number: int, part: str, words: str) -> Finding:
    made = _finding(number, words if part == "what" else "it is ill", words if part == "fix" else "Look.")
    return replace(made, why=words) if part == "why" else made


def test_another_owner_and_another_effect_are_told_apart() -> None:
    alike = [_finding(number, "it is ill") for number in range(3)]
    others = [replace(_finding(7, "it is ill"), owner="job"), replace(_finding(8, "it is ill"), blocks_job=True)]
    assert len(_blocks([*alike, *others])) == 3


def test_families_without_anything_to_judge_are_one_line() -> None:
    text = terminal.text(_document(), terminal.Style())
    [line] = [line for line in text.splitlines() if line.startswith("  skipped ")]
    assert re.match(r"  skipped   \d+ of init, memory, data, training", line)
    assert not re.search(r"^  \w+ +\d+ skipped$", text, re.MULTILINE)
