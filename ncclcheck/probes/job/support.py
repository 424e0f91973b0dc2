"""Whether this torch and this backend have an operation, found by calling it with next to nothing."""

from __future__ import annotations

import re

import torch

from ncclcheck.probes.job.context import Op
from ncclcheck.probes.job.operations import OPERATIONS, Build, Ranks
from ncclcheck.probes.job.timing import RankPeers
from ncclcheck.probes.job.verify.contributions import undefined

_NETWORK = re.compile(
    r"connect|timed? ?out|socket|(reset|closed) by peer|remote (process|error)|system error|unreachable|abort",
    re.IGNORECASE,
)


def find_form(name: Op, ranks: Ranks, peers: RankPeers, backend: str) -> Build | str:
    """The form of the operation that works on all ranks, or in plain words why there is none.

    Every rank gets the same answer: the exchange behind it goes over the connections that the trial used, and
    raises where these are broken.
    """
    op = OPERATIONS[name]
    if ranks.world < op.least_ranks:
        return f"{name} needs at least {op.least_ranks} ranks"
    if op.reduces and (why := undefined(ranks.reduce_op, ranks.dtype)):
        return why
    why = ""
    for form in op.forms:
        why = peers.first_text(_attempt(name, form, ranks, backend))
        if not why:
            return form
    return why


def _attempt(name: Op, form: Build, ranks: Ranks, backend: str) -> str:
    try:
        work = form(ranks, 1)
        work.reset()
        work.call()
        if ranks.device.type == "cuda":
            torch.cuda.synchronize(ranks.device)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        if _NETWORK.search(str(error)):
            raise
        return _lack(name, ranks, backend, error)
    return ""


def _lack(name: Op, ranks: Ranks, backend: str, error: Exception) -> str:
    what = f" with {ranks.reduce_op}" if OPERATIONS[name].reduces else ""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:110]
    return f"torch {torch.__version__} with {backend} has no {name}{what} for {str(ranks.dtype)[6:]}: {reason}"
