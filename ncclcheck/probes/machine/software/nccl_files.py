"""The files that configure NCCL: nccl.conf as NCCL parses it, and lines in login files."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Mapping

from ncclcheck.probes.facts import ConfFile, ConfLine, StrayLine, Unread
from ncclcheck.probes.machine.access import Machine

Version = tuple[int, ...]

# NCCL that reads NCCL_CONF_FILE. Source: NVIDIA/nccl src/misc/param.cc
_CONF_FILE_VARIABLE_SINCE: Version = (2, 23)
# NCCL that takes $HOME; before, the home of the password database
_HOME_FROM_ENVIRONMENT_SINCE: Version = (2, 30, 3)
# bytes: NCCL's buffers of 1024 with their end. Source: NVIDIA/nccl src/misc/param.cc
# bytes: NCCL's buffers of 1024 with their end. Source: NVIDIA/nccl src/misc/param.cc
_MOST_NAME = _MOST_VALUE = 1023
_ASSIGNMENT = re.compile(r"\s*(?:export\s+|declare\s+-x\s+)?(NCCL_[A-Z0-9_]+)=(.*)")


def conf_files(machine: Machine, env: Mapping[str, str], version: Version | None) -> list[ConfFile]:
    """The files that this NCCL reads, strongest first; a missing one is left out, unless the user named it."""
    files: list[ConfFile] = []
    for path in _paths(machine, env, version):
        text = machine.read(path)
        if isinstance(text, Unread) and text.kind == "absent" and path != env.get("NCCL_CONF_FILE"):
            continue
        lines = text if isinstance(text, Unread) else parse_conf(text)
        files.append(ConfFile(path=path, lines=lines))
    return files


def _paths(machine: Machine, env: Mapping[str, str], version: Version | None) -> Iterator[str]:
    named = env.get("NCCL_CONF_FILE", "")
    if named and (version is None or version >= _CONF_FILE_VARIABLE_SINCE):
        yield named
    elif home := _home(machine, env, version):
        yield f"{home}/.nccl.conf"
    yield "/etc/nccl.conf"


def _home(machine: Machine, env: Mapping[str, str], version: Version | None) -> str:
    if version is None or version >= _HOME_FROM_ENVIRONMENT_SINCE:
        return env.get("HOME", "")
    entry = machine.ask("home", str, lambda: pwd.getpwuid(os.getuid()).pw_dir)
    return "" if isinstance(entry, Unread) else entry


def parse_conf(text: str) -> list[ConfLine]:
    """NCCL's grammar: `#` in the first column is a comment, the first `=` splits, nothing is trimmed."""
    lines: list[ConfLine] = []
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.partition("\0")[0].partition("=")
        if equals and not line.startswith("#"):
            lines.append(ConfLine(line=number, name=name[:_MOST_NAME], value=value[:_MOST_VALUE]))
    return lines


def stray_lines(machine: Machine, env: Mapping[str, str]) -> list[StrayLine]:
    """NCCL_* assignments in the files that a login shell reads."""
    lines: list[StrayLine] = []
    for path in _login_files(machine, env):
        text = machine.read(path)
        for number, line in enumerate("" if isinstance(text, Unread) else text.split("\n"), 1):
            if match := _ASSIGNMENT.match(line):
                name, value = match[1], match[2].strip().strip("'\"")[:200]
                lines.append(StrayLine(path=path, line=number, name=name, value=value, reached=name in env))
    return lines


def _login_files(machine: Machine, env: Mapping[str, str]) -> Iterator[str]:
    yield from ("/etc/environment", "/etc/profile")
    scripts = machine.names("/etc/profile.d")
    for name in [] if isinstance(scripts, Unread) else scripts:
        if name.endswith(".sh"):
            yield f"/etc/profile.d/{name}"
    if home := env.get("HOME", ""):
        yield from (f"{home}/{name}" for name in (".bashrc", ".bash_profile", ".profile"))
