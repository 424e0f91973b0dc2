"""Whatever a saved document says was measured: it is judged, blamed, compared and printed, or refused."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Meta, Struct

from ncclcheck.probes.facts import Baseline, Cluster, Flight, Logs, Measurements, Node, PairTime, Policy, replace
from ncclcheck.reports import compare, expect
from ncclcheck.reports.culprit import culprits, next_round
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.reports.output import terminal
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.helpers import stories

pytestmark = pytest.mark.timeout(600)  # a hundred examples on a machine that is busy elsewhere

_FIXED = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
_STYLES = (terminal.Style(), terminal.Style(verbose=True, colour=True))
_FLOATS = st.sampled_from([0.0, -1.0, 5e-324, 1e-300, 1e-9, 1.0, 10.0, 1e9, 1e15, 1.7e308])
_INTS = st.sampled_from([0, 1, -1, 2, 8, 64 << 20, 10**6, 2**60, 2**63 - 1, -(2**63), 2**64 - 1])
_ODD = ["", "0x", "rail 0", "cuda:", "cuda:0", "cpu", "9" * 30, "\x1b[31m", "all_reduce", "NET/IB", "²", "\udcff"]
_WORDS = [
    "all_reduce",
    "all_gather",
    "barrier",
    "float32",
    "int8",
    "x_9",
    "",
    "0x0",
    "0xa5a5a5a5",
    "NCCL_A",
    "7",
    "18446744073709551616",
    "/x/init",
]


@cache
def _story(name: str) -> Cluster:
    cluster = stories.load(name).cluster
    count = len(cluster.nodes)
    return replace(cluster, command="bench", job=replace(cluster.job, nodes_asked=count, nodes_answered=count))


STORIES = [path.stem for path in sorted(stories.FOLDER.glob("*.json")) if _story(path.stem).nodes]


def _survives(cluster: Cluster) -> None:
    """Through everything that looks at measurements; any defect is an exception."""
    before = Baseline(name="before.json", cluster=_story("healthy"))
    options = Options(command="bench", baseline=before)
    document = finish.make(cluster, options, finish.Story(started="", seconds=1.0))
    crashed = [
        finding.what for v in document.verdicts for finding in v.findings if "could not be judged" in finding.what
    ]
    assert crashed == [], crashed
    culprits(cluster)
    expect.completed(cluster)
    compared = compare.result(before, Baseline(name="after.json", cluster=cluster), "1", {})
    compare.encode(compared)
    for style in _STYLES:
        terminal.text(document, style)
        terminal.short(document, style)
        compare.text(compared, style)
    assert jsondoc.decode(jsondoc.encode(document), Policy()).cluster.nodes


def _texts(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.sampled_from([*names, *names, *(word for word in _ODD if word.isprintable())])


def _of_type(kind: Any, texts: st.SearchStrategy[str], leave_out: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    """Any value of a type of the facts, without these fields."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        primitive = arguments[0] in (int, float, str)
        return _bounded(arguments[0], arguments[1]) if primitive else _of_type(arguments[0], texts)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list or Ellipsis in arguments:
        return st.lists(_of_type(arguments[0], texts), max_size=3).map(origin)
    if origin in (dict, tuple):
        parts = [_of_type(part, texts) for part in arguments]
        return st.tuples(*parts) if origin is tuple else st.dictionaries(*parts, max_size=3)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([_of_type(argument, texts) for argument in arguments])
    plain = {int: _INTS, float: _FLOATS, str: texts, bool: st.booleans(), type(None): st.none()}
    if kind in plain:
        return plain[kind]
    if typing.is_typeddict(kind):
        return _of_names(kind, texts)
    assert issubclass(kind, Struct), kind
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [name for name in kind.__struct_fields__ if name not in leave_out]
    return st.builds(kind, **{name: _of_type(hints[name], texts) for name in fields})


