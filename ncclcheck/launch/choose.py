"""Which launcher runs this: the first that applies, and which variable or option chose it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclcheck.errors import UsageError
from ncclcheck.probes.facts import Launcher

LAUNCHERS: tuple[str, ...] = ("local", "slurm", "ssh", "join")


@dataclass(frozen=True)
class Choice:
    """The launcher, and why it was chosen, in words."""

    launcher: Launcher
    chosen_by: str


def choose(asked: str | None, env: Mapping[str, str]) -> Choice:
    """Choose by design §4. Raises UsageError for a launcher that this version does not bring."""
    if asked is None:
        return _by_environment(env)
    if asked != "local":
        raise UsageError(f"--launch {asked}: this version brings no {asked} launcher yet; allowed is local")
    return Choice("local", "--launch local")


def _by_environment(env: Mapping[str, str]) -> Choice:
    """This version knows the local launcher; it says which other one the environment would choose."""
    for name, what in (
        ("TORCHELASTIC_RUN_ID", "inside torchrun"),
        ("SLURM_STEP_ID", "inside a Slurm step"),
        ("SLURM_JOB_ID", "in a Slurm allocation"),
    ):
        if env.get(name):
            return Choice(
                "local", f"{name} says {what}, whose launcher this version does not bring: only this machine"
            )
    return Choice("local", "no hosts, no Slurm allocation, not inside torchrun")


def local_nodes(asked: int | None) -> int:
    """`--nodes` for the local launcher. Raises UsageError."""
    nodes = 1 if asked is None else asked
    if not 1 <= nodes <= 64:
        raise UsageError(f"--nodes: {nodes} is out of range; allowed are 1 to 64 on one machine")
    return nodes
