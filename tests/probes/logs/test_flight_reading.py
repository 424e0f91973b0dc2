"""Dumps of the Flight Recorder as they are read: torch's forms, damaged files, and files that mean harm."""

from __future__ import annotations

import os
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import Flight
from ncclcheck.probes.logs.flight import is_dump, read
from ncclcheck.probes.logs.flight.plain import RefusedDump, plain
from tests.helpers.flights import Job, as_json

VERSIONS = ["2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10"]
WORLD = {"0": ("default_pg", [0, 1]), "1": ("tensor", [0, 1])}


def job(version: str = "2.9") -> Job:
    made = Job(WORLD, version).call("0", place="train.py:41").call("1", "_all_gather_base", out=(2048,))
    return made.send("1", 0, 1).receive("1", 1, 0).call("0", state="scheduled", place="train.py:57")


def older(dump: dict[str, Any], version: str) -> dict[str, Any]:
    """What forms before 2.4 did not have yet."""
    if VERSIONS.index(version) < VERSIONS.index("2.4"):
        del dump["pg_status"]
        for entry in dump["entries"]:
            del entry["timeout_ms"], entry["is_p2p"], entry["op_id"]
    return dump


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5, "json"])
def test_every_form(version: str, protocol: int | str, tmp_path: Path) -> None:
    dump = older(job(version).dump(1), version)
    raw = pickle.dumps(dump, protocol) if isinstance(protocol, int) else as_json(dump)
    path = tmp_path / "comm_lib_trace_rank_1"
    path.write_bytes(raw)
    assert is_dump(raw[:4096], "whatever")
    flight = read([str(path)])
    (read_back,) = flight.dumps
    assert (read_back.rank, read_back.told_by) == (1, "file name and content")
    assert (read_back.version, read_back.entries, read_back.unfinished) == (version, 4, 1)
    assert [(c.op, c.seq, c.peer, c.state) for c in read_back.calls] == [
        ("all_reduce", 1, None, "completed"), ("_all_gather_base", 1, None, "completed"),
        ("recv", 1, 0, "completed"), ("all_reduce", 2, None, "scheduled"),
    ]  # fmt: skip
    assert [flight.groups[count.group].about for count in read_back.counts][:1] == ["default_pg"]
    assert (read_back.counts[0].entered, read_back.counts[0].ended) == (2, 1)
    assert (read_back.calls[1].elements_in, read_back.calls[1].elements_out) == (1024, 2048)
    if protocol != "json":
        assert read_back.calls[3].place == "train.py:57 step"


def test_a_status_alone_tells_how_far_a_rank_came(tmp_path: Path) -> None:
    """A dump of active calls only may hold no call at all."""
    made = Job({"0": ("default_pg", [0, 1]), "3": ("data", [0, 1])}).call("0").call("3").call("3")
    dump = made.dump(0)
    dump["entries"] = []
    (tmp_path / "rank_0").write_bytes(pickle.dumps(dump))
    flight = read([str(tmp_path / "rank_0")])
    counts = {flight.groups[count.group].about: (count.entered, count.ended) for count in flight.dumps[0].counts}
    assert counts == {"default_pg": (1, 1), "data": (2, 2)}


def test_a_batch_of_sends_ends_with_its_closing_entry(tmp_path: Path) -> None:
    made = Job(WORLD).send("1", 0, 1, state="scheduled").send("1", 0, 1, state="scheduled")
    sends = made.entries[0]
    closing = {**sends[0], "profiling_name": "nccl:coalesced", "input_sizes": [], "input_dtypes": []}
    made.entries[0] = [sends[0], {**sends[1], "p2p_seq_id": 1}, {**closing, "state": "completed", "record_id": 2}]
    made.entries[0][2]["time_discovered_completed_ns"] = 5
    (dump,) = made.flight(tmp_path, without=[1]).dumps
    assert [(call.op, call.state) for call in dump.calls] == [("send", "completed"), ("send", "completed")]


def test_collectives_that_were_coalesced_are_one_call(tmp_path: Path) -> None:
    made = Job(WORLD).call("0").call("0")
    first, second = made.entries[0]
    made.entries[0] = [first, {**second, "collective_seq_id": 1, "profiling_name": "nccl:ALLGATHER_coalesced"}]
    (dump,) = made.flight(tmp_path, without=[1]).dumps
    assert [(call.op, call.elements_in) for call in dump.calls] == [("ALLGATHER_coalesced", 2048)]


