"""NCCL_ALGO and NCCL_PROTO: pins that leave nothing to use, are not known to this version, or are not safe."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, fail, seen, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nccl import ll128, profiles
from ncclcheck.reports.subjects.nccl.settings import Settings, nodes_with
from ncclcheck.reports.subjects.nccl.variables import Version

_SINCE: dict[str, Version] = {"nvls": (2, 17, 0), "nvlstree": (2, 18, 0), "pat": (2, 23, 0)}
_BY_FUNCTION_SINCE = (2, 24, 0)  # NCCL_ALGO="allreduce:tree;..." is read. Source: NCCL user guide, NCCL_ALGO


def _tokens(value: str) -> tuple[bool, list[str]]:
    """Whether the list excludes, and its words in lower case."""
    words = [word.strip().lower() for word in value.removeprefix("^").split(",")]
    return value.startswith("^"), [word for word in words if word]


@rule(
    "NCC018",
    "NCCL_ALGO allows an algorithm for every collective",
    worst=State.FAIL,
    needs=("job.variables", "nccl.loaded.version"),
)
def algorithm_for_all(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_ALGO for all collectives at once, without Ring.

    ## Why it matters
    Broadcast and reduce know only Ring. Up to NCCL 2.23 a collective fell back to it silently when the wanted
    algorithm could not do it. Since 2.24 it does not: the job ends with `no algorithm/protocol available for
    function Broadcast`, often in the first broadcast of DDP's constructor.

    ## Seen as
    dies

    ## How we know
    The value and the version of the libnccl that torch would load. The form `allreduce:tree;broadcast:ring`
    (2.24 and later) is not judged.

    ## Fix
    - **you** remove it; where Tree was measured to be better for one collective: `NCCL_ALGO="allreduce:tree"`.

    ## Source
    NVIDIA/nccl#317, NVIDIA/nccl#1304 (the silent fallback); NCCL user guide, NCCL_ALGO; pytorch/pytorch#163063.
    """
    for settings in nodes_with(cluster, "NCCL_ALGO"):
        value = settings.text("NCCL_ALGO")
        excludes, words = _tokens(value)
        if not words or ":" in value or not settings.since(*_BY_FUNCTION_SINCE) or ("ring" in words) != excludes:
            continue
        yield fail(
            settings.where,
            f"NCCL_ALGO={value} leaves no algorithm for broadcast and reduce",
            why="Since NCCL 2.24 a collective does not fall back to Ring: the job ends in its first broadcast.",
            owner="job",
            evidence=[*settings.evidence("NCCL_ALGO"), *_version(settings)],
            fix=[you("Remove it; for one collective alone it would be allreduce:tree.", "unset NCCL_ALGO")],
        )


def _version(settings: Settings) -> list[Evidence]:
    return [seen("NCCL", ".".join(map(str, settings.version)))] if settings.version else []


@rule(
    "NCC019",
    "NCCL_ALGO and NCCL_PROTO use values that this NCCL knows",
    worst=State.WARN,
    needs=("job.variables", "nccl.loaded.version"),
)
def words_of_this_version(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Algorithms and the form `function:list` that are newer than the libnccl that torch would load.

    ## Why it matters
    A line that was measured on another cluster is copied together with its words. An older NCCL ignores what it
    does not know, or takes the whole line for something else, and the job runs with other algorithms than its
    script says. NCC004 names words that no version knows.

    ## Seen as
    setting without effect

    ## How we know
    NVLS came with NCCL 2.17, NVLSTree with 2.18, PAT with 2.23, the form `function:list` with 2.24.

    ## Fix
    - **you** remove the word, or use the NCCL that the line was written for.

    ## Source
    NCCL user guide, NCCL_ALGO and NCCL_PROTO; NVIDIA/nccl release notes.
    """
    for settings in nodes_with(cluster, "NCCL_ALGO", "NCCL_PROTO"):
        for name in ("NCCL_ALGO", "NCCL_PROTO"):
            for problem in _too_new(settings, settings.text(name)):
                yield warn(
                    settings.where,
                    f"{name}={settings.text(name)}: {problem}",
                    why="This NCCL ignores it or takes it for something else.",
                    owner="job",
                    evidence=[*settings.evidence(name), *_version(settings)],
                    fix=[you("Remove what this NCCL does not know.", f"unset {name}")],
                )


def _too_new(settings: Settings, value: str) -> Iterator[str]:
    if ":" in value and settings.before(*_BY_FUNCTION_SINCE):
        yield "lists for single collectives came with NCCL 2.24"
    words = set(re.split(r"[\s,;:^]+", value.lower()))
    for word, since in _SINCE.items():
        if word in words and settings.before(*since):
            yield f"{word} came with NCCL {since[0]}.{since[1]}"


@rule("NCC020", "NCCL_PROTO does not force LL128", worst=State.WARN, needs=("job.variables",))
def forced_ll128(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_PROTO with LL128 in its list.

    ## Why it matters
    LL128 is right only where 128 bytes are stored as a whole on all of the path: NVLink, and the network for
    some GPUs. NCCL knows where and turns it off elsewhere. Naming it turns that judgement off: jobs read values
    that were never sent, over sockets and on machines with few NVLinks, and lost no word about it.

    ## Seen as
    wrong results

    ## How we know
    The value. `^LL128` and lists without it are fine, and so is LL128 where NCCL has it on by itself: GPUs of one
    kind from Volta on with NVLink between them, and NICs no farther than one tree of PCIe switches (from Hopper on
    also through another GPU). What the machine's own profile sets, as Google's for TCPXO, is not judged.

    ## Fix
    - **you** remove it. To compare protocols, measure with `NCCL_PROTO=Simple` and without.

    ## Source
    NVIDIA/nccl#790, NVIDIA/nccl#831, NVIDIA/nccl#1261; NCCL user guide, NCCL_PROTO;
    NVIDIA/nccl src/graph/tuning.cc.
    """
    for settings in nodes_with(cluster, "NCCL_PROTO"):
        excludes, words = _tokens(settings.text("NCCL_PROTO"))
        if "NCCL_PROTO" in profiles.keeps([settings.node]) or ll128.is_safe(settings.node):
            continue
        if not excludes and any("ll128" in re.split("[:;]", word) for word in words):
            yield warn(
                settings.where,
                f"NCCL_PROTO={settings.text('NCCL_PROTO')} forces LL128",
                why="Where a path does not store 128 bytes atomically, results are wrong without an error.",
                owner="job",
                evidence=settings.evidence("NCCL_PROTO"),
                fix=[you("Remove it; NCCL uses LL128 where it is safe.", "unset NCCL_PROTO")],
            )