def _of_names(kind: Any, texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Of a TypedDict without required keys: some of them."""
    known = typing.get_type_hints(kind, include_extras=True)
    names = st.lists(st.sampled_from(sorted(known)), max_size=3, unique=True)
    return names.flatmap(lambda some: st.fixed_dictionaries({name: _of_type(known[name], texts) for name in some}))


def _bounded(kind: type, bounds: Meta) -> st.SearchStrategy[Any]:
    if kind is str:
        return st.sampled_from([word for word in _WORDS if re.search(str(bounds.pattern), word)])
    numbers = _FLOATS if kind is float else _INTS
    return numbers.filter(lambda number: (bounds.ge or 0) <= number <= (bounds.le or number))


_KINDS = typing.get_type_hints(Measurements, include_extras=True)


# Logs have a test of their own, and the counts of a Flight Recorder dump must fit the dump's groups.
_MEASURED = [name for name in Measurements.__struct_fields__ if name not in ("logs", "records")]


def _measured(story: str) -> st.SearchStrategy[Cluster]:
    """Some of the measurements; all of them at once are more than Hypothesis can draw."""
    nodes = tuple(node.name for node in _story(story).nodes)
    names = st.lists(st.sampled_from(_MEASURED), min_size=2, max_size=4, unique=True)
    values = names.flatmap(lambda chosen: st.fixed_dictionaries({name: _values(name, nodes) for name in chosen}))
    return values.map(lambda chosen: replace(_story(story), measurements=Measurements(**chosen)))


@cache
def _values(name: str, nodes: tuple[str, ...]) -> st.SearchStrategy[Any]:
    return _of_type(_KINDS[name], _texts(nodes))


@settings(_FIXED, max_examples=100)
@given(cluster=st.sampled_from(["healthy", "two-of-four-rails-idle"]).flatmap(_measured))
def test_any_measurements(cluster: Cluster) -> None:
    _survives(cluster)


@settings(_FIXED, max_examples=15)
@given(logs=_of_type(Logs, _texts(("gpu-a17", "train.log:812")), leave_out=("flight",)))
def test_any_logs(logs: Logs) -> None:
    _survives(replace(_story("healthy"), command="logs", measurements=Measurements(logs=logs)))


def test_a_dump_of_a_group_that_is_not_there_is_refused() -> None:
    dump = {"dumps": [{"rank": 0, "file": "x", "counts": [{"group": 3}]}], "groups": [{"name": "0"}]}
    with pytest.raises(msgspec.ValidationError, match="group 3 is none of the 1 groups"):
        msgspec.convert(dump, Flight)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path, value
    else:
        for key, item in items:
            yield from _leaves(item, (*path, key))


@cache
def _told(story: str) -> tuple[bytes, list[tuple[tuple[Any, ...], Any]]]:
    """The measurements as they are saved, and where in them which value stands."""
    data = msgspec.json.encode(_story(story).measurements)
    return data, list(_leaves(json.loads(data)))


def _changed(leaf: tuple[tuple[Any, ...], Any]) -> st.SearchStrategy[tuple[tuple[Any, ...], Any]]:
    kinds = {str: st.sampled_from(_ODD), int: _INTS, float: _FLOATS}
    values = kinds.get(type(leaf[1]), _FLOATS | _INTS | st.sampled_from(_ODD))
    return st.tuples(st.just(leaf[0]), values | values | st.none())


def _changes(story: str) -> st.SearchStrategy[tuple[str, list[tuple[tuple[Any, ...], Any]]]]:
    change = st.sampled_from(_told(story)[1]).flatmap(_changed)
    return st.tuples(st.just(story), st.lists(change, min_size=1, max_size=3))


def _put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    if path:
        document[path[-1]] = value


@settings(_FIXED, max_examples=60)
@given(changed=st.sampled_from(STORIES).flatmap(_changes))
def test_changed_measurements(changed: tuple[str, list[tuple[tuple[Any, ...], Any]]]) -> None:
    """Values of a real run replaced: what the reader of documents refuses comes no further."""
    story, changes = changed
    document = json.loads(_told(story)[0])
    for path, value in changes:
        _put(document, path, value)
    try:
        measured = msgspec.json.decode(json.dumps(document), type=Measurements)
    except msgspec.MsgspecError:
        return
    _survives(replace(_story(story), measurements=measured))


@cache
def _facts(story: str) -> list[tuple[tuple[Any, ...], Any]]:
    """Where in the facts of its nodes which text stands."""
    nodes = json.loads(msgspec.json.encode(_story(story).nodes))
    return [(path, value) for path, value in _leaves(nodes) if isinstance(value, str) and path[-1] != "type"]


def _endless(story: str) -> st.SearchStrategy[tuple[str, list[tuple[tuple[Any, ...], Any]]]]:
    return st.tuples(st.just(story), st.lists(st.sampled_from(_facts(story)), min_size=1, max_size=6))


@settings(_FIXED, max_examples=40)
@given(chosen=st.sampled_from(STORIES).flatmap(_endless), text=st.sampled_from(["9" * 5000, "m" * 5000, "²", "٣"]))
def test_endless_texts_in_facts(chosen: tuple[str, list[tuple[tuple[Any, ...], Any]]], text: str) -> None:
    story, places = chosen
    nodes = json.loads(msgspec.json.encode(_story(story).nodes))
    for path, _ in places:
        _put(nodes, path, text)
    try:
        decoded = msgspec.json.decode(json.dumps(nodes), type=list[Node])
    except msgspec.MsgspecError:
        return
    named = [replace(node, name=f"{node.name}{n}") for n, node in enumerate(decoded)]
    _survives(replace(_story(story), nodes=named))


@settings(_FIXED, max_examples=80)
@given(
    pairs=st.lists(_of_type(PairTime, st.sampled_from(["a", "b", "c", "d", "e", ""])), max_size=20),
    level=st.sampled_from(["quick", "full"]),
    names=st.sampled_from([["a", "b"], list("abcde"), [*(f"n{number}" for number in range(20)), "a"]]),
)
def test_any_pairs_have_a_next_round(
    pairs: list[PairTime], level: Literal["quick", "full"], names: list[str]
) -> None:
    chosen = [name for pair in next_round(names, level, pairs) for name in pair]
    assert len(chosen) == len(set(chosen))
    assert set(chosen) <= set(names)
