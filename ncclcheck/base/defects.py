"""Whether an exception in a rank is a defect of ncclcheck, and not a fault of the node, of torch or of NCCL."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Sequence
from traceback import FrameSummary

import ncclcheck
from ncclcheck.base import raised

# What wrong code raises, ours or a torch API that this version of torch does not have. What torch, gloo and NCCL
# say of a machine is a RuntimeError or an OSError; an ImportError is an installation's.
_OF_CODE = (AttributeError, TypeError, NameError, LookupError, AssertionError, NotImplementedError)
_OURS = os.path.dirname(os.path.abspath(ncclcheck.__file__)) + os.sep
# Lines of the training that hand the user's objects over, or use what these gave: what is raised there, without a
# line of the user's, may be for what he gave. `raise` says so itself.
_HANDS_OVER = re.compile(
    r"^raise\b|model\(|loss|step\(|batch|next\(|iter\(|backward|state_dict|\.to\(|given|optimizer|dataset|loader|"
    r"collate|sampler|input|output|target"
)
_TRAINING = os.path.join(_OURS, "probes", "training") + os.sep
# torch/distributed/c10d_logger.py: the decorator around each collective, where a wrong argument is noticed.
_DECORATOR = os.path.join("torch", "distributed", "c10d_logger.py")


def place(error: BaseException, *, users_code: Callable[[], bool]) -> str:
    """`probes/job/board.py:40`, the line of ncclcheck that raised; empty where it may be somebody else's fault.

    users_code: whether the training runs the user's own model, data or loss, which may hand our code what it
    cannot use. It is asked only of an error in the training, at a line where that can be.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _decorates(frame)]
    if not isinstance(error, _OF_CODE) or not frames or not frames[-1].filename.startswith(_OURS):
        return ""
    if _in_training(frames) and _may_be_handed(frames) and users_code():
        return ""
    return f"{frames[-1].filename.removeprefix(_OURS)}:{frames[-1].lineno}"


def _decorates(frame: FrameSummary) -> bool:
    return frame.filename.endswith(_DECORATOR)


def _may_be_handed(frames: Sequence[FrameSummary]) -> bool:
    """Whether the user's code led here, or this line of ours uses what he gave."""
    users = any(not raised.is_installed(frame.filename) for frame in frames)
    return users or bool(_HANDS_OVER.search(frames[-1].line or ""))


def _in_training(frames: Sequence[FrameSummary]) -> bool:
    return any(frame.filename.startswith(_TRAINING) for frame in frames)
