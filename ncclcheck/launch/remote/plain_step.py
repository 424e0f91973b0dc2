"""What a plain `srun` of this very shell meets: whether it starts at once, and which variables reach its task.

Our own step says --overlap and --export=ALL, so it starts where the job's own srun waits for ever, or starts
without its variables. This one says nothing of the kind. It asks one shell for the names that it was given.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence

from ncclcheck.probes.facts import OtherStep, PlainStep, Unread, replace
from ncclcheck.probes.machine import process
from ncclcheck.probes.machine.environment.job_system import environment_of_families

_NO_REAL_STEP = 4_294_967_280  # ids from here on are salloc's own step, the batch script, and their like
OWN_NAME = "ncclcheck"  # of our own steps, as squeue shows them
# A step of an idle allocation starts in 0.1 s (Slurm 22.05, two hosts): what waits longer waits for another one.
_AT_ONCE_S = 4
_WITHIN_S = 10.0  # s for a plain srun to start or to be refused; chosen
_LIST_S = 3.0  # s for squeue; chosen
_MOST_SAID = 300  # characters of Slurm's refusal that are shown
_HOLD_NOTHING = {OWN_NAME, "batch", "extern", "interactive"}
_ALSO_NEEDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MARK = "names of variables:"
_ASK = (
    f'[ "${{SLURM_PROCID:-0}}" = 0 ] || exit 0; echo "{_MARK}"; '
    r"""tr '\0' '\n' <"/proc/$$/environ" | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'"""
)
_BUSY = re.compile(r"Requested nodes are busy|step creation (?:temporarily|still) disabled")
_REFUSED = re.compile(r"^srun: (?:fatal|error): (?!\S+: tasks? )(.+)", re.MULTILINE)
_TYPED = re.compile(r"--overlap|--export=.*|--export")


class PlainStepTrial:
    """One plain srun, beside the run. command: the user's own, which begins with srun or is something else."""

    def __init__(self, env: Mapping[str, str], command: Sequence[str] = ()) -> None:
        self._env, self._command = env, command
        self.fact: PlainStep | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the plain srun in a thread."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="plain step")
        self._thread.start()

    def settle(self, seconds: float) -> None:
        """Wait until it is known what it met, so long at most."""
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))

    def _run(self) -> None:
        step = _tried(self._env, given(self._command))
        self.fact = step and replace(step, typed=_is_srun(self._command))


def is_possible(env: Mapping[str, str]) -> bool:
    """Whether this is a shell in an allocation of Slurm, and no task of a step, which holds what an srun needs."""
    step = env.get("SLURM_STEP_ID", "")
    return env.get("SLURM_JOB_ID", "").isdecimal() and (not step.isdecimal() or int(step) >= _NO_REAL_STEP)


def _is_srun(command: Sequence[str]) -> bool:
    return bool(command) and command[0].rpartition("/")[2] == "srun"


def given(command: Sequence[str]) -> list[str]:
    """What a command of the user's own says to srun of sharing and of variables; nothing where it is no srun."""
    options: list[str] = []
    if not _is_srun(command):
        return options
    for at, word in enumerate(command[1:], 1):
        if word == "--" or not word.startswith("-"):
            break
        if _TYPED.fullmatch(word):
            options += [f"--export={command[at + 1]}" if word == "--export" and at + 1 < len(command) else word]
    return options


def _tried(env: Mapping[str, str], options: list[str]) -> PlainStep | None:
    argv = ["srun", *options, f"--immediate={_AT_ONCE_S}", "/bin/sh", "-c", _ASK]
    begun = time.monotonic()
    output = process.run(argv, _WITHIN_S, env=env)
    if isinstance(output, Unread):
        return None  # neither started nor refused: a controller or a node that does not answer, which others tell
    seconds = round(time.monotonic() - begun, 1)
    refused = _REFUSED.search(output.err)
    reason = refused[1][:_MOST_SAID] if refused else ""
    if _BUSY.search(output.err):
        others = _others(env)
        step = PlainStep(outcome="waits", said=reason, seconds=seconds, others=others, given=options)
        return step if others else None
    _, came, names = output.out.partition(f"{_MARK}\n")
    if came:
        lost = sorted({*_needed(env)} - {*names.split()})
        return PlainStep(outcome="starts", seconds=seconds, lost=lost, given=options)
    return PlainStep(outcome="refused", said=reason, seconds=seconds, given=options) if reason else None


def _needed(env: Mapping[str, str]) -> list[str]:
    """Variables of this shell that a job goes by; Slurm sets its own anew."""
    families = [name for name in environment_of_families(env) if not name.startswith("SLURM_")]
    names = dict.fromkeys([*_ALSO_NEEDED, *families])
    return [name for name in names if name in env and _NAME.fullmatch(name)]


def _others(env: Mapping[str, str]) -> list[OtherStep]:
    """The steps of this job that hold something, and are not ours."""
    job = env.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return []
    output = process.run(["squeue", "--steps", "-h", "-j", job, "-o", "%i|%j|%N"], _LIST_S, env=env)
    rows = [] if isinstance(output, Unread) else [line.strip().split("|") for line in output.out.splitlines()]
    return [
        OtherStep(id=row[0], name=row[1][:80], nodes=row[2][:200])
        for row in rows
        if len(row) == 3 and row[1] not in _HOLD_NOTHING and row[0].startswith(f"{job}.")
    ]
