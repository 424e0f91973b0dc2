"""Recorded machines for tests: files under a folder, as `--sysroot` reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ncclcheck.probes.machine.access import Machine

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(os.environ.get("NCCLCHECK_RECORDED", ROOT.parent / "shared/data/recorded"))
needs_recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason="no recordings of real machines here")


def tree(folder: Path, files: Mapping[str, str | bytes], **asked: object) -> Machine:
    """A machine with these files; a text that starts with "-> " is a link; `asked` is what system calls said."""
    for name, content in files.items():
        path = folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content.startswith("-> "):
            path.symlink_to(content[3:])
        else:
            path.write_text(content)
    for name, value in asked.items():
        path = folder / ".ncclcheck" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value))
    return Machine(str(folder), recorded=True)
