"""Settings of torch and CUDA beside NCCL's own."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.reports.recommend.advice import MANY_NODES, Proposal, SettingRule, number, on, without
from ncclcheck.reports.recommend.site import SetVariable, Site

_DUMP = "TORCH_NCCL_DUMP_ON_TIMEOUT"
_BUFFERS = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")


def recorder_after_a_hang(site: Site) -> Iterator[Proposal]:
    """X1: a rank did not come to a collective here, and the Flight Recorder is off."""
    problem = site.evidence_of("RUN003")
    if not problem:
        return
    if not site.is_set(*_BUFFERS) and site.runs_torch((2, 2, 0), (2, 11, 0)):
        buffer = _BUFFERS[1] if site.runs_torch((2, 8, 0)) else _BUFFERS[0]
        why = (
            "This torch records nothing by itself; with a buffer a hang leaves which rank missed which collective."
        )
        yield Proposal(buffer, "2000", why, problem)
    if not site.is_set(_DUMP) and site.runs_torch((2, 2, 0)):
        yield Proposal(_DUMP, "1", "The record is written when a collective times out.", problem)


def recorder_before_a_hang(site: Site) -> Iterator[Proposal]:
    """X1: many nodes, and a torch that records nothing by itself."""
    if len(site.nodes) < MANY_NODES or not site.runs_torch((2, 2, 0), (2, 11, 0)):
        return
    evidence = [f"{len(site.nodes)} nodes", "torch before 2.11 records nothing by itself"]
    if not site.is_set(*_BUFFERS):
        buffer = _BUFFERS[1] if site.runs_torch((2, 8, 0)) else _BUFFERS[0]
        yield Proposal(
            buffer, "2000", "The last 2000 collectives of each rank explain a hang after it happened.", evidence
        )
    if not site.is_set(_DUMP):
        yield Proposal(_DUMP, "1", "The record is written when a collective times out.", evidence)


def times_of_collectives(site: Site) -> Iterator[Proposal]:
    """X2: a rank is late, and which collective waits is not recorded."""
    if (problem := site.evidence_of("BEN003")) and not site.is_set("TORCH_NCCL_ENABLE_TIMING"):
        why = "The Flight Recorder then has the time of every collective, which names the rank that is waited for."
        yield Proposal("TORCH_NCCL_ENABLE_TIMING", "1", why, problem)


def _is_on(setting: SetVariable) -> bool:
    return setting.on.is_on(setting.name)


RULES = (
    SettingRule(
        rule="X1", title="the Flight Recorder, where a rank missed a collective", action="set",
        find=recorder_after_a_hang,
        source="PyTorch documentation, Flight Recorder; pytorch/torchtitan#1748",
        gain="the next hang explains itself",
        risk="a little memory; TORCH_FR_DUMP_TEMP_FILE (before torch 2.9: TORCH_NCCL_DEBUG_INFO_TEMP_FILE) should "
        "be on a shared directory",
    ),
    SettingRule(
        rule="X1", title="the Flight Recorder on many nodes, before the first hang", action="try",
        find=recorder_before_a_hang, source="PyTorch documentation, Flight Recorder",
        gain="the first hang explains itself",
        risk="it counts entries and not bytes; TORCH_FR_DUMP_TEMP_FILE (before torch 2.9: "
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE) should be on a shared directory",
    ),
    SettingRule(
        rule="L14", title="torch does not wait for every collective on the host", action="unset",
        find=without("TORCH_NCCL_BLOCKING_WAIT", when=_is_on,
                     why="The host waits for every collective: nothing overlaps."),
        source="PyTorch documentation, Distributed communication package",
        gain="communication overlaps computation",
    ),
    SettingRule(
        rule="L15", title="no debugging of torch and CUDA in production", action="unset",
        find=without("CUDA_LAUNCH_BLOCKING", when=_is_on, why="Every kernel is waited for: nothing overlaps."),
        source="PyTorch documentation, CUDA environment variables", gain="kernels overlap",
    ),
    SettingRule(
        rule="L15", title="no debugging of torch and CUDA in production", action="unset",
        find=without("TORCH_DISTRIBUTED_DEBUG", when=on("detail"),
                     why="Every collective is checked by another one over gloo first."),
        source="PyTorch documentation, Distributed communication package", gain="no second collective for each",
    ),
    SettingRule(
        rule="L15", title="no debugging of torch and CUDA in production", action="unset",
        find=without("NCCL_LAUNCH_MODE", when=on("group"), why="It is deprecated, and meant for debugging."),
        source="NCCL user guide, Debugging, NCCL_LAUNCH_MODE", gain="none now",
    ),
    SettingRule(
        rule="L16", title="more than one queue to the GPU without tensor parallelism", action="try",
        find=without("CUDA_DEVICE_MAX_CONNECTIONS", when=number(1), only=lambda site: len(site.gpus()) != 1,
                     why="FSDP and DDP overlap worse with one queue; Megatron's tensor parallelism needs it."),
        source="NVIDIA Megatron Core, Megatron-FSDP guide", gain="communication overlaps computation",
        risk="keep it where Megatron's tensor or context parallelism is used; measure with your own training",
    ),
    SettingRule(
        rule="X2", title="times of collectives, where a rank is late", action="try", find=times_of_collectives,
        source="torch c10d/ProcessGroupNCCL.hpp", gain="names the late rank in a real training",
        risk="a little time for CUDA events",
    ),
)  # fmt: skip
