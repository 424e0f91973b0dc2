"""The heading of a block of findings: where it is and what is wrong there, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.text.groups import FindingBlock, FoldedPlaces
from ncclcheck.reports.text.words.fold import fold_names

_SENTENCE = re.compile(r"(?<=[\w)\]'\"%])\. (?=[A-Z])")
_TOKEN = re.compile(r"([(\[\"']*)(.*?)([)\]\"'.,:;]*)", re.DOTALL)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MOST_VARIED = 3  # words that may differ between statements that share a heading; more and it says nothing
_NUMBERED = ("rank", "process", "pid", "GPU", "index")  # of several of them the sentence would need a plural
_MOST_FOLDED = 40  # characters of the folded names of one such word


@dataclass(frozen=True)
class Heading:
    """What stands beside the code, and the statements that stand below it."""

    text: str
    below: list[FoldedPlaces]


def heading(block: FindingBlock) -> Heading:
    """Of one statement its first sentence; of several what they share, with all of them below.

    Where they share too little, the first one and how many more there are. What passed is headed by its check.
    """
    if block.state is State.OK:
        return Heading(block.title, block.places)
    if len(block.codes) > 1:  # facts of one place that could not be read, whichever checks wanted them
        place = block.places[0]
        below = [FoldedPlaces("", place.what)] if place.what != block.title else []
        return Heading(str(FoldedPlaces(place.where, block.title)), below)
    single = [place for place in block.places if not place.more] or block.places[:1]
    more = sum(place.more for place in block.places if place not in single)
    shared = _shared(single) if len(single) > 1 else None
    if shared is not None:
        return Heading(shared + _and_more(more), block.places)
    first, rest = _sentences(single[0])
    below = [place for place in block.places if place is not single[0]]
    return Heading(
        first + _and_more(len(single) - 1 + more), [*([FoldedPlaces("", rest)] if rest else []), *below]
    )


def _and_more(count: int) -> str:
    return f" (and {count} more)" if count else ""


def _sentences(place: FoldedPlaces) -> tuple[str, str]:
    """The first sentence, and the others."""
    first, *rest = _SENTENCE.split(str(place), maxsplit=1)
    return first, rest[0] if rest else ""


def _shared(places: Sequence[FoldedPlaces]) -> str | None:
    """One statement that covers all of these; None where they share too little."""
    wheres = [place.where.split("  ") for place in places]
    whats = [place.what.split(" ") for place in places]
    if len({*map(len, wheres)}) > 1 or len({*map(len, whats)}) > 1:
        return None
    where = [fold_names(names) for names in zip(*wheres, strict=True)]
    columns = [[*dict.fromkeys(words)] for words in zip(*whats, strict=True)]
    varied = [at for at, words in enumerate(columns) if len(words) > 1]
    what = [_covering(words) for words in columns]
    named = any(columns[at - 1][0] in _NUMBERED for at in varied if at)
    if named or len(varied) > _MOST_VARIED or None in what or any(len(part) > _MOST_FOLDED for part in where):
        return None
    return str(FoldedPlaces("  ".join(where), " ".join(filter(None, what))))


def _covering(words: list[str]) -> str | None:
    """The word that stands for all of these: `7 to 9`, `mlx5_[0-3]`."""
    if len(words) == 1:
        return words[0]
    parts = [match.groups() for word in words if (match := _TOKEN.fullmatch(word))]
    if len(parts) < len(words) or len({(opened, closed) for opened, _, closed in parts}) > 1:
        return None
    (opened, _, closed), values = parts[0], [value for _, value, _ in parts]
    if all(_NUMBER.fullmatch(value) for value in values):
        ordered = sorted(values, key=float)
        return f"{opened}{ordered[0]} to {ordered[-1]}{closed}"
    folded = fold_names(values)
    return None if ", " in folded or len(folded) > _MOST_FOLDED else f"{opened}{folded}{closed}"
