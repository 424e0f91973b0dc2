"""LOG165 to LOG167: what a process needs to be a rank, and the backend that it asks for."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import first_named
from ncclcheck.reports.judgement.findings import Finding, admin, you
from ncclcheck.reports.subjects.logs.logged import at_teller, by_known_host, cause, events_of, log_rule
from ncclcheck.reports.text.words.fold import fold_ranks

_NAMES = ("name", "key", "raised", "bare")
_BELOW = 4  # lines of a traceback, below the frame that reads the environment


@log_rule("LOG165", "RANK and its companions are set for every process")
def variables(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A variable that makes a process a rank is not set: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT.

    ## Why it matters
    init_process_group reads them from the environment. torchrun sets them; `python train.py` and srun alone do
    not, and sudo, ssh and some containers drop them.

    ## How we know
    `environment variable RANK expected, but not set`, or `KeyError: 'LOCAL_RANK'` of the script itself; a value
    that is not a number: `invalid literal for int()` right below torch's reader of the environment.

    ## Fix
    - **you** start with torchrun, once a node; or set them in each task of srun:
      `RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID`, with MASTER_ADDR and MASTER_PORT.

    ## Source
    PyTorch documentation, torch.distributed, Environment variable initialization, and torchrun; srun(1).
    """
    missing, wrong = events_of(logs, "variable-not-set"), _no_numbers(logs)
    if events := [*missing, *wrong]:
        names = dict.fromkeys(first_named(event.fields, *_NAMES) for event in missing)
        yield cause(
            events,
            f"{', '.join(names)} not set: this process was not started as a rank" if names
            else f"RANK, WORLD_SIZE or MASTER_PORT is {wrong[0].fields.get('value', '')!r}, which is not a number",
            why="torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and others; a script started by itself has none.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm: print what the process has.",
                    "env | grep -E '^(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_)'"),
                you("Start it with torchrun, also on one GPU.",
                    "torchrun --standalone --nproc-per-node=8 train.py"),
                you("Or set them within each task of srun.",
                    "srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID "
                    "python train.py'"),
            ],
        )  # fmt: skip


def _no_numbers(logs: Logs) -> list[LogEvent]:
    """Values that torch's reader of the environment could not read: its frame stands right above."""
    readers = events_of(logs, "environment-read")
    return [
        event
        for event in events_of(logs, "no-number")
        if any(event.file == reader.file and 0 < event.line - reader.line <= _BELOW for reader in readers)
    ]


