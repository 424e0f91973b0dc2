"""LOG171: what one rank does alone while the others wait: preparing data, evaluating, writing a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Where, you
from ncclcheck.reports.rules.log.first import errors
from ncclcheck.reports.subjects.logs.ending import goes_on_after
from ncclcheck.reports.subjects.logs.hangs import at_last, place
from ncclcheck.reports.subjects.logs.logged import cause, events_of, in_order, log_rule

_WAITS = ("watchdog-timeout", "watchdog-cut", "gloo-timeout", "store-wait", "monitored-barrier")
_WHOLE = 100  # percent
_TIMEOUT = re.compile(r"Timeout\(ms\)=(\d{1,12})")
_DEFAULTS_S = [600, 1800]  # of NCCL's groups since torch 2.2, and before
_NEAR_S, _NEAR_PART = 60, 0.05  # a bar is printed seldom, and ranks begin to wait a little apart
_MOST_OF_NAME = 60  # characters of a bar's name
_IN_PARTS = you("Let each rank save its own part: torch.distributed.checkpoint, FSDP's sharded state dict.")


@log_rule("LOG171", "no rank works alone for longer than the timeout of the others")
def nobody_works_alone_for_long(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    One rank was still preparing data, evaluating or saving when the others, which waited for it, gave up.

    ## Why it matters
    The time-out names a collective, often a barrier or the very first one, and looks like a fault of the
    network. The job dies again and again after exactly the time-out (10 or 30 minutes by default), whatever is
    done to NCCL.

    ## Seen as
    hangs, dies

    ## How we know
    Frames of a traceback or of py-spy: ranks that wait within `main_process_first` or `zero_first`, or the
    frame of a rank that does not wait (`load_dataset`, `evaluate`, `save_checkpoint`). Or a progress bar of
    preparation (`Running tokenizer on dataset: 47%`, `Map: 12%`) that was not at its end when the first rank
    gave up, and no training step after it. The same of a checkpoint that is gathered or written
    (`Retrieving full model state dict...`).

    ## Fix
    - **you** prepare the data once, before the job, and load it from the disk (`save_to_disk`, LLaMA-Factory's
      `tokenized_path`); more processes for it (`num_proc`).
    - **you** or wait longer: `ddp_timeout` (transformers, in seconds), `InitProcessGroupKwargs(timeout=...)`
      (accelerate), `timeout=` of `init_process_group`.

    ## Source
    hiyouga/LlamaFactory#956, huggingface/transformers#17106, huggingface/accelerate#1114, NVIDIA/nccl#708 (the
    same wait, before the first communicator is made).
    """
    waits, cut = in_order(events_of(logs, *_WAITS)), in_order(events_of(logs, "traceback-cut"))
    if not (waits or cut) or any(error.sign == "python-error" for error in errors(logs)):
        return
    lone = None
    if waits:
        lone = _frame_of_another(logs, waits) or _first(logs) or _unfinished(logs, waits)
    lone = lone or _as_long(logs, waits or cut) or (_saving(logs, waits) if waits else None)
    if lone is None:
        return
    what, rank, shown = lone
    who = "a rank" if rank is None else f"rank {rank}"
    yield cause(
        [shown, *(waits or cut)[:2]],
        f"{who} {what}, and the others gave up waiting for it",
        why="The ranks that print the time-out only waited; nothing is wrong with the network.",
        owner="job",
        at=Where(node=shown.host or None) if rank is None else place(logs, rank),
        fix=[
            you("Confirm: see where that rank is, in the next run.", "py-spy dump --pid PID"),
            *([_IN_PARTS] if shown.sign == "state-gathered" else []),
            you("Do the work before the job and load the result (save_to_disk, tokenized_path), or with more "
                "processes (num_proc)."),
            you("Or let the others wait longer, in seconds: ddp_timeout of transformers, timeout= of "
                "init_process_group, InitProcessGroupKwargs of accelerate."),
        ],
    )  # fmt: skip


