"""Runs scenarios in labs, through the real command."""

from __future__ import annotations

import ast
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil

from ncclcheck.reports.judgement.jsondoc import Document
from tests.helpers.pressure import Pressure
from tests.lab import PYTHON, Lab, Slurm, start_sshd
from tests.lab.tools import LabError, until
from tests.scenarios.scenario import ALL, Outcome, Scenario, Scene, findings

COMMAND = (*PYTHON, "-m", "ncclcheck")
PORT = 29500
_OVERTIME_S = 40.0


class Labs:
    """Labs by what they have, kept for all scenarios that need the like."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._labs: dict[tuple[int, bool, bool], tuple[Lab, Slurm | None]] = {}
        self._runs = 0

    def __enter__(self) -> Labs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all labs."""
        self._labs.clear()
        self._open.close()

    def run(self, scenario: Scenario) -> Outcome:
        """Run one scenario to its end."""
        return _run(scenario, self.scene(scenario))

    def scene(self, scenario: Scenario) -> Scene:
        """Where a scenario plays."""
        if scenario.needs not in self._labs:
            self.close()
            self._labs[scenario.needs] = self._made(scenario)
        lab, slurm = self._labs[scenario.needs]
        self._runs += 1
        folder = lab.folder / f"run{self._runs}"
        folder.mkdir()
        return Scene(lab, slurm, folder)

    def _made(self, scenario: Scenario) -> tuple[Lab, Slurm | None]:
        hosts, mgmt, with_slurm = scenario.needs
        lab = self._open.enter_context(Lab(hosts, mgmt=mgmt))
        if mgmt:
            start_sshd(lab)
        return lab, Slurm(lab) if with_slurm else None


def rested(scene: Scene) -> None:
    """Slurm has all nodes back after what the scenario before has done to one."""
    if scene.slurm_or_none is None:
        return
    sinfo, rested = ["sinfo", "-h", "-N", "-o", "%T"], ["idle"] * len(scene.lab.hosts)
    until("all Slurm nodes are idle again", lambda: scene["h1"].check(sinfo).split() == rested, seconds=30)


def _run(scenario: Scenario, scene: Scene) -> Outcome:
    rested(scene)
    with scenario.fault(scene):
        outcome = once(scenario, scene)
        return replace(outcome, cured=_cured(scenario, scene, outcome)) if scenario.cure else outcome


def _cured(scenario: Scenario, scene: Scene, sick: Outcome) -> Outcome | None:
    """The same once more, after somebody has done what the report says; None where it says nothing of the kind."""
    expected = scenario.expect[-1]
    if expected.met_by(sick.documents) is None:
        return None
    env, under = {name: dict(given) for name, given in scenario.env.items()}, dict(scenario.under)
    arguments = dict(scenario.arguments)
    for finding in findings(sick.documents[expected.by], expected.code):
        host = scene[finding.where.node or expected.node or expected.by]
        fix = next((remedy for remedy in finding.remedies if remedy.who == scenario.cure), None)
        for line in fix.commands if fix else ():
            if line.startswith("export "):
                exported = _exported(line)
                env = {name: {k: v for k, v in given.items() if k not in exported} for name, given in env.items()}
                env[ALL] = env.get(ALL, {}) | exported
            elif line.startswith("unset "):
                taken = set(shlex.split(line, comments=True)[1:])
                env[host.name] = {
                    name: env[host.name][name] for name in env.get(host.name, {}) if name not in taken
                }
            elif line.startswith("init_method="):  # what the script then says, the command line says too
                arguments[ALL] = _instead(arguments.get(ALL, ()), line)
            elif line.startswith("ulimit "):  # of the shell that starts the command
                under[host.name] = (*under.get(host.name, ()), "bash", "-c", f'{line} && exec "$@"', "bash")
            else:
                for member in scene.lab.hosts if line.endswith("# on every node") else [host]:
                    member.run(["sh", "-c", line], seconds=20)
    scene.started.clear()
    return once(replace(scenario, env=env, under=under, arguments=arguments), scene)


def _instead(arguments: tuple[str, ...], line: str) -> tuple[str, ...]:
    """The arguments with the init method of a line of Python, where that is a plain string."""
    value = ast.parse(line).body[0].value  # type: ignore[attr-defined]
    if not isinstance(value, ast.Constant):
        return arguments
    place = arguments.index("--init-method") + 1
    return (*arguments[:place], str(value.value), *arguments[place + 1 :])


