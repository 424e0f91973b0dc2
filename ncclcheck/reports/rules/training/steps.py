"""TRN: where the time of a training step goes: data, a slow rank, communication."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from statistics import median, median_low

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fail, fine, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.training import step_losses, step_times
from ncclcheck.reports.subjects.training.step_times import StepRow, Steps, Straggler
from ncclcheck.reports.text.words.fold import duration

_JOBS = ("smoke",)
# On CPUs: the share of its step that a rank waits for data, and how many times as long as others, until that is a
# fault of this rank. Seen of a healthy loader with two ranks on two cores: 0.22 of the step.
_ALONE_SHARE, _ALONE_TIMES = 0.5, 10.0


def _measured(cluster: Cluster, *, ranks: int = 1) -> Steps:
    """The steps of all ranks. Raises NothingToJudge."""
    steps = step_times.steps(cluster)
    if steps is None:
        raise NothingToJudge("no training steps were timed")
    if len(steps.rows) < ranks:
        raise NothingToJudge("one rank has no peers")
    return steps


@rule("TRN019", "training does not wait for data", worst=State.WARN, commands=_JOBS)
def no_wait_for_data(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How long each rank waits for its next batch, in the median step of the training run.

    ## Why it matters
    While one rank waits for data, its GPU is idle, and so are all others: they wait for it in the backward pass,
    where it looks like a slow network.

    ## Seen as
    slow, wrong results

    ## How we know
    The time in the iterator's `next`, in steps with collectives. Expected is next to nothing: loader workers read
    ahead while the model computes. More than 10 % of the step (`TRN019.percent`) and 1 ms (`TRN019.ms`) is a
    warning. The worst rank of each node is named. On CPUs a step is no measure of what a GPU would take, and the
    loader shares the cores with the model: there it is a note, and a warning only for a rank that waits for half
    of its step and ten times as long as the median rank.

    ## Fix
    - **you** more `num_workers`, `persistent_workers=True`, a larger `prefetch_factor`; `ncclcheck data FACTORY`
      measures which values feed the GPU.
    - **you** one rank alone: see whether its shard lies on slower storage, or its samples are larger.
    - **admin** compare the storage of the named node with that of the others.

    ## Source
    PyTorch, torch.utils.data, Multi-process data loading; PyTorch, Performance Tuning Guide.
    """
    measured = _measured(cluster)
    nodes: dict[str, list[StepRow]] = {}
    for row in step_losses.hungry(cluster, measured):
        nodes.setdefault(row.fact.node, []).append(row)
    for rows in nodes.values():
        yield _waiting(measured, rows)


def _waiting(measured: Steps, rows: list[StepRow]) -> Finding:
    worst = max(rows, key=lambda row: row.full.phases.data)
    waits = worst.full.phases.data
    more = f" (and {len(rows) - 1} more of its node)" if len(rows) > 1 else ""
    wait = f"{duration(waits)} of each step of {duration(measured.step)}"
    usual = median_low(row.full.phases.data for row in measured.rows)
    alone = waits > max(_ALONE_SHARE * measured.step, _ALONE_TIMES * usual)
    return (warn if measured.on_gpus or alone else note)(
        Where(node=worst.fact.node, rank=worst.fact.rank),
        f"rank {worst.fact.rank}{more} waits {wait} for its data",
        why="Its GPU is idle meanwhile, and all other ranks wait for it."
        if measured.on_gpus
        else "All other ranks wait for it."
        if alone
        else "These ranks ran on CPUs: what share of a step on GPUs that is, is not known.",
        owner="job",
        evidence=[seen("time in the loader, median step", f"{wait}; expected is next to nothing")],
        fix=[
            you("Let workers read ahead.", "DataLoader(..., num_workers=4, persistent_workers=True)"),
            you("Measure which values feed the GPU.", "ncclcheck data MODULE:FACTORY"),
        ],
    )


