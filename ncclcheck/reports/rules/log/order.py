"""LOG: ranks that call different things: another collective, another size, another number of batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, State, Where, you
from ncclcheck.reports.subjects.logs import hangs
from ncclcheck.reports.subjects.logs.logged import cause, events_of, in_order, log_rule, where
from ncclcheck.reports.subjects.logs.reported import set_apart
from ncclcheck.reports.text.words.fold import fold_ranks

_DEFAULT_MS = 600_000  # torch's default for groups of NCCL since 2.2: 10 minutes
# By nccl.h: ncclDataType_t and ncclRedOp_t.
_TYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"),
    *("float8e4m3", "float8e5m2"),
)
_OPERATIONS = ("sum", "prod", "max", "min", "avg")


@log_rule("LOG081", "all ranks take part in saving ZeRO-3 weights")
def zero3_is_saved_by_all(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A time-out in gathering weights while a model that ZeRO-3 has spread over all ranks is saved.

    ## Why it matters
    Saving gathers each weight from all ranks: called under `if rank == 0` it waits for ever. A time-out of
    `_ALLGATHER_BASE` alone is no sign of it: every forward pass of ZeRO-3 and FSDP gathers.

    ## Seen as
    hangs

    ## How we know
    The watchdog's operation is a gather, a frame or a line shows saving, and another of ZeRO stage 3.

    ## Fix
    - **you** call `save_checkpoint`, `save_16bit_model` or `accelerator.get_state_dict` on all ranks, and write
      on rank 0 what it returns.

    ## Source
    huggingface/accelerate#2912, deepspeedai/DeepSpeed#7533; DeepSpeed documentation, Model Checkpointing.
    """
    for hang in hangs.of_kind(logs, "save"):
        yield cause(
            [*hang.events[:1], *events_of(logs, "save-frame", "saving")[-1:], *events_of(logs, "zero3")[:1]],
            f"weights spread by ZeRO-3 were saved without all ranks: {hangs.waited(hang)}",
            why="Saving gathers each weight from all ranks; a rank that does not call it stops the others.",
            owner="job",
            fix=[you("Confirm: see whether the call of the named frame stands under a test of the rank."),
                 you("Call save_checkpoint, save_16bit_model or get_state_dict on all ranks.")],
        )  # fmt: skip


