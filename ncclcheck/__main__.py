"""`python -m ncclcheck`. The working directory, which `-m` puts first, is the user's: nothing is imported from it."""

import sys

if sys.path and sys.path[0] in ("", __import__("os").getcwd()):
    del sys.path[0]

from ncclcheck.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
