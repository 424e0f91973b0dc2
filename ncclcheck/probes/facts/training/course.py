"""What some steps in a row showed of the given code: numbers that end, things that pile up, misused functions."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Count, Whole


class NotFiniteAt(Struct, frozen=True, kw_only=True):
    """The first step (from 1) at which something of a rank was infinite or NaN, and what came first there.

    what: a part of the batch, the result of an operation, the loss, a gradient, or a weight after the optimizer's
    step. name: which of them; at: the user's line, where it is known. before: the loss of the step before, null
    where there was none or it was not finite. lasting: weights are not finite at the end.
    """

    step: Count
    ranks: list[Count]
    what: Literal["batch", "operation", "loss", "gradient", "weight"]
    name: str = ""
    at: str = ""
    before: float | None = None
    lasting: bool = False


class Growing(Struct, frozen=True, kw_only=True):
    """Something that each step makes larger: a container by entries, or (entries 0) the graph behind one tensor.

    place: `state['losses']`, `model.outputs`, `train.py: history`; `the hooks of model.net`, which have no bytes.
    graph: it holds graphs of backward passes.
    """

    place: str
    steps: Count
    entries: Count = 0
    bytes: Whole = 0
    graph: bool = True


class Misused(Struct, frozen=True, kw_only=True):
    """A function of torch that was given what it is not made for. at: the user's line.

    broadcast: two operands that are stretched to a table of all pairs. probabilities: the function takes scores,
    and computes the softmax or sigmoid itself. not_log: it takes logarithms of probabilities. one_class: a
    classification over one class. training: dropout that stays on in eval().
    """

    function: str
    problem: Literal["broadcast", "probabilities", "not_log", "one_class", "training"]
    at: str = ""
    detail: str = ""


class Course(Struct, frozen=True, kw_only=True):
    """Some steps in a row of the given step, or (own false) of the tool's loop around model and loss.

    first, last: losses; largest: of all, null where there was none that is finite. warned: what torch itself
    warned of, with the user's line.
    """

    own: bool
    steps: Count
    first: float | None = None
    last: float | None = None
    not_finite: NotFiniteAt | None = None
    growing: list[Growing] = field(default_factory=list)
    misused: list[Misused] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