@log_rule("LOG082", "no rank leaves the collectives of the others")
def same_number_of_batches(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Ranks that wait in different collectives, at the end of an epoch or in another branch of the program.

    ## Why it matters
    A rank whose data ends first goes on to the next phase (validation, saving, the end), while the others wait
    for its gradients.

    ## How we know
    Watchdogs of one group gave up at different collectives (of different operations or sizes, and without the
    end of an epoch: different branches are likelier), or some ranks report the end of an epoch and did
    not come to the collective of the others.

    ## Fix
    - **you** `drop_last=True`, a DistributedSampler, or equal shards of an IterableDataset; or wrap the loop in
      `torch.distributed.algorithms.join.Join`. `ncclcheck data MODULE:FACTORY` counts batches by rank.

    ## Source
    pytorch/pytorch#141069, k2-fsa/snowfall#152; PyTorch documentation, Distributed Training with Uneven Inputs.
    """
    for hang in hangs.of_kind(logs, "uneven"):
        others = sorted({wait.rank for wait in hang.waits if (wait.seq, wait.op) != (hang.seq, hang.op)})
        ranks = others or hang.absent
        ends = events_of(logs, "epoch-ends")
        branches = not ends and len({(wait.op, wait.numel) for wait in hang.waits}) > 1
        count = [
            you("Confirm: count the batches of each rank.", "ncclcheck data MODULE:FACTORY --nodes 2"),
            you("Use drop_last=True and a DistributedSampler, or the Join context."),
        ]
        branch = [
            you("Confirm: see which call each rank is in; the batches of these ranks may take another path "
                "through the model (samples with and without an image, an expert that nobody chose).",
                "export TORCH_DISTRIBUTED_DEBUG=DETAIL", "py-spy dump --pid PID"),
            you("Let every rank run the same parts of the model: a dummy input where a batch lacks one, no `if` "
                "on data around a collective."),
        ]  # fmt: skip
        why = "A rank whose data ends first goes on, and the others wait for its gradients."
        yield cause(
            [*hang.events, *ends[-1:]],
            f"{fold_ranks(ranks)} {'wait' if len(ranks) > 1 else 'waits'} elsewhere or went on, while others "
            f"are in {hangs.waited(hang)}: "
            + ("they took different branches, or their numbers of batches differ" if branches
               else "their numbers of batches differ, or their control flow does"),
            why="They call different operations: a batch of another kind takes another path, with other calls."
            if branches else why,
            owner="job",
            at=hangs.place(logs, ranks[0]),
            fix=[*branch, *count] if branches else count,
        )  # fmt: skip


@log_rule("LOG083", "groups made by new_group have the intended timeout", worst=State.WARN)
def groups_have_their_timeout(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A group other than the default one that gave up after torch's default of ten minutes.

    ## Why it matters
    `new_group` does not take the time-out of `init_process_group`: a job that set two hours there still dies
    after ten minutes in a group of its own.

    ## Seen as
    hangs, dies

    ## How we know
    The watchdog's line: `Timeout(ms)=600000` and a group number other than 0. Where the default group has a
    longer one in the same log, the finding says so.

    ## Fix
    - **you** pass `timeout=` to `new_group` and `init_device_mesh` too.

    ## Source
    PyTorch documentation, torch.distributed.new_group; goodfire-ai/spd#536.
    """
    waits = events_of(logs, "watchdog-timeout")
    short = [
        wait
        for wait in waits
        if wait.fields.get("group", "0") != "0" and int(wait.fields["timeout"]) == _DEFAULT_MS
    ]
    longer = [wait for wait in waits if int(wait.fields["timeout"]) > _DEFAULT_MS]
    if short:
        meant = f", though others wait {int(longer[0].fields['timeout']) // 1000} s" if longer else ""
        yield cause(
            short,
            f"group {short[0].fields['group']} gave up after 600 s, torch's default{meant}",
            why="new_group does not take the time-out that init_process_group was given.",
            owner="job",
            state=State.WARN,
            fix=[you("Confirm: look where the group is made, and pass timeout= there.")],
        )


@log_rule("LOG084", "all ranks call the same collective with the same sizes")
def same_collective(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Ranks that call different collectives, or different sizes, at the same place of a group.

    ## Why it matters
    NCCL does not check: the job hangs, or continues with wrong results.

    ## Seen as
    hangs, wrong results

    ## How we know
    Watchdogs that gave up at the same number name different operations or elements; or torch's own comparison
    under `TORCH_DISTRIBUTED_DEBUG=DETAIL` says so; or NCCL's own lines of calls (`NCCL_DEBUG_SUBSYS=COLL`),
    counted from the communicator's first on each rank, differ in name, count, type or operation (of logs that
    begin later by their opCount, where no rank sends and the calls before it agree); or NCCL or gloo got a message
    of another size than expected.

    ## Fix
    - **you** let no collective depend on the rank's own data (a batch without images, a skipped step, a ragged
      last batch): run all branches, or pad; align NCCL_* settings and versions where only `message truncated`
      is reported.

    ## Source
    PyTorch documentation, TORCH_DISTRIBUTED_DEBUG; speechbrain/speechbrain#2401, modelscope/ms-swift#9443,
    NVIDIA/nccl#1417, NVIDIA/nccl#626, NVIDIA/nccl#268.
    """
    events = events_of(logs, "ranks-disagree") or events_of(logs, "ranks-disagree-short")
    if events:
        first = events[0].fields
        pair = f"rank {first['one']} and rank {first['other']}" if first.get("one") else "ranks"
        yield _mismatch(events, f"{pair} call different collectives or sizes at the same place")
    elif called := _called(logs):
        rarest, *_ = kinds = _each_kind(called)
        alone = sum(_call(other) == _call(rarest) for other in called) * 2 < len(called)
        yield _mismatch(kinds, _as_called(called), where(rarest) if alone else Where())
    elif suspected := in_order(events_of(logs, "nccl-suspects-mismatch")):
        yield _mismatch(suspected, "NCCL suspects that ranks call different collectives, around the named rank")
    if analysed := in_order(events_of(logs, "flight-culprit")):
        first = analysed[0].fields
        kind, culprit = first["kind"].lower().replace("_", " "), int(first["culprit"])
        more = f" ({first['told'].strip()})" if "told" in first else ""
        yield _mismatch(
            analysed, f"the Flight Recorder's analysis names rank {culprit}: {kind}{more}", Where(rank=culprit)
        )
    for hang in hangs.of_kind(logs, "mismatch") if not events else []:
        calls = {(wait.op, wait.numel): wait.rank for wait in hang.waits if wait.seq == hang.seq}
        words = ", ".join(f"rank {rank}: {op} of {size or '?'}" for (op, size), rank in [*calls.items()][:4])
        yield _mismatch(hang.events, f"ranks differ in collective {hang.seq} of group {hang.group}: {words}")
    if (cut := in_order(events_of(logs, "message-truncated"))) and not events:
        sizes = cut[0].fields.get("gloo")
        size_told = f"{sizes} bytes, says gloo" if sizes else cut[0].text[:160]
        what = f"a message has another size than expected: {size_told}"
        if apart := set_apart(logs, _PIECES):
            yield cause(
                cut,
                f"{apart}: {what}",
                why="Both ends must cut a message into the same pieces.",
                owner="job",
                fix=[you("Confirm: set it alike on all ranks, or nowhere.", "env | grep NCCL_"),
                     you("See whether a file of the node sets it.", "cat /etc/nccl.conf ~/.nccl.conf")],
            )  # fmt: skip
        else:
            yield _mismatch(cut, what)


# By which NCCL cuts messages; both ends must have them alike (run with other values on one host, libnccl 2.27.7).
_PIECES = (
    "NCCL_BUFFSIZE", "NCCL_PROTO", "NCCL_ALGO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_CHUNK_SIZE",
)  # fmt: skip


def _called(logs: Logs) -> list[LogEvent]:
    """What the ranks of one communicator called at the first place where they differ."""
    differ = events_of(logs, "collective-differs")
    return [event for event in differ if event.fields["communicator"] == differ[0].fields["communicator"]]


def _call(event: LogEvent) -> tuple[str, ...]:
    return tuple(event.fields[key] for key in ("name", "count", "datatype", "op", "root"))


def _each_kind(called: list[LogEvent]) -> list[LogEvent]:
    """One call of each kind, the rarest kind first."""
    kinds = Counter(map(_call, called))
    firsts = {_call(event): event for event in reversed(called)}
    return [firsts[kind] for kind, _ in reversed(kinds.most_common())]


def _as_called(called: list[LogEvent]) -> str:
    """`call 12 of a communicator: rank 3 AllReduce of 195 (float32), ranks 0-2 Broadcast of 195 (float32)`."""
    parts = []
    for kind in _each_kind(called):
        name, count, datatype, op, _ = _call(kind)
        alike = [event for event in called if _call(event) == _call(kind)]
        known = [event.rank for event in alike if event.rank is not None]
        ranks = (
            fold_ranks(known) if known else ", ".join(f"pid {event.pid} of {event.host}" for event in alike[:2])
        )
        types = _TYPES[int(datatype)] if int(datatype) < len(_TYPES) else f"datatype {datatype}"
        how = f", {_OPERATIONS[int(op)]}" if "Reduce" in name and int(op) < len(_OPERATIONS) else ""
        parts.append(f"{ranks} {name} of {count} ({types}{how})")
    first = called[0].fields
    which = f"call {int(first['place']) + 1}" if "place" in first else f"opCount {first['number']}"
    return f"ranks call different things as {which}: {', '.join(parts[:4])}"


def _mismatch(events: list[LogEvent], what: str, at: Where | None = None) -> Finding:
    return cause(
        events,
        what,
        why="NCCL does not compare them: the job hangs, or continues with wrong results.",
        owner="job",
        at=at,
        fix=[you("Confirm: torch has compared the calls; the frames above each rank's line say where it made its "
                 "own.") if events[0].sign.startswith("ranks-disagree")  # torch says so under DETAIL alone
             else you("Confirm: let torch compare each call.", "export TORCH_DISTRIBUTED_DEBUG=DETAIL"),
             you("Let no collective depend on a rank's own data; pad, or run all branches on all ranks. Where the "
                 "code is sure, align NCCL's version and NCCL_* settings on all nodes.",
                 "ncclcheck env --hosts HOST1,HOST2")],
    )  # fmt: skip
