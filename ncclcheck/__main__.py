"""`python -m ncclcheck`. The working directory, which `-m` puts first on the path, is the user's: taken off.

Python's own modules come before what PYTHONPATH names, so that a queue.py there hides none of them from us.
"""

import os
import sys
from contextlib import suppress

with suppress(FileNotFoundError):
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
_own = os.path.dirname(os.__file__)
sys.path.sort(key=lambda folder: folder not in (_own, f"{_own}/lib-dynload"))

from ncclcheck.cli import main  # noqa: E402 - the path must be right first

if __name__ == "__main__":
    main()
