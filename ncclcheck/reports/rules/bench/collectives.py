"""BEN001: what came out of the collectives of the job, in their rows and in the soak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from ncclcheck.probes.facts import Cluster, Collective, WrongResult
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    seen,
    unknown,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.job import changed, corruption
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import size

_MOST_RESULTS = 8  # wrong results that are shown; chosen
_WHY = "Data was corrupted in transit, and nothing reported an error."


@rule(
    "BEN001",
    "collectives return correct results",
    worst=State.FAIL,
    over="measurements.collectives",
    commands=("bench",),
)
def results_are_correct(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Every collective gave, bit for bit, the result that was known beforehand, on every rank; with `--soak S` again
    and again for so long, on other data in each round. Unknown where no row could be measured.

    ## Why it matters
    A link, memory or library that changes data without an error makes training diverge days later, or
    gives a model that is quietly worse.

    ## Seen as
    wrong results

    ## How we know
    The data differ in every rank and index, and are chosen so that any order of reduction gives the same
    exact result. One swapped chunk, one flipped bit, a rank counted twice or left out changes it.
    The first and the last iteration of each row are checked, and every one of the soak.
    The pattern points at the cause: one bit, or always the same bit, is memory or a wire; a chunk that is aligned
    is a buffer read too early or written twice; a piece of one rank is that rank or the link from it. A rank
    is named as the contributor to a reduction only where its contribution being left out, counted twice or
    changed in a bit explains 32 or more different wrong results, and no other rank's does. What nodes
    exchange two by two is compared, too: where exchanges with changed data have one node in common, and the others
    have none, that node is to blame, and the wrong results of all ranks follow from it.

    ## Fix
    - **you**: repeat the row alone (`--ops OP --sizes SIZE --soak 60`); the same rank again points at its node.
    - **you**: wrong chunks on many ranks: another version of NCCL, and the `NCCL_PROTO` and `NCCL_ALGO` that were
      set, are the first suspects.
    - **admin**: take the named node out and test its memory, GPU (`dcgmi diag -r 3`) and NIC.

    ## Source
    NVIDIA/nccl#2001 and nccl-tests#167: wrong results that come and go.
    """
    if all(row.state == "skipped" for row in cluster.measurements.collectives):
        yield _nothing_measured(cluster.measurements.collectives)
        return
    checked = [row for row in cluster.measurements.collectives if row.correct is not None]
    if not checked:
        raise NothingToJudge("no result was checked")
    wrong = cluster.measurements.wrong
    findings = [_wrong(cluster, alike) for alike in corruption.grouped(cluster)]
    guilty = changed.guilty(cluster)
    yield from [_by_exchanges(cluster, guilty, findings)] if guilty else findings
    reported = {(result.op, result.bytes) for result in wrong}
    yield from (_nameless(row) for row in checked if row.correct is False and (row.op, row.bytes) not in reported)
    yield from _soaked(cluster)


def _nothing_measured(rows: Sequence[Collective]) -> Finding:
    """By reason, the operations that could not be measured."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(row.reason, []).append(row.op)
    by_ops = {", ".join(dict.fromkeys(ops)): reason for reason, ops in reasons.items()}
    return unknown(
        Where(),
        "no row could be measured: " + "; ".join(f"{ops}: {reason}" for ops, reason in by_ops.items()),
        why="Whether collectives work here, and how fast, is not known.",
        owner="job",
        evidence=[seen(ops, reason) for ops, reason in by_ops.items()],
        fix=[you("Ask for what this backend has, and for enough time.", "ncclcheck bench --quick")],
    )


def _wrong(cluster: Cluster, alike: list[WrongResult]) -> Finding:
    first = alike[0]
    return fail(
        corruption.place(cluster, first),
        corruption.what(alike),
        why=_WHY,
        owner="node",
        evidence=[*_results(alike), *_elsewhere(cluster, first)],
        fix=[
            you(
                "Repeat this row alone and see whether it is the same rank.",
                _again(first.op, first.bytes, first.dtype),
            ),
            admin("Take the node out and test its memory, GPU and NIC.", "dcgmi diag -r 3"),
        ],
    )


def _by_exchanges(cluster: Cluster, guilty: changed.Guilty, findings: list[Finding]) -> Finding:
    """Exchanges two by two say who changes data; the wrong results of ranks follow from it."""
    links = {link.node: link.interface.name for link in lan.read_links(cluster)}
    node, device = quote(guilty.nodes[0]), quote(links.get(guilty.nodes[0], "eth0"))
    return fail(
        guilty.where,
        guilty.words,
        why=_WHY,
        owner="node",
        evidence=[
            *guilty.evidence,
            *(seen(f"{finding.where.node} rank {finding.where.rank}", finding.what) for finding in findings),
        ],
        fix=[
            admin(
                "Look at its NIC, cable and switch port for errors, let the kernel check sums in the NIC's place, "
                "and test its memory.",
                f"ethtool -S {device} | grep -iE 'err|crc|csum|drop'   # on {node}",
                f"ethtool -K {device} rx off tx off   # on {node}: damaged packets are then sent again; undo: on",
                "edac-util -v; dmesg -T | grep -iE 'mce|edac|ecc'",
            ),
            you("Leave the node out until then.", f"#SBATCH --exclude={node}"),
        ],
    )


def _results(alike: list[WrongResult]) -> list[Evidence]:
    """The first wrong result of each rank and size."""
    firsts = {(result.rank, result.bytes): result for result in reversed(alike)}
    chosen = [result for result in alike if firsts[result.rank, result.bytes] is result][:_MOST_RESULTS]
    return [
        seen(
            f"result of rank {result.rank}, {size(result.bytes)}", f"{result.got_bits} at element {result.offset}"
        )
        for result in chosen
    ]


def _elsewhere(cluster: Cluster, first: WrongResult) -> list[Evidence]:
    """A fault before or in a reduction reaches all ranks, one behind it only its own."""
    if not first.pattern or not cluster.job.ranks:
        return []
    row = (first.op, first.bytes, first.iteration, first.soak)
    ranks = {
        result.rank
        for result in cluster.measurements.wrong
        if (result.op, result.bytes, result.iteration, result.soak) == row
    }
    return [seen("ranks with a wrong result there", f"{len(ranks)} of {cluster.job.ranks}")]


def _again(op: str, bytes_: int, dtype: str) -> str:
    kind = "" if dtype == "object" else f" --dtype {dtype}"
    return f"ncclcheck bench --ops {op} --sizes {bytes_}{kind} --soak 60"


def _nameless(row: Collective) -> Finding:
    fix: list[Remedy] = [you("Repeat this row alone.", _again(row.op, row.bytes, row.dtype))]
    return fail(
        Where(),
        f"{row.op} of {size(row.bytes)} {row.dtype} gave a wrong result",
        why=_WHY,
        owner="site",
        evidence=[seen("the row's result check", "wrong")],
        fix=fix,
    )


def _soaked(cluster: Cluster) -> Iterator[Finding]:
    """How much the soak checked; a person looks for it."""
    soak = cluster.measurements.soak
    if soak is None:
        return
    if not soak.results:
        yield unknown(
            Where(),
            "the soak checked no result: none of the rows was measured, or each took too long",
            why="Nothing is known beyond what the rows themselves showed.",
            fix=[you("Give it smaller sizes.", "ncclcheck bench --sizes 1K,1M --soak 60")],
        )
        return
    text = f"{soak.results} results in {soak.rounds} rounds and {soak.seconds:.0f} s, {size(soak.bytes)} in all"
    yield fine(Where(), f"the soak checked {text}; {soak.wrong or 'none'} wrong", seen("soak", text))
