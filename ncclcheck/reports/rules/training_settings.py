"""TRN: what the user's own files say of saving, held against what saving takes here."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training.settings import SaveSetting, SettingsFile
from ncclcheck.reports.findings import Finding, State, Where, fail, fine, note, seen, warn, you
from ncclcheck.reports.rule import NothingToJudge, rule
from ncclcheck.reports.save_forecast import forecast
from ncclcheck.reports.trained import place

_STAGE = ("stage", "zero_stage")
_GATHER = (
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
    "zero3_save_16bit_model",
)
_TIMEOUT = ("ddp_timeout", "InitProcessGroupKwargs.timeout", "init_process_group.timeout")
_DEFAULT_S = 1800.0  # of DeepSpeed, and of transformers' ddp_timeout


@rule("TRN017", "the settings of the save suit the model", worst=State.FAIL, commands=("smoke",))
def suits(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The files given with `--settings` (ds_config.json, a script or YAML with TrainingArguments, an Accelerate
    configuration): whether ZeRO-3 gathers all weights on rank 0 to save them, and the timeout that the others
    wait in meanwhile. The files are read, never run.

    ## Why it matters
    Gathering a large model takes longer than the timeout: the watchdog ends the job in its first save, after
    hours. Not gathering leaves pieces that `from_pretrained` does not read.

    ## How we know
    `stage3_gather_16bit_weights_on_model_save` (Accelerate: `zero3_save_16bit_model`) with stage 3, and
    `ddp_timeout` or the `timeout` of InitProcessGroupKwargs or init_process_group; 1800 s where none is given,
    as DeepSpeed and transformers have it. The seconds are those of TRN016: with `--model-params`.

    ## Fix
    - **you** raise `ddp_timeout`, or Accelerate's `InitProcessGroupKwargs(timeout=timedelta(hours=2))`.
    - **you** `stage3_gather_16bit_weights_on_model_save: false`, and `zero_to_fp32.py` in the checkpoint's
      folder afterwards.

    ## Source
    DeepSpeed Configuration JSON; transformers, TrainingArguments, ddp_timeout; Accelerate, Kwargs handlers,
    InitProcessGroupKwargs; huggingface/accelerate#2912, deepspeedai/DeepSpeed#7533.
    """
    files = cluster.measurements.smoke.settings if cluster.measurements.smoke else []
    if not files:
        raise NothingToJudge("no file was given with --settings")
    stage, gather, timeout = _last(files, _STAGE), _last(files, _GATHER), _last(files, _TIMEOUT)
    if stage is None or stage[1].value != "3":
        raise NothingToJudge("the files do not ask for ZeRO stage 3")
    if gather is None or gather[1].value != "true":
        yield _in_pieces(gather or stage)
    else:
        yield _gathered(cluster, gather, timeout)


_Said = tuple[SettingsFile, SaveSetting]


def _last(files: list[SettingsFile], names: tuple[str, ...]) -> _Said | None:
    """The last word on it."""
    found = [(file, one) for file in files for one in file.settings if one.name in names]
    return found[-1] if found else None


def _words(said: _Said) -> str:
    file, one = said
    return f"{file.path}{f':{one.line}' if one.line else ''}: {one.name} = {one.value}"


def _in_pieces(said: _Said) -> Finding:
    return note(
        Where(device=said[0].path),
        f"ZeRO-3 saves pieces: {_words(said)}",
        why="from_pretrained reads no pieces; DeepSpeed's zero_to_fp32.py puts them together.",
        owner="job",
        evidence=[seen(said[0].path, _words(said))],
        fix=[you("Put the pieces together after the run.", "python zero_to_fp32.py . model")],
    )


def _gathered(cluster: Cluster, gather: _Said, timeout: _Said | None) -> Finding:
    limit = _seconds(timeout[1].value) if timeout else _DEFAULT_S
    smoke = cluster.measurements.smoke
    sharded = smoke.saves.sharded if smoke and smoke.saves else None
    found = forecast(sharded) if sharded else None
    said = _words(timeout) if timeout else f"no timeout is given, {_DEFAULT_S:g} s apply"
    evidence = [seen(gather[0].path, _words(gather)), seen("timeout", said)]
    where = Where(node=place(cluster, 0).node, device=gather[0].path)
    if found is None or limit is None:
        return note(
            where,
            f"rank 0 gathers all weights while the others wait; {said}",
            why="Whether that is enough depends on the model's size and on this storage.",
            owner="job",
            evidence=evidence,
            fix=[you("Let it be forecast.", "ncclcheck smoke --settings FILE --model-params 70e9")],
        )
    told = f"gathering and writing takes about {found.gathered:.0f} s here; {said}"
    share = cluster.policy.thresholds.get("TRN016.share", 0.5)
    if found.gathered <= share * limit:
        return fine(where, told, evidence[0])
    return (fail if found.gathered > limit else warn)(
        where,
        told,
        why="The watchdog would end the job in the middle of its first save.",
        owner="job",
        evidence=evidence,
        fix=[
            you("Give it more time.", f"ddp_timeout = {int(4 * found.gathered)}"),
            you("Or save pieces.", f"{gather[1].name}: false"),
        ],
    )


def _seconds(value: str) -> float | None:
    try:
        return max(0.0, min(1e9, float(value)))
    except ValueError:
        return None
