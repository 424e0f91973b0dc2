"""A result under invented names: what is one name stays one, what rules look at stays, nobody is known by it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

from ncclcheck.probes.facts import Variable
from ncclcheck.probes.facts.guard.walk import Place, changed, strings
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output.anonymise.addresses import InventedAddresses
from ncclcheck.reports.output.anonymise.names import InventedNames
from ncclcheck.reports.output.anonymise.scripts import without_script
from ncclcheck.reports.subjects.nccl.variables import reference

T = TypeVar("T")

_NODES = {
    *(("NodeEntry", "name"), ("Node", "name"), ("Job", "missing"), ("Host", "hostname"), ("PeerReach", "peer")),
    *(("PairTime", "a"), ("PairTime", "b"), ("Marks", "seen"), ("Marks", "missing"), ("Arrival", "name")),
    *(("Where", "peer"), ("LogEvent", "host"), ("LogProcess", "host")),
    *(("Box", "host"), ("Box", "silent"), ("BoxRaised", "host")),
}
_LOGS = {("LogFile", "name"), ("FlightDump", "file"), ("FlightRefused", "file")}
# a17<40112>, [a17]:29500, (a17, 29500), srun: error: a[17-18]:, ON a17 CANCELLED, host : a17
_IN_LOGS = re.compile(
    r"(?<![\w.:-])([A-Za-z][\w.-]{0,252})<\d{1,5}>|\[(?!rank\d|default\d)([A-Za-z][\w.-]{0,252})\]:\d"
    r"|\(([A-Za-z][\w.-]{0,252}), ?\d{2,5}\)|srun: error: ([\w.,-]{1,252}(?:\[[\d,-]{1,252}\])?):"
    r"|\bON ([\w.-]{1,252}) CANCELLED|\bhost {1,9}: ([\w.-]{1,252})"
)
# Names of tables and chains that tools give everywhere; what is none of these, an administrator chose.
_OF_TOOLS = re.compile(
    r".{1,2}|filter|nat|mangle|raw|security|(?:in|out)put|forward|(?:pre|post)routing|in|out|ingress|egress|firewalld"
    r"|(?:filter|nat|mangle|raw)_\w+|(?:kube|docker|cni|cali|cilium|flannel|ufw6?|libvirt|f2b|podman|netavark)\b.*",
    re.IGNORECASE,
)
# Whom a rule of the packet filter names: a set of addresses, a user, a group.
_IN_RULES = re.compile(r"@(?P<set>[\w./-]+)|\bsk[ug]id (?P<user>[A-Za-z_][\w.-]*)")
_USERS = {("Gpus", "user"), ("GpuProcess", "user"), ("Other", "user"), ("Dialled", "user"), ("FileInit", "owner")}
_HOSTS = {("Resolution", "name"), ("Dialled", "host"), ("TcpInit", "host")}
_NAMED = {**dict.fromkeys(_NODES, "node"), **dict.fromkeys(_USERS, "user"), **dict.fromkeys(_HOSTS, "host")}
_PATHS = {"path", "point", "executable", "torch_path", "quota_path", "folder", "target", "master"}
_JUMP = re.compile(r"(?:(?P<user>[\w.-]+)@)?(?P<host>[A-Za-z][\w.-]*)(?::\d+)?(?:,|$)")
_JUDGED = {"Verdict", "Finding", "Evidence", "Remedy", "Culprit", "Where", "Recommendation"}
_VARIABLES = {
    "user": re.compile(r"SLURM_JOB_USER|SLURM_USER"),
    "node": re.compile(r"SLURM\w*_NODELIST|SLURMD_NODENAME|SLURM_SUBMIT_HOST|SLURM_JOB_NODES"),
    "host": re.compile(r"MASTER_ADDR|PET_MASTER_ADDR|PET_RDZV_ENDPOINT|SLURM_TOPOLOGY_ADDR|LWS_LEADER_ADDRESS"),
    "name": re.compile(r"SLURM_(?:JOB_NAME|JOB_ACCOUNT|JOB_PARTITION|JOB_QOS|JOB_RESERVATION|CLUSTER_NAME)"),
}
_OF_JOBS = re.compile(
    r"SLURM_.*|FLUX_JOB_ID|PET_RDZV_ID|TORCHELASTIC_RUN_ID|PET_RUN_ID"
)  # where people write what they like
# What says nothing of anybody: numbers, lists and masks of them, words of launchers; and paths and addresses,
# which are replaced by themselves.
_SAYS_NOTHING = re.compile(
    r"[\d.,:;=/x()*_+-]*|0x[0-9a-fA-F]+|[~.]?/[^\s]*|\[?[0-9a-fA-F:.]+\]?(?::\d+)?|GPU-[\w,-]+|GRES:[\w:,-]+"
    r"|(?:ALL|NONE|NIL|YES|NO|ON|OFF|True|False|true|false|node|batch|interactive|cyclic|block|plane|none|quiet"
    r"|verbose|pmix\w*|pmi2|cray_shasta|c10d|static|etcd|etcd-v2|env|auto)(?:[,;:][\w:,;=-]*)?"
)
_SERVER = re.compile(r"(?:^|[,:])([A-Za-z0-9][\w.-]*)(?:@\w+)?(?=[,:])")


def anonymised(document: Document, *more: object) -> Document:
    """The document with no name, address or path of its cluster in it. more: what its findings may name too."""
    document = without_script(document)
    return Disguise(document, *more).on(document)


class Disguise:
    """What every name, address and path of these results has become."""

    def __init__(self, *learned: object) -> None:
        self._names = InventedNames()
        texts = [string for source in learned for string in strings(source)]
        for source in learned:
            self._learn_variables(source)
        for place, text in texts:
            self._learn(place, text)
        self._names.settle()
        self._addresses = InventedAddresses(dict.fromkeys(text for _, text in texts))
        self._known: dict[tuple[bool, str], str] = {}

    def on(self, what: T) -> T:
        """The same under the new names."""
        return changed(what, self._new)

    def _learn(self, place: Place, text: str) -> None:
        kind, field = place
        if named := "node" if field == "node" else _NAMED.get(place):
            self._names.learn(text, named)
        elif place == ("Meeting", "endpoint"):
            self._names.learn(text.rpartition(":")[0].strip("[]"), "host")
        elif place == ("Mount", "source"):
            self._learn_servers(text)
        elif place in _LOGS:
            self._learn_log(text)
        elif place == ("LogEvent", "text"):
            self._learn_hosts_in(text)
        elif kind == "Filter":
            self._learn_filter(field, text)
        elif place == ("Dialled", "by"):
            self._learn_jumps(text)
        elif place == ("Other", "command"):
            self._learn_command(text)
        elif field in _PATHS and text.startswith(("/", "~")):
            self._names.learn_path(text)
        elif kind not in _JUDGED:
            self._names.learn_paths_in(text)

    def _learn_servers(self, source: str) -> None:
        """`filer:/home`, `mds1@o2ib:mds2@o2ib:/data`; a device is none."""
        servers, _, path = source.rpartition(":/")
        for match in _SERVER.finditer(f"{servers}:" if servers else ""):
            self._names.learn(match[1], "host")
        self._names.learn_path(f"/{path}" if servers else source if source.startswith("/") else "")

    def _learn_filter(self, field: str, text: str) -> None:
        """Names that an administrator chose: of a table, a chain, a set; and users."""
        if field in ("table", "chain") and not _OF_TOOLS.fullmatch(text):
            self._names.learn(text, field)
        for match in _IN_RULES.finditer(text):
            kind = str(match.lastgroup)
            self._names.learn(match[kind], kind)

    def _learn_jumps(self, by: str) -> None:
        """`ProxyJump ann@gate:2222,inner`; of a ProxyCommand the program stays."""
        for match in _JUMP.finditer(by.removeprefix("ProxyJump ")) if by.startswith("ProxyJump ") else ():
            self._names.learn(match["host"], "host")
            self._names.learn(match["user"] or "", "user")

    def _learn_command(self, command: str) -> None:
        """Of somebody else's process the program stays; what it was given is its owner's own words."""
        program, _, given = command.partition(" ")
        self._names.learn_paths_in(program)
        if not _SAYS_NOTHING.fullmatch(given):
            self._names.learn_text(given)

    def _learn_log(self, name: str) -> None:
        """The name of a log: `runs/alice/train.log`, `out.txt`, `slurm-4711`."""
        if "/" in name or "." in name:
            self._names.learn_path(name)
        elif name != "standard input":
            self._names.learn(name, "log")

    def _learn_hosts_in(self, line: str) -> None:
        """A line of a log names hosts that wrote none."""
        self._names.learn_paths_in(line)
        for match in _IN_LOGS.finditer(line):
            self._names.learn_folded(next(name for name in match.groups() if name), "node")

    def _learn_variables(self, learned: object) -> None:
        for variable in _variables(learned):
            kinds = [kind for kind, pattern in _VARIABLES.items() if pattern.fullmatch(variable.name)]
            for kind in kinds:
                self._learn_variable(kind, variable)
            if kinds in ([], ["name"]) and _is_free(variable):
                self._names.learn_text(variable.value)

    def _learn_variable(self, kind: str, variable: Variable) -> None:
        if kind == "node":
            self._names.learn_folded(variable.value, kind)
        elif variable.name == "SLURM_TOPOLOGY_ADDR":
            for part in variable.value.split("."):
                self._names.learn(part, kind)
        else:
            host, colon, port = variable.value.rpartition(":")
            named = host if kind == "host" and colon and port.isdecimal() else variable.value
            self._names.learn(named, kind)

    def _new(self, place: Place, text: str) -> str:
        exact = place in _NAMED or place[1] in ("node", "hostname")
        if (exact, text) not in self._known:
            bare = self._addresses.replace(self._names.without_own_words(text))
            self._known[exact, text] = self._names.exact(bare) if exact else self._names.text(bare)
        return self._known[exact, text]


def _is_free(variable: Variable) -> bool:
    """Whether somebody's own words may stand in it."""
    if variable.name in reference() or _SAYS_NOTHING.fullmatch(variable.value):
        return False
    return _OF_JOBS.fullmatch(variable.name) is not None or re.search(r"\s", variable.value) is not None


def _variables(value: Any) -> Iterable[Variable]:
    """The variables below a result, of all nodes."""
    for node in getattr(value, "nodes", None) or getattr(getattr(value, "cluster", None), "nodes", []):
        listed = getattr(getattr(getattr(node, "facts", node), "job", None), "variables", None)
        yield from listed if isinstance(listed, list) else []
