"""TRN: what the user's own files say of saving, held against what saving takes here."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
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
    and `"deepspeed_stage_3"`; `ddp_timeout` or the `timeout` of
    InitProcessGroupKwargs, init_process_group or Lightning's strategies; 1800 s where none is given, as DeepSpeed
    and transformers have it. A file that `deepspeed: FILE.json` names is read too. The seconds and their
    error bar are those of TRN016: with `--model-params`. What is "auto" is a note: Accelerate decides.

    ## Fix
    - **you** raise `ddp_timeout`, or Accelerate's `InitProcessGroupKwargs(timeout=timedelta(hours=2))`.
    - **you** `stage3_gather_16bit_weights_on_model_save: false`, and `zero_to_fp32.py` in the checkpoint's
      folder afterwards.

    ## Source
    DeepSpeed Configuration JSON; transformers, TrainingArguments, ddp_timeout; Accelerate, Kwargs handlers,
    InitProcessGroupKwargs; huggingface/accelerate#2912, deepspeedai/DeepSpeed#7533.
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
    zero = not settings.by.setting.name.endswith("state_dict_type")  # Lightning's `deepspeed_stage_3` is ZeRO too
    told = (
        ("zero_to_fp32.py puts them together", "python zero_to_fp32.py . model")
        if zero
        else ("accelerate merge-weights puts them together", "accelerate merge-weights CHECKPOINT model")
    )
    return note(
        Where(device=settings.by.file.path),
        f"{'ZeRO-3' if zero else 'FSDP'} saves pieces: {settings.by.words}",
        why=f"from_pretrained reads no pieces; {told[0]}.",
        owner="job",
        evidence=[seen(settings.by.file.path, settings.by.words)],
        fix=[you("Put the pieces together after the run.", told[1])],
    )


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
    found = forecast(sharded) if sharded else None
    said = asked.timeout.words if asked.timeout else f"no timeout is given, {DEFAULT_S:g} s apply"
    evidence = [seen(asked.by.file.path, asked.by.words), seen("timeout", said)]
    where = Where(node=place(cluster, 0).node, device=asked.by.file.path)
    if found is None or limit is None:
        return note(
            where,
            f"rank 0 gathers all weights while the others wait; {said}",
            why="Whether that is enough depends on the model's size and on this storage.",
            owner="job",
            evidence=evidence,
            fix=[_unforecast(cluster, asked, limit)],
        )
    judged = within(cluster, found.gathered, found.weights_bytes, found.measured_bytes, limit)
    told = f"gathering and writing takes about {judged.words} here; {said}"
    if judged.state is State.OK:
        return fine(where, told, evidence[0])
    return SAY[judged.state](
        where,
        told,
        why="The watchdog would end the job in the middle of its first save.",
        owner="job",
        evidence=evidence,
        fix=[
            you("Give it more time.", f"ddp_timeout = {int(4 * found.gathered)}"),
            you("Or save pieces.", _PIECES.get(asked.by.setting.name, f"{asked.by.setting.name}: false")),
        ],
    )


_PIECES = {
    "fsdp_state_dict_type": "fsdp_state_dict_type: SHARDED_STATE_DICT",
    "FSDPStrategy.state_dict_type": 'FSDPStrategy(state_dict_type="sharded")',
    "FullyShardedDataParallelPlugin.state_dict_type": 'state_dict_type="SHARDED_STATE_DICT"',
    "state_dict_type": "state_dict_type: SHARDED_STATE_DICT",
    "strategy": 'strategy=FSDPStrategy(state_dict_type="sharded")',
}


def _unforecast(cluster: Cluster, asked: SaveSettings, limit: float | None) -> Remedy:
    """Why there is no forecast: a timeout that is no number, no time for it, or no size."""
    smoke = cluster.measurements.smoke
    why = (
        next((unsaved for unsaved in smoke.saves.unseen if unsaved.part == "sharded"), None)
        if smoke and smoke.saves
        else None
    )
    if limit is None and asked.timeout:
        return you(f"Write {asked.timeout.setting.name} in numbers, so that it can be read.")
    if why:
        return you(f"No save was measured: {why.why}.", "ncclcheck smoke --settings FILE --time-budget 60")
    return you("Let it be forecast.", "ncclcheck smoke --settings FILE --model-params 70e9")
