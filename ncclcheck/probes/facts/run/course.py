"""What happened while the tool ran."""

from __future__ import annotations

import signal
from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Pid
from ncclcheck.probes.facts.machine.network import KeptBy

STOPPED = ("T", "t", "F")  # of RankState.proc_state and JobEnd.state: it does nothing until somebody lets it go on


class RankState(Struct, frozen=True, kw_only=True):
    """The last that was seen of one rank.

    proc_state: the letter of /proc/PID/stat, "gone", or F, frozen by its control group. exit: the exit status,
    negative for a signal.
    phase: start (no world yet), world (joined), done (all parts finished). ticks: iterations that were begun since
    the last step; ranks in the same collective have begun as many. defect: the line of ncclcheck that raised
    `error`, where that is a defect of its own. users: the user's own code raised it, or a call of it; at: the line
    of that code, its function and the index of the sample; trace: the traceback from the first line of that code
    on. stack: where the rank stood when it had made no progress for seconds, the innermost first: a collective and
    lines of the user's; stuck: it stayed there for so long without any work that nothing but another rank can
    move it.
    """

    rank: Count
    node: str
    local_rank: Count = 0
    pid: Pid | None = None
    phase: Literal["start", "world", "done"] = "start"
    last_step: str = ""
    since_s: float = 0.0
    ticks: int = 0
    proc_state: str = ""
    exit: int | None = None
    error: str = ""
    defect: str = ""
    users: bool = False
    at: str = ""
    trace: str = ""
    stack: list[str] = field(default_factory=list)
    stuck: bool = False
    first: bool = False


Began = Literal["shell", "python", "imported"]


class StartStep(Struct, frozen=True, kw_only=True):
    """How far the start of an agent elsewhere came, in seconds since it was asked for.

    shell: /bin/sh runs our command, after the startup files of the login shell; python: the interpreter has come
    to our first line; imported: it has read ncclcheck, and starts once more as the agent.
    """

    step: Began
    at_s: Amount


class Look(Struct, frozen=True, kw_only=True):
    """A second look at a node that fell silent.

    came: how far it came: no (not in, or it took too long), in (logged in, the command did not run), ran. state:
    of its agent's process, the letter of /proc/PID/stat or "gone"; empty where there was no agent to look at.
    wchan: the kernel function that it waits in. said: what Slurm says of the node or the job. oom: whether the
    kernel's log says that it killed the process for memory; null where that may not be read.
    Of an agent that never spoke also: files, what it holds open; children, what it waits for; hangs, a variable
    and the folder in it in which a look-up did not come back; custom, modules that each start of Python runs;
    tight, limits of a login there that are too small for a program; mounts, type and place of other hosts'.
    """

    came: Literal["no", "in", "ran"]
    state: str = ""
    wchan: str = ""
    said: str = ""
    oom: bool | None = None
    files: list[str] = []
    children: list[str] = []
    hangs: str = ""
    custom: list[str] = []
    tight: list[str] = []
    mounts: list[str] = []


class Knock(Struct, frozen=True, kw_only=True):
    """A connection that a node tried to the host of a silent one. answered: its kernel accepted or refused it.

    alive: by what else its host was seen to be alive, where there was no answer; kept: see Connect.
    """

    of: str
    by: str
    address: str
    answered: bool
    detail: str = ""
    alive: str = ""
    kept: KeptBy = ""


class Silence(Struct, frozen=True, kw_only=True):
    """A node that did not answer: what it did last, and what its process said.

    since_s: since it was last heard. step_s: since last_step was announced. waited_s: since it was first asked,
    or until its channel closed. detail: what was said beside the channel (ssh's or srun's words). printed: what
    came on the channel before any record. via: the process here that speaks for it, and its exit status. mute: the
    channel's output ended, and that process went on: over there the output was turned elsewhere. start: how far
    the start of its agent came.
    """

    node: str
    last_step: str
    since_s: float
    step_s: float | None = None
    waited_s: float | None = None
    detail: str = ""
    printed: str = ""
    via: Literal["", "agent", "ssh", "srun"] = ""
    exit: int | None = None
    mute: bool = False
    start: list[StartStep] = []
    look: Look | None = None
    knocks: list[Knock] = []


class Dialled(Struct, frozen=True, kw_only=True):
    """Whither the settings of ssh here lead for a node that did not answer, or is one machine with another.

    host: HostName; addresses: of that. by: the jump host, or the program of a ProxyCommand. master: the socket of
    an earlier ssh whose connection is shared; silent_master: it does not answer. own: those of its other options
    that decide whether a login works and are not ssh's defaults, as `ssh -G` writes them. port_now: how a
    connection to its port went after the node was lost in mid-run; empty where none was tried. no_arp: the
    interface here on which the kernel has asked for its address, and no machine has said that it has it.
    silent_agent: the socket of an ssh agent that does not say which keys it has. greeting: what its port said
    first, where that is no greeting of ssh.
    """

    node: str
    host: str
    addresses: list[str] = []
    user: str = ""
    port: int = 22
    by: str = ""
    master: str = ""
    silent_master: bool = False
    silent_agent: str = ""
    greeting: str = ""
    own: list[str] = []
    port_now: Literal["", "open", "refused", "no answer"] = ""
    no_arp: str = ""


class SlowLogin(Struct, frozen=True, kw_only=True):
    """A node whose sshd looked so long at a login, from the end of the key exchange to its first answer."""

    node: str
    seconds: Amount


class JobEnd(Struct, frozen=True, kw_only=True):
    """How the torchrun of one node ended. detail: the last lines that it printed.

    held: its state where it was stopped when it was looked at last, before we ended it; pid: its own.
    """

    node: str
    exit: int | None
    detail: str = ""
    held: str = ""
    pid: Pid | None = None


class Leftover(Struct, frozen=True, kw_only=True):
    """A process that SIGKILL did not end: state D, which only the device behind `wchan` can end."""

    node: str
    pid: int
    state: str
    wchan: str
    devices: str = ""
    command: str


class Run(Struct, frozen=True, kw_only=True):
    """What happened while the tool ran.

    examiners: those of the user's dataset that died, and did not end by themselves.
    """

    ranks: list[RankState] = field(default_factory=list)
    silent: list[Silence] = field(default_factory=list)
    ends: list[JobEnd] = field(default_factory=list)
    examiners: list[JobEnd] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)
    dialled: list[Dialled] = field(default_factory=list)
    slow_logins: list[SlowLogin] = field(default_factory=list)
    started_job: bool = False
    stopped_by: Literal[
        "", "deadline", "signal", "dead rank", "stopped rank", "silent node", "early end", "refused", "deadlock"
    ] = ""


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
