"""LOG125 to LOG129, LOG185: what a program was given that cannot work: sizes, extensions, weights, a full disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import first_named
from ncclcheck.reports.judgement.findings import Finding, Remedy, admin, seen, you
from ncclcheck.reports.subjects.logs.ending import Ending, died
from ncclcheck.reports.subjects.logs.logged import at_teller, cause, events_of, full_disk, log_rule

_SKIPPED = 3  # steps at the lowest scale: one alone can be a bad sample
_PARALLEL = re.compile(r"(?i)tensor.parallel|\bheads\b|\btp\b|vocab|hidden|intermediate")


@log_rule("LOG125", "the model and the batch divide evenly over the ranks")
def sizes_are_divided(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A number of heads, layers, words or samples that the number of ranks does not divide.

    ## Why it matters
    The program ends at its start on all ranks; with another number of GPUs than before (one taken out of use,
    another machine) the settings of yesterday fail.

    ## Seen as
    dies

    ## How we know
    `must be divisible by`, `is not divisible by` in an exception, DeepSpeed's `train_batch_size is not equal to
    micro_batch_per_gpu * gradient_acc_step * world_size`, and its `Micro batch size per gpu: 0`: the batch is less
    than the number of processes.

    ## Fix
    - **you** take a number of ranks, or of tensor parallel ranks, that divides it; or change the batch's parts.

    ## Source
    vLLM documentation, Parallelism and scaling; DeepSpeed documentation, Batch size related parameters.
    """
    if events := events_of(logs, "not-divisible"):
        message = first_named(events[0].fields, "told", "raised", "batch", "nought")
        yield cause(
            events,
            f"the batch has less than one sample for each rank: {message}" if "nought" in events[0].fields
            else f"a size cannot be divided over the ranks: {message.strip()}",
            why="Every rank must have the same part; the program refuses at its start.",
            owner="job",
            at=at_teller(logs, events),
            fix=[_divide(events[0])],
        )  # fmt: skip


def _divide(event: LogEvent) -> Remedy:
    if "nought" in event.fields:
        return you("Take a greater batch, or fewer ranks: it is train_batch_size / (ranks x accumulation).")
    if "batch" in event.fields:
        return you("train_batch_size is the micro batch of a GPU x accumulation x ranks: correct one of them, or "
                   'leave one out (with transformers: "auto").')  # fmt: skip
    if _PARALLEL.search(event.text):
        return you("Choose a number of ranks that divides it.", "vllm serve MODEL --tensor-parallel-size 4")
    return you("Choose a number of ranks that divides it, or change the size.")


@log_rule("LOG126", "torch extensions match the installed torch")
def extensions_fit_torch(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A library that was built against torch (flash-attn, apex, a kernel of the program) wants a symbol of C++
    that the installed torch does not have.

    ## Why it matters
    The import fails on every rank, or on the nodes whose environment differs.

    ## How we know
    `undefined symbol: _ZN3c10...` (c10, at and torch are torch's names). NCCL's own symbols are LOG066.
    Of an `ImportError` that is cut off after the name of an extension, it is the likely one.

    ## Fix
    - **you** build it anew against the installed torch, or install the wheel for that version of torch, Python,
      CUDA and C++ ABI.

    ## Source
    Dao-AILab/flash-attention README, Installation; PyTorch documentation, C++ extensions.
    """
    if events := events_of(logs, "extension-symbol"):
        fields = events[0].fields
        name = (fields.get("file") or fields["cut"]).partition(".")[0]
        yield cause(
            events,
            f"{name} was built for another torch than the one that is installed" if "file" in fields
            else f"{name} does not load: it was likely built for another torch (its line is cut off)",
            why="Its import fails, and the rank ends before it meets the others.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm which torch is there.",
                    "python -c 'import torch; print(torch.__version__, torch.compiled_with_cxx11_abi())'"),
                you("Build it against that one.",
                    "python -m pip install --no-build-isolation --force-reinstall --no-cache-dir flash-attn"),
            ],
        )  # fmt: skip


@log_rule("LOG127", "the loss scaler finds a scale with finite gradients")
def loss_scale_is_found(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The loss scale of fp16 was lowered at every step until its minimum, and the gradients still overflowed.

    ## Why it matters
    Nothing is learnt meanwhile, and the program ends itself. It is no fault of NCCL or of the machine.

    ## How we know
    `Current loss scale already at minimum` (DeepSpeed), `Minimum loss scale reached` (fairseq), or three steps
    and more that are skipped with the scale at 1 already (`Attempted loss scale: 1, reducing to 1`). A model that
    was trained in bf16 overflows in fp16; else the loss itself is NaN: a bad sample, too high a learning rate.

    ## Fix
    - **you** bf16 in place of fp16; look where the first NaN comes from (`torch.autograd.set_detect_anomaly`).

    ## Source
    DeepSpeed documentation, FP16 training options; PyTorch documentation, Automatic mixed precision.
    """
    lines = events_of(logs, "loss-scale-lowest")
    skipped = sum(event.count for event in lines if "scale" in event.fields)
    events = [event for event in lines if "scale" not in event.fields or skipped >= _SKIPPED]
    if events:
        ended = any("scale" not in event.fields for event in events)
        yield cause(
            events,
            "the gradients overflow at every loss scale: fp16 does not fit this model, or its loss is NaN",
            why="The scaler has lowered the scale to its minimum; the program ends itself."
            if ended
            else "The scale is at its minimum, and every step is skipped: nothing is learnt.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Train in bf16, in which most models of today were trained.", "--bf16"),
                you("Or find the first value that is not finite.", "torch.autograd.set_detect_anomaly(True)"),
            ],
        )


