"""The site: `sphinx-build -W docs build/site`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck import __version__

project = "ncclcheck"
version = release = __version__
extensions = ["myst_parser"]
exclude_patterns = ["__pycache__"]
myst_heading_anchors = 3
nitpicky = True
html_theme = "furo"
html_title = f"ncclcheck {version}"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False


def setup(app: Any) -> None:
    """One page a check: their index leads to them, two hundred lines in the margin of every page would not."""
    app.connect("source-read", _out_of_the_margin)


def _out_of_the_margin(_: Any, name: str, source: list[str]) -> None:
    if name.startswith("checks/") and name != "checks/index":
        source[0] = f"---\norphan: true\n---\n{source[0]}"
