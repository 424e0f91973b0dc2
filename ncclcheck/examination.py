"""One node's examiner of the user's dataset, as its agent sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ncclcheck import ears, wire
from ncclcheck.probes import process
from ncclcheck.probes.facts import Measurements, RankState


class Examination:
    """A running examiner. `heard` gets every record of it."""

    all_done = False
    scratch = ""

    def __init__(self, order: wire.Examine, folder: str, heard: ears.Heard) -> None:
        self.log = f"{folder}/examiner.log"
        Path(folder, "plan.json").write_bytes(bytes(order.plan))
        ears.listen(folder, heard)
        env = {**os.environ, ears.RUN_VARIABLE: folder, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "ncclcheck.examiner"]
        with open(self.log, "wb") as log:
            self.child = process.start(command, env=env, cwd=folder, out=log, err=subprocess.STDOUT)

    def note(self, record: wire.Rank | wire.Step) -> None:
        """It has no ranks."""

    def looked_at(self) -> list[RankState]:
        """It has no ranks."""
        return []

    def exits(self) -> dict[int, int]:
        """It has no ranks."""
        return {}

    def proof(self) -> Measurements:
        """It tells all by itself."""
        return Measurements()
