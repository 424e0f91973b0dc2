"""A real sshd on every host, and `ssh hN` between them without a question."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.faults import listener
from tests.lab.hosts import Host, Lab
from tests.lab.needs import command, need
from tests.lab.tools import kill_all, tool, until

_SERVER = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
LoginGraceTime 20
"""
_CLIENT = """\
IdentityFile {folder}/id
IdentitiesOnly yes
GlobalKnownHostsFile {folder}/known_hosts
UserKnownHostsFile /dev/null
StrictHostKeyChecking yes
"""


def start_sshd(lab: Lab, *hosts: Host, more: str = "") -> None:
    """sshd on these hosts (none named: all), on every address. `ssh hN` goes over mgmt0 where there is one.

    The client's settings are each host's /etc/ssh/ssh_config and, for `ssh -F`, `lab.folder / "ssh_config"`.
    more: further lines of sshd_config.
    """
    need("ssh", "sshd")
    if not (lab.folder / "id").exists():
        _make_keys(lab)
    for host in hosts or lab.hosts:
        config = host.folder / "sshd_config"
        config.write_text(f"{_SERVER.format(folder=host.folder)}{more}\n")
        host.start([str(command("sshd")), "-D", "-E", f"{host.folder}/sshd.log", "-f", str(config)])
    for host in hosts or lab.hosts:
        until(f"{host.name}'s sshd listens", lambda host=host: _listens(host))  # type: ignore[misc]


def _make_keys(lab: Lab) -> None:
    """One key for root, one for each host, and what the clients must know of them."""
    user = _key(lab.folder / "id")
    known, config = [], _CLIENT.format(folder=lab.folder)
    for host in lab.hosts:
        (host.folder / "authorized_keys").write_text(user)
        addresses = [address for address in (host.name, host.address, host.mgmt) if address]
        known.append(f"{','.join(addresses)} {_key(host.folder / 'host_key')}")
        config += f"Host {host.name}\n    HostName {host.mgmt or host.address}\n"
    (lab.folder / "known_hosts").write_text("".join(known))
    for path in (lab.folder, *(host.etc / "ssh" for host in lab.hosts)):
        (path / "ssh_config").write_text(config)


def _key(path: Path) -> str:
    """Make a key pair; the public half."""
    tool(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)])
    return path.with_suffix(".pub").read_text()


def _listens(host: Host) -> bool:
    return bool(host.check(["ss", "-Hltn", "sport = 22"]))


def stop_sshd(host: Host) -> None:
    """sshd and its sessions are gone: connections are refused. start_sshd(lab, host) brings it back."""
    kill_all(lambda: [pid for pid in host.pids() if Path(f"/proc/{pid}/comm").read_text() == "sshd\n"])


@contextmanager
def configured(host: Host, more: str) -> Iterator[None]:
    """Its sshd has further lines of sshd_config."""
    stop_sshd(host)
    start_sshd(host.lab, host, more=more)
    try:
        yield
    finally:
        stop_sshd(host)
        start_sshd(host.lab, host)


@contextmanager
def on_port(host: Host, port: int) -> Iterator[None]:
    """Its sshd listens on another port alone."""
    stop_sshd(host)
    config = host.folder / "sshd_config"
    config.write_text(f"{_SERVER.format(folder=host.folder)}Port {port}\n")
    host.start([str(command("sshd")), "-D", "-E", f"{host.folder}/sshd.log", "-f", str(config)])
    until(f"{host.name}'s sshd listens", lambda: bool(host.check(["ss", "-Hltn", f"sport = {port}"])))
    try:
        yield
    finally:
        stop_sshd(host)
        start_sshd(host.lab, host)


@contextmanager
def mute_sshd(host: Host) -> Iterator[None]:
    """Port 22 takes connections, and nobody says a word: sshd, or the whole machine, hangs."""
    stop_sshd(host)
    with listener(host, 22):
        yield
    start_sshd(host.lab, host)


@contextmanager
def another_host_key(host: Host) -> Iterator[None]:
    """The host was installed anew: it has a key that the others do not know."""
    kept = {path: path.read_bytes() for path in (host.folder / "host_key", host.folder / "host_key.pub")}
    stop_sshd(host)
    for path in kept:
        path.unlink()
    _key(host.folder / "host_key")
    start_sshd(host.lab, host)
    try:
        yield
    finally:
        stop_sshd(host)
        for path, text in kept.items():
            path.write_bytes(text)
        start_sshd(host.lab, host)


@contextmanager
def wrong_key(host: Host) -> Iterator[None]:
    """The host accepts no key that anybody has."""
    accepted = host.folder / "authorized_keys"
    before = accepted.read_text()
    accepted.write_text("")
    try:
        yield
    finally:
        accepted.write_text(before)


@contextmanager
def client_settings(host: Host, lines: str) -> Iterator[None]:
    """The host's ssh has these lines before all others of its ssh_config."""
    path = host.etc / "ssh" / "ssh_config"
    before = path.read_text()
    path.write_text(f"{lines}\nMatch all\n{before}")
    try:
        yield
    finally:
        path.write_text(before)


@contextmanager
def certified(host: Host, by: Host, valid: str) -> Iterator[None]:
    """The host takes certificates alone; `by` has one for it, valid from and to as ssh-keygen writes it."""
    folder = host.lab.folder / "certified"
    folder.mkdir()
    for name in ("ca", "user"):
        _key(folder / name)
    signs = ["ssh-keygen", "-q", "-s", str(folder / "ca"), "-I", "user", "-n", "root", "-V", valid]
    tool([*signs, str(folder / "user.pub")])
    shows = f"Host {host.name}\n    IdentityFile {folder}/user\n    CertificateFile {folder}/user-cert.pub"
    try:
        with wrong_key(host), configured(host, f"TrustedUserCAKeys {folder}/ca.pub"), client_settings(by, shows):
            yield
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


@contextmanager
def shared_connection(host: Host, by: Host, *, stopped: bool) -> Iterator[None]:
    """`by` reaches the host over the connection of an earlier ssh, which may be stopped."""
    path = host.lab.folder / "master"
    with client_settings(by, f"Host {host.name}\n    ControlPath {path}"):
        master = by.start(["ssh", "-N", "-o", "ControlMaster=yes", host.name])
        until("the first ssh holds the connection", path.exists)
        if stopped:
            os.kill(master.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(master.pid, signal.SIGCONT)
            master.kill()
            master.wait()
            for left in host.lab.folder.glob("master*"):
                left.unlink()