@rule("TRN020", "no rank is a straggler", worst=State.FAIL, commands=_JOBS)
def no_straggler(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Each rank's own work for a training step, beside that of the others.

    ## Why it matters
    All ranks go at the pace of the slowest. In DDP the backward pass waits for it, so that every rank shows the
    same step time, and the slow one cannot be seen from outside.

    ## Seen as
    slow, wrong results

    ## How we know
    A step without collectives: the same model, loop and data, on all ranks at once, in turns with real steps;
    then one rank of each node at a time. A rank that is slow in both is named, with the phase in which it loses
    most; one that only waits for data is TRN019's. GPUs: from 1.10 times the others' time on a warning, from 1.25
    times on a failure; ranks on CPUs 1.5 and 2 times (`TRN020.ratio`, `TRN020.fail_ratio`), and by 1 ms at
    least; by the lower end of the median's interval. Time in which threads of a rank had no core
    (/proc/self/task/*/schedstat) is not its own: where the ranks of a node are slower together than alone, that is
    a note about the host; where one rank lacks a core for a quarter of its step, a note on CPUs and a warning on
    GPUs. Where most ranks do, or on CPUs, one that loses no more than the time in which it had no core is a note:
    chance decides which one it is. So is a rank on CPUs that was not timed alone, where any rank had no core
    for a twentieth of its step.

    ## Fix
    - **you** leave the named node out and run again; in the forward pass or optimizer: find what only this rank
      computes (logging, metrics, a larger sample).
    - **admin** clocks, power, temperature and PCIe width of the named GPU: `nvidia-smi -q -d PERFORMANCE,CLOCK`.

    ## Source
    traceopt-ai/traceml#252 (a backward straggler does not show in wall times), pytorch/pytorch#71303,
    intelligent-machine-learning/dlrover#678; proc(5), schedstat.
    """
    measured = _measured(cluster, ranks=2)
    most = cluster.policy.thresholds.get("TRN020.fail_ratio", 1.25 if measured.on_gpus else 2.0)
    for straggler in step_losses.slow(cluster, measured):
        yield _slow(straggler, failed=straggler.ratio >= most)
    chance = step_losses.slow_by_chance(cluster, measured)
    yield from map(_by_chance, chance)
    contended = step_times.contended(measured, step_losses.CONTENDED)
    for node, (alone, together) in contended.items():
        yield _contended(node, alone, together)
    for row in step_times.starved(measured, step_losses.straggler_ratio(cluster, measured)):
        if row.fact.node not in contended and row.fact not in [other.fact for other in chance]:
            yield _starved(measured, row)


def _slow(straggler: Straggler, *, failed: bool) -> Finding:
    fact = straggler.fact
    device = None if fact.device == "cpu" else fact.device
    times = (
        f"{duration(straggler.own)} a step, the others {duration(straggler.usual)} ({straggler.ratio:.2f} times)"
    )
    return (fail if failed else warn)(
        Where(node=fact.node, device=device, rank=fact.rank),
        f"rank {fact.rank}'s own work takes {times}, most of it lost in {step_times.PHASES[straggler.phase]}",
        why="All other ranks wait for it in every step, where it looks like a slow network.",
        owner="node" if straggler.phase == "backward" else "job",
        evidence=[
            seen("steps without collectives, time without a core excluded", times),
            seen(
                f"of it {step_times.PHASES[straggler.phase]}",
                f"{duration(straggler.phase_by)} more than the others",
            ),
        ],
        fix=[
            you("See what this rank does in that phase.", f"py-spy dump --pid PID  # on {quote(fact.node)}"),
            admin("Compare clocks, power and links with a healthy node.", "nvidia-smi -q -d PERFORMANCE,CLOCK"),
        ],
    )


def _by_chance(straggler: Straggler) -> Finding:
    """All ranks lack cores: nobody in particular is to blame."""
    fact = straggler.fact
    times = (
        f"{duration(straggler.own)} a step, the others {duration(straggler.usual)} ({straggler.ratio:.2f} times)"
    )
    core = fact.twin.core_us if fact.twin else None
    return note(
        Where(node=fact.node, rank=fact.rank),
        f"not judged, for the ranks wait for cores: rank {fact.rank}'s own work takes {times}",
        why="Where every rank lacks a core, the one that is slow is another one in the next run.",
        owner="node",
        evidence=[
            seen(
                "/proc/self/task/*/schedstat, without collectives",
                f"no core for {duration(core or 0)} of a step",
            )
        ],
        fix=[
            you("Run again when the machines are quiet, or give the job cores of its own."),
            admin("See what else takes the cores.", "top -b -n 1 | head -20"),
        ],
    )


def _contended(node: str, alone: float, together: float) -> Finding:
    times = f"{duration(alone)} alone, {duration(together)} together ({alone / together:.2f}; 1 is expected)"
    return note(
        Where(node=node),
        f"host contention: a step without collectives takes a rank {times}",
        why="The ranks of this node take each other's cores or memory bandwidth; no rank is slow by itself.",
        owner="job",
        evidence=[seen("alone / together, median over the node's ranks", times)],
        fix=[you("Fewer ranks or threads on the node, or more cores for the job.", "export OMP_NUM_THREADS=1")],
    )


