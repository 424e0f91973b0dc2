"""What is asked of one GPU; the answers have the shape of `facts_gpu.Gpu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncclcheck.probes.machine.nvml.asked import ABSENT, AskedGpu, Fact, Trouble, unread, word

# NVML_NVLINK_MAX_LINKS of nvml.h (18 are used up to Blackwell); the first that is not supported ends the loop
_MOST_LINKS = 36
# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON. Source: nvml.h
_RECOVERY_FIELD, _NVLINK_SPEED_FIELD = 230, 90
_CORRUPTED_INFOROM = 14  # NVML_ERROR_CORRUPTED_INFOROM. Source: nvml.h
_REASONS = (
    "idle",
    "application_clocks",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display",
)
_PATHS = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_P2P = ("ok", "chipset not supported", "GPU not supported", "topology not supported", "disabled by registry key")
_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
_RECOVERY = ("none", "reset", "reboot", "drain_p2p", "drain_and_reset", *["other"] * 8)
_FABRIC = ("", "not_started", "in_progress", "completed")
_HEALTH = ("", "healthy", "unhealthy", "limited_capacity")


def card(asked: AskedGpu, index: int, handles: list[Any]) -> None:
    """Ask all groups of facts about one GPU into asked.answers. Raises Trouble where NVML has no handle of it."""
    handle = handles[index]
    if isinstance(handle, str):
        raise Trouble(f"{handle} (nvmlDeviceGetHandleByIndex)")
    facts = asked.answers
    for group in (_identity, _memory, _modes, _errors, _speed, _pcie):
        facts.update(group(asked, handle))
    facts["nvlinks"] = _nvlinks(asked, handle)
    facts["fabric"] = _fabric(asked, handle)
    facts["peers"] = [
        _peer(asked, handle, number, other)
        for number, other in enumerate(handles)
        if number != index and not isinstance(other, str)
    ]
    facts["trouble"] = ""


def _identity(a: AskedGpu, gpu: Any) -> dict[str, Fact]:
    return {
        "uuid": a.ask("nvmlDeviceGetUUID", gpu),
        "model": a.ask("nvmlDeviceGetName", gpu),
        "pci": a.ask("nvmlDeviceGetPciInfo", gpu, then=lambda info: _pci(info.busId)),
        "vbios": a.ask("nvmlDeviceGetVbiosVersion", gpu),
        "recovery": _field(a, gpu, _RECOVERY_FIELD, lambda value: word(_RECOVERY, value.uiVal)),
    }


def _pci(bus_id: str | bytes) -> str:
    """`00000000:1B:00.0` as sysfs writes it."""
    text = bus_id if isinstance(bus_id, str) else bus_id.decode(errors="backslashreplace")
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _memory(a: AskedGpu, gpu: Any) -> dict[str, Fact]:
    info = a.ask(
        "nvmlDeviceGetMemoryInfo", gpu, getattr(a.nvml, "nvmlMemory_v2", None)
    )  # what is reserved is apart
    if isinstance(info, dict) and info["kind"] == "absent":
        info = a.ask("nvmlDeviceGetMemoryInfo", gpu)
    return {
        "memory_total": info if isinstance(info, dict) else info.total,
        "memory_used": info if isinstance(info, dict) else info.used,
        "bar1": a.ask("nvmlDeviceGetBAR1MemoryInfo", gpu, then=lambda bar: bar.bar1Total),
        "processes": a.ask("nvmlDeviceGetComputeRunningProcesses", gpu, then=_processes),
    }


def _processes(listed: list[Any]) -> list[Fact]:
    unseen = unread("denied", "NVML does not report the memory of this process")
    return [
        {"pid": process.pid, "memory": unseen if process.usedGpuMemory is None else process.usedGpuMemory}
        for process in listed
    ]


def _modes(a: AskedGpu, gpu: Any) -> dict[str, Fact]:
    mig = a.ask("nvmlDeviceGetMigMode", gpu, then=lambda modes: modes[0] == 1)
    return {
        "compute_mode": a.ask("nvmlDeviceGetComputeMode", gpu, then=lambda mode: word(_MODES, mode)),
        "persistence": a.ask("nvmlDeviceGetPersistenceMode", gpu, then=bool),
        "mig": mig,
        "mig_instances": _mig_instances(a, gpu) if mig is True else unread("absent", "MIG is off"),
        "ecc": a.ask("nvmlDeviceGetCurrentEccMode", gpu, then=bool),
        "ecc_pending": a.ask("nvmlDeviceGetPendingEccMode", gpu, then=bool),
    }


def _mig_instances(a: AskedGpu, gpu: Any) -> Fact:
    most = a.ask("nvmlDeviceGetMaxMigDeviceCount", gpu)
    if isinstance(most, dict):
        return most
    handles = [a.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, number) for number in range(min(most, 16))]
    names = [a.ask("nvmlDeviceGetUUID", instance) for instance in handles if not isinstance(instance, dict)]
    return [name for name in names if isinstance(name, str)]


def _errors(a: AskedGpu, gpu: Any) -> dict[str, Fact]:
    def count(kind: int, since: int) -> Fact:
        return a.ask("nvmlDeviceGetTotalEccErrors", gpu, kind, since)

    rows = ("correctable", "uncorrectable", "pending", "failed")
    return {
        "ecc_corrected": count(0, 0),
        "ecc_uncorrected": count(1, 0),
        "ecc_corrected_ever": count(0, 1),
        "ecc_uncorrected_ever": count(1, 1),
        "sram_exceeded": _sram(a, gpu),
        "remapped": a.ask(
            "nvmlDeviceGetRemappedRows",
            gpu,
            then=lambda r: {
                "type": "remapped_rows",
                **dict(zip(rows, (*r[:2], bool(r[2]), bool(r[3])), strict=True)),
            },
        ),
        "spare_rows": a.ask("nvmlDeviceGetRowRemapperHistogram", gpu, then=_spare),
        "inforom": a.ask("nvmlDeviceValidateInforom", gpu, then=lambda _: True, codes={_CORRUPTED_INFOROM: False}),
        "retired": _retired(a, gpu),
    }


def _spare(banks: Any) -> Fact:
    return {
        "type": "spare_rows",
        "all": banks.max,
        "many": banks.high,
        "some": banks.partial,
        "few": banks.low,
        "none": banks.none,
    }


def _sram(a: AskedGpu, gpu: Any) -> Fact:
    if not hasattr(a.nvml, "c_nvmlEccSramErrorStatus_v1_t"):
        return unread("absent", "this pynvml has no nvmlDeviceGetSramEccErrorStatus")
    status = a.nvml.c_nvmlEccSramErrorStatus_v1_t()
    pointer = a.nvml.byref(status)
    return a.ask("nvmlDeviceGetSramEccErrorStatus", gpu, pointer, then=lambda _: bool(status.bThresholdExceeded))


def _retired(a: AskedGpu, gpu: Any) -> Fact:
    parts = [
        a.ask("nvmlDeviceGetRetiredPages", gpu, 0, then=len),
        a.ask("nvmlDeviceGetRetiredPages", gpu, 1, then=len),
        a.ask("nvmlDeviceGetRetiredPagesPendingStatus", gpu, then=bool),
    ]
    unseen = next((part for part in parts if isinstance(part, dict)), None)
    return unseen or {"type": "retired_pages", "single_bit": parts[0], "double_bit": parts[1], "pending": parts[2]}


def _speed(a: AskedGpu, gpu: Any) -> dict[str, Fact]:
    def watts(milliwatts: int) -> float:
        return milliwatts / 1000

    return {
        "utilization": a.ask("nvmlDeviceGetUtilizationRates", gpu, then=lambda rates: rates.gpu),
        "clock": a.ask("nvmlDeviceGetClockInfo", gpu, 1),
        "clock_max": a.ask("nvmlDeviceGetMaxClockInfo", gpu, 1),
        "clock_memory": a.ask("nvmlDeviceGetClockInfo", gpu, 2),
        "clock_memory_max": a.ask("nvmlDeviceGetMaxClockInfo", gpu, 2),
        "throttle": a.first_of(
            ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
            gpu,
            then=lambda mask: [name for bit, name in enumerate(_REASONS) if mask >> bit & 1],
        ),
        "power_draw": a.ask("nvmlDeviceGetPowerUsage", gpu, then=watts),
        "power_cap": a.ask("nvmlDeviceGetPowerManagementLimit", gpu, then=watts),
        "power_default": a.ask("nvmlDeviceGetPowerManagementDefaultLimit", gpu, then=watts),
        "temperature": a.first_of(("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"), gpu, 0),
        "slowdown_at": a.ask("nvmlDeviceGetTemperatureThreshold", gpu, 1),
        "margin": a.ask("nvmlDeviceGetMarginTemperature", gpu),
    }


def _pcie(a: AskedGpu, gpu: Any) -> dict[str, Fact]:
    return {
        "pcie_gen": a.ask("nvmlDeviceGetCurrPcieLinkGeneration", gpu),
        "pcie_gen_max": a.ask("nvmlDeviceGetMaxPcieLinkGeneration", gpu),
        "pcie_gen_device": a.ask("nvmlDeviceGetGpuMaxPcieLinkGeneration", gpu),
        "pcie_width": a.ask("nvmlDeviceGetCurrPcieLinkWidth", gpu),
        "pcie_width_max": a.ask("nvmlDeviceGetMaxPcieLinkWidth", gpu),
        "pcie_replays": a.ask("nvmlDeviceGetPcieReplayCounter", gpu),
    }


def _nvlinks(a: AskedGpu, gpu: Any) -> Fact:
    states: list[int] = []
    for link in range(_MOST_LINKS):
        state = a.ask("nvmlDeviceGetNvLinkState", gpu, link)
        if isinstance(state, dict) and not states:
            return unread("absent", "this GPU has no NVLink") if state["kind"] == "broken" else state
        if isinstance(state, dict):
            break
        states.append(state)
    up = [link for link, state in enumerate(states) if state]
    return {
        "type": "nvlinks",
        "links": len(states),
        "down": [link for link, state in enumerate(states) if not state],
        "speed_mbps": _field(a, gpu, _NVLINK_SPEED_FIELD, lambda value: value.uiVal),
        "replays": _link_errors(a, gpu, 0, up),
        "recoveries": _link_errors(a, gpu, 1, up),
        "crc_errors": _link_errors(a, gpu, 2, up),
    }


def _link_errors(a: AskedGpu, gpu: Any, counter: int, links: list[int]) -> Fact:
    """The sum over links, or why one of them could not be read."""
    total = 0
    for link in links:
        count = a.ask("nvmlDeviceGetNvLinkErrorCounter", gpu, link, counter)
        if isinstance(count, dict):
            return count
        total += count
    return total


def _fabric(a: AskedGpu, gpu: Any) -> Fact:
    if hasattr(a.nvml, "c_nvmlGpuFabricInfo_v3_t"):
        info, name = a.nvml.c_nvmlGpuFabricInfo_v3_t(), "nvmlDeviceGetGpuFabricInfoV"
        done = a.ask(name, gpu, a.nvml.byref(info))
        if done == 0:
            return _registered(info, word(_HEALTH, info.healthSummary))
    info = a.nvml.c_nvmlGpuFabricInfo_t()
    done = a.ask("nvmlDeviceGetGpuFabricInfo", gpu, a.nvml.byref(info))
    return _registered(info, "") if done == 0 else done


def _registered(info: Any, health: Fact) -> Fact:
    state = word(_FABRIC, info.state)
    if isinstance(state, dict) or isinstance(health, dict):
        return state if isinstance(state, dict) else health
    if not state:
        return unread("absent", "this GPU is on no NVSwitch fabric")
    cluster = bytes(info.clusterUuid).hex().strip("0")
    return {
        "type": "nvfabric", "state": state, "status": info.status, "health": health, "cluster": cluster,
        "clique": info.cliqueId,
    }  # fmt: skip


def _field(a: AskedGpu, gpu: Any, number: int, then: Callable[[Any], Fact]) -> Fact:
    """One value of nvmlDeviceGetFieldValues, which has a return code of its own."""

    def value(values: Any) -> Fact:
        if code := values[0].nvmlReturn:
            return unread("absent" if code in ABSENT | {2} else "broken", f"field {number}: NVML error {code}")
        return then(values[0].value)

    return a.ask("nvmlDeviceGetFieldValues", gpu, [number], then=value)


def _peer(a: AskedGpu, gpu: Any, number: int, other: Any) -> Fact:
    return {
        "name": f"GPU {number}",
        "path": a.ask(
            "nvmlDeviceGetTopologyCommonAncestor", gpu, other,
            then=lambda level: _PATHS.get(level, unread("broken", f"NVML answered {level}")),
        ),
        "p2p": a.ask(
            "nvmlDeviceGetP2PStatus", gpu, other, 0,
            then=lambda status: _P2P[status] if 0 <= status < len(_P2P) else "not supported",
        ),
    }  # fmt: skip
