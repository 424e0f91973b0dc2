"""libibverbs.so.1 and its providers, found by files alone, where the linker and libibverbs itself look."""

from __future__ import annotations

import os
import re

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine.access import Machine

_LIBRARY = "libibverbs.so.1"
_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/usr/local/lib",
)
_CACHE = "/etc/ld.so.cache"
_PROVIDER = re.compile(r"lib([a-z0-9_]+)-rdmav\d+\.so")


def find(machine: Machine) -> tuple[str | Unread, list[str] | Unread]:
    """Where the library is, and the drivers that it would find."""
    if not any(machine.exists(path) for path in ("/usr", "/lib", _CACHE)):
        unseen = Unread("recorded", "no libraries are in this recording")
        return unseen, unseen
    library = _library(machine)
    if isinstance(library, Unread):
        return library, library
    return library, _providers(machine, library.rpartition("/")[0])


def _library(machine: Machine) -> str | Unread:
    for folder in [*_named(machine), *_cached(machine), *_FOLDERS]:
        if machine.exists(f"{folder}/{_LIBRARY}"):
            return f"{folder}/{_LIBRARY}"
    return Unread("no_tool", f"{_LIBRARY} is neither on LD_LIBRARY_PATH nor where the linker looks")


def _named(machine: Machine) -> list[str]:
    env = machine.ask("environment", dict[str, str], lambda: dict(os.environ))
    if isinstance(env, Unread):
        return []
    folders = env.get("LD_LIBRARY_PATH", "").split(":")
    conda = env.get("CONDA_PREFIX", "")
    return [folder for folder in [*folders, f"{conda}/lib" if conda else ""] if folder.startswith("/")]


def _cached(machine: Machine) -> list[str]:
    cache = machine.read_bytes(_CACHE, 8 * 2**20)
    folders = [] if isinstance(cache, Unread) else re.findall(rb"\0(/[^\0]{1,400})/libibverbs\.so\.1\0", cache)
    return [os.fsdecode(folder) for folder in folders]


def _providers(machine: Machine, folder: str) -> list[str]:
    """Named in /etc/libibverbs.d, and standing beside the library."""
    providers: set[str] = set()
    for place in (f"{folder}/libibverbs", folder):
        names = machine.names(place)
        matches = [] if isinstance(names, Unread) else [_PROVIDER.fullmatch(name) for name in names]
        providers |= {match[1] for match in matches if match}
    named = machine.names("/etc/libibverbs.d")
    registered = {name.removesuffix(".driver") for name in named} if isinstance(named, list) else providers
    return sorted(providers & registered)
