"""BEN002: what the collectives reached, beside what is possible and what the user demands."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ncclcheck.probes.facts import Cluster, NotKnown
from ncclcheck.reports import expect
from ncclcheck.reports.culprit import lack_cores
from ncclcheck.reports.expect import Outlook, Outlooks
from ncclcheck.reports.expect.bounds import BandwidthBound
from ncclcheck.reports.judgement.findings import (
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
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.text.words.fold import fold_names, size

# Of the limit of a failure: less is no want of cores. At a load of 29 on 2 cores gloo reached 19 % of what a
# stream carried, of which 10 is that limit, and 0.3 % over a link of 3 Mb/s. Chosen between them.
_BEYOND_CORES = 0.1
_ABOVE = 1.1  # times the best possible: more means that the bound or the links assumed are wrong; chosen
_WHY = "Every step of a training job waits for its collectives, and these move data far slower than they could."


@rule(
    "BEN002",
    "bandwidth meets the expectation",
    worst=State.FAIL,
    over="measurements.collectives",
    commands=("bench",),
)
def within_expectation(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The bus bandwidth of large messages, compared with what the hardware can carry, and against
    `--min-busbw`.

    ## Why it matters
    A rail that is down, a NIC in a x8 slot, GPUs that cannot reach it directly or TCP instead of RDMA raise no
    error: the job is two to twenty times slower, and nobody knows that it could be faster.

    ## Seen as
    does not start, slow

    ## How we know
    Between nodes B is the sum of min(rate, PCIe) over the ports that NCCL takes, at most the PCIe links of the
    GPUs, of the weakest node. A flat ring reaches B at most, any algorithm without switches that reduce
    B k(n-1)/(n(k-1)), for n ranks on k nodes; percentages are of the ring, and both are printed where it is not
    known which ran. In one node: NVLinks x rate, and for NVLS 2(n-1)/(n+1) of it. TCP: the interface's speed, or
    below 2 Gb/s what a stream carried before the job. Only rows count of whose time latency is a tenth at most,
    by the fit over sizes; the best one speaks.

    Below the first percentage a warning, below the second a failure (`BEN002.rdma_warn_percent` and so on):
    rdma 70, 50 (healthy clusters: 85 to 97; 50 to 70 is one rail of two); nvlink 85, 50 (Azure's checks: 89 to
    97); socket 30, 10 (32 to 60 on 32 and 100 Gb/s); burst 30, 10, a judgement of ours. More than a tenth above
    what is possible is `unknown`: then the bound is wrong, or other links were used. Where no healthy cluster's
    figures are known nothing is judged, and the reason is printed; nor where most ranks have no core for most
    of the time in which they want one: a note, and a warning below a tenth of the failure's limit.

    ## Fix
    - **you** look at RDM, FAB, GPU and NCC findings first; then `NCCL_DEBUG=INFO` shows which transport is used.
    - **admin** rails that are down, PCIe links at half width, ACS, GPUDirect RDMA, bonds.

    ## Source
    NCCL-tests, doc/PERFORMANCE.md; NVIDIA/nccl#209, #450; nccl-tests#22, #232; stas00/ml-engineering, network;
    Azure/azurehpc-health-checks. The ring of gloo: pytorch/gloo, allreduce.cc and allgather.cc.
    """
    outlooks = expect.outlooks(cluster)
    findings = [finding for outlook in outlooks.of_op.values() for finding in _judged(cluster, outlook)]
    findings += _demanded(cluster, outlooks.of_op)
    if not findings and outlooks.unread:
        raise NotKnown(outlooks.unread)
    if not findings:
        raise NothingToJudge(f"no expectation: {_why_none(outlooks)}")
    yield from findings


def _why_none(outlooks: Outlooks) -> str:
    unusual = [
        outlook.bound.unusual for outlook in outlooks.of_op.values() if outlook.bound and outlook.bound.unusual
    ]
    small = [outlook.op for outlook in outlooks.of_op.values() if outlook.expected and outlook.reached is None]
    if outlooks.reason or not small:
        return outlooks.reason or next(iter(unusual), "no operation with a bound was measured")
    return f"latency rules all sizes of {', '.join(small)}; measure larger ones (--sizes 1G)"


def _judged(cluster: Cluster, outlook: Outlook) -> Iterator[Finding]:
    limits, value = outlook.bound, outlook.reached
    if limits is None or value is None:
        return
    if limits.limit is not None and value > _ABOVE * limits.best:
        yield _above(outlook, limits, value)
    elif limits.usual is not None:
        percent = 100 * value / limits.usual
        what = f"{outlook.op}: {value:.3g} GB/s, {share(value, limits)} ({limits.basis})"
        crowded = lack_cores(cluster)
        if percent < outlook.warn_percent and crowded and percent >= outlook.fail_percent * _BEYOND_CORES:
            yield _not_judged(outlook, what)
        elif percent >= outlook.warn_percent:
            yield fine(Where(), what, seen(f"{outlook.op}, largest rows", _rows(outlook)))
        else:
            yield _slow(cluster, outlook, what, percent, level=warn if crowded else None)


def _not_judged(outlook: Outlook, what: str) -> Finding:
    """The cores are what is slow."""
    return note(
        Where(),
        f"not judged, for the ranks wait for cores: {what}",
        why="Sockets need cores to move data: without them the network cannot show what it carries.",
        owner="node",
        evidence=[seen(f"{outlook.op}, largest rows", _rows(outlook))],
        fix=[you("Run again when the machines are quiet, or give the job cores of its own.")],
    )


