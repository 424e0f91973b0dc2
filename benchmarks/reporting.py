"""How long a report on a large cluster takes, and how many lines it has.

    python benchmarks/reporting.py [--nodes 1000]

The nodes are DGX-like ones made from a recorded machine (tests/helpers/dgx.py). Saved, read again by
`ncclcheck report`, judged and printed, as a person does it. CPU time of the child, so that neighbours on the
machine count little.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck.reports.judgement import jsondoc
from tests.conftest import ROOT
from tests.helpers import dgx

_FORMS = ("text", "short", "json")


def main() -> None:
    """Print a line for each form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "saved.json"
        saved.write_bytes(jsondoc.encode(dgx.document(asked.nodes)))
        print(f"{asked.nodes} nodes, {saved.stat().st_size / 1e6:.0f} MB")
        for form in _FORMS:
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            command = [sys.executable, "-m", "ncclcheck", "report", str(saved), "-o", form]
            done = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=600, check=False)
            seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
            lines = len(done.stdout.splitlines())
            print(f"{form:6} exit {done.returncode}, {lines:6} lines, {seconds:5.1f} s of CPU")


if __name__ == "__main__":
    main()
