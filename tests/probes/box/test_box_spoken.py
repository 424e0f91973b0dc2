"""What each process printed last is read out of the one copy of the output, however damaged its index is."""

from __future__ import annotations

import json
from pathlib import Path

from ncclcheck.probes.box.read.spoken import Last


def _output(folder: Path, *pieces: tuple[int, str, list[tuple[int, int]]]) -> Path:
    """Files as the wrapper writes them. pieces: which file, its words, and whose lines."""
    texts: dict[int, str] = {}
    rows = []
    for turn, words, runs in pieces:
        before = texts.get(turn, "")
        rows.append(
            {"t": 1.0, "s": "both", "f": turn, "at": len(before.encode()), "n": len(words.encode()), "p": runs}
        )
        texts[turn] = before + words
    for turn, text in texts.items():
        (folder / ("output.log" if turn < 0 else f"output.{turn % 2}.log")).write_text(text)
    (folder / "output.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_last_lines_of_each(tmp_path: Path) -> None:
    folder = _output(
        tmp_path,
        (-1, "step 1\nstep 2\n", [(7, 1), (8, 1)]),
        (-1, "step 3\r\n10 %\r20 %\nüber\nfrom a shell\n", [(7, 3), (0, 1)]),
        (-1, "[rank4]: Traceback\n[default4]:the rest\nh1:9:12 [0] NCCL WARN lost\n", []),
    )
    last = Last(str(folder))
    assert last.of(7, 0) == ["step 3", "20 %", "über"]
    assert last.of(8, 1) == ["step 2"]
    assert last.of(50, 4) == ["[rank4]: Traceback", "[default4]:the rest"]
    assert last.of(9, -1) == ["h1:9:12 [0] NCCL WARN lost"]
    assert last.of(1, 1) == []


def test_of_files_in_turn_the_last_two_are_read(tmp_path: Path) -> None:
    turns = [(turn, f"step {turn}\n", [(7, 1)]) for turn in range(-1, 5)]
    assert Last(str(_output(tmp_path, *turns))).of(7, 0) == ["step -1", "step 3", "step 4"]


def test_a_damaged_index_is_no_defect(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("on\n" * 3)
    rows = [
        b"[]", b"{", b"\xff", b'{"t":1,"f":-9,"at":0,"n":1}', b'{"t":1,"f":-1,"at":-5,"n":1}',
        b'{"t":1,"f":-1,"at":3,"n":999999,"p":[[7,99999999999]]}', b'{"t":1,"f":77,"at":0,"n":3,"p":[[7,1]]}',
        b'{"t":1,"f":-1,"at":0,"n":3,"p":[[7,-1],[8,1]]}',
    ]  # fmt: skip
    (tmp_path / "output.jsonl").write_bytes(b"\n".join(rows))
    last = Last(str(tmp_path))
    assert last.of(8, 0) in ([], ["on"])
    (tmp_path / "output.log").unlink()
    (tmp_path / "output.log").symlink_to("/etc/hostname")
    assert Last(str(tmp_path)).of(7, 0) == []
