"""PYTHONWARNINGS=error is the user's, and holds for their code; what our own calls of torch warn of ends no check.

`import torch` and forming the group are what every job does: there the setting ends ours as it ends theirs. What
comes after that we chose to call, and a job may never do it.
"""

from __future__ import annotations

import warnings

_NOT_THE_USERS = r"(torch|ncclcheck)\b"  # modules that a warning is put down to


def only_shown() -> None:
    """From now on warnings that are put down to torch or ncclcheck are printed and never raised."""
    warnings.filterwarnings("default", module=_NOT_THE_USERS)
