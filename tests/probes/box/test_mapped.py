"""Files of data that a process has in memory, and that were cut under it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ncclcheck.probes.box.mapped import MappedFiles
from ncclcheck.probes.box.processes import Process
from ncclcheck.probes.live.machine.proc import Proc


def test_a_file_that_is_shorter_than_what_was_mapped_is_named(tmp_path: Path) -> None:
    table, other = tmp_path / "table.bin", tmp_path / "other.bin"
    for path in (table, other):
        path.write_bytes(bytes(50_000))
    script = (
        f"import mmap; files = [open(path, 'r+b') for path in {[str(table), str(other)]}];"
        "kept = [mmap.mmap(file.fileno(), 0) for file in files]; print(1, flush=True); input()"
    )
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        files = MappedFiles(Proc())
        files.look([Process(child.pid, "1", os.getpid(), 0.0, rank=0)])
        assert str(table) not in files.cut(child.pid)
        os.truncate(table, 4096)
        assert files.cut(child.pid) == (
            f"{table} was cut while it was in its memory: 4096 bytes now, up to 53248 before"
        )
        assert str(table) not in files.cut(child.pid + 1)
        child.kill()
