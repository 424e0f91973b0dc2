"""What ssh's own settings and words have to do with a host that is not entered, or that is another one."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ncclcheck.launch.remote import ssh_refused, ssh_settings
from ncclcheck.probes.facts import Cluster, Dialled, Look, Node, Run, Silence
from ncclcheck.probes.machine.net import addresses
from ncclcheck.reports.subjects.failures import silent
from ncclcheck.reports.subjects.failures.entering import dialled as told

_DENIED = "root@10.0.0.2: Permission denied (publickey)."


def _ssh(folder: Path, script: str) -> Path:
    """A program in ssh's place."""
    path = folder / "ssh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def _env(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_proxy_command_is_told_without_its_arguments(tmp_path: Path) -> None:
    lines = r"hostname 127.0.0.1\nuser ann\nport 2222\nproxycommand exec /opt/bin/tunnel --token s3cr3t %%h"
    ssh = _ssh(tmp_path, f"printf '{lines}\\n'")
    dialled = ssh_settings.dialled([str(ssh), "-o", "BatchMode=yes"], "a", "a", _env(tmp_path))
    assert dialled == Dialled(
        node="a",
        host="127.0.0.1",
        addresses=["127.0.0.1"],
        user="ann",
        port=2222,
        by="ProxyCommand tunnel, which is not installed here",
    )


def test_a_shared_connection_that_does_not_answer_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "master"
    with socket.socket(socket.AF_UNIX) as master:
        master.bind(str(path))
        ssh = _ssh(tmp_path, f'case "$*" in *check*) sleep 9;; *) echo "controlpath {path}";; esac')
        dialled = ssh_settings.dialled([str(ssh)], "a", "a", _env(tmp_path))
    assert dialled is not None
    assert (dialled.master, dialled.silent_master) == (str(path), True)


def test_an_ssh_that_does_not_know_the_option_tells_nothing(tmp_path: Path) -> None:
    ssh = _ssh(tmp_path, "echo unknown option -- G >&2; exit 255")
    assert ssh_settings.dialled([str(ssh)], "a", "a", _env(tmp_path)) is None


def test_no_fingerprint_is_kept_of_what_ssh_says(tmp_path: Path) -> None:
    lines = (
        "debug1: Offering public key: /home/ann/.ssh/id_rsa RSA SHA256:abcDEF agent",
        "debug1: Authentications that can continue: publickey",
        "debug1: send_pubkey_test: no mutual signature algorithm",
        "debug1: Local version string s3cr3t",
        _DENIED,
    )
    ssh = _ssh(tmp_path, "\n".join(f"echo '{line}' >&2" for line in lines) + "\nexit 255")
    assert ssh_refused.reasons([str(ssh)], _env(tmp_path)).splitlines() == [
        "ssh -v: Authentications that can continue: publickey",
        "ssh -v: send_pubkey_test: no mutual signature algorithm",
        "ssh -v: keys that were offered: /home/ann/.ssh/id_rsa (RSA)",
    ]


@pytest.mark.parametrize("passphrase", ["", "one two"])
def test_a_key_that_is_accepted_and_cannot_be_read_has_a_passphrase(tmp_path: Path, passphrase: str) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(key)], check=True)
    lines = (
        f"debug1: Offering public key: {key} ED25519 SHA256:abcDEF explicit",
        f"debug1: Server accepts key: {key} ED25519 SHA256:abcDEF explicit",
        "debug1: Authentications that can continue: publickey",
        _DENIED,
    )
    ssh = _ssh(tmp_path, "\n".join(f"echo '{line}' >&2" for line in lines) + "\nexit 255")
    reasons = ssh_refused.reasons([str(ssh)], _env(tmp_path))
    assert (f"{key} cannot be read without its passphrase" in reasons) == bool(passphrase)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ssh -v: no key was offered", "ssh has no key to offer"),
        ("ssh -v: keys that were offered: /k (RSA)", "it offered /k (RSA)"),
        ("ssh -v: send_pubkey_test: no mutual signature algorithm", "takes no signature of"),
        ("ssh-keygen -y: /k cannot be read without its passphrase", "the private key /k here has a passphrase"),
        (
            "ssh -v: Remote: Ignored authorized keys: bad ownership or modes for directory /home/a",
            "may write /home/a",
        ),
        (
            "ssh-keygen -L: certificate /k-cert.pub is valid from 2020-01-01T00:00:00 to 2021-01-01T00:00:00",
            "which is valid from 2020",
        ),
        (
            "ssh-keygen -L: certificate /k is valid from 2026-01-01T00:00:00 to 2026-01-01T08:00:00, for 13 min",
            "became valid only 13 min ago: its clock is behind",
        ),
    ],
)
def test_each_reason_has_its_own_words(line: str, words: str) -> None:
    silence = Silence(node="b", last_step="", since_s=1, via="ssh", exit=255, detail=f"{_DENIED}\n{line}")
    (finding,) = silent.findings(Cluster(nodes=[], run=Run(silent=[silence])))
    assert words in finding.what


def _silence(**settings: object) -> str:
    refusal = "ssh: connect to host b port 2222: Connection refused"
    silence = Silence(node="b", last_step="", since_s=1, via="ssh", exit=255, detail=refusal)
    ways = [
        Dialled(node="a", host="10.0.0.1", user="root"),
        Dialled(node="b", host="10.0.0.2", **settings),  # type: ignore[arg-type]
    ]
    (finding,) = silent.findings(Cluster(nodes=[], run=Run(silent=[silence], dialled=ways)))
    return finding.what


