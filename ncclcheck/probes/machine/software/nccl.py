"""NCCL: which library torch would load, what it reads, and what configures it. torch is never imported."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from ncclcheck.probes.facts import Library, Nccl, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.software import nccl_files, nccl_installed, nccl_topology
from ncclcheck.probes.machine.software.elf import find_section
from ncclcheck.probes.machine.software.stack import torch_folder

_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_ASK_VERSION = """import ctypes, sys
version = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version))
print(version.value)"""
# for the loader to open libraries, over a network file system too; a dead one is not waited for: chosen
_LONGEST_S = 5.0
# copies that are loaded in a child for their version, up to _LONGEST_S each, two at a time: chosen
_MOST_ASKED = 6
_MOST_RODATA_BYTES = 64 * 2**20  # chosen, what a header claims is bounded
_NAME = re.compile(rb"NCCL_[A-Z0-9_]*[A-Z0-9](?=\0)")  # whole strings: names inside log texts are not read
_STATIC = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")
_CACHED = re.compile(rb"/[\x21-\x7e]+/libnccl-[\x21-\x2e\x30-\x7e]+")
_PLUGINS = {
    "NCCL_NET_PLUGIN": "net",
    "NCCL_TUNER_PLUGIN": "tuner",
    "NCCL_PROFILER_PLUGIN": "profiler",
    "NCCL_ENV_PLUGIN": "env",
}
_SYSTEM = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)


def probe(machine: Machine) -> Nccl:
    """Read everything about NCCL."""
    asked = machine.ask("environment", dict[str, str], lambda: dict(os.environ))
    env = {} if isinstance(asked, Unread) else asked
    loaded = machine.ask("nccl_loaded", Library, lambda: _loaded(machine, env))
    plugins = machine.ask("nccl_plugins", list[str], lambda: _plugins(machine, env))
    conf_files = nccl_files.conf_files(machine, env, _numbers(loaded))
    strays = asked if isinstance(asked, Unread) else nccl_files.stray_lines(machine, env)
    return Nccl(
        loaded=loaded,
        others=machine.ask("nccl_others", list[Library], lambda: _others(machine, env, loaded)),
        known_names=machine.ask("nccl_names", list[str], lambda: _known_names(machine, loaded)),
        plugins=plugins,
        plugin_files=nccl_installed.plugin_files(machine, plugins),
        named_files=nccl_installed.named_files(machine, env, conf_files),
        wheels=nccl_installed.wheels(machine, torch_folder(machine)),
        wanted=nccl_installed.wanted(machine, torch_folder(machine)),
        conf_files=conf_files,
        stray_lines=strays,
        topology=nccl_topology.topology(machine, nccl_installed.in_force(env, conf_files)),
    )


def _numbers(loaded: Library | Unread) -> tuple[int, ...] | None:
    if isinstance(loaded, Unread) or isinstance(loaded.version, Unread):
        return None
    return tuple(int(part) for part in re.findall(r"\d+", loaded.version)[:3])


def _loaded(machine: Machine, env: Mapping[str, str]) -> Library | Unread:
    folder = torch_folder(machine)
    if isinstance(folder, Unread):
        return folder
    torch_cuda = f"{folder}/lib/libtorch_cuda.so"
    if not machine.exists(torch_cuda):
        return Unread("absent", "this torch was built without CUDA: it loads no NCCL")
    answer = _ask_linker(machine, torch_cuda)
    if isinstance(answer, Unread):
        return answer
    if path := _resolved(answer):
        return Library(path=path, origin=_origin(machine, env, path), version=_version(machine, path))
    if "libnccl.so" in answer:
        return Unread("absent", "torch needs libnccl.so.2 and the dynamic linker finds none")
    return _inside_torch(machine, torch_cuda)


def _ask_linker(machine: Machine, library: str) -> str | Unread:
    """All libraries that it resolves, as ldd asks: `--list` would stop at the first one that is missing."""
    loader = _LOADERS.get(platform.machine(), "")
    direct = machine.exists(loader)
    argv = [loader if direct else "ldd", library]
    output = machine.run(argv, _LONGEST_S, {**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"} if direct else None)
    if isinstance(output, Unread):
        return output
    return output.out or Unread("broken", f"{' '.join(argv)}: {output.err.strip()[:200] or 'no answer'}")


def _resolved(answer: str) -> str | None:
    """The libnccl among them; a preloaded one stands there by its path alone."""
    for line in answer.splitlines():
        path = line.split("=>")[-1].split(" (0x")[0].strip()
        if path.startswith("/") and os.path.basename(path).startswith("libnccl.so"):
            return path
    return None


def _version(machine: Machine, path: str) -> str | Unread:
    """What ncclGetVersion answers, asked in a child: a library from anywhere is not loaded into this process."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    output = machine.run([sys.executable, "-I", "-S", "-c", _ASK_VERSION, path], _LONGEST_S, env)
    if isinstance(output, Unread):
        return output
    if output.status or not output.out.strip().isdecimal():
        message = (output.err.strip().splitlines() or ["no answer"])[-1]
        return Unread("absent", f"it does not load: {message[:200]}")
    return decode_version(int(output.out))


