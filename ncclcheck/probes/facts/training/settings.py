"""What the user's own files say of saving: those of DeepSpeed, transformers and Accelerate."""

from __future__ import annotations

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Count

# Names of settings, each group the same thing: of DeepSpeed (also before 0.6), Accelerate, transformers, Lightning
# and torch. What is a keyword of a call in Python stands after the call's name.
STAGE = ("stage", "zero_stage")
GATHER = (
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
    "zero3_save_16bit_model",
)
STATE_DICT = (
    "fsdp_state_dict_type",
    "state_dict_type",
    "FSDPStrategy.state_dict_type",
    "FullyShardedDataParallelPlugin.state_dict_type",
)
STRATEGY = ("strategy",)
TIMEOUT = (
    "ddp_timeout",
    "InitProcessGroupKwargs.timeout",
    "init_process_group.timeout",
    "FSDPStrategy.timeout",
    "DDPStrategy.timeout",
    "DeepSpeedStrategy.timeout",
)
NAMES = STAGE + GATHER + STATE_DICT + STRATEGY + TIMEOUT


class SaveSetting(Struct, frozen=True, kw_only=True):
    """One setting, under the name that its file gives it; line 0: of a JSON file."""

    name: str
    value: str
    line: Count = 0


class SettingsFile(Struct, frozen=True, kw_only=True):
    """The settings in a file that saving depends on. settings: in their order there."""

    path: str
    settings: list[SaveSetting] = field(default_factory=list)
