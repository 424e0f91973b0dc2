"""Write what is generated: docs/checks and docs/settings.md from the rules, docs/options.md from the table of
options, docs/log-failures.md from the list of failures that logs were tried with, the JSON Schema from the types.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ncclcheck.cli import cli  # noqa: E402
from ncclcheck.cli.common import GroupedOption  # noqa: E402
from ncclcheck.reports.judgement import jsondoc, pages  # noqa: E402
from ncclcheck.reports.recommend.page import page as settings  # noqa: E402
from ncclcheck.run.plan import config  # noqa: E402


def generated() -> dict[Path, str]:
    """Every generated file with its content."""
    checks = {ROOT / "docs/checks" / name: content for name, content in pages.documents().items()}
    schema = json.dumps(jsondoc.schema(), indent=1, sort_keys=True) + "\n"
    failures = log_failures(ROOT / "benchmarks/log_modes")
    return {
        **checks,
        ROOT / "docs/settings.md": settings(),
        ROOT / "docs/log-failures.md": failures,
        ROOT / "docs/options.md": options(),
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
        rows = [f"| {mode['name']} | {_named_by(mode)} |" for mode in modes.values()]
        parts.append("\n".join([f"## {title}", "", "| failure | named by |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


_OPTIONS = """\
# Options

Every option is a variable too: `--strict` is `NCCLCHECK_STRICT=1`; those without one say so. Options with a key
may stand in the [site file](security.md#the-site-file), at its top for all commands, or in the table of one of
TABLES. `env` has the common options alone; for each command its own follow, and those that mean something else.
"""


def options() -> str:
    """A table for each command, the common options first."""
    shown: dict[str, tuple[str, str, str]] = {}
    parts = [_OPTIONS.replace("TABLES", ", ".join(config.TABLES))]
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        own = [param for param in command.params if isinstance(param, GroupedOption)] if command else []
        rows = {max(option.opts, key=len): _option_cells(option) for option in own}
        new = [_row(*cells) for option, cells in rows.items() if shown.get(option) != cells]
        shown |= rows if name == "env" else {}
        title = "Common options" if name == "env" else f"`{name}`"
        if new:
            parts.append("\n".join([f"## {title}", "", "| option | is | site file |", "|---|---|---|", *new, ""]))
    return "\n".join(parts)


def _option_cells(option: GroupedOption) -> tuple[str, str, str]:
    words = "|".join(option.type.choices) if isinstance(option.type, click.Choice) else ""
    typed = " ".join(filter(None, [max(option.opts, key=len), option.metavar or words]))
    default = f"  [default: {option.default}]" if option.show_default else ""
    no_variable = "" if option.envvar else "; no variable"
    key = f"`{(option.name or '').replace('_', '-')}`" if option.name in config.KEYS else ""
    return f"`{typed}`", f"{option.help}{default}{no_variable}".replace("  [", " ["), key


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


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
