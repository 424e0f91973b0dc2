"""LOG072: values of variables that NCCL does not understand."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import first_named
from ncclcheck.reports.judgement.findings import Finding, Where, admin, seen, you
from ncclcheck.reports.subjects.logs.logged import at_teller, cause, events_of, log_rule

_PARSED = ("NCCL_ALGO", "NCCL_PROTO")  # by the parser that says so


@log_rule("LOG072", "NCCL accepts the values of its variables")
def understood(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `Unrecognized element token "LL12" when parsing "LL12"`: NCCL_ALGO or NCCL_PROTO holds a word that NCCL does
    not know. `no algorithm/protocol available`: what they ask for
    cannot do this collective on this machine.
    `Invalid NCCL_COMM_ID`, `verify NCCL_OOB_NET_IFNAME`, `specify a valid NCCL_NET_FORCE_MERGE string`: the value
    of that variable is refused.

    ## Why it matters
    NCCL's initialisation ends with ncclInvalidUsage on every rank that has the value.

    ## Seen as
    dies

    ## How we know
    NCCL's own line, seen with 2.27.7; 2.23.4 took no notice of a word that it does not know. Which variable it
    was is told by
    `set by environment` in the same log.

    ## Fix
    - **you** correct or unset the variable: algorithms are Tree, Ring, CollnetDirect, CollnetChain, NVLS, NVLSTree
      and PAT, protocols LL, LL128 and Simple.

    ## Source
    NCCL user guide, Environment Variables, NCCL_ALGO and NCCL_PROTO; libnccl 2.27.7, run with such values.
    """
    yield from _refused(logs)
    yield from _cannot(logs)
    events = events_of(logs, "value-not-understood")
    if not events:
        return
    value = events[0].fields["value"]
    name = _variable(logs, value)
    yield cause(
        events,
        f"NCCL does not know {events[0].fields['token']!r}, which {name or 'NCCL_ALGO or NCCL_PROTO'} holds",
        why="Its initialisation ends with an error on every rank that has the value.",
        owner="job",
        at=Where(),
        more=[seen(name, value)] if name else [],
        fix=[
            you("Correct the value, or leave the choice to NCCL.", f"unset {name or ' '.join(_PARSED)}"),
            admin("Where nobody set it, look into NCCL's own files.", "cat /etc/nccl.conf ~/.nccl.conf"),
        ],
    )


_NEXT = 3  # lines: NCCL puts a blank one before each warning
_NAMED = ("name", "verify", "merge", "small", "set", "level")
_PARSING = re.compile(r'when parsing "([^"]{1,200})"')
_UNNAMED = {
    "ooo": "NCCL_IB_OOO_RQ",
    "fused": "NCCL_NET_FORCE_MERGE",
    "token": "NCCL_ALGO or NCCL_PROTO",
    "address": "NCCL_COMM_ID",
}


def _refused(logs: Logs) -> Iterator[Finding]:
    groups: dict[str, list[LogEvent]] = {}
    for event in events_of(logs, "setting-refused"):
        fields = event.fields
        name = first_named(fields, *_NAMED)
        name = name or _of_the_words(logs, event)
        name = name or next(name for field, name in _UNNAMED.items() if field in fields)
        groups.setdefault(name, []).append(event)
    for name, events in groups.items():
        names = name.replace(" or ", " ")
        text = events[0].text.partition("NCCL WARN ")[2] or events[0].text
        unresolved = next((refused for event in events if (refused := before_a_refusal(logs, event))), None)
        why_not = f"its host has no address ({unresolved.fields['nccl']})" if unresolved else text.strip()[:160]
        yield cause(
            [*([unresolved] if unresolved else []), *events],
            f"NCCL refuses the value of {name}: {why_not}",
            why="Its initialisation ends with an error on every rank that has the value.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm the value, and correct it or leave the choice to NCCL.", f"printenv {names}",
                    f"unset {names}"),
                admin("Where nobody set it, look into NCCL's own files.", "cat /etc/nccl.conf ~/.nccl.conf"),
            ],
        )  # fmt: skip


def _of_the_words(logs: Logs, event: LogEvent) -> str:
    """The variable whose value NCCL quotes as what it parsed."""
    value = _PARSING.search(event.text)
    return _variable(logs, value[1]) if value else ""


def before_a_refusal(logs: Logs, refusal: LogEvent) -> LogEvent | None:
    """The line that says that a name has no address, where it is the one in NCCL_COMM_ID."""
    if "address" not in refusal.fields and refusal.fields.get("name") != "NCCL_COMM_ID":
        return None
    asked = (event for event in events_of(logs, "python-name-unresolved") if "nccl" in event.fields)
    mine = (
        event
        for event in asked
        if (event.file, event.host, event.pid) == (refusal.file, refusal.host, refusal.pid)
    )
    return next((event for event in mine if 0 < refusal.line - event.line <= _NEXT), None)


def _cannot(logs: Logs) -> Iterator[Finding]:
    events = events_of(logs, "no-algorithm")
    if not events:
        return
    fields = events[0].fields
    lines = events_of(logs, "debug-setting")
    asked = {event.fields["name"]: event.fields["value"] for event in lines if event.fields["name"] in _PARSED}
    if "name" in fields:  # NCCL names one, and the other may be what forbids it
        asked = {fields["name"]: fields["value"], **asked}
    of = f"{fields['function']} of {fields['type']}" if "function" in fields else "a collective"
    yield cause(
        events,
        f"no algorithm of NCCL can do {of}"
        + (
            f" where {' and '.join(f'{name} is {value}' for name, value in asked.items())}"
            if asked
            else " on this machine"
        ),
        why="What is asked for needs hardware, a number of nodes or a type of data that is not there.",
        owner="job",
        at=at_teller(logs, events),
        fix=[
            you("Leave the choice to NCCL.", f"unset {' '.join(asked or _PARSED)}"),
            you("Confirm that nobody set it in NCCL's own files.", "cat /etc/nccl.conf ~/.nccl.conf"),
        ],
    )


def _variable(logs: Logs, value: str) -> str:
    events: list[LogEvent] = events_of(logs, "debug-setting")
    return next(
        (
            event.fields["name"]
            for event in events
            if event.fields["name"] in _PARSED and event.fields["value"] == value
        ),
        "",
    )
