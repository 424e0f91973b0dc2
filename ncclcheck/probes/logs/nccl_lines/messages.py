"""What single lines of NCCL say of their process, by the first word of the line; formats of 2.3 to 2.30."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from ncclcheck.probes.facts import Endpoint
from ncclcheck.probes.facts.guard.secrets import HIDDEN, is_secret, masked

if TYPE_CHECKING:
    from ncclcheck.probes.logs.nccl_lines.records import NcclProcess

_MOST, _LONGEST = 64, 200  # entries of each kind of a process, and characters of each: chosen, bounds memory
_FIRST = re.compile(r"[^\s:]+")
_CHANNELS = re.compile(r"(\d{1,4}) coll channels,")
_INTERFACE = re.compile(r"(?:\[\d{1,3}\])?([^\s:\[\]]{1,32}):(\S{1,64}?)<\d+>")
_OOB_DEVICE = re.compile(r"Using ([^\s<]{1,64})$")
_DEVICES = re.compile(  # name:port, since 2.30 with rail and plane
    r"\[(\d{1,3})\](?:=\{([^}]*)\}|([^\s:\[\]]{1,64}):(\d{1,3})(?::\d{0,5}){0,2}/(\w{1,20}))"
)
_MERGED = re.compile(r"([^\s:\[\]]{1,64}):(\d{1,3})/(\w{1,20})")
_MERGED_BY_NCCL = re.compile(r"Made virtual device \[(\d{1,3})\] name=(\S{1,64}) speed=(\d{1,9})")  # since 2.24
_SPEED = re.compile(r"\[\d{1,3}\] (\S{1,64}?):\w*:(\d{1,3})/\w+ .*\bspeed=(\d{1,9})")
_DIRECT = re.compile(r"GPU Direct RDMA (Enabled|Disabled) for HCA \d+ '([^']{1,64})'")
_PLUGIN = re.compile(
    r"Loaded net plugin (\S.{0,63}?)(?: \(v\d|$)|P2P plugin (\S{1,64})"
    r"|(?:Initializing|Using) (aws-ofi-nccl \S{1,40})"
)
_CHUNK = re.compile(r"P2P Chunksize set to (\d{1,9})")
_TUNER = re.compile(r"Using (?:tuner plugin )?([\w.-]{1,64})")
_NETWORK = re.compile(r"(?:Using network|Using internal Network|(?:Initialized|Assigned) NET plugin) ([^,]{1,60})")
_SETTING = re.compile(r"(NCCL_\w{1,80}) set (?:by environment )?to (.{0,200}?)\.?$")
_PASSED_ON = re.compile(r"\S+:\d+ (?:\(\S{1,80}\) )?-> \d+")  # with the function since 2.30

# Plugins that speak as NET/IB does: NET/IBext_v8.
_LIKE_INFINIBAND = ("NET/IB", "NET/Libfabric", "NET/AWS", "NET/gIB")

# Lines that say nothing of the transport and are no cause for alarm, by their first word.
_KNOWN = frozenset(
    (
        *("P2P", "SHM", "Check", "isAllDirectP2p", "MNNVL", "CC", "DMA-BUF", "GPU", "cuMem", "Local", "Comm"),
        *(
            "threadThresholds",
            "Setting",
            "ncclTopoGetCpuAffinity",
            "Init",
            "RAS",
            "Enabled",
            "Plugin",
            "===",
            "Rank",
        ),
        *("Channel", "Ring", "Tree", "Trees", "Pattern", "Max", "Algorithm", "Protocol"),
        *("AllReduce", "AllGather", "Broadcast", "Reduce", "ReduceScatter", "Send", "Recv"),
        *("Successfully", "PROFILER/Plugin", "ENV/Plugin", "GIN/Plugin", "RMA/Plugin", "RMA/Socket"),
        *("Disabling", "Invalid", "Skipping", "Stack", "Symmetric", "Tuning"),
        *("[Proxy", "[Service", "NCCL", "Socket"),
        *("Cross-clique", "GDRCOPY", "AlltoAll"),
    )
)


def take(process: NcclProcess, text: str) -> bool:
    """Keep what a line says; False where nobody understands it."""
    first = _FIRST.match(text)
    word = first[0] if first else ""
    if handler := _HANDLERS.get(word) or (_infiniband if word.startswith(_LIKE_INFINIBAND) else None):
        handler(process, text)
        return True
    if match := _SETTING.match(text):
        if len(process.settings) < _MOST:
            process.settings[match[1]] = HIDDEN if is_secret(match[1]) else masked(match[2])
        return True
    return word in _KNOWN or _PASSED_ON.match(text) is not None


def channels(text: str) -> int | None:
    """How many channels a communicator has, where a line tells it."""
    match = _CHANNELS.match(text)
    return int(match[1]) if match else None


def _endpoints(text: str) -> list[Endpoint]:
    return [Endpoint(interface=name, address=address) for name, address in _INTERFACE.findall(text)[:_MOST]]


def _bootstrap(process: NcclProcess, text: str) -> None:
    if "Using" not in text:
        return
    if endpoints := _endpoints(text.partition("Using")[2]):
        process.bootstrap = endpoints[0]
    elif device := _OOB_DEVICE.search(text):
        process.bootstrap = Endpoint(interface=device[1], address="")


def _sockets(process: NcclProcess, text: str) -> None:
    process.interfaces = _endpoints(text.partition("Using")[2]) or process.interfaces


def _one_interface(process: NcclProcess, text: str) -> None:
    """A line each, before 2.4; the first connections were made over the first."""
    if "Using interface" in text and len(process.interfaces) < _MOST and (endpoints := _endpoints(text)):
        process.interfaces = [*process.interfaces, *endpoints]
        process.bootstrap = process.bootstrap or endpoints[0]


def _infiniband(process: NcclProcess, text: str) -> None:
    if match := _DIRECT.search(text):
        if len(process.direct) < _MOST:
            process.direct[match[2]] = match[1] == "Enabled"
    elif match := _SPEED.search(text):
        if len(process.speeds) < _MOST:
            process.speeds[f"{match[1]}:{match[2]}"] = int(match[3])
    elif match := _MERGED_BY_NCCL.search(text):
        first = match[2].partition("+")[0]
        link = next((link for name, link in process.devices.values() if name.partition(":")[0] == first), "")
        if link and "+" in match[2] and len(process.devices) < _MOST:
            process.devices[int(match[1])] = (match[2], link)
            process.speeds[match[2]] = int(match[3])
    elif "No device found" in text:
        process.no_infiniband = text[:_LONGEST]
    elif " Using " in text:
        listed, _, oob = text.partition("OOB ")
        for index, merged, name, port, link in _DEVICES.findall(listed)[:_MOST]:
            ports = _MERGED.findall(merged) or [(name, port, link)]
            process.devices[int(index)] = ("+".join(f"{n}:{p}" for n, p, _ in ports[:4]), ports[0][2])
        process.oob = next(iter(_endpoints(oob)), None)


def _no_infiniband(process: NcclProcess, text: str) -> None:
    if "libibverbs" in text and not text.endswith("libibverbs.so"):  # 2.30 tries that name before .so.1
        process.no_infiniband = text[:_LONGEST]


def _plugin(process: NcclProcess, text: str) -> None:
    if match := _PLUGIN.search(text):
        process.plugin = next(name for name in match.groups() if name)


def _p2p(process: NcclProcess, text: str) -> None:
    if match := _CHUNK.match(text):
        process.chunk = int(match[1])
    else:
        _plugin(process, text)


def _tuner(process: NcclProcess, text: str) -> None:
    match = _TUNER.search(text)
    if match and "internal" not in text:
        process.tuner = match[1]


def _network(process: NcclProcess, text: str) -> None:
    if match := _NETWORK.match(text):
        process.network = match[1].partition(" to comm")[0].strip()


def _nvls(process: NcclProcess, text: str) -> None:
    if "multicast support is" in text:
        process.nvls = "not available" not in text


def _connected(process: NcclProcess, text: str) -> None:
    if "all rings" in text or "all trees" in text:
        process.started_line = process.number
    process.rings |= "all rings" in text
    process.trees |= "all trees" in text  # binomial ones are of PAT


def _driver(process: NcclProcess, text: str) -> None:
    process.driver = text.rpartition(" ")[2][:10]


_HANDLERS: dict[str, Callable[[NcclProcess, str], None]] = {
    "Bootstrap": _bootstrap,
    "NET/Socket": _sockets,
    "NET": _one_interface,
    "NET/IB": _infiniband,
    "NET/Plugin": _plugin,
    "NET/OFI": _plugin,
    "P2P": _p2p,
    "TUNER/Plugin": _tuner,
    "Using": _network,
    "Initialized": _network,
    "Assigned": _network,
    "NVLS": _nvls,
    "Connected": _connected,
    "Failed": _no_infiniband,
    "Could": _no_infiniband,
    "Count": _no_infiniband,
    "cudaDriverVersion": _driver,
}
