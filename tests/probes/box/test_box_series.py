"""What samples of a watcher become, and exceptions that only stand in the output."""

from __future__ import annotations

import json
from pathlib import Path

from ncclcheck.probes.box.read import printed, reading, series

T = 1_790_000_000.0


def _row(at: int, **more: object) -> dict[str, object]:
    row: dict[str, object] = {
        "t": T + at, "p": [[7, 100 * at, 1024, 0, "R", at % 2]], "free": {}, "node": [300 * at, 0, 20 * at],
        "net": {"eth0": [1000 * at, 3000 * at]}, "unsent": 5, "held": 500_000 * at,
        "gpus": [[90, 500_000, 1980 - 100 * at, 40, 1], []],
    }  # fmt: skip
    return row | more


def test_rates_between_samples() -> None:
    [_, second, _] = series.samples(series.thinned([_row(0), _row(1), _row(2)], 600))
    assert (second.rss, second.cores, second.others, second.swapped) == (2**20, 1.0, 2.0, 20.0)
    assert (second.received, second.sent, second.unsent, second.held) == (1000, 3000, 5, 0.5)
    assert (second.clocks, second.busy, second.watts) == ([1880, -1], [90, -1], [500, -1])


def test_many_rows_are_thinned_and_none_of_what_they_counted_is_lost() -> None:
    groups = series.thinned([_row(at) for at in range(100)], 10)
    samples = series.samples(groups)
    cores, apart, wrote = series.of_process(7, groups)
    assert len(samples) == len(cores) == len(apart) <= 10
    assert samples[-1].sent == 3000
    assert cores[-1] == 1.0
    assert 0.4 <= apart[0] <= 0.6
    assert wrote == [0] * len(samples)  # of a watcher that did not tell it


def test_what_a_process_wrote() -> None:
    rows = [_row(at, p=[[7, 0, 1, 0, "S", 0, 1000 + 500 * at]]) for at in range(3)]
    assert series.of_process(7, series.thinned([*rows, _row(3, p=[])], 600)).wrote == [0, 500, 500, 0]


def test_rows_of_an_older_watcher() -> None:
    [_, sample] = series.samples(
        [[{"t": T, "p": [[7, 0, 1, 0, "S"]], "free": {}}], [{"t": T + 1, "p": [], "free": {}}]]
    )
    assert (sample.sent, sample.clocks) == (0, [])


OUTPUT = """\
Epoch 1
Traceback (most recent call last):
  File "/w/train.py", line 8, in <module>
    main()
  File "/w/train.py", line 4, in main
    raise KeyError("lr")
KeyError: 'lr'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/w/train.py", line 9, in <module>
    main2()
    ^^^^^^^
mine.errors.BadConfig: no lr
"""


def test_the_last_exception_that_was_printed() -> None:
    error = printed.exception(OUTPUT)
    assert (error["type"], error["message"]) == ("BadConfig", "no lr")
    assert error["frames"] == ["/w/train.py:9 in <module>"]
    assert printed.exception("Traceback (most recent call last):\n") == {}


def test_it_is_read_only_where_the_process_could_not_say_it(tmp_path: Path) -> None:
    for injected in (False, True):
        folder = tmp_path / str(injected)
        folder.mkdir()
        (folder / "meta.json").write_text(json.dumps({"host": "h1", "command": "python -I x", "started": T}))
        (folder / "output.log").write_text(OUTPUT)
        process = {
            "t": T, "what": "process", "pid": 7, "parent": 1, "rank": -1, "world": 0, "helper": False,
            "root": True, "command": "python x",
        }  # fmt: skip
        gone = {"t": T + 5, "what": "gone", "pid": 7, "rank": -1, "status": 256, "rss_most": 1, "name": "python3"}
        rows = (process, gone | {"injected": injected})
        (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        [box] = reading.read(str(folder))
        assert [raised.type for raised in box.raised] == ([] if injected else ["BadConfig"])


def test_how_torchrun_says_that_a_worker_ended() -> None:
    line = (
        "E1124 16:09:03.457000 16330 torch/x.py:1002] failed (exitcode: {}) local_rank: 0 (pid: {}) of binary: p"
    )
    text = "\n".join([line.format(-9, 16894), line.format(3, 12)])
    assert printed.statuses(text) == {16894: 9, 12: 3 << 8}


GAVE_UP = """\
step 80
Timeout (0:00:12)!
Thread 0x00007f9ec6634000 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007f9ec6634b80 (most recent call first):
  File "/w/train.py", line 9 in clean
  File "/w/train.py", line 15 in main
[rank0]: Traceback (most recent call last):
"""


def test_where_a_program_was_that_its_own_timer_ended() -> None:
    assert printed.dumped(GAVE_UP) == ("0:00:12", ["/w/train.py:9 in clean", "/w/train.py:15 in main"])
    assert printed.dumped(OUTPUT) == ("", [])


def test_the_rank_that_its_own_timer_ended_is_the_one_that_said_nothing(tmp_path: Path) -> None:
    process = {"parent": 1, "world": 2, "helper": False, "root": False, "command": "python"}
    rows = [
        {"t": T, "what": "begin", "kmsg": True, "oom": []},
        *({"t": T, "what": "process", "pid": 10 + rank, "rank": rank} | process for rank in (0, 1)),
        *({"t": T + 9, "what": "gone", "pid": 10 + rank, "status": 1 << 8, "rss_most": 0} for rank in (0, 1)),
    ]
    (tmp_path / "said").mkdir()
    raised = {"t": T + 9, "what": "raised", "pid": 10, "rank": 0, "type": "RuntimeError", "frames": []}
    (tmp_path / "said/10.jsonl").write_text(json.dumps(raised))
    (tmp_path / "meta.json").write_text(json.dumps({"host": "h1", "command": "python", "started": T}))
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "output.log").write_text(GAVE_UP)
    [box] = reading.read(str(tmp_path))
    assert {process.rank: process.gave_up for process in box.processes} == {0: "", 1: "0:00:12"}
    assert [process.stack[:1] for process in box.processes] == [[], ["/w/train.py:9 in clean"]]
