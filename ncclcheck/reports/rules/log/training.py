"""LOG: mistakes in the training program."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import LogFields, first_named
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, seen, you
from ncclcheck.reports.rules.log.first import consequences, errors
from ncclcheck.reports.subjects.logs import hangs
from ncclcheck.reports.subjects.logs.ending import Ending, died, goes_on_after
from ncclcheck.reports.subjects.logs.logged import by_host, cause, events_of, in_order, log_rule
from ncclcheck.reports.subjects.logs.words.unexplained import unexplained
from ncclcheck.reports.text.words.fold import fold_numbers, fold_ranks

_SIZES = re.compile(r"[Rr]ank (\d+) has (?:inconsistent )?(\d+) param")
_NO_GUESS = "under current context"  # what torch says where the program, or CUDA's default, chose the device
_MOST_LIKE = 3  # ranks: of two that differ none is the odd one


@log_rule("LOG085", "all ranks build the same model")
def same_model(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    DDP's comparison of the parameters of all ranks, and FSDP's of what its optimizer holds once for all of them
    (the number of steps).

    ## Why it matters
    Ranks with other layers, other sizes or another order of parameters cannot add up their gradients.

    ## How we know
    DDP says it when the model is wrapped: "DDP expects same model across all ranks", or names the parameter
    whose size differs. FSDP: "Rank 3 has different values for step: 1200. Other ranks: 1100".

    ## Fix
    - **you** of an optimizer's state: load one checkpoint on all ranks; a local disk may hold another.
    - **you** build the model from the same configuration on all ranks; nothing in it may depend on the rank, on
      a random number before the seed, or on the data of the rank (the number of classes).

    ## Source
    PyTorch documentation, DistributedDataParallel (Constructor); torch/csrc/distributed/c10d/reducer.cpp.
    """
    if events := in_order(events_of(logs, "models-differ")):
        sizes = {int(rank): size for event in events for rank, size in _SIZES.findall(event.text)}
        odd_rank = _odd(sizes)
        groups = {size: [rank for rank in sizes if sizes[rank] == size] for size in sizes.values()}
        each = ", ".join(
            f"{fold_ranks(ranks)} {'have' if len(ranks) > 1 else 'has'} {size} parameters"
            for size, ranks in groups.items()
        )
        yield cause(
            events,
            f"ranks have built different models: {each or events[0].text[:160]}",
            why="Gradients of different parameters cannot be added up.",
            owner="job",
            at=None if odd_rank is None else Where(rank=odd_rank),
            fix=[you("Confirm: print the number of parameters on each rank."),
                 you("Build the model from the same configuration and data on all ranks.")],
        )  # fmt: skip
    if odd := in_order(events_of(logs, "optimizer-states-differ")):
        fields = odd[0].fields
        yield cause(
            odd,
            f"ranks hold different states of the optimizer: {fields['state']} is {fields['own']} on rank "
            f"{fields['odd']} and {fields['other']} on the others",
            why="They have loaded different checkpoints, or have not made the same steps.",
            owner="job",
            at=Where(rank=int(fields["odd"])),
            fix=[you("Confirm: one checkpoint lies on every node.",
                     "srun --ntasks-per-node=1 ls -la CHECKPOINT"),
                 you("Load one checkpoint on all ranks, from a file system that all share.")],
        )  # fmt: skip


def _odd(sizes: dict[int, str]) -> int | None:
    """The only rank whose model has another number of parameters than those of all others."""
    alone = [rank for rank, size in sizes.items() if [*sizes.values()].count(size) == 1]
    several = len(sizes) >= _MOST_LIKE and len({*sizes.values()}) == 2
    return alone[0] if several and len(alone) == 1 else None


