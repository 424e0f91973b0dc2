"""Which launcher runs this: the first that applies, and which variable or option chose it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ncclcheck.base.errors import UsageError
from ncclcheck.base.progress import Progress
from ncclcheck.launch import local
from ncclcheck.launch.agents import Events, Link
from ncclcheck.launch.joining.trust.identity import JoinIdentity, identity
from ncclcheck.probes.facts import Launcher
from ncclcheck.run.plan.options import Options

if TYPE_CHECKING:
    from ncclcheck.launch.join import JoinLead
    from ncclcheck.launch.remote.plain_step import PlainStepTrial

# A launcher is imported when it is chosen: `env` on one machine starts in half the time.
_NODELIST = "SLURM_JOB_NODELIST"
Start = Callable[..., list[Link]]


@dataclass(frozen=True)
class LauncherChoice:
    """The launcher, why it was chosen, and the nodes in its order.

    start(events, progress, *agent options) starts the agents. who: our place in a join; lead: node rank 0's part.
    step: what a plain job step meets, beside our own.
    ranks_per_node: what the job system has started on each node.
    """

    launcher: Launcher
    chosen_by: str
    names: tuple[str, ...]
    start: Start
    who: JoinIdentity | None = None
    lead: JoinLead | None = None
    step: PlainStepTrial | None = None

    @property
    def simulated(self) -> bool:
        """Whether several nodes share this machine."""
        return self.launcher == "local" and len(self.names) > 1

    @property
    def ranks_per_node(self) -> int | None:
        """How many ranks the job system wants on each node; None where it says nothing."""
        return self.who.ranks_per_node if self.who else None


def choose(options: Options, env: Mapping[str, str]) -> LauncherChoice:
    """Choose by design §4. Raises UsageError for what contradicts or is missing."""
    asked = options.launch
    if asked == "ssh" or (asked is None and (options.hosts or options.hostfile)):
        return _ssh(options, env)
    if (who := identity(options, env, socket.gethostname())) is not None:
        return _join(options, who, env)
    if asked == "slurm" or (asked is None and env.get(_NODELIST)):
        return _slurm(options, env)
    return _local(options, "--launch local" if asked else "no hosts, Slurm or torchrun")


def refuse_to_simulate(options: Options, env: Mapping[str, str], *, simulate: bool) -> None:
    """A gate that passes because it tried nothing is worse than none. Raises UsageError."""
    if simulate or options.launch == "local" or options.nodes == 1:
        return
    if choose(options, env).launcher == "local":
        raise UsageError(
            "preflight: no cluster was found (no hosts, Slurm or torchrun). Type one of: ncclcheck preflight "
            "--hosts a,b | --node-rank R --rdzv-endpoint HOST:29500 --nodes N on each node | --nodes 1 for this "
            "machine alone | --simulate to see what it does"
        )


def _local(options: Options, chosen_by: str) -> LauncherChoice:
    names = local.names(options.nodes)

    def start(events: Events, _: Progress, *agent_options: str) -> list[Link]:
        return local.start(names, events, *agent_options)

    return LauncherChoice("local", chosen_by, names, start)


def _slurm(options: Options, env: Mapping[str, str]) -> LauncherChoice:
    from ncclcheck.launch import slurm  # noqa: PLC0415
    from ncclcheck.launch.remote import plain_step  # noqa: PLC0415

    names = slurm.names(options.nodes, env)
    step = plain_step.PlainStepTrial(env, options.then)

    def start(events: Events, _: Progress, *agent_options: str) -> list[Link]:
        step.begin()
        return slurm.start(names, events, env, *agent_options)

    return LauncherChoice("slurm", f"{_NODELIST}={env[_NODELIST]}", names, start, step=step)


def _ssh(options: Options, env: Mapping[str, str]) -> LauncherChoice:
    from ncclcheck.launch import ssh  # noqa: PLC0415

    hosts = ssh.hosts(options.hosts, options.hostfile, options.nodes)

    def start(events: Events, _: Progress, *agent_options: str) -> list[Link]:
        return ssh.start(hosts, options.via, events, env, *agent_options)

    source = f"--hosts {options.hosts}" if options.hosts else f"--hostfile {options.hostfile}"
    return LauncherChoice("ssh", source, ssh.names(hosts), start)


def _join(options: Options, who: JoinIdentity, env: Mapping[str, str]) -> LauncherChoice:
    from ncclcheck.launch.join import JoinLead, wait_of  # noqa: PLC0415
    from ncclcheck.launch.remote import plain_step  # noqa: PLC0415

    lead = JoinLead(who, options.command) if who.is_lead else None
    step = plain_step.PlainStepTrial(env, options.then) if lead and plain_step.is_possible(env) else None

    def start(events: Events, progress: Progress, *agent_options: str) -> list[Link]:
        if lead is None:
            raise UsageError("only node rank 0 starts agents")
        if step is not None:
            step.begin()
        return lead.start(events, wait_of(who, options.wait), progress, *agent_options)

    names = tuple(f"node{rank}" for rank in range(who.nodes))
    return LauncherChoice(who.launcher, who.chosen_by, names, start, who, lead, step=step)
