"""NCC003, NCC004: names that nobody reads, and values that are read differently from what they say."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, ConfFile, ConfLine, Node, Unread, at, value_or, variables
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, fail, note, seen, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nccl import profiles
from ncclcheck.reports.subjects.nccl.variables import (
    IFNAMES,
    Known,
    ValueInForce,
    as_version,
    assigned,
    blank_end,
    effective,
    nccl_version,
    parse,
    parsed_value,
    reference,
)

_NEVER = {
    "NCCL_TIMEOUT": "pass timeout= to init_process_group",
    "NCCL_LAUNCH_TIMEOUT": "pass timeout= to init_process_group",
    "NCCL_SOCKET_TIMEOUT": "set NCCL_SOCKET_RETRY_CNT",
    "NCCL_IFNAME": "set NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_INTERFACE": "set NCCL_SOCKET_IFNAME",
    "NCCL_MAX_P2P_PEERS": "set NCCL_P2P_MAX_PEERS",
    "NCCL_MIN_CHANNELS": "set NCCL_MIN_CTAS",
    "NCCL_PROTOCOL": "set NCCL_PROTO",
}
_NOT_NCCLS_OWN = re.compile(  # images, builds, nccl-tests and vendors' plugins
    r"NCCL_(VERSION|HOME|ROOT|ROOT_DIR|DIR|PATH|PREFIX|LIB|LIBRARY|LIBRARIES|LIB_DIR|INCLUDE|INCLUDE_DIR|SRC_DIR"
    r"|TESTS?_.*|FASTRAK_.*|GPUDIRECTTCPXO?_.*|SHARP_.*|IBEXT_.*|TUNER_CONFIG_.*|PROFILE_.*|PROFILER_.*"
    r"|SHIMNET_.*|TELEMETRY_.*|PLUGIN_P2P|AINIC_.*|INSPECTOR_.*|UCX_.*|RAS_.*|LIB_PACKAGE.*|DEV_.*PACKAGE.*"
    # google/nccl-fastsocket, net_fastsocket.cc
    r"|FAST_SOCKET_ENABLE|FLOW_PLACEMENT_ENABLE|NUM_FLOW_ENGINE|[TR]X_CPU_START|QUEUE_SKIP|THREAD_SPIN_ENABLE"
    r"|INLINE_THRESHOLD|SOCK_(BUSY_POLL|NOTSENT_LOWAT|SEND_BUF)|MIN_ZCOPY_SIZE)"
)


@rule(
    "NCC003",
    "every NCCL_* variable is one that this libnccl reads",
    worst=State.WARN,
    needs=("job.variables",),
    of_one_setting=True,
)
def names_are_read(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Every NCCL_* variable, in the environment and in nccl.conf files, has a name that somebody reads: this
    libnccl, a plugin, or torch under one of its old names.

    ## Why it matters
    NCCL never reports a name that it does not know. A typo, a name that was removed years ago or one that an
    article invented looks like a setting and changes nothing.

    ## Seen as
    setting without effect

    ## How we know
    The names stand in the read-only data of the very libnccl that torch would load. Where that could not be read,
    a list of the names of NCCL 2.3 to 2.30 is used, with the versions that read them. A name that an older NCCL
    read is a note, for the lists of clouds still hold such; so is one like no other where a plugin may read it.

    ## Fix
    - **you** Correct the name, or remove it. A plugin's own variable can stay: `--ignore NCC003`.
    - **admin** Correct /etc/nccl.conf and the login files of the node.

    ## Source
    NCCL user guide, Environment Variables; NVIDIA/nccl src/misc/param.cc (2.3 to 2.30).
    """
    for node in cluster.nodes:
        for name, setting in effective(node).items():
            if re.fullmatch(r"NCCL_\S+", name) and (problem := unread_name(node, name)):
                yield _nobody_reads(node, name, setting, *problem)


def unread_name(node: Node, name: str) -> tuple[str, str] | None:
    """What is wrong with a name, and what to use instead; None where somebody reads it."""
    in_library = value_or(at(node, "nccl.known_names"), [])
    entry = reference().get(name)
    if name in in_library or (entry and entry.component != "nccl") or _NOT_NCCLS_OWN.fullmatch(name):
        return None
    if name in profiles.keeps([node]):
        return None
    if entry is None:
        return _never_read(name, in_library)
    return _not_in_version(node, entry)


