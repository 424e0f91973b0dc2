"""LOG073, LOG077: files that tell NCCL how the machine is built, and machines that it does not understand."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, admin, you
from ncclcheck.reports.rules.log.nccl_words import OWN_CHECKS, meaning
from ncclcheck.reports.subjects.logs.ending import came_through, died
from ncclcheck.reports.subjects.logs.logged import at_teller, cause, events_of, log_rule, process_of
from ncclcheck.reports.subjects.logs.reported import version_seen

_TOPOLOGY, _GRAPH = "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"
_OF_GRAPHS = "graph/"  # of NCCL's sources, what looks at the machine
_CONFIGURED = "/etc/nccl.conf ~/.nccl.conf"


@log_rule("LOG073", "NCCL's topology and graph files match the machine")
def topology_files(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The XML file named in NCCL_TOPO_FILE or NCCL_GRAPH_FILE, is damaged, of another version,
    or of another machine.

    ## Why it matters
    NCCL's initialisation ends with ncclSystemError or ncclInternalError, which name no file. Images of virtual
    machines set these variables in /etc/nccl.conf, where nobody looks: a graph written for four GPUs fails on the
    machine with one.

    ## Seen as
    dies

    ## How we know
    `XML Parse : ...`, `XML Mismatch`, `XML Topology has wrong version`: the file is no XML that NCCL reads.
    `XML Import Channel : dev 1 not found`: the graph names a GPU or a card that is not in this job. Where a log
    holds no such line, a graph file that is set in a job that died with a system or internal error is possible
    only.

    ## Fix
    - **you** unset both variables; NCCL finds the topology itself, and a graph file is for experiments.
    - **admin** take them out of /etc/nccl.conf of the image, or give each size of machine its own file.

    ## Source
    NVIDIA/nccl src/graph/xml.cc and search.cc; NVIDIA/nccl#1240, NVIDIA/nccl#1008, Azure/azhpc-images#327.
    """
    damaged, other = events_of(logs, "xml-malformed"), events_of(logs, "xml-other-machine")
    if events := damaged or other:
        yield _refused(logs, events, bool(damaged))
    elif events := found_wrong(logs):
        yield _unfit(logs, events)
    elif set_ := _graph_of_a_dead_job(logs):
        yield cause(
            [*set_[:1], *events_of(logs, "nccl-result")[:1]],
            f"{_GRAPH} is set ({set_[0].fields['path']}), and NCCL's start failed: the graph may not fit this job",
            why="A graph file names the GPUs and cards of one machine size; on another NCCL's start fails.",
            owner="site",
            state=State.WARN,
            at=at_teller(logs, set_),
            fix=_remedies(_GRAPH),
        )


def _refused(logs: Logs, events: list[LogEvent], damaged: bool) -> Finding:
    first = events[0]
    name, path = _file(logs, first)
    what = f"{name}={path}" if path else f"the file of {name}"
    device = first.fields.get("device")
    wrong = (
        "is no XML that this NCCL reads"
        if damaged
        else f"names device {device}, which is not in this job"
        if device
        else "does not fit this machine"
    )
    return cause(
        events,
        f"{what} {wrong}",
        why="NCCL's start ends with an error that names no file.",
        owner="site",
        at=at_teller(logs, events),
        fix=_remedies(name),
    )


def found_wrong(logs: Logs) -> list[LogEvent]:
    """Checks of NCCL's own picture of the machine that failed, where such a file is set."""
    if not any(event.fields["name"] in (_TOPOLOGY, _GRAPH) for event in events_of(logs, "xml-setting")):
        return []
    warned = (
        event for event in events_of(logs, "nccl-warning") if event.fields.get("place", "").startswith(_OF_GRAPHS)
    )
    return [event for event in warned if meaning(event, OWN_CHECKS) and not came_through(logs, event)]


def _unfit(logs: Logs, events: list[LogEvent]) -> Finding:
    first = events[0]
    name, path = _file(logs, first)
    words = (first.text.partition("NCCL WARN ")[2] or first.text).strip()[:160]
    return cause(
        events,
        f"{name}={path} does not fit this machine or this job: {words}",
        why="NCCL takes what the file says for true, and then its own checks fail.",
        owner="site",
        at=at_teller(logs, events),
        fix=_remedies(name),
    )


