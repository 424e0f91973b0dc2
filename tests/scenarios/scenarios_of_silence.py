"""Scenarios of nodes that cannot be started or fall silent: each cause has its own words, evidence and fix."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ncclcheck.reports.judgement.findings import State
from tests.lab import PYTHON, another_host_key, configured, faults, mute_sshd
from tests.lab.sshd import certified, client_settings, on_port, shared_connection, wrong_key
from tests.scenarios.scenario import ALL, Expect, Play, Scenario, Scene

_REFUSED = "This account is currently not available."
# Announced by a rank: 1 import torch, 2 init_process_group, 3 the first collective, then every iteration.
_AFTER = 60
_DEADLINE_S = 60
_LONG = ("bench", "--nproc-per-node", "1", "--time-budget", "50", "--deadline", str(_DEADLINE_S))


def _silent(node: str, words: str, evidence: str = "", remedy: str = "", by: str = "h1") -> Expect:
    return Expect(
        code="RUN001", node=node, words=words, evidence=evidence, remedy=remedy, state=State.UNKNOWN, by=by
    )


def _file(scene: Scene, name: str, text: str) -> Path:
    path = scene.folder.with_name(f"{scene.folder.name}-{name}")
    path.write_text(text)
    return path


def _bashrc(scene: Scene, text: str) -> AbstractContextManager[None]:
    """Debian's bash reads it for every command that comes over ssh."""
    return faults.replaced(scene["h3"], Path("/root/.bashrc"), _file(scene, "bashrc", text))


def _by_ssh(name: str, fault: Play, *expect: Expect, **more: object) -> Scenario:
    return Scenario(name=f"ssh: {name}", fault=fault, expect=expect, exit_code=3, **more)  # type: ignore[arg-type]


_SSH = (
    _by_ssh(
        "an account that is closed",
        lambda s: configured(s["h3"], f"ForceCommand echo '{_REFUSED}'; exit 1"),
        _silent("h3", "let us in and ran another command", _REFUSED, "ForceCommand"),
        gate=True,
    ),
    _by_ssh(
        "an account for files only",
        lambda s: configured(s["h3"], "ForceCommand internal-sftp"),
        _silent("h3", "let us in and ran another command", remedy="ForceCommand"),
    ),
    _by_ssh(
        "an sshd that says nothing",
        lambda s: mute_sshd(s["h3"]),
        _silent("h3", "accepted the connection but sent no banner", "banner exchange", "console"),
    ),
    _by_ssh(
        "another host key",
        lambda s: another_host_key(s["h3"]),
        _silent("h3", "host key is not the one that is known", remedy="ssh-keygen -R"),
    ),
    _by_ssh(
        "a login shell that does not come back",
        lambda s: _bashrc(s, "echo loading modules\nsleep 45\n"),
        _silent("h3", "its login shell did not run our command", "loading modules", ".bashrc"),
        seconds=45,
        gone_within=50,
    ),
    _by_ssh(
        "a login shell that becomes another",
        lambda s: _bashrc(s, "exec sleep 40\n"),
        _silent("h3", "its login shell did not run our command", remedy=".bashrc"),
        seconds=45,
        gone_within=50,
    ),
)


def _settings(name: str, lines: str, *expect: Expect, **more: object) -> Scenario:
    """What the user's ssh_config on h1 says of a host."""
    return _by_ssh(name, lambda s: client_settings(s["h1"], lines), *expect, **more)


def _certificate(valid: str) -> Play:
    return lambda s: certified(s["h2"], s["h1"], valid)


@contextmanager
def _asks_a_mute_name_server(scene: Scene) -> Iterator[None]:
    """sshd of h3 looks up every caller at a name server that says nothing."""
    host = scene["h3"]
    kept = {
        path: path.read_text() for path in (host.etc / "nsswitch.conf", host.etc / "resolv.conf") if path.exists()
    }
    (host.etc / "resolv.conf").write_text("nameserver 10.78.0.33\noptions timeout:4 attempts:2\n")
    switch = host.etc / "nsswitch.conf"
    switch.write_text(kept[switch].replace("hosts: files", "hosts: files dns"))
    names = {name: address for name, address in host.names().items() if not str(address).startswith("10.78.")}
    before = host.names()
    host.write_names(names)
    mute = "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 53)); time.sleep(600)"
    server = host.start([*PYTHON, "-c", mute])
    try:
        with configured(host, "UseDNS yes"):
            yield
    finally:
        server.kill()
        server.wait()
        host.write_names(before)
        for path, text in kept.items():
            path.write_text(text)


