"""How the user's own files say that a run saves: whether rank 0 gathers all weights, and the timeout. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training.settings import (
    DISTRIBUTED,
    FSDP,
    GATHER,
    SHARDED,
    STAGE,
    STATE_DICT,
    STRATEGY,
    TIMEOUT,
    SaveSetting,
    SettingsFile,
)

DEFAULT_S = 1800.0  # of DeepSpeed, of transformers' ddp_timeout and of Lightning's strategies


@dataclass(frozen=True)
class StatedSetting:
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
    by: StatedSetting
    timeout: StatedSetting | None
    seconds: float | None


def save_settings(cluster: Cluster) -> SaveSettings | None:
    """The last word of the files that were given; None where they say nothing of saving shards."""
    limit = _limit(cluster)
    stage, gather, kind, strategy = (_last(cluster, names) for names in (STAGE, GATHER, STATE_DICT, STRATEGY))
    if stage and stage.setting.value == "3":
        value = gather.setting.value if gather else "false"
        return SaveSettings(None if value == "auto" else value == "true", gather or stage, *limit)
    if kind:
        return SaveSettings("full" in kind.setting.value.lower(), kind, *limit)
    sharded, fsdp = _last(cluster, SHARDED), _last(cluster, FSDP)
    if sharded and (fsdp or "." in sharded.setting.name):  # what is off in NeMo's file has its line there too
        return SaveSettings(sharded.setting.value != "true", sharded, *limit)
    if strategy and (gathers := _strategy(strategy.setting.value.lower())) is not None:
        return SaveSettings(gathers, strategy, *limit)
    if fsdp:
        return SaveSettings(True, fsdp, *limit)  # transformers and NeMo gather where they are not told otherwise
    if pieces := _last(cluster, DISTRIBUTED):
        return SaveSettings(False, pieces, *limit)
    return None


def _strategy(value: str) -> bool | None:
    """Whether a strategy gathers: Lightning's FSDPStrategy does, those of FSDP2 and Megatron do not."""
    if "stage_3" in value or any(name in value for name in ("megatron", "fsdp2", "modelparallel")):
        return False
    return True if "fsdp" in value else None


def timeout(cluster: Cluster) -> tuple[StatedSetting, float] | None:
    """The timeout that the files give, whatever else they say."""
    given, seconds = _limit(cluster)
    return (given, seconds) if given and seconds is not None else None


def _limit(cluster: Cluster) -> tuple[StatedSetting | None, float | None]:
    given = _last(cluster, TIMEOUT)
    return given, _seconds(given.setting.value) if given else None


def _last(cluster: Cluster, names: tuple[str, ...]) -> StatedSetting | None:
    files = cluster.measurements.smoke.settings if cluster.measurements.smoke else []
    saids = [StatedSetting(file, setting) for file in files for setting in file.settings if setting.name in names]
    return saids[-1] if saids else None


def _seconds(value: str) -> float | None:
    try:
        return max(0.0, min(1e9, float(value)))
    except ValueError:
        return None