def _exported(line: str) -> dict[str, str]:
    """What `export NAME=value` sets."""
    words = [word.partition("=") for word in shlex.split(line.removeprefix("export "), comments=True)]
    return {name: value for name, _, value in words}


def once(scenario: Scenario, scene: Scene) -> Outcome:
    """Type its command, and wait for what comes of it."""
    before = {host.name: set(host.pids()) for host in scene.lab.hosts}
    begun, pressure = time.monotonic(), Pressure()
    for name, argv in _commands(scenario, scene).items():
        typed = [*scenario.under.get(name, ()), *argv]
        scene.start(name, typed, _environment(scenario, scene, name))
        if scenario.again:
            scene.start(name, argv, _environment(scenario, scene, name), f"{name} again")
    with _struck(scenario, scene):
        outputs = {name: _end(process, scenario.seconds) for name, process in scene.started.items()}
    seconds, share = time.monotonic() - begun, pressure.share
    left = _left(scene, before, scenario.gone_within)
    return Outcome(
        codes={name: process.returncode for name, process in scene.started.items()},
        documents={name: _document(out) for name, (out, _) in outputs.items() if out.strip()},
        errors={name: err for name, (_, err) in outputs.items()},
        seconds=seconds,
        left=left,
        pressure=share,
    )


@contextmanager
def _struck(scenario: Scenario, scene: Scene) -> Iterator[None]:
    """What strikes in the middle of the run. Raises LabError with what was said if it comes not so far."""
    with ExitStack() as stack:
        try:
            stack.enter_context(scenario.strike(scene))
        except LabError as error:
            errors = {name: _end(process, -_OVERTIME_S)[1] for name, process in scene.started.items()}
            raise LabError(f"{scenario.name}: {error}: {errors}") from None
        yield


def _environment(scenario: Scenario, scene: Scene, host: str) -> dict[str, str]:
    """What is set on a host; {lab} stands for the lab's folder."""
    given = {**scenario.env.get(ALL, {}), **scenario.env.get(host, {})}
    return {name: value.format(lab=scene.lab.folder) for name, value in given.items()}


def _commands(scenario: Scenario, scene: Scene) -> dict[str, list[str]]:
    """What is typed on which host."""
    hosts = scene.lab.hosts
    base = [*COMMAND, *scenario.command, "-o", "json"]
    if scenario.launcher == "ssh":
        return {"h1": [*base, "--hosts", ",".join(host.name for host in hosts), *scenario.arguments.get(ALL, ())]}
    if scenario.launcher == "variables":
        return {"h1": [*base, *scenario.arguments.get(ALL, ())]}
    if scenario.launcher in ("slurm", "srun"):
        count = str(len(hosts))
        inner = ["srun", "-N", count, "-n", count] if scenario.launcher == "srun" else []
        return {"h1": ["salloc", "-Q", "-N", count, *inner, *base, *scenario.arguments.get(ALL, ())]}
    place = f"{hosts[0].address}:{PORT}"
    return {
        host.name: [
            *base, "--nodes", str(len(hosts)), "--node-rank", str(rank), "--rdzv-endpoint", place,
            *scenario.arguments.get(ALL, ()), *scenario.arguments.get(host.name, ()),
        ]
        for rank, host in enumerate(hosts)
    }  # fmt: skip


def _end(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    try:
        return process.communicate(timeout=max(0.1, seconds + _OVERTIME_S))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return "", f"{out}{err}\nstill running after {seconds + _OVERTIME_S:.0f} s"


def _document(out: str) -> Document:
    return msgspec.json.decode(out, type=Document)


def _left(scene: Scene, before: dict[str, set[int]], within: float) -> list[str]:
    """Processes and files of the run that are still there after a while."""
    end = time.monotonic() + within
    while (left := [*_processes(scene, before), *_files(scene.folder)]) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def _processes(scene: Scene, before: dict[str, set[int]]) -> list[str]:
    return [
        f"on {host.name}: {line}"
        for host in scene.lab.hosts
        for pid in set(host.pids()) - before[host.name]
        if (line := _line(pid))
    ]


def _line(pid: int) -> str:
    try:
        return f"{pid} {' '.join(psutil.Process(pid).cmdline())[:200]}"
    except psutil.Error:
        return ""


def _files(folder: Path) -> list[str]:
    return [str(path) for path in folder.iterdir()]
