"""Write what is generated: docs/checks and docs/settings.md from the rules, docs/log-failures.md from the list of
failures that logs were tried with, and the JSON Schema from the types.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ncclcheck.reports.judgement import jsondoc, pages  # noqa: E402
from ncclcheck.reports.recommend.page import page as settings  # noqa: E402


def generated() -> dict[Path, str]:
    """Every generated file with its content."""
    checks = {ROOT / "docs/checks" / name: content for name, content in pages.documents().items()}
    schema = json.dumps(jsondoc.schema(), indent=1, sort_keys=True) + "\n"
    failures = log_failures(ROOT / "benchmarks/log_modes")
    return {
        **checks,
        ROOT / "docs/settings.md": settings(),
        ROOT / "docs/log-failures.md": failures,
        ROOT / "ncclcheck/reports/schema.json": schema,
    }


_FAILURES = """\
# What logs can tell

Every failure that `ncclcheck logs` was tried with, and the check that names it; where there is none, the reason.
`python benchmarks/logs.py` counts how often the right one stands first.
"""
_FAMILIES = {
    "A": "Meeting: addresses, ports, rendezvous",
    "B": "RDMA",
    "C": "Within a node",
    "D": "The training program",
    "E": "The data loader",
    "F": "It runs, and is slow",
    "U": "How it was started",
}


def log_failures(folder: Path) -> str:
    """A table for each family of failures."""
    parts = [_FAILURES]
    for letter, title in _FAMILIES.items():
        modes = json.loads((folder / f"{letter}.json").read_text())
        rows = [f"| {one['name']} | {_named_by(one)} |" for one in modes.values()]
        parts.append("\n".join([f"## {title}", "", "| failure | named by |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _named_by(mode: dict[str, Any]) -> str:
    codes = ", ".join(f"[{code}](checks/{code}.md)" for code in mode["codes"])
    why = mode.get("why", "")
    return f"{codes}: {why}" if codes and why else codes or f"none: {why}"


def main() -> None:
    """Write all of them, and remove pages of rules that are no more."""
    files = generated()
    for page in (ROOT / "docs/checks").glob("*.md"):
        if page not in files:
            page.unlink()
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


if __name__ == "__main__":
    main()
