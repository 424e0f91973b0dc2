"""One page says one thing of a variable: where two fixes give it different values, one of them keeps its command.

A rule sees facts alone and not what others say of them. The graver finding keeps its word; among equals the one
that is about the variable, then the one that is said of more nodes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ncclcheck.reports.judgement.findings import Finding, Remedy, Verdict
from ncclcheck.reports.judgement.rule import flagged

_ASSIGNED = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|\S+)")


class _Vote(Struct, frozen=True):
    """What one finding says of a variable.

    value: None where it is to be taken out. about_it: the finding names the variable as what is wrong.
    """

    code: str
    rank: int
    node: str | None
    value: str | None
    about_it: bool


def assignments(commands: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """The variables that these commands export, with the value, and that they unset."""
    for line in commands:
        typed = line.partition(" #")[0].strip()
        if typed.startswith("export "):
            yield from ((name, value.strip("'\"")) for name, value in _ASSIGNED.findall(typed))
        elif typed.startswith("unset "):
            yield from ((name, None) for name in typed.split()[1:])


def told_by(verdicts: Iterable[Verdict]) -> dict[str, str | None]:
    """What fixes say of each variable."""
    return {
        name: value
        for v in verdicts
        for f in v.findings
        for r in f.remedies
        for name, value in assignments(r.commands)
    }


def fitted(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts, with one value for each variable."""
    votes: dict[str, list[_Vote]] = defaultdict(list)
    for verdict in verdicts:
        for finding in verdict.findings:
            for remedy in finding.remedies:
                for name, value in assignments(remedy.commands):
                    node, about_it = finding.where.node, name in finding.what
                    votes[name].append(_Vote(verdict.code, finding.state.rank, node, value, about_it))
    chosen = {name: _chosen(cast) for name, cast in votes.items() if len({vote.value for vote in cast}) > 1}
    if not chosen:
        return [*verdicts]
    return [replace(v, findings=[_heard(finding, chosen) for finding in v.findings]) for v in verdicts]


def _chosen(cast: Sequence[_Vote]) -> _Vote:
    of_most = flagged("of_most")  # which a rule that knows the variable may call wrong
    agree = [vote for vote in cast if vote.code in of_most]
    others = [vote for vote in cast if vote.code not in of_most]
    if agree and agree[0].node and {vote.node for vote in others} <= {agree[0].node}:
        return agree[0]  # the others speak of the very node that differs: with what most have it is right
    cast = others or cast
    count = Counter(vote.value for vote in cast)
    return min(cast, key=lambda vote: (vote.rank, not vote.about_it, -count[vote.value]))


def _heard(finding: Finding, chosen: dict[str, _Vote]) -> Finding:
    if not any(name in chosen for remedy in finding.remedies for name, _ in assignments(remedy.commands)):
        return finding
    return replace(finding, remedies=[_kept(remedy, chosen) for remedy in finding.remedies])


def _kept(remedy: Remedy, chosen: dict[str, _Vote]) -> Remedy:
    """Without what is outvoted, and with the check that is followed in its place."""
    lost = [name for name, value in assignments(remedy.commands) if name in chosen and chosen[name].value != value]
    if not lost:
        return remedy
    lines = [kept for line in remedy.commands if (kept := _without(line, lost))]
    follow = " ".join(f"{name} is set by the fix of {chosen[name].code}." for name in dict.fromkeys(lost))
    return replace(remedy, text=f"{remedy.text} {follow}", commands=lines)


def _without(line: str, lost: Sequence[str]) -> str:
    """The line without these variables; empty where nothing is left."""
    typed, mark, comment = line.partition(" #")
    word = typed.strip().partition(" ")[0]
    if word == "export":
        kept = [f"{name}={value}" for name, value in _ASSIGNED.findall(typed) if name not in lost]
    elif word == "unset":
        kept = [name for name in typed.split()[1:] if name not in lost]
    else:
        return line
    return " ".join([word, *kept]) + mark + comment if kept else ""
