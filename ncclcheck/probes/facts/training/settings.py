"""What the user's own files say of saving: of DeepSpeed, transformers, Accelerate, Lightning and NeMo."""

from __future__ import annotations

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Count

# Names of settings, each group the same thing: of DeepSpeed (also before 0.6), Accelerate, transformers,
# Lightning, NeMo and torch. What is a keyword of a call in Python stands after the call's name.
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
# `fsdp` of TrainingArguments and of NeMo's model; the others of NeMo, whose FSDP gathers unless they are true.
FSDP = ("fsdp",)
SHARDED = ("fsdp_sharded_checkpoint", "NLPFSDPStrategy.sharded_checkpoint")
# Of Megatron and NeMo: a distributed checkpoint, of which each rank writes its part.
DISTRIBUTED = ("dist_ckpt_format", "save_ckpt_format", "ckpt_format")
# `_target_`: of a file for Hydra, as NeMo has it.
STRATEGY = ("strategy", "_target_")
TIMEOUT = (
    "ddp_timeout",
    "InitProcessGroupKwargs.timeout",
    "init_process_group.timeout",
    "FSDPStrategy.timeout",
    "DDPStrategy.timeout",
    "DeepSpeedStrategy.timeout",
    "timeout_minutes",
)
NAMES = STAGE + GATHER + STATE_DICT + FSDP + SHARDED + DISTRIBUTED + STRATEGY + TIMEOUT


class SaveSetting(Struct, frozen=True, kw_only=True):
    """One setting, under the name that its file gives it; line 0: of a JSON file."""

    name: str
    value: str
    line: Count = 0


class SettingsFile(Struct, frozen=True, kw_only=True):
    """The settings in a file that saving depends on. settings: in their order there."""

    path: str
    settings: list[SaveSetting] = field(default_factory=list)
