"""BEN041, BEN042: GPUs that are slower than any healthy one of their model, and GPUs that compute wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, RankSpeed, value_or
from ncclcheck.reports.culprit.alone import METRICS
from ncclcheck.reports.expect.floors import Floor, floors, known_model, model_of
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, fail, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule

_WAITED = 0.25  # of the time in which a rank wanted a core: what is measured then says nothing of its GPU


@rule("BEN041", "every GPU reaches the speed expected of its model", worst=State.WARN,
      over="measurements.rank_speeds", commands=("bench",))  # fmt: skip
def above_the_floor(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    A matrix product, a copy within GPU memory and copies between host and GPU, of each rank alone, against the
    least that a GPU of this model can do.

    ## Why it matters
    Where all GPUs are slow alike (a wrong BIOS setting, a riser of an older generation, clocks locked by a script,
    an IOMMU that translates) no comparison with peers shows it, and one node alone has no peers.

    ## Seen as
    slow

    ## How we know
    A warning below 40 % of the data sheet's half precision (`BEN041.matmul_gflop_s` in the site file is a bound of
    your own) or below 50 % of its memory bandwidth (`BEN041.memory_gb_s`): sound GPUs are far above. A note below
    25 % of the rate of the GPU's PCIe link, parted by the GPUs that share a root port (`BEN041.to_device_gb_s`,
    `BEN041.from_device_gb_s`), for all GPUs copy at once. Skipped for models that are not in the list, MIG, and
    ranks that waited for a core; no product is judged where the power limit is below its default. The floors come
    from data sheets and from health checks of clouds, and were not measured with this program.

    ## Fix
    - **admin** clocks, power and throttling (`nvidia-smi -q -d PERFORMANCE,CLOCK,POWER`); PCIe generation and
      width of GPU and bridges (`lspci -vv`); IOMMU and ACS; BIOS settings, compared with another such machine.
    - **you** leave the node out of jobs that must be fast.

    ## Source
    NVIDIA data sheets; Azure/azurehpc-health-checks conf (check_gpu_bw 48 for H100, 21 for A100); oci-hpc,
    gpu_bw_test.py (52 GB/s).
    """
    nodes = {node.name: node for node in cluster.nodes}
    models: set[str] = set()
    judged = False
    for rank_speed in cluster.measurements.rank_speeds:
        node = nodes.get(rank_speed.node)
        card = model_of(node) if node and rank_speed.device.startswith("cuda") else None
        if node is None or card is None or rank_speed.waited >= _WAITED:
            continue
        models |= set() if known_model(card) else {value_or(card.model, "") or "of an unknown model"}
        for floor in floors(node, card):
            judged = True
            yield from _below(cluster, rank_speed, floor, value_or(card.model, ""))
    if not judged:
        raise NothingToJudge(
            f"no floor is known for {', '.join(sorted(models))}" if models else "no GPU was measured"
        )


def _below(cluster: Cluster, speed: RankSpeed, floor: Floor, model: str) -> Iterator[Finding]:
    value = getattr(speed, floor.metric)
    least = cluster.policy.thresholds.get(f"BEN041.{floor.metric}", floor.least)
    if value is None or value >= least:
        return
    scale, unit = (1000, "TFLOP/s") if floor.metric == "matmul_gflop_s" else (1, "GB/s")
    make = warn if floor.sure else note
    yield make(
        Where(node=speed.node, rank=speed.rank, device=speed.device),
        f"{METRICS[floor.metric]}: {value / scale:.3g} {unit}; a sound {model} does more than {least / scale:.3g}",
        why="All other ranks wait for the slowest one in every step.",
        owner="node",
        evidence=[
            seen("measured", f"{value / scale:.4g} {unit}"),
            seen("floor", f"{least / scale:.4g}, {floor.basis}"),
        ],
        fix=[
            admin("Compare clocks, power and PCIe links with another machine of this kind.",
                  "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER", "nvidia-smi --query-gpu=pcie.link.gen.current,"
                  "pcie.link.width.current --format=csv"),
            you("Leave the node out.", f"#SBATCH --exclude={speed.node}"),
        ],
    )  # fmt: skip


