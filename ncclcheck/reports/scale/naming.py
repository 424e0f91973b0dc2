"""What the rounds of groups show, as a culprit: how many nodes, which ones, or which two groups."""

from __future__ import annotations

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.culprit.machines import machines_differ, share_cores
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import Culprit, Where
from ncclcheck.reports.scale.search import GroupSearchAnswer, GroupTest, answered
from ncclcheck.reports.text.words.fold import fold_some

CODE = "BEN019"
# An order, no probability: several sets of nodes at the same size, a set tried twice, groups by their halves.
_SURE = {"size": 0.95, "members": 0.9, "joined": 0.85, "at once": 0.85}


@derived
def shown(cluster: Cluster) -> GroupSearchAnswer | None:
    """None where no groups were tried, or their nodes are one machine.

    Where nodes share cores a larger group is slower without any fault: there only what carries nothing counts.
    """
    done = cluster.measurements.groups
    if not done or not machines_differ(cluster):
        return None
    whole = max(done, key=lambda time: len(time.nodes)).nodes
    answer = answered(whole, done)
    slow = [test for test in answer.tests if test.bad and test.gb_s > 0]
    return None if slow and share_cores(cluster) else answer


def culprits(cluster: Cluster) -> list[Culprit]:
    """At most one; nobody where the search did not come to its end."""
    answer = shown(cluster)
    if answer is None or answer.kind not in _SURE:
        return []
    return [
        Culprit(
            kind="scale",
            names=names(answer),
            where=[Where(node=name) for part in answer.parts for name in part] if answer.kind == "members" else [],
            confidence=_SURE[answer.kind],
            explains=[CODE],
            why=what(answer),
        )
    ]


def names(answer: GroupSearchAnswer) -> list[str]:
    """As the document names them."""
    if answer.kind == "size":
        return [f"{answer.size} nodes or more"]
    return [fold_some(part) for part in answer.parts]


def what(answer: GroupSearchAnswer) -> str:
    """One sentence: what fails, and what does not."""
    if answer.kind == "size":
        tried, sound = answer.bad(answer.size), answer.sound(answer.size - 1)
        fewer = f"{_sets(len(sound))} of {answer.size - 1} {'is' if len(sound) == 1 else 'are'} sound"
        return (
            f"from {answer.size} nodes on, whichever they are: {_sets(len(tried))} of {answer.size} nodes "
            f"{_reached(tried, answer)}, {fewer}"
        )
    least = answer.smallest_bad
    assert least is not None
    if answer.kind == "members":
        members = fold_some(name for part in answer.parts for name in part)
        largest = max((len(test.group) for test in answer.tests if not test.bad), default=0)
        return (
            f"whenever {members} are all in it: these {len(answer.parts)} alone {_reached([least], answer)}, "
            f"and groups of up to {largest} nodes without one of them are healthy"
        )
    group, other = (fold_some(part) for part in answer.parts)
    if answer.kind == "joined":
        return f"{group} and {other} are healthy alone, and together in one collective {_reached([least], answer)}"
    return f"{group} and {other} are healthy alone, and the first {_reached([least], answer)} while both are busy"


def _sets(count: int) -> str:
    return f"{count} set{'s' * (count != 1)}"


def _reached(tests: list[GroupTest], answer: GroupSearchAnswer) -> str:
    best = max(test.gb_s for test in tests)
    if not best:
        return "got nothing through"
    return f"reached {best:.3g} of {answer.healthy:.3g} GB/s at best"
