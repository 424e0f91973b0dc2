"""One node's examiner of the user's dataset, as its agent sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ncclcheck.base import wire
from ncclcheck.node import agent_socket
from ncclcheck.probes.facts import Measurements, RankState
from ncclcheck.probes.machine import process


class Examination:
    """A running examiner. `heard` gets every record of it."""

    all_done = False
    scratch = ""

    def __init__(self, order: wire.Examine, folder: str, heard: agent_socket.Heard) -> None:
        self.log = f"{folder}/examiner.log"
        Path(folder, "plan.json").write_bytes(bytes(order.plan))
        agent_socket.listen(folder, heard)
        env = {**os.environ, agent_socket.RUN_VARIABLE: folder, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "ncclcheck.node.examiner"]
        with open(self.log, "wb") as log:
            self.child = process.start(command, env=env, cwd=folder, out=log, err=subprocess.STDOUT)

    def note(self, record: wire.RankReport | wire.StepNotice) -> None:
        """Nothing: an examiner has no ranks."""

    def looked_at(self) -> list[RankState]:
        """Nothing: an examiner has no ranks."""
        return []

    def exits(self) -> dict[int, int]:
        """Nothing: an examiner has no ranks."""
        return {}

    def proof(self) -> Measurements:
        """Nothing: the examiner sends its measurements itself."""
        return Measurements()
