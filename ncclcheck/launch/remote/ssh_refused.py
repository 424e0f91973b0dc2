"""Why ssh was not let in, in its own words: the same once more with -v, of which the telling lines are kept.

Fingerprints and what a server's banner says are left out; the names of key files are not secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine import process

WITHIN_S = 5.0  # a login takes a second, on a busy host two
_YOUNG_S = 3 * 3600.0  # seconds; chosen: a clock that is further behind breaks more than ssh
_MOST_LINES = 6  # lines of ssh -v, and keys, that are evidence; chosen
_OFFERED = re.compile(r"^debug1: Offering public key: (?P<file>.+?) (?P<kind>[A-Z0-9]+(?:-[A-Z]+)*) SHA256:", re.M)
# The other side knows the public half, so what fails is to sign with the private one here.
_ACCEPTED = re.compile(r"^debug1: Server accepts key: (?P<file>.+?) [A-Z0-9]+(?:-[A-Z]+)* SHA256:", re.M)
_TELLING = re.compile(
    r"^(?:Unable to negotiate with .*|(?:debug1: )?(?:send_pubkey_test: no mutual signature algorithm.*"
    r"|Skipping \S+ key \S+ - corresponding \S+ not in .*)|Certificate invalid: .*|Load key .*"
    r"|sign_and_send_pubkey: .*|(?:kex|ssh)_exchange_identification: .*|Connection (?:closed|reset) by .*"
    r"|debug1: Remote: (?:Certificate|Ignored|Authentication|Bad|Your|User|Root|Login).*"
    r"|debug1: Authentications that can continue: .*|Authenticated to .*"
    r"|channel \d+: open failed: .*|stdio forwarding failed.*)$",
    re.MULTILINE,
)
_VALID = re.compile(r"^\s*Valid: (.+)$", re.MULTILINE)


def reasons(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """What ssh says with -v, a line each; empty where it tells nothing, or comes in this time."""
    output = process.run(argv, WITHIN_S, env=env)
    return "" if isinstance(output, Unread) or output.status != 255 else "\n".join(_lines(output.err, env))


def _lines(output: str, env: Mapping[str, str]) -> Iterator[str]:
    lines = list(dict.fromkeys(match[0].removeprefix("debug1: ") for match in _TELLING.finditer(output)))
    yield from (f"ssh -v: {line[:300]}" for line in lines[:_MOST_LINES])
    if "Authentications that can continue" not in output or "\nAuthenticated to " in output:
        return
    for match in _ACCEPTED.finditer(output):
        if _needs_a_passphrase(match["file"], env):
            yield f"ssh-keygen -y: {match['file']} cannot be read without its passphrase"
    offered = [(match["file"], match["kind"]) for match in _OFFERED.finditer(output)]
    keys = ", ".join(f"{file} ({kind})" for file, kind in offered[:_MOST_LINES])
    yield f"ssh -v: keys that were offered: {keys}" if keys else "ssh -v: no key was offered"
    for file, kind in offered[:_MOST_LINES]:
        if kind.endswith("-CERT") and (valid := _validity(file, env)):
            yield f"ssh-keygen -L: certificate {file} is valid {valid}"


def _needs_a_passphrase(file: str, env: Mapping[str, str]) -> bool:
    """Whether the private key cannot be read with an empty one; of a key of an agent there is no such file."""
    output = process.run(["ssh-keygen", "-y", "-P", "", "-f", file], WITHIN_S, env=env)
    return not isinstance(output, Unread) and output.status != 0 and "incorrect passphrase" in output.err


def _validity(file: str, env: Mapping[str, str]) -> str:
    """`from 2020-01-01T00:00:00 to 2021-01-01T00:00:00`, in local time; `forever`. One of today with its age."""
    output = process.run(["ssh-keygen", "-L", "-f", file], WITHIN_S, env=env)
    match = None if isinstance(output, Unread) else _VALID.search(output.out)
    return f"{match[1][:100]}{_age(match[1])}" if match else ""


def _age(valid: str) -> str:
    """`, for 13 min`, where it is valid by the clock here, but not for long: a clock that is behind refuses it."""
    with suppress(ValueError, IndexError):
        _, begun, _, ended = valid.split()
        now = datetime.now()
        seconds = (now - datetime.fromisoformat(begun)).total_seconds()
        if 0 <= seconds < _YOUNG_S and now < datetime.fromisoformat(ended):
            return f", for {seconds // 60:.0f} min"
    return ""