def _file(logs: Logs, event: LogEvent) -> tuple[str, str]:
    """Which variable named the file, and its path where that is told."""
    own = process_of(logs, event)
    settings = own.settings if own else {}
    paths = {event.fields["name"]: event.fields["path"] for event in events_of(logs, "xml-setting")}
    known = {**paths, **{key: value for key, value in settings.items() if key in (_TOPOLOGY, _GRAPH)}}
    of_graph = "Channel" in event.text or "graph" in event.text.lower().partition("nccl warn")[2]
    name = _GRAPH if of_graph or (_GRAPH in known and _TOPOLOGY not in known) else _TOPOLOGY
    return name, event.fields.get("graph") or known.get(name, "")


def _graph_of_a_dead_job(logs: Logs) -> list[LogEvent]:
    """A graph that is set, in a log that tells of NCCL's error and of nothing better."""
    set_ = [event for event in events_of(logs, "xml-setting") if event.fields["name"] == _GRAPH]
    failed = events_of(logs, "nccl-result") or died(logs)
    warned = any(event.level == "WARN" for event in logs.events)
    return set_ if set_ and failed and not warned else []


def _remedies(name: str) -> list[Remedy]:
    return [
        you("Confirm: NCCL finds what it needs without it.", f"unset {name}"),
        you("Where nobody set it, NCCL's own files did.", f"grep -n {name} {_CONFIGURED}"),
        admin("Take it out of the image, or give each size of machine its own file.", "cat /etc/nccl.conf"),
    ]


@log_rule("LOG077", "NCCL is new enough for the machine and the job")
def nccl_is_new_enough(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL 1, which serves one node and GPUs up to its time only, failed; or NCCL could not make sense of how the
    GPUs of this machine are connected.

    ## Why it matters
    Its errors speak of CUDA or of an internal check. Each generation of GPUs and switches needs an NCCL that
    knows it: containers with an older one fail on new machines, and nothing says that a newer one would run.

    ## How we know
    `NCCL Tests compiled with NCCL 1`, or the form of NCCL 1's warnings (`WARN src/core.cu`), and a failure.
    `Failed to find reverse path`: NCCL's graph of the machine has links in one direction only, as with
    NVSwitches that it does not know (2.14 on H100, which came with 2.15 and 2.16), or where NVML reports some
    links wrongly.

    ## Fix
    - **you** a newer NCCL or image; compare `nvidia-smi topo -m` with the log.
    - **admin** where NCCL is new, look at the NVLinks: `nvidia-smi nvlink -s`.

    ## Source
    NVIDIA/nccl-tests#5; NVIDIA NCCL release notes; NVIDIA/nccl src/graph/paths.cc.
    """
    old, lost = events_of(logs, "nccl-one"), events_of(logs, "paths-not-found")
    if old and (events_of(logs, "nccl-result", "tests-failure") or any("WARN" in event.text for event in old)):
        yield cause(
            [*old, *events_of(logs, "nccl-result")],
            "NCCL 1 is used: it serves one node, and no GPU or driver that came after it",
            why="It was discontinued in 2016 and replaced by NCCL 2.",
            owner="job",
            fix=[you("Build against NCCL 2, and confirm which one is loaded.",
                     "make MPI=1 NCCL_HOME=/usr/local/nccl2", "ldd build/all_reduce_perf | grep nccl")],
        )  # fmt: skip
    if lost:
        yield cause(
            lost,
            "NCCL cannot make sense of how the GPUs of this machine are connected: it may be too old for it",
            why="Its graph of the machine has links in one direction only, as with switches that it "
                "does not know.",
            owner="job",
            at=at_teller(logs, lost),
            more=version_seen(logs, lost[0]),
            fix=[
                you("Confirm with a newer NCCL.", "python -m pip install -U nvidia-nccl-cu12",
                    "nvidia-smi topo -m"),
                admin("Where it is new, look for NVLinks that are down.", "nvidia-smi nvlink -s"),
            ],
        )  # fmt: skip
