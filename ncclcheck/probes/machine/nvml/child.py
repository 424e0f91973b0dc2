"""Asks NVML and prints one JSON object: `python -I -S -c START FOLDER FOLDER SECONDS`.

NVML can hang, crash or lie: every GPU has its own thread, and what has no answer after SECONDS is said with the
call that it hangs in.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from ncclcheck.probes.machine.nvml.asked import AskedGpu, unread
from ncclcheck.probes.machine.nvml.card import card


def opening(asked: AskedGpu) -> None:
    """Initialise, and get a handle of each GPU, or what NVML says instead."""
    nvml = asked.nvml
    asked.call = "nvmlInit"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        asked.answers.update(error=str(error), code=getattr(error, "value", 999))
        return
    asked.answers["driver"] = asked.ask("nvmlSystemGetDriverVersion")
    count = asked.ask("nvmlDeviceGetCount")
    if isinstance(count, dict):
        asked.answers.update(error=count["why"], code=999)
        return
    handles: list[Any] = []
    for index in range(min(count, 256)):
        asked.call = f"nvmlDeviceGetHandleByIndex({index})"
        try:
            handles.append(nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as error:
            handles.append(str(error))
    asked.answers["handles"] = handles


def main() -> None:
    """Ask, wait no longer than SECONDS, print, and leave whatever still hangs behind."""
    until = time.monotonic() + float(sys.argv[-1])
    import pynvml  # noqa: PLC0415 - its folder is only known now

    first = AskedGpu(pynvml, {})
    first.start(opening)
    if not first.wait(until):
        print(json.dumps({"hung": first.call}), flush=True)
        os._exit(0)
    handles = first.answers.pop("handles", [])
    cards = [AskedGpu(pynvml, {"name": f"GPU {index}", "index": index}) for index in range(len(handles))]
    for index, query in enumerate(cards):
        query.start(lambda asked, index=index: card(asked, index, handles))  # type: ignore[misc]
    for query in cards:
        if not query.wait(until):
            query.answers["trouble"] = unread("timed_out", f"{query.call} gave no answer in {sys.argv[-1]} s")
    answer = {**first.answers, "cards": [dict(asked.answers) for asked in cards]}
    sys.stdout.buffer.write(json.dumps(answer).encode(errors="backslashreplace"))
    sys.stdout.flush()
    os._exit(0)
