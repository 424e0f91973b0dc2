"""SSH: an agent on each host, through the system's own ssh and its configuration."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue

from ncclcheck.base import wire
from ncclcheck.base.errors import UsageError
from ncclcheck.launch.agents import Closed, Event, Events, Link, ProcessLink, Signalled, Via, agent_environment
from ncclcheck.launch.given import working_directory
from ncclcheck.launch.hosts import hostfile
from ncclcheck.launch.hosts.hostfile import HostLine
from ncclcheck.launch.remote import doorstep, large_packets, look, other_port, slow_login, ssh_refused
from ncclcheck.launch.remote import ssh_settings as dialled
from ncclcheck.probes.facts import Dialled, Look
from ncclcheck.probes.machine import process
from ncclcheck.probes.machine.environment.job_system import environment_of_families

_Other = Callable[[Sequence[str], float], list[str]]

AT_ONCE = 64  # connections that are being opened at once: bounds processes here and load on a jump host; chosen
RELAYED_FROM = 129  # hosts: two rounds of such connections are soon made without relays; chosen
_GROUP = 32  # hosts behind a relay, so that 2,000 have 63, opened at once; ClusterShell has 64; chosen
_RELAYED_WITHIN = "5"  # s for a relay's connection to a host, so that time is left to try that host from here
_HANGS_AFTER = 20.0  # s without an answer of a host before it is asked why; chosen
_ASKED_AT_ONCE = 8  # hosts that are asked why at once, each by an ssh of its own; chosen
_FAILED_ITSELF = 255  # ssh(1): its own error; any other status is that of the command there
_SILENT_AFTER = 12.0  # beyond ConnectTimeout, after which ssh itself speaks of a host that does not answer
_ANSWERS_WITHIN = large_packets.WITHIN_S + ssh_refused.WITHIN_S
_PORT_S = 2.0  # for a connection to the port of ssh; one that is lost answers never
_GO_ON_S = 4.0  # a login takes a second, on a busy host two
_HANDED_ON = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR")
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ConnectionAttempts": "1",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "ControlMaster": "no",
    "LogLevel": "ERROR",
}
# Words that need no reason: it was not reached at all, or its key is not the one that is known.
_TELLS = re.compile(
    r"Could not resolve|connect to .* port|timed out|HOST IDENTIFICATION|Host key|HOST KEY|UNPROTECTED|bad config"
    r"|Bad (?:owner|configuration)|expired|^ncclcheck: "
)
_ENTERS = {"docker", "podman", "nerdctl", "kubectl", "oc"}


def hosts(given: str | None, file: str | None, asked: int | None) -> tuple[HostLine, ...]:
    """The first `asked` hosts of `--hosts` or `--hostfile`; all by default. Raises UsageError."""
    if (given is None) == (file is None):
        raise UsageError("--launch ssh: give one of --hosts a,b and --hostfile FILE")
    machines = hostfile.from_option(given) if given is not None else hostfile.from_file(file or "")
    if asked is not None and not 1 <= asked <= len(machines):
        source = "--hosts" if given is not None else file
        raise UsageError(f"--nodes: {asked} is out of range; {source} names {len(machines)}")
    return machines[:asked]


def names(of: Sequence[HostLine]) -> tuple[str, ...]:
    """The nodes' names in reports."""
    return tuple(host.name for host in of)


def start(
    of: Sequence[HostLine], via: str | None, events: Events, env: Mapping[str, str], *more: str
) -> list[Link]:
    """Start an agent on each host, at most 64 connections being opened at once. Raises UsageError."""
    ssh = shutil.which("ssh", path=env.get("PATH"))
    if ssh is None:
        raise UsageError("--launch ssh: no ssh is on PATH; install openssh-client")
    inner = via_words(via) if via else []
    links = [
        SshLink(
            {node: host.name},
            _argv(ssh, host, node, inner, env, more),
            _for_ssh(env),
            functools.partial(_another, ssh, host, inner),
            host.target,
        )
        for node, host in enumerate(of)
    ]
    if via or len(of) < RELAYED_FROM:
        SshDoor(links, events).start()
        return list(links)
    return _relayed(ssh, of, links, events, env, *more)


