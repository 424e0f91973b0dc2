"""ZeRO-3 of DeepSpeed, whose engine has its own backward pass and its own save: what is left to look at."""

from __future__ import annotations

import importlib.util

import msgspec

from ncclcheck.probes.facts import Measurements
from ncclcheck.probes.facts.training import Checks, Side, Smoke, Unchecked
from ncclcheck.probes.training.equal.alike import of_all_ranks
from ncclcheck.probes.training.loop import TrainingSetting
from ncclcheck.probes.training.saves import places

_OWN = "DeepSpeed's engine runs a backward pass and a save of its own; --strategy fsdp looks at this"


def run(setting: TrainingSetting) -> None:
    """Tell why checks, times and the sharded save are not looked at. A collective."""
    lacking = [rank for rank, there in enumerate(of_all_ranks(setting.peers, _is_there())) if not there]
    why = f"--strategy zero3: {_missing(setting, lacking[0]) if lacking else _OWN}"
    if setting.context.rank == 0:
        checks = [name for name in Checks.__struct_fields__ if name != "unchecked"]
        beside = [name for name in Side.__struct_fields__ if name != "unseen"]
        setting.context.emit(
            Measurements(
                smoke=Smoke(
                    checks=Checks(unchecked=[Unchecked(check=name, why=why) for name in checks]),
                    side=msgspec.convert({"unseen": [{"what": name, "why": why} for name in beside]}, Side),
                )
            )
        )
    places.unseen(setting, "sharded", why)


def _is_there() -> bool:
    return importlib.util.find_spec("deepspeed") is not None


def _missing(setting: TrainingSetting, rank: int) -> str:
    node = setting.context.node_of[rank]
    return f"rank {rank} on {node} has no deepspeed (pip install deepspeed); --strategy fsdp needs none"
