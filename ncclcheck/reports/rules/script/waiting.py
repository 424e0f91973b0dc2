"""SCR020: how long the others wait for a rank that works alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, note, you
from ncclcheck.reports.subjects.script.changes import Change, changed
from ncclcheck.reports.subjects.script.processes import INIT
from ncclcheck.reports.subjects.script.scripts import (
    by_rank,
    given_to,
    here,
    line_of,
    of_many_ranks,
    script_rule,
    with_argument,
    written,
)

_WORK = re.compile(r"download|load_dataset$|tokeni[sz]e|preprocess|prepare_data|urlretrieve", re.IGNORECASE)
_SHORT_MIN = 2  # minutes; a checkpoint of a large model takes as long to a file system that is busy (a judgement)
_EARLIER = "Prepare the data before the job, or let the others wait longer."
_DEFAULT_MIN = 10  # minutes that torch gives a collective of NCCL, since 2.2


@script_rule("SCR020", "no rank works longer alone than the others wait", worst=State.NOTE)
def alone(script: Script) -> Iterator[Finding]:
    """
    ## What
    One rank downloads, tokenizes or prepares data, and the others wait for it in a collective.

    ## Why it matters
    The others wait for 10 minutes, or what `timeout=` says; then the watchdog ends the job.

    ## Seen as
    hangs, dies

    ## How we know
    The name of a call under a condition on the rank, a barrier after it in the same function, and no `timeout` in
    `init_process_group`, or one of 10 minutes or less. How long the work takes is not seen in the script. A
    timeout of two minutes or less is reported in any case.

    ## Fix
    - **you** prepare the data before the job, or give `timeout=timedelta(hours=2)` to `init_process_group`.

    ## Source
    PyTorch documentation, torch.distributed.init_process_group, timeout.
    """
    calls = of_many_ranks(script)
    given = [_in_numbers(script, call.arguments.get("timeout", "")) for call in calls if call.name == INIT]
    for call in calls:
        short = _minutes(_in_numbers(script, call.arguments.get("timeout", ""))) if call.name == INIT else None
        if short is not None and 0 < short <= _SHORT_MIN:
            what = f"a rank that works alone for longer than {short * 60:g} seconds ends the job"
            yield note(here(call), f"{what}: a checkpoint or a validation may take as long",
                       evidence=[written(script, call)],
                       fix=[_longer(script, call, "Give them ten minutes.", "minutes=10")])  # fmt: skip
            return
    minutes = _minutes(
        next((text for text in given if text and text != "None"), f"timedelta(minutes={_DEFAULT_MIN})")
    )
    if minutes is None or minutes > _DEFAULT_MIN:
        return
    init = next((call for call in calls if call.name == INIT), None)
    barriers = [call for call in calls if call.name == "torch.distributed.barrier"]
    for call in calls:
        if by_rank(call) and _WORK.search(call.name.rpartition(".")[2]) and _waited_for(call, barriers):
            yield note(
                here(call),
                f"the other ranks wait for this in a barrier, for {minutes:g} minutes at most",
                evidence=[written(script, call)],
                fix=[_longer(script, init, _EARLIER, "hours=2") if init else you(_EARLIER)],
            )


def _in_numbers(script: Script, timeout: str) -> str:
    """`timedelta(seconds=args.timeout)` with the option's default."""
    for name, option in re.findall(r"(seconds|minutes|hours|days)=([\w.]+\.\w+)", timeout):
        made = Call(name="", file="", line=0, arguments={"0": option})
        timeout = timeout.replace(f"{name}={option}", f"{name}={given_to(script, made, '0', '0')}")
    return timeout


def _minutes(timeout: str) -> float | None:
    """What a `timedelta(...)` of plain numbers gives; None where it is not plain."""
    units = {"seconds": 1 / 60, "minutes": 1, "hours": 60, "days": 1440}
    parts = re.findall(r"(seconds|minutes|hours|days)=([\d.]+)(?=[,)])", timeout)
    return sum(units[unit] * float(number) for unit, number in parts) if parts else None


def _waited_for(call: Call, barriers: list[Call]) -> bool:
    return any(barrier.function == call.function and barrier.line > call.line for barrier in barriers)


def _longer(script: Script, init: Call, text: str, time: str) -> Remedy:
    """`timeout=timedelta(...)` of the group, in the place of what is given there."""
    modules = next((file.modules for file in script.files if file.name == init.file), [])
    kind = "timedelta" if "datetime.timedelta" in modules else "datetime.timedelta"
    needs = "" if kind == "timedelta" else "datetime"
    line, head = line_of(script, init.file, init.line), "init_process_group("
    new = f"timeout={kind}({time})"
    change: Change | None = None
    if "timeout" in init.arguments:
        plain = re.findall(r"timeout=(?:datetime\.)?timedelta\([^()]*\)", line)
        change = {init.line: line.replace(plain[0], new)} if len(plain) == 1 else None
    elif line.count(f"{head})") == 1:
        change = {init.line: line.replace(f"{head})", f"{head}{new})")}
    elif longer := with_argument(line, head, new):
        change = {init.line: longer}
    if needs and "datetime.datetime" in modules:
        change = None  # the module's name is another thing's there
    return changed(script, text, init.file, change, needs=needs)
