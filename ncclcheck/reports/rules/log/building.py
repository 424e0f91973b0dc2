"""LOG180: what is compiled while a job starts."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Remedy, you
from ncclcheck.reports.subjects.logs.logged import at_teller, cause, events_of, in_order, log_rule

_CLEAN = "rm -rf ~/.cache/torch_extensions ~/.triton/cache"


@log_rule("LOG180", "code compiled at start-up compiles")
def code_is_built(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A compiler that the job called at its start failed, or is not there.

    ## Why it matters
    DeepSpeed's operators, extensions of torch, Triton's kernels and torch.compile are built when they are first
    used, on each node. The same image with another toolkit, or without headers, ends there.

    ## How we know
    `Python.h: No such file`, `cannot find -lcuda`, `unsupported GNU version`, `nvcc fatal`, `Error building
    extension 'fused_adam'`, `Ninja is required`, `CUDA_HOME does not exist`, `Installed CUDA version 11.8 does not
    match the version torch was compiled with 12.1`.

    ## Fix
    - **you** install compiler, headers and ninja in the image of all nodes; a CUDA toolkit of torch's own release;
      delete what a failed build left.

    ## Source
    PyTorch documentation, torch.utils.cpp_extension; DeepSpeed documentation, Installation (pre-install
    operators); Triton, runtime/build.py.
    """
    events = in_order(events_of(logs, "compiler-failed"))
    if events:
        first = next((event for event in events if not {"extension"} & event.fields.keys()), events[0])
        what, fix = _lack(first)
        yield cause(
            [first, *(event for event in events if event is not first)],
            what,
            why="Code is built on each node when it is first used; where that fails its rank ends.",
            owner="job",
            at=at_teller(logs, events),
            fix=[*fix, you("Delete what the failed build left, and start again.", _CLEAN)],
        )


def _lack(event: LogEvent) -> tuple[str, list[Remedy]]:
    fields = event.fields
    if header := fields.get("header"):
        package = "python3-dev" if header == "Python.h" else "build-essential"
        return f"code could not be compiled: {header} is missing", [
            you("Install the headers that hold it, in the image of all nodes.", f"apt-get install -y {package}")
        ]
    if library := fields.get("library"):
        return f"code could not be linked: lib{library} was not found", [
            you("Let the linker find it: libcuda.so is the driver's, the others the toolkit's.",
                "ldconfig -p | grep libcuda.so", "export LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LIBRARY_PATH")
        ]  # fmt: skip
    if "gnu" in fields:
        return "nvcc does not take this release of gcc", [
            you("Give it an older one.", "export CC=gcc-12 CXX=g++-12 NVCC_PREPEND_FLAGS='-ccbin g++-12'")
        ]
    if nvcc := fields.get("nvcc"):
        return f"nvcc refused: {nvcc.strip()}", [
            you("Take a toolkit that knows the GPU, or name the architectures that it should build for.",
                "nvcc --version | tail -2", "export TORCH_CUDA_ARCH_LIST=9.0")
        ]  # fmt: skip
    have, want = fields.get("installed") or fields.get("detected"), fields.get("torch") or fields.get("built")
    if have and want:
        home = quote(f"/usr/local/cuda-{want}")
        return f"the CUDA toolkit is {have}, and torch was built with {want}", [
            you("Take a toolkit of torch's release, or a torch for this toolkit.",
                f"export CUDA_HOME={home}", "python -c 'import torch; print(torch.version.cuda)'")
        ]  # fmt: skip
    if "home" in fields:
        return "an extension is to be compiled, and no CUDA toolkit was found (CUDA_HOME)", [
            you(
                "Name it, or take an image with the toolkit (devel).",
                "export CUDA_HOME=/usr/local/cuda",
                "which nvcc",
            )
        ]
    if "ninja" in fields or "none" in fields:
        missing = "ninja" if "ninja" in fields else "a C compiler"
        return f"an extension is to be compiled, and {missing} is missing", [
            you("Install it in the environment of all nodes.",
                "python -m pip install ninja" if "ninja" in fields else "apt-get install -y build-essential")
        ]  # fmt: skip
    return f"the extension {fields['extension']} could not be compiled", [
        you("Read the compiler's output above: the first line with `error:` is the reason."),
        you("Confirm: the toolkit against torch's CUDA.", "nvcc --version | tail -2; gcc --version | head -1",
            "python -c 'import torch; print(torch.version.cuda)'"),
    ]  # fmt: skip
