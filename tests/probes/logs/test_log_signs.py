"""Signs of log lines: each is found in its examples by the real reading, however launchers prefix them."""

from __future__ import annotations

import pytest

from ncclcheck.probes.logs.match import words
from ncclcheck.probes.logs.signs import Sign, all_signs
from tests.helpers.logs import parsed

SIGNS = all_signs()


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.name)
def test_a_sign_is_found_in_its_examples(sign: Sign) -> None:
    assert sign.examples
    for example in sign.examples:
        for before in ("", "[rank3]:" if not example.startswith(("[", " ")) and "NCCL " not in example else ""):
            signs = {event.sign for event in parsed(f"first\n{before}{example}\nlast\n").events}
            assert sign.name in signs, f"{before}{example}"


def test_names_are_unique() -> None:
    names = [sign.name for sign in SIGNS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"failed to extend (?P<path>/dev/shm/\S+)", ("failed to extend ",)),
        (r"Bus error|Killed by (?:you|me)", ("Bus error", "Killed by ")),
        (r"errno: 98 - Address", (" - Address",)),
        (r"colou?r of things", ("r of things",)),
        (r"a+b{2}", ()),
        (r"(?:one|two)", ()),
        (r"(?i)any case", ()),
        (r"socket\.cc failed", ("socket.cc failed",)),
    ],
)
def test_words_are_in_every_line_that_a_pattern_is_in(pattern: str, expected: tuple[str, ...]) -> None:
    assert words(pattern) == expected


def test_no_sign_is_searched_for_in_every_line() -> None:
    """A pattern without a plain word costs a search in each line of each log: give it `words`."""
    assert [sign.name for sign in SIGNS if not sign.words and not words(sign.pattern)] == []
