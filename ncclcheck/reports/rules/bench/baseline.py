"""BEN006, VER015, VER016: what a saved result says of this one."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Baseline, Cluster
from ncclcheck.reports import compare
from ncclcheck.reports.compare import FactChange, RowChange
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    State,
    Where,
    admin,
    fail,
    fine,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.text.words.fold import size

_FAIL_PERCENT = 25.0  # % below the baseline from which on it is a failure, less is a warning; chosen
_MEASURED_BYTES = 2**20  # bytes from which on a row shows bandwidth and not latency; chosen


def _baseline(cluster: Cluster) -> Baseline:
    if cluster.baseline is None:
        raise NothingToJudge("no --baseline was given")
    return cluster.baseline


@rule(
    "BEN006",
    "bandwidth matches the baseline",
    worst=State.FAIL,
    over="measurements.collectives",
    commands=("bench",),
)
def bandwidth(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Each row of the table against the same row (operation, size, type) of the result that `--baseline` names.

    ## Why it matters
    A cluster that was healthy last week shows better than any formula what it can do. A cable that was moved, a
    driver that was updated or a switch that has lost a port shows here, and in no error message.

    ## How we know
    By the 95 % confidence intervals of both medians, which assume no distribution (order statistics). A row is
    worse where its interval lies beyond the other one by more than 10 % (`BEN006.floor_percent`; 100 % on
    simulated nodes) and its median beyond 95 % of the other's iterations; the same where the medians differ by
    10 % or less. All else is inconclusive, and no finding. On a busy machine of two cores 13 of 150
    comparisons of unchanged rows of simulated nodes went beyond 10 %, 6 beyond 100 %. A row of at least 1 MiB
    that lost 25 % of its speed (`BEN006.fail_percent`) is a failure; what is smaller, and all on simulated nodes,
    a warning. Nothing is compared where GPUs, HCAs, network cards, cores, nodes, ranks or backend are not the
    same.

    ## Fix
    - **you** see what VER015 and VER016 say has changed since; then `ncclcheck report --compare BEFORE AFTER`.
    - **admin** undo or explain the change that it names; save a new baseline once it is meant to stay.

    ## Source
    nccl-tests, doc/PERFORMANCE.md; NVIDIA/aicr#2787 (fixed floors, each found by other means).
    """
    baseline = _baseline(cluster)
    rows = compare.rows_of(baseline.cluster, cluster, cluster.policy.thresholds)
    judged = [row for row in rows if row.verdict != "incomparable"]
    if not judged:
        raise NothingToJudge(rows[0].reason if rows else "neither result has a measured row")
    worse: dict[str, list[RowChange]] = {}
    for row in judged:
        if row.verdict == "worse":
            worse.setdefault(row.op, []).append(row)
    for op, slower in worse.items():
        yield _slower(cluster, baseline, op, slower)
    if not worse:
        same = sum(row.verdict == "same" for row in judged)
        noise = compare.floor_percent(cluster, cluster.policy.thresholds)
        text = f"{same} of {len(judged)} rows are the same as in {baseline.name} within noise ({noise:g} %)"
        yield fine(Where(), f"{text}, none is worse")


def _slower(cluster: Cluster, baseline: Baseline, op: str, rows: list[RowChange]) -> Finding:
    most = 1 - cluster.policy.thresholds.get("BEN006.fail_percent", _FAIL_PERCENT) / 100
    worst = min(rows, key=lambda row: row.speed or 0.0)
    bad = any(row.bytes >= _MEASURED_BYTES and (row.speed or 0.0) <= most for row in rows)
    level = fail if bad and not cluster.job.simulated else warn
    others = f", and {len(rows) - 1} more of its sizes are slower" if len(rows) > 1 else ""
    return level(
        Where(),
        f"{op} of {size(worst.bytes)} has {100 * (worst.speed or 0.0):.0f} % of the baseline's speed{others}",
        why="The same hardware did better before: something has changed since.",
        owner="site",
        evidence=[_figures(row) for row in rows],
        fix=[
            you(
                "Keep this result, and see all that changed.",
                f"ncclcheck bench --baseline {quote(baseline.name)} --save now.json",
                f"ncclcheck report --compare {quote(baseline.name)} now.json",
            ),
            admin("Look at what was changed on these nodes and their network since the baseline."),
        ],
    )


def _figures(row: RowChange) -> Evidence:
    sides = [side for side in (row.before, row.after) if side is not None]
    words = [
        f"{side.p50_us:.1f} us" if side.busbw_gb_s is None else f"{side.busbw_gb_s:.3g} GB/s" for side in sides
    ]
    return seen(f"{row.op} {size(row.bytes)}", " -> ".join(words))


