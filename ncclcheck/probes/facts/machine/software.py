"""Software versions, and what the job system gave."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ncclcheck.probes.facts.guard.unread import NOT_RECORDED, Unread
from ncclcheck.probes.facts.machine.host import Resolution


class Hiding(Struct, frozen=True, kw_only=True):
    """A file of the user's that has the name of a module of Python or torch. by: what puts its folder first."""

    module: str
    path: str
    by: Literal["the working directory", "PYTHONPATH"]


class Stack(Struct, frozen=True, kw_only=True, tag="stack"):
    """Software versions, read from files; torch is never imported for them.

    torch_libraries: bytes of those of its shared libraries that `import torch` maps in any case. preloaded: what
    /etc/ld.so.preload loads into every process. not_there: what LD_PRELOAD and LD_LIBRARY_PATH name, and is no
    file or folder: the loader passes over it. customised: sitecustomize and usercustomize, as Python finds them.
    python_start_s: what a start of it waits for, beside what it computes; 5 at most.
    """

    python: str | Unread = NOT_RECORDED
    executable: str | Unread = NOT_RECORDED
    ncclcheck: str | Unread = NOT_RECORDED
    torch: str | Unread = NOT_RECORDED
    torch_path: str | Unread = NOT_RECORDED
    torch_cuda: str | Unread = NOT_RECORDED
    torch_libraries: int | Unread = NOT_RECORDED
    driver: str | Unread = NOT_RECORDED
    numpy: str | Unread = NOT_RECORDED
    preloaded: str | Unread = NOT_RECORDED
    not_there: list[str] | Unread = NOT_RECORDED
    customised: list[str] | Unread = NOT_RECORDED
    hiding: list[Hiding] | Unread = NOT_RECORDED
    python_start_s: float | Unread = NOT_RECORDED


class Variable(Struct, frozen=True, kw_only=True):
    """An environment variable of the families that the tool may report.

    set_in: FILE:LINE of this node that gives every login or every Python this value; empty: none was found.
    """

    name: str
    value: str
    set_in: str = ""


class PortHolder(Struct, frozen=True, kw_only=True):
    """A listener on a port of this node. pid 0: another user's process, which may not be seen."""

    port: int
    pid: int
    name: str
    address: str = ""


class JobFacts(Struct, frozen=True, kw_only=True, tag="job"):
    """What the job system and the user gave to this process.

    master: what MASTER_ADDR resolves to on this node. port_holders: who listens on MASTER_PORT here, without us
    and whoever started us.
    """

    variables: list[Variable] | Unread = NOT_RECORDED
    launcher_programs: list[str] | Unread = NOT_RECORDED
    master: Resolution | Unread = NOT_RECORDED
    port_holders: list[PortHolder] | Unread = NOT_RECORDED
