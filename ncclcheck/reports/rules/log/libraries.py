"""LOG064, LOG065, LOG066, LOG068: the driver and the libraries fit each other and the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, State, Where, admin, seen, you
from ncclcheck.reports.rules.log.nccl_words import stage
from ncclcheck.reports.subjects.logs.ending import came_through
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule, process_of
from ncclcheck.reports.subjects.logs.logged_node import BY_NCCL, cuda_errors, hosts, in_nvls, on
from ncclcheck.reports.subjects.logs.reported import setting, starting, version, version_seen

_WHICH = "python -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.nccl.version())'"
_LEFT_OUT = 75  # sm_70 and older have no code in torch for CUDA 12.8 and later, sm_75 in some of CUDA 13
_CONFIRM_CODE = you(
    "Confirm: what is loaded, and what it was built for.",
    _WHICH,
    "cuobjdump --list-elf $(python -c 'import torch; print(torch.__path__[0])')/lib/libtorch_cuda.so | tail -3",
    "nvidia-smi --query-gpu=name,compute_cap --format=csv",
)
_CONFIRM_AMD = you(
    "Confirm: the GPU, and what torch was built for.",
    "rocminfo | grep gfx",
    "python -c 'import torch; print(torch.__version__, torch.version.hip, torch.cuda.get_arch_list())'",
)
_OWN_NCCL = you(
    "Build a libnccl of your own for this GPU.",
    'make -j src.build NVCC_GENCODE="-gencode=arch=compute_90,code=sm_90"',
)
_NO_KERNEL = (
    *("named symbol not found", "no kernel image is available", "invalid device function"),
    *("hipErrorInvalidDeviceFunction", "hipErrorNoBinaryForGpu"),
)
_TOO_MUCH = "too many resources requested for launch"


@log_rule("LOG064", "libnccl and torch have kernels for the GPU")
def kernels(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    libnccl, or torch, was built without code for this GPU, or with code that does not fit it.

    ## Why it matters
    A libnccl of one's own often has only the architecture of the machine that built it; wheels are older than a
    new GPU. The first kernel fails, or already the start.

    ## How we know
    `named symbol not found`, `no kernel image is available for execution on the device`, `invalid device
    function`; `nvrtc: error: invalid value for --gpu-architecture` and `ptxas fatal: Value 'sm_120' is not
    defined` of a compiler that is older than the GPU; torch's `sm_120 is not compatible with the current PyTorch
    installation`; `ncclMaxSharedMem N exceeds device/fn maxSharedMem M` before 2.26.2 on Blackwell workstation
    GPUs (sm_120), where NCCL's kernels want more shared memory than there is; `too many resources requested for
    launch` (CUDA error 701).

    ## Fix
    - **you** NCCL 2.26.2 or later for sm_120; a torch wheel of CUDA 12.8 or later for Blackwell.
    - **you** a GPU that the wheel has left out as too old (Kepler, Pascal, Volta): a wheel of an earlier CUDA.
    - **you** a libnccl of one's own: `make src.build NVCC_GENCODE="-gencode=arch=compute_90,code=sm_90"`.

    ## Source
    NVIDIA/nccl#1372, NVIDIA/nccl#1637; CUDA C++ programming guide, application compatibility.
    """
    yield from _asks_too_much(logs)
    too_much = events_of(logs, "kernel-shared-memory")
    without = [*cuda_errors(logs, *_NO_KERNEL), *events_of(logs, "torch-lacks-gpu")]
    for where, events in hosts([*without, *too_much]):
        shared = all(event in too_much for event in events)
        yield cause(
            events,
            f"{_lack(events[0])}{on(where)}",
            why="The first kernel that the GPU cannot run ends the job.",
            owner="job",
            state=State.WARN if shared and not _died(logs, where) else State.FAIL,
            fix=[
                _CONFIRM_AMD if _is_amd(events[0]) else _CONFIRM_CODE,
                *_other_packages(events[0]),
            ],
            at=where,
            more=version_seen(logs, events[0]),
        )


