"""SSH: a real sshd on this machine, the system's ssh, real agents; nothing that crosses is ever executed."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
import pytest

import ncclcheck
from ncclcheck.base import wire
from ncclcheck.base.errors import UsageError
from ncclcheck.launch import ssh
from ncclcheck.launch.agents import Events
from ncclcheck.launch.hosts import hostfile
from ncclcheck.launch.remote import doorstep
from tests.conftest import ROOT
from tests.jobs.ssh_session import Heard, Told

SSHD = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{os.environ.get('PATH', '')}")
KEYGEN = shutil.which("ssh-keygen")
needs_sshd = pytest.mark.skipif(
    not (SSHD and KEYGEN and shutil.which("ssh") and os.geteuid() == 0),
    reason="needs root and openssh-server (apt-get install openssh-server openssh-client)",
)

Env = dict[str, str]


@dataclass
class Server:
    """A running sshd, and the folder in which the client's configuration and a wrapper named ssh stand."""

    folder: Path
    port: int

    @property
    def env(self) -> dict[str, str]:
        """Our environment, with the wrapper first on PATH."""
        return {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}

    def configure(self, *hosts: str, **changes: str) -> None:
        """Aliases of this machine in the client's configuration."""
        settings = {
            "HostName": "127.0.0.1", "Port": str(self.port), "User": getpass.getuser(),
            "IdentityFile": f"{self.folder}/user", "IdentitiesOnly": "yes", "IdentityAgent": "none",
            "UserKnownHostsFile": f"{self.folder}/known", "GlobalKnownHostsFile": "/dev/null", **changes,
        }  # fmt: skip
        lines = [f"Host {' '.join(hosts)}", *(f"    {name} {value}" for name, value in settings.items())]
        with open(self.folder / "config", "a") as file:
            file.write("\n".join(lines) + "\n")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    sshd = Server(tmp_path, _free_port())
    for name in ("host", "user", "stranger"):
        _run(str(KEYGEN), "-q", "-t", "ed25519", "-N", "", "-f", f"{tmp_path}/{name}")
    shutil.copy(tmp_path / "user.pub", tmp_path / "authorized")
    (tmp_path / "known").write_text(f"[127.0.0.1]:{sshd.port} {(tmp_path / 'host.pub').read_text()}")
    (tmp_path / "sshd").write_text(
        f"Port {sshd.port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {tmp_path}/authorized\nStrictModes no\nPermitRootLogin yes\nMaxStartups 200\n"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    (tmp_path / "bin/ssh").chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    daemon = subprocess.Popen([str(SSHD), "-D", "-e", "-f", f"{tmp_path}/sshd"], stderr=subprocess.DEVNULL)
    try:
        _until(lambda: socket.socket().connect_ex(("127.0.0.1", sshd.port)) == 0)
        yield sshd
    finally:
        daemon.kill()
        daemon.wait(5)


def heard(
    server: Server,
    hosts: str,
    via: str | None = None,
    orders: Told | None = None,
    env: Env | None = None,
    group: int = 0,
    patient: bool = False,
) -> Heard:
    """What a session with these hosts hears; it is a process of its own, for it ends all its children."""
    argv = [sys.executable, "-m", "tests.jobs.ssh_session"]
    order = msgspec.json.encode(
        {"hosts": hosts, "via": via, "told": orders or Told(), "group": group, "patient": patient}
    )
    done = subprocess.run(
        argv, input=order, env={**server.env, "PYTHONPATH": str(ROOT), **(env or {})}, cwd=server.folder,
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Heard)


@needs_sshd
def test_facts_of_two_hosts_and_values_that_no_shell_may_touch(server: Server, tmp_path: Path) -> None:
    server.configure("one", "two")
    trap = tmp_path / "executed"
    hostile = {
        "NCCL_SUBSTITUTION": f"$(touch {trap}) `touch {trap}` ; touch {trap} | touch {trap}",
        "NCCL_QUOTES": 'it\'s "quoted" \\ back\\\\slash !history %d ~ * ?',
        "NCCL_LINES": "one\ntwo\r\n\tthree",
        "NCCL_LETTERS": "é 漢 \udcff",
        "NCCL_SECRET_TOKEN": "not for others",
        "HOME_MADE": "of no family",
    }
    answer = heard(server, "one,two:4", env=hostile)
    assert list(answer.variables) == ["one", "two"]
    shown = {**hostile, "NCCL_LETTERS": "é 漢 \\xff", "NCCL_SECRET_TOKEN": None, "HOME_MADE": None}
    for variables in answer.variables.values():
        assert {name: variables.get(name) for name in hostile} == shown
    assert not trap.exists()


@needs_sshd
@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "tcsh", "bsd-csh"])
def test_every_login_shell_gives_the_words_unchanged(shell: str, tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    words = ["printf", "%s\\n".replace("\\n", "|"), "it's", 'a "b" $HOME', "$(id);`id`", "é *", "~", "a=b", ""]
    line = f"exec {' '.join(map(doorstep.quote, words))}"
    done = subprocess.run([shell, "-c", line], cwd=tmp_path, capture_output=True, check=True, timeout=20)
    assert done.stdout.decode().split("|")[:-1] == words[2:]


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "tcsh", "bsd-csh"])
def test_an_agent_starts_from_every_login_shell(shell: str, tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    folder = tmp_path / "it's a $HOME"
    folder.mkdir()
    python = folder / "python 3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    env = {**ssh.environment(os.environ), "NCCL_DEBUG": "it's \n $(x) !y"}
    words = doorstep.command(
        str(python), "h1", env, str(folder), ["--node", "7", "--name", "h1", "--probe-seconds", "9"]
    )
    line = f"exec {' '.join(map(doorstep.quote, words))}"
    agent = subprocess.Popen([shell, "-c", line], cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin is not None
    assert agent.stdout is not None
    try:
        lines = [agent.stdout.readline().split() for _ in range(5)]
        steps = [line[2] for line in lines if line[:2] == [b"ncclcheck-step", b"h1"]]
        assert lines[0] == lines[2] == []  # what a login shell, or Python's start, has printed ends there
        assert steps == [b"shell", b"python", b"imported"]
        assert {int(line[3]) for line in lines if line} == {agent.pid}
        assert wire.node_of(agent.stdout.readline()) == 7
        assert Path(f"/proc/{agent.pid}/cwd").resolve() == folder
        assert psutil.Process(agent.pid).environ()["NCCL_DEBUG"] == env["NCCL_DEBUG"]
    finally:
        agent.stdin.close()
        agent.wait(10)
        agent.stdout.close()


@needs_sshd
def test_a_wrong_key_a_strange_host_and_a_closed_port_are_told_in_sshs_words(server: Server) -> None:
    server.configure("stranger", IdentityFile=f"{server.folder}/stranger")
    server.configure("unknown", UserKnownHostsFile="/dev/null")
    server.configure("closed", Port="1")
    server.configure("good")
    answer = heard(server, "stranger,unknown,closed,good,nowhere.invalid")
    assert list(answer.variables) == ["good"]
    assert "Permission denied (publickey" in answer.details["stranger"]
    assert "Host key verification failed" in answer.details["unknown"]
    assert "Connection refused" in answer.details["closed"]
    assert "Could not resolve hostname" in answer.details["nowhere.invalid"]


@needs_sshd
def test_no_ncclcheck_there(server: Server, tmp_path: Path) -> None:
    server.configure("bare")
    python = f"{tmp_path}/venv/bin/python"
    _run(sys.executable, "-m", "venv", "--without-pip", f"{tmp_path}/venv")
    answer = heard(server, "bare", orders=Told(python=python, home="/nowhere"))
    start = f"ncclcheck: bare: no ncclcheck {ncclcheck.__version__} there that {python} can import: "
    assert answer.details == {"bare": start + "No module named 'ncclcheck'"}


@needs_sshd
def test_no_interpreter_there(server: Server) -> None:
    server.configure("bare")
    answer = heard(server, "bare", orders=Told(python="/no such/python"))
    assert answer.details == {"bare": "ncclcheck: bare: no interpreter /no such/python there"}


@needs_sshd
def test_another_protocol_there(server: Server) -> None:
    server.configure("old")
    words = f"there speaks protocol {wire.PROTOCOL}, {ncclcheck.__version__} here speaks 99"
    assert words in heard(server, "old", orders=Told(protocol=99)).details["old"]


@needs_sshd
def test_via_enters_what_runs_on_the_host(server: Server, tmp_path: Path) -> None:
    server.configure("one")
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$1|$2|$3" >{tmp_path}/asked\nshift 3\nNCCL_INSIDE=yes exec "$@"\n')
    docker.chmod(0o755)
    answer = heard(server, "one", via=f"{docker} exec 'my box'")
    assert answer.variables["one"]["NCCL_INSIDE"] == "yes"
    assert (tmp_path / "asked").read_text() == "exec|-i|my box\n"


@needs_sshd
def test_after_kill_9_of_the_local_side_nothing_is_left_there(server: Server, tmp_path: Path) -> None:
    server.configure("one", "two")
    mark = f"mark{os.getpid()}"
    code = (
        "import os, time\nfrom ncclcheck.launch import ssh\nfrom ncclcheck.launch.agents import Events\n"
        "events = Events()\n"
        "of = ssh.hosts('one,two', None, None)\n"
        f"more = ['--probe-seconds', '10', '--host-root', '/proc/{mark}/..']\n"
        "links = ssh.start(of, None, events, os.environ, *more)\n"
        "events.get()\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    env = {**server.env, "PYTHONPATH": str(Path(ncclcheck.__file__).parent.parent)}
    local = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, cwd=tmp_path)
    try:
        assert local.stdout is not None
        assert local.stdout.readline() == b"ready\n"
        _until(lambda: len(_agents(mark)) == 2)
    finally:
        local.kill()
        local.communicate()
    _until(lambda: not _agents(mark))


def test_many_hosts_are_opened_64_at_once(tmp_path: Path) -> None:
    fake = tmp_path / "ssh"
    fake.write_text(f"#!/bin/sh\necho . >>{tmp_path}/started\nread line\n")
    fake.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    links = ssh.start(hostfile.from_option(",".join(f"n{i}" for i in range(100))), None, Events(), env)
    try:
        _until(lambda: _lines(tmp_path / "started") == 64)
        time.sleep(0.3)
        assert _lines(tmp_path / "started") == 64
        assert links[99].describe(99).detail.startswith("its connection waits for its turn")
    finally:
        for link in reversed(links):
            link.close(1.0)
    assert _lines(tmp_path / "started") == 64


@pytest.mark.parametrize(
    ("via", "words"),
    [
        ("docker exec box", ["docker", "exec", "-i", "box"]),
        ("podman exec -i 'my box'", ["podman", "exec", "-i", "my box"]),
        ("sudo docker exec box", ["sudo", "docker", "exec", "-i", "box"]),
        ("kubectl exec pod -c main --", ["kubectl", "exec", "-i", "pod", "-c", "main", "--"]),
        ("enroot exec 77", ["enroot", "exec", "77"]),
    ],
)
def test_via_keeps_the_channel_open(via: str, words: list[str]) -> None:
    assert ssh.via_words(via) == words


@pytest.mark.parametrize("via", ["", "docker exec 'box", "docker exec -it box"])
def test_via_that_cannot_work(via: str) -> None:
    with pytest.raises(UsageError, match="--via"):
        ssh.via_words(via)


@pytest.mark.parametrize("word", ["a\nb", "back\\slash", "bang!"])
def test_words_that_a_shell_would_change_are_refused(word: str) -> None:
    with pytest.raises(UsageError, match="remote shell"):
        doorstep.quote(word)


def test_an_environment_that_fits_no_command_line_is_refused_by_name() -> None:
    huge = {"NCCL_SMALL": "1", "NCCL_HUGE": os.urandom(200_000).hex()}
    with pytest.raises(UsageError, match="NCCL_HUGE"):
        doorstep.command(sys.executable, "h1", huge, "/", [])


@pytest.mark.parametrize(
    ("given", "file", "asked"), [(None, None, None), ("a", "f", None), ("a,b", None, 3), ("a", None, 0)]
)
def test_hosts_that_were_not_given(given: str | None, file: str | None, asked: int | None) -> None:
    with pytest.raises(UsageError, match="--hosts"):
        ssh.hosts(given, file, asked)


def _agents(mark: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if f"/proc/{mark}/.." in (p.info["cmdline"] or [])]


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, timeout=30, stdout=subprocess.DEVNULL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _until(true: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
