"""Write what is generated: docs/checks and docs/settings.md from the rules, and the JSON Schema from the types."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ncclcheck.reports import jsondoc, pages  # noqa: E402
from ncclcheck.reports.recommend.page import page as settings  # noqa: E402


def generated() -> dict[Path, str]:
    """Every generated file with its content."""
    checks = {ROOT / "docs/checks" / name: content for name, content in pages.documents().items()}
    schema = json.dumps(jsondoc.schema(), indent=1, sort_keys=True) + "\n"
    return {**checks, ROOT / "docs/settings.md": settings(), ROOT / "ncclcheck/reports/schema.json": schema}


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
