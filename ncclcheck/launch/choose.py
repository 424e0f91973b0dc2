"""Which launcher runs this: the first that applies, and which variable or option chose it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ncclcheck.errors import UsageError
from ncclcheck.launch import local
from ncclcheck.launch.agents import Events, Link
from ncclcheck.options import Options
from ncclcheck.probes.facts import Launcher

LAUNCHERS: tuple[str, ...] = ("local", "slurm", "ssh", "join")


@dataclass(frozen=True)
class Choice:
    """The launcher, why it was chosen, and the nodes in its order. start(events, *agent options) starts agents."""

    launcher: Launcher
    chosen_by: str
    names: tuple[str, ...]
    start: Callable[..., list[Link]]

    @property
    def simulated(self) -> bool:
        """Whether several nodes share this machine."""
        return self.launcher == "local" and len(self.names) > 1


def choose(options: Options, env: Mapping[str, str]) -> Choice:
    """Choose by design §4. Raises UsageError for a launcher that this version does not bring."""
    asked = options.launch
    if asked not in (None, "local"):
        raise UsageError(f"--launch {asked}: this version brings no {asked} launcher yet; allowed is local")
    return _local(options, "--launch local" if asked else _why_local(env))


def _local(options: Options, chosen_by: str) -> Choice:
    names = local.names(options.nodes)

    def start(events: Events, *agent_options: str) -> list[Link]:
        return local.start(names, events, *agent_options)

    return Choice("local", chosen_by, names, start)


def _why_local(env: Mapping[str, str]) -> str:
    """This version knows the local launcher; it says which other one the environment would choose."""
    for name, what in (
        ("TORCHELASTIC_RUN_ID", "inside torchrun"),
        ("SLURM_STEP_ID", "inside a Slurm step"),
        ("SLURM_JOB_ID", "in a Slurm allocation"),
    ):
        if env.get(name):
            return f"{name} says {what}, whose launcher this version does not bring: only this machine"
    return "no hosts, no Slurm allocation, not inside torchrun"
