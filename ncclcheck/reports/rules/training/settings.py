"""TRN: what the user's own files say of saving, held against what saving takes here."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training.settings import DISTRIBUTED, GATHER, SHARDED, STAGE, STRATEGY
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, fine, note, seen, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.training.save_forecast import SAY, forecast, within
from ncclcheck.reports.subjects.training.save_settings import DEFAULT_S, SaveSettings, save_settings
from ncclcheck.reports.subjects.training.trained import place


@rule("TRN017", "the checkpoint settings suit the model", worst=State.FAIL, commands=("smoke",))
def suits(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The files given with `--settings` (ds_config.json, a script or YAML with TrainingArguments, an Accelerate
    configuration): whether ZeRO-3 gathers all weights on rank 0 to save them, and the timeout that the others
    wait in meanwhile. The files are read, never run.

    ## Why it matters
    Gathering a large model takes longer than the timeout: the watchdog ends the job in its first save, after
    hours. Not gathering leaves pieces that `from_pretrained` does not read.

    ## Seen as
    hangs, wrong results, dies

    ## How we know
    `stage3_gather_16bit_weights_on_model_save` (Accelerate: `zero3_save_16bit_model`) with stage 3, and
    `fsdp_state_dict_type` or Lightning's FSDPStrategy(state_dict_type=...), `strategy="fsdp"` (which gathers)
    and `"deepspeed_stage_3"`; `fsdp` and `fsdp_config` of TrainingArguments (which gather where no
    state_dict_type is given); NeMo's `fsdp_sharded_checkpoint` beside `fsdp: True`, its Megatron strategies and
    distributed formats, and a strategy as Hydra's `_target_`; `ddp_timeout` or the `timeout` of
    InitProcessGroupKwargs, init_process_group or Lightning's strategies; 1800 s where none is given, as DeepSpeed
    and transformers have it. A file that `deepspeed: FILE.json` names is read too. The seconds and their
    error bar are those of TRN016: with `--model-params`. What is "auto" is a note: Accelerate decides.

    ## Fix
    - **you** raise `ddp_timeout`, or Accelerate's `InitProcessGroupKwargs(timeout=timedelta(hours=2))`.
    - **you** `stage3_gather_16bit_weights_on_model_save: false`, and `zero_to_fp32.py` in the checkpoint's
      folder afterwards.

    ## Source
    DeepSpeed Configuration JSON; transformers, TrainingArguments, ddp_timeout; Accelerate, Kwargs handlers,
    InitProcessGroupKwargs; NVIDIA/NeMo, NLPFSDPStrategy (sharded_checkpoint); huggingface/accelerate#2912,
    deepspeedai/DeepSpeed#7533.
    """
    if not (cluster.measurements.smoke and cluster.measurements.smoke.settings):
        raise NothingToJudge("no file was given with --settings")
    settings = save_settings(cluster)
    if settings is None:
        raise NothingToJudge("the files ask neither for ZeRO stage 3 nor for FSDP's state_dict_type")
    if settings.gathers:
        yield _gathered(cluster, settings)
    elif settings.gathers is None:
        yield _undecided(settings)
    else:
        yield _in_pieces(settings)


def _in_pieces(settings: SaveSettings) -> Finding:
    name, value = settings.by.setting.name, settings.by.setting.value.lower()
    who, how, command = _PUT_TOGETHER["accelerate"]
    if name in STAGE + GATHER or "deepspeed" in value:
        who, how, command = _PUT_TOGETHER["zero"]
    elif name in DISTRIBUTED or "megatron" in value:
        who, how, command = _PUT_TOGETHER["megatron"]
    elif name in STRATEGY or "." in name or name in SHARDED:
        who, how, command = _PUT_TOGETHER["lightning"]
    return note(
        Where(device=settings.by.file.path),
        f"{who} saves pieces: {settings.by.words}",
        why=f"from_pretrained reads no pieces; {how}.",
        owner="job",
        evidence=[seen(settings.by.file.path, settings.by.words)],
        fix=[you("Put the pieces together after the run.", *command)],
    )