def _never_read(name: str, in_library: list[str]) -> tuple[str, str]:
    if name in _NEVER:
        return "it never was a variable of NCCL", _NEVER[name]
    if f"TORCH_{name}" in reference():
        return "NCCL does not read it", f"set TORCH_{name}"
    real = in_library or [entry.name for entry in reference().values() if not entry.until]
    near = difflib.get_close_matches(name, [n for n in real if n.startswith("NCCL_")], 1, 0.75)
    return "NCCL does not read it", f"did you mean {near[0]}?" if near else ""


def _not_in_version(node: Node, entry: Known) -> tuple[str, str] | None:
    """A name of our list that this version reads no longer, or not yet."""
    version = nccl_version(node)
    until, since = as_version(entry.until), as_version(entry.since)
    if until and (version is None or version > until):
        return f"NCCL stopped reading it after {entry.until}", f"set {entry.instead}" if entry.instead else ""
    if since and version and version[:2] < since[:2]:
        return f"this NCCL {'.'.join(map(str, version))} does not read it yet: it came with {entry.since}", ""
    return None


def _nobody_reads(node: Node, name: str, setting: ValueInForce, problem: str, instead: str) -> Finding:
    version = nccl_version(node)
    checked = "the names in this node's libnccl" if _read_from_library(node) else "our list of NCCL 2.3 to 2.30"
    level = note if _does_no_harm(node, name, instead) else warn
    return level(
        Where(node=node.name),
        f"{name} has no effect: {problem}" + (f"; {instead}" if instead else ""),
        why="NCCL says nothing about names that it does not know: the setting only looks as if it worked.",
        owner="job",
        evidence=[
            seen(setting.source, assigned(name, setting.value)),
            seen("checked against", checked + (f" {'.'.join(map(str, version))}" if version else "")),
        ],
        fix=[_remove(name, setting)],
    )


def _does_no_harm(node: Node, name: str, instead: str) -> bool:
    """A name of an older NCCL that vendors' lists still hold; or one like no other, that a plugin may read."""
    entry = reference().get(name)
    if entry is not None:
        return bool(entry.until)
    return not instead and bool(value_or(at(node, "nccl.plugins"), []))


def _read_from_library(node: Node) -> bool:
    """Whether the names come from the library itself."""
    return not isinstance(at(node, "nccl.known_names"), Unread)


def _remove(name: str, setting: ValueInForce) -> Remedy:
    if setting.source == "environment":
        return you("Correct the name, or remove it.", f"unset {name}")
    return (admin if setting.source.startswith("/etc/") else you)(f"Correct or remove the line: {setting.source}")


