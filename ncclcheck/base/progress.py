"""Progress on stderr: one rewritten line on a terminal, one line a stage elsewhere, nothing with --quiet."""

from __future__ import annotations

import contextlib
import sys
import time

from ncclcheck.probes.facts.guard.secrets import masked
from ncclcheck.reports.text.words.visible import in_line


class Progress:
    """Says what is being done and for how long; never on stdout, and never raises on a closed stderr."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.tty = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._started = time.monotonic()
        self._shown = False

    def stage(self, text: str) -> None:
        """A stage begins."""
        self._started = time.monotonic()
        if self.tty:
            self._rewrite(text)
        elif not self.quiet:
            self._write(_shown(text) + " ...\n")

    def step(self, text: str) -> None:
        """A step within the stage; shown on a terminal only."""
        if self.tty:
            self._rewrite(f"{text}   {time.monotonic() - self._started:.0f} s")

    @property
    def patience_s(self) -> float:
        """How often one waits before it is said again that nothing moves: a line that stays is said less often."""
        return 10.0 if self.tty else 30.0

    def waiting(self, text: str) -> None:
        """Nothing moves: rewritten on a terminal, a line elsewhere."""
        if self.tty:
            self._rewrite(text)
        elif not self.quiet:
            self._write(_shown(text) + "\n")

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        if not self.quiet:
            self._write(_shown(text) + "\n")

    def clear(self) -> None:
        """Wipe the rewritten line, before anything else is printed."""
        if self._shown:
            self._write("\r\x1b[K")
            self._shown = False

    def _rewrite(self, text: str) -> None:
        self._write("\r\x1b[K" + _shown(text)[:110])
        self._shown = True

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text)
            sys.stderr.flush()


def complain(message: str) -> None:
    """One line on stderr, if there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"ncclcheck: {_shown(message)}\n")


def _shown(words: str) -> str:
    """What others said goes to a terminal in one line, without control characters and without secrets."""
    return in_line(masked(" ".join(words.split())))
