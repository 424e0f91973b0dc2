"""LOG057, LOG058, LOG063, LOG067: which GPU a rank has, whether it has room, and whether it is whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote
from typing import NamedTuple

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, seen, you
from ncclcheck.reports.rules.log.host_memory import pinned
from ncclcheck.reports.rules.log.nvml import not_told
from ncclcheck.reports.rules.log.shm import host_memory_failures, may_be_of_host_memory
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule
from ncclcheck.reports.subjects.logs.logged_node import cuda_errors, hosts, in_one_process, on, ranks
from ncclcheck.reports.subjects.logs.reported import several_hosts, version_seen
from ncclcheck.reports.subjects.logs.start.machines import on_two_machines
from ncclcheck.reports.subjects.nodes.xids import HARDWARE, LESSER, PROGRAM
from ncclcheck.reports.text.words.fold import size

_BUSY = "busy or unavailable"


@log_rule("LOG057", "every rank has its own GPU")
def own_gpu(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Several ranks of a node chose the same GPU, or a GPU is held by another process and lets nobody else in.

    ## Why it matters
    NCCL refuses it with "invalid usage". The reasons: no torch.cuda.set_device(LOCAL_RANK) before the first
    collective; CUDA_VISIBLE_DEVICES the same single GPU for all ranks; more processes than GPUs; a scheduler
    such as Ray that placed two workers on a GPU; slices of one GPU (MIG), which have one PCI address.

    ## How we know
    `Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000` (2.5 to 2.29: the PCI address),
    `Multiple ranks detected using the same GPU`, `Multiple Ranks are using the same GPU/Partition` (2.30 and
    later). Where the two ranks are on different machines it is LOG059. `CUDA-capable device(s) is/are busy or
    unavailable` (error 46): the GPU is in compute mode Exclusive_Process and a process holds it, another rank
    or one that an earlier job left; rarely it needs a reset.

    ## Fix
    - **you** `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` at the start; `--nproc-per-node` not above the
      number of GPUs; whole GPUs in place of slices.
    - **you** on purpose: NCCL_MULTI_RANK_GPU_ENABLE=1 with NCCL 2.30 or later; expect it to be slow.

    ## Source
    volcengine/verl#161, Peterande/D-FINE#289; NCCL user guide, Environment variables; NVIDIA MIG user guide.
    """
    duplicates = [event for event in events_of(logs, "gpu-duplicate") if not on_two_machines(logs, event)]
    slices = events_of(logs, "gpu-slice")
    for where, events in hosts([*duplicates, *events_of(logs, "gpu-shared")]):
        yield cause(
            events,
            f"{_sharers(events)}{on(where)}" + (", which is divided into slices (MIG)" if slices else ""),
            why="NCCL requires a separate GPU for each rank, and refuses to start.",
            owner="job",
            fix=[
                you(
                    "Confirm: as many GPUs as ranks of the node, and a different one for each.",
                    "nvidia-smi -L",
                    "echo $CUDA_VISIBLE_DEVICES $LOCAL_RANK",
                ),
                you(
                    "Choose it first of all in each process.",
                    'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
                ),
                you("Start no more processes than GPUs.", "torchrun --nproc-per-node=gpu ..."),
                you("Slices of a GPU (MIG) have one PCI address: use whole GPUs.", "nvidia-smi -L | grep MIG"),
            ],
            at=Where(node=where.node),
            more=version_seen(logs, events[0]),
        )
    for where, events in hosts(cuda_errors(logs, _BUSY)):
        yield _held(logs, where, events)


def _held(logs: Logs, where: Where, events: list[LogEvent]) -> Finding:
    return cause(
        events,
        f"the GPU of {ranks(events)}{on(where)} is busy: another process holds it, and it serves one at a time",
        why="A rank that may not use its GPU ends, and all others with it.",
        owner="node",
        fix=[
            you(
                "Confirm: who holds it, and whether its mode is Exclusive_Process.",
                "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv",
                "nvidia-smi --query-gpu=index,compute_mode --format=csv",
            ),
            you(
                "End what an earlier job left; give each rank a GPU of its own.",
                'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
            ),
            admin("Let several processes use it, or reset a GPU that nobody holds.", "nvidia-smi -i 0 -c DEFAULT"),
        ],
        at=where,
        more=version_seen(logs, events[0]),
    )


