"""Nodes of one box seen from each other: who still writes, who has ended, what their clocks say."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from ncclcheck.probes.box.read import folders, reading

T = 1_790_000_000.0


def _node(box: Path, host: str, *, status: int | None = None, events: tuple[str, ...] = ()) -> str:
    folder = box / host
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"host": host, "command": "x", "started": T}))
    (folder / "events.jsonl").write_text("".join(json.dumps({"t": T, "what": what}) + "\n" for what in events))
    end = "" if status is None else json.dumps({"t": T, "what": "end", "status": status}) + "\n"
    (folder / "wrapper.jsonl").write_text(end)
    return str(folder)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed soon."""
    monkeypatch.setattr(folders, "SILENT_S", 0.6)
    monkeypatch.setattr(folders, "_POLL_S", 0.05)


@pytest.mark.usefixtures("quick")
def test_one_that_has_ended_one_that_is_silent_and_one_of_an_earlier_attempt(tmp_path: Path) -> None:
    old = _node(tmp_path, "h4")
    for name in ("events.jsonl", "wrapper.jsonl"):
        os.utime(Path(old, name), (1, 1))
    own = _node(tmp_path, "h1", status=1)
    _node(tmp_path, "h2", status=1)
    _node(tmp_path, "h3")
    ends, silent = folders.wait_for_ends(own, 5)
    assert [(end.host, end.status) for end in ends] == [("h2", 1), ("h3", None)]
    assert [node.host for node in silent] == ["h3"]


@pytest.mark.usefixtures("quick")
def test_one_that_writes_is_not_silent(tmp_path: Path) -> None:
    own, other = _node(tmp_path, "h1", status=1), _node(tmp_path, "h2")
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.05):
            with Path(other, "samples.0.jsonl").open("a") as file:
                file.write("{}\n")

    thread = threading.Thread(target=write)
    thread.start()
    ends, silent = folders.wait_for_ends(own, 1.5)
    over.set()
    thread.join()
    assert (len(ends), silent) == (1, [])


@pytest.mark.usefixtures("quick")
def test_the_others_stalls_are_waited_for(tmp_path: Path) -> None:
    own, other = _node(tmp_path, "h1"), _node(tmp_path, "h2")
    begun = time.monotonic()
    folders.wait_for_stalls(own, 0.3)
    assert time.monotonic() - begun >= 0.3
    Path(other, "events.jsonl").write_text(json.dumps({"t": T, "what": "stall"}) + "\n")
    begun = time.monotonic()
    folders.wait_for_stalls(own, 30)
    assert time.monotonic() - begun < 5


def test_a_link_in_a_shared_folder_is_not_followed(tmp_path: Path) -> None:
    own = _node(tmp_path / "box", "h1", status=1)
    other = _node(tmp_path / "elsewhere", "h2")
    (tmp_path / "box" / "h2").symlink_to(other)
    assert folders.others(own) == []


def test_the_file_systems_clock(tmp_path: Path) -> None:
    offset = folders.clock_of(str(tmp_path))
    assert offset is not None
    assert abs(offset) < 1
    assert folders.clock_of(str(tmp_path / "nowhere")) is None


@pytest.mark.parametrize("by", ["file system", "pre-flight"])
def test_clocks_of_nodes_are_brought_together(tmp_path: Path, by: str) -> None:
    """h2's clock is 8 s ahead: what it wrote at T + 18 was at T + 10."""
    for host, ahead in (("h1", 0.0), ("h2", 8.0)):
        folder = Path(_node(tmp_path, host))
        meta = {"host": host, "command": "x", "started": T + ahead}
        meta |= {"clocks": {"h1": 0.0, "h2": 8.0}} if by == "pre-flight" else {}
        (folder / "meta.json").write_text(json.dumps(meta))
        rows = [{"t": T + ahead, "what": "begin", "kmsg": True, "oom": ["x"]}]
        rows += [{"t": T + ahead, "what": "clock", "offset": -ahead}] if by == "file system" else []
        rows += [{"t": T + 10 + ahead, "what": "kernel", "text": "link down"}]
        (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "said").mkdir()
        event = {"t": T + 10 + ahead, "what": "raised", "pid": 7, "type": "E", "frames": [], "rank": 0}
        (folder / "said/7.jsonl").write_text(json.dumps(event) + "\n")
    boxes = reading.read(str(tmp_path))
    assert [box.started for box in boxes] == [T, T]
    assert [box.kernel[0].t for box in boxes] == [T + 10, T + 10]
    assert [box.raised[0].t for box in boxes] == [T + 10, T + 10]