@log_rule("LOG166", "torch sees GPUs where NCCL is requested")
def cuda(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL or CUDA is requested, but torch sees no GPU, or is a build without them.

    ## Why it matters
    Nothing starts on that node, and the others wait for it. The container was started without GPUs, the Slurm step
    has no --gpus, CUDA_VISIBLE_DEVICES is empty, the driver is not loaded, or pip installed the wheel for CPUs.

    ## How we know
    `no GPUs found`, `Cuda is not available` (`--nproc-per-node=gpu`), `No CUDA GPUs are available`, `Torch not
    compiled with CUDA enabled`, `module 'torch._C' has no attribute '_cuda_setDevice'` and `doesn't have NCCL
    built in`: the last three are the build, the others the node. Windows and macOS have no NCCL in any build:
    paths such as `C:\\Users` in the log show it.

    ## Fix
    - **you** `docker run --gpus all`, `srun --gpus-per-node=8`; install the wheel with CUDA; on purpose without
      GPUs: `init_process_group("gloo")`.
    - **admin** load the driver: `nvidia-smi` must list the GPUs.

    ## Source
    PyTorch documentation, torch.distributed, Backends; NVIDIA Container Toolkit documentation; srun(1).
    """
    for host, events in by_known_host(events_of(logs, "no-cuda", "no-nccl")).items():
        if any(event.sign == "no-nccl" for event in events) and events_of(logs, "on-windows"):
            yield _on_windows(logs, events)
            continue
        built = any(
            event.sign == "no-nccl" or "not compiled" in event.text or "lacks" in event.fields for event in events
        )
        yield cause(
            events,
            f"torch{' on ' + host if host else ''}{_ranks(events)} "
            + ("was built without CUDA or NCCL" if built else "sees no GPU"),
            why="The wheel for CPUs is installed there, or one for Windows or macOS, which have no NCCL." if built
            else "The container or the step has none, CUDA_VISIBLE_DEVICES hides them, or the driver is off.",
            owner="job" if built else "node",
            at=at_teller(logs, events),
            fix=[
                you("Confirm, where the job runs.",
                    'python -c "import torch; print(torch.version.cuda, torch.cuda.device_count())"',
                    "nvidia-smi -L; env | grep CUDA_VISIBLE_DEVICES"),
                you("Install the wheel with CUDA; on Windows and macOS take gloo: init_process_group('gloo').",
                    "pip install --force-reinstall torch") if built
                else you("Give the GPUs to the container or the step.",
                         "docker run --gpus all ...", "srun --gpus-per-node=8 ..."),
                *([] if built else [
                    admin("Load the driver.", "systemctl status nvidia-persistenced", "modprobe nvidia")]),
            ],
        )  # fmt: skip


def _on_windows(logs: Logs, events: list[LogEvent]) -> Finding:
    return cause(
        events + events_of(logs, "on-windows")[:1],
        "NCCL is asked for on Windows, where there is none",
        why="NCCL is made for Linux; no torch for Windows has it. Warnings of sockets before it mean nothing.",
        owner="job",
        at=at_teller(logs, events),
        fix=[
            you("Take gloo: init_process_group('gloo'); Lightning: DDPStrategy(process_group_backend='gloo')."),
            you("Or run it on Linux (WSL2), or on one GPU without torch.distributed."),
        ],
    )


def _ranks(events: list[LogEvent]) -> str:
    numbers = sorted({event.rank for event in events if event.rank is not None})
    return f" ({fold_ranks(numbers)})" if len(numbers) > 1 else ""


@log_rule("LOG167", "the backend supports the tensors' device")
def backend(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A collective was called on tensors that its process group's backend does not take, or on memory that is not of
    its communicator's GPU; or the backend's name is unknown.

    ## Why it matters
    NCCL takes tensors of GPUs only, gloo those of the CPU. A rank that calls all_reduce on a tensor in host memory
    in a group of NCCL ends, and the others wait for it.

    ## How we know
    `No backend type associated with device type cpu` (2.0 and later), `Tensors must be CUDA and dense` (before),
    `Unknown backend type NAME`. With NCCL_CHECK_POINTERS=1 NCCL itself says `AllReduce : sendbuff 0x40 is not a
    valid pointer`, and `allocated on device 1 mismatchs with NCCL device 0`.

    ## Fix
    - **you** move the tensor to the GPU; or make the group with both: `init_process_group("cpu:gloo,cuda:nccl")`.

    ## Source
    PyTorch documentation, torch.distributed, Backends and init_process_group (2.0 and later).
    """
    if events := events_of(logs, "wrong-buffer"):
        fields = events[0].fields
        place = (
            f"of GPU {fields['of']}, and its communicator uses GPU {fields['mine']}"
            if "of" in fields
            else (f"at {fields['address']} that is not a GPU's" if "address" in fields else "that is not a GPU's")
        )
        yield cause(
            events,
            f"{fields['call']} got memory ({fields['buffer']}) {place}",
            why="NCCL reads and writes memory of the GPU that its communicator was made for.",
            owner="job",
            at=at_teller(logs, events),
            fix=[you("Pass a pointer or tensor of that GPU: look at what this rank hands to its next collective, "
                     "and call torch.cuda.set_device(local_rank) before the first one.")],
        )  # fmt: skip
    if events := events_of(logs, "wrong-backend"):
        fields = events[0].fields
        unknown = fields.get("backend") or fields.get("invalid")
        device = fields.get("device", "cpu")
        yield cause(
            events,
            f"there is no backend {unknown}" if unknown
            else f"a collective got a tensor of {device}, which its backend does not take",
            why="NCCL takes tensors of GPUs only, gloo those of the CPU.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm: see what this torch has.",
                    'python -c "from torch import distributed as d; print(d.is_nccl_available())"'),
                you("Move the tensor to the rank's GPU, or make the group with both backends.",
                    'python -c "import torch.distributed as d; d.init_process_group(\'cpu:gloo,cuda:nccl\')"'),
            ],
        )  # fmt: skip


@log_rule("LOG123", "processes that use CUDA are spawned, not forked")
def cuda_is_not_forked(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A process used CUDA, and a child that was forked from it wants to use it too.

    ## Why it matters
    CUDA does not survive a fork: the child ends with an exception, and the other ranks wait for it.

    ## Seen as
    dies

    ## How we know
    `Cannot re-initialize CUDA in forked subprocess`. Something touched CUDA before the workers were started: a
    tensor on the GPU, `torch.cuda.device_count()` of older torch, `set_device`, a library's import.

    ## Fix
    - **you** start workers by "spawn": `torch.multiprocessing.set_start_method("spawn")`, for vLLM
      VLLM_WORKER_MULTIPROC_METHOD=spawn; put what touches CUDA below `if __name__ == "__main__":`.

    ## Source
    PyTorch documentation, Multiprocessing best practices (CUDA in multiprocessing); vLLM documentation, Python
    multiprocessing.
    """
    if events := events_of(logs, "cuda-forked"):
        yield cause(
            events,
            "CUDA was used before a worker process was forked, which cannot use it any more",
            why="CUDA does not survive a fork; the worker ends, and the others wait for it.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Start workers by spawn.", "export VLLM_WORKER_MULTIPROC_METHOD=spawn",
                    "torch.multiprocessing.set_start_method('spawn')"),
                you("Let nothing touch CUDA before that: confirm where it is first used.",
                    "python -X importtime train.py 2>&1 | grep -i cuda"),
            ],
        )  # fmt: skip
