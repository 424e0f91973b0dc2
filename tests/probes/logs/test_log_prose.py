"""Prose between the lines that matter: it is passed over fast, and nothing in it is missed."""

from __future__ import annotations

import random
import string

import pytest

from tests.helpers.logs import parsed


@pytest.mark.parametrize("place", [0, 1, 1023, 1024, 1025, 20_000, 29_999])
@pytest.mark.parametrize("mark", [False, True])
def test_a_failure_in_prose_is_found_at_its_line(place: int, mark: bool) -> None:
    """Prose that never repeats is searched as a whole, unless NCCL's lines are among it."""
    chance = random.Random(7)
    lines = ["".join(chance.choices(string.ascii_lowercase + " ", k=60)) for _ in range(30_000)]
    if mark:
        lines[25_000] = "a:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.3.17<0>"
    lines[place] = "ValueError: shape '[4, 8]' is invalid"
    logs = parsed("\n".join(lines))
    assert [(event.line, event.text) for event in logs.events if event.sign == "python-error"] == [
        (place + 1, lines[place])
    ]
    assert (logs.files[0].lines, logs.files[0].records) == (30_000, int(mark))
