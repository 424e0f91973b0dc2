"""One process that drives several GPUs (nn.DataParallel): whether the model is such a one."""

from __future__ import annotations

import torch
from torch import nn

from ncclcheck.probes.facts.training import DataParallels
from ncclcheck.probes.training.feed import Batch
from ncclcheck.probes.training.loop import Setting

_NAMED = 8


def seen(setting: Setting, _batch: Batch) -> DataParallels:
    """What stands in the model, and how many GPUs each rank could drive."""
    wrapped = [name or "model" for name, one in setting.model.named_modules() if isinstance(one, nn.DataParallel)]
    context = setting.context
    return DataParallels(
        wrapped=wrapped[:_NAMED],
        gpus=torch.cuda.device_count() if setting.device.type == "cuda" else 0,
        ranks=list(context.node_of).count(context.node),
    )
