"""The copy of the output says whose line it was, and the output is the same to the byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from ncclcheck.probes.box.read import reading
from ncclcheck.watch import lines
from ncclcheck.watch.lines import RankLines
from tests.conftest import environment
from tests.watch.test_wrapping import WATCH

_RANK = """
import os, sys
for n in range(200):
    print(f"step {n} of", os.environ["RANK"])
    print("the same of all", flush=n % 7 == 0)
    print("half a ", end="", flush=True), print("line", n, os.environ["RANK"])
    print("oops", n, os.environ["RANK"], file=sys.stderr)
sys.exit(int(os.environ["RANK"]))
"""
_ALL = 'for r in 0 1 2; do RANK=$r "$0" "$1" & done; wait; exit 3'
_SHOWN = """
import sys
for one in (sys.stdout, sys.stderr, sys.__stdout__):
    buffer = one.buffer
    print(one, one.mode, one.errors, one.line_buffering, one.write_through, one.fileno())
    print(type(one).__name__, type(buffer).__name__, buffer, one.seekable(), buffer.__sizeof__())
    one.reconfigure(line_buffering=True)
print("x" * 100_000, "\\r\\n no end", end="")
sys.stderr.write("\\udcff")
"""


def _printed(box: Path) -> list[tuple[int, str]]:
    """pid and text of each line of the copy."""
    [node] = box.iterdir()
    text = (node / "output.log").read_text()
    rows = []
    for row in map(json.loads, (node / "output.jsonl").read_text().splitlines()):
        piece = text[row["at"] : row["at"] + row["n"]].splitlines()
        runs = row.get("p", [(0, len(piece))])
        rows += list(zip([pid for pid, n in runs for _ in range(n)], piece, strict=True))
    return rows


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_each_line_of_three_ranks_has_its_pid(tmp_path: Path, unbuffered: str) -> None:
    (tmp_path / "rank.py").write_text(_RANK)
    argv = [*WATCH, "--box", "box", "--", "sh", "-c", _ALL, sys.executable, "rank.py"]
    with (tmp_path / "both").open("wb") as file:
        env = environment(PYTHONUNBUFFERED=unbuffered)
        done = subprocess.run(argv, cwd=tmp_path, env=env, stdout=file, stderr=file, timeout=100, check=False)
    assert done.returncode == 3
    own = [(tmp_path / "both").read_text().partition("ncclcheck watch:")[0].splitlines()]
    printed = _printed(tmp_path / "box")
    assert [[line for _, line in printed]] == own
    pids = {pid for pid, _ in printed} - {0}
    assert len(pids) == 3
    # Lines that two ranks have cut into each other are nobody's; all others say their rank, and it is the same.
    whole = [(pid, line) for pid, line in printed if line.startswith(("step", "oops")) and line.count(" ") < 4]
    ranks = {line.rpartition(" ")[2]: pid for pid, line in whole if pid}
    assert sorted(ranks) == ["0", "1", "2"]
    known = [(pid, line) for pid, line in whole if pid]
    assert [(pid, line) for pid, line in known if ranks[line.rpartition(" ")[2]] != pid] == []
    assert len(known) > 0.7 * len(whole)
    [box] = reading.read(str(tmp_path / "box"))
    assert [process.rank for process in box.processes if process.printed] != []


@pytest.mark.parametrize("env", [{}, {"PYTHONUNBUFFERED": "1"}, {"PYTHONIOENCODING": "latin-1:replace"}])
def test_the_streams_of_a_rank_are_as_they_were(tmp_path: Path, env: dict[str, str]) -> None:
    runs = [
        subprocess.run(
            [*before, sys.executable, "-c", _SHOWN], cwd=tmp_path, env={**environment(RANK="0"), **env},
            capture_output=True, timeout=60, check=False,
        )
        for before in ([], [*WATCH, "--"])
    ]  # fmt: skip
    assert (runs[0].returncode, runs[0].stdout, runs[0].stderr) == (
        runs[1].returncode,
        runs[1].stdout,
        runs[1].stderr,
    )


@pytest.mark.parametrize(
    "script",
    [
        "import os; os.closerange(3, 1024); f = open('x', 'w'); os.dup2(f.fileno(), 400); print('on'); f.flush()",
        "import os; print('on', flush=True); os.dup2(os.open('y', os.O_WRONLY | os.O_CREAT), 1); print('there')",
        "import os; pid = os.fork(); pid and os.wait(); print('on', flush=True)",
        "import sys; sys.stdout = sys.stderr; print('on'); sys.__stdout__.write('late'); sys.__stdout__.close()",
        "import atexit; atexit.register(print, 'last'); print('on')",
        "class Late:\n def __del__(self): print('gone')\nlate = Late()",
        "import os, sys; out = sys.stdout.detach(); out.write(b'on'); out.flush(); os._exit(0)",
    ],
)
def test_what_a_rank_does_with_its_streams_is_done(tmp_path: Path, script: str) -> None:
    for name, before in (("bare", []), ("watched", [*WATCH, "--"])):
        (tmp_path / name).mkdir()
        done = subprocess.run(
            [*before, sys.executable, "-c", script], cwd=tmp_path / name, env=environment(RANK="0"),
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        (tmp_path / name / "told").write_bytes(b"%d\n" % done.returncode + done.stdout + b"\n" + done.stderr)
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.is_file()}
        for name in ("bare", "watched")
    ]
    assert files[0] == files[1]


def test_an_exception_of_the_users_handler_is_not_lost(tmp_path: Path) -> None:
    """A signal comes while a line is told: its handler's exception ends the print."""
    script = (
        "import os, sys\n"
        "def late(*_): raise TimeoutError('too late')\n"
        "os.write, usual = (lambda *_: late()), os.write\n"
        "try: print('on', flush=True)\n"
        "except TimeoutError as error: usual(1, str(error).encode())\n"
        "os.write = usual\n"
    )
    argv = [*WATCH, "--", sys.executable, "-c", script]
    done = subprocess.run(
        argv,
        cwd=tmp_path,
        env=environment(RANK="0", PYTHONUNBUFFERED=""),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == b"too lateon\n"


def test_what_was_told_and_never_came_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_MOST", 2)
    heard = RankLines(str(tmp_path))
    tell = os.open(tmp_path / "lines", os.O_WRONLY)
    try:
        for pid, text in ((7, b"into a file"), (8, b"a"), (8, b"b"), (7, b"a")):
            os.write(tell, lines._HEAD.pack(pid, 1) + zlib.crc32(text).to_bytes(4, sys.byteorder))
        assert heard.of(b"into a file\na\n\nb\n") == [(0, 1), (7, 2), (8, 1)]
        os.write(tell, b"nonsense of somebody else")
        assert heard.of(b"a\n") == []
    finally:
        os.close(tell)


def test_a_file_system_without_named_pipes(tmp_path: Path) -> None:
    assert RankLines(str(tmp_path / "none")).of(b"on\n") == []
