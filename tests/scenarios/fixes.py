"""Does the printed fix work: a scenario is run, what its report says is done, and it is run again."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.text.groups import ranked
from tests.lab import Host
from tests.lab.tools import LabError
from tests.scenarios.scenario import ALL, Outcome, Scenario, Scene, shown
from tests.scenarios.scenario_run import Labs, once, rested

Who = Literal["admin", "you"]

_BAD = (State.FAIL, State.WARN, State.UNKNOWN)
_COMMAND_S = 6.0  # a command that only shows something may run until it is ended
# What would strike the machine that the lab's hosts share: its clock, its processes, its files and its kernel.
_SHARED = re.compile(
    r"\b(reboot|poweroff|shutdown|hwclock|pkill|killall|modprobe|rmmod|swapoff|rm|pip|umount|drop_caches)\b"
    r"|\bdate -s|sysctl -w (kernel|vm|fs)[.]|/proc/sys/(kernel|vm|fs)"
)
_BOUND = ("setpriv", "--bounding-set", "-sys_time,-sys_boot,-sys_module", "--inh-caps", "-sys_time,-sys_boot")
# Commands that only tell more, and change nothing.
_TELLING = re.compile(
    r"(?:ping|tracepath|ethtool|curl|ss|grep|getent|dmesg|arping|cat|ps|journalctl|df|du|ls|findmnt|free|time"
    r"|python3 -m http[.]server|tc -s|ip -br|ip -s|ip6?tables-save|ip6?tables -S|nft -?a? ?list|sshd -T|ssh -[ov]"
    r"|squeue|sinfo|sacct|scontrol show|systemctl status|nvidia-smi|chronyc tracking|hostname -f|echo [$]\S+"
    r"|ip (?:addr|link|route|neigh|rule)(?: show| get)?(?! \w)|ip (?:addr|link|route|neigh|rule) (?:show|get)"
    r"|(?:python3 -m )?ncclcheck env|fuser -v|firewall-cmd --list-all|ufw status)(?=\s|$)[^>]*$"
)
_FOR_THE_SHELL = re.compile(r"^\s*(export|unset|ulimit|umask|cd)\b")
_OPTION = re.compile(r"(?<!\S)(--[a-z][a-z-]+)[ =]([^\s#]+)")
# Words that stand for something which the reader has to put in.
PLACEHOLDER = re.compile(
    r"<[a-z_ ]+>|(?<![A-Za-z0-9_$/{.-])(?!LD_LIBRARY_PATH\b)(?:[A-Z]+_)*"
    r"(?:ADDRESS|NAME|NODE|NETWORK|GATEWAY|USER|HOST|DEVICE|INTERFACE|PORT|NUMBER|PATH|FILE|PID)\b(?!=)"
)

# The state of a host that a fix may change, and that must otherwise stay: a line each.
_STATE = r"""
ip -o addr | grep -v ' fe80:' | sed -E 's/valid_lft.*//; s/^[0-9]+: /addr /; s/\\//'
ip route show table all | sed 's/^/route /'
ip -6 route show table all | grep -v fe80 | sed 's/^/route6 /'
ip rule | sed 's/^/rule /'
ip neigh show nud permanent | sed 's/^/neigh /'
ip -o link | sed -E 's/^[0-9]+: ([^:@]*)\S* .*(mtu \S+)/link \1 \2/; s/qdisc.*(state \S+)/\1/; s/mode.*\\//'
nft list ruleset | sed -E 's/counter packets [0-9]+ bytes [0-9]+/counter/; s/^[[:space:]]*/nft /'
echo hostname $(hostname)
sed 's/^/hosts /' /etc/hosts
find /etc -type f ! -name hosts -printf '%p ' -exec sh -c 'md5sum <"$1"' sh {} \; 2>/dev/null
cd /proc/sys/net/ipv4 && grep -H . conf/*/rp_filter conf/*/arp_* conf/*/forwarding ip_forward ip_local_port_range \
  tcp_rmem tcp_wmem tcp_mtu_probing tcp_keepalive_time 2>/dev/null | sed 's/^/sysctl /'
tc qdisc show | sed 's/^/tc /'
ss -Hltn | awk '{print "listens", $4}'
"""


@dataclass(frozen=True)
class Step:
    """One line of a remedy, and on which hosts it is typed."""

    line: str
    hosts: tuple[str, ...]

    @property
    def is_of_the_shell(self) -> bool:
        """It changes the shell in which the job is started."""
        return bool(_FOR_THE_SHELL.match(self.line))

    @property
    def changes(self) -> bool:
        """Whether anything is another one afterwards."""
        return not _TELLING.match(self.line)

    @property
    def options(self) -> tuple[str, ...]:
        """The command line's own options that it names: `--nodes 3`."""
        code = self.line.partition(" #")[0]
        own = code.startswith("--") or "ncclcheck " in code
        return tuple(word for pair in _OPTION.findall(code) for word in pair) if own else ()


@dataclass
class Attempt:
    """What came of doing what one kind of person is told to do.

    kind: commands; look (commands that only tell more), text (nothing to paste), none (this person has nothing
    to do). not_pasteable: commands with a word that the reader has to put in.
    """

    scenario: str
    who: Who
    code: str = ""
    what: str = ""
    kind: Literal["commands", "look", "text", "none"] = "none"
    texts: list[str] = field(default_factory=list)
    applied: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    not_pasteable: list[str] = field(default_factory=list)
    still: list[str] = field(default_factory=list)
    harm: list[str] = field(default_factory=list)

    @property
    def cures(self) -> bool:
        """Whether the next run was clean, and nothing else had changed."""
        return self.kind == "commands" and not self.still and not self.harm

    def row(self) -> tuple[str, ...]:
        """One line of the table."""
        after = "yes" if self.cures else ("HARM" if self.harm else "no") if self.kind == "commands" else "-"
        return self.scenario, self.code, self.who, self.kind, str(len(self.applied)), after


@dataclass(frozen=True)
class Told:
    """A finding, by the report of which host."""

    code: str
    by: str
    finding: Finding


_States = Mapping[str, set[str]]
HEADERS = ("scenario", "code", "who", "remedy", "applied", "passes after")


def attempts(scenario: Scenario) -> list[Attempt]:
    """Run it in a lab of its own; then do what the report tells each kind of person, and run it again.

    First you, who change the job's own shell and nothing that stays, then the admin.
    """
    with Labs() as labs:
        scene = labs.scene(scenario)
        rested(scene)
        sound = _states(scene)
        with _tolerant(scenario, scene):
            sick = _states(scene)
            tolds = first_found(once(scenario, scene).documents)
            return [_attempt(who, scenario, scene, tolds, (sound, sick)) for who in ("you", "admin")]


def _attempt(
    who: Who, scenario: Scenario, scene: Scene, tolds: Sequence[Told], before: tuple[_States, _States]
) -> Attempt:
    made = Attempt(scenario.name, who)
    if not tolds:
        made.what = "nothing was found"
        return made
    made.code, made.what = tolds[0].code, shown(tolds[0].finding)
    made.texts, steps = advice(tolds, who, [host.name for host in scene.lab.hosts])
    made.not_pasteable = [step.line for step in steps if PLACEHOLDER.search(step.line.partition("#")[0])]
    made.kind = "commands" if any(step.changes for step in steps) else "look" if steps else made.kind
    if made.kind != "commands":
        made.kind = "text" if made.texts and not steps else made.kind
        return made
    cured = _applied(made, scenario, scene, [step for step in steps if step.line not in made.not_pasteable])
    made.harm = [*_harm(*before, _states(scene), {name for step in steps if step.changes for name in step.hosts})]
    scene.started.clear()
    made.still = [*_still(once(cured, scene), tolds[0])]
    return made


@contextmanager
def _tolerant(scenario: Scenario, scene: Scene) -> Iterator[None]:
    """The fault; what it would put right at its end may be right already, and the lab ends anyway."""
    stack = ExitStack()
    stack.enter_context(scenario.fault(scene))
    try:
        yield
    finally:
        with suppress(LabError, OSError, AssertionError, subprocess.SubprocessError):
            stack.close()


def first_found(documents: Mapping[str, Document]) -> list[Told]:
    """The findings of one state of the rule that the reports put first.

    Of a node that did not join its own report tells more than that of node rank 0, which knows its own address.
    """
    by_host = {host: story for host, document in documents.items() if (story := _first(document))}
    if not by_host:
        return []
    worst = min(story[1].rank for story in by_host.values())
    alike = {host: story for host, story in by_host.items() if story[1].rank == worst}
    order = sorted(alike, key=lambda host: alike[host][0] == "RUN001")
    hosts = [
        order[0],
        *(host for host in order[1:] if {alike[host][0], alike[order[0]][0]} == {"RUN001", "RUN010"}),
    ]
    return [Told(alike[host][0], host, finding) for host in hosts for finding in alike[host][2]]


def _first(document: Document) -> tuple[str, State, list[Finding]] | None:
    for state in _BAD:
        for verdict in ranked(document):
            if findings := [finding for finding in verdict.findings if finding.state is state]:
                return verdict.code, state, findings
    return None


def advice(tolds: Sequence[Told], who: Who, hosts: Sequence[str]) -> tuple[list[str], list[Step]]:
    """What a person is told to do: the texts, and the commands with the hosts where they are typed."""
    texts: list[str] = []
    steps: dict[Step, None] = {}
    for report in tolds:
        for remedy in (remedy for remedy in report.finding.remedies if remedy.who == who):
            texts.append(remedy.text)
            for line in remedy.commands:
                steps[Step(line, _where(line, report, who, hosts))] = None
    return list(dict.fromkeys(texts)), list(steps)


def _where(line: str, report: Told, who: Who, hosts: Sequence[str]) -> tuple[str, ...]:
    """On which hosts: those that the comment or the text names, else the place of the finding."""
    comment = line.partition(" # ")[2]
    if "every node" in comment or "both" in comment:
        return tuple(hosts)
    if named := _names(comment, hosts):
        return named
    if comment.strip() == "here":
        return (report.by,)
    if "node 0" in comment or "node rank 0" in comment:
        return (hosts[0],)
    node = report.finding.where.node
    if node and (rank := re.fullmatch(r"node rank (\d)", node)):
        node = hosts[int(rank[1])]
    place = node if node in hosts else None
    if who == "you" and _FOR_THE_SHELL.match(line) and ("ulimit" not in line or not place):
        return tuple(hosts)  # the job's environment
    return (place or report.by,)


def _names(text: str, hosts: Sequence[str]) -> tuple[str, ...]:
    """`h2`, `h1 and h2`, `h[1-2]`."""
    for first, last in re.findall(r"h\[(\d)[-,](\d)\]", text):
        text += "".join(f" h{number}" for number in range(int(first), int(last) + 1))
    return tuple(name for name in hosts if re.search(rf"\b{name}\b", text))


def _applied(made: Attempt, scenario: Scenario, scene: Scene, steps: Sequence[Step]) -> Scenario:
    """Type the steps; the scenario as it is typed afterwards."""
    shell: dict[str, list[str]] = {}
    arguments = dict(scenario.arguments)
    for step in steps:
        made.applied.append(f"{','.join(step.hosts)}: {step.line}")
        if step.is_of_the_shell:
            for name in step.hosts:
                shell.setdefault(name, []).append(step.line)
        elif options := step.options:
            for name in step.hosts if scenario.launcher == "join" else (ALL,):
                arguments[name] = (*arguments.get(name, ()), *options)
        else:
            for name in step.hosts:
                made.said += _typed(scene[name], step.line)
    under = dict(scenario.under)
    for name, lines in shell.items():
        script = "\n".join([*lines, 'exec "$@"'])
        under[name] = (*under.get(name, ()), "bash", "-c", script, "bash")
    return replace(scenario, under=under, arguments=arguments)


def _typed(host: Host, line: str) -> Iterator[str]:
    if _SHARED.search(line):
        yield f"not typed, for the lab's hosts share it: {line}"
        return
    try:
        done = host.run([*_BOUND, "bash", "-c", line], _COMMAND_S)
    except subprocess.TimeoutExpired:
        yield f"ended after {_COMMAND_S:g} s: {line}"
        return
    if done.returncode:
        yield f"status {done.returncode}: {line}: {done.stderr.strip()[-160:]}"


def _states(scene: Scene) -> _States:
    """Of every host, what a fix may change."""
    return {host.name: set(host.check(["sh", "-c", _STATE], 30).splitlines()) for host in scene.lab.hosts}


def _harm(sound: _States, sick: _States, after: _States, treated: set[str]) -> Iterator[str]:
    """What was sound and is gone; on hosts that the fix does not name, anything that is not as before."""
    for name, lines in after.items():
        kept = sound[name] & sick[name]
        for line in sorted(kept - lines):
            if name not in treated or not line.startswith(("link ", "sysctl ", "/etc/")):
                yield f"{name} lost: {line}"
        if name not in treated:
            yield from (f"{name} got: {line}" for line in sorted(lines - sick[name] - sound[name]))


def _still(outcome: Outcome, cause: Told) -> Iterator[str]:
    """What the run after the fix complains of. A failure that is left as a warning lets the job run."""
    still_bad = [state for state in _BAD if state.rank <= cause.finding.state.rank]
    for host, document in outcome.documents.items():
        for verdict in document.verdicts:
            if verdict.state is State.FAIL or (verdict.code == cause.code and verdict.state in still_bad):
                yield f"{host}: {verdict.code}: {'; '.join(map(shown, verdict.findings))}"
    yield from (
        f"{host} ended with {status}: {outcome.errors[host][-300:]}"
        for host, status in outcome.codes.items()
        if status
    )
