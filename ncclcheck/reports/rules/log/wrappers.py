"""LOG172 to LOG175: what DDP, Accelerate, NCCL's backend and savers of checkpoints refuse in a program."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Logs
from ncclcheck.reports.judgement.findings import Finding, you
from ncclcheck.reports.subjects.logs.logged import at_teller, cause, events_of, in_order, log_rule


@log_rule("LOG172", "DDP gets each gradient once, of tensors not modified in place")
def gradients_come_once(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    DDP got the gradient of a parameter twice in one step, or autograd found a tensor changed that it needed.

    ## Why it matters
    Both happen under DDP only: the same program runs on one GPU. Gradient checkpointing that is reentrant runs the
    backward of a part within the backward of the whole, and the parameters' hooks fire twice. And DDP broadcasts
    the buffers of the model (BatchNorm's statistics) into them before each forward: with two forwards before the
    backward, autograd finds them changed.

    ## How we know
    `Expected to mark a variable ready only once`, `has been marked as ready twice`; `one of the variables needed
    for gradient computation has been modified by an inplace operation`, which an operation of the program's own
    (`x += y`, `relu_`) raises on one GPU as well.

    ## Fix
    - **you** ready twice: checkpointing with `use_reentrant=False`
      (`gradient_checkpointing_kwargs={"use_reentrant": False}`), or `DDP(static_graph=True)`; no parameter used
      outside of `forward`.
    - **you** changed in place: `DDP(broadcast_buffers=False)`, or all inputs in one forward.

    ## Source
    pytorch/pytorch#22095; PyTorch documentation, DistributedDataParallel (static_graph, broadcast_buffers) and
    torch.utils.checkpoint.
    """
    if twice := in_order(events_of(logs, "ready-twice")):
        yield cause(
            twice,
            "DDP got the gradient of a parameter twice in one step: most often by reentrant gradient "
            "checkpointing",
            why="Its backward runs within the backward of the whole model, and each gradient is reduced once "
                "only.",
            owner="job",
            at=at_teller(logs, twice),
            fix=[
                you("Take the checkpointing that is not reentrant: torch.utils.checkpoint(..., "
                    "use_reentrant=False); "
                    'of transformers gradient_checkpointing_kwargs={"use_reentrant": False}.'),
                you("Or where the graph is the same in each step: DDP(..., static_graph=True). Use no parameter "
                    "outside of forward."),
                you("Where neither helps, let torch name the parameter.", "export TORCH_DISTRIBUTED_DEBUG=DETAIL"),
            ],
        )  # fmt: skip
    if changed := in_order(events_of(logs, "changed-in-place")):
        yield cause(
            changed,
            "a tensor was changed before its backward: most often a buffer, which DDP broadcasts in each forward",
            why="With two forwards before one backward, DDP writes BatchNorm's and other buffers in between.",
            owner="job",
            at=at_teller(logs, changed),
            fix=[
                you("Confirm: it runs on one GPU without DDP; where not, an operation of the program's own is it.",
                    "torchrun --nproc-per-node=1 train.py"),
                you("Let DDP leave the buffers alone: DDP(..., broadcast_buffers=False); or give all inputs to "
                    "one forward, or use SyncBatchNorm."),
                you("An own one (x += y, relu_): torch.autograd.set_detect_anomaly(True) shows it."),
            ],
        )  # fmt: skip


@log_rule("LOG173", "only one rank renames a checkpoint's folder")
def one_rank_renames(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A folder could not be renamed, since another rank had done so already.

    ## Why it matters
    All ranks but the first end in the middle of saving; the first waits for them, and what is saved is not
    complete.

    ## Seen as
    dies

    ## How we know
    `OSError: [Errno 39] Directory not empty: 'tmp-checkpoint-50' -> 'checkpoint-50'`, or `[Errno 2] No such file
    or directory` with an arrow: a rename. With one process it can be a folder that an earlier run left.

    ## Fix
    - **you** a version of the library in which one rank renames (a later transformers); in one's own code
      `if rank == 0:` and a barrier after it. On a folder that not all nodes share, the first rank of each node.

    ## Source
    huggingface/transformers#36076, huggingface/transformers#28364; rename(2).
    """
    if events := in_order(events_of(logs, "folder-renamed")):
        new = events[0].fields["new"]
        yield cause(
            events,
            f"several ranks rename one checkpoint's folder, or an older one is in its place: {new}",
            why="The first one succeeds; the folder of the others is gone or their target is there already.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you(
                    "Update the library that saves: newer ones let one rank rename.", "pip install -U transformers"
                ),
                you("In code of your own: rename on rank 0 only, and a barrier after it."),
                you("Where an earlier run left that folder, write elsewhere or move it away."),
            ],
        )


@log_rule("LOG174", "every rank has the whole model on its own GPU")
def model_is_on_its_gpu(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A model that was spread over all GPUs (`device_map="auto"`), or put onto another GPU, is to be trained by
    several processes.

    ## Why it matters
    `device_map="auto"` is a way of one process that uses all GPUs in turn. With a process for each GPU every one
    of them spreads its model over all GPUs; Accelerate refuses it.

    ## How we know
    Accelerate's `You can't train a model that has been loaded with device_map='auto' in any distributed mode`, and
    `... in 8-bit precision on a different device than the one you're training on`.

    ## Fix
    - **you** `device_map={"": int(os.environ["LOCAL_RANK"])}`, or none with FSDP and DeepSpeed; or one process:
      `python train.py` in place of `accelerate launch`.

    ## Source
    Hugging Face Accelerate documentation, Big model inference; Accelerator.prepare_model.
    """
    if events := in_order(events_of(logs, "device-map")):
        spread = "map" in events[0].fields
        yield cause(
            events,
            "the model is spread over all GPUs by device_map, and several processes are to train it" if spread
            else "the model is on another GPU than that of its rank",
            why="Each process trains on its own GPU, and device_map put the model elsewhere.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you('Load it onto the GPU of the rank: device_map={"": int(os.environ["LOCAL_RANK"])}; with FSDP '
                    'or '
                    "DeepSpeed give no device_map."),
                you("Or one process that uses all GPUs in turn.", "python train.py"),
            ],
        )  # fmt: skip


@log_rule("LOG175", "tensors passed to collectives are contiguous")
def tensors_are_contiguous(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A collective was called on a tensor that is not contiguous.

    ## Why it matters
    NCCL and gloo send one piece of memory. A transposed or expanded tensor (`.t()`, `.expand()`, the gradient of a
    `sum`) is none; as a parameter it stops what broadcasts the model at the start (DeepSpeed).

    ## How we know
    `Tensors must be contiguous`. The traceback above it says whether it is a parameter (`_broadcast_model`), a
    gradient (`backward`) or the program's own call.

    ## Fix
    - **you** `.contiguous()` on what is given to the collective; of parameters, before the wrapper gets the model:
      `for p in model.parameters(): p.data = p.data.contiguous()`.

    ## Source
    pytorch/pytorch#73515; PyTorch documentation, torch.distributed and Tensor.contiguous.
    """
    if events := in_order(events_of(logs, "not-contiguous")):
        yield cause(
            events,
            "a collective got a tensor, parameter or gradient that is not contiguous in memory",
            why="A collective sends one piece of memory; a transposed or expanded tensor is none.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("A parameter (DeepSpeed's broadcast at the start): make all contiguous before the model is "
                    "wrapped.",
                    "for p in model.parameters(): p.data = p.data.contiguous()"),
                you("A tensor or gradient of your own: call .contiguous() on it before the collective; .clone() "
                    "of what was expanded."),
            ],
        )  # fmt: skip
