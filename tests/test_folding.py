"""A thousand nodes with one finding are one block: what differs is their own names and addresses alone."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache

import pytest

from ncclcheck.probes.facts import replace
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, seen, warn
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output import markdown, terminal
from ncclcheck.reports.text.groups import MOST, Block, blocks
from tests import dgx, stories
from tests.clusters import nic, node, verdict

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
    found = next(one for one in _document().verdicts if one.code == "NET005")
    assert len(found.findings) == NODES
    assert f"own name dgx-{NODES - 1:05d} resolves" in terminal.text(_document(), terminal.Style(verbose=True))


def test_what_is_broken_on_one_node_is_not_hidden_among_the_others() -> None:
    text = terminal.text(_document(), terminal.Style(width=10_000))
    for line in ("dgx-00000: Slurm gave 8 GPUs, and the driver lists 7", "dgx-00001 mlx5_0: its port is DOWN"):
        assert line in text


def test_a_command_of_one_node_says_whose_it_is() -> None:
    block = next(one for one in blocks(_document(), [State.WARN]) if one.codes == ["NET005"])
    told = {one.commands[0].split()[0]: "Here for dgx-00000;" in one.text for one in block.remedies}
    assert told == {"export": False, "getent": True}


def _blocks(findings: list[Finding]) -> list[Block]:
    healthy = stories.load("healthy").document
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
    assert [str(one) for one in block.places[-2:]] == ["and 17 more like these: n[3-19]", "n30 is on fire"]


def test_findings_without_anything_in_common_are_counted() -> None:
    made = _blocks([_finding(number, "x", f"Take {number * 7919} out.") for number in range(100)])
    assert len(made) == 4
    assert "and 97 more like these: n[3-99]" in str(made[-1].places[0])


def test_eight_rails_in_one_subnet_are_one_finding() -> None:
    rails = [nic(f"ib{rail}", f"100.126.0.{rail + 1}/16") for rail in range(8)]
    found = verdict("NET011", node("a", nic("eth0", "10.1.0.1/24"), *rails))
    assert [one.what for one in found.findings] == ["ib[0-7] (100.126.0.0/16) share a subnet"]
