"""DDP's exception of parameters that got no gradient in the step before, with their names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from torch import nn

UNREDUCED = "Expected to have finished reduction"
_NUMBERS = re.compile(r"Parameter indices which did not receive grad for rank (\d+): ([\d ]+)")
_MOST = 8  # names of parameters, the rest is counted: chosen


@contextlib.contextmanager
def named(model: nn.Module) -> Iterator[None]:
    """As long as it lasts, an exception of DDP with numbers of this model's parameters has their names as well, as
    torch writes them with TORCH_DISTRIBUTED_DEBUG=INFO.
    """
    try:
        yield
    except RuntimeError as error:
        if (numbers := _NUMBERS.search(str(error))) and UNREDUCED in str(error):
            trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
            unreduced = [trained[int(number)] for number in numbers[2].split() if int(number) < len(trained)]
            more = f" and {len(unreduced) - _MOST} more" if len(unreduced) > _MOST else ""
            first = str(error).partition(". ")[0]
            names = ", ".join(unreduced[:_MOST]) + more
            missing = f"{names} got no gradient on rank {numbers[1]} in the step before"
            error.args = (f"{first}: {missing}. {numbers[0]}",)
        raise
