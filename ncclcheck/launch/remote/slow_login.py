"""How long a login hangs between the key exchange and its first answer: `ssh -v` once more, by the clock.

There sshd looks up the account, and with UseDNS the name of the caller; LDAP, PAM and name servers that do not
answer show here and nowhere else. What comes before is the network's, what comes after the account's own shell's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ncclcheck.probes.machine import process

AFTER_S = 4.0  # a login takes a second, on a busy host two
_SLOW_S = 3.0  # s from which on a login is worth a finding; chosen
_WITHIN_S = 30.0  # s until a timed login is ended: chosen
_ASKED = "SSH2_MSG_SERVICE_ACCEPT received"
_ANSWERED = ("Authentications that can continue", "Authenticated to ")


class LoginWatch:
    """One login of `true` with -v."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], name: str) -> None:
        self._argv, self._env, self._name = argv, env, name
        self._asked = self._answered = 0.0
        threading.Thread(target=self._run, daemon=True, name="slow login").start()

    @property
    def seconds(self) -> float:
        """How long sshd looks at the login, up to now; 0 where it answers soon."""
        seconds = (self._answered or time.monotonic()) - self._asked
        return round(seconds, 1) if self._asked and seconds >= _SLOW_S else 0.0

    @property
    def words(self) -> str:
        """What is told of it by now; empty where sshd answers soon."""
        waits = f"its sshd takes {self.seconds:.0f} s and more between the key exchange and the login"
        return f"ncclcheck: {self._name}: {waits}" if self.seconds else ""

    def _run(self) -> None:
        with suppress(OSError, ValueError):
            child = process.start(self._argv, env=self._env)
            end = threading.Timer(_WITHIN_S, process.kill_tree, (child.pid,))
            end.daemon = True
            end.start()
            assert child.stderr is not None
            for line in child.stderr:
                self._look_at(line.decode(errors="backslashreplace"))
            child.wait(_WITHIN_S)
            end.cancel()

    def _look_at(self, line: str) -> None:
        if _ASKED in line:
            self._asked = time.monotonic()
        elif self._asked and not self._answered and any(words in line for words in _ANSWERED):
            self._answered = time.monotonic()
