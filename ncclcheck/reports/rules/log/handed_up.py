"""LOG189, where no warning stands above the result that NCCL hands up: which part of it gave up."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Finding, Remedy, seen, you
from ncclcheck.reports.rules.log.first import consequences, errors
from ncclcheck.reports.rules.log.nccl_results import RESULTS
from ncclcheck.reports.rules.log.nccl_words import stage
from ncclcheck.reports.subjects.logs.ending import UPMOST
from ncclcheck.reports.subjects.logs.logged import at_teller, by_known_host, cause, events_of, in_order, process_of
from ncclcheck.reports.subjects.logs.reported import version_seen
from ncclcheck.reports.subjects.logs.words import meanings

_OF_A_PEER = "6"  # ncclRemoteError
_NO_RESULTS = ("0", "7", "8")  # success, in progress, not known
_PARTS = ("NET", "TUNER", "PROFILER", "ENV", "GIN", "RMA")
_WORDS = {"NET": "network", "ENV": "environment"}
_PLUGIN = "plugin/"
_MEAN_NOTHING = {*meanings.CONSEQUENCES, *meanings.HARMLESS}


def without_a_warning(logs: Logs) -> Iterator[Finding]:
    """What NCCL handed up first, where nothing in these lines says why: FILE:LINE -> N, and what it had begun."""
    if errors(logs) or any(event.level == "WARN" and event.sign not in _MEAN_NOTHING for event in logs.events):
        return
    first = _first_of_each(consequences(logs))
    for host, events in by_known_host(first).items():
        process = process_of(logs, events[0])
        plugin = _plugin(logs, events[0], process)
        yield _by_plugin(logs, events, host, plugin) if plugin else _by_result(logs, events, host)


def _first_of_each(follow: list[LogEvent]) -> list[LogEvent]:
    """The innermost place of each process that gave up on its own account, before any line of a peer's end."""
    processes: dict[tuple[str, str, int | None], list[LogEvent]] = {}
    for event in in_order(follow):
        processes.setdefault((event.file, event.host, event.pid), []).append(event)
    alone = [events for events in processes.values() if _gave_up_alone(events)]
    return [events[0] for events in alone]


def _gave_up_alone(events: list[LogEvent]) -> bool:
    results = {event.fields.get("result", "0") for event in events if event.sign == "propagated"}
    return (
        all(event.sign == "propagated" for event in events)
        and results.isdisjoint((_OF_A_PEER, *_NO_RESULTS))
        and any(UPMOST.search(event.text) for event in events)
    )


def _plugin(logs: Logs, event: LogEvent, process: LogProcess | None) -> LogEvent | None:
    """What NCCL said last of a plugin that it took, where it gave up as it began that plugin."""
    if process is None or process.completed >= process.began > 0:
        return None
    taken = [
        entry
        for entry in events_of(logs, "plugin-taken")
        if (entry.file, entry.host, entry.pid) == (event.file, event.host, event.pid) and entry.line < event.line
    ]
    inside = _PLUGIN in event.fields.get("place", "")
    began = [entry for entry in taken if inside or event.fields.get("place", "").startswith("init.cc")]
    return began[-1] if began else None


def _by_plugin(logs: Logs, events: list[LogEvent], host: str, plugin: LogEvent) -> Finding:
    part = (plugin.fields.get("part") or plugin.fields.get("kind", "")).upper().replace("NETWORK", "NET")
    kind = _WORDS.get(part, part.lower() if part in _PARTS else "")
    name = plugin.fields.get("name") or plugin.fields.get("path", "")
    variable = f"NCCL_{part}_PLUGIN"
    return cause(
        [*events, plugin],
        f"NCCL's {kind} plugin {name} ended its start{f' on {host}' if host else ''}: it answered with "
        f"{_result(events[0])}, without a warning",
        why="NCCL took it from a library, by that variable or by its usual name; without one it starts as well.",
        owner="job",
        at=at_teller(logs, events),
        fix=[
            you("Confirm: it starts without that plugin.", f"export {variable}=none", f"env | grep {variable}"),
            you("See what the plugin itself prints, and what it reads: its own files and variables, and the NCCL "
                "that it was built for."),
        ],
        more=version_seen(logs, events[0]),
    )  # fmt: skip


def _by_result(logs: Logs, events: list[LogEvent], host: str) -> Finding:
    known = RESULTS[events[0].fields["result"]]
    fixes: list[Remedy] = [you(*fix) for fix in known.fix]
    return cause(
        events,
        f"{known.what}{f' on {host}' if host else ''}{stage(events[0])}: no warning says more",
        why=known.why,
        owner=known.owner,
        at=at_teller(logs, events),
        fix=fixes,
        more=[seen("first place", events[0].text[:80]), *version_seen(logs, events[0])],
    )


_RESULTS = {
    "1": "an error of CUDA (ncclUnhandledCudaError, 1)",
    "2": "an error of the system (ncclSystemError, 2)",
    "3": "an internal error (ncclInternalError, 3)",
    "4": "a refused argument (ncclInvalidArgument, 4)",
    "5": "a refused use (ncclInvalidUsage, 5)",
}


def _result(event: LogEvent) -> str:
    return _RESULTS.get(event.fields.get("result", ""), "an error")
