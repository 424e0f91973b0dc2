"""What the packet filter of this host can do to a job's packets, where we may read it (root alone may).

Recorded name: `filters`, a JSON list of Filter. Read by `nft -j list ruleset`, which shows the rules of iptables
too; those of iptables-legacy stand beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from ncclcheck.probes.facts import Filter, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.net import legacy_filters

_SECONDS = 6.0  # 60,000 rules took nft 4.1 s on two busy cores; a few rules take milliseconds
_HOOKS = ("input", "output", "prerouting", "postrouting", "ingress", "egress")
_HARMS = ("drop", "reject", "queue", "dnat", "redirect", "snat", "masquerade", "tcpmss")
_STOPS = re.compile("drop|reject")
_FOR_OTHERS = re.compile(r"\b(icmp\w*|tcp flags|ct state|udp)\b")
# Matches by which a rule stops some packets and lets others of the same kind pass: how many, how fast, how long,
# or by chance; of nft(8), and of iptables-extensions(8) by the names of its modules.
_OF_A_PART = re.compile(
    r"\b(ct (count|bytes|packets|avgpkt)|limit|connlimit|hashlimit|recent|connbytes|quota|numgen|random|statistic"
    r"|meta length|length|string|u32|bpf)\b"
)
_NO_JOBS = re.compile(r"\bicmp|\b[sd]port (\{[^}]*\}|\d+)(?= |$)")
_MOST_WORDS = 160  # characters of a rule that is shown
_MOST_CHAINS = 64  # that are recorded: chosen, a node of Kubernetes may have thousands
_MANY = 1000  # rules; fewer cost a packet microseconds at most, and are not recorded
_FEW_PARTS = 4  # of `ct state established counter accept`; with more it is of some connections alone
# What a form that is not known raises while it is taken apart.
_OTHER_FORM = (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError, RecursionError)

_Key = tuple[str, str, str]  # family, table, chain
_Rules = Mapping[_Key, list[list[Any]]]


def filters(machine: Machine) -> list[Filter] | Unread:
    """The chains of this host's own traffic that can keep packets back or lead them elsewhere."""
    return machine.ask("filters", list[Filter], lambda: _listed(machine))


def _listed(machine: Machine) -> list[Filter] | Unread:
    if os.geteuid() != 0:
        return Unread("denied", "only root may read the packet filter")
    done = machine.run(["nft", "-j", "list", "ruleset"], _SECONDS)
    old = legacy_filters.filters(machine)
    if isinstance(done, Unread):
        return old or Unread("no_tool", done.why)
    if done.status:
        return old or Unread("denied", f"nft list ruleset: {done.err.strip()[:200]}")
    new = parsed(done.out)
    return (old or new) if isinstance(new, Unread) else [*new, *old]


def parsed(text: str) -> list[Filter] | Unread:
    """The same from what `nft -j list ruleset` printed."""
    try:
        listed = msgspec.json.decode(_whole(text), type=dict[str, list[dict[str, Any]]]).get("nftables", [])
        return list(_filters(listed))[:_MOST_CHAINS]
    except _OTHER_FORM as error:
        return Unread("no_tool", f"nft list ruleset prints another form than is known: {type(error).__name__}")


def _whole(text: str) -> str:
    """What was cut (4 MiB, some 20,000 rules) ends with its last whole rule; chains come before their rules."""
    end = text.rfind('}, {"rule"')
    return text if end < 0 or text.rstrip().endswith("]}") else text[: end + 1] + "]}"


def _filters(listed: list[dict[str, Any]]) -> Iterator[Filter]:
    rules: dict[_Key, list[list[Any]]] = {}
    for body in (entry["rule"] for entry in listed if "rule" in entry):
        rules.setdefault((body["family"], body["table"], body["chain"]), []).append(body.get("expr", []))
    for chain in (entry["chain"] for entry in listed if "chain" in entry):
        if chain.get("hook") not in _HOOKS:
            continue
        harms = list(_harms(rules, (chain["family"], chain["table"], chain["name"]), set()))
        does = list(dict.fromkeys([harm for harm, _ in harms] + ["drop"] * (chain.get("policy") == "drop")))
        if does:
            yield Filter(
                family=str(chain["family"]),
                table=str(chain["table"]),
                chain=str(chain["name"]),
                hook=chain["hook"],
                does=does,
                rule=harms[0][1] if harms else "",
                slows=next((rule for harm, rule in harms if harm == "drop" and _slows(rule)), ""),
                part=next((rule for harm, rule in harms if _STOPS.search(harm) and _in_part(rule)), ""),
                stateful=_is_stateful(rules, (chain["family"], chain["table"], chain["name"]), set()),
                passed=_many(rules, chain),
            )


def _harms(rules: _Rules, chain: _Key, seen: set[_Key]) -> Iterator[tuple[str, str]]:
    """(what is done, the rule in words) of a chain and of those that it jumps to, each of them once."""
    if chain in seen:
        return
    seen.add(chain)
    for rule in rules.get(chain, []):
        if _is_of_loopback(rule):
            continue
        for part in rule:
            yield from ((harm, _words(rule)) for harm in _verdicts(part))
            for target in _targets(part):
                yield from _harms(rules, (*chain[:2], target), seen)


def _is_stateful(rules: _Rules, chain: _Key, seen: set[_Key]) -> bool:
    """Whether it, or one that it jumps to, lets packets of known connections pass, which others may not."""
    if chain in seen:
        return False
    seen.add(chain)
    listed = rules.get(chain, [])
    targets = (target for rule in listed for part in rule for target in _targets(part))
    return any(map(_accepts_known, listed)) or any(
        _is_stateful(rules, (*chain[:2], target), seen) for target in targets
    )


