"""LOG072: values of variables that NCCL does not understand."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Where, admin, seen, you
from ncclcheck.reports.subjects.logs.logged import cause, log_rule, said

_PARSED = ("NCCL_ALGO", "NCCL_PROTO")  # by the parser that says so


@log_rule("LOG072", "NCCL accepts the values of its variables")
def understood(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `Unrecognized element token "LL12" when parsing "LL12"`: NCCL_ALGO or NCCL_PROTO holds a word that NCCL does
    not know.

    ## Why it matters
    NCCL's initialisation ends with ncclInvalidUsage on every rank that has the value.

    ## How we know
    NCCL's own line, seen with 2.27.7; 2.23.4 took no notice of such a value. Which variable it was is told by
    `set by environment` in the same log.

    ## Fix
    - **you** correct or unset the variable: algorithms are Tree, Ring, CollnetDirect, CollnetChain, NVLS, NVLSTree
      and PAT, protocols LL, LL128 and Simple.

    ## Source
    NCCL user guide, Environment Variables, NCCL_ALGO and NCCL_PROTO; libnccl 2.27.7, run with such values.
    """
    found = said(logs, "value-not-understood")
    if not found:
        return
    value = found[0].fields["value"]
    name = _variable(logs, value)
    yield cause(
        found,
        f"NCCL does not know {found[0].fields['token']!r}, which {name or 'NCCL_ALGO or NCCL_PROTO'} holds",
        why="Its initialisation ends with an error on every rank that has the value.",
        owner="job",
        at=Where(),
        more=[seen(name, value)] if name else [],
        fix=[
            you("Correct the value, or leave the choice to NCCL.", f"unset {name or ' '.join(_PARSED)}"),
            admin("Where nobody set it, look into NCCL's own files.", "cat /etc/nccl.conf ~/.nccl.conf"),
        ],
    )


def _variable(logs: Logs, value: str) -> str:
    told: list[LogEvent] = said(logs, "debug-setting")
    return next(
        (one.fields["name"] for one in told if one.fields["name"] in _PARSED and one.fields["value"] == value), ""
    )