def _starved(measured: Steps, row: StepRow) -> Finding:
    share = f"{duration(row.twin.core_us or 0)} of its step of {duration(row.twin.step_us.p50)}"
    return (warn if measured.on_gpus and not step_times.lack_cores(measured) else note)(
        Where(node=row.fact.node, rank=row.fact.rank),
        f"rank {row.fact.rank} has no core for {share}, the others need less time",
        why="Something else computes on its node: all ranks wait for it.",
        owner="node",
        evidence=[
            seen("/proc/self/task/*/schedstat, steps without collectives", f"{share}; next to nothing is expected")
        ],
        fix=[
            you("Give the job its cores: fewer loader workers, or --cpus-per-task."),
            admin("See what else runs on the node.", "top -b -n 1 | head -20"),
        ],
    )


@rule("TRN021", "communication overlaps with the backward pass", worst=State.WARN, commands=_JOBS)
def communication_is_hidden(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How much of a training step is communication that the backward pass does not hide, and what is left of the
    speed that the ranks would have without it.

    ## Why it matters
    DDP sends the gradients of the last layers while those of the first are computed. What is not hidden so, is
    added to each step: it is why eight GPUs may train no faster than four.

    ## Seen as
    slow, wrong results

    ## How we know
    A step with collectives less the slowest step without them. DDP's buckets are all-reduced alone as well.
    Expected: the last bucket (nothing is left to hide it), or by how much all of them take longer than the
    backward pass. On GPUs a step that loses 10 % (`TRN021.percent`) more than this is a warning; so is, with a
    model of your own, a loss of more than 25 % (`TRN021.share`) although it is as expected. On CPUs there is
    no expectation: communication takes the cores of the backward pass. It is a note where most ranks have no core
    for a quarter of their step without collectives (schedstat): kernels are then launched late.

    ## Fix
    - **you** as expected: a larger batch, gradient accumulation with `no_sync`, or bf16 gradients.
    - **you** more than expected: `bucket_cap_mb`, `gradient_as_bucket_view=True`, no `find_unused_parameters`;
      then `ncclcheck bench`, which measures the link alone.

    ## Source
    PyTorch, DistributedDataParallel (bucket_cap_mb), Distributed Data Parallel notes; pytorch/pytorch#73602;
    pytorch/torchtitan#2408; NVIDIA/Megatron-LM#3931.
    """
    measured = _measured(cluster, ranks=2)
    account = _account(cluster, measured)
    if measured.on_gpus and (reason := _too_much(cluster, measured)):
        worst = max(measured.rows, key=lambda row: row.comm)
        lack = step_times.lack_cores(measured)
        yield (note if lack else warn)(
            Where(node=worst.fact.node, rank=worst.fact.rank),
            f"{duration(measured.exposed)} of each step of {duration(measured.step)} are communication that is "
            f"not hidden: {reason}" + ("; not judged, for the ranks wait for cores" if lack else ""),
            why="It is added to each step of every rank.",
            owner="job",
            evidence=[seen("steps with and without collectives", account)],
            fix=[
                you("Send less often, or give the backward pass more to do.", "with model.no_sync(): ..."),
                you("Measure the link by itself.", "ncclcheck bench --ops all_reduce"),
            ],
        )
    else:
        yield fine(Where(), account, seen("steps with and without collectives", account))


def _account(cluster: Cluster, measured: Steps) -> str:
    """The numbers and what they should be."""
    communication = step_losses.communication(cluster)
    expected = "no expectation: communication takes the cores of the backward pass"
    if measured.on_gpus:
        expected = "not measured alone"
        if communication:
            expected = f"expected about {duration(step_times.exposure(communication, measured))}"
    alone = f", {duration(communication.alone_us.p50)} alone" if communication else ""
    return (
        f"scaling efficiency {measured.efficiency:.2f} (1 is ideal): {duration(measured.exposed)} of "
        f"{duration(measured.step)} are communication that is not hidden{alone}; {expected}"
    )


def _too_much(cluster: Cluster, measured: Steps) -> str:
    """Why it is more than it should be; empty where it is not."""
    communication, limits = step_losses.communication(cluster), cluster.policy.thresholds
    if communication is None:
        return ""
    expected = step_times.exposure(communication, measured)
    if measured.exposed - expected > limits.get("TRN021.percent", 10.0) / 100 * measured.step:
        return f"{duration(expected)} are expected, for by itself it takes {duration(communication.alone_us.p50)}"
    if not _is_users(cluster) or measured.exposed <= limits.get("TRN021.share", 25.0) / 100 * measured.step:
        return ""
    backward = median(row.twin.phases.backward for row in measured.rows)
    return (
        f"by itself it takes {duration(communication.alone_us.p50)}, the backward pass only {duration(backward)}"
    )


def _is_users(cluster: Cluster) -> bool:
    """Whether the model is the user's: the built-in ones are too small to hide anything."""
    smoke = cluster.measurements.smoke
    return bool(smoke and smoke.setup and ":" in smoke.setup.model)
