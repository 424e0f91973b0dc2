"""One call of NVML at a time, each with its answer or the reason why there is none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Fact = Any
ABSENT = {
    3,
    6,
    13,
    21,
    22,
    25,
    26,
}  # not supported, not found, no such function, no data, vGPU, version, deprecated
_DENIED = {4}
_TROUBLE = {15, 16}  # GPU is lost, reset required


def unread(kind: str, why: str) -> dict[str, str]:
    """An Unread as JSON."""
    return {"type": "unread", "kind": kind, "why": why}


class Trouble(Exception):
    """NVML cannot use this GPU at all."""


class AskedGpu:
    """One GPU, or NVML itself (`call` is what it is doing now), and what it has answered."""

    def __init__(self, nvml: Any, first: Mapping[str, Fact]) -> None:
        self.nvml = nvml
        self.answers: dict[str, Fact] = dict(first)
        self.call = ""
        self.thread = threading.Thread()

    def start(self, work: Callable[[AskedGpu], None]) -> None:
        """Do the work in a thread of its own; ctypes lets others run while NVML works."""
        self.thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
        self.thread.start()

    def _guarded(self, work: Callable[[AskedGpu], None]) -> None:
        try:
            work(self)
        except Trouble as trouble:
            self.answers["trouble"] = str(trouble)
        except Exception as error:
            self.answers["trouble"] = unread("broken", f"{self.call}: {type(error).__name__}: {error}")

    def ask(
        self, name: str, *arguments: Any, then: Callable[[Any], Fact] | None = None, codes: Mapping[int, Fact] = {}
    ) -> Fact:
        """One call, or why it has no answer; codes: errors that are one. Raises Trouble for the whole GPU."""
        self.call = name
        if not hasattr(self.nvml, name):
            return unread("absent", f"this pynvml has no {name}")
        try:
            value = getattr(self.nvml, name)(*arguments)
            return then(value) if then else value
        except self.nvml.NVMLError as error:
            code = getattr(error, "value", 999)
            return codes[code] if code in codes else self._refused(name, error)
        except Exception as error:
            return unread("broken", f"{name}: {type(error).__name__}: {error}")

    def _refused(self, name: str, error: Any) -> Fact:
        code = getattr(error, "value", 999)
        if code in _TROUBLE:
            raise Trouble(f"{error} ({name})")
        kind = "absent" if code in ABSENT else "denied" if code in _DENIED else "broken"
        return unread(kind, f"{name}: {error}")

    def first_of(self, names: Sequence[str], *arguments: Any, then: Callable[[Any], Fact] | None = None) -> Fact:
        """The answer of the first call that this driver has: newer names first."""
        answer: Fact = None
        for name in names:
            answer = self.ask(name, *arguments, then=then)
            if not (isinstance(answer, dict) and answer.get("kind") == "absent"):
                break
        return answer

    def wait(self, until: float) -> bool:
        """Wait for the call until `until` (time.monotonic); whether it has finished."""
        self.thread.join(max(0.0, until - time.monotonic()))
        return not self.thread.is_alive()


def word(words: tuple[str, ...], index: int) -> Fact:
    """The word of an enumeration; a number beyond it is no answer."""
    return words[index] if 0 <= index < len(words) else unread("broken", f"NVML answered {index}")
