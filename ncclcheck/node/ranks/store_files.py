"""The files that torch's FileStore makes for the jobs of a run: a job that is killed leaves its own behind."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from ncclcheck.probes.facts import InitSeen

_REMOVED_WITHIN_S = 1.0  # s; a file server that is gone holds nobody for longer; chosen


class StoreFiles:
    """Those that were not there before the run: what stood there already is somebody's own, and stays."""

    def __init__(self) -> None:
        self._new = ""
        self._made: list[str] = []

    def tried(self, seen: InitSeen) -> None:
        """Note the file that this run may make: `seen` is the trial of its path before any job."""
        if seen.file is not None:
            self._new = "" if seen.file.kind or seen.file.problem else seen.file.path

    def begin(self, url: str) -> None:
        """A job on this node opens its store there: at the path that was tried, or at that with a number."""
        path = url.removeprefix("file://")
        if self._new and (path == self._new or path.startswith(f"{self._new}.")):
            self._made.append(path)

    def remove(self) -> None:
        """Remove the files that jobs of this run made; to be called when no rank uses them."""
        for path in self._made:
            remover = threading.Thread(target=_unlink, args=(path,), daemon=True, name="store file")
            remover.start()
            remover.join(_REMOVED_WITHIN_S)


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