def share(value: float, limits: BandwidthBound) -> str:
    """What part of the bound it is; both parts where it is not known which algorithm ran."""
    assert limits.usual is not None
    percent = 100 * value / limits.usual
    if limits.carrier == "nvlink":
        return f"{percent:.0f} % of the {limits.usual:.3g} that healthy nodes reach by {limits.algorithm}"
    if limits.carrier == "burst":
        return f"{percent:.0f} % of what a TCP stream carried"
    rate = "line rate" if limits.at_line_rate else "what NVLink leaves of it"
    if limits.known or limits.best <= limits.usual:
        return f"{percent:.0f} % of {rate} ({limits.algorithm}, {limits.usual:.3g})"
    other = f"{100 * value / limits.best:.0f} % of what any could ({limits.best:.3g})"
    return f"{percent:.0f} % of {rate} if a ring ran ({limits.usual:.3g}), {other}"


def _slow(
    cluster: Cluster, outlook: Outlook, what: str, percent: float, level: Callable[..., Finding] | None = None
) -> Finding:
    level = level or (fail if percent < outlook.fail_percent else warn)
    nodes = fold_names(node.name for node in cluster.nodes)
    limit = outlook.fail_percent if percent < outlook.fail_percent else outlook.warn_percent
    return level(
        Where(),
        f"{nodes}: {what}",
        why=_WHY,
        owner="site",
        evidence=[
            seen(f"{outlook.op}, largest rows", _rows(outlook)),
            seen("expected", f"at least {limit:g} % of the bound"),
        ],
        fix=_remedies(outlook, percent),
    )


def _remedies(outlook: Outlook, percent: float) -> list[Remedy]:
    assert outlook.bound is not None
    repeat = you(
        "See which transport NCCL takes, and look at pairs of nodes for the one that holds up the others.",
        "NCCL_DEBUG=INFO ncclcheck bench --full",
    )
    return [_admins[outlook.bound.carrier](percent), repeat]


def _about_rdma(percent: float) -> Remedy:
    if percent < 15:
        return admin("So little looks like TCP instead of RDMA: look at RDM and NCC findings.", "ibstat")
    if percent < 50:
        return admin("Half or less: rails that are down, or PCIe links of half the width or rate.", "ibstat")
    return admin(
        "Often one rail of two, ACS on PCIe bridges, no GPUDirect RDMA, or a bond that hashes all to one port.",
        "ibstat",
        "lsmod | grep nvidia_peermem",
    )


def _about_nvlink(_: float) -> Remedy:
    return admin("Look for NVLinks that are down and for NVLS that is off.", "nvidia-smi nvlink -s")


def _about_sockets(_: float) -> Remedy:
    return admin(
        "Look at the interface for a limit, loss, and a core that is fully used.",
        "tc -s qdisc show",
        "ethtool eth0",
    )


_admins = {"rdma": _about_rdma, "nvlink": _about_nvlink, "socket": _about_sockets, "burst": _about_sockets}


def _above(outlook: Outlook, limits: BandwidthBound, value: float) -> Finding:
    return unknown(
        Where(),
        f"{outlook.op}: {value:.3g} GB/s, more than the {limits.best:.3g} that is possible ({limits.basis})",
        why="The bound is wrong, or the job used other links than those that it was reckoned from.",
        owner="tool",
        evidence=[seen(f"{outlook.op}, largest rows", _rows(outlook))],
        fix=[
            you("See which links were used; report it with the file of --save.", "NCCL_DEBUG=INFO ncclcheck bench")
        ],
    )


def _rows(outlook: Outlook) -> str:
    ordered = sorted(outlook.rows, key=lambda row: row.bytes)
    return ", ".join(f"{row.busbw_gb_s:.3g} GB/s at {size(row.bytes)}" for row in ordered[-2:])


def _demanded(cluster: Cluster, outlooks: dict[str, Outlook]) -> Iterator[Finding]:
    """`--min-busbw`: the best row of the operation must reach it, and it must have been measured."""
    for op, demanded in cluster.policy.min_busbw.items():
        asked = seen("--min-busbw", f"{op}={demanded:g}")
        outlook = outlooks.get(op)
        best = max((row.busbw_gb_s or 0.0 for row in outlook.rows), default=0.0) if outlook else 0.0
        if outlook is None:
            yield _missed(f"{op} was not measured, and {demanded:g} GB/s are demanded of it", [asked])
        elif best < demanded:
            limits = outlook.bound
            broken = limits and limits.limit is not None and demanded > limits.limit
            more = f", which nothing can reach here: {limits.limit:.4g} at most" if limits and broken else ""
            rows = [asked, seen(f"{outlook.op}, largest rows", _rows(outlook))]
            nodes = fold_names(node.name for node in cluster.nodes)
            yield _missed(f"{nodes}: {op} reached {best:.3g} GB/s of the {demanded:g} demanded{more}", rows)
        else:
            yield fine(Where(), f"{op} reached {best:.3g} GB/s of the {demanded:g} demanded", asked)


def _missed(what: str, evidence: list[Evidence]) -> Finding:
    return fail(
        Where(),
        what,
        why="You demanded this bandwidth for the job to go on.",
        owner="site",
        evidence=evidence,
        fix=[
            you("See which sizes and operations it concerns; a demand holds for the best size.", "ncclcheck bench")
        ],
    )