# Of what saves pieces: its name, what puts them together, and the command for that where one does for all models.
_PUT_TOGETHER = {
    "zero": ("ZeRO-3", "zero_to_fp32.py puts them together", ("python zero_to_fp32.py . model",)),
    "accelerate": (
        "FSDP", "accelerate merge-weights puts them together", ("accelerate merge-weights CHECKPOINT model",)
    ),
    "lightning": ("FSDP", "fabric consolidate puts them together", ("fabric consolidate CHECKPOINT",)),
    "megatron": ("Megatron", "llm.export_ckpt and the converters in NeMo's scripts write what it reads", ()),
}  # fmt: skip


def _undecided(settings: SaveSettings) -> Finding:
    return note(
        Where(device=settings.by.file.path),
        f"whether rank 0 gathers all weights is left to Accelerate: {settings.by.words}",
        why="Gathering a large model may take longer than the timeout; from_pretrained reads no pieces.",
        owner="job",
        evidence=[seen(settings.by.file.path, settings.by.words)],
        fix=[
            you("Say which it is to be: true gathers, false saves pieces.", f'"{settings.by.setting.name}": false')
        ],
    )


def _gathered(cluster: Cluster, asked: SaveSettings) -> Finding:
    limit = DEFAULT_S if asked.timeout is None else asked.seconds
    smoke = cluster.measurements.smoke
    sharded = smoke.saves.sharded if smoke and smoke.saves else None
    estimate = forecast(sharded) if sharded else None
    given = asked.timeout.words if asked.timeout else f"no timeout is given, {DEFAULT_S:g} s apply"
    evidence = [seen(asked.by.file.path, asked.by.words), seen("timeout", given)]
    where = Where(node=place(cluster, 0).node, device=asked.by.file.path)
    if estimate is None or limit is None:
        return note(
            where,
            f"rank 0 gathers all weights while the others wait; {given}",
            why="Whether that is enough depends on the model's size and on this storage.",
            owner="job",
            evidence=evidence,
            fix=[_unforecast(cluster, asked, limit)],
        )
    judged = within(cluster, estimate.gathered, estimate.weights_bytes, estimate.measured_bytes, limit)
    text = f"gathering and writing takes about {judged.words} here; {given}"
    if judged.state is State.OK:
        return fine(where, text, evidence[0])
    return SAY[judged.state](
        where,
        text,
        why="The watchdog would end the job in the middle of its first save.",
        owner="job",
        evidence=evidence,
        fix=[
            you("Give it more time.", f"ddp_timeout = {int(4 * estimate.gathered)}"),
            you("Or save pieces.", _PIECES.get(asked.by.setting.name, f"{asked.by.setting.name}: false")),
        ],
    )


_PIECES = {
    "fsdp_state_dict_type": "fsdp_state_dict_type: SHARDED_STATE_DICT",
    "FSDPStrategy.state_dict_type": 'FSDPStrategy(state_dict_type="sharded")',
    "FullyShardedDataParallelPlugin.state_dict_type": 'state_dict_type="SHARDED_STATE_DICT"',
    "state_dict_type": "state_dict_type: SHARDED_STATE_DICT",
    "strategy": 'strategy=FSDPStrategy(state_dict_type="sharded")',
    "_target_": "state_dict_type: sharded",
    "fsdp": 'fsdp_config={"state_dict_type": "SHARDED_STATE_DICT"}',
    "fsdp_sharded_checkpoint": "fsdp_sharded_checkpoint: True",
    "NLPFSDPStrategy.sharded_checkpoint": "NLPFSDPStrategy(sharded_checkpoint=True)",
}


def _unforecast(cluster: Cluster, asked: SaveSettings, limit: float | None) -> Remedy:
    """Why there is no forecast: a timeout that is no number, no time for it, or no size."""
    smoke = cluster.measurements.smoke
    why = (
        next((aspect for aspect in smoke.saves.unseen if aspect.part == "sharded"), None)
        if smoke and smoke.saves
        else None
    )
    if limit is None and asked.timeout:
        return you(f"Write {asked.timeout.setting.name} in numbers, so that it can be read.")
    if why:
        return you(f"No save was measured: {why.why}.", "ncclcheck smoke --settings FILE --time-budget 60")
    return you("Let it be forecast.", "ncclcheck smoke --settings FILE --model-params 70e9")