@pytest.mark.parametrize(
    ("name", "told_by"),
    [
        ("nccl_trace_rank_0", "file name and content"),
        ("node07_rank_0.pickle", "file name and content"),
        ("dump", "content"),
        ("rank_17", "content"),
    ],
)
def test_whose_dump_it_is(name: str, told_by: str, tmp_path: Path) -> None:
    made = Job({**WORLD, "2": ("expert", [0])}).call("0").call("2")
    path = tmp_path / name
    path.write_bytes(pickle.dumps(made.dump(0)))
    flight = read([str(path)])
    assert [(dump.rank, dump.told_by) for dump in flight.dumps] == [(0, told_by)]


def test_whose_dump_nobody_can_tell(tmp_path: Path) -> None:
    dump = Job(WORLD).call("0").dump(0)
    for name, why in (("dump", "no number ends its name"), ("rank_9", "no process group in it has that rank")):
        (tmp_path / name).write_bytes(pickle.dumps(dump))
        assert why in read([str(tmp_path / name)]).refused[0].why


def test_of_two_dumps_of_one_rank_the_newer_is_taken(tmp_path: Path) -> None:
    old, new = Job(WORLD).call("0"), Job(WORLD).call("0").call("0")
    for folder, made in (("a", new), ("b", old)):
        (tmp_path / folder).mkdir()
        made.write(tmp_path / folder, without=[1])
    paths = [str(tmp_path / folder / "nccl_trace_rank_0") for folder in "ab"]
    for order in (paths, paths[::-1]):
        flight = read(order)
        assert [dump.file for dump in flight.dumps] == [paths[0]]
        assert [refused.file for refused in flight.refused] == [paths[1]]


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/flight-was-run",)


class _Elsewhere(pickle.Pickler):
    def persistent_id(self, obj: object) -> object:
        return "key" if obj == "elsewhere" else None


def _persistent(folder: Path) -> bytes:
    with open(folder / "persistent", "w+b") as file:
        _Elsewhere(file, 2).dump({"entries": ["elsewhere"]})
        file.seek(0)
        return file.read()


def _deep(levels: int) -> bytes:
    return b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b"."


def _laughs() -> bytes:
    """A list of ten times the list below, thirty levels: 10^30 numbers in 400 bytes."""
    body = b"]q\x00" + b"K\x01" + b"a"
    for level in range(30):
        body += b"](" + b"h" + bytes([level]) + (b"h" + bytes([level])) * 9 + b"eq" + bytes([level + 1])
    return b"\x80\x02" + body + b"."


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_runs_something_is_refused_as_hostile(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"version": "2.9", "entries": [_Runs()]}, protocol))
    (refused,) = read([str(path)]).refused
    assert refused.hostile
    assert "code to be run" in refused.why
    assert not Path("/tmp/flight-was-run").exists()


@pytest.mark.parametrize(
    ("raw", "why", "hostile"),
    [
        (b"", "is empty", False),
        (b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.", "GLOBAL os.system", True),
        (b"\x80\x02Pkey\n.", "PERSID", True),
        (b"\x80\x02\x82\x01.", "EXT1", True),
        (b"\x80\x02]r\xff\xff\xff\x7f" + b"." * 40, "no instruction that a dump has", False),
        (b"\x80\x02\x96\xff\xff\xff\xff\xff\xff\xff\x00" + b"x" * 40, "no instruction that a dump has", False),
        (b"\x80\x02h\x07.", "damaged", False),
        (b"\x80\x02}(K\x01u.", "damaged", False),
        (b"\x80\x02X\xff\xff\xff\xffabc.", "cut short", False),
        (b"{" * 5000, "damaged", False),
        (b"{\"entries\":" + b"[" * 1_000_000, "damaged", False),
        (b"step 1 loss 2.0\n", "neither a pickle", False),
        (b"\x80\x02N.", "no dump", False),
        (b"{\"version\": \"3.0\", \"entries\": []}", "version '3.0'", False),
        (b"{\"version\": \"2.9\", \"entries\": [{\"profiling_name\": 3}]}", "entry 0", False),
        (b"{\"version\": \"2.9\", \"entries\": {}}", "Expected `array`", False),
        (b"{\"version\": \"2.9\", \"pg_config\": {\"0\": {\"ranks\": \"[a()]\"}}}", "no list of numbers", False),
    ],
)  # fmt: skip
def test_what_is_refused(raw: bytes, why: str, hostile: bool, tmp_path: Path) -> None:
    good = job().write(tmp_path, without=[0])
    bad = tmp_path / "nccl_trace_rank_0"
    bad.write_bytes(raw)
    flight = read([str(bad), *good])
    assert [dump.rank for dump in flight.dumps] == [1]
    assert why in flight.refused[0].why
    assert flight.refused[0].hostile is hostile


def test_persistent_ids_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedDump, match="BINPERSID"):
        plain(_persistent(tmp_path))


