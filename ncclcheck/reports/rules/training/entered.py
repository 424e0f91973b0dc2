"""TRN: the user's own model, loss and step enter the same collectives on all ranks."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training import Entered
from ncclcheck.reports.judgement.findings import Finding, State, Where, fail, seen, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.training.trained import checked, place


@rule("TRN028", "all ranks enter the same collectives", worst=State.FAIL, over="", commands=("smoke",))
@checked("entered")
def entered(cluster: Cluster, found: Entered) -> Iterator[Finding]:
    """
    ## What
    The collectives (`all_reduce`, `barrier`, ...) that the given model, loss and step call themselves, by rank.

    ## Why it matters
    A collective under a condition that holds on some ranks only, such as `if rank == 0` or `if loss > 1`, hangs
    the job until the timeout, or is matched with another one and mixes up numbers.

    ## How we know
    In the first passes all ranks tell each other which collective they are about to enter, and from which line,
    before any of them enters it. Collectives of a group of some ranks are not followed.

    ## Fix
    - **you** call the collective on every rank; what only some ranks contribute is a zero on the others.

    ## Source
    PyTorch, Distributed communication package, Debugging torch.distributed applications; pytorch/pytorch#21144.
    """
    odd = found.ranks[0] if found.ranks else 0
    calls = [one for one in found.entered if " at " in one]
    told = "; ".join(f"rank {rank} in {one}" for rank, one in enumerate(found.entered[:4]))
    name, _, line = calls[0].partition(" at ") if calls else ("the collective", "", "the named line")
    yield fail(
        place(cluster, odd) if len(found.ranks) == 1 and len(found.entered) > 2 else Where(),
        f"ranks enter different collectives: {told}",
        why="A collective ends on no rank before all have entered it: the job hangs, or mixes up numbers.",
        owner="job",
        evidence=[seen(f"rank {rank}", one) for rank, one in enumerate(found.entered[:8])],
        fix=[
            you(
                f"Call {name} at {line} on every rank, whatever its data; give zeros where it has nothing.",
                *_code(name),
            )
        ],
    )


def _code(name: str) -> list[str]:
    if name == "all_reduce":
        return ["total = value if condition else torch.zeros_like(value)\ndist.all_reduce(total)"]
    return []
