"""`python -m ncclcheck`. The working directory, which `-m` puts first on the path, is the user's: taken off."""

import os
import sys
from contextlib import suppress

with suppress(FileNotFoundError):
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]

from ncclcheck.cli import main

if __name__ == "__main__":
    main()