def _sharers(events: list[LogEvent]) -> str:
    """`ranks 0, 1 and 3 have one GPU (1b000)`, for the GPU that most share; 2.30 names none."""
    on_gpu: dict[str, set[int]] = {}
    for event in events:
        if "a" in event.fields:
            gpu = event.fields.get("gpu", "")  # cut off in what torch hands on
            on_gpu.setdefault(gpu, set()).update((int(event.fields["a"]), int(event.fields["b"])))
    if not on_gpu:
        return "several ranks have one GPU"
    gpu, ranks = max(on_gpu.items(), key=lambda item: len(item[1]))
    named = sorted(ranks)
    listed = ", ".join(map(str, named[:-1])) if len(named) < 10 else f"{named[0]} to {named[-2]}"
    others = f"; so have ranks on {len(on_gpu) - 1} more" if len(on_gpu) > 1 else ""
    return f"ranks {listed} and {named[-1]} have one GPU{f' ({gpu})' if gpu else ''}{others}"


@log_rule("LOG058", "no rank uses a GPU index that does not exist")
def ordinal(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A rank asked for a GPU by a number that is not there ("invalid device ordinal").

    ## Why it matters
    There are more ranks on the node than GPUs that they may use: all ranks on one host (mpirun without a limit a
    node), --nproc-per-node too large, CUDA_VISIBLE_DEVICES of one GPU together with set_device(LOCAL_RANK).

    ## How we know
    CUDA's words in torch's or nccl-tests' mouth. In NCCL's own it means that a rank may not see its neighbour's
    GPU, as with `srun --gpus-per-task=1`; in 2.24 to 2.26.4 in the shared memory transport it is LOG053.

    ## Fix
    - **you** as many ranks on a node as GPUs: `torchrun --nproc-per-node=gpu`, `mpirun -npernode 8`,
      `srun --ntasks-per-node=8 --gpus-per-node=8`.
    - **you** of several nodes: `set_device(LOCAL_RANK)`, never the rank of the whole job.
    - **you** where each rank has one visible GPU, `set_device(0)`; better let all ranks see all GPUs.

    ## Source
    NVIDIA/nccl#348, NVIDIA/nccl#1948; CUDA Runtime API, cudaErrorInvalidDevice; mpirun(1), srun(1).
    """
    other = host_memory_failures(logs)
    words = ("invalid device ordinal", "hipErrorInvalidDevice")
    refused = [
        cuda_error
        for cuda_error in cuda_errors(logs, *words)
        if cuda_error not in other and "DeviceF" not in cuda_error.text
    ]
    for where, events in hosts([*refused, *events_of(logs, "gpus-too-few")]):
        by_nccl = all(event.sign == "nccl-cuda-failure" for event in events)
        what = (
            "a rank does not see the GPU of its neighbour"
            if by_nccl and not all(event.fields.get("place", "").startswith("init.cc") for event in events)
            else "a rank took a GPU by a number that its node does not have"
        )
        by_world = not by_nccl and _several_nodes(logs, events)
        yield cause(
            events,
            f"{what}{on(where)} (invalid device ordinal)",
            why="A rank whose GPU is not there ends at once, and all others with it.",
            owner="job",
            fix=[
                you(
                    "Confirm: compare the GPUs that a rank sees with the ranks of the node.",
                    "nvidia-smi -L",
                    "env | grep -E 'CUDA_VISIBLE|LOCAL_RANK|SLURM_NTASKS_PER_NODE|OMPI_COMM_WORLD_LOCAL'",
                ),
                *([_DEVICES] if "hipError" in events[0].text else []),
                *([_LOCAL_RANK] if by_world else [_FEWER_RANKS, _TO_THE_NODE]),
            ],
            at=where,
            more=version_seen(logs, events[0]) if by_nccl else [],
        )


_LOCAL_RANK = you(
    "Select the GPU by the rank on the node, not by the one of the whole job (.cuda(rank), set_device(rank)).",
    "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
)
_DEVICES = you(
    "See whether ROCm sees any GPU; a container needs its devices.",
    "rocminfo | grep gfx",
    "docker run --device=/dev/kfd --device=/dev/dri --group-add video ...",
)
_FEWER_RANKS = you(
    "Start as many ranks on a node as it has GPUs.",
    "torchrun --nproc-per-node=gpu ...",
    "mpirun -npernode 8 ...",
)
_TO_THE_NODE = you("Give the GPUs to the node, not to the task.", "srun --gpus-per-node=8 --gpu-bind=none ...")
_MOST_GPUS = 8  # of a node, as they are sold: a higher rank than that is on a second node


def _several_nodes(logs: Logs, events: list[LogEvent]) -> bool:
    """Whether the job has several nodes, as far as its lines tell: a second node's ranks begin above its GPUs."""
    return several_hosts(logs) or any((event.rank or 0) >= _MOST_GPUS for event in events)


@log_rule("LOG063", "GPU memory is sufficient")
def memory(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A GPU was full when NCCL, or the program itself, wanted more of it.

    ## Why it matters
    NCCL takes memory of each GPU for its channels, at the first collective of each communicator and
    outside of torch's allocator. Where a framework has reserved 95 % before, there is no room: NCCL says
    "unhandled cuda error", and all other ranks "Connection closed by remote peer".

    ## How we know
    `Cuda failure 'out of memory'` and `Failed to CUDA calloc N bytes` of NCCL; `CUDA out of memory. Tried to
    allocate` of torch, which is the program's own. In NCCL 2.24 to 2.26.4 with GPUs that are nearly empty see
    LOG053.

    ## Fix
    - **you** leave some GB: a lower gpu_memory_utilization or mem_fraction_static, a smaller batch.
    - **you** a smaller NCCL: NCCL_MAX_CTAS=8 or NCCL_MAX_NCHANNELS=8, NCCL_BUFFSIZE=2097152,
      NCCL_NVLS_ENABLE=0; the first collective before the model takes its memory.

    ## Source
    NVIDIA/nccl#1235, sgl-project/sglang#1116; NCCL user guide, Environment variables; torch.cuda memory
    management.
    """
    other = [*host_memory_failures(logs), *pinned(logs)]
    failed = [event for event in events_of(logs, "gpu-alloc") if not _of_another_error(logs, event)]
    failures = [*cuda_errors(logs, "out of memory"), *failed, *events_of(logs, "torch-gpu-memory")]
    failures = [event for event in failures if not in_one_process(event, other)]
    groups = [*hosts([event for event in failures if not _HANDED_ON.search(event.text)] or failures)]
    if len(groups) > 1 and _are_alike(groups):
        groups = [(Where(), [event for _, lines in groups for event in lines])]
    for where, events in groups:
        yield _full(logs, where, events)


_HANDED_ON = re.compile(r"\bCall to \w{1,60} method failed: ")  # vLLM's server, of what its engine raised


def _are_alike(groups: list[tuple[Where, list[LogEvent]]]) -> bool:
    """Whether the program wanted the same of all hosts, and nobody else's memory is in its way on one of them."""
    sizes = {event.fields.get("size", "") for _, events in groups for event in events}
    return len(sizes) == 1 and "" not in sizes and not any(_neighbours(events) for _, events in groups)


def _of_another_error(logs: Logs, event: LogEvent) -> bool:
    """Whether CUDA had failed before in that process: then every allocation fails too."""
    others = [
        cuda_error for cuda_error in cuda_errors(logs, "") if "out of memory" not in cuda_error.fields["error"]
    ]
    return in_one_process(event, others)


_OR_HOST_MEMORY = you(
    "Where the GPUs are nearly empty it is memory of the host that NCCL 2.24 to 2.26.4 asks for (LOG053).",
    "export NCCL_CUMEM_HOST_ENABLE=0",
)


_SHARED = you(
    "Other processes hold memory of this GPU: where they are ranks of this job, give each its own GPU before all "
    "else, and load checkpoints to the CPU.",
    "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
    "torch.load(path, map_location='cpu')",
)


_NEIGHBOUR = re.compile(r"Process (\d{1,10}) has (\d[\d.]{0,9}) ([KMG])iB memory in use")
_SHARES = (  # all of it, what is free, what the process holds: of torch since 2.1, and before
    re.compile(
        r"capacity of (\d[\d.]{0,9}) ([KMG])iB of which (\d[\d.]{0,9}) ([KMG])iB is free\. .{0,40}"
        r"this process has (\d[\d.]{0,9}) ([KMG])iB"
    ),
    re.compile(
        r"(\d[\d.]{0,9}) ([KMG])iB total capacity;.{1,60}; (\d[\d.]{0,9}) ([KMG])iB free; "
        r"(\d[\d.]{0,9}) ([KMG])iB reserved"
    ),
)
_WHOLE = re.compile(r"capacity of (\d[\d.]{0,9}) ([KMG])iB of which (\d[\d.]{0,9}) ([KMG])iB is free")
_ALLOCATED = re.compile(r"allocated memory (\d[\d.]{0,9}) ([KMG])iB is allocated by PyTorch")
_ROUNDED = 0.05  # GiB: four figures of two places each
_OWN = re.compile(r"(this process) has (\d[\d.]{0,9}) ([KMG])iB memory in use")
_LEFT = you(
    "End what an earlier job or a notebook left, or take another GPU; in a container the numbers of processes are "
    "others than on the host.",
    "nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv",
    "export CUDA_VISIBLE_DEVICES=1",
)
_KEPT = re.compile(
    r"allocated memory (\d[\d.]{0,9}) ([GM])iB is allocated by PyTorch.{0,99}?(\d[\d.]{0,9}) ([KGM])iB is reserved"
)
_VLLM = re.compile(r"\bvLLM API server|\bvllm serve\b|\bEngineCore\b")
_GIB = {"K": 1 / 1024 / 1024, "M": 1 / 1024, "G": 1.0}
_FRAGMENTED = 0.1  # of what is allocated: less is rounding of the allocator (2 % in sound trainings), no fragments
_FRAGMENTS = you(
    "Memory that torch keeps and does not use is in fragments.",
    "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)


_SMALLER = you("Let the program take less: a smaller batch or shorter sequences, activation checkpointing.")
_AWAKE = you(
    "An engine that wakes wants the memory back that it gave up: let what runs on the GPU meanwhile (another "
    "engine, a training) end or sleep before.",
    "curl -X POST http://OTHER:8001/sleep?level=1",
)


class _OtherProcesses(NamedTuple):
    """Other processes that hold memory of a GPU, as torch names them. gib: all of theirs; own: its own."""

    who: str
    gib: float
    own: float


def _neighbours(events: list[LogEvent]) -> _OtherProcesses | None:
    text = next((event.text for event in events if _NEIGHBOUR.search(event.text)), "")
    matches = sorted(_NEIGHBOUR.finditer(text), key=lambda match: -_gib(match))
    if itself := _itself(text, matches):
        matches.remove(itself)
    if not matches:
        return _unnamed(events)
    own = _OWN.search(text)
    who = f"{matches[0][2]} {matches[0][3]}iB by process {matches[0][1]}"
    more = f" and {sum(map(_gib, matches[1:])):.1f} GiB by {len(matches) - 1} more" if matches[1:] else ""
    return _OtherProcesses(who + more, sum(map(_gib, matches)), _gib(own) if own else 0.0)


def _itself(text: str, matches: list[re.Match[str]]) -> re.Match[str] | None:
    """The program under its number on the host (in a container), where the GPU has no room for it beside these."""
    whole, own = _WHOLE.search(text), _ALLOCATED.search(text)
    if not matches or not whole or not own or _OWN.search(text):
        return None
    of, free, allocated = (
        float(match[at]) * _GIB[match[at + 1]] for match, at in ((whole, 1), (whole, 3), (own, 1))
    )
    if sum(map(_gib, matches)) + free + allocated <= of + _ROUNDED:
        return None
    return min((match for match in matches if _gib(match) >= allocated), key=_gib, default=None)


def _unnamed(events: list[LogEvent]) -> _OtherProcesses | None:
    """Those that torch does not name (an older one, or in a container): what is neither free nor its own."""
    for match in filter(None, (form.search(event.text) for event in events for form in _SHARES)):
        of, free, own = (float(match[at]) * _GIB[match[at + 1]] for at in (1, 3, 5))
        if (rest := of - free - own) > own:
            return _OtherProcesses(f"{rest:.1f} GiB of {of:.1f} GiB", rest, own)
    return None


def _gib(match: re.Match[str]) -> float:
    return float(match[2]) * _GIB[match[3]]


def _less(logs: Logs, events: list[LogEvent], *, alone: bool) -> list[Remedy]:
    """What frees memory, by the numbers of the message. alone: nobody else has more of it than the program."""
    kept = next((match for event in events if (match := _KEPT.search(event.text))), None)
    if kept and float(kept[3]) * _GIB[kept[4]] > _FRAGMENTED * float(kept[1]) * _GIB[kept[2]]:
        return [_FRAGMENTS, *([_SMALLER] if alone else [])]
    if not alone:
        return []
    raised = events_of(logs, "python-error")
    places = [event.fields.get("raised_at", "") + event.fields.get("raised_in", "") for event in raised]
    lines = [event.text for event in (*events_of(logs, "launched"), *events)]
    if any("vllm/" in place for place in places) or any(_VLLM.search(line) for line in lines):
        engine = you(
            "Let the engine take less of the GPU, or go without CUDA graphs.",
            "vllm serve MODEL --gpu-memory-utilization 0.8",
            "vllm serve MODEL --enforce-eager",
        )
        return [
            *([_AWAKE] if any("wake_up" in text for text in (*places, *(event.text for event in raised))) else []),
            engine,
        ]
    if any("sglang/" in place for place in places):
        return [
            you("Let the engine take less of the GPU.", "python -m sglang.launch_server --mem-fraction-static 0.8")
        ]
    return [_SMALLER]


def _full(logs: Logs, where: Where, events: list[LogEvent]) -> Finding:
    by_program = any(event.sign in ("torch-gpu-memory", "torch-cuda-error") for event in events[:1])
    asked = next((event.fields["bytes"] for event in events if "bytes" in event.fields), "")
    wanted = next((event.fields["size"] for event in events if "size" in event.fields), "")
    much = wanted or (size(int(asked)) if asked else "")
    who = "the program" if by_program else "NCCL"
    others = [event for event in events_of(logs, "gpu-memory-of-others") if in_one_process(event, events)]
    others_hold = _neighbours(events)
    room = you("Leave NCCL some GB, or let it take less.", "export NCCL_MAX_CTAS=8", "export NCCL_NVLS_ENABLE=0")
    mostly = others_hold is not None and others_hold.gib > others_hold.own
    less = _less(logs, events, alone=not mostly)
    beside = (
        f", with {others_hold.who} on it"
        if others_hold
        else ", with memory of other processes on it"
        if others
        else ""
    )
    return cause(
        events,
        f"other processes hold the GPU of {ranks(events)}{on(where)} ({others_hold.who}): too little was left for "
        f"{who}, which wanted {much or 'more'}" if others_hold and mostly
        else f"the {'GPUs' if ranks(events) != '1 rank' else 'GPU'} of {ranks(events)}{on(where)} "
        f"{'were' if ranks(events) != '1 rank' else 'was'} full when {who} wanted {much or 'more'}{beside}",
        why="A rank that gets no memory ends, and all others with it.",
        owner="job",
        fix=[
            you("Confirm: memory in use just before, and by whom.",
                "rocm-smi --showpids --showmeminfo vram"
                if any("HIP out of memory" in event.text for event in events)
                else "nvidia-smi --query-compute-apps=pid,used_memory --format=csv"),
            *([_SHARED] if others or others_hold else []),
            *([_LEFT] if mostly else [] if by_program else [room]),
            *less,
            *([_OR_HOST_MEMORY] if may_be_of_host_memory(logs, events[0]) else []),
        ],
        at=where,
        more=version_seen(logs, events[0]),
    )  # fmt: skip


_BROKEN = ("uncorrectable ECC error", "uncorrectable NVLink error", "hardware stack error", "GPU is lost")
_LAUNCH = "unspecified launch failure"


@log_rule("LOG067", "the GPUs work")
def hardware(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A GPU failed: memory errors that could not be corrected, an NVLink error, or it fell off the bus.

    ## Why it matters
    One rank dies with a CUDA error and all others hang or lose their connection. The job dies again at the same
    place until the GPU was reset or exchanged.

    ## Seen as
    hangs, dies

    ## How we know
    `uncorrectable ECC error`, `unspecified launch failure`, `GPU is lost`, `Unable to determine the device
    handle`; the driver's Xids where the log has kernel lines: 48, 61, 62, 64, 74, 79, 95, 119, 120, 140 are the
    hardware's; 63, 92, 94 a warning; 13, 31, 43, 45 and 137 the program's, and then a launch failure is no
    fault of the GPU. A launch failure alone can be either, and the finding says so. AMD: `HW Exception by GPU
    node-2 ... reason :GPU Hang` (ROCm's number of the GPU, and no host's) and amdgpu's `ring ... timeout`.
    `nvmlInit_v2() failed: Driver Not Loaded` and NVML's other refusals in NCCL's start.

    ## Fix
    - **admin** `dmesg | grep -iE 'xid|amdgpu'`; reset the GPU, run `dcgmi diag -r 3`, and take the node out if it
      comes back.
    - **you** start again without that node: `srun --exclude=NODE`.

    ## Source
    vllm-project/vllm#5222, rwth-i6/returnn#1486; NVIDIA GPU deployment guide, Xid errors; nvidia-smi(1).
    """
    xids = [event for event in events_of(logs, "gpu-xid") if int(event.fields["xid"]) not in PROGRAM]
    of_program = [event for event in events_of(logs, "gpu-xid") if event not in xids]
    launches = [] if of_program and not xids else cuda_errors(logs, _LAUNCH)
    broken = [*xids, *events_of(logs, "gpu-lost"), *cuda_errors(logs, *_BROKEN), *launches]
    for where, events in hosts({event.order: event for event in reversed(broken)}.values()):  # a line has one
        yield _broken(where, events, sure=any(event not in launches for event in events))
    for where, events in hosts(events_of(logs, "gpu-hang")):
        yield _hung(where, events)
    for where, events in hosts(events_of(logs, "nvml-failed")):
        yield not_told(where, events)


def _hung(where: Where, events: list[LogEvent]) -> Finding:
    """A GPU of AMD's that its driver gave up waiting for, and reset."""
    memory = any(event.fields.get("error", "").startswith("ECC") for event in events)
    hardware = any("hardware" in event.fields for event in events)
    return cause(
        events,
        f"a GPU failed{on(where)}: an error in its memory (ECC)" if memory
        else f"a GPU failed{on(where)}: a hardware error that was not corrected" if hardware
        else f"a GPU hung{on(where)}",
        why="The driver ends every process on it, which then aborts; the other ranks only follow. It can be the "
        "GPU, its firmware or driver, or a kernel that never ends.",
        owner="node",
        fix=[
            admin("Confirm: the driver's own words, and errors of memory.", "dmesg -T | grep -i amdgpu",
                  "rocm-smi --showrasinfo all"),
            admin("Take the node out of use and reset it; update driver and firmware where it hangs again.",
                  "rocm-smi --gpureset -d 0"),
            you("Start again without this node; where other nodes hang too, look at the kernel.",
                f"srun --exclude={quote(where.node or 'NODE')} ...", "export AMD_SERIALIZE_KERNEL=3"),
        ],
        at=where,
    )  # fmt: skip


def _broken(where: Where, events: list[LogEvent], *, sure: bool) -> Finding:
    codes = {int(event.fields["xid"]) for event in events if "xid" in event.fields}
    lesser = codes and not codes & set(HARDWARE) and all("xid" in event.fields for event in events)
    known = [f"Xid {code}, {(HARDWARE | LESSER)[code]}" for code in sorted(codes) if code in HARDWARE | LESSER]
    what = f"a GPU failed{on(where)}: {'; '.join(known) or events[0].fields.get('error', 'it is lost')}"
    if not sure:
        what = f"a kernel ended in a launch failure{on(where)}: the kernel is wrong, or the GPU is broken"
    return cause(
        events,
        what,
        why="The rank on it dies, all others wait for it, and the next job on this node dies too.",
        owner="node",
        state=State.WARN if lesser else State.FAIL,
        fix=[
            admin(
                "Confirm: the driver's own words.",
                "dmesg -T | grep -iE 'xid|nvrm'",
                "nvidia-smi -q | grep -A12 -i 'ecc errors'",
            ),
            admin(
                "Reset the GPU or reboot, test it, and take the node out if it fails again.",
                "nvidia-smi --gpu-reset -i 0",
                "dcgmi diag -r 3",
            ),
            you("Start again without this node.", f"srun --exclude={quote(where.node or 'NODE')} ..."),
        ],
        at=where,
        more=[seen("Xid", ", ".join(map(str, sorted(codes))))] if codes else [],
    )
