"""What the user asked for, parsed: the same record for every command."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Baseline, Policy, Requirement
from ncclcheck.reports.judgement.rule import all_rules

COUNTED = ("gpu", "hca")


@dataclass(frozen=True)
class Options:
    """Common options; None where the user said nothing and the command decides.

    baseline: what stands in baseline_file, once it was read. then: the user's own command, which is started after.
    """

    command: str
    nodes: int | None = None
    launch: str | None = None
    hosts: str | None = None
    hostfile: str | None = None
    via: str | None = None
    node_rank: int | None = None
    rdzv_endpoint: str | None = None
    rdzv_id: str = ""
    secret_file: str | None = None
    wait: float | None = None
    output: str = "text"
    json_file: str | None = None
    save_file: str | None = None
    html_file: str | None = None
    markdown_file: str | None = None
    junit_file: str | None = None
    prometheus_file: str | None = None
    env_file: str | None = None
    nccl_conf_file: str | None = None
    anonymise: bool = False
    from_file: str | None = None
    baseline_file: str | None = None
    baseline: Baseline | None = None
    only: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    strict: bool = False
    force: bool = False
    deadline: float | None = None
    quiet: bool = False
    verbose: bool = False
    color: str = "auto"
    sysroot: str | None = None
    host_root: str | None = None
    then: tuple[str, ...] = ()
    policy: Policy = field(default_factory=Policy)


def codes(option: str, given: str) -> tuple[str, ...]:
    """`NET,GPU007` -> codes or families. Raises UsageError for what no rule has."""
    wanted = tuple(part.strip().upper() for part in given.split(",") if part.strip())
    known = [rule.code for rule in all_rules()]
    for code in wanted:
        if not re.fullmatch(r"[A-Z]{3}\d{0,3}", code) or not any(k.startswith(code) for k in known):
            families = ", ".join(sorted({k[:3] for k in known}))
            raise UsageError(
                f"{option}: {code!r} is no code or family; families are {families}, codes: ncclcheck explain"
            )
    return wanted


def requirements(given: str, option: str = "--require") -> list[Requirement]:
    """`gpu=8,hca=8,NET003` -> requirements. Raises UsageError."""
    found: list[Requirement] = []
    known = {rule.code for rule in all_rules()}
    for part in (p.strip() for p in given.split(",") if p.strip()):
        name, equals, count = part.partition("=")
        if equals and name.lower() in COUNTED and count.isdecimal() and len(count) < 7:
            found.append(Requirement(what=name.lower(), count=int(count)))
        elif not equals and name.upper() in known:
            found.append(Requirement(what=name.upper()))
        else:
            raise UsageError(
                f"{option}: {part!r} is not understood; allowed are gpu=N, hca=N and codes such as NET003"
            )
    return found
