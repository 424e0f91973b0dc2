"""In which order a step calls torch's backward, clipping, GradScaler, zero_grad and optimizers."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ncclcheck.probes.dataloader.ours import users_line

_WATCHED = {
    "clip_grad_norm_": "clip",
    "clip_grad_value_": "clip",
    "unscale_": "unscale",
    "scale": "scale",
    "backward": "backward",
    "zero_grad": "zero",
}


class StepCalls:
    """What was called in one step, in order, by whatever name the user imported it. seeded_at: the user's line
    that set torch's seed last.
    """

    def __init__(self) -> None:
        self.called: list[str] = []
        self.seeded_at = ""

    def __call__(self, frame: FrameType, event: str, _given: Any) -> None:
        """As sys.setprofile wants it."""
        code = frame.f_code
        if event != "call" or f"{os.sep}torch{os.sep}" not in code.co_filename:
            return
        if code.co_name in _WATCHED:
            self.called.append(_WATCHED[code.co_name])
        elif code.co_name == "manual_seed":
            self.seeded_at = users_line()
        elif code.co_name == "__enter__" and code.co_filename.endswith("autocast_mode.py"):
            self.called.append("autocast")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """As long as it lasts."""

        def steps(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            self.called.append("step")

        before, handle = sys.getprofile(), register_optimizer_step_pre_hook(steps)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)
            handle.remove()

    def clipped_scaled(self) -> bool:
        """Whether a scaled loss came first, and clipping before unscale_."""
        if "scale" not in self.called or "clip" not in self.called:
            return False
        before = self.called[: self.called.index("clip")]
        return "scale" in before and "unscale" not in before

    def clipped(self) -> Literal["", "before", "after"]:
        """Where clipping does nothing: always before the backward pass of a step, or always after the step."""
        if "clip" not in self.called or "step" not in self.called or "backward" not in self.called:
            return ""
        if any("clip" in part for part in self._between()):
            return ""
        return "before" if self.called.index("clip") < self.called.index("step") else "after"

    def wiped(self) -> bool:
        """Whether zero_grad came between each backward pass and its step."""
        between = self._between()
        return bool(between) and all("zero" in part for part in between)

    def _between(self) -> list[list[str]]:
        """What was called between the last backward pass and the step of an optimizer, for each step."""
        calls, since = list[list[str]](), None
        for call in self.called:
            if call == "backward":
                since = list[str]()
            elif call == "step" and since is not None:
                calls.append(since)
                since = None
            elif since is not None:
                since.append(call)
        return calls
