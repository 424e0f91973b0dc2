"""`--from FILE`: judge a saved run again, on any laptop."""

from __future__ import annotations

from ncclcheck import finish
from ncclcheck.errors import UsageError
from ncclcheck.options import Options
from ncclcheck.reports import jsondoc

_MOST = 2**30


def judge_again(options: Options) -> int:
    """Judge the nodes, run and measurements of a saved file; its verdicts are never trusted. Raises UsageError."""
    assert options.from_file is not None
    try:
        with open(options.from_file, "rb") as file:
            data = file.read(_MOST)
    except OSError as error:
        raise UsageError(f"--from: {options.from_file} cannot be read: {error.strerror or error}") from None
    try:
        saved = jsondoc.decode(data, options.policy)
    except jsondoc.DocumentError as error:
        raise UsageError(f"--from: {options.from_file}: {error}") from None
    story = finish.Story(saved.started, saved.seconds, saved.stages)
    return finish.deliver(finish.make(saved.cluster, options, story), options)
