"""What a training script says of its own job -> options of `preflight` that need not be typed. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.subjects.script.processes import INIT, SPAWNS
from ncclcheck.reports.subjects.script.scripts import (
    LOADER,
    given_to,
    on_all_ranks,
    reached,
    sure,
)
from ncclcheck.run.plan import starts
from ncclcheck.run.plan.preflight_plan import PreflightOptions
from ncclcheck.run.plan.starts import JobStart

# Variables that a script may set for the libraries which a job of ours loads too.
_SETTING = re.compile(r"(?:TORCH_)?NCCL_\w+|GLOO_SOCKET_IFNAME|OMP_NUM_THREADS|CUDA_DEVICE_MAX_CONNECTIONS")
_UNITS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}  # s
_LEAST_S = 1.0  # s; a shorter limit of a factory is a mistake, or a placeholder


def arguments(script: str, command: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The script's own arguments in what follows --, and the command: `--lr 1` alone is none."""
    if command and command[0].startswith("-"):
        return command, ()
    return (command[command.index(script) + 1 :] if script in command else ()), command


def filled(wanted: PreflightOptions, script: Script) -> tuple[PreflightOptions, list[str]]:
    """The options with what the script says where nothing was typed, and each such choice in words."""
    calls, everywhere = reached(script), on_all_ranks(script)
    certain = [call for call in calls if call.function in everywhere and sure(call)]
    choices: list[str] = []
    for name, value, words in [*_data(wanted, script, certain), *_job(wanted, script, certain)]:
        change: dict[str, Any] = {name: value}
        wanted = replace(wanted, **change)
        choices.append(words)
    return wanted, choices


def _data(wanted: PreflightOptions, script: Script, calls: list[Call]) -> Iterator[tuple[str, object, str]]:
    named = [(file.name, factory) for file in script.files if file.named for factory in file.factories]
    if not wanted.data and len(named) == 1:
        file, factory = named[0]
        yield "data", f"{file}:{factory}", f"--data {file}:{factory}"
    workers = [call.arguments.get("num_workers", "") for call in calls if call.name in LOADER]
    most = max((int(worker) for worker in workers if worker.isdecimal()), default=0)
    if most:
        yield "workers", most, f"{most} workers"


def _job(wanted: PreflightOptions, script: Script, calls: list[Call]) -> Iterator[tuple[str, object, str]]:
    inits = [call for call in calls if call.name == INIT]
    spawned = [call for call in calls if call.name in SPAWNS]
    for call in inits[:1]:
        if wanted.backend == "auto" and "gloo" in given_to(script, call, "backend", "0"):
            yield "backend", "gloo", "--backend gloo"
        if (limit := _seconds(call.arguments.get("timeout", ""))) >= _LEAST_S:
            yield "factory_limit", limit, f"a factory that takes at most its timeout, {limit:g} s"
        url = re.fullmatch(r"['\"](tcp://[^'\"]+)['\"]", given_to(script, call, "init_method", "1"))
        if url and wanted.begin == JobStart() and _is_valid(url[1]):
            yield "begin", starts.read(None, None, url[1]), f"--init-method {url[1]}"
        elif spawned and wanted.begin == JobStart():
            yield "begin", JobStart(start="spawn"), "--start spawn"
    ranks = spawned[0].arguments.get("nprocs", spawned[0].arguments.get("2", "")) if spawned else ""
    if wanted.nproc_per_node is None and ranks.isdecimal() and int(ranks):
        yield "nproc_per_node", int(ranks), f"--nproc-per-node {ranks}"
    if settings := dict(_settings(calls)):
        yield "settings", settings, " ".join(f"{name}={value}" for name, value in settings.items())


def _is_valid(url: str) -> bool:
    """What is none is a finding about the script; the other jobs run as they would without it."""
    try:
        starts.read(None, None, url)
    except UsageError:
        return False
    return True


def _settings(calls: list[Call]) -> Iterator[tuple[str, str]]:
    """What it sets for every rank, as a plain string."""
    for call in calls:
        name, value = (_plain(call.arguments.get(at, "")) for at in ("0", "1"))
        if call.name == "os.environ.set" and not call.guards and value and _SETTING.fullmatch(name):
            yield name, value


def _plain(text: str) -> str:
    """A string or number as written; empty for all else."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ""
    return str(value) if isinstance(value, str | int) else ""


def _seconds(timeout: str) -> float:
    """Of a timedelta of plain numbers; 0 where it is none."""
    parts = re.findall(r"(seconds|minutes|hours|days)=([\d.]{1,12})(?=[,)])", timeout)
    return sum(_UNITS[unit] * float(number) for unit, number in parts)
