"""What one page tells people to do: variable -> value, setting of the machine -> value, and where two disagree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ncclcheck.reports.judgement.findings import Finding, Verdict
from ncclcheck.reports.judgement.jsondoc import Recommendation
from ncclcheck.reports.subjects.nodes.fixes import one_voice

_ON = re.compile(r"# on ([\w.-]+)")
_WORDS = r"(?P<name>[\w./@-]+)"
# What a command changes -> what it is changed to; `name` is what may have one state alone.
_EFFECTS: tuple[tuple[str, str], ...] = (
    (rf"\bsysctl (?:-w )?{_WORDS}=(?P<value>'[^']*'|\S+)", "sysctl"),
    (rf"\bip link set (?:dev )?{_WORDS} mtu (?P<value>\d+)", "MTU"),
    (rf"\bip link set (?:dev )?{_WORDS} (?P<value>up|down)\b", "link"),
    (rf"\bip link set (?:dev )?{_WORDS} arp (?P<value>on|off)\b", "ARP"),
    (rf"\bsystemctl (?P<value>start|stop|enable|disable|mask|restart)(?: --now)? {_WORDS}", "service"),
    (rf"\bmodprobe (?P<value>-r )?{_WORDS}", "module"),
    (rf"\bchmod (?P<value>\d+) {_WORDS}", "mode"),
    (rf"\becho (?P<value>\S+) ?> ?{_WORDS}", "file"),
    (r"\bnvidia-smi (?:-i (?P<of>\S+) )?-(?P<name>mig|pm|c|e|pl) (?P<value>\w+)", "nvidia-smi"),
    (r"\bulimit -(?P<name>[a-z]) (?P<value>\S+)", "ulimit"),
    (r"^#SBATCH --(?P<name>(?!exclude|nodelist)[\w-]+)=(?P<value>\S+)", "sbatch"),
    (r"\bcpupower frequency-set -(?P<name>g) (?P<value>\w+)", "cpupower"),
    (r"\b(?P<name>(?:intel_|amd_)?iommu|pci)=(?P<value>[\w,]+)", "boot"),
    (r"\bsetpci -s (?P<name>\S+ [\w+.]+)=(?P<value>\w+)", "setpci"),
)  # fmt: skip
_TURNED_ON = {"start": "on", "enable": "on", "restart": "on", "stop": "off", "disable": "off", "mask": "off"}

Told = dict[str, dict[str | None, set[str]]]


def variables(verdicts: Iterable[Verdict], recommended: Iterable[Recommendation]) -> Told:
    """Variable -> value (None: unset) -> who says so, over lists of settings and fixes."""
    codes: Told = defaultdict(lambda: defaultdict(set))
    for recommendation in recommended:
        codes[recommendation.variable][recommendation.value].add(recommendation.action.upper())
    for code, _, commands in _remedies(verdicts):
        for name, value in one_voice.assignments(commands):
            codes[name][value].add(code)
    return codes


def changes(verdicts: Iterable[Verdict]) -> Told:
    """What commands change on a machine, as "MTU eth0 of n1" -> value -> who says so.

    A remedy may take a thing away and bring it back, as a module that is loaded anew: its last word counts.
    """
    codes: Told = defaultdict(lambda: defaultdict(set))
    for code, finding, commands in _remedies(verdicts):
        last: dict[str, str] = {}
        for line in commands:
            place = _ON.search(line)
            node = place[1] if place else finding.where.node or "all"
            for key, value in _effects(line.partition(" #")[0]):
                last[f"{key} of {node}"] = value
        for key, value in last.items():
            codes[key][value].add(code)
    return codes


def _effects(line: str) -> Iterator[tuple[str, str]]:
    for pattern, kind in _EFFECTS:
        for match in re.finditer(pattern, line):
            groups = match.groupdict()
            value = groups["value"] or "loaded"
            key = " ".join(filter(None, (kind, groups["name"], groups.get("of"))))
            yield key, _TURNED_ON.get(value, value).strip("'") if kind == "service" else value.strip("' ")


def _remedies(verdicts: Iterable[Verdict]) -> Iterator[tuple[str, Finding, Sequence[str]]]:
    for verdict in verdicts:
        for finding in verdict.findings:
            for remedy in finding.remedies:
                yield verdict.code, finding, remedy.commands


def contradictions(verdicts: Sequence[Verdict], recommended: Iterable[Recommendation]) -> Told:
    """What is told two values."""
    codes = {**variables(verdicts, recommended), **changes(verdicts)}
    return {name: dict(values) for name, values in codes.items() if len(values) > 1}