@rule("VER015", "machines, software and settings match the baseline", worst=State.FAIL)
def machines(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The facts of every node against those of the same node in the result that `--baseline` names: GPUs, HCAs and
    interfaces that are gone, links that are slower, versions and settings that are others.

    ## Why it matters
    "It worked yesterday" has a reason. A GPU or HCA fewer after a reboot is seldom noticed by the job, which then
    runs at a fraction of its speed, or by hand: the machine looks sound.

    ## Seen as
    slow

    ## How we know
    Nodes are matched by name, else by host name; a node that one of the two results lacks is not compared, for
    the job system may have given others. A GPU or HCA that is gone, a port that is no longer active, a GPU that
    NVML or CUDA cannot use any more are failures; what became less (lanes, rate, speed, memory, cores) is a
    warning; versions, variables, addresses and what became more are notes. What one side did not see is not
    judged.

    ## Fix
    - **admin** bring back what is gone (`nvidia-smi -L`, `ibstat`, `dmesg`): reseat, reset, or drain the node.
    - **you** leave the node out; or save a new baseline when the change is meant: `--save FILE`.

    ## Source
    NVIDIA GPU debug guidelines; ibstat(8); Slurm, Prolog and Epilog Guide (run `ncclcheck env` in both).
    """
    baseline = _baseline(cluster)
    changes = [change for change in compare.changes_of(baseline.cluster, cluster) if not change.counter]
    yield from (finding for change in changes for finding in _of_machine(change, baseline))
    if not any(change.verdict == "worse" for change in changes):
        yield fine(Where(), f"no part of the machines is less than in {baseline.name}")


def _of_machine(change: FactChange, baseline: Baseline) -> Iterator[Finding]:
    what, evidence = _said(change, baseline)
    level = fail if change.grave else warn
    for node in change.nodes if change.verdict != "unseen" else []:
        where = Where(node=node, device=change.part or None)
        if change.verdict != "worse":
            yield note(where, what, evidence=evidence)
            continue
        yield level(
            where,
            what,
            why="This node had more before, and the job runs at the pace of its weakest part.",
            owner="node",
            evidence=evidence,
            fix=[
                admin("Bring it back, or drain the node.", "dmesg -T | tail -100", "nvidia-smi -L", "ibstat"),
                you("Leave the node out; or save a new baseline if this is meant to stay."),
            ],
        )


@rule("VER016", "no error counter rose since the baseline", worst=State.FAIL)
def counters(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Counters of errors that rose since the result that `--baseline` names: ECC errors, remapped rows, repeated
    packets of PCIe and NVLink, errors of InfiniBand ports, of PCIe devices and of interfaces, Xid lines.

    ## Why it matters
    Most counters count since the driver was loaded, so that one look cannot tell old from new. Two looks can: a
    job's prolog saves (`ncclcheck env --save FILE`), its epilog compares (`ncclcheck env --baseline FILE`), and
    what rose meanwhile happened to this job.

    ## How we know
    The same counter of the same part of the same node, twice. One that is lower now, or of a node that was
    rebooted, began anew. A new uncorrected ECC error, a fatal PCIe error and an Xid of the hardware are failures.
    Warnings from so many more on: 1 link_downed, link_error_recovery, local_link_integrity_errors, remapped row
    for an uncorrectable error, NVLink recovery, uncorrectable PCIe error or other Xid; 2 rows or pages for
    correctable ones; 10 rx_icrc_encapsulated; 100 symbol_error, port_rcv_errors, local_ack_timeout_err; 1000
    corrected ECC errors, repeated packets, correctable PCIe errors, other counters of ports; 10,000
    port_xmit_discards; errors or drops of 0.1 % of an interface's packets. Less is a note.

    ## Fix
    - **admin** drain the node, then by part: cable and transceiver of a port, reset of a GPU, seat of a card.
    - **you** leave the node out of the next run; give the admin both files.

    ## Source
    NVIDIA, Understanding mlx5 Linux counters; NVIDIA Xid errors; NVML API reference; Slurm, Prolog and Epilog
    Guide.
    """
    baseline = _baseline(cluster)
    changes = [change for change in compare.changes_of(baseline.cluster, cluster) if change.counter]
    yield from (finding for change in changes for finding in _risen(change, baseline))
    if not changes:
        yield fine(Where(), f"no counter of errors rose since {baseline.name} of {baseline.started}")


def _risen(change: FactChange, baseline: Baseline) -> Iterator[Finding]:
    what, evidence = _said(change, baseline)
    level = fail if change.grave else warn
    for node in change.nodes:
        where = Where(node=node, device=change.part or None)
        if change.verdict != "worse":
            yield note(where, what, evidence=evidence)
            continue
        yield level(
            where,
            what,
            why="It happened since then, not at some time before: this part is failing now.",
            owner="node",
            evidence=evidence,
            fix=[
                admin(
                    "Drain the node and test the part that is named.", "dcgmi diag -r 3", "mlxlink -d HCA -m -c"
                ),
                you("Leave the node out until then."),
            ],
        )


def _said(change: FactChange, baseline: Baseline) -> tuple[str, list[Evidence]]:
    what = f"{change.fact}: {change.before} -> {change.after}" if change.fact else change.after
    return f"{what} since the baseline", [seen(baseline.name, change.before), seen("now", change.after)]
