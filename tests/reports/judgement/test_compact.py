"""A saved file of many nodes holds one of each kind whole, and of the others what differs."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import Node, Policy, known, replace
from ncclcheck.probes.facts.guard.alike import Kinds, NotAlike, applied, differences
from ncclcheck.reports.judgement import compact, jsondoc
from ncclcheck.results import safe
from tests.helpers import dgx, stories

NODES = 68


@cache
def _document() -> jsondoc.Document:
    return dgx.document(NODES)


@cache
def _saved() -> bytes:
    return b"".join(jsondoc.saved(_document()))


def _changed(**changes: object) -> bytes:
    """The saved file, its third node written otherwise."""
    document = json.loads(_saved())
    document["nodes"][3] |= changes
    return json.dumps(document).encode()


def test_it_is_read_as_the_same_nodes() -> None:
    whole = jsondoc.decode(jsondoc.encode(_document()), Policy())
    assert jsondoc.decode(_saved(), Policy()) == whole
    assert whole.cluster.nodes == [entry.facts for entry in _document().nodes]


def test_a_node_like_another_takes_little_room() -> None:
    """10,000 of them: 20 MB at 2,000 bytes each."""
    document = json.loads(_saved())
    rest = [len(json.dumps(entry)) for entry in document["nodes"] if "facts" not in entry]
    assert len(rest) >= NODES - 3
    assert sorted(rest)[len(rest) // 2] < 2_000


def test_the_schema_knows_both_forms() -> None:
    validator = jsonschema.Draft202012Validator(jsondoc.schema())
    validator.validate(json.loads(_saved()))
    validator.validate(json.loads(jsondoc.encode(_document())))


def test_few_nodes_are_written_whole() -> None:
    document = stories.document("healthy")
    assert b"".join(jsondoc.saved(document)) == jsondoc.encode(document)


def test_pieces_are_what_the_encoder_writes() -> None:
    document = stories.document("healthy")
    assert jsondoc.encode(document) == jsondoc.printable(msgspec.json.encode(document)) + b"\n"


def test_of_many_findings_the_worst_are_kept() -> None:
    verdicts = {entry["code"]: entry for entry in json.loads(_saved())["verdicts"]}
    kept = verdicts["NET005"]
    assert len(kept["findings"]) == compact.MOST_FINDINGS
    assert kept["findings_left_out"] == NODES - compact.MOST_FINDINGS
    assert sum("findings_left_out" in entry for entry in verdicts.values()) > 1


def test_what_they_have_in_common_is_one_object() -> None:
    nodes = safe.cluster(jsondoc.decode(_saved(), Policy()).cluster).nodes
    assert len({id(node.fabric) for node in nodes[3:]}) == 1
    assert len({id(node.network) for node in nodes[3:]}) == NODES - 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"like": "nobody"}, "nodes[3]: it has no facts and is like 'nobody', which is no node before it"),
        ({"like": ""}, "nodes[3]: it has no facts"),
        ({"like": "dgx-00004"}, "no node before it that is written whole"),
        ({"differs": {"/host/boot_id": 7}}, "differs: /host/boot_id: Expected"),
        ({"differs": {"host": {}}}, "begins with /"),
        ({"differs": {"/network/interfaces/999/mtu": 1}}, "the prototype has 0 to"),
        ({"differs": {"/network/interfaces/x/mtu": 1}}, "the prototype has 0 to"),
        ({"differs": {"/network/interfaces/0/mtu/deep": 1}}, "has nothing below /network/interfaces/0/mtu"),
        ({"differs": {"/host": {"type": "unread", "kind": "denied", "why": ""}, "/host/boot_id": ""}}, "whole"),
        ({"differs": {"/host/boot_id": "", "/host": None}}, "whole and in parts"),
        ({"differs": []}, "`$.nodes[3].differs`"),
        ({"facts": {"name": 3}}, "`$.nodes[3].facts.name`"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(jsondoc.DocumentError) as raised:
        jsondoc.decode(_changed(**changes), Policy())
    assert words in str(raised.value)


def test_a_field_of_a_newer_version_is_ignored() -> None:
    changed = json.loads(_saved())["nodes"][3]["differs"] | {"/host/of_tomorrow": 1, "/of_tomorrow/deep": 2}
    assert jsondoc.decode(_changed(differs=changed), Policy()) == jsondoc.decode(_saved(), Policy())


def test_a_small_file_cannot_stand_for_a_mountain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "_MOST", 1_000_000)
    with pytest.raises(jsondoc.DocumentError, match="GiB of facts"):
        jsondoc.decode(_saved(), Policy())


def test_nodes_of_other_kinds_are_prototypes_of_their_own() -> None:
    other = next(entry.facts for entry in stories.document("healthy").nodes)
    nodes = [node for number in range(4) for node in (_document().nodes[number + 3].facts, other)]
    kinds = Kinds()
    assert [kinds.compared(node)[0] is None for node in nodes[:2]] == [True, True]
    assert [kinds.shared(node) for node in nodes] == nodes


_CARD = st.fixed_dictionaries({"drop": st.booleans(), "model": st.sampled_from(["H100", "H200"])})


@settings(max_examples=12, deadline=None)
@given(which=st.integers(0, 30), changes=st.lists(_CARD, max_size=3), name=st.text(max_size=8))
def test_any_node_comes_back_from_its_differences(which: int, changes: list[dict[str, Any]], name: str) -> None:
    prototype, node = _document().nodes[5].facts, _document().nodes[which].facts
    cards = known(known(node.gpus).cards)
    for change in changes:
        cards = cards[1:] if change["drop"] else [replace(card, name=change["model"]) for card in cards]
    node = replace(node, name=name, gpus=replace(known(node.gpus), cards=cards))
    written = msgspec.json.encode(differences(prototype, node))
    assert applied(prototype, msgspec.json.decode(written, type=dict[str, msgspec.Raw])) == node


@given(st.dictionaries(st.text(max_size=20) | st.sampled_from(["/host", "/a/b", "/"]), st.integers(), max_size=3))
def test_hostile_differences_end_in_one_error(changed: dict[str, int]) -> None:
    raw = {place: msgspec.Raw(str(value).encode()) for place, value in changed.items()}
    try:
        assert isinstance(applied(_document().nodes[5].facts, raw), Node)
    except NotAlike:
        return
