"""Files around NCCL: its plugins, the files that variables name, and the Python packages that bring a libnccl.

Recorded names: `nccl_plugin_files`, `nccl_named_files`, `nccl_wheels`, `nccl_wanted`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping

from ncclcheck.probes.facts import EXAMPLE_TUNER, ConfFile, NamedFile, PluginFile, Unread, Wheel
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host.host import within

_LONGEST_S = 4.0  # a file is read within it from a busy network file system; a dead one is not waited for: chosen
_MOST_BYTES = 64 * 2**20  # of a plugin: chosen, what a file claims to be is bounded
_READ = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_TUNER_CONFIG_FILE", "NCCL_IBVERBS_LIB")
_WRITTEN = (
    "NCCL_DEBUG_FILE",
    "NCCL_TOPO_DUMP_FILE",
    "NCCL_GRAPH_DUMP_FILE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
)
_PRODUCT = re.compile(rb"aws-ofi-nccl \d{1,4}\.\d{1,4}\.\d{1,4}")  # PACKAGE_STRING of autoconf
_HPCX = re.compile(r"/(nccl_[\w-]+_plugin|ncclnet_plugin)/lib/")
_HPCX_VERSION = re.compile(r"HPC-X v\d{1,3}(?:\.\d{1,3}){1,3}")
_NO_NAME = Unread("absent", "no name with a version stands in it")
_EXAMPLE = b"TUNER/ExamplePlugin"  # what NVIDIA's example of a tuner writes before its lines
_SYMBOL = re.compile(rb"(?<=\0)nccl(Net|CollNet|Tuner)Plugin_v(\d{1,2})(?=\0)")
_WHEEL = re.compile(r"(nvidia[-_.]nccl[-_.]cu\d+)-([^-]+)\.dist-info", re.IGNORECASE)
_REQUIRES = re.compile(r"^Requires-Dist:\s*nvidia[-_.]nccl[-_.]cu\d+\s*\(?==\s*([0-9.]+)", re.MULTILINE)


def plugin_files(machine: Machine, plugins: list[str] | Unread) -> list[PluginFile] | Unread:
    """The plugins that NCCL would load, with their hashes."""
    if isinstance(plugins, Unread):
        return plugins
    return machine.ask("nccl_plugin_files", list[PluginFile], lambda: [_plugin(machine, path) for path in plugins])


def _plugin(machine: Machine, path: str) -> PluginFile:
    data = within(_LONGEST_S, path, lambda: machine.read_bytes(path, _MOST_BYTES))
    if isinstance(data, Unread):
        return PluginFile(name=os.path.basename(path), path=path, sha256=data, product=data, symbols=data)
    return PluginFile(
        name=os.path.basename(path),
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        product=_product(data) or _bundle(machine, path) or _NO_NAME,
        symbols=sorted({f"{kind.decode().lower()} v{number.decode()}" for kind, number in _SYMBOL.findall(data)}),
    )


def _product(data: bytes) -> str:
    if match := _PRODUCT.search(data):
        return match[0].decode()
    return EXAMPLE_TUNER if _EXAMPLE in data else ""


def _bundle(machine: Machine, path: str) -> str:
    """HPC-X keeps its version in a file at its top: ROOT/VERSION beside ROOT/nccl_rdma_sharp_plugin/lib."""
    top, plugin, _ = re.split(_HPCX, path, maxsplit=1) if _HPCX.search(path) else ("", "", "")
    text = within(_LONGEST_S, path, lambda: machine.read(f"{top}/VERSION")) if plugin else ""
    match = None if isinstance(text, Unread) else _HPCX_VERSION.match(text)
    return match[0] if match else ""


def named_files(
    machine: Machine, env: Mapping[str, str], files: list[ConfFile] | Unread
) -> list[NamedFile] | Unread:
    """Paths in variables."""
    values = in_force(env, files)
    listed = {name: values[name] for name in (*_READ, *_WRITTEN) if "/" in values.get(name, "")}
    return machine.ask(
        "nccl_named_files",
        list[NamedFile],
        lambda: within(
            _LONGEST_S, "the files that variables name", lambda: [_named(*entry) for entry in listed.items()]
        ),
    )


def in_force(env: Mapping[str, str], files: list[ConfFile] | Unread) -> dict[str, str]:
    """What variables are set to: by the environment first, then by the nccl.conf files in their order."""
    values = {name: value for name, value in env.items() if value}
    for file in [] if isinstance(files, Unread) else files:
        for line in [] if isinstance(file.lines, Unread) else file.lines:
            values.setdefault(line.name, line.value)
    return values


def _named(name: str, path: str) -> NamedFile:
    """A pattern such as %h stands for nothing that could be looked at, so the directory above it is taken."""
    if name in _READ:
        return NamedFile(name=name, path=path, output=False, fits=os.access(path, os.R_OK))
    folder = os.path.dirname(path.partition("%")[0])
    fits = os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
    return NamedFile(name=name, path=path, output=True, fits=fits)


def wheels(machine: Machine, torch: str | Unread) -> list[Wheel] | Unread:
    """Packages that bring a libnccl, beside torch."""
    return machine.ask("nccl_wheels", list[Wheel], lambda: _wheels(machine, torch))


def _wheels(machine: Machine, torch: str | Unread) -> list[Wheel] | Unread:
    names = torch if isinstance(torch, Unread) else machine.names(os.path.dirname(torch))
    if isinstance(names, Unread):
        return names
    matches = [match for name in names if (match := _WHEEL.fullmatch(name))]
    return [Wheel(name=match[1].lower().replace("_", "-"), version=match[2]) for match in matches]


def wanted(machine: Machine, torch: str | Unread) -> str | Unread:
    """The version of NCCL that the installed torch asks pip for."""
    return machine.ask("nccl_wanted", str, lambda: _wanted(machine, torch))


def _wanted(machine: Machine, torch: str | Unread) -> str | Unread:
    if isinstance(torch, Unread):
        return torch
    names = machine.names(os.path.dirname(torch))
    if isinstance(names, Unread):
        return names
    for name in names:
        if re.fullmatch(r"torch-[^-]+\.dist-info", name):
            text = machine.read(f"{os.path.dirname(torch)}/{name}/METADATA")
            match = None if isinstance(text, Unread) else _REQUIRES.search(text)
            if match:
                return match[1]
    return Unread("absent", "this torch asks pip for no NCCL")
