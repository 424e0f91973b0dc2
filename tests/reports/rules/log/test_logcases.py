"""The test logs: headers are checked, and mixing keeps every line and each rank's order."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.helpers.logcases import BAD, Case, cases, load

HEADER = "mode: A5\nabout: a firewall\nhost: node03\nrank: 1\nworld: 4\nnccl: 2.21.5\n"
LINES = """\
0| node02:410:410 [0] NCCL INFO Bootstrap : Using eth0:10.0.3.16<0>
1| node03:511:511 [0] NCCL INFO Bootstrap : Using eth0:10.0.3.17<0>
0| node02:410:498 [0] NCCL INFO Using network Socket
1| node03:511:599 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.3.16<40112> failed
1| node03:511:599 [0] NCCL INFO misc/socket.cc:565 -> 2
*| job 7711 on node03 ended
"""
ALL = cases()


def _case(tmp_path: Path, header: str = HEADER, lines: str = LINES) -> Case:
    path = tmp_path / "a5-firewall.case"
    path.write_text(f"{header}---\n{lines}")
    return load(path)


def test_a_case_is_read(tmp_path: Path) -> None:
    case = _case(tmp_path, HEADER + "also: A8, A13\n")
    assert (case.name, case.mode, case.also, case.host, case.rank) == (
        "a5-firewall",
        "A5",
        ("A8", "A13"),
        "node03",
        1,
    )
    assert case.clean().decode().splitlines() == [line.split("| ", 1)[1] for line in LINES.splitlines()]


@pytest.mark.parametrize(
    ("header", "lines", "named"),
    [
        (HEADER.replace("world: 4\n", ""), LINES, "world"),
        (HEADER + "hots: node03\n", LINES, "hots"),
        (HEADER + "a line\n", LINES, "'a line'"),
        (HEADER, "4| of the fifth of four\n", "of the fifth"),
        (HEADER, "no mark at all\n", "no mark"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, header: str, lines: str, named: str) -> None:
    with pytest.raises(ValueError, match=f"a5-firewall.case.*{named}"):
        _case(tmp_path, header, lines)


def test_a_file_without_a_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bare.case"
    path.write_text(LINES)
    with pytest.raises(ValueError, match=r"bare\.case"):
        load(path)


def test_the_other_ranks_suffer_after_the_cause(tmp_path: Path) -> None:
    case = _case(tmp_path)
    for seed in range(20):
        text = case.interleaved(seed).decode()
        assert text == case.interleaved(seed).decode()
        assert text.index("Connect to") < text.index("closed by remote peer node03")
    assert len({case.interleaved(seed) for seed in range(20)}) == 20


def test_a_sound_run_has_no_consequences(tmp_path: Path) -> None:
    case = _case(tmp_path, HEADER.replace("mode: A5", "mode: healthy"), LINES.replace("NCCL WARN", "NCCL INFO"))
    for seed in range(20):
        assert b"closed by remote peer" not in case.interleaved(seed)


@pytest.mark.parametrize("case", ALL, ids=[case.name for case in ALL])
def test_mixing_keeps_every_line_and_the_order_of_each_rank(case: Case) -> None:
    text = case.interleaved(1).decode()
    places: dict[int | None, int] = defaultdict(int)
    for rank, line in case.lines:
        places[rank] = text.find(line, places[rank])
        assert places[rank] >= 0, line


def test_sound_runs_stay_sound() -> None:
    for case in ALL:
        if case.mode in ("healthy", "harmless"):
            added = case.interleaved(2).decode()
            assert len(BAD.findall(added)) == len(BAD.findall(case.clean().decode())), case.name
