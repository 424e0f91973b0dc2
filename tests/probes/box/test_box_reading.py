"""A box is read as what it holds, from anywhere, whatever somebody has put into it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.commands.steps import box_report
from ncclcheck.probes.box.read import printed, reading
from ncclcheck.run.plan.options import Options

T = 1_790_000_000.0
META = {"host": "h1", "command": "torchrun train.py", "started": T}
PROCESS = {
    "t": T + 1, "what": "process", "pid": 7, "parent": 6, "rank": 1, "local_rank": 1, "world": 2, "helper": False,
    "root": False, "name": "python", "command": "python train.py",
}  # fmt: skip


def _box(folder: Path, *events: dict[str, Any], wrapper: tuple[dict[str, Any], ...] = (), **meta: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({**META, **meta}))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "wrapper.jsonl").write_text("".join(json.dumps(event) + "\n" for event in wrapper))
    return folder


def test_how_a_process_ended(tmp_path: Path) -> None:
    gone = {
        "t": T + 9,
        "what": "gone",
        "pid": 7,
        "rank": 1,
        "status": 9,
        "rss": 5,
        "rss_most": 10,
        "name": "python",
    }
    end = {"t": T + 10, "what": "end", "status": 1}
    folder = _box(
        tmp_path / "box/h1", {"t": T, "what": "begin", "kmsg": False, "oom": []}, PROCESS, gone, wrapper=(end,)
    )
    (folder / "fault").mkdir()
    (folder / "fault/7.txt").write_text(
        'Thread 0x1 (most recent call first):\n  File "other.py", line 1 in wait\n\n'
        "Current thread 0x2 (most recent call first):\n"
        '  File "train.py", line 8 in step\n  File "train.py", line 9 in main\n'
        'Thread 0x3 (most recent call first):\n  File "/lib/python3.11/queue.py", line 1 in get\n'
        '  File "save.py", line 4 in write\n\n'
        "Current thread 0x2 (most recent call first):\n"
        '  File "train.py", line 8 in step\n  File "train.py", line 9 in main\n'
    )
    [box] = reading.read(str(tmp_path / "box"))
    [process] = box.processes
    assert (process.status, process.gone, process.rss_most) == (9, T + 9, 10)
    assert process.stack == ["train.py:8 in step", "train.py:9 in main"]
    assert process.threads == ["save.py:4 in write"]
    assert (box.status, box.ended, box.world) == (1, T + 10, 2)
    assert "the kernel's log may not be read" in box.lost


@pytest.mark.parametrize(
    ("ends", "crash", "at"),
    [
        (T + 103, "", "train.py:8 in step"),  # as it is ended it says nothing of the stall
        (T + 400, "", "train.py:30 in save"),  # it went on, and failed long after
        (T + 103, "Fatal Python error: Segmentation fault\n\n", "train.py:30 in save"),
    ],
)
def test_where_it_was_at_the_stall_in_which_it_ended(tmp_path: Path, ends: float, crash: str, at: str) -> None:
    head = "Current thread 0x2 (most recent call first):\n"
    then = f'{head}  File "train.py", line 8 in step\n'
    stall = {
        "t": T + 90, "what": "stall", "silent": 60.0, "limit": 60.0, "states": [[7, 1, "S", "futex_do_wait"]],
        "stacks": [[7, len(then)]],
    }  # fmt: skip
    gone = {"t": ends, "what": "gone", "pid": 7, "rank": 1, "status": 2, "rss_most": 10, "name": "python"}
    folder = _box(tmp_path / "h1", PROCESS, stall, {"t": T + 100, "what": "resumed"}, gone)
    (folder / "fault").mkdir()
    (folder / "fault/7.txt").write_text(f'{then}{crash}{head}  File "train.py", line 30 in save\n')
    sample = {"t": T + 101, "p": [[7, 50, 100, 0, "R"]], "free": {}}
    (folder / "samples.0.jsonl").write_text(json.dumps(sample) + "\n")
    [process] = reading.read(str(tmp_path / "h1"))[0].processes
    assert process.stack == [at]
    assert process.state == ("R" if ends > T + 200 else "S")


_ABORTED = """Fatal Python error: Aborted

Thread 0x2 (most recent call first):
  File "/lib/python3.11/threading.py", line 331 in wait

Thread 0x1 (most recent call first):
  File "/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/work/train.py", line 7 in log_metrics