def _asks_too_much(logs: Logs) -> Iterator[Finding]:
    """Error 701: there is code for the GPU, and a launch of it asks for more than the GPU has."""
    for where, events in hosts(cuda_errors(logs, _TOO_MUCH)):
        yield cause(
            events,
            f"a kernel asks for more threads or shared memory than its GPU has{on(where)} (CUDA error 701)",
            why="CUDA refuses the launch, the rank ends, and the others wait for it.",
            owner="job",
            fix=[
                you("Confirm: run with launches one by one; the call that fails is then the one that launched it.",
                    "export CUDA_LAUNCH_BLOCKING=1", "nvidia-smi --query-gpu=name,compute_cap --format=csv"),
                you("Let a kernel of your own launch fewer threads a block; where it is NCCL's, give it fewer, "
                    "and leave limits of MPS out.",
                    "export NCCL_NTHREADS=256", "unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
            ],
            at=where,
            more=version_seen(logs, events[0]),
        )  # fmt: skip


def _is_amd(event: LogEvent) -> bool:
    return not {"amd", "static"}.isdisjoint(event.fields) or "HIP error" in event.text


def _other_packages(event: LogEvent) -> list[Remedy]:
    """An old GPU wants older packages, a new one newer ones; where it is not told which it is, both are."""
    if _is_amd(event):
        return [
            you("Take the torch that was built for a ROCm which knows this GPU.",
                "python -m pip install torch --index-url https://download.pytorch.org/whl/rocm6.4"),
            you("A GPU that is close to one that ROCm knows may pass for that one.",
                "export HSA_OVERRIDE_GFX_VERSION=11.0.0"),
        ]  # fmt: skip
    return [*_packages_of(event), _OWN_NCCL]


def _packages_of(event: LogEvent) -> list[Remedy]:
    newer = you(
        "Take newer packages for Blackwell (sm_120): NCCL 2.26.2 or later, torch for CUDA 12.8 or later.",
        "python -m pip install -U torch nvidia-nccl-cu12",
    )
    older = you("Use older packages for a GPU that newer ones no longer support (Kepler to Volta): torch for an "
                "earlier CUDA, or build from source for it.",
                "python -m pip install torch --index-url https://download.pytorch.org/whl/cu118")  # fmt: skip
    if event.sign == "kernel-shared-memory" or "new" in event.fields:
        return [newer]
    arch = event.fields.get("arch", "")
    number = arch.removeprefix("sm_")
    if "old" in event.fields or (number.isdigit() and int(number) <= _LEFT_OUT):
        return [older]
    return [newer] if arch else [older, newer]


def _lack(event: LogEvent) -> str:
    if event.sign == "torch-lacks-gpu":
        if "new" in event.fields:
            return "CUDA's compiler does not know this GPU, which is newer"
        if amd := event.fields.get("amd"):
            return f"ROCm's libraries have no code for {amd}"
        if "static" in event.fields:
            return "a library of ROCm has no kernel binary for the GPU"
        arch = event.fields.get("arch") or event.fields.get("old")
        return f"torch has no code for {'capability ' if 'old' in event.fields else ''}{arch or 'this GPU'}"
    if event.sign == "kernel-shared-memory":
        return "NCCL's kernels want more shared memory than the GPU has"
    return "a library has no code for the GPU"


def _died(logs: Logs, where: Where) -> bool:
    """Whether NCCL did not come up there, or failed in CUDA."""
    here = [process for process in logs.processes if process.host == where.node]
    return bool(cuda_errors(logs, "", by=BY_NCCL)) or any(starting(process) for process in here)


_INITIALISES = "initialization error"


@log_rule("LOG065", "the driver is new enough for CUDA and NCCL")
def driver(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The NVIDIA driver is older than what torch or libnccl were built for, or its library is of another version than
    the driver that is loaded: upgraded without a reboot, or brought by the image (cuda-compat).

    ## Why it matters
    No CUDA call works. Often one node of many was forgotten at an upgrade, or an image brings a newer CUDA, or
    the packages were upgraded and the node was not rebooted.

    ## How we know
    `CUDA driver version is insufficient for CUDA runtime version`, `the provided PTX was compiled with an
    unsupported toolchain`, torch's `driver on your system is too old`, `Driver/library version mismatch` of
    NVML. `initialization error` of NCCL can be that, or a process that was forked after CUDA was used in its
    parent. `unsupported display driver / cuda driver combination` (803) and `forward compatibility was attempted
    on non supported HW` (804) are the libcuda that an image brings in /usr/local/cuda/compat: it goes with some
    drivers and with data centre GPUs only. `Failed to find CUDA library libcuda.so`: the loader does not know
    the folder of the driver's library (on WSL2 /usr/lib/wsl/lib), or has only libcuda.so.1 there; a warning where
    NCCL came up all the same.

    ## Fix
    - **you** a libcuda.so that is not found: its folder (`ldconfig -p | grep libcuda`) into LD_LIBRARY_PATH, or
      NCCL_CUDA_PATH, which must end with a slash.
    - **admin** a newer driver, the same on all nodes; after an upgrade reboot.
    - **you** a torch wheel and a libnccl for the CUDA that the driver has (`nvidia-smi` shows it at the top
      right).
    - **you** the image's compatibility libraries: a cuda-compat that goes with the driver, or none of them.

    ## Source
    NVIDIA/nccl#554, NVIDIA/nccl-tests#98; CUDA compatibility guide; CUDA Runtime API, error codes.
    """
    clear = events_of(logs, "driver-too-old", "driver-mismatch")
    combined = [] if clear else events_of(logs, "driver-combination")
    for where, events in hosts(combined):
        yield cause(
            events,
            f"the CUDA compatibility libraries of the image (cuda-compat) do not go with the driver{on(where)}",
            why="They stand before the driver's own libcuda, and go with some drivers and data centre GPUs only.",
            owner="job",
            fix=[
                you("Confirm: see which libcuda is taken.", "ldconfig -p | grep libcuda.so; echo $LD_LIBRARY_PATH",
                    "cat /proc/driver/nvidia/version"),
                you("Bring the cuda-compat that goes with the driver into the image, or run without it.",
                    "apt-get install --only-upgrade 'cuda-compat-*'",
                    "export LD_LIBRARY_PATH=$(echo $LD_LIBRARY_PATH | tr : '\\n' | grep -v compat | paste -sd:)"),
            ],
            at=where,
            more=_drivers(logs),
        )  # fmt: skip
    for where, events in hosts(events_of(logs, "libcuda-not-found")):
        yield cause(
            events,
            f"NCCL did not find {events[0].fields.get('library', 'libcuda.so')}{on(where)}, the driver's library",
            why="It must be called libcuda.so and lie where the loader looks; without it NCCL has no driver.",
            owner="node",
            state=State.WARN if all(came_through(logs, event) for event in events) else State.FAIL,
            fix=[
                you("Confirm: see where it is, and whether libcuda.so.1 alone is.",
                    "ldconfig -p | grep libcuda", "find / -name 'libcuda.so*' 2>/dev/null"),
                you("Name its folder to the loader; on WSL2 it is this one.",
                    "export LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH"),
                you("Or to NCCL alone (up to 2.20.5), with the slash at its end.",
                    "export NCCL_CUDA_PATH=/usr/lib/wsl/lib/"),
                admin("Where libcuda.so.1 alone is there, link it, in its own folder.",
                      "ln -s libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so"),
            ],
            at=where,
            more=version_seen(logs, events[0]),
        )  # fmt: skip
    unclear = [] if clear or combined else cuda_errors(logs, _INITIALISES)
    for where, events in hosts([*clear, *unclear]):
        yield cause(
            events,
            f"{_why(events)}{on(where)}",
            why="No call of CUDA works, so the rank cannot start.",
            owner="node",
            fix=[
                you("Confirm: compare the driver's CUDA with torch's and NCCL's.", "nvidia-smi | head -4", _WHICH),
                admin("Install a newer driver and reboot.", "cat /proc/driver/nvidia/version", "systemctl reboot"),
                you(
                    "Or take packages for the driver's CUDA.",
                    "python -m pip install torch --index-url https://download.pytorch.org/whl/cu124",
                ),
            ],
            at=where,
            more=[*version_seen(logs, events[0]), *_drivers(logs)],
        )


def _why(events: list[LogEvent]) -> str:
    signs = {event.sign for event in events}
    if "driver-mismatch" in signs:
        return "the driver that is loaded is not the one of its library: upgraded without a reboot"
    if all(_INITIALISES in event.fields.get("error", "") for event in events):
        return "CUDA cannot be initialised: the driver is too old, or the process was forked after CUDA was used,"
    return "the driver is too old for the CUDA of torch or NCCL"


def _drivers(logs: Logs) -> list[Evidence]:
    versions = sorted({process.driver for process in logs.processes if process.driver})
    return [seen("cudaDriverVersion", ", ".join(versions))] if versions else []


@log_rule("LOG066", "exactly one libnccl is loaded, the one that torch expects")
def library(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    torch asked libnccl for a function that it does not have, or found no libnccl.

    ## Why it matters
    Another, older libnccl was loaded first: by LD_LIBRARY_PATH, from a CUDA 11 wheel beside the one of CUDA 12, by
    cupy or another package, or from the system. Where it lacks no function yet, it is used without a word.

    ## Seen as
    setting without effect

    ## How we know
    `undefined symbol: ncclCommShrink` (or ncclMemFree, ncclCommRegister, ...): the function came with a later
    NCCL; `libnccl.so.2: cannot open shared object file`; vLLM's `Failed to load NCCL library from ...`, which
    takes the file that VLLM_NCCL_SO_PATH names. A plugin (libnccl-net.so) that is not there is
    harmless.

    ## Fix
    - **you** `pip list | grep nccl`: keep the one that torch asks for; take the others out of LD_LIBRARY_PATH;
      import torch before other packages that bring NCCL.

    ## Source
    rapidsai/cugraph#4465, rwth-i6/returnn#1802, pytorch/pytorch#119072; ld.so(8).
    """
    if not_loaded := events_of(logs, "nccl-not-loaded"):
        yield _not_loaded(not_loaded)
    for where, events in hosts(events_of(logs, "nccl-symbol", "nccl-not-found")):
        symbol = next((event.fields["symbol"] for event in events if "symbol" in event.fields), "")
        what = (
            f"the libnccl that was loaded has no {symbol}: it is older than torch wants"
            if symbol
            else "there is no libnccl"
        )
        yield cause(
            events,
            f"{what}{on(where)}",
            why="torch cannot be imported, or fails at the first use of NCCL.",
            owner="job",
            fix=[
                you(
                    "Confirm: which ones there are, and which is found first.",
                    "python -m pip list | grep -i nccl",
                    "ldconfig -p | grep libnccl; echo $LD_LIBRARY_PATH",
                ),
                you(
                    "Keep the one that torch asks for.",
                    "python -m pip show torch | grep -i requires",
                    "python -m pip uninstall nvidia-nccl-cu11",
                ),
                you("Remove the system's from the search path.", "unset LD_LIBRARY_PATH LD_PRELOAD"),
            ],
            at=where,
        )


def _not_loaded(events: list[LogEvent]) -> Finding:
    """vLLM opens libnccl itself, beside the one that torch has loaded."""
    library = events[0].fields["library"]
    return cause(
        events,
        f"vLLM cannot load libnccl from {library}",
        why="Its workers end there. VLLM_NCCL_SO_PATH names the file, else vLLM takes the one that torch brings.",
        owner="job",
        fix=[
            you("Confirm on the named host: what is missing or of another architecture.",
                f"ls -lL {quote(library)}", f"ldd {quote(library)}"),
            you("Take the libnccl that torch brings.", "unset VLLM_NCCL_SO_PATH"),
        ],
    )  # fmt: skip


_UNKNOWN, _UNSUPPORTED = "unknown error", "operation not supported"
_CUMEM_BEGINS = (2, 18, 0)  # NCCL before it does not call cuMem, so that it cannot fail there


@log_rule("LOG068", "the driver's nvidia-uvm module is loaded")
def unified_memory(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    CUDA answers with "unknown error" at its start, or NCCL's memory is "not supported": the module nvidia-uvm,
    or its device /dev/nvidia-uvm, is missing.

    ## Why it matters
    CUDA cannot start without it. In virtual machines with vGPU unified memory is off by default, and NCCL 2.23 and
    later wants it for its memory pools.

    ## Seen as
    does not start

    ## How we know
    torch's `CUDA unknown error - this may be due to an incorrectly set up environment`; `Cuda failure 'unknown
    error'` of NCCL (999), which after `Init START` is another matter, for CUDA had worked before it: the driver or
    a GPU; `Cuda failure 'operation not supported'` (801) of NCCL 2.23 and later. A log cannot
    distinguish it from CUDA_VISIBLE_DEVICES that was changed after the start, or from a GPU that needs a reset.

    ## Fix
    - **admin** `modprobe nvidia-uvm` at boot, `nvidia-modprobe -u -c=0`; for vGPU the parameter enable_uvm=1.
    - **you** containers need /dev/nvidia-uvm: `docker run --gpus all`; NCCL_CUMEM_ENABLE=0 where it stays off.

    ## Source
    NCCL user guide, Troubleshooting, Runtime issues; nvidia-modprobe(1); CUDA Runtime API, cudaErrorUnknown.
    """
    unknown = [*events_of(logs, "gpu-unknown-error"), *cuda_errors(logs, _UNKNOWN)]
    for where, events in hosts(_unsupported(logs)):
        yield _no_pools(logs, where, events)
    late = [event for event in unknown if event.sign in BY_NCCL and _had_begun(logs, event)]
    for where, events in hosts(late):
        yield _not_named(logs, where, events)
    for where, events in hosts([event for event in unknown if event not in late]):
        yield cause(
            events,
            f"CUDA does not start{on(where)}: nvidia-uvm is missing, or a GPU needs a reset",
            why="Without unified memory no context can be made.",
            owner="node",
            fix=[
                you("Confirm: both must be there.", "lsmod | grep nvidia_uvm", "ls -l /dev/nvidia-uvm"),
                admin("Load the module and make its device.", "modprobe nvidia-uvm", "nvidia-modprobe -u -c=0"),
                admin("Where they are there look at the GPUs.", "dmesg | grep -iE 'nvrm|xid'", "nvidia-smi"),
                you("Do not change CUDA_VISIBLE_DEVICES after CUDA was used."),
            ],
            at=where,
            more=version_seen(logs, events[0]),
        )


def _had_begun(logs: Logs, event: LogEvent) -> bool:
    """Whether CUDA had worked in that process: NCCL knew its GPU when it began to set up the communicator."""
    process = process_of(logs, event)
    return process is not None and process.began > 0


def _not_named(logs: Logs, where: Where, events: list[LogEvent]) -> Finding:
    return cause(
        events,
        f"CUDA failed{on(where)} with an error that it has no name for (999){stage(events[0])}, after it had "
        "worked: the driver or a GPU is at fault",
        why="The driver could not carry out a call, and says no more to the process; its log as a rule does.",
        owner="node",
        fix=[
            admin("Confirm: what the driver wrote at that time.", "dmesg -T | grep -iE 'nvrm|xid'",
                  "nvidia-smi -q | grep -iE 'retired|remap|reset'"),
            admin("Reset the GPU, or reboot the node, where the driver's log or nvidia-smi speaks of one.",
                  "nvidia-smi --gpu-reset -i 0"),
            you("Start again without this node.", f"srun --exclude={quote(where.node or 'NODE')} ..."),
        ],
        at=where,
        more=version_seen(logs, events[0]),
    )  # fmt: skip


def _no_pools(logs: Logs, where: Where, events: list[LogEvent]) -> Finding:
    off = setting(logs, "NCCL_CUMEM_ENABLE", events[0]) == "0"
    return cause(
        events,
        f"CUDA does not support the memory that NCCL asks for{on(where)}: cuMem, which needs nvidia-uvm, a driver "
        "and a platform that have it",
        why="NCCL 2.23 and later take GPU memory by cuMem where the driver says that it can; vGPU, WSL2, MIG and "
        "containers without /dev/nvidia-uvm refuse it.",
        owner="node",
        fix=[
            *([] if off else [you("Confirm: let NCCL do without it; it costs speed at most.",
                                  "export NCCL_CUMEM_ENABLE=0 NCCL_NVLS_ENABLE=0")]),
            you("See whether the module and its device are there; in a container: docker run --gpus all.",
                "lsmod | grep nvidia_uvm", "ls -l /dev/nvidia-uvm"),
            admin("Load the module and make its device; for vGPU set enable_uvm=1.",
                  "modprobe nvidia-uvm", "nvidia-modprobe -u -c=0"),
        ],
        at=where,
        more=version_seen(logs, events[0]),
    )  # fmt: skip


def _unsupported(logs: Logs) -> list[LogEvent]:
    events = [event for event in cuda_errors(logs, _UNSUPPORTED, by=BY_NCCL) if event not in in_nvls(logs)]
    return [event for event in events if (version(logs, event) or _CUMEM_BEGINS) >= _CUMEM_BEGINS]