def decode_version(number: int) -> str:
    """NCCL's integer as text: 2804 is 2.8.4, 23007 is 2.30.7. Source: NCCL_VERSION in nccl.h."""
    major, rest = divmod(number, 1000 if number < 10000 else 10000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _inside_torch(machine: Machine, path: str) -> Library | Unread:
    match = _STATIC.search(_rodata(machine, path))
    if match is None:
        return Unread("absent", "this torch neither loads a libnccl nor holds one")
    return Library(path=path, origin="inside torch", version=match[1].decode())


def _origin(machine: Machine, env: Mapping[str, str], path: str) -> str:
    """Who made the linker find this file."""
    real = os.path.realpath(path)
    for origin, place in _places(machine, env):
        if real == os.path.realpath(place) or os.path.dirname(real) == os.path.realpath(place):
            return origin
    return "system"


def _places(machine: Machine, env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Files and directories where a libnccl may stand, with the origin's name."""
    yield from (("LD_PRELOAD", file) for file in re.split("[ :]+", env.get("LD_PRELOAD", "")) if "/" in file)
    folder = torch_folder(machine)
    if not isinstance(folder, Unread):
        yield "pip package", f"{os.path.dirname(folder)}/nvidia/nccl/lib"
    yield from (("LD_LIBRARY_PATH", place) for place in _library_path(env))
    if prefix := env.get("CONDA_PREFIX"):
        yield "conda", f"{prefix}/lib"
    toolkits = machine.names("/usr/local")
    cudas = [] if isinstance(toolkits, Unread) else [n for n in toolkits if n.startswith("cuda")]
    yield from (("system", place) for place in (*_SYSTEM, *(f"/usr/local/{name}/lib64" for name in cudas)))


def _library_path(env: Mapping[str, str]) -> list[str]:
    return [place for place in env.get("LD_LIBRARY_PATH", "").split(":") if place.startswith("/")]


def _others(machine: Machine, env: Mapping[str, str], loaded: Library | Unread) -> list[Library]:
    """Copies that torch would not load, each real file once."""
    known = set() if isinstance(loaded, Unread) else {os.path.realpath(loaded.path)}
    copies: dict[str, tuple[str, str]] = {}
    for origin, place in _places(machine, env):
        for path in _copies(machine, place):
            copies.setdefault(os.path.realpath(path), (path, origin))
    unknown = [copy for real, copy in copies.items() if real not in known]
    with ThreadPoolExecutor(2) as pool:
        versions: list[str | Unread] = list(pool.map(lambda c: _version(machine, c[0]), unknown[:_MOST_ASKED]))
    versions += [Unread("no_tool", f"only {_MOST_ASKED} copies are asked")] * (len(unknown) - _MOST_ASKED)
    return [Library(path=p, origin=o, version=v) for (p, o), v in zip(unknown, versions, strict=True)]


def _copies(machine: Machine, place: str) -> list[str]:
    if os.path.basename(place).startswith("libnccl.so"):
        return [place] if machine.exists(place) else []
    names = machine.names(place)
    return [] if isinstance(names, Unread) else [f"{place}/{n}" for n in names if n.startswith("libnccl.so")]


def _known_names(machine: Machine, loaded: Library | Unread) -> list[str] | Unread:
    if isinstance(loaded, Unread):
        return loaded
    try:
        status = os.stat(loaded.path)
    except OSError as error:
        return Unread("denied", f"{loaded.path}: {error.strerror}")
    names = _scan(machine, loaded.path, status.st_size, status.st_mtime_ns)
    return list(names) or Unread("no_tool", f"no NCCL_* name stands in the read-only data of {loaded.path}")


@cache
def _scan(machine: Machine, path: str, _size: int, _mtime: int) -> tuple[str, ...]:
    return tuple(sorted({name.decode() for name in _NAME.findall(_rodata(machine, path))}))


def _rodata(machine: Machine, path: str) -> bytes:
    def read_at(offset: int, most: int) -> bytes:
        data = machine.read_bytes(path, most, offset)
        return b"" if isinstance(data, Unread) else data

    section = find_section(read_at, ".rodata")
    return read_at(section.offset, min(section.size, _MOST_RODATA_BYTES)) if section else b""


def _plugins(machine: Machine, env: Mapping[str, str]) -> list[str]:
    """Plugin libraries that NCCL would find by its own names, in the order of its families."""
    paths: dict[str, None] = {}
    for variable, kind in _PLUGINS.items():
        value = env.get(variable, "")
        for wanted in _plugin_names(kind, value):
            if path := _find_library(machine, env, wanted):
                paths.setdefault(path)
                break
    return list(paths)


def _plugin_names(kind: str, value: str) -> Iterable[str]:
    if value.lower() == "none":
        return ()
    named = (value, f"libnccl-{kind}-{value}.so") if value else ()
    return (*named, f"libnccl-{kind}.so")


def _find_library(machine: Machine, env: Mapping[str, str], name: str) -> str | None:
    """Where dlopen would find it: its path, LD_LIBRARY_PATH, the linker's cache. Source: ld.so(8)."""
    if "/" in name:
        return name if machine.exists(name) else None
    cache_file = machine.read_bytes("/etc/ld.so.cache", 8 * 2**20)
    cached = [] if isinstance(cache_file, Unread) else [p.decode() for p in _CACHED.findall(cache_file)]
    places = [f"{place}/{name}" for place in _library_path(env)]
    places += [path for path in cached if os.path.basename(path) == name]
    return next((path for path in places if machine.exists(path)), None)