def _frame_of_another(logs: Logs, waits: list[LogEvent]) -> tuple[str, int | None, LogEvent] | None:
    """A rank that does not wait, and the function that it was in; a step later nothing is told by it."""
    waiting = {wait.rank for wait in waits}
    for event in reversed(events_of(logs, "alone-frame", "save-frame")):
        if (
            event.rank is not None
            and event.rank not in waiting
            and not goes_on_after(logs, event.file, event.line)
        ):
            return f"was in {event.fields['function']}", event.rank, event
    return None


def _first(logs: Logs) -> tuple[str, int | None, LogEvent] | None:
    """The others wait until the first has done it."""
    frame = at_last(logs, "first-frame")
    if frame is None:
        return None
    local = frame.fields["function"].startswith("local_")
    return f"was still doing alone what {frame.fields['function']} guards", None if local else 0, frame


def _unfinished(logs: Logs, waits: list[LogEvent]) -> tuple[str, int | None, LogEvent] | None:
    """A bar that was not at its end when the first rank gave up, and no step of training before that."""
    gave_up = waits[0]
    if any(event.order < gave_up.order for event in events_of(logs, "training-goes-on")):
        return None
    bars = [event for event in events_of(logs, "preparing") if event.file == gave_up.file]
    last = max(bars, key=lambda bar: bar.order, default=None)
    if last is None or int(last.fields["percent"]) >= _WHOLE or goes_on_after(logs, last.file, last.line):
        return None
    done = int(last.fields["percent"])
    rank = 0 if all(wait.rank for wait in waits) else None
    return f"was preparing data ({last.fields['what']}{f': {done} %' if done else ''})", rank, last


def _as_long(logs: Logs, waits: list[LogEvent]) -> tuple[str, int | None, LogEvent] | None:
    """A bar that had begun when the others began to wait: it had gone on for as long as their time-out."""
    gave_up = waits[0]
    bars = [
        event
        for event in events_of(logs, "long-bar")
        if event.file == gave_up.file and event.order <= gave_up.order
    ]
    last = max(bars, key=lambda bar: bar.order, default=None)
    after = (
        event for event in events_of(logs, "training-goes-on") if last and last.order < event.order < gave_up.order
    )
    if last is None or any(after) or goes_on_after(logs, last.file, last.line):
        return None
    elapsed, match = _seconds(last.fields["elapsed"]), _TIMEOUT.search(gave_up.text)
    limits = [int(match[1]) // 1000] if match else _DEFAULTS_S
    if not any(abs(elapsed - limit) <= max(_NEAR_S, limit * _NEAR_PART) for limit in limits):
        return None
    what = " ".join(last.text.partition("%")[0].split()[:-1])[-_MOST_OF_NAME:].strip(" :|")
    named = f" ({what})" if what else ""
    done = last.fields["percent"]
    return f"was likely still at work alone{named}, at {done} % after {elapsed // 60} minutes", None, last


def _seconds(elapsed: str) -> int:
    """Of `30:01` or `1:10:02`."""
    *hours, minutes, rest = map(int, elapsed.split(":"))
    return 3600 * sum(hours) + 60 * minutes + rest


def _saving(logs: Logs, waits: list[LogEvent]) -> tuple[str, int | None, LogEvent] | None:
    """The last that was said before the first rank gave up is that a checkpoint is being gathered or written."""
    if events_of(logs, "save-frame"):
        return None
    gave_up = waits[0]
    saves = [
        event
        for event in events_of(logs, "state-gathered")
        if event.file == gave_up.file and event.order < gave_up.order
    ]
    last = max(saves, key=lambda save: save.order, default=None)
    after = events_of(logs, "training-goes-on", "work-goes-on")
    if last is None or any(event.file == last.file and event.order > last.order for event in after):
        return None
    return "was likely still saving a checkpoint", None, last
