"""NVIDIA's services and the module for GPUDirect: whether they run, and of which version they are.

Recorded name: `services`, a list of Service. systemd is asked once; programs on the disk tell their version.
"""

from __future__ import annotations

import re

from ncclcheck.probes.facts import Service, Unread
from ncclcheck.probes.machine.access import Machine

# By unit: the program, whose --version is in NVIDIA's guides ("Fabric Manager version is : 570.133.20").
_PROGRAMS = {
    "nvidia-fabricmanager": "/usr/bin/nv-fabricmanager",
    "nvidia-imex": "/usr/bin/nvidia-imex",
    "nvidia-persistenced": "/usr/bin/nvidia-persistenced",
}
_MODULE = "nvidia_peermem"
_SECONDS = 2.0  # each of them answers in some 20 ms
_VERSION = re.compile(r"\d{3,4}\.\d{1,4}(?:\.\d{1,4})?", re.ASCII)


def services(machine: Machine) -> list[Service] | Unread:
    """Those that are installed here, or that systemd knows."""
    return machine.ask("services", list[Service], lambda: _services(machine))


def _services(machine: Machine) -> list[Service]:
    states = _states(machine)
    loaded: list[Service] = []
    for name, program in _PROGRAMS.items():
        state = states if isinstance(states, Unread) else states.get(name, "")
        installed = machine.exists(program)
        if installed or (state and not isinstance(state, Unread)):
            version = _version(machine, program) if installed else Unread("absent", f"there is no {program}")
            loaded.append(Service(name=name, state=state or _NO_UNIT, version=version))
    if machine.exists(f"/sys/module/{_MODULE}"):
        loaded.append(
            Service(name=_MODULE, state="loaded", version=machine.line(f"/sys/module/{_MODULE}/version"))
        )
    return loaded


_NO_UNIT = Unread("absent", "systemd has no such unit")


def _states(machine: Machine) -> dict[str, str] | Unread:
    """ActiveState of the units that systemd knows."""
    if not machine.exists("/run/systemd/system"):
        return Unread("absent", "no systemd runs here, as in a container")
    units = [f"{name}.service" for name in _PROGRAMS]
    answer = machine.run(["systemctl", "show", "--property=Id,LoadState,ActiveState", *units], _SECONDS)
    if isinstance(answer, Unread):
        return answer
    states: dict[str, str] = {}
    for block in answer.out.split("\n\n"):
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if fields.get("LoadState") == "loaded":
            states[fields.get("Id", "").removesuffix(".service")] = fields.get("ActiveState", "")
    return states or (
        Unread("absent", answer.err.strip()[:200] or "systemd reported nothing") if answer.status else {}
    )


def _version(machine: Machine, program: str) -> str | Unread:
    """Where the host is mounted below a folder, its programs are not run here."""
    if machine.root != "/":
        return Unread("absent", f"{program} is another system's")
    answer = machine.run([program, "--version"], _SECONDS)
    if isinstance(answer, Unread):
        return answer
    match = _VERSION.search(answer.out + answer.err)
    return match[0] if match else Unread("broken", f"{program} --version: {answer.out[:80]!r}")
