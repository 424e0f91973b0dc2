"""Slurm: in an allocation, one srun starts an agent on every node. A node that srun cannot start is named.

One silent slurmd makes srun end on all nodes, even with --no-kill (measured): srun is started again on the rest.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue

from ncclcheck.base import wire
from ncclcheck.base.errors import UsageError
from ncclcheck.launch.agents import AgentRecord, Closed, Events, Link, ProcessLink, Via, agent_environment
from ncclcheck.launch.given import working_directory
from ncclcheck.launch.hosts import nodelist
from ncclcheck.launch.remote import doorstep, look, plain_step, srun_words
from ncclcheck.probes.facts import Look
from ncclcheck.probes.machine import process

VARIABLE = "SLURM_JOB_NODELIST"
_RESTARTS = 3  # times that a step is started again for a reason that passes; chosen
_SPLITS = 24  # times that a step which srun could not create is halved to find its bad nodes; chosen
_OTHERS_FAIL_WITHIN = 1.0  # s for the other nodes of a step to fail too, before one is named; chosen
_LAST_WORDS = 0.3  # s for srun's last lines on stderr after a node is gone; chosen
_GO_ON_S = 4.0  # s for a step that lets a stopped agent continue; chosen
# What srun reads of its surroundings and would change our step. Source: srun(1), INPUT ENVIRONMENT VARIABLES.
OF_ANOTHER_STEP = re.compile(
    r"SLURM_(NTASKS.*|NPROCS|TASKS_PER_NODE|CPUS_PER_(TASK|GPU)|TRES_PER_TASK|TRES_BIND|GPUS|GPUS_PER_TASK|GPU_BIND.*"
    r"|CPU_BIND.*|MEM_BIND.*|DISTRIBUTION|HOSTFILE|LABELIO|UNBUFFEREDIO|STD(IN|OUT|ERR)MODE|STEP_.*|EXACT|EXCLUSIVE"
    r"|OVERCOMMIT|HINT|THREADS(_PER_CORE)?|CORE_SPEC|THREAD_SPEC|TIMELIMIT|PTY_.*|MULTI_PROG|WAIT|IMMEDIATE|DEBUG)"
)


def names(asked: int | None, env: Mapping[str, str]) -> tuple[str, ...]:
    """The first `asked` nodes of the allocation; all by default. Raises UsageError."""
    if not env.get(VARIABLE):
        raise UsageError(f"--launch slurm: {VARIABLE} is not set; run it in a job: sbatch, or salloc -N 2")
    if shutil.which("srun", path=env.get("PATH")) is None:
        raise UsageError("--launch slurm: no srun is on PATH; in a container type srun before it, outside")
    allocated = nodelist.expand(env[VARIABLE], VARIABLE)
    if asked is not None and not 1 <= asked <= len(allocated):
        raise UsageError(f"--nodes: {asked} is out of range; the allocation has {len(allocated)} ({VARIABLE})")
    return allocated[:asked]


def start(nodes: Sequence[str], events: Events, env: Mapping[str, str], *more: str) -> list[Link]:
    """Start the agents through one srun. Raises OSError where no process can be started."""
    return [SrunLink(dict(enumerate(nodes)), events, env, more)]


def step_argv(nodes: Sequence[str], agent: Sequence[str]) -> list[str]:
    """One task a node, beside whatever runs there; what a site or a job sets by default is said anew."""
    count = str(len(nodes))
    return [
        "srun", "--overlap", f"--job-name={plain_step.OWN_NAME}",
        f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1",
        f"--nodelist={nodelist.fold(nodes)}", "--export=ALL", "--input=all", "--mpi=none", "--cpu-bind=none",
        "--kill-on-bad-exit=0", "--no-kill", "--wait=0", *agent,
    ]  # fmt: skip


def step_environment(nodes: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """The job's environment; an agent finds its number by its own name, the same in every start."""
    ours = {name: value for name, value in env.items() if not OF_ANOTHER_STEP.fullmatch(name)}
    return {**agent_environment(ours), nodelist.VARIABLE: nodelist.fold(nodes)}


