"""How an agent begins elsewhere: /bin/sh finds the interpreter, that finds ncclcheck, and becomes the agent.

Everything crosses the shells of the way as base64, so nothing in it can mean anything to them. enter() is
sent as text, for there may be no ncclcheck on the other side: it uses the standard library alone.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import sys
import zlib
from collections.abc import Mapping, Sequence

from ncclcheck import __version__
from ncclcheck.base import wire
from ncclcheck.base.errors import UsageError

_MOST = 100_000  # one argument may have 128 KiB: execve(2), MAX_ARG_STRLEN
_WORD = 800  # an old csh takes 1,024 bytes a word
_SH = (
    'echo; echo "ncclcheck-step $0 shell $$"; if [ -x "$1" ]; then exec "$@"; fi; '
    'echo "ncclcheck: ${SLURMD_NODENAME:-$0}: no interpreter $1 there" >&2; exit 127'
)
# Python's own modules first: a user's queue.py in PYTHONPATH or in the working directory shall not hide them here.
_OWN_FIRST = (
    "import os,sys;s=os.path.dirname(os.__file__);"
    'sys.path=sorted(filter(None,sys.path),key=lambda p:p not in(s,s+"/lib-dynload"));'
)
_BOOT = (
    f'{_OWN_FIRST}import base64,json,zlib;"ncclcheck";'
    'd=json.loads(zlib.decompress(base64.b64decode("".join(sys.argv[1:])+"==")));'
    'exec(d["code"],d);d["enter"](**d["call"])'
)
AGENT = f"{_OWN_FIRST}from ncclcheck.node.agent import main;main()"
RELAY = f"{_OWN_FIRST}from ncclcheck.launch.remote.relay import main;main()"
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:@%,")


def command(
    python: str, name: str, env: Mapping[str, str], cwd: str, options: Sequence[str], program: str = AGENT
) -> list[str]:
    """The words that become the agent, or another program of ours. Raises UsageError.

    name: the node's, "" to ask SLURMD_NODENAME there.
    """
    call = {
        "python": python,
        "name": name,
        "env": dict(env),
        "cwd": cwd,
        "spoken": [wire.PROTOCOL, __version__],
        "argv": ["-c", program, *options],
    }
    code = "from __future__ import annotations\nimport os, sys\n" + inspect.getsource(enter)
    packed = base64.b64encode(zlib.compress(json.dumps({"code": code, "call": call}).encode(), 9)).decode()
    if len(packed) > _MOST:
        largest = max(env, key=lambda variable: len(env[variable]))
        raise UsageError(f"the environment is too large to hand to other nodes; its largest variable is {largest}")
    payload = packed.rstrip("=")
    words = [payload[at : at + _WORD] for at in range(0, len(payload), _WORD)]
    return ["/bin/sh", "-c", _SH, name or "srun", python, "-c", _BOOT, *words]


def enter(python: str, name: str, env: dict[str, str], cwd: str, spoken: tuple[int, str], argv: list[str]) -> None:
    """On the other side: take over environment and working directory, look for ncclcheck, become the agent."""
    name = name or os.environ.get("SLURMD_NODENAME", "this node")
    os.write(1, f"\nncclcheck-step {name} python {os.getpid()}\n".encode("utf-8", "surrogateescape"))
    for variable in {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH"} & env.keys():
        given = env[variable].split(":")  # what the login shell here sets, a job that comes by ssh has too
        more = [part for part in os.environ.get(variable, "").split(":") if part and part not in given]
        env[variable] = ":".join([*given, *more])
    for variable, value in env.items():
        os.environb[variable.encode("utf-8", "surrogateescape")] = value.encode("utf-8", "surrogateescape")
    home = os.path.dirname(os.__file__)
    own = [part for part in sys.path if part in (home, f"{home}/lib-dynload")]
    given = [part for part in os.environ.get("PYTHONPATH", "").split(":") if part]
    sys.path[:] = [*own, *given, *(part for part in sys.path if part not in own)]
    try:
        import ncclcheck  # noqa: PLC0415
        from ncclcheck.base import wire  # noqa: PLC0415

        other = (wire.PROTOCOL, ncclcheck.__version__)
    except Exception as error:
        import resource  # noqa: PLC0415

        usual = {"AS": 2**31, "DATA": 2**31, "NOFILE": 64, "NPROC": 64, "FSIZE": 2**20, "STACK": 2**20, "CPU": 60}
        set_to = {limit: resource.getrlimit(getattr(resource, f"RLIMIT_{limit}"))[0] for limit in usual}
        tight = [f"RLIMIT_{limit} {value}" for limit, value in set_to.items() if 0 <= value < usual[limit]]
        limits = f"; tight limits: {', '.join(tight)}" if tight else ""
        sys.exit(f"ncclcheck: {name}: no ncclcheck {spoken[1]} there that {python} can import: {error}{limits}")
    os.write(1, f"ncclcheck-step {name} imported {os.getpid()}\n".encode("utf-8", "surrogateescape"))
    if other[0] != spoken[0]:
        sys.exit(
            f"ncclcheck: {name}: ncclcheck {other[1]} there speaks protocol {other[0]}, "
            f"{spoken[1]} here speaks {spoken[0]}"
        )
    try:
        os.chdir(cwd.encode("utf-8", "surrogateescape"))
    except OSError:
        os.chdir("/")
    os.execv(python, [word.encode("utf-8", "surrogateescape") for word in [python, *argv]])


def quote(word: str) -> str:
    """A word as sh, bash, zsh, fish and csh all read it. Raises UsageError for what one of them would change."""
    if word and _SAFE.issuperset(word):
        return word
    if any(letter in "\\!" or not letter.isprintable() for letter in word):
        raise UsageError(f"{word[:80]!r} cannot cross a remote shell unchanged; remove \\, ! and line ends")
    return "'" + word.replace("'", "'\"'\"'") + "'"
