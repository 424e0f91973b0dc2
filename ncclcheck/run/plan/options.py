"""What the user asked for, parsed: the same record for every command."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Baseline, Policy, Requirement
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.run.plan.option_table import (
    OUTPUT,
    SECONDS,
    SELDOM,
    VERDICT,
    WHERE,
    CommandOption,
    Flag,
    NumberRange,
    Text,
    WordChoice,
    made_of,
    typed,
)

COUNTED = ("gpu", "hca")
LAUNCHERS = ("local", "slurm", "ssh", "join")
ONLY = "judge these codes or families only: {}"  # with codes that the command judges


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
    wanted: list[Requirement] = []
    known = {rule.code for rule in all_rules()}
    for part in (p.strip() for p in given.split(",") if p.strip()):
        name, equals, count = part.partition("=")
        if equals and name.lower() in COUNTED and count.isdecimal() and len(count) < 7:
            wanted.append(Requirement(what=name.lower(), count=int(count)))
        elif not equals and name.upper() in known:
            wanted.append(Requirement(what=name.upper()))
        else:
            raise UsageError(
                f"{option}: {part!r} is not understood; allowed are gpu=N, hca=N and codes such as NET003"
            )
    return wanted


def _endpoint(given: str) -> str:
    host, colon, port = given.rpartition(":")
    if not colon or not host or not port.isdecimal() or len(port) > 5 or not 1 <= int(port) <= 65535:
        raise UsageError(f"--rdzv-endpoint: {given!r} is not HOST:PORT with a port from 1 to 65535")
    return given


def _file(name: str, help: str, group: str = OUTPUT) -> Any:
    return typed(None, name, help, group=group, metavar="FILE")


_WHOLE = NumberRange(whole=True)
_NODES = NumberRange(1, 100_000, whole=True)  # more nodes than any cluster has; bounds the input
_CODES = Text(comma_list=True)


@dataclass(frozen=True)
class Options:
    """Common options; None where the user said nothing and the command decides.

    baseline: what stands in baseline_file, once it was read. then: the user's own command, which is started after.
    """

    command: str
    nodes: int | None = typed(
        None,
        "--nodes",
        "number of nodes; without a cluster they are simulated here",
        _WHOLE,
        group=WHERE,
        metavar="N",
        site=_NODES,
    )
    launch: str | None = typed(
        None,
        "--launch",
        "set the launcher instead of detecting it",
        WordChoice(LAUNCHERS),
        group=WHERE,
        site=True,
        guarded=True,
    )
    hosts: str | None = typed(
        None, "--hosts", "nodes by ssh: a,b:8", group=WHERE, metavar="LIST", site=True, guarded=True
    )
    hostfile: str | None = typed(
        None,
        "--hostfile",
        "nodes by ssh, one per line, in OpenMPI or DeepSpeed format",
        group=WHERE,
        metavar="FILE",
        site=True,
        guarded=True,
    )
    via: str | None = typed(
        None,
        "--via",
        "prefix for the command on each host: 'docker exec NAME'",
        group=WHERE,
        metavar="COMMAND",
        site=True,
        guarded=True,
    )
    node_rank: int | None = typed(
        None, "--node-rank", "join as node R: run the same command on every node", _WHOLE, group=WHERE, metavar="R"
    )
    rdzv_endpoint: str | None = made_of(
        None,
        _endpoint,
        CommandOption(
            "--rdzv-endpoint",
            "the rendezvous: an address of node 0",
            group=WHERE,
            metavar="HOST:PORT",
            site=Text(),
            guarded=True,
        ),
    )
    rdzv_id: str = typed(
        "", "--rdzv-id", "distinguishes runs that share a port; not a secret", group=WHERE, metavar="ID"
    )
    secret_file: str | None = typed(
        None,
        "--secret-file",
        "the shared secret of a join, or NCCLCHECK_SECRET; mode 0600",
        group=WHERE,
        metavar="FILE",
    )
    wait: float | None = typed(
        None,
        "--wait",
        "how long to wait for the other nodes of a join  [default: 600]",
        SECONDS,
        group=WHERE,
        metavar="S",
        site=True,
    )
    output: str = typed(
        "text",
        "--output",
        "format of stdout",
        WordChoice(("text", "short", "json")),
        short="-o",
        group=OUTPUT,
        site=True,
    )
    json_file: str | None = _file("--json", "write the result as JSON")
    save_file: str | None = _file("--save", "the same: keep the result for --from")
    html_file: str | None = _file("--html", "write a page for the browser; needs ncclcheck[report]")
    markdown_file: str | None = _file("--markdown", "write Markdown for an issue or a CI summary")
    junit_file: str | None = _file("--junit", "write JUnit XML: a check is a test case")
    prometheus_file: str | None = _file("--prometheus", "write metrics for a textfile collector")
    env_file: str | None = _file("--env-file", "write the recommended settings as export lines")
    nccl_conf_file: str | None = _file("--nccl-conf", "write the recommended settings as nccl.conf")
    anonymise: bool = typed(
        False,
        "--anonymise",
        "replace names, addresses, paths and users in every output",
        Flag(),
        group=OUTPUT,
        site=True,
    )
    from_file: str | None = _file("--from", "judge a saved result again; measures nothing", VERDICT)
    baseline_file: str | None = _file("--baseline", "a saved result to compare this one with", VERDICT)
    baseline: Baseline | None = None
    only: tuple[str, ...] = made_of(
        (),
        lambda given: codes("--only", given),
        CommandOption(
            "--only", ONLY.format("NET,NCC003"), group=VERDICT, metavar="CODES", default="", site=_CODES
        ),
    )
    ignore: tuple[str, ...] = made_of(
        (),
        lambda given: codes("--ignore", given),
        CommandOption(
            "--ignore", "downgrade these codes to notes", group=VERDICT, metavar="CODES", default="", site=_CODES
        ),
    )
    policy: Policy = made_of(
        Policy,
        lambda given: Policy(require=requirements(given)),
        CommandOption(
            "--require",
            "gpu=8,hca=8,CODE: absent and unknown are failures",
            group=VERDICT,
            metavar="SPEC",
            default="",
        ),
    )
    strict: bool = typed(
        False, "--strict", "warnings and unknowns are failures too", Flag(), group=VERDICT, site=True
    )
    deadline: float | None = typed(
        None,
        "--deadline",
        "seconds until the report is printed, whatever happens",
        SECONDS,
        group=VERDICT,
        metavar="S",
        site=True,
    )
    quiet: bool = typed(
        False, "--quiet", "print nothing when all is well", Flag(), short="-q", group=OUTPUT, site=True
    )
    verbose: bool = typed(
        False, "--verbose", "list every check and its evidence", Flag(), short="-v", group=OUTPUT, site=True
    )
    color: str = typed(
        "auto", "--color", "colour the text", WordChoice(("auto", "always", "never")), group=OUTPUT, site=True
    )
    sysroot: str | None = typed(
        None, "--sysroot", "read a recorded machine below DIR", group=SELDOM, metavar="DIR"
    )
    host_root: str | None = typed(
        None, "--host-root", "read a live host that is mounted at DIR", group=SELDOM, metavar="DIR"
    )
    force: bool = typed(
        False, "--force", "start jobs even if a check says that they cannot work", Flag(), group=SELDOM, site=True
    )
    then: tuple[str, ...] = ()