class _SrunStep(ProcessLink):
    """One srun. Its words are looked at as they come."""

    via: Via = "srun"

    def __init__(
        self, link: SrunLink, nodes: Mapping[int, str], argv: Sequence[str], env: Mapping[str, str]
    ) -> None:
        self.link = link
        self.inside: Events = SimpleQueue()
        self.failed: dict[int, str] = {}
        self.answered: set[int] = set()
        self.gone: set[int] = set()
        self.over = False
        self.begun = time.monotonic()
        super().__init__(nodes, argv, env, self.inside, working_directory())

    def _keep_errors(self) -> None:
        assert self.child.stderr is not None
        with suppress(OSError, ValueError):
            for line in self.child.stderr:
                if b"lacks support for cpu binding" not in line:
                    self._errors += line
                    del self._errors[:-65536]
                    self.link.heard(self, line.decode(errors="backslashreplace").strip())

    @property
    def last_words(self) -> str:
        """Why it ended, as those nodes may say that have not failed themselves."""
        failed = ", ".join(self.nodes[node] for node in self.failed)
        return f"srun ended on all nodes, for it failed on {failed}" if failed else self.errors

    def not_started(self, node: int) -> str:
        """Words for a node on which srun started no agent, and said nothing about it."""
        seconds = time.monotonic() - self.begun
        return f"ncclcheck: {self.nodes[node]}: srun started no agent there in {seconds:.0f} s"

    def numbers(self, names: Iterable[str]) -> list[int]:
        """The numbers of those names that are nodes of this step."""
        own = {name: node for node, name in self.nodes.items()}
        return [own[name] for name in names if name in own]