@log_rule("LOG086", "callbacks decide by a value that all ranks share")
def callbacks_decide_alike(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A hang of Lightning within ModelCheckpoint or EarlyStopping.

    ## Why it matters
    A metric that was logged on rank 0 alone differs between ranks: one saves or stops, the others do not, and
    they wait for each other in different collectives.

    ## How we know
    A time-out, and a stack in `callbacks/model_checkpoint.py` or `early_stopping.py`, or a call with
    `rank_zero_only=True` in the log.

    ## Fix
    - **you** log what callbacks monitor on all ranks: `self.log(name, value, sync_dist=True)`, without
      `rank_zero_only=True`.

    ## Source
    Lightning-AI/pytorch-lightning#19045.
    """
    frames = events_of(logs, "monitor-frame")
    waited = events_of(logs, "watchdog-timeout", "gloo-timeout", "monitored-barrier")
    if frames and waited:
        yield cause(
            [*frames[:1], *waited[:2]],
            "ranks wait for each other in a callback that decides by a monitored value",
            why="A value that was logged on rank 0 alone differs between ranks, and so do their callbacks.",
            owner="job",
            fix=[you("Confirm: look for rank_zero_only=True where the monitored value is logged."),
                 you("Log it on all ranks with sync_dist=True.")],
        )  # fmt: skip


@log_rule("LOG087", "the process group knows its rank's GPU", worst=State.WARN)
def group_knows_its_gpu(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A barrier of a process group whose device was not set.

    ## Why it matters
    torch guesses one from the rank. Where the guess is wrong, two ranks meet on one GPU and the barrier hangs,
    or each rank keeps memory on GPU 0.

    ## Seen as
    hangs

    ## How we know
    torch's own warning: "using GPU N to perform barrier as devices used by this process are currently unknown".
    Where work follows it the guess was right: a note, unless the job failed. "using the device under current
    context" is no guess: a note as well.

    ## Fix
    - **you** `torch.cuda.set_device(local_rank)` before `init_process_group(..., device_id=torch.device("cuda",
      local_rank))`.

    ## Source
    PyTorch documentation, init_process_group (device_id); deepspeedai/DeepSpeed#7266,
    FoundationVision/Infinity#76.
    """
    if events := in_order(events_of(logs, "barrier-without-device")):
        work = Ending(logs).just_after  # steps may go to stdout, and the warning to stderr's file
        guessed = [event for event in events if _NO_GUESS not in event.text]
        passed = not guessed or (
            work and all(work.get(event.file, event.line + 1) > event.line for event in guessed)
        )
        failed = died(logs) or errors(logs) or consequences(logs) or unexplained(logs)
        right = passed and not failed
        yield cause(
            events,
            "torch guessed the GPU of each rank" if guessed else "torch was not told the GPU of each rank",
            why="Where the guess is wrong, two ranks meet on one GPU, and the barrier hangs.",
            owner="job",
            at=Where() if len({event.rank for event in events}) > 1 else None,
            state=State.NOTE if right else State.WARN,
            fix=[you("Confirm: see which process is on which GPU.", "nvidia-smi"),
                 you("Call torch.cuda.set_device(local_rank) first, and give device_id= to init_process_group.")],
        )  # fmt: skip


@log_rule("LOG088", "every parameter of the model gets a gradient in every step")
def every_parameter_gets_a_gradient(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    DDP's error of a reduction that did not end: parameters that took no part in the loss.

    ## Why it matters
    DDP waits for the gradient of each parameter; where a branch was left out on this rank or on all, it never
    comes.

    ## How we know
    "Expected to have finished reduction in the prior iteration"; with `TORCH_DISTRIBUTED_DEBUG=INFO` or
    `DETAIL` torch names the parameters.

    ## Fix
    - **you** let every parameter take part in the loss, or `find_unused_parameters=True` (slower), or
      `static_graph=True` where the same ones are unused in every step.

    ## Source
    pytorch/pytorch#68862, open-mmlab/mmdetection#4742; PyTorch documentation, DistributedDataParallel.
    """
    named = events_of(logs, "parameter-indices")
    if events := in_order(events_of(logs, "parameters-without-gradient")) or named[:1]:
        indices = next((event.fields["indices"].strip() for event in named if "indices" in event.fields), "")
        names = next((event.fields["named"].split(", ") for event in named if "named" in event.fields), [])
        which = f": numbers {indices}" if indices else f": {', '.join(names[:2])}" if names else ""
        yield cause(
            events + [event for event in named[:1] if event not in events],
            f"parameters got no gradient{which}",
            why="DDP waits for the gradient of each parameter.",
            owner="job",
            fix=[you("Confirm: let torch name them.", "export TORCH_DISTRIBUTED_DEBUG=DETAIL"),
                 you("Let all parameters take part in the loss, or set find_unused_parameters=True (Lightning: "
                     "Trainer(strategy='ddp_find_unused_parameters_true')).")],
        )  # fmt: skip


@log_rule("LOG090", "the watchdog thread is not stopped")
def watchdog_is_not_stopped(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A watchdog that made no progress itself.

    ## Why it matters
    Its thread waits within CUDA or for Python's lock (GIL): a call of CUDA never came back, or another thread
    holds the lock and waits for CUDA. The collective is not what hangs.

    ## Seen as
    hangs

    ## How we know
    "ProcessGroupNCCL's watchdog got stuck for N seconds without making progress" (torch 2.2 and later).

    ## Fix
    - **you** look at the stacks of all threads of the named rank (`py-spy dump --native --pid PID`); a newer
      torch; `TORCH_NCCL_CUDA_EVENT_CACHE=0` where the stack stands in the destruction of an event.
    - **admin** a GPU that has fallen off the bus stops calls of CUDA too: `dmesg | grep -i xid`.

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (heartbeat monitor).
    """
    if events := in_order(events_of(logs, "watchdog-stuck")):
        yield cause(
            events,
            f"the watchdog itself stood still for {events[0].fields['seconds']} s: a call of CUDA or Python's "
            "lock does not come back",
            why="The collective is not what hangs on this rank.",
            owner="job",
            fix=[you("Confirm: see where all threads of that process are.", "py-spy dump --native --pid PID"),
                 admin("See whether its GPU has failed.", "dmesg -T | grep -i xid")],
        )  # fmt: skip


@log_rule("LOG091", "no kernel accesses memory out of bounds")
def kernels_keep_to_their_memory(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    An assertion in a kernel, or an out-of-bounds memory access.

    ## Why it matters
    CUDA reports it with the next call, whichever that is: often in NCCL's watchdog, which is not to blame. All
    other ranks see a peer that went away.

    ## How we know
    "device-side assert triggered", "an illegal memory access was encountered", or the line of the kernel itself
    (``block: [37,0,0], thread: [92,0,0] Assertion `...` failed``). A label or an index out of range
    is the most frequent reason; a kernel of a library with a defect the next.

    ## Fix
    - **you** run again with `CUDA_LAUNCH_BLOCKING=1`: the traceback then names the call; check labels and
      indices against their ranges; one run of `compute-sanitizer`.

    ## Source
    CUDA documentation, Error Codes (cudaErrorAssert, cudaErrorIllegalAddress); PyTorch documentation, CUDA
    semantics (asynchronous execution).
    """
    asserted = (event for event in events_of(logs, "kernel-named") if "assertion" in event.fields)
    failures = in_order(events_of(logs, "device-assert")) or in_order(asserted)
    for events in [*by_host(failures).values()][:1]:
        yield cause(
            [*events[:2], *[event for event in events_of(logs, "kernel-named")[:1] if event not in events]],
            _kernel(logs, events[0]),
            why="CUDA reports it at the next call; NCCL and the other ranks only follow.",
            owner="job",
            fix=[you("Confirm: run again, one kernel at a time.", "CUDA_LAUNCH_BLOCKING=1 python train.py"),
                 you("Check labels and indices of the batch against their ranges."),
                 *([] if _name(logs, events[0]) else [_WHICH])],
        )  # fmt: skip


def _kernel(logs: Logs, event: LogEvent) -> str:
    """Which kernel failed, and by which assertion, as far as CUDA or compute-sanitizer names it."""
    fields, name = _named(logs, event), _name(logs, event)
    asserted = f" (its assertion: {fields['assertion']})" if "assertion" in fields else ""
    words = _FAULT.search(event.text)
    fault = f": {words[0].strip()}" if words else ""
    return (
        f"the kernel {name} failed{asserted}{fault}"
        if name
        else f"a kernel failed{fault}; which one is not in these lines{_seen_by(event)}"
    )


def _seen_by(event: LogEvent) -> str:
    """Where CUDA's error was noticed, which is after the kernel: NCCL's place, or a file of a library's."""
    place = event.fields.get("place") or next(iter(_NOTICED.findall(event.text)), "")
    return f" (noticed at {place.rpartition('/')[2]})" if place else ""


def _named(logs: Logs, event: LogEvent) -> LogFields:
    named = (
        kernel
        for kernel in events_of(logs, "kernel-named")
        if event.rank is None or kernel.rank in (None, event.rank)
    )
    return next((event.fields for event in named), LogFields())


def _name(logs: Logs, event: LogEvent) -> str:
    """The kernel's name without its namespaces; empty where nobody tells it."""
    fields = _named(logs, event)
    return first_named(fields, "kernel", "read", "own").strip().rpartition("::")[2]


_FAULT = re.compile(  # CUDA's and ROCm's words for what it did
    r"device-side assert triggered|an illegal memory access was encountered|misaligned address"
    r"|an illegal instruction was encountered|invalid program counter|operation not supported on global/shared"
    r"|Memory access fault by GPU|HSA_STATUS_ERROR_\w{1,40}"
)
_NOTICED = re.compile(r"(?<![\w/.])((?!ProcessGroup)[\w./-]{1,200}\.(?:cuh?|cc|cpp|hpp?):\d{1,6})\b")
_WHICH = you(
    "Let the tool that watches every access name the kernel; where it is a library's, take another release of it.",
    "compute-sanitizer --target-processes all python train.py",
)


_STOPS = re.compile(r"(?i)\b(?:stop|exit|abort|terminat|kill|quit)")
_LEFT = ("worker-failed", "root-cause-exit", "child-failed", "srun-task-exit", "ended-badly")
_FIRST_NOT_FINITE = you("Find the first value that is not finite.", "torch.autograd.set_detect_anomaly(True)")
_LESS = you("Try a lower learning rate with a warm-up, clip the gradients, or take bf16 in place of fp16.")


@log_rule("LOG092", "no rank skips a step alone", worst=State.FAIL)
def no_step_is_left_out_alone(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A loss that is NaN, before ranks wait for each other.

    ## Why it matters
    Code that leaves a step out when its own loss is NaN leaves the other ranks waiting in the collective of that
    step.

    ## How we know
    A loss of nan or inf stands in the log, no step long after it, and a watchdog gave up. That one follows from
    the other is likely, not proved. Gradients of inf are usual where the loss is scaled (fp16): they do not count.
    A program that says itself that it stops for such a loss, and ends, is reported too.

    ## Fix
    - **you** decide on all ranks alike: all_reduce the flag before a step is left out (GradScaler does it for
      `found_inf`), and look for what makes the loss NaN.

    ## Source
    PyTorch documentation, Automatic Mixed Precision (GradScaler); torch.distributed.
    """
    bad = in_order(events_of(logs, "nan-loss"))
    if (stopped := [event for event in bad if _STOPS.search(event.text)]) and events_of(logs, *_LEFT):
        yield cause(
            stopped,
            f"the loss was {stopped[0].fields['value']}, and the program ended itself",
            why="The values had ceased to be finite: a learning rate too high, fp16 that overflows, a bad sample.",
            owner="job",
            fix=[_FIRST_NOT_FINITE, _LESS],
        )
        return
    waited = in_order(events_of(logs, "watchdog-timeout"))
    last = max(bad, key=lambda event: event.order, default=None)
    if last is None or goes_on_after(logs, last.file, last.line):
        return
    if waited and not hangs.of_kind(logs, "mismatch"):
        yield cause(
            [*bad[:1], *waited[:1]],
            f"the loss was {bad[0].fields['value']}, and then ranks waited for each other",
            why="A rank that skips a step alone leaves the others waiting in its collective.",
            owner="job",
            fix=[you("Confirm: look for code that skips a step by the rank's own loss."),
                 you("Decide on all ranks alike: all_reduce the flag first.")],
        )  # fmt: skip


@log_rule("LOG096", "every rank passes the monitored barrier")
def every_rank_passes_the_barrier(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The ranks that `monitored_barrier` (or torch under DETAIL) names as missing.

    ## Why it matters
    They are the culprits by name: all others were there.

    ## How we know
    "Rank N failed to pass monitoredBarrier", which rank 0 says. The others say only that they "successfully
    reached monitoredBarrier, but received errors while waiting for send/recv from rank 0".

    ## Fix
    - **you** look what the named ranks do at that place, and whether they are alive.

    ## Source
    PyTorch documentation, torch.distributed.monitored_barrier.
    """
    if events := in_order(events_of(logs, "monitored-barrier")):
        ranks = [int(part) for part in events[0].fields["missing"].replace(",", " ").split()][:64]
        host = next((process.host for process in logs.processes if process.rank == ranks[0]), None)
        yield cause(
            events,
            f"{fold_ranks(ranks)} did not come to a monitored barrier",
            why="All other ranks were there.",
            owner="job",
            at=Where(node=host, rank=ranks[0]),
            more=[seen("missing", fold_numbers(ranks))],
            fix=[you("Confirm: see where these ranks are, and whether they live.", "py-spy dump --pid PID")],
        )
    elif waited := in_order(events_of(logs, "awaited-in-barrier")):
        yield cause(
            waited,
            f"{fold_ranks(event.rank for event in waited if event.rank is not None)} came to a monitored barrier "
            "that another rank did not come to, or rank 0 itself",
            why="Rank 0 waits for all others and then answers them; only its own log names who is missing.",
            owner="job",
            at=Where(),
            fix=[you("Read the log of rank 0, and see whether it lives.", "grep -n monitoredBarrier RANK0.log")],
        )