@log_rule("LOG128", "the job's output file system has free space")
def disk_has_room(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A file could not be written, for the disk is full or the user's quota is used up.

    ## Why it matters
    The rank that writes the checkpoint ends, and the others wait for it until their time-out. What it wrote
    last may be damaged.

    ## Seen as
    hangs, wrong results

    ## How we know
    `[Errno 28] No space left on device`, `[Errno 122] Disk quota exceeded`; torch's `PytorchStreamWriter failed
    writing file`, `unexpected pos` and `write(): fd N failed with Input/output error`, which stand for any
    failed write; and the same words of any program (`cp: error writing ...: No space left on device`), unless
    steps follow them. A job that is cancelled after them was so because of it. Files in /dev/shm and those of the
    loader's workers are LOG050 and LOG100.

    ## Fix
    - **you** remove old checkpoints (`save_total_limit`), write elsewhere; caches and /tmp count too (HF_HOME,
      TMPDIR).
    - **admin** more space, or a larger quota (inodes too).

    ## Source
    write(2), quota(1); PyTorch documentation, torch.save.
    """
    events = full_disk(logs)
    if not events or events_of(logs, "tensor-file", "worker-bus-error", "shm-extend", "shm-call"):
        return
    cancelled = [event for event in events_of(logs, "step-cancelled") if event.order > events[0].order]
    fields = events[0].fields
    path = f" ({fields['path']})" if "path" in fields else ""
    what = (
        "the user's quota is used up"
        if "quota" in fields.get("error", fields.get("full", ""))
        else "the disk that it writes to is full"
    )
    sure = any("error" in event.fields or "full" in event.fields for event in events)
    yield cause(
        events,
        f"{what}{path}" if sure else "a file could not be written: its disk is full, or failed",
        why="The rank that writes ends, and the others wait for it.",
        owner="job",
        at=at_teller(logs, events),
        more=[seen("then", f"the job was cancelled afterwards (line {cancelled[0].line})")] if cancelled else [],
        fix=[
            you("Confirm, on the node that wrote.", "df -h . /tmp; df -i .", "quota -s"),
            you(
                "Remove what is not needed, or write elsewhere.",
                "du -sh checkpoint-* | sort -h",
                "export TMPDIR=/scratch",
            ),
            admin("Give more space, or a larger quota."),
        ],
    )


@log_rule("LOG129", "the checkpoint matches the model")
def checkpoint_fits(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Weights that are loaded have other names or shapes than the model, or a checkpoint in parts has no `.metadata`.

    ## Why it matters
    The program ends at its start on every rank, or on the one that loads; NCCL's lines afterwards only follow.

    ## Seen as
    dies

    ## How we know
    `Error(s) in loading state_dict`, `size mismatch for ...: copying a param with shape ... from checkpoint`.
    A weight of size 0 is partitioned (ZeRO-3) or an empty shard, and no sign of another model.
    Of torch.distributed.checkpoint its `assert metadata is not None`: rank 0 writes `.metadata` last of all.

    ## Fix
    - **you** of a checkpoint in parts: one that has its `.metadata`; what was interrupted while it was saved has
      none.
    - **you** compare the path of the weights with the model's configuration: another size of the model, another
      backbone or number of classes, weights of a model that was wrapped (`module.`) or cut (tensor parallel).

    ## Source
    PyTorch documentation, torch.nn.Module.load_state_dict.
    """
    events = events_of(logs, "weights-differ")
    if not events:
        yield from _without_metadata(logs)
        return
    shape = next((shapes for event in events if (shapes := _shapes(event))), None)
    if shape and (_NOTHING.search(shape.there) or _NOTHING.search(shape.here)):
        yield _empty(logs, events, shape)
        return
    example = f": {shape.name} is {shape.there} there and {shape.here} here" if shape else ""
    yield cause(
        events,
        f"the checkpoint is of another model{example}",
        why="Its weights have other names or shapes; the program ends at its start.",
        owner="job",
        at=at_teller(logs, events),
        fix=[you("Confirm: compare the configuration beside the weights with the one in use.",
                 "cat CHECKPOINT/config.json")],
    )  # fmt: skip


class _Shapes(NamedTuple):
    """Of a weight, in the checkpoint (there) and in the model that loads it (here)."""

    name: str
    there: str
    here: str


def _shapes(event: LogEvent) -> _Shapes | None:
    fields = event.fields
    if "name" in fields:
        return _Shapes(fields["name"], fields["have"], fields["want"])
    return _Shapes(fields["weight"], fields["given"], fields["holds"]) if "weight" in fields else None


_NOTHING = re.compile(r"[\[ ]0[,\]]")  # a dimension of size 0


def _empty(logs: Logs, events: list[LogEvent], shape: _Shapes) -> Finding:
    """A weight without elements: it is partitioned, which says nothing of another model."""
    here = _NOTHING.search(shape.here) is not None
    name = f"the weight {shape.name}"
    return cause(
        events,
        f"{name} has size 0 in the model that loads ({shape.here}; in the checkpoint {shape.there}): most "
        "often ZeRO-3 has partitioned it; else this rank's shard is empty"
        if here
        else f"the checkpoint gives this rank an empty shard of {name} ({shape.there}, of {shape.here} here): its "
        "first dimension may not divide by the number of ranks",
        why="A partitioned weight holds nothing between its uses, and cannot be loaded into like a whole one."
        if here
        else "Which of the parts are empty depends on how many ranks share the weight, now and as it was saved.",
        owner="job",
        at=at_teller(logs, events),
        fix=[
            you("Confirm: see whether ZeRO-3 or FSDP is on where the weights are loaded.",
                "grep -n '\"stage\"' ds_config.json"),
            you("Load before the weights are partitioned (no zero.Init, no HfDeepSpeedConfig, ZeRO-2), or within "
                "deepspeed.zero.GatheredParameters(..., modifier_rank=0).")
            if here
            else you("Load with as many ranks as it was saved by, or from a checkpoint that was merged into one."),
        ],
    )  # fmt: skip


def _without_metadata(logs: Logs) -> Iterator[Finding]:
    """What torch.distributed.checkpoint cannot read, as its reader finds no plan of the parts."""
    if events := events_of(logs, "checkpoint-without-metadata"):
        yield cause(
            events,
            "the checkpoint to load has no metadata: it is not complete, or was not written in parts",
            why="torch.distributed.checkpoint writes .metadata last; without it no rank knows what is where.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm: a complete one has this file.", "ls -la CHECKPOINT/.metadata"),
                you("Load an earlier checkpoint that has it, or this one by the format it was saved in."),
            ],
        )  # fmt: skip


@log_rule("LOG185", "torch's internal assertions hold")
def assertions_of_torch(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    An assertion within torch itself failed, and the program printed it instead of letting the exception end it.

    ## Why it matters
    A rank that catches it leaves out what it was about, and goes on to something else than the other ranks, or
    ends with a code and no traceback. The others then wait in a collective.

    ## Seen as
    dies

    ## How we know
    `INTERNAL ASSERT FAILED at "FILE":LINE, please report a bug to PyTorch`. As an exception with its traceback it
    is LOG004.

    ## Fix
    - **you** let the exception end the rank (`raise` in the `except`); of the profiler: `with_stack=False`.
    - **you** another release of torch; search for the file and the words in pytorch/pytorch's issues.

    ## Source
    PyTorch's source, c10/util/Exception.h (TORCH_INTERNAL_ASSERT) and torch/csrc/autograd/profiler_python.cpp.
    """
    raised = {(event.file, event.line) for event in events_of(logs, "python-error")}
    work = {} if died(logs) else Ending(logs).work
    events = [
        event
        for event in events_of(logs, "internal-assert")
        if (event.file, event.line) not in raised and work.get(event.file, 0) <= event.line
    ]
    if not events:
        return
    fields = events[0].fields
    name = fields["path"].rpartition("/")[2]
    words = f": {fields['words'].strip()}" if fields.get("words", "").strip() else ""
    if "num_gpus" in events[0].text:
        yield _unseen_gpu(events)
        return
    profiler = [you("Profile without Python's stacks.", "grep -rn with_stack= --include=*.py .")]
    yield cause(
        events,
        f"an assertion within torch failed at {name}:{fields['at']}{words}",
        why="The program printed it in place of its end: other ranks may wait for what was skipped then.",
        owner="job",
        fix=[
            you("Confirm: let the exception end the rank, which shows its traceback.",
                "grep -rn -A3 except --include=*.py ."),
            *(profiler if "profiler" in name else []),
            you("Try another release of torch.", "python -m pip install --upgrade torch"),
        ],
    )  # fmt: skip


def _unseen_gpu(events: list[LogEvent]) -> Finding:
    """torch's own check of a GPU's number, which counted the GPUs when it was loaded."""
    number = re.search(r"device=(\d{1,3})", events[0].text)
    named = f" ({number[1]})" if number else ""
    return cause(
        events,
        f"a process took a GPU by a number that it does not see{named}: torch's check of device < num_gpus failed",
        why="CUDA_VISIBLE_DEVICES shows it fewer GPUs than that, or was changed after torch was loaded.",
        owner="job",
        fix=[
            you("Confirm, in the process that failed.", "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L"),
            you("Show each process the GPUs that it names (in Ray: num_gpus of the actor), and set "
                "CUDA_VISIBLE_DEVICES before torch is imported."),
        ],
    )  # fmt: skip