@rule(
    "NCC004", "every NCCL_* value parses in NCCL", worst=State.FAIL, needs=("job.variables",), of_one_setting=True
)
def values_parse(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Every value of an NCCL_*, TORCH_NCCL_* or TORCH_FR_* variable means to its reader what it says to a person, and
    every line of an nccl.conf file that applies is one that NCCL takes.

    ## Why it matters
    NCCL reads numbers like strtoll with base 0: `true` is 0, so `NCCL_IB_DISABLE=true` leaves InfiniBand on;
    `4M` is 4; `010` is 8. Levels such as NVL count only in capitals. An unknown word in NCCL_DEBUG prints
    nothing. nccl.conf is not a shell script: `NCCL_DEBUG = INFO`, `export NCCL_DEBUG=INFO`, quotes and comments
    behind a value are taken literally. torch raises an exception for a boolean that it does not know.

    ## Seen as
    dies

    ## How we know
    Each value is parsed by the rules of its reader, and the result compared with what is written. A number outside
    of the documented range is only a note: NCCL takes it.

    ## Fix
    - **you** Write numbers as digits, booleans as 0 and 1, and `NAME=value` in nccl.conf with nothing else.
    - **admin** The same in /etc/nccl.conf.

    ## Source
    NCCL user guide, Environment Variables; NVIDIA/nccl src/misc/param.cc; strtoll(3); torch
    c10d/ProcessGroupNCCL.hpp and Utils.hpp.
    """
    for node in cluster.nodes:
        lost = {}
        for file in value_or(at(node, "nccl.conf_files"), []):
            yield from _unreadable(node, file)
            lost.update({f"{file.path}:{n.line}": p for n in value_or(file.lines, []) if (p := _conf_problem(n))})
        for source, (line, problem) in lost.items():
            yield _bad_line(node, source, line, problem)
        for name, setting in effective(node).items():
            entry = reference().get(name)
            if entry and _is_judged(entry) and setting.source not in lost:
                yield from _bad_value(node, entry, setting)


def _is_judged(entry: Known) -> bool:
    """NCC007 knows more of the names of interfaces."""
    return entry.component in ("nccl", "plugin", "torch") and entry.name not in IFNAMES


def _unreadable(node: Node, file: ConfFile) -> Iterator[Finding]:
    """A file that the user named and NCCL cannot open: it says nothing of that either."""
    if not isinstance(file.lines, Unread) or file.path != variables(node).get("NCCL_CONF_FILE"):
        return
    tilde = "; NCCL does not replace ~" if file.path.startswith("~") else ""
    yield warn(
        Where(node=node.name),
        f"NCCL_CONF_FILE={file.path} cannot be read: {file.lines.why}{tilde}",
        why="NCCL silently continues without it, and does not read ~/.nccl.conf instead.",
        owner="job",
        evidence=[seen("environment", f"NCCL_CONF_FILE={file.path}")],
        fix=[you("Give a full path that every node has, or unset it.", "unset NCCL_CONF_FILE")],
    )


def _conf_problem(line: ConfLine) -> tuple[ConfLine, str] | None:
    """Why NCCL takes this line differently from what it says."""
    name = re.sub(r"^\s*(export\s+)?", "", line.name).strip()
    if not name.startswith("NCCL_"):
        return None
    if name != line.name:
        return line, f"defines a variable named {line.name!r}, which nobody reads"
    meant = re.sub(r"\s+#.*", "", line.value).strip().strip("'\"")
    if meant == line.value or parsed_value(name, meant) == parsed_value(name, line.value):
        return None
    return line, f"gives {name} the value {line.value!r}, not {meant!r}"


def _bad_line(node: Node, source: str, line: ConfLine, problem: str) -> Finding:
    who = admin if source.startswith("/etc/") else you
    return warn(
        Where(node=node.name),
        f"{source} {problem}",
        why="NCCL splits a line at its first = and trims nothing: blanks, quotes, export and comments stay in it.",
        owner="node" if source.startswith("/etc/") else "job",
        evidence=[seen(source, f"{line.name}={line.value}")],
        fix=[who(f"Write NAME=value with nothing else into {source}.")],
    )


def _bad_value(node: Node, entry: Known, setting: ValueInForce) -> Iterator[Finding]:
    parsed = parse(entry, setting.value, nccl_version(node))
    if not parsed.complaint:
        return
    written, ends = assigned(entry.name, setting.value), blank_end(setting.value)
    complaint = f"{ends} and {parsed.complaint}" if ends and ends not in parsed.complaint else parsed.complaint
    where, what, evidence = Where(node=node.name), f"{written} {complaint}", [seen(setting.source, written)]
    allowed = f" Allowed: {entry.allowed}." if entry.allowed else ""
    command = f"export {entry.name}={shlex.quote(setting.value.strip())}" if ends else f"unset {entry.name}"
    fix = [you(f"Write the value as its reader takes it, or remove it.{allowed}", command)]
    if parsed.mild:
        yield note(where, what, why="NCCL takes it as it is.", evidence=evidence, fix=fix)
    elif parsed.raises:
        why = (
            "init_process_group ends with 'Invalid value for environment variable'."
            if entry.component == "torch"
            else "NCCL refuses it: no communicator comes about."
        )
        yield fail(where, what, why=why, owner="job", evidence=evidence, fix=fix)
    else:
        why = "The job runs with another value than the one that is written, and NCCL does not say so."
        yield warn(where, what, why=why, owner="job", evidence=evidence, fix=fix)