def _relayed(
    ssh: str, of: Sequence[HostLine], links: Sequence[SshLink], events: Events, env: Mapping[str, str], *more: str
) -> list[Link]:
    """The first host of each group starts the agents of the others; whom it cannot reach, we start ourselves."""
    from ncclcheck.launch.relays import RelayLink  # noqa: PLC0415 - few clusters are so large

    door = SshDoor([], events)
    door.start()
    size = max(_GROUP, -(-len(of) // AT_ONCE))
    groups: list[Link] = []
    for first in range(0, len(of), size):
        group = {node: of[node] for node in range(first, min(first + size, len(of)))}
        words = doorstep.command(
            sys.executable, of[first].name, environment(env), working_directory(), [], doorstep.RELAY
        )
        agents = {
            node: _argv("ssh", host, node, [], env, more, ConnectTimeout=_RELAYED_WITHIN)
            if node != first
            else _agent(host, node, env, more)
            for node, host in group.items()
        }
        relay = functools.partial(_Ssh, argv=_ssh(ssh, of[first], words), env=_for_ssh(env))
        link = RelayLink(first, {node: links[node] for node in group}, agents, relay, door, events)
        link.start()
        groups.append(link)
    return groups


def via_words(via: str) -> list[str]:
    """`docker exec NAME` as words, with the -i that keeps the channel open. Raises UsageError."""
    try:
        words = shlex.split(via)
    except ValueError as error:
        raise UsageError(f"--via: {via!r}: {error}") from None
    if not words:
        raise UsageError("--via: empty; for example --via 'docker exec NAME'")
    at = words.index("exec") + 1 if "exec" in words else 0
    if _ENTERS & {os.path.basename(word) for word in words[:at]}:
        if {"-t", "-it", "-ti", "--tty"} & set(words[at:]):
            raise UsageError(f"--via: {via!r}: leave out -t; the channel is no terminal")
        if not {"-i", "--interactive", "--stdin"} & set(words[at:]):
            words.insert(at, "-i")
    return words


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """What a remote agent is given: the families of the field and where programs are; never a secret."""
    ours = agent_environment(env)
    return environment_of_families(ours) | {name: ours[name] for name in _HANDED_ON if name in ours}


def _agent(host: HostLine, node: int, env: Mapping[str, str], more: Sequence[str]) -> list[str]:
    options = ["--node", str(node), "--name", host.name, *more]
    return doorstep.command(sys.executable, host.name, environment(env), working_directory(), options)


def _argv(
    ssh: str,
    host: HostLine,
    node: int,
    inner: Sequence[str],
    env: Mapping[str, str],
    more: Sequence[str],
    **settings: str,
) -> list[str]:
    return _ssh(ssh, host, [*inner, *_agent(host, node, env, more)], **settings)


def _ssh(ssh: str, host: HostLine, words: Sequence[str], **settings: str) -> list[str]:
    options = [text for name, value in {**_OPTIONS, **settings}.items() for text in ("-o", f"{name}={value}")]
    return [ssh, "-T", "-a", "-x", *options, "--", host.target, f"exec {' '.join(map(doorstep.quote, words))}"]


def _another(ssh: str, host: HostLine, inner: Sequence[str], words: Sequence[str], seconds: float) -> list[str]:
    """Another command on the same host; ssh says when it is let in."""
    limit = str(max(1, int(seconds)))
    return _ssh(ssh, host, [*inner, *words], LogLevel="VERBOSE", ConnectTimeout=limit)


def _for_ssh(env: Mapping[str, str]) -> dict[str, str]:
    """The system's ssh runs with the system's libraries, not with those of the job."""
    return {name: value for name, value in env.items() if name not in ("LD_LIBRARY_PATH", "LD_PRELOAD")}


class _Ssh(ProcessLink):
    """One ssh, with an agent behind it."""

    via: Via = "ssh"


class SshLink:
    """The way to one host; its ssh is started when its turn comes."""

    def __init__(
        self, nodes: Mapping[int, str], argv: Sequence[str], env: Mapping[str, str], other: _Other, target: str
    ) -> None:
        self.nodes: Mapping[int, str] = nodes
        self._argv, self._env, self._other, self._target = argv, env, other, target
        self._stopped: int | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._process: ProcessLink | None = None
        self.relayed = False
        self.size_matters = ""
        self._login: slow_login.LoginWatch | None = None

    def open(self, events: Events) -> None:
        """Start ssh, unless the session is over already. Raises OSError."""
        with self._lock:
            if not self._closed:
                self._process = _Ssh(self.nodes, self._argv, self._env, events)

    def send(self, node: int | None, order: wire.FromLauncher) -> None:
        """Give an order; there is nobody to take it before the connection is there."""
        if self._process is not None:
            self._process.send(node, order)

    def describe(self, node: int) -> Closed:
        """What ssh said, or that it waits for its turn."""
        if self._process is None:
            return Closed(node, f"its connection waits for its turn: {AT_ONCE} are being opened at once")
        if self.size_matters:
            return Closed(node, self.size_matters)
        seen = self._process.describe(node)
        return seen if seen.detail or seen.printed else replace(seen, detail=self.slow_login)

    def watch_login(self) -> None:
        """See by a login of its own where it waits."""
        if not self._closed and self._login is None:
            words = _verbose(self._other(["true"], slow_login.AFTER_S * 5))
            self._login = slow_login.LoginWatch(words, self._env, next(iter(self.nodes.values())))

    @property
    def login_s(self) -> float:
        """How long its sshd looks at a login; 0 where that is not long, or nobody had to wait."""
        return self._login.seconds if self._login is not None else 0.0

    @property
    def slow_login(self) -> str:
        """Words for why the login takes long; empty where it does not, or nobody looks."""
        return self._login.words if self._login is not None else ""

    def try_small(self) -> str:
        """Whether the other side hears us over small TCP segments; what is told of it then. Takes seconds."""
        if self._closed:
            return ""  # we have ended it ourselves
        self.size_matters = large_packets.explanation(self._argv, self._env, next(iter(self.nodes.values())))
        return self.size_matters

    def reasons(self) -> str:
        """Why it was not let in, in ssh's words; a login of its own."""
        words = _verbose(self._other(["true"], ssh_refused.WITHIN_S))
        return "" if self._closed else ssh_refused.reasons(words, self._env)

    def dialled(self, node: int, *, lost: bool = False) -> Dialled | None:
        """How ssh reaches the host, by its options here. lost: whether the port is open now is tried too."""
        options = self._argv[: self._argv.index("--")]
        dialled_now = dialled.dialled(options, self._target, self.nodes[node], self._env)
        return dialled.port_now(dialled_now, _PORT_S) if dialled_now and lost else dialled_now

    def look(self, node: int, pid: int | None, seconds: float) -> Look:
        """Look at the agent by an ssh connection of its own."""
        if self._process is None and not self.relayed:
            return Look(came="no")
        unheard = self._process.begun_as(node) if self._process is not None and pid is None else None
        asked = pid or unheard
        words = look.words(asked, begun=pid is not None)
        seen = look.take(self._other(words, seconds), self._env, asked, seconds)
        if seen.state == "T":
            self._stopped = asked
        return seen

    def close(self, seconds: float) -> None:
        """End it and what runs behind it: the agent leaves at the end of its channel."""
        with self._lock:
            self._closed = True
        if self._stopped is not None:  # it can then leave like the others, and leaves nothing there
            process.run(self._other(look.go_on(self._stopped), _GO_ON_S), _GO_ON_S, env=self._env)
        if self._process is not None:
            pid = next(filter(None, map(self._process.begun_as, self.nodes)), None)
            if (
                pid is not None and self._process.child.poll() is None
            ):  # it sees no end of its channel where it hangs
                process.run(self._other(look.end(pid), _GO_ON_S), _GO_ON_S, env=self._env)
            self._process.close(seconds)


def _verbose(argv: Sequence[str]) -> list[str]:
    """The first setting of an option counts, so it takes its place."""
    return ["LogLevel=DEBUG1" if word.startswith("LogLevel=") else word for word in argv]


def _is_refusal(ended: Closed) -> bool:
    """ssh itself gave up, and may know why."""
    return ended.exit == _FAILED_ITSELF and not ended.printed and not _TELLS.search(ended.detail)


def _says_nothing(ended: Closed) -> bool:
    """ssh itself gave up without a word, as it does where its key exchange comes to nothing: nobody was let in."""
    return not (ended.detail or ended.printed) and ended.exit in (None, _FAILED_ITSELF)


def _is_worth_asking(ended: Closed) -> bool:
    """Another try can tell more than ssh's own words."""
    return _says_nothing(ended) or _is_refusal(ended) or other_port.is_refused(ended.detail)


class SshDoor(threading.Thread):
    """Opens connections, a bounded number at once, and passes on what comes through them."""

    def __init__(self, links: Sequence[SshLink], events: Events) -> None:
        super().__init__(daemon=True)
        self._links = {node: link for link in links for node in link.nodes}
        self._silent: dict[int, float] = {}
        self._asked: dict[int, threading.Thread] = {}
        self._asking = threading.BoundedSemaphore(_ASKED_AT_ONCE)
        self._outside = deque(links)
        self._later: SimpleQueue[SshLink] = SimpleQueue()
        self._opening: dict[int, float] = {}
        self._inside: Events = Events()
        self._events = events

    def add(self, link: SshLink) -> None:
        """Take in a link to a host that a relay could not reach."""
        self._later.put(link)
        self._inside.put(Signalled(0))  # wakes it up

    def run(self) -> None:
        """A connection is open when its agent has said a word, and counts no more when it hangs."""
        while True:
            while not self._later.empty():
                link = self._later.get()
                self._links |= dict.fromkeys(link.nodes, link)
                self._outside.append(link)
            self._let_in()
            try:
                event: Event = self._inside.get(timeout=1.0 if self._outside or self._silent else None)
            except Empty:
                late = time.monotonic() - _HANGS_AFTER
                self._opening = {node: since for node, since in self._opening.items() if since > late}
                self._ask_the_silent()
                continue
            if isinstance(event, Signalled):
                continue
            node = event.node
            self._opening.pop(node, None)
            was_silent = self._silent.pop(node, None) is not None
            if not (isinstance(event, Closed) and _is_worth_asking(event)):
                self._events.put(event)
            elif was_silent:
                self._ask(node, event)
            else:  # it was asked while ssh still waited, or had been let in
                threading.Thread(target=self._answered, args=(event,), daemon=True, name="answered").start()

    def _ask_the_silent(self) -> None:
        """A host that connects says a word within seconds, or ssh does; where neither does it may be the path."""
        slow = time.monotonic() - slow_login.AFTER_S
        for node in [node for node, since in self._silent.items() if since < slow][:_ASKED_AT_ONCE]:
            self._links[node].watch_login()
        late = time.monotonic() - _SILENT_AFTER
        for node in [node for node, since in self._silent.items() if since < late]:
            del self._silent[node]
            self._ask(node)

    def _ask(self, node: int, ended: Closed | None = None) -> None:
        def ask() -> None:
            reasons, link = "", self._links[node]
            if self._asking.acquire(blocking=False):  # a few tell what ails them all
                reasons = link.reasons() if ended is not None and _is_refusal(ended) else ""
                if ended is not None and other_port.is_refused(ended.detail):
                    reasons = other_port.explanation(ended.detail, link.nodes[node])
                if not reasons and (ended is None or not ended.detail):
                    reasons = link.try_small() or link.slow_login
                self._asking.release()
            if ended is not None:
                self._events.put(replace(ended, detail="\n".join(filter(None, (ended.detail, reasons)))))

        self._asked[node] = threading.Thread(target=ask, daemon=True, name="reasons")
        self._asked[node].start()

    def _answered(self, ended: Closed) -> None:
        """Pass an end on once what was asked meanwhile has its answer."""
        if asked := self._asked.get(ended.node):
            asked.join(_ANSWERS_WITHIN)
        link = self._links[ended.node]
        self._events.put(replace(ended, detail=ended.detail or link.size_matters or link.slow_login))

    def _let_in(self) -> None:
        while self._outside and len(self._opening) < AT_ONCE:
            link = self._outside.popleft()
            node = next(iter(link.nodes))
            self._opening[node] = self._silent[node] = time.monotonic()
            try:
                link.open(self._inside)
            except OSError as error:
                self._inside.put(Closed(node, f"ssh could not be started: {error}"))
