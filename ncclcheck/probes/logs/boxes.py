"""What Open MPI says between two rules of dashes: a sentence over several lines, then a line for each detail."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ncclcheck.probes.logs.signs.failure_words import complains, ended_badly, explains

_RULE = re.compile(r"(?<!-)-{60,500}(?!-)(?:\[[^\]]{1,80}\])?\s{0,20}$")
_OF_MPI = re.compile(
    r"\b(?:Open ?MPI|MPI|OpenFabrics|InfiniBand|ORTE|PRTE|PMI[Xx]|mpirun|mpiexec|openib|MCA|UCX|PSM\d?|hcoll)\b"
    r"|openmpi-"
)
# How such a text begins, where its rules were cut off; and what its details are called in every one of them.
_BEGINS = re.compile(
    r"^\s{0,4}(?:ORTE|PRTE|PMI[Xx]|Open MPI|A process or daemon|A (?:process|daemon)|An (?:ORTE|PRTE) \w+)\b"
    r".{0,60}"
    r"\b(?:has lost|was unable|unable to|failed|cannot|could not|did not|died|aborted)\b"
)
_DETAIL = re.compile(
    r"(?m)^\s{0,8}(?:Local|Remote|HNP)? ?(?:host|process|daemon|node|[Hh]ostname|PID|adapter|device) ?(?:name)?:\s"
)
# What it adds of what is usually so.
_GUESSES = re.compile(
    r"(?<=\S) (?=This (?:is usually|usually is|may be|can be|could be)\b|Please (?:check|verify|make sure)\b)"
)
# Says that the job ends, or how to see more; why is in another box.
_OF_AN_END = re.compile(
    r"(?i)^(?:primary job|mpi_abort was invoked|mpirun (?:has exited|noticed|detected))|more process(?:es)? ha"
)
_KNOWN = re.compile(
    r"^\s{0,8}(?!WARNING|ERROR|NOTE)(?P<what>[A-Z\d][\w /()-]{2,40}):\s{1,20}(?P<value>\S.{0,120})"
)
# lines and characters of a box that are kept: chosen, Open MPI's have up to a dozen lines
_MOST_LINES, _MOST_OF_TEXT = 16, 300


@dataclass
class LogBox:
    """number: of the rule that began it."""

    number: int
    lines: list[str] = field(default_factory=list)

    def ends_with(self, line: str, number: int) -> bool:
        """Take a line; whether it was the last."""
        if is_rule(line) or number > self.number + _MOST_LINES:
            return True
        self.lines.append(line)
        return False

    @property
    def text(self) -> str:
        """Its first sentences and what it knows; empty where it is not MPI's, or tells of no failure."""
        whole = "\n".join(self.lines).strip()
        if not (_OF_MPI.search(whole) or _DETAIL.search(whole)) or _OF_AN_END.search(whole):
            return ""
        known = [
            f"{match['what']}: {match['value'].rstrip()}" for line in self.lines if (match := _KNOWN.match(line))
        ]
        sentence = " ".join(line for line in whole.partition("\n\n")[0].split("\n") if not _KNOWN.match(line))
        sentence = _GUESSES.split(" ".join(sentence.split()), maxsplit=1)[0].rstrip(" :")[:_MOST_OF_TEXT]
        known.sort(key=lambda detail: not detail.startswith("Remote"))  # who is at the other end says most
        bad = any(complains(line) or explains(line) or ended_badly(line) for line in (*self.lines, sentence))
        return "; ".join([sentence, *known]) if bad and sentence and not sentence.startswith("+ ") else ""


def begins(line: str) -> bool:
    """Whether a line is the first of such a text; the rule above it may have been cut off."""
    return _BEGINS.search(line) is not None


def is_rule(line: str) -> bool:
    """Whether a line is, or ends with, a rule of dashes."""
    return _RULE.search(line) is not None
