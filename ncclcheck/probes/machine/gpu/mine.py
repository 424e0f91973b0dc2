"""Which GPUs this job may use: CUDA_VISIBLE_DEVICES, else what Slurm has given, else all.

CUDA's numbers follow its own order (fastest first) unless CUDA_DEVICE_ORDER=PCI_BUS_ID; on a node with GPUs of one
model both are the order of NVML. Where models differ and the order is CUDA's own, a number names no GPU for sure,
and all count as the job's.
"""

from __future__ import annotations

from collections.abc import Mapping

from ncclcheck.probes.facts import Gpu, Unread, value_or

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


def split(cards: list[Gpu], env: Mapping[str, str]) -> tuple[list[Gpu], list[Gpu], str]:
    """Cards that the job may use, the others, and the variable that says so (empty: none does)."""
    if _VISIBLE in env:
        mine = _visible(cards, env[_VISIBLE].split(","), in_order=env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID")
        return *_parted(cards, mine), _VISIBLE
    for name in _SLURM:
        given = [part.strip() for part in env.get(name, "").split(",") if part.strip()]
        if given and len(given) < len(cards) and all(part.isdecimal() for part in given):
            return *_parted(cards, {int(part) for part in given if len(part) < 5}), name
    return cards, [], ""


def _parted(cards: list[Gpu], mine: set[int]) -> tuple[list[Gpu], list[Gpu]]:
    return [c for c in cards if c.index in mine], [c for c in cards if c.index not in mine]


def _visible(cards: list[Gpu], parts: list[str], *, in_order: bool) -> set[int]:
    """Indices. CUDA stops at the first entry that names no device."""
    models = {value_or(card.model, "") for card in cards if not isinstance(card.model, Unread)}
    indices: set[int] = set()
    for part in (part.strip() for part in parts):
        if part.isdecimal() and len(models) > 1 and not in_order:
            return {card.index for card in cards}
        named = [card.index for card in cards if _is_named(card, part)]
        if len(named) != 1:
            break
        indices.add(named[0])
    return indices


def _is_named(card: Gpu, part: str) -> bool:
    """By number, by the beginning of its UUID, or by a MIG instance of it."""
    if part.isdecimal():
        return len(part) < 5 and card.index == int(part)
    instances = value_or(card.mig_instances, [])
    uuid = value_or(card.uuid, "")
    return len(part) > 4 and (uuid.startswith(part) or any(instance.startswith(part) for instance in instances))