def _many(rules: _Rules, chain: Mapping[str, Any]) -> int:
    """How many rules a packet of an open connection passes; 0 where they are few."""
    if chain.get("type") == "nat":
        return 0
    count = _passed(rules, (chain["family"], chain["table"], chain["name"]), set())
    return count if count >= _MANY else 0


def _passed(rules: _Rules, chain: _Key, seen: set[_Key]) -> int:
    """Rules of a chain, and of those that every packet is led to, before the one that accepts open connections."""
    seen.add(chain)
    count = 0
    for rule in rules.get(chain, []):
        count += 1
        if _accepts_open_ones(rule):
            break
        always = not any(isinstance(part, dict) and {"match", "xt"} & {*part} for part in rule)
        for target in (name for part in rule for name in _targets(part)) if always else ():
            if (*chain[:2], target) not in seen:
                count += _passed(rules, (*chain[:2], target), seen)
    return count


def _accepts_open_ones(rule: list[Any]) -> bool:
    """`ct state established accept`, also with `related`, and in a verdict map."""
    return len(rule) < _FEW_PARTS and _accepts_known(rule)


def _accepts_known(rule: list[Any]) -> bool:
    """It may be for some interfaces or addresses alone."""
    words = msgspec.json.encode(rule)
    return b'"state"' in words and b'"established"' in words and b'"accept"' in words


def _slows(rule: str) -> bool:
    """Whether it drops what is above a rate, of data: not of new connections or of pings."""
    return "limit rate over " in rule and not _FOR_OTHERS.search(rule)


def _in_part(rule: str) -> bool:
    """Whether it stops some of a job's packets and not all: not pings, not single ports such as ssh's."""
    return bool(_OF_A_PART.search(rule)) and not _NO_JOBS.search(rule)


def _is_of_loopback(rule: list[Any]) -> bool:
    return any(isinstance(part, dict) and part.get("match", {}).get("right") == "lo"
               and part["match"].get("op") == "==" for part in rule)  # fmt: skip


def _verdicts(part: Any) -> Iterator[str]:
    """What a statement does, also inside of a verdict map."""
    if isinstance(part, dict):
        yield from (name for name in part if name in _HARMS)
        if isinstance(part.get("xt"), dict) and str(part["xt"].get("name")).lower() in _HARMS:
            yield str(part["xt"]["name"]).lower()
    if isinstance(part, dict) and _clamp(part):
        yield "tcpmss"
    if isinstance(part, dict) and "vmap" in part:
        yield from (name for name in _HARMS if f'"{name}"' in msgspec.json.encode(part["vmap"]).decode())


def _clamp(part: dict[str, Any]) -> int:
    """The size that a rule writes over the MSS of TCP; 0 where it does not, or takes that of the route."""
    mangle = part.get("mangle")
    if not isinstance(mangle, dict) or "maxseg" not in msgspec.json.encode(mangle.get("key")).decode():
        return 0
    return mangle["value"] if isinstance(mangle.get("value"), int) else 0


def _targets(part: Any) -> Iterator[str]:
    for name in ("jump", "goto"):
        if isinstance(part, dict) and isinstance(part.get(name), dict):
            yield str(part[name].get("target"))


def _words(rule: list[Any]) -> str:
    """A rule about as nft(8) writes it."""
    return " ".join(_word(part) for part in rule if part)[:_MOST_WORDS]


def _word(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    (name, value), *_ = part.items()
    if isinstance(value, dict) and (write := _STATEMENTS.get(name)):
        return write(name, value)
    return f"tcp option maxseg size set {size}" if (size := _clamp(part)) else str(name)


def _match(_: str, value: dict[str, Any]) -> str:
    compares = "" if value["op"] in ("==", "in") else f" {value['op']}"
    return f"{_side(value['left'])}{compares} {_side(value['right'])}"


def _led(name: str, value: dict[str, Any]) -> str:
    return f"{name} to {':'.join(_side(value[key]) for key in ('addr', 'port') if key in value)}"


def _over(value: dict[str, Any]) -> str:
    return "over " if value.get("inv") else ""


def _filled(_: str, value: dict[str, Any]) -> str:
    """A set that the rule itself fills, with a limit for each of its entries."""
    inside = [_side(value.get("elem")), *map(_word, value.get("stmt", []))]
    return f"{value.get('op', 'add')} {value.get('set', '')} {{ {' '.join(inside)} }}"


_STATEMENTS: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "match": _match,
    **dict.fromkeys(("jump", "goto"), lambda name, value: f"{name} {value['target']}"),
    **dict.fromkeys(("dnat", "snat", "redirect"), _led),
    "limit": lambda name, value: (
        f"{name} rate {_over(value)}{value['rate']} {value.get('rate_unit', 'packets')}/{value['per']}"
    ),
    "xt": lambda name, value: str(value.get("name", name)).lower(),  # a module of iptables
    **dict.fromkeys(
        ("ct count", "quota"),
        lambda name, value: f"{name} {_over(value)}{value['val']} {value.get('val_unit', '')}".rstrip(),
    ),
    "set": _filled,
}


def _side(value: Any) -> str:
    if not isinstance(value, dict):
        return ", ".join(map(_side, value)) if isinstance(value, list) else str(value)
    (name, inside), *_ = value.items()
    if name == "payload" and "field" in inside:
        return f"{inside['protocol']} {inside['field']}"
    if name == "meta":
        return str(inside["key"])
    if name == "ct":
        return f"ct {inside['key']}"
    if name == "prefix":
        return f"{inside['addr']}/{inside['len']}"
    if name == "range":
        return f"{_side(inside[0])}-{_side(inside[1])}"
    if name == "set":
        return "{" + _side(inside) + "}"
    return str(name)
