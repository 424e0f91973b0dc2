"""What rules of the training run share: the check that they judge, and ranks in words."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training import Metric
from ncclcheck.reports.judgement.findings import Finding, Remedy, Where, note, seen, unknown, you
from ncclcheck.reports.judgement.rule import Body, NothingToJudge

BUILTIN = ("transformer", "conv")
# Of the norm of gradients. The auxiliary loss of a small mixture of four experts, with its usual weight of 0.01,
# made 2e-4; means over tokens and sums are off by some percent and more.
SLIGHT = 0.01
_MORE_TIME = "ncclcheck smoke --time-budget 60"


# Checks that train the wrapped model with the loss of the given step, as the step itself does not.
_OF_THE_WRAP = ("trained", "gradients", "accumulation", "metric", "unused")


def averages_itself(cluster: Cluster) -> bool:
    """Whether the given step never calls the wrapped model, and ranks have the same gradients nevertheless."""
    smoke = cluster.measurements.smoke
    own = smoke.checks.own_step if smoke and smoke.checks else None
    return own is not None and own.past_wrap and not own.unaveraged


def checked(check: str) -> Callable[[Callable[[Cluster, Any], Iterator[Finding]]], Body]:
    """Make a body that wants one aspect of the checks a rule's: skipped or unknown where it was not looked at."""

    def wanting(body: Callable[[Cluster, Any], Iterator[Finding]]) -> Body:
        @functools.wraps(body)
        def judged(cluster: Cluster) -> Iterator[Finding]:
            smoke = cluster.measurements.smoke
            checks = smoke.checks if smoke else None
            if checks is None:
                raise NothingToJudge("no training was checked")
            if check in _OF_THE_WRAP and averages_itself(cluster):
                raise NothingToJudge("the given step averages its gradients itself, beside the wrapped model")
            if (aspect := getattr(checks, check)) is not None:
                yield from body(cluster, aspect)
                return
            why = next((unchecked for unchecked in checks.unchecked if unchecked.check == check), None)
            if why is None or not why.late:
                raise NothingToJudge(why.why if why else "the training did not come so far")
            yield missed("the time box was used up before", you("Give it more time.", _MORE_TIME))

        return judged

    return wanting


def missed(reason: str, remedy: Remedy) -> Finding:
    """What was wanted, and was not looked at."""
    return unknown(
        Where(),
        f"this was not checked: {reason}",
        why="Not observed, so neither healthy nor faulty.",
        owner="job",
        fix=[remedy],
    )


def builtin(cluster: Cluster) -> bool:
    """Whether the model and its data were the tool's own."""
    smoke = cluster.measurements.smoke
    setup = smoke.setup if smoke else None
    return setup is not None and setup.model in BUILTIN and setup.data in BUILTIN


def steps_itself(cluster: Cluster) -> bool:
    """Whether the user gave a step of their own, which need not use the given loss."""
    smoke = cluster.measurements.smoke
    checks = smoke.checks if smoke else None
    if checks is None:
        return False
    return checks.own_step is not None or any(unchecked.check == "own_step" for unchecked in checks.unchecked)


def rounding(cluster: Cluster) -> float:
    """Of the norm of gradients: what the given step rounds, in autocast or with weights of 16 bits; 0: no step."""
    smoke = cluster.measurements.smoke
    own = smoke.checks.own_step if smoke and smoke.checks else None
    return own.tolerance if own else 0.0


def strategy(cluster: Cluster) -> str:
    """How the model was spread over ranks."""
    smoke = cluster.measurements.smoke
    return smoke.setup.strategy if smoke and smoke.setup else "ddp"


def place(cluster: Cluster, rank: int) -> Where:
    """The rank, on its node where that is known."""
    node = next((state.node for state in cluster.run.ranks if state.rank == rank), None)
    return Where(node=node, rank=rank)


def agrees(cluster: Cluster, metric: Metric) -> bool:
    """Whether the mean loss that ranks sum up is that of one process."""
    if metric.reduced is None or metric.whole is None:
        return False
    apart = abs(metric.reduced - metric.whole) / max(abs(metric.whole), 1e-12)
    return apart <= cluster.policy.thresholds.get("TRN008.relative", 1e-4)


def ranks(numbers: Sequence[int], count: int = 0) -> str:
    """`rank 3`, `ranks 1 and 3`, `ranks 0, 1, 2 and 5 more`."""
    shown = [*map(str, numbers[:4])]
    more = max(count, len(numbers)) - len(shown)
    last = [f"{more} more"] if more else []
    if len(shown) == 1 and not last:
        return f"rank {shown[0]}"
    words = shown + last
    return f"ranks {', '.join(words[:-1])} and {words[-1]}"


def partly(what: str, why: str) -> Finding:
    """A check that could be made in part only."""
    return note(Where(), f"{what}: {why}", evidence=[seen("the check", why)])


def number(value: float | None) -> str:
    """A loss or an error."""
    return "no number" if value is None else f"{value:.4g}"