_LOGINS = (
    _by_ssh(
        "an sshd that opens no session",
        lambda s: configured(s["h3"], "MaxSessions 0"),
        _silent("h3", "opens no session for it (MaxSessions 0)", "Authenticated to", "maxsessions"),
    ),
    _by_ssh(
        "an account that sshd leaves out",
        lambda s: configured(s["h3"], "AllowUsers deploy admin"),
        _silent("h3", "its sshd refuses root (permission denied), and h[1-2] did not", remedy="AllowUsers"),
    ),
    _by_ssh(
        "an sshd on another port",
        lambda s: on_port(s["h3"], 2222),
        _silent("h3", "no sshd listens on port 22 there; one does on port 2222", "SSH-2.0", "Port %s"),
    ),
    Scenario(
        name="ssh: an sshd that asks a mute name server",
        fault=_asks_a_mute_name_server,
        expect=(Expect(code="RUN014", node="h3", words="its sshd takes", remedy="UseDNS", state=State.WARN),),
        exit_code=0,
        seconds=60,
        gone_within=30,
    ),
)

_CALLER = (
    Scenario(
        name="ssh: a name of the list leads to another host of it",
        fault=lambda s: client_settings(s["h1"], "Host h3\n    HostName 10.78.0.22\n    HostKeyAlias h2"),
        expect=(
            Expect(
                code="NET010",
                node="h3",
                words="ssh leads h3 to the machine of h2 (HostName 10.78.0.22)",
                evidence="10.78.0.22:22",
                remedy="ssh -G h3",
            ),
        ),
        first="NET010 on h3",
    ),
    _by_ssh(
        "a shared connection that is stopped",
        lambda s: shared_connection(s["h2"], s["h1"], stopped=True),
        _silent("h2", "over the connection of an earlier ssh", "no answer in 2 s", "mv "),
        seconds=45,
        cure="you",
    ),
    Scenario(
        name="ssh: a shared connection that works",
        fault=lambda s: shared_connection(s["h2"], s["h1"], stopped=False),
        exit_code=0,
    ),
    _settings(
        "another port in ssh's settings",
        "Host h2\n    Port 2222",
        _silent(
            "h2",
            "lead it to port 2222 (22 for h1): no sshd listens on port 2222 there; one does on port 22",
            "10.78.0.22:2222",
            "ssh -G h2",
        ),
    ),
    _settings(
        "another user in ssh's settings",
        "Host h2\n    User nobody",
        _silent("h2", "as user nobody (root for h1)", "nobody@", "ssh -G h2"),
    ),
    _settings(
        "a jump host that is not known",
        "Host h2\n    ProxyJump login9",
        _silent("h2", "by ProxyJump login9: its name does not resolve here: login9", remedy="ssh -G h2"),
    ),
    _settings(
        "a proxy that says nothing",
        "Host h2\n    ProxyCommand sleep 60",
        _silent("h2", "by ProxyCommand sleep: nothing came back through it", remedy="ssh -G h2"),
        seconds=30,
    ),
    *(
        _by_ssh(
            f"a certificate that is {how}",
            _certificate(valid),
            _silent("h2", f"which is valid from {valid[:4]}", "certificate", "ssh-keygen -L"),
        )
        for how, valid in (("over", "20200101:20210101"), ("not valid yet", "20400101:20410101"))
    ),
    _by_ssh(
        "no key exchange in common",
        lambda s: configured(s["h2"], "KexAlgorithms diffie-hellman-group14-sha1"),
        _silent(
            "h2", "no algorithm in common: no matching key exchange", "diffie-hellman-group14-sha1", "sshd -T"
        ),
    ),
    _settings(
        "no host key algorithm in common",
        "Host h2\n    HostKeyAlgorithms ssh-rsa",
        _silent("h2", "no algorithm in common: no matching host key type", remedy="sshd -T"),
    ),
    _by_ssh(
        "keys that the other side does not know",
        lambda s: wrong_key(s["h2"]),
        _silent("h2", "permission denied (publickey); it offered", remedy="ssh-copy-id"),
    ),
)


