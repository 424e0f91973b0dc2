"""The channel: records survive being cut into short lines, and what is not ours becomes noise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ncclcheck.base import wire
from ncclcheck.probes.facts import Node


def _feed(assembler: wire.Assembler, lines: list[bytes]) -> list[wire.FromAgent]:
    return [record for line in lines if (record := assembler.feed(line)) is not None]


@given(st.text(max_size=5000), st.integers(0, 10_000), st.integers(1, 10**6))
def test_a_record_survives(name: str, node: int, seq: int) -> None:
    record = wire.Facts(node=Node(name=name.encode(errors="replace").decode()))
    lines = list(wire.lines(record, node, seq))
    assert all(len(line) <= 900 and line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert _feed(wire.Assembler(), lines) == [record]


def test_of_two_records_at_once_the_later_one_survives() -> None:
    """A channel is in order: whoever begins ever new records keeps one of them at a time."""
    first, second = wire.StepNotice(text="a" * 3000), wire.StepNotice(text="b" * 3000)
    a, b = list(wire.lines(first, 0, 1)), list(wire.lines(second, 0, 2))
    mixed = [line for pair in zip(a, b, strict=True) for line in pair]
    assert _feed(wire.Assembler(), mixed) == [second]


def test_a_lost_piece_loses_only_its_record() -> None:
    broken = list(wire.lines(wire.StepNotice(text="x" * 3000), 0, 1))
    whole = list(wire.lines(wire.StepNotice(text="y"), 0, 2))
    assembler = wire.Assembler()
    assert _feed(assembler, [broken[0], *broken[2:], *whole]) == [wire.StepNotice(text="y")]
    assert assembler.noise


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_are_noise(lines: list[bytes]) -> None:
    assembler = wire.Assembler()
    for line in lines:
        assembler.feed(line)
    assert _feed(assembler, list(wire.lines(wire.Bye(), 0, 10**9))) == [wire.Bye()]
