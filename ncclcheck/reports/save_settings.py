"""How the user's own files say that a run saves: whether rank 0 gathers all weights, and the timeout. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training.settings import SaveSetting, SettingsFile

_STAGE = ("stage", "zero_stage")
_GATHER = (
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
    "zero3_save_16bit_model",
)
_FULL = ("fsdp_state_dict_type", "FSDPStrategy.state_dict_type")
_TIMEOUT = (
    "ddp_timeout",
    "InitProcessGroupKwargs.timeout",
    "init_process_group.timeout",
    "FSDPStrategy.timeout",
    "DDPStrategy.timeout",
    "DeepSpeedStrategy.timeout",
)
DEFAULT_S = 1800.0  # of DeepSpeed, of transformers' ddp_timeout and of Lightning's strategies


@dataclass(frozen=True)
class Said:
    """A setting, and the file that has it."""

    file: SettingsFile
    setting: SaveSetting

    @property
    def words(self) -> str:
        """`ds.json: stage = 3`."""
        line = f":{self.setting.line}" if self.setting.line else ""
        return f"{self.file.path}{line}: {self.setting.name} = {self.setting.value}"


@dataclass(frozen=True)
class SaveSettings:
    """gathers: whether rank 0 gathers all weights; None: another program decides. by: the setting that says so.

    seconds: the timeout of the process group; None: it is no number, or not given.
    """

    gathers: bool | None
    by: Said
    timeout: Said | None
    seconds: float | None


def save_settings(cluster: Cluster) -> SaveSettings | None:
    """The last word of the files that were given; None where they say nothing of saving shards."""
    files = cluster.measurements.smoke.settings if cluster.measurements.smoke else []
    stage, gather, full = _last(files, _STAGE), _last(files, _GATHER), _last(files, _FULL)
    timeout = _last(files, _TIMEOUT)
    seconds = _seconds(timeout.setting.value) if timeout else None
    if stage and stage.setting.value == "3":
        value = gather.setting.value if gather else "false"
        gathers = None if value == "auto" else value == "true"
        return SaveSettings(gathers, gather or stage, timeout, seconds)
    if full:
        return SaveSettings("full" in full.setting.value.lower(), full, timeout, seconds)
    return None


def timeout(cluster: Cluster) -> tuple[Said, float] | None:
    """The timeout that the files give, whatever else they say."""
    files = cluster.measurements.smoke.settings if cluster.measurements.smoke else []
    found = _last(files, _TIMEOUT)
    seconds = _seconds(found.setting.value) if found else None
    return (found, seconds) if found and seconds is not None else None


def _last(files: Sequence[SettingsFile], names: tuple[str, ...]) -> Said | None:
    found = [Said(file, one) for file in files for one in file.settings if one.name in names]
    return found[-1] if found else None


def _seconds(value: str) -> float | None:
    try:
        return max(0.0, min(1e9, float(value)))
    except ValueError:
        return None