@pytest.mark.parametrize("raw", [_deep(1_000_000), _laughs()], ids=["a million lists deep", "billion laughs"])
def test_bombs_cost_little(raw: bytes, tmp_path: Path) -> None:
    began = time.process_time()
    (tmp_path / "rank_0").write_bytes(raw)
    assert "no dump" in read([str(tmp_path / "rank_0")]).refused[0].why
    assert time.process_time() - began < 5  # seconds of CPU: what else the machine does is not counted


def test_one_list_in_many_places_is_counted_each_time(tmp_path: Path) -> None:
    made = job()
    entry = made.entries[0][0]
    entry["input_sizes"] = [[1] * 64] * 4096
    made.entries[0] = [entry] * 1000
    flight = made.flight(tmp_path, without=[1])
    assert "8000000 sizes" in flight.refused[0].why


def test_a_dump_cut_at_any_place_is_refused(tmp_path: Path) -> None:
    for raw in (pickle.dumps(job().dump(0), 2), pickle.dumps(job().dump(0), 4), as_json(job().dump(0))):
        for end in range(0, len(raw), 97):
            path = tmp_path / "nccl_trace_rank_0"
            path.write_bytes(raw[:end])
            flight = read([str(path)])
            assert not flight.dumps
            assert not flight.refused[0].hostile, end


_VALID = pickle.dumps(job().dump(0), 2)


def _read_bytes(raw: bytes) -> Flight:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rank_0")
        path.write_bytes(raw)
        return read([str(path)])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes(raw: bytes) -> None:
    for head in (b"", b"\x80\x02", b"{"):
        flight = _read_bytes(head + raw)
        assert len(flight.dumps) + len(flight.refused) == 1


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(_VALID) - 1), st.binary(min_size=1, max_size=4))
@example(182, b"\xed\xa0\x80")  # half of a character where a name or a state stands
@example(368, b"\xed\xa0\x80")
@example(170, b"\x1c")  # a blank for str.split, and none for int()
def test_any_damage(at: int, new: bytes) -> None:
    flight = _read_bytes(_VALID[:at] + new + _VALID[at + len(new) :])
    assert len(flight.dumps) + len(flight.refused) == 1


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(job().entries[0][0])), _VALUES)
def test_any_value_in_any_field(field: str, value: Any) -> None:
    dump = job().dump(0)
    dump["entries"][0][field] = value
    flight = _read_bytes(pickle.dumps(dump))
    assert len(flight.dumps) + len(flight.refused) == 1


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["version", "pg_config", "pg_status", "entries", "rank"]), _VALUES, st.booleans())
def test_any_value_in_any_part(part: str, value: Any, inside: bool) -> None:
    dump = job().dump(0)
    dump[part] = {"0": {"ranks": value, "last_enqueued_collective": value}} if inside else value
    flight = _read_bytes(pickle.dumps(dump))
    assert len(flight.dumps) + len(flight.refused) == 1


@pytest.mark.parametrize("begin", ["[", '{"a": ', '[{"b":', "{"])
def test_what_is_nested_without_an_end_is_a_broken_dump_and_no_log(begin: str, tmp_path: Path) -> None:
    (path := tmp_path / "flight.json").write_text(begin * 1_000_000)
    assert is_dump(path.read_bytes()[:4096], str(path))
    assert [refused.file for refused in read([str(path)]).refused] == [str(path)]
    assert not is_dump(b'{"level": "info", "fields": {"a": [1, {"b": {"c": {}}}]}}\n', "train.log")