class SrunLink:
    """All nodes of an allocation behind one srun, or what replaces it once it has failed."""

    def __init__(
        self, nodes: Mapping[int, str], events: Events, env: Mapping[str, str], more: Sequence[str]
    ) -> None:
        self.nodes: Mapping[int, str] = nodes
        names = list(nodes.values())
        self._agent = doorstep.command(sys.executable, "", {}, working_directory(), more)
        self._env = step_environment(names, env)
        self._events = events
        self._lock = threading.RLock()
        self._restarts, self._splits = _RESTARTS, _SPLITS
        self._ordered = False  # agents that were given an order cannot begin anew
        self._steps: dict[int, _SrunStep] = {}
        self._owed: list[Closed] = []
        self._stopped: dict[int, int] = {}
        self._awaited: set[int] = set()
        self._begin(nodes)

    def send(self, node: int | None, order: wire.FromLauncher) -> None:
        """Give an order to one node or to all."""
        with self._lock:
            self._ordered = self._ordered or not isinstance(order, wire.Alive)
            steps = set(self._steps.values()) if node is None else {self._steps[node]}
        for step in steps:
            step.send(node, order)

    def describe(self, node: int) -> Closed:
        """srun's words, those about this node first; an srun that says nothing still tries to start it."""
        with self._lock:
            owed = [closed for closed in self._owed if closed.node == node]
            step = self._steps[node]
        if owed:
            return owed[0]
        seen = step.describe(node)
        return (
            seen
            if seen.detail or node in step.answered
            else dataclasses.replace(seen, detail=step.not_started(node))
        )

    def look(self, node: int, pid: int | None, seconds: float) -> Look:
        """At the agent by a step of its own; where none ever began, what Slurm says of the node."""
        name = self.nodes[node]
        if words := self._suspended(seconds / 2):
            return Look(came="no", said=words)
        if pid is not None:
            seen = look.take(step_argv([name], look.words(pid)), self._env, pid, seconds)
            if seen.state == "T":
                self._stopped[node] = pid
            return seen
        output = process.run(["sinfo", "-h", "-N", "-n", name, "-o", "%T, reason: %E"], seconds, env=self._env)
        words = output.out.split("\n", 1)[0].strip() if isinstance(output, process.Output) else ""
        return Look(came="no", said=words.removesuffix(", reason: none"))

    def _suspended(self, seconds: float) -> str:
        """`job 12: SUSPENDED`: no step of it can look at anything."""
        job = self._env.get("SLURM_JOB_ID", "")
        output = (
            process.run(["squeue", "-h", "-j", job, "-o", "%T"], seconds, env=self._env)
            if job.isdecimal()
            else None
        )
        state = output.out.strip() if isinstance(output, process.Output) else ""
        return f"job {job}: {state}" if state == "SUSPENDED" else ""

    def close(self, seconds: float) -> None:
        """End all steps; an srun that is killed ends its tasks."""
        with self._lock:
            self._ordered = True
        for node, pid in self._stopped.items():  # it can then leave like the others, and leaves nothing there
            process.run(step_argv([self.nodes[node]], look.go_on(pid)), _GO_ON_S, env=self._env)
        for step in set(self._steps.values()):
            step.close(seconds)

    def go_on_without(self, nodes: Collection[int]) -> bool:
        """Begin anew without nodes that say nothing: srun may try them for minutes before it ends on all."""
        with self._lock:
            for step in {self._steps[node] for node in nodes}:
                silent = step.nodes.keys() & set(nodes)
                if self._ordered or step.over or silent == step.nodes.keys():
                    continue
                for node in silent:
                    step.failed.setdefault(node, step.not_started(node))
                self._end(step)
            return bool(self._awaited)

    def heard(self, step: _SrunStep, line: str) -> None:
        """One line of srun's. Nodes fail at about the same time, and a task's words may come after its end."""
        for node in step.numbers(srun_words.failed_nodes(line)):
            step.failed.setdefault(node, line)
            threading.Timer(_OTHERS_FAIL_WITHIN, self._fail, (step,)).start()
        if step.failed or step.over:
            return  # srun then ends the other tasks itself
        for node in step.numbers(srun_words.ended_tasks(line)):
            if node not in step.gone:
                step.gone.add(node)
                threading.Timer(_LAST_WORDS, self._gone, (step, node, line)).start()

    def _fail(self, step: _SrunStep) -> None:
        """Agents without orders begin anew without the failed nodes; those that work are left alone."""
        with self._lock:
            if not self._ordered:
                self._end(step)
                return
            closed = [Closed(node, line) for node, line in step.failed.items() if node not in step.gone]
            step.gone.update(step.failed)
        self._pass_on(*closed)

    def _gone(self, step: _SrunStep, node: int, line: str) -> None:
        self._pass_on(Closed(node, srun_words.about(self.nodes[node], line, step.errors)))

    def _begin(self, nodes: Mapping[int, str]) -> None:
        step = _SrunStep(self, nodes, step_argv(list(nodes.values()), self._agent), self._env)
        self._steps.update(dict.fromkeys(nodes, step))
        threading.Thread(target=self._follow, args=(step,), daemon=True).start()

    def _follow(self, step: _SrunStep) -> None:
        """Pass on what the agents say until srun ends."""
        while isinstance(event := step.inside.get(), AgentRecord):
            step.answered.add(event.node)
            if not step.over:
                self._pass_on(event)
        self._end(step)

    def _pass_on(self, *events: AgentRecord | Closed) -> None:
        """A node that failed is told once the others have begun anew: what comes next needs them all."""
        with self._lock:
            for event in events:
                if isinstance(event, Closed) or isinstance(event.record, wire.Facts):
                    self._awaited.discard(event.node)
                self._events.put(event)
            while self._owed and not self._awaited:
                self._events.put(self._owed.pop(0))

    def _end(self, step: _SrunStep) -> None:
        """An srun has ended, or has failed on some nodes: begin anew on the others where that can help."""
        with self._lock:
            if step.over:
                return
            step.over = True
            if step.failed:
                process.kill_tree(step.child.pid)
            left = {node: name for node, name in step.nodes.items() if node not in step.gone | set(step.failed)}
            parts = self._parts(step, left)
            self._owed += [Closed(node, line) for node, line in step.failed.items() if node not in step.gone]
            self._awaited = {node for part in parts for node in part} | (self._awaited - set(step.nodes))
            lost = [] if parts else [Closed(node, step.last_words) for node in left]
        for part in parts:
            lost += self._again(part)
        self._pass_on(*lost)

    def _parts(self, step: _SrunStep, left: dict[int, str]) -> list[dict[int, str]]:
        """What to start again: all that is left without the failed nodes; halves, where Slurm names no node."""
        if self._ordered or not left:
            return []
        if step.failed and self._restarts:
            self._restarts -= 1
            return [left]
        if not step.failed and len(left) > 1 and self._splits and srun_words.not_created(step.errors):
            self._splits -= 1
            nodes, half = list(left.items()), len(left) // 2
            return [dict(nodes[:half]), dict(nodes[half:])]
        return []

    def _again(self, part: Mapping[int, str]) -> list[Closed]:
        try:
            with self._lock:
                self._begin(part)
        except OSError as error:
            return [Closed(node, f"srun could not be started again: {error}") for node in part]
        return []
