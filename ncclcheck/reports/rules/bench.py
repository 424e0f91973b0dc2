"""BEN: what the measured job says."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.findings import Finding, State, Where, admin, fail, seen, you
from ncclcheck.reports.fold import size
from ncclcheck.reports.rule import NothingToJudge, rule


@rule("BEN001", "results are correct", worst=State.FAIL, over="measurements.collectives", commands=("bench",))
def results_are_correct(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Every collective gave, bit for bit, the result that was known beforehand, on every rank.

    ## Why it matters
    A link, memory or library that changes data without an error makes training diverge days later, or
    gives a model that is quietly worse.

    ## How we know
    The data differ in every rank and index, and are chosen so that any order of reduction gives the same
    exact result. One swapped chunk, one flipped bit, a rank counted twice or left out changes it.
    Results are checked before and after the timed iterations of each row.

    ## Fix
    - **you**: repeat the row alone (`--ops OP --sizes SIZE`); the same rank again points at its node.
    - **admin**: take the named node out and test its memory, GPU (`dcgmi diag -r 3`) and NIC.

    ## Source
    NVIDIA/nccl#2001 and nccl-tests#167: wrong results that come and go.
    """
    checked = [row for row in cluster.measurements.collectives if row.correct is not None]
    if not checked:
        raise NothingToJudge("no result was checked")
    for wrong in cluster.measurements.wrong:
        yield fail(
            Where(node=wrong.node, rank=wrong.rank),
            f"{wrong.op} of {size(wrong.bytes)} {wrong.dtype}: {wrong.wrong} wrong elements, the first at offset "
            f"{wrong.offset}: bits {wrong.got_bits}, expected {wrong.expected_bits}",
            why="Data was changed on the way, and nothing reported an error.",
            owner="node",
            evidence=[seen(f"result of rank {wrong.rank}", f"{wrong.got_bits} at element {wrong.offset}")],
            fix=[
                you(
                    "Repeat this row alone and see whether it is the same rank.",
                    f"ncclcheck bench --ops {wrong.op} --sizes {wrong.bytes} --dtype {wrong.dtype}",
                ),
                admin("Take the node out and test its memory, GPU and NIC.", "dcgmi diag -r 3"),
            ],
        )
    told = {(wrong.op, wrong.bytes) for wrong in cluster.measurements.wrong}
    for row in checked:
        if row.correct is False and (row.op, row.bytes) not in told:
            yield fail(
                Where(),
                f"{row.op} of {size(row.bytes)} {row.dtype} gave a wrong result",
                why="Data was changed on the way, and nothing reported an error.",
                owner="site",
                evidence=[seen("the row's result check", "wrong")],
                fix=[you("Repeat this row alone.", f"ncclcheck bench --ops {row.op} --sizes {row.bytes}")],
            )
