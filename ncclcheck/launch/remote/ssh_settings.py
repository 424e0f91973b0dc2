"""Whither the user's settings of ssh lead for a host: `ssh -G` tells it, and nothing is connected."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import socket
import stat
from collections.abc import Mapping, Sequence

from ncclcheck.probes.facts import Dialled, Unread, replace
from ncclcheck.probes.machine import process
from ncclcheck.probes.machine.net.addresses import unanswered_on

_WITHIN_S = 2.0  # 10 ms by itself; Match exec and CanonicalizeHostname of the user's may wait for something
_AGENT_S = 1.5  # an agent lists its keys in milliseconds; one forwarded over a slow line in less than a second
_GREETING_S = 1.5  # an sshd greets in milliseconds, and a tarpit by design after seconds; chosen
_WHICH_KEYS = b"\0\0\0\1\x0b"  # SSH_AGENTC_REQUEST_IDENTITIES. Source: draft-miller-ssh-agent, section 4.4
_MOST_ADDRESSES = 8  # addresses of a host, and options, that are shown; chosen
_MOST_CHARACTERS = 200  # of an option: a list of ciphers is longer; chosen
# Options that keep a login from working, and hold no secret (ssh_config(5)).
_DECIDE = (
    "addressfamily", "bindaddress", "bindinterface", "ciphers", "macs", "kexalgorithms", "hostkeyalgorithms",
    "pubkeyacceptedalgorithms", "pubkeyauthentication", "preferredauthentications", "remotecommand", "requesttty",
    "sessiontype", "identityagent", "identitiesonly", "stdinnull", "forkafterauthentication",
)  # fmt: skip


def dialled(ssh: Sequence[str], target: str, node: str, env: Mapping[str, str]) -> Dialled | None:
    """What ssh would do for this host; None where it does not tell. ssh: the program and its options."""
    output = process.run([ssh[0], "-G", *ssh[1:], "--", target], _WITHIN_S, env=env)
    if isinstance(output, Unread) or output.status:
        return None
    words = dict(line.split(" ", 1) for line in output.out.splitlines() if " " in line)
    host, path = words.get("hostname", target), words.get("controlpath", "none")
    addresses, by = _addresses(host, env), _by(words, env)
    return Dialled(
        node=node,
        host=host,
        addresses=addresses,
        user=words.get("user", ""),
        port=int(words["port"]) if words.get("port", "").isdecimal() else 22,
        by=by,
        no_arp="" if by else unanswered_on(addresses[:1]),
        master=path if _is_socket(path) else "",
        own=_own(ssh, target, output.out, env),
        greeting="" if by or path != "none" else _strange_greeting(addresses[:1], words.get("port", "")),
        silent_agent=_silent_agent(words.get("identityagent", "SSH_AUTH_SOCK"), env.get("SSH_AUTH_SOCK", "")),
        silent_master=_is_socket(path) and _hangs([ssh[0], "-O", "check", *ssh[1:], "--", target], env),
    )


def _strange_greeting(addresses: Sequence[str], port: str) -> str:
    """The first words at ssh's port that are not ssh's: a tarpit, or another service. Source: RFC 4253, 4.2."""
    greeting = b""
    try:
        with socket.create_connection((addresses[0], int(port)), timeout=_GREETING_S) as to:
            greeting = to.recv(_MOST_CHARACTERS)
    except (OSError, ValueError, LookupError):
        return ""
    text = greeting.decode(errors="replace").strip()
    return "" if text.startswith("SSH-") else "".join(filter(str.isprintable, text))[:60]


def _silent_agent(option: str, variable: str) -> str:
    """The socket of the agent that ssh asks for keys, where it does not answer; ssh goes on if it refuses."""
    path = os.path.expanduser(variable if option == "SSH_AUTH_SOCK" else option)
    return path if _is_socket(path) and _is_mute(path) else ""


@functools.lru_cache(maxsize=8)  # it is one for all hosts, and is waited for once
def _is_mute(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(_AGENT_S)
        try:
            agent.connect(path)
            agent.sendall(_WHICH_KEYS)
            agent.recv(4)
        except (TimeoutError, BlockingIOError):
            return True
        except OSError:
            return False
    return False


def port_now(to: Dialled, seconds: float) -> Dialled:
    """With what a connection to its port comes to; not where a program or an earlier ssh leads there."""
    if to.by or to.master or not to.addresses:
        return to
    try:
        socket.create_connection((to.addresses[0], to.port), timeout=seconds).close()
    except ConnectionRefusedError:
        return replace(to, port_now="refused")
    except OSError:
        return replace(to, port_now="no answer")
    return replace(to, port_now="open")


def _own(ssh: Sequence[str], target: str, settings: str, env: Mapping[str, str]) -> list[str]:
    """What files or options here have set, beside what ssh does by itself."""
    plain = process.run([ssh[0], "-G", "-F", "none", "--", target], _WITHIN_S, env=env)
    usual = set() if isinstance(plain, Unread) or plain.status else set(plain.out.splitlines())
    lines = [line for line in settings.splitlines() if line.partition(" ")[0] in _DECIDE and line not in usual]
    return [line[:_MOST_CHARACTERS] for line in lines][:_MOST_ADDRESSES] if usual else []


def _by(words: Mapping[str, str], env: Mapping[str, str]) -> str:
    """The jump host, or the program of a ProxyCommand alone: its arguments may hold a secret."""
    if (jump := words.get("proxyjump", "none")) != "none":
        return f"ProxyJump {jump}"
    command = words.get("proxycommand", "none")
    if command == "none":
        return ""
    try:
        parts = shlex.split(command)
    except ValueError:
        parts = command.split()
    program = next((part for part in parts if part != "exec"), "")
    path = shutil.which(program, path=env.get("PATH"))
    return f"ProxyCommand {os.path.basename(program)}" + ("" if path else ", which is not installed here")


def _addresses(host: str, env: Mapping[str, str]) -> list[str]:
    """By a child of its own: a name service that hangs must not hold us up."""
    output = process.run(["getent", "ahosts", host], _WITHIN_S, env=env)
    lines = [] if isinstance(output, Unread) else output.out.splitlines()
    return list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))[:_MOST_ADDRESSES]


def _is_socket(path: str) -> bool:
    try:
        return path != "none" and stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _hangs(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether an earlier ssh that holds the connection open is there and does not answer."""
    output = process.run(argv, _WITHIN_S, env=env)
    return isinstance(output, Unread) and output.kind == "timed_out"