def test_settings_that_differ_stand_first() -> None:
    assert _silence(user="root", port=2222).startswith(
        "ssh's own settings lead it to port 2222 (22 for a): its ssh"
    )
    assert "as user ann (root for a)" in _silence(user="ann")
    assert "by ProxyJump x" in _silence(user="root", by="ProxyJump x")


def test_settings_that_are_like_elsewhere_are_not_told() -> None:
    assert _silence(user="root").startswith("its ssh port refuses connections")


def test_two_names_of_one_machine_by_the_name_service() -> None:
    ways = [Dialled(node=name, host=name, addresses=["10.0.0.2"]) for name in ("a", "b")]
    cluster = Cluster(nodes=[], run=Run(dialled=ways))
    finding = told.same_machine(cluster, [Node(name="a"), Node(name="b")], "a")
    assert finding is not None
    assert finding.where.node == "b"
    assert "its name resolves to 10.0.0.2" in finding.what


def test_two_containers_of_one_host_are_not_one_entered_twice() -> None:
    ways = [Dialled(node=name, host="10.0.0.2", port=port) for name, port in (("a", 2201), ("b", 2202))]
    assert told.same_machine(Cluster(run=Run(dialled=ways)), [Node(name="a"), Node(name="b")], "h") is None


def test_a_young_certificate_that_is_refused_may_mean_a_clock_that_is_behind() -> None:
    now = datetime.now().replace(microsecond=0)
    begun, ended = (now - timedelta(minutes=13)).isoformat(), (now + timedelta(hours=8)).isoformat()
    assert ssh_refused._age(f"from {begun} to {ended}") == ", for 13 min"
    for valid in (
        "forever",
        f"from 2020-01-01T00:00:00 to {ended}",
        f"from {begun} to {begun}",
        f"from {ended} to {ended}",
    ):
        assert not ssh_refused._age(valid)


_ARP = """IP address       HW type     Flags       HW address            Mask     Device
10.0.0.2         0x1         0x0         00:00:00:00:00:00     *        mgmt0
10.0.0.3         0x1         0x2         02:00:00:00:00:03     *        mgmt0
"""


def test_an_address_that_nobody_on_the_wire_has() -> None:
    assert addresses.parsed_unanswered(_ARP, ["10.0.0.2"]) == "mgmt0"
    assert addresses.parsed_unanswered(_ARP, ["10.0.0.3"]) == ""
    assert addresses.parsed_unanswered("", ["10.0.0.2"]) == ""


@pytest.mark.parametrize(
    ("device", "says"), [("mgmt0", "does not answer ARP on mgmt0 here"), ("", "no route to it")]
)
def test_a_host_of_this_network_that_answers_no_arp(device: str, says: str) -> None:
    lost = Silence(
        node="b", last_step="", since_s=3.0, via="ssh", exit=255,
        detail="ssh: connect to host 10.0.0.2 port 22: No route to host",
    )  # fmt: skip
    to = Dialled(node="b", host="10.0.0.2", addresses=["10.0.0.2"], no_arp=device)
    cluster = Cluster(command="env", nodes=[Node(name="a")], run=Run(silent=[lost], dialled=[to]))
    (finding,) = silent.findings(cluster)
    assert says in finding.what
    assert any("arp_ignore" in line for remedy in finding.remedies for line in remedy.commands) == bool(device)


def test_an_agent_for_keys_that_does_not_answer_is_named(tmp_path: Path) -> None:
    ssh = _ssh(tmp_path, r"printf 'hostname 127.0.0.1\nuser ann\nport 22\nidentityagent SSH_AUTH_SOCK\n'")
    with socket.socket(socket.AF_UNIX) as mute, socket.socket(socket.AF_UNIX) as gone:
        mute.bind(f"{tmp_path}/mute.sock")
        mute.listen(5)
        gone.bind(f"{tmp_path}/gone.sock")  # nobody listens: refused, and ssh passes over it
        dials = [
            ssh_settings.dialled(
                [str(ssh)], "a", "a", {**_env(tmp_path), "SSH_AUTH_SOCK": f"{tmp_path}/{name}.sock"}
            )
            for name in ("mute", "gone", "none")
        ]
    assert [dialled and dialled.silent_agent for dialled in dials] == [f"{tmp_path}/mute.sock", "", ""]
    silence = Silence(node="a", last_step="", since_s=26.0, waited_s=26.0, via="ssh", look=Look(came="no"))
    run = Run(silent=[silence], dialled=[dialled for dialled in dials[:1] if dialled])
    (finding,) = silent.findings(Cluster(command="bench", run=run))
    assert "waits for the ssh agent at" in finding.what
    assert "unset SSH_AUTH_SOCK" in str(finding.remedies)


@pytest.mark.parametrize(("greeted", "greeting"), [(b"4fa2c1\r\n", "4fa2c1"), (b"SSH-2.0-OpenSSH_9.6\r\n", "")])
def test_what_is_no_sshd_at_its_port_is_quoted(greeted: bytes, greeting: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ssh = _ssh(tmp_path, rf"printf 'hostname 127.0.0.1\nuser ann\nport {port}\n'")

        def speak() -> None:
            with server.accept()[0] as visitor:
                visitor.sendall(greeted)

        speaker = threading.Thread(target=speak, daemon=True)
        speaker.start()
        way = ssh_settings.dialled([str(ssh)], "a", "a", _env(tmp_path))
        speaker.join(5)
    assert way is not None
    assert way.greeting == greeting
    words = "Connection timed out during banner exchange"
    silence = Silence(node="a", last_step="", since_s=11.0, waited_s=11.0, via="ssh", exit=255, detail=words)
    (finding,) = silent.findings(Cluster(command="bench", run=Run(silent=[silence], dialled=[way])))
    assert ("is no sshd: it says '4fa2c1'" in finding.what) is bool(greeting)
