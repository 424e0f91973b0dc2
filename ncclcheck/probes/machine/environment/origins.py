"""Which file of this node sets a variable: what every login, and every start of Python, reads before a job."""

from __future__ import annotations

import os
import re
import site
import sysconfig
from collections.abc import Iterator, Mapping

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine.access import Machine

# In the order in which they are read; a folder stands for the files in it.
_OF_LOGINS = (
    "/etc/environment", "/etc/security/pam_env.conf", "/etc/profile", "/etc/profile.d", "/etc/bash.bashrc",
    "/etc/bashrc", "/etc/zshenv", "/etc/zsh/zshenv", "/etc/ssh/sshd_config", "/etc/ssh/sshd_config.d",
)  # fmt: skip
_OF_HOME = (".ssh/environment", ".pam_environment", ".bash_profile", ".profile", ".bashrc", ".zshenv")
_OF_PYTHON = ("sitecustomize.py", "usercustomize.py")
_MOST_FILES, _MOST_BYTES = 64, 2**16  # of a folder, and of a file: who sets variables does it near the top


def origins(machine: Machine, variables: Mapping[str, str], home: str) -> dict[str, str]:
    """FILE:LINE by variable, where some file has a line with its name and its value; the last one read counts."""
    wanted = {name: _pattern(name, value) for name, value in variables.items() if value}
    places: dict[str, str] = {}
    for path in _files(machine, home) if wanted else ():
        text = machine.read(path, _MOST_BYTES)
        if isinstance(text, Unread) or not any(name in text for name in wanted):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if not line.lstrip().startswith("#"):
                places |= {name: f"{path}:{number}" for name, pattern in wanted.items() if pattern.search(line)}
    return places


def _pattern(name: str, value: str) -> re.Pattern[str]:
    """The name, and after it this value, or one that the shell works out."""
    between = r"""["'\])]*[\s=,:]+(?:DEFAULT=)?["']?"""
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w){between}(?:{re.escape(value)}(?!\w)|[^\s;]*\$)")


def _files(machine: Machine, home: str) -> Iterator[str]:
    folders = [*site.getsitepackages(), sysconfig.get_path("purelib"), site.getusersitepackages()]
    for path in [*_OF_LOGINS, *(f"{home}/{name}" for name in _OF_HOME if home)]:
        yield from _in(machine, path, "")
    if prefix := os.environ.get("CONDA_PREFIX", ""):
        yield from _in(machine, f"{prefix}/etc/conda/activate.d", "")
    for folder in dict.fromkeys(folders):
        yield from _in(machine, folder, ".pth")
        yield from (path for name in _OF_PYTHON if machine.exists(path := f"{folder}/{name}"))


def _in(machine: Machine, path: str, end: str) -> Iterator[str]:
    """A file itself, or the files of a folder with this end of their names."""
    names = machine.names(path)
    if not isinstance(names, Unread):
        yield from [f"{path}/{name}" for name in sorted(names) if name.endswith(end)][:_MOST_FILES]
    elif machine.exists(path):
        yield path
