"""BEN019: faults that no pair of nodes shows, from groups of nodes that grow."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.culprit.machines import between_real_machines
from ncclcheck.reports.judgement.findings import (
    Culprit,
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    note,
    seen,
    unknown,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.scale.naming import culprits, shown
from ncclcheck.reports.scale.search import GroupSearchAnswer


@rule(
    "BEN019", "the whole is as healthy as its parts", worst=State.FAIL, over="measurements.groups",
    commands=("bench",),
)  # fmt: skip
def whole_is_as_sound_as_its_parts(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Where every pair of nodes is sound and the job over all of them fails, or is far slower than its slowest pair,
    the nodes are tried in groups: in one round half of them, a quarter, an eighth ... beside each other, then ever
    closer to the smallest group that fails.

    ## Why it matters
    A limit of ranks, of a switch's table or of connections lets every pair and both halves pass, and stops the job
    at its full size. Excluding nodes one after the other finds nobody, for nobody is faulty.

    ## How we know
    Each group is a process group of its own and runs an all_reduce with all ranks of its nodes; the better of
    two batches counts. A group fails where nothing comes through in time, the sum is wrong, or it reaches less
    than 70 % of what groups half as large do. Then the number is bisected, and the last node is exchanged for
    its neighbour. If the group is sound with that one, the last node fails with others, which are found one by
    one (`whenever gpu-17 and gpu-40 are both in it`). If it is not, nodes are left out at the other end: where
    none can be spared, other nodes altogether fail and one fewer do not, it is the number (`from 44 nodes on,
    whichever they are`); else both ends of what is left are two groups, tried apart at the same time as well.
    Three or four nodes take more than 3 log2 N rounds: there are too many sets of so many, and a round answers
    little more than yes or no. benchmarks/whole.py plants such faults in up to 1,024 nodes at 2 % noise. What
    becomes slower little by little is no step and names nobody. Where the time is over before the search is,
    the smallest group that failed is named. On CPUs only a job that failed begins the search, on GPUs also one
    that reaches less than 40 % of its slowest pair.

    ## Fix
    - **admin** a number: limits of connections (`nf_conntrack_max`, `connlimit`, `somaxconn`, the switch's table
      of neighbours, addresses and groups), licences, and NCCL's own limits in its release notes.
    - **you** until then: jobs below that number, or without one of the named nodes.
    - **admin** two groups: what they share: a trunk, a power feed, a shared buffer.

    ## Source
    NVIDIA/aicr#2693 (both halves pass alone and fail together); NVIDIA/nccl#2186 (from 44 ranks on);
    NVIDIA/nccl#1165 (nothing starts beyond 65 nodes).
    """
    between_real_machines(cluster)
    answer = shown(cluster)
    if answer is None:
        raise NothingToJudge("the nodes share cores: a larger group is slower there without any fault")
    if blamed := culprits(cluster):
        yield _failed(answer, blamed[0])
    elif answer.kind == "sound":
        yield note(
            Where(), f"all {len(answer.tests[-1].group)} nodes in one group were healthy when tried again",
            why="The whole job failed or was slow before: what it was has passed, or lies in something else.",
            owner="job", evidence=_evidence(answer), fix=[you("Run it again.", "ncclcheck bench")],
        )  # fmt: skip
    elif answer.kind == "gradual":
        yield fine(Where(), "larger groups are slower little by little, without a step at any number of nodes")
    else:
        yield _unfinished(answer)


def _failed(answer: GroupSearchAnswer, culprit: Culprit) -> Finding:
    return fail(
        culprit.where[0] if culprit.where else Where(),
        f"every pair is healthy, and a collective fails {culprit.why}"
        if answer.kind in ("size", "members")
        else culprit.why,
        why="A job of that kind fails or crawls however often it is started, and no single node is faulty.",
        owner="site",
        evidence=_evidence(answer),
        fix=_fix(answer),
    )


def _unfinished(answer: GroupSearchAnswer) -> Finding:
    least = answer.smallest_bad
    text = (
        f"a group of {len(least.group)} nodes failed, the smallest that did" if least else "no group failed so far"
    )
    return unknown(
        Where(),
        f"which nodes, or how many, was not found out in {answer.rounds} rounds: {text}",
        why="Every pair is healthy and the whole is not: what fails lies between.",
        owner="site",
        evidence=_evidence(answer),
        fix=[you("Give it more time.", "ncclcheck bench --full --deadline 900")],
    )


def _evidence(answer: GroupSearchAnswer) -> list[Evidence]:
    """The smallest group that failed, the largest that did not."""
    sound = max((test for test in answer.tests if not test.bad), key=lambda test: len(test.group), default=None)
    tests = [(word, test) for word, test in (("failed", answer.smallest_bad), ("sound", sound)) if test]
    return [
        *(
            seen(f"{word}, {len(test.group)} nodes", f"{test.gb_s:.3g} of {test.healthy:.3g} GB/s")
            for word, test in tests
        ),
        seen("rounds of groups", answer.rounds),
    ]


def _fix(answer: GroupSearchAnswer) -> list[Remedy]:
    if answer.kind == "size":
        fewer = f"ncclcheck bench --nodes {answer.size - 1}"
        return [
            admin(
                "Look for a limit of that number: connections, a switch's tables, licences, NCCL's release notes.",
                "sysctl net.netfilter.nf_conntrack_max net.netfilter.nf_conntrack_count net.core.somaxconn",
            ),
            you(f"Until then stay below {answer.size} nodes; this must pass:", fewer),
        ]
    if answer.kind == "members":
        name = answer.parts[-1][0]
        return [
            you("Leave one of them out, and run again.", f"sbatch --exclude={quote(name)} JOB"),
            admin("Look at what they share and others do not: a route, a switch, a firmware, a GID table."),
        ]
    return [admin("Look at what the two groups share: a trunk, a shared buffer, a power feed.")]