Extension modules: numpy, torch
"""
_WORDS = """step 1
terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at /pytorch/pair.cc:456] op.preamble.length <= op.nbytes. 33336 vs 4. Received data size
"""


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({}, "gloo::EnforceNotMet: op.preamble.length <= op.nbytes. 33336 vs 4. Received data size"),
        ({"status": 6}, "gloo::EnforceNotMet: op.preamble.length <= op.nbytes. 33336 vs 4. Received data size"),
    ],
)
def test_an_abort_in_a_thread_that_is_none_of_pythons(tmp_path: Path, others: dict[str, int], words: str) -> None:
    gone = {"t": T + 9, "what": "gone", "pid": 7, "rank": 1, "status": 6, "rss_most": 10, "name": "python"}
    other: list[dict[str, Any]] = [
        {**PROCESS, "pid": 8, "rank": 0},
        {**gone, "pid": 8, "rank": 0, "status": 256, **others},
    ]
    folder = _box(tmp_path / "h1", PROCESS, gone, *other)
    (folder / "fault").mkdir()
    (folder / "fault/7.txt").write_text(_ABORTED)
    (folder / "output.log").write_text(_WORDS)
    [box] = reading.read(str(tmp_path / "h1"))
    process = next(process for process in box.processes if process.pid == 7)
    assert process.stack[-1] == "/work/train.py:7 in log_metrics"
    assert process.aborted == words


@pytest.mark.parametrize(
    "line",
    [
        "python: csrc/ops.cpp:12: void f(int): Assertion `n > 0' failed.",
        "free(): invalid pointer",
        "double free or corruption (!prev)",
        "F0000 00:00:00.000000 1 reader.cc:9] Check failed: a == b (1 vs. 2)",
        "*** stack smashing detected ***: terminated",
    ],
)
def test_what_libraries_print_as_they_abort(line: str) -> None:
    assert printed.abort(f"step 1\n{line}\n[rank0]: RuntimeError\n") == [line]


def test_only_the_last_attempt_counts(tmp_path: Path) -> None:
    first = {"t": T + 10, "what": "end", "status": 1}
    _box(tmp_path / "box/h1", wrapper=(first,))
    _box(tmp_path / "box/h1.2", started=T + 100, wrapper=({"t": T + 150, "what": "end", "status": 1},))
    _box(tmp_path / "box/h2", {"t": T + 140, "what": "begin", "kmsg": True, "oom": []}, host="h2", started=T + 99)
    assert [Path(box.folder).name for box in reading.read(str(tmp_path / "box"))] == ["h1.2", "h2"]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"{" * 100_000,
        b'{"what": "process"}',
        b'{"what": "gone", "t": "x", "pid": []}',
        b'{"what": "gone", "t": 1e308, "pid": 7, "status": 0, "rss_most": 1}',
        b'{"what": "gone", "t": 1795358670, "pid": 7, "status": 9999999999999999999, "rss_most": 1}',
        b'{"what": "kernel", "t": 1795358670, "text": 5}',
        b'{"what": "stall", "t": 1795358670, "silent": 1, "limit": 1, "states": [[7]]}',
        b'{"what": "network", "t": 1795358670, "name": "eth0", "trouble": ["x"]}',
    ],
)
def test_damaged_lines_are_no_defect(tmp_path: Path, line: bytes) -> None:
    folder = _box(tmp_path / "box/h1", {**PROCESS})
    with (folder / "events.jsonl").open("ab") as file:
        file.write(line)
    [box] = reading.read(str(tmp_path / "box"))
    assert [process.pid for process in box.processes] == [7]


@pytest.mark.parametrize(
    "line",
    [b'{"t": "x"}', b'{"t": 1, "p": [[7]], "free": {}}', b'{"t": 1, "p": [], "free": {}, "node": [1]}', b"[]"],
)
def test_damaged_samples_are_left_out(tmp_path: Path, line: bytes) -> None:
    folder = _box(tmp_path / "box/h1", PROCESS)
    good = {
        "t": T + 3,
        "p": [[7, 1, 2048, 0, "S", 0]],
        "free": {"/data": 5},
        "node": [1, 0, 0],
        "net": {"eth0": [1, 2]},
    }
    (folder / "samples.0.jsonl").write_bytes(line + b"\n" + json.dumps(good).encode())
    [box] = reading.read(str(tmp_path / "box"))
    assert [sample.t for sample in box.samples] == [T + 3]
    assert box.processes[0].rss_most == 2**21


def test_nothing_is_followed_or_waited_for(tmp_path: Path) -> None:
    folder = _box(tmp_path / "box/h1", PROCESS)
    (tmp_path / "secret").write_text('{"what": "raised"}')
    (folder / "said").mkdir()
    (folder / "said/7.jsonl").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "said/8.jsonl")
    os.mkfifo(folder / "fr_0")
    (folder / "output.log").symlink_to(tmp_path / "secret")
    (tmp_path / "box/h2").symlink_to(folder)
    [box] = reading.read(str(tmp_path / "box"))
    assert box.raised == []
    assert reading.logs_of(str(folder)) == []


def test_a_folder_that_is_no_box(tmp_path: Path) -> None:
    assert not reading.is_box(str(tmp_path))
    with pytest.raises(reading.NoBox):
        reading.read(str(tmp_path))


def test_a_box_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    _box(tmp_path / "box/h1", {"t": T, "what": "begin", "kmsg": False, "oom": []}, PROCESS)
    (tmp_path / "same").symlink_to("box")
    again = [str(tmp_path / name) for name in ("box", "box/h1", "same")]
    assert len(box_report.document(again, Options(command="report")).measurements.boxes) == 1