@rule("BEN042", "every GPU computes bit-identical results", worst=State.FAIL, over="measurements.rank_speeds",
      commands=("bench",))  # fmt: skip
def bit_for_bit(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    One product of two matrices, computed again and again on every GPU (on the processor where there is none), and
    compared with what it must be.

    ## Why it matters
    A GPU with a bad multiprocessor gives wrong numbers and no error: ECC guards memory, not arithmetic. The loss
    of a training on thousands of GPUs goes wrong slowly or becomes NaN at some step, and all_reduce spreads it to
    every rank.

    ## Seen as
    slow

    ## How we know
    All elements are whole numbers from -3 to 3, so the product is exact in half precision whatever library, GPU
    and order computes it: any difference is an error of the machine. Sums of columns are compared with those
    worked out apart in double precision, every repetition with the first one bit by bit, and the ranks with each
    other. It takes a part of a second, so it finds GPUs that are wrong often; `dcgmi diag -r 4` looks for hours.

    ## Fix
    - **admin** drain the node at once; `dcgmi diag -r 4` and NVIDIA's field diagnostics; exchange the GPU.
    - **you** leave the node out, and doubt the checkpoints of jobs that ran on it.

    ## Source
    arXiv:2407.21783, section 3.3.4 (silent data corruption in training); oci-hpc, gpu_sdc_checker.py; Dixit et
    al., Silent Data Corruptions at Scale (arXiv:2102.11245).
    """
    checked = [speed for speed in cluster.measurements.rank_speeds if speed.products]
    if not checked:
        raise NothingToJudge("no rank computed products")
    for rank_speed in checked:
        if rank_speed.wrong_products:
            yield fail(
                Where(node=rank_speed.node, rank=rank_speed.rank, device=rank_speed.device),
                f"computes wrong: {rank_speed.wrong_products} of {rank_speed.products} matrix products, and no "
                "error was given",
                why="Every gradient that it computes may be wrong, and all_reduce gives it to all ranks.",
                owner="node",
                evidence=[seen("products compared with the exact result", f"{rank_speed.wrong_products} wrong")],
                fix=_exchange(rank_speed.node),
            )
    yield from _others([speed for speed in checked if not speed.wrong_products])


def _others(right: list[RankSpeed]) -> Iterator[Finding]:
    """Ranks that agree with themselves and not with the others on the same kind of device."""
    for kind in sorted({rank_speed.device[:4] for rank_speed in right}):
        alike = [rank_speed for rank_speed in right if rank_speed.device.startswith(kind)]
        counts = Counter(rank_speed.product_sum for rank_speed in alike)
        usual, times = counts.most_common(1)[0]
        if len(counts) > 1 and 2 * times <= len(alike):
            yield _nobody(alike)
            continue
        for speed in alike:
            if speed.product_sum != usual:
                yield fail(
                    Where(node=speed.node, rank=speed.rank, device=speed.device),
                    f"computes another product than {times} others, always the same one",
                    why="The same numbers give the same bits on every device; what it computes is wrong.",
                    owner="node",
                    evidence=[seen("hash of the product", f"{speed.product_sum}, of the others {usual}")],
                    fix=_exchange(speed.node),
                )


def _nobody(alike: list[RankSpeed]) -> Finding:
    """No value has the majority: which of them is wrong is not known."""
    sums = ", ".join(f"{speed.node} rank {speed.rank} {speed.product_sum}" for speed in alike[:8])
    return fail(
        Where(),
        "devices of one kind compute different products from the same numbers, and none has the majority",
        why="The same numbers give the same bits on every device; some of them compute wrong.",
        owner="node",
        evidence=[seen("hashes of the product", sums)],
        fix=[admin("Run the vendor's diagnostics on all of them.", "dcgmi diag -r 4"),
             you("Run again with three nodes or more: the majority shows which one is wrong.")],
    )  # fmt: skip


def _exchange(node: str) -> list[Remedy]:
    return [
        admin("Drain the node, and let the vendor's diagnostics look for hours.", "dcgmi diag -r 4"),
        you("Leave the node out, and doubt checkpoints of jobs that ran on it.", f"#SBATCH --exclude={node}"),
    ]
