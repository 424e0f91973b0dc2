"""How long a report on a large cluster takes, how much memory, and how long what it prints is.

    python benchmarks/reporting.py [--nodes 1000] [--forms text,short,html]

The nodes are DGX-like ones made from a recorded machine (tests/helpers/dgx.py), three of them broken. Saved as
`--save` does it, read again by `ncclcheck report`, judged and printed, as a person does it. CPU time and the most
memory of the child, so that neighbours on the machine count little. Targets at 10,000 nodes: 20 s, 1 GB, 200 lines
of text, 5 MB of HTML, a saved file of 20 MB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck.reports.judgement import jsondoc
from tests.conftest import ROOT
from tests.helpers import dgx

_FORMS = ("text", "short", "json", "html")


def main() -> None:
    """Print a line for each form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--forms", default=",".join(_FORMS), help="which of text,short,json,html (default: all)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "saved.json"
        saved.write_bytes(b"".join(jsondoc.saved(dgx.unjudged(asked.nodes))))
        print(f"{asked.nodes} nodes, {saved.stat().st_size / 1e6:.1f} MB saved without verdicts")
        for form in asked.forms.split(","):
            _measure(form, saved, Path(folder))


def _measure(form: str, saved: Path, folder: Path) -> None:
    """Run `ncclcheck report` once and print what it took."""
    options = ["--html", str(folder / "a.html"), "-o", "short"] if form == "html" else ["-o", form]
    out = folder / "out"
    with out.open("wb") as file:
        command = [sys.executable, "-m", "ncclcheck", "report", str(saved), *options]
        child = subprocess.Popen(command, stdout=file, cwd=ROOT)
        _, status, used = os.wait4(child.pid, 0)
    shown = folder / "a.html" if form == "html" else out
    lines = sum(1 for _ in shown.open("rb"))
    print(
        f"{form:6} exit {os.waitstatus_to_exitcode(status)}, {used.ru_utime + used.ru_stime:6.1f} s of CPU, "
        f"{used.ru_maxrss / 1e3:6.0f} MB, {lines:6} lines, {shown.stat().st_size / 1e6:.2f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
