"""TRN: whether a large model could be saved here: within the timeout, and within rank 0's memory."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, at
from ncclcheck.probes.facts.training.saves import ShardedSave
from ncclcheck.reports.judgement.findings import Finding, State, Where, fail, fine, seen, unknown, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.training.save_forecast import SAY, SaveForecast, forecast, within
from ncclcheck.reports.subjects.training.save_settings import save_settings, timeout
from ncclcheck.reports.subjects.training.trained import place
from ncclcheck.reports.text.words.fold import size

_JOBS = ("smoke",)


def _measured(cluster: Cluster) -> tuple[ShardedSave, SaveForecast]:
    """The save that was measured, and what it says of the user's model. Raises NothingToJudge."""
    smoke = cluster.measurements.smoke
    saves = smoke.saves if smoke else None
    if saves is None or saves.sharded is None:
        why = next((entry.why for entry in saves.unseen if entry.part == "sharded"), "") if saves else ""
        raise NothingToJudge(why or "no save of a sharded model was measured")
    estimate = forecast(saves.sharded)
    if estimate is None:
        asked = "no model was named: --model-params 70e9 forecasts its save"
        raise NothingToJudge(saves.sharded.problems[0].problem if saves.sharded.problems else asked)
    return saves.sharded, estimate


@rule("TRN016", "saving the model takes less than the timeout", worst=State.FAIL, commands=_JOBS)
def fits_timeout(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    A model in pieces (fully_shard), as large as `--save-mib` allows: how long it takes until rank 0 has
    gathered all and written it, and until each rank has written its own piece; extrapolated to
    `--model-params`.

    ## Why it matters
    While rank 0 writes, the other ranks wait in the next collective. After the process group's timeout (10
    minutes with nccl since torch 2.2, 30 before) the watchdog ends all of them, in the middle of the save.

    ## Seen as
    hangs, wrong results

    ## How we know
    Seconds grow with bytes: 2 bytes a parameter for 16-bit weights that rank 0 gathers, 14 for the whole state
    with Adam in mixed precision, written in pieces. The seconds have an error bar: a factor of 1.3 up to 10 times
    what was measured, 1.75 up to 100 times, 3 beyond. Where its lower end is more than half of the timeout
    (`TRN016.share`) it is a warning, beyond all of it a failure, but beyond 100 times what was measured never more
    than a warning. The timeout is that of the files given with `--settings`, else `--timeout`; where they save
    pieces nothing is gathered. A page cache makes a small save seem fast: it is flushed
    with fsync for that reason, and a file system's burst buffer may still flatter it.

    ## Fix
    - **you** save pieces: `torch.distributed.checkpoint.save` (asynchronously with `async_save`, torch 2.4 and
      later); DeepSpeed: `stage3_gather_16bit_weights_on_model_save: false` and `zero_to_fp32.py` afterwards.
    - **you** a longer timeout: `init_process_group(timeout=timedelta(hours=1))`, `--ddp_timeout 3600` of
      transformers, `InitProcessGroupKwargs(timeout=...)` of Accelerate.

    ## Source
    huggingface/accelerate#2912 (the limit is 1,800 s, saving took 2,954 s), deepspeedai/DeepSpeed#7533,
    pytorch/pytorch#143536; DeepSpeed Configuration JSON, stage3_gather_16bit_weights_on_model_save.
    """
    measured, estimate = _measured(cluster)
    asked, given = save_settings(cluster), timeout(cluster)
    limit = given[1] if given else measured.timeout_s
    small = f"{size(measured.bytes)} took {measured.gather_s:.2f} s to gather, {measured.write_s:.2f} s to write"
    ways = [
        ("gathers and writes the weights on rank 0", estimate.gathered, estimate.weights_bytes, True),
        ("writes the whole state in pieces", estimate.pieces, estimate.state_bytes, False),
    ]
    for words, seconds, total, gathers in ways:
        if gathers and asked and asked.gathers is False:
            continue
        judged = within(cluster, seconds, total, estimate.measured_bytes, limit)
        text = f"a model of {measured.parameters:.3g} parameters {words} ({size(total)}) in about {judged.words}"
        by = given[0].words if given else f"--timeout {limit:g} s"
        evidence = seen("measured here", f"{small}, pieces {measured.shards_s:.2f} s; {by}")
        if judged.state is State.OK:
            yield fine(Where(device=measured.folder), text, evidence)
            continue
        yield SAY[judged.state](
            place(cluster, 0),
            f"{text}; the process group's timeout is {limit:g} s",
            why="The other ranks wait meanwhile, and the watchdog would end them in the middle of the save."
            if judged.state is not State.NOTE
            else "The forecast is from a small save: measure a larger one to be sure.",
            owner="job",
            evidence=[evidence],
            fix=_FIXES[gathers] if judged.state is not State.NOTE else [_MEASURE],
        )


_MORE_TIME = you("Give the process group more time.", "init_process_group(timeout=timedelta(hours=1))")
_FIXES = {
    True: [
        you(
            "Save pieces, asynchronously.",
            "torch.distributed.checkpoint.async_save(state, checkpoint_id=path)",
        ),
        _MORE_TIME,
    ],
    False: [
        you(
            "Save asynchronously, so that training goes on meanwhile.",
            "torch.distributed.checkpoint.async_save(state, checkpoint_id=path)",
        ),
        _MORE_TIME,
    ],
}
_MEASURE = you("Measure a larger save.", "ncclcheck smoke --model-params 70e9 --save-mib 4096 --time-budget 120")


@rule("TRN018", "rank 0 has enough host memory to save the model", worst=State.FAIL, commands=_JOBS)
def fits_memory(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The host memory that rank 0 needs to gather the 16-bit weights of a model of `--model-params`, beside what
    its node, or its container, has free.

    ## Why it matters
    A save that gathers on rank 0 is killed by the kernel's OOM killer there, and the other ranks time out: the
    report of the job shows an NCCL timeout.

    ## Seen as
    hangs, wrong results, dies

    ## How we know
    2 bytes a parameter, more than which is free: a failure. Some ways of saving copy them once more (16-bit
    weights that are converted, tensors that share memory): where twice as much is more than 80 % of what is free
    (`TRN018.share`), it is a warning. Free memory is MemAvailable or the cgroup's limit, whichever is less.
    The job reports where rank 0 ran.

    ## Fix
    - **you** save pieces (`torch.distributed.checkpoint`), or ask for more memory: `--mem=0` in Slurm takes all
      of a node's, a container's limit is `resources.limits.memory`.

    ## Source
    DeepSpeed Configuration JSON, stage3_gather_16bit_weights_on_model_save; cgroups(7), memory.max; huggingface/
    accelerate#2912.
    """
    measured, estimate = _measured(cluster)
    if (asked := save_settings(cluster)) and asked.gathers is False:
        raise NothingToJudge(f"nothing is gathered: {asked.by.words}")
    needed, where = estimate.weights_bytes, place(cluster, 0)
    home = next((node for node in cluster.nodes if node.name == where.node), None)
    free = _free(home) if home else None
    text = f"to gather {measured.parameters:.3g} parameters in 16 bits rank 0 needs {size(needed)} or twice that"
    if free is None:
        yield unknown(where, f"{text}; what it has was not seen", why="It would be killed while the others wait.")
    elif 2 * needed <= cluster.policy.thresholds.get("TRN018.share", 0.8) * free:
        yield fine(where, f"{text}, and has {size(free)}", seen("memory that is free", size(free)))
    else:
        yield (fail if needed > free else warn)(
            where,
            f"{text}, and has {size(free)}",
            why="The kernel would kill it in the middle of the save, and all others would wait for it.",
            owner="job",
            evidence=[seen("MemAvailable or the cgroup's limit, whichever is less", size(free))],
            fix=[you("Save pieces instead.", "torch.distributed.checkpoint.save(state, checkpoint_id=path)")],
        )


def _free(node: Node) -> float | None:
    facts = (at(node, "host.memory_available"), at(node, "host.memory_limit"))
    return min((float(fact) for fact in facts if isinstance(fact, int)), default=None)
