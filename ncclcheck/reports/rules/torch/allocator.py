"""PYTORCH_CUDA_ALLOC_CONF: options that torch refuses, or that turn something else off."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, State, fail, note, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nccl.settings import Settings, nodes_with

_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_SWITCHES = ("expandable_segments", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register",
             "pinned_use_background_threads", "graph_capture_record_stream_reuse")  # fmt: skip
_OPTIONS = (*_SWITCHES, "max_split_size_mb", "max_non_split_rounding_mb", "garbage_collection_threshold",
            "roundup_power2_divisions", "roundup_bypass_threshold_mb", "backend", "pinned_num_register_threads",
            "pinned_reserve_segment_size_mb", "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb",
            "large_segment_size_mb", "per_process_memory_fraction", "throw_on_cudamalloc_oom")  # fmt: skip
_HOOKS = ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK")


def _options(text: str) -> list[tuple[str, str]]:
    """`a:1,b:[256:1,512:2]` as pairs; commas inside brackets part nothing."""
    depth, pieces = 0, [""]
    for sign in text:
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += sign
    parted = [piece.partition(":") for piece in pieces if piece.strip()]
    return [(name.strip(), value.strip()) for name, _, value in parted]


@rule("NCC041", "torch accepts the options of its CUDA allocator", worst=State.FAIL, needs=("job.variables",))
def allocator_options(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The options in PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF in newer versions).

    ## Why it matters
    torch reads them at the first CUDA call and raises `Unrecognized CachingAllocator option` or `Expected a
    single True/False argument` for what it does not understand: after the job has waited for its nodes, and
    loaded its data.

    ## How we know
    Names against those of torch 2.1 to 2.13; a name that is close to one of them is a failure, another one a
    note, for a newer torch may know it. Switches take `True` or `False` in exactly this form.

    ## Fix
    - **you** correct the name: `export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.

    ## Source
    PyTorch documentation, CUDA semantics, memory management; torch c10/cuda/CUDAAllocatorConfig.cpp.
    """
    for settings in nodes_with(cluster, *_NAMES):
        for variable in _NAMES:
            for name, value in _options(settings.text(variable)):
                yield from _problem(settings, variable, name, value)


def _problem(settings: Settings, variable: str, name: str, value: str) -> Iterator[Finding]:
    near = difflib.get_close_matches(name, _OPTIONS, 1, 0.75)
    if name in _SWITCHES and value not in ("True", "False"):
        what = f"{variable}: {name}:{value} is neither True nor False in this form"
    elif name in _OPTIONS:
        return
    elif not near:
        what = f"{variable}: ncclcheck does not know the option {name}"
        why = "A torch that does not know it either ends at the first CUDA call."
        yield note(settings.where, what, why=why, evidence=settings.evidence(variable))
        return
    else:
        what = f"{variable}: {name} is no option; did you mean {near[0]}?"
    yield fail(
        settings.where,
        what,
        why="torch raises an exception for it at the first CUDA call.",
        owner="job",
        evidence=settings.evidence(variable),
        fix=[you("Correct or remove it.", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")],
    )


@rule("NCC042", "buffers meant for registration can be registered", worst=State.WARN, needs=("job.variables",))
def registered_buffers(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=1 together with expandable_segments:True.

    ## Why it matters
    The hook registers torch's memory with NCCL, for zero-copy collectives and NVLink SHARP. It cannot follow
    segments that grow, so torch turns it off and says so at INFO only: the speed for which somebody set it is
    not there.

    ## Seen as
    slow, setting without effect

    ## How we know
    Both variables as torch parses them.

    ## Fix
    - **you** remove one of them: expandable segments where memory is fragmented, the hook where collectives count.

    ## Source
    torch c10d/ProcessGroupNCCL.cpp (2.1 and later); NCCL user guide, user buffer registration.
    """
    for settings in nodes_with(cluster, *_HOOKS):
        hook = next(name for name in _HOOKS if name in settings.all)
        options = [option for name in _NAMES for option in _options(settings.text(name))]
        if settings.is_on(hook) and ("expandable_segments", "True") in options:
            yield warn(
                settings.where,
                f"expandable_segments:True turns {hook} off",
                why="Collectives copy their data once more, though the setting says otherwise.",
                owner="job",
                evidence=settings.evidence(hook, *_NAMES),
                fix=[you("Keep one of the two.", f"unset {hook}")],
            )
