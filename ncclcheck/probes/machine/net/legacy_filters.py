"""The rules of iptables-legacy and ip6tables-legacy, which nft does not show: a packet passes both kinds.

Read by `iptables-legacy-save`, and only where the kernel says that such tables are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import Filter, Unread
from ncclcheck.probes.machine.access import Machine

_SECONDS = 6.0  # as nft has
# By family: who lists them, and where the kernel names the tables in use.
_KINDS = {
    "iptables-legacy": "/proc/net/ip_tables_names",
    "ip6tables-legacy": "/proc/net/ip6_tables_names",
}
_HOOKS = {"INPUT": "input", "OUTPUT": "output", "PREROUTING": "prerouting", "POSTROUTING": "postrouting"}
_DOES = {
    "DROP": "drop",
    "REJECT": "reject",
    "NFQUEUE": "queue",
    "DNAT": "dnat",
    "REDIRECT": "redirect",
    "SNAT": "snat",
    "MASQUERADE": "masquerade",
}
_PART = re.compile(r"-m (connlimit|hashlimit|limit|recent|connbytes|quota|statistic|string|length|u32|bpf)\b")
_NO_JOBS = re.compile(r"-p (ipv6-)?icmp|--[sd]port \d+(?= |$)")
_KNOWN = re.compile(r"--(?:ct)?state \S*ESTABLISHED\S* -j ACCEPT")
_TARGET = re.compile(r" -[jg] (\S+)")
_MOST_WORDS = 160  # characters of a rule that is shown, as of nft's

_Rules = dict[str, list[str]]


def filters(machine: Machine) -> list[Filter]:
    """What harms in their chains; empty where there are none, or no tool that lists them."""
    harmful: list[Filter] = []
    for family, names in _KINDS.items():
        listed = machine.read(names)
        if isinstance(listed, Unread) or not listed.strip():
            continue
        for tool in (f"{family}-save", f"{family.partition('-')[0]}-save"):
            done = machine.run([tool], _SECONDS)
            if not isinstance(done, Unread) and done.status == 0 and done.out.strip():
                harmful += parsed(done.out, family)
                break
    return harmful


def parsed(text: str, family: str) -> list[Filter]:
    """The same from what such a program printed."""
    return [chain for table in text.split("\n*")[:8] for chain in _of_table(table.removeprefix("*"), family)]


def _of_table(text: str, family: str) -> Iterator[Filter]:
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if re.fullmatch(r"\*?\w+", line)), None)
    if start is None:
        return
    policies: dict[str, str] = {}
    rules: _Rules = {}
    for line in lines[start + 1 :]:
        if chain := re.match(r":(\S+) (\S+)", line):
            policies[chain[1]] = chain[2]
        elif rule := re.match(r"-A (\S+) (.*)", line):
            rules.setdefault(rule[1], []).append(rule[2])
    for chain_name in [name for name in policies if name in _HOOKS]:
        harms = list(_harms(rules, chain_name, set()))
        does = list(dict.fromkeys([harm for harm, _ in harms] + ["drop"] * (policies[chain_name] == "DROP")))
        if does:
            yield Filter(
                family=family,
                table=lines[start].removeprefix("*"),
                chain=chain_name,
                hook=_HOOKS[chain_name],
                does=does,
                rule=harms[0][1][:_MOST_WORDS] if harms else "",
                stateful=any(map(_KNOWN.search, (rule for listed in rules.values() for rule in listed))),
                part=next((rule[:_MOST_WORDS] for harm, rule in harms if _stops_a_part(harm, rule)), ""),
            )


def _harms(rules: _Rules, chain: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    """(what is done, the rule) of a chain and of those that it jumps to, each of them once."""
    if chain in seen:
        return
    seen.add(chain)
    for rule in rules.get(chain, []):
        target = _TARGET.search(f" {rule}")
        if target is None or re.search(r"(?<!! )-i lo\b", rule):
            continue
        if target[1] in _DOES:
            yield _DOES[target[1]], rule
        else:
            yield from _harms(rules, target[1], seen)


def _stops_a_part(harm: str, rule: str) -> bool:
    return harm in ("drop", "reject") and bool(_PART.search(rule)) and not _NO_JOBS.search(rule)