def _agent_of(scene: Scene, host: str) -> int:
    """The process number of a host's agent."""
    return max(pid for pid in scene[host].pids() if _is_agent(pid))


def _is_agent(pid: int) -> bool:
    """Whatever started it; what it starts itself has another command line."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"--probe-seconds" in words


def _signalled(number: int, host: str = "h2") -> Play:
    """The agent of a host gets a signal while the job runs."""

    @contextmanager
    def play(scene: Scene) -> Iterator[None]:
        scene.rank_on(host, _AFTER)
        os.kill(_agent_of(scene, host), number)
        yield

    return play


def _struck(name: str, launcher: str, number: int, *expect: Expect, **more: object) -> Scenario:
    return Scenario(
        name=name,
        launcher=launcher,  # type: ignore[arg-type]
        hosts=2,
        mgmt=launcher != "join",
        command=_LONG,
        strike=_signalled(number),
        expect=expect,
        exit_code=3,
        seconds=_DEADLINE_S + 5,
        **more,  # type: ignore[arg-type]
    )


_AGENTS = (
    *(
        _struck(
            f"{way}: an agent stopped",
            way,
            signal.SIGSTOP,
            _silent("h2", "is stopped (state T)", remedy="kill -CONT"),
        )
        for way in ("ssh", "slurm", "join")
    ),
    *(
        _struck(f"{way}: an agent killed", way, signal.SIGKILL, _silent("h2", words, remedy="dmesg"))
        for way, words in (("ssh", "is gone without a word"), ("slurm", "SIGKILL"), ("join", "SIGKILL"))
    ),
)


def _by_slurm(name: str, *expect: Expect, **more: object) -> Scenario:
    return Scenario(name=f"slurm: {name}", launcher="slurm", expect=expect, exit_code=3, seconds=40, **more)  # type: ignore[arg-type]


@contextmanager
def _scancel(scene: Scene, what: str) -> Iterator[None]:
    """The job or its step ends from outside while the job runs."""
    scene.rank_on("h2", _AFTER)
    squeue = ["squeue", "-h", "-o", "%i"] if what == "job" else ["squeue", "-h", "--steps", "-o", "%i"]
    for number in scene["h1"].check(squeue).split():
        if what == "job" or number.rpartition(".")[2].isdigit():
            scene["h1"].check(["scancel", number])
    yield


_SLURM = (
    _by_slurm(
        "a dead slurmd",
        _silent("h3", "srun could not start a task there", remedy="systemctl status slurmd"),
        fault=lambda s: s.slurm.dead(s["h3"]),
    ),
    _by_slurm(
        "a prolog that fails",
        _silent("h3", "Slurm's prolog failed there", remedy="state=resume"),
        fault=lambda s: s.slurm.prolog(s["h3"], "exit 1"),
    ),
    Scenario(
        name="slurm: the step is cancelled",
        launcher="slurm",
        hosts=2,
        command=_LONG,
        strike=lambda s: _scancel(s, "step"),
        expect=(_silent("", "was cancelled: by scancel", "CANCELLED AT", "sacct"),),
        exit_code=3,
        seconds=_DEADLINE_S + 5,
    ),
    Scenario(
        name="slurm: an allocation that has ended",
        launcher="variables",
        hosts=2,
        env={"h1": {"SLURM_JOB_ID": "999", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_NNODES": "2"}},
        expect=(_silent("", "999", "999", "salloc"),),
        exit_code=3,
    ),
)


@contextmanager
def _cut(scene: Scene, source: str, to: str) -> Iterator[None]:
    """From the middle of the run nothing comes from one host to another."""
    scene.rank_on(source, _AFTER)
    with faults.loss(scene[to], 100, scene[source]):
        yield


@contextmanager
def _unplugged(scene: Scene, host: str) -> Iterator[None]:
    """From the middle of the run a host is away, as without power."""
    scene.rank_on(host, _AFTER)
    with faults.cut_off(scene[host]):
        yield


@contextmanager
def _suspended(scene: Scene) -> Iterator[None]:
    """Slurm suspends the job. It kills what is stopped when the allocation ends: nobody is left to tidy up."""
    scene.rank_on("h2", _AFTER)
    (job,) = scene["h1"].check(["squeue", "-h", "-o", "%i"]).split()
    scene["h1"].check(["scontrol", "suspend", job])
    try:
        yield
    finally:
        for left in scene.folder.glob("ncclcheck-*"):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _without_address(scene: Scene) -> Iterator[None]:
    """In the middle of the run eth0 of h2 loses its address."""
    scene.rank_on("h2", _AFTER)
    address = f"{scene['h2'].address}/24 dev eth0"
    scene["h2"].ip(f"addr del {address}")
    try:
        yield
    finally:
        scene["h2"].run(["sh", "-c", f"ip addr add {address}"])


_IN_MID_RUN = (
    Scenario(
        name="slurm: the job is suspended",
        launcher="slurm",
        hosts=2,
        command=_LONG,
        strike=_suspended,
        expect=(_silent("h2", "Slurm has suspended job", "SUSPENDED", "scontrol resume"),),
        exit_code=3,
        seconds=_DEADLINE_S + 15,
    ),
    Scenario(
        name="ssh: an address is taken away in mid-run",
        command=_LONG,
        strike=_without_address,
        expect=(
            Expect(
                code="NET006",
                node="h2",
                device="eth0",
                words="eth0 has lost its address 10.77.0.22 during the run",
                remedy="ip addr add 10.77.0.22/24 dev eth0",
            ),
        ),
        first="NET006 on h2",
        seconds=_DEADLINE_S + 15,
    ),
)

_JOIN = (
    Scenario(
        name="join: a way is lost in mid-run, one direction",
        launcher="join",
        mgmt=False,
        command=_LONG,
        strike=lambda s: _cut(s, "h1", "h3"),
        expect=(
            _silent("h3", "h2 reaches h3, h1 does not: the way h1 - h3", "h1 to h3 (10.77.0.33): no answer"),
            Expect(code="NET006", node="h3", words="the way h1 - h3 was lost during the run"),
        ),
        exits={"h3": (3,)},
        first="NET006 on the link h1 - h3",
        seconds=_DEADLINE_S + 15,
    ),
    Scenario(
        name="join: a host loses its power in mid-run",
        launcher="join",
        mgmt=False,
        command=_LONG,
        strike=lambda s: _unplugged(s, "h3"),
        expect=(_silent("h3", "no answer from its host to h[1-2]: the host or its link is away"),),
        exit_code=3,
        seconds=_DEADLINE_S + 15,
    ),
    Scenario(
        name="join: a node that was never started",
        launcher="join",
        mgmt=False,
        hosts=2,
        arguments={ALL: ("--nodes", "3", "--wait", "5")},
        expect=(_silent("node rank 2", "did not join", remedy="--node-rank 2"),),
        exit_code=3,
        gate=True,
    ),
    Scenario(
        name="join: another --rdzv-id",
        launcher="join",
        mgmt=False,
        hosts=2,
        arguments={ALL: ("--wait", "6"), "h2": ("--rdzv-id", "other", "--wait", "14")},
        expect=(
            _silent("node rank 1", "did not join"),
            Expect(code="RUN010", node="h2", state=State.UNKNOWN, words="another run meets on this port", by="h2"),
        ),
        exit_code=3,
        seconds=35,
    ),
)

OF_SILENCE = (*_SSH, *_LOGINS, *_CALLER, *_IN_MID_RUN, *_AGENTS, *_SLURM, *_JOIN)
