"""The NCCL library and everything that configures it."""

from __future__ import annotations

from msgspec import Struct

from ncclcheck.probes.facts.guard.unread import NOT_RECORDED, Unread
from ncclcheck.probes.facts.machine.fabric import PciDevice


class Library(Struct, frozen=True, kw_only=True, tag="library"):
    """One libnccl on this machine.

    `version` is what the library itself answers (ncclGetVersion), as (major, minor, patch).
    `origin` says who would find it: torch's wheel, LD_LIBRARY_PATH, the system's linker.
    """

    path: str
    origin: str
    version: str | Unread = NOT_RECORDED


class ConfLine(Struct, frozen=True, kw_only=True):
    """One line of an nccl.conf file, split at the first `=` and not trimmed, as NCCL does it."""

    line: int
    name: str
    value: str


class ConfFile(Struct, frozen=True, kw_only=True):
    """One nccl.conf file that this libnccl would read, in order of precedence."""

    path: str
    lines: list[ConfLine] | Unread = NOT_RECORDED


class StrayLine(Struct, frozen=True, kw_only=True):
    """An NCCL_* assignment in a login file; `reached` says whether this process has it."""

    path: str
    line: int
    name: str
    value: str
    reached: bool


EXAMPLE_TUNER = "NVIDIA's example of a tuner"


class PluginFile(Struct, frozen=True, kw_only=True):
    """A plugin library that NCCL would load, and its SHA-256. product: its name and version by its own text.

    symbols: the interfaces that it brings, as `net v8`, `tuner v3`.
    """

    name: str
    path: str
    sha256: str | Unread = NOT_RECORDED
    product: str | Unread = NOT_RECORDED
    symbols: list[str] | Unread = NOT_RECORDED


class NamedFile(Struct, frozen=True, kw_only=True):
    """A path in the variable `name`. output: NCCL or torch writes there, so that its directory counts.

    fits: whether a file to be read can be read, or one to be written can be written.
    """

    name: str
    path: str
    output: bool
    fits: bool


class Wheel(Struct, frozen=True, kw_only=True):
    """An installed Python package that brings a libnccl; all of them write to the same file."""

    name: str
    version: str


class Nccl(Struct, frozen=True, kw_only=True, tag="nccl"):
    """The NCCL library and everything that configures it.

    `known_names` are the NCCL_* names in the .rodata of the library that torch would load. wanted: the version of
    the wheel that torch's own metadata asks for. topology: where the topology file that NCCL reads places GPUs and
    network cards; none where it reads no such file.
    """

    loaded: Library | Unread = NOT_RECORDED
    others: list[Library] | Unread = NOT_RECORDED
    known_names: list[str] | Unread = NOT_RECORDED
    plugins: list[str] | Unread = NOT_RECORDED
    plugin_files: list[PluginFile] | Unread = NOT_RECORDED
    named_files: list[NamedFile] | Unread = NOT_RECORDED
    wheels: list[Wheel] | Unread = NOT_RECORDED
    wanted: str | Unread = NOT_RECORDED
    conf_files: list[ConfFile] | Unread = NOT_RECORDED
    stray_lines: list[StrayLine] | Unread = NOT_RECORDED
    topology: list[PciDevice] | Unread = NOT_RECORDED
