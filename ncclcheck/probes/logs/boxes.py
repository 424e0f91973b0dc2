"""What Open MPI says between two rules of dashes: a sentence over several lines, then a line for each detail."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ncclcheck.probes.logs.signs.failure_words import complains, ended_badly, explains

_RULE = re.compile(r"(?<!-)-{60,500}(?!-)(?:\[[^\]]{1,80}\])?\s{0,20}$")
_OF_MPI = re.compile(
    r"\b(?:Open ?MPI|MPI|OpenFabrics|InfiniBand|ORTE|PRTE|PMI[Xx]|mpirun|mpiexec|openib|UCX|PSM\d?|hcoll)\b"
    r"|openmpi-"
)
# Says that the job ends, or how to see more; why is in another box.
_OF_AN_END = re.compile(
    r"(?i)^(?:primary job|mpi_abort was invoked|mpirun (?:has exited|noticed|detected))|more process(?:es)? ha"
)
_KNOWN = re.compile(r"^\s{0,8}(?!WARNING|ERROR|NOTE)(?P<what>[A-Z][\w /()-]{2,40}):\s{1,20}(?P<value>\S.{0,120})")
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
        if not _OF_MPI.search(whole) or _OF_AN_END.search(whole):
            return ""
        known = [
            f"{match['what']}: {match['value'].rstrip()}" for line in self.lines if (match := _KNOWN.match(line))
        ]
        sentence = " ".join(line for line in whole.partition("\n\n")[0].split("\n") if not _KNOWN.match(line))
        sentence = " ".join(sentence.split())[:_MOST_OF_TEXT]
        bad = any(complains(line) or explains(line) or ended_badly(line) for line in (*self.lines, sentence))
        return "; ".join([sentence, *known]) if bad and sentence else ""


def is_rule(line: str) -> bool:
    """Whether a line is, or ends with, a rule of dashes."""
    return _RULE.search(line) is not None
