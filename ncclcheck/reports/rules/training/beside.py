"""TRN: what a model trains is among its parameters, and what steps keep beside them is the same on all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training import Beside, KeptState, Unregistered, Unused
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, fail, fine, note, seen, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.training.trained import checked, place, ranks
from ncclcheck.reports.text.words.fold import first_of

_SHOWN = 4  # names in one finding, then a count: chosen
# What is a rank's own by intent: features of its own samples (SwAV's queue), the state of a sequence that goes on.
_OWN = re.compile(r"queue|bank|memory|mems\b|cache|hidden|carry|history|recent|seen|prev|last", re.IGNORECASE)


@rule(
    "TRN034",
    "what steps keep beside the parameters is the same on all ranks",
    worst=State.FAIL,
    over="",
    ground=("TRN012", "TRN030", "TRN032"),
    commands=("smoke",),
)
@checked("beside")
def beside(cluster: Cluster, fact: Beside) -> Iterator[Finding]:
    """
    ## What
    Tensors, numpy arrays and numbers that a model keeps as plain attributes, the given step in `state`, or a
    module of yours as a global variable, and that change from step to step: the codebook of a quantizer, the
    centre of a teacher's outputs, counts of classes.

    ## Why it matters
    DDP hands out parameters and buffers, and nothing else. What each rank follows on its own batches drifts apart:
    the ranks train different models though their weights are the same, and no state_dict has it when the job is
    restarted.

    ## How we know
    Hashes are compared over ranks after some steps. Each value is then given back what it began with, in a copy of
    model, state and globals: the one with which the loss (with `--step` the gradients or the parameters after one
    more step) comes to something else steers the training; a counter for the log does not, and is left out. So are
    what has the size of the batch in its shape, and what has a state_dict (TRN027). In the model it is a failure,
    in `state` and in a global variable a warning; what is named as a queue, a cache or a hidden state may belong
    to its rank, and is a note. With FSDP it is not compared.

    ## Fix
    - **you** register it as a buffer, and sum up over ranks what it is updated with.

    ## Source
    PyTorch, nn.Module.register_buffer; PyTorch, DistributedDataParallel (broadcast_buffers);
    facebookresearch/dino, main_dino.py (update_center).
    """
    apart = [kept for kept in fact.kept if kept.ranks]
    own = [kept for kept in apart if _OWN.search(kept.name.rpartition(".")[2])]
    if lost := [kept for kept in apart if kept not in own]:
        yield _drifts(cluster, lost, fact.steps)
    if own:
        yield note(
            Where(),
            f"{_names(own)} {_is(own)} another on each rank: right if it belongs to the rank's own samples",
            evidence=[seen(kept.name, f"differs on {ranks(kept.ranks)}") for kept in own[:_SHOWN]],
        )
    if not apart:
        text = f"{_names(fact.kept)} {_is(fact.kept)} the same on all ranks after {fact.steps} steps"
        yield fine(Where(), text, seen("values beside the parameters", text))


@rule(
    "TRN035",
    "what a model trains is among its parameters",
    worst=State.FAIL,
    over="",
    commands=("smoke",),
)
@checked("unused")
def registered(_cluster: Cluster, fact: Unused) -> Iterator[Finding]:
    """
    ## What
    Tensors that a backward pass gives a gradient, and that `model.parameters()` does not hold: layers in a plain
    list or dict, a `torch.tensor(..., requires_grad=True)` instead of an `nn.Parameter`.

    ## Why it matters
    No error appears. The optimizer never changes them, DDP neither hands them out nor averages their gradients, no
    checkpoint has them, and `.to(device)` leaves them where they are: a mixture whose experts stay as they were
    drawn at random.

    ## Seen as
    wrong results

    ## How we know
    The attributes of all modules are searched, through lists, dicts, tuples and objects of your own, for leaves
    that require a gradient, and after passes of the bare model on the first batches those are named that have one.
    A layer that is hidden on purpose, such as a frozen teacher, gets none and is not named.

    ## Fix
    - **you** `nn.ModuleList`, `nn.ModuleDict`, `nn.ParameterList`, `nn.Parameter`.
    - **you** not to be trained: `requires_grad_(False)`, or run it in `torch.no_grad()`.

    ## Source
    PyTorch, nn.ModuleList, nn.ModuleDict, nn.Parameter; PyTorch, DistributedDataParallel.
    """
    for each in fact.unregistered:
        yield _unregistered(each)
    if not fact.unregistered:
        text = f"{fact.parameters} parameters; no other tensor of the model gets a gradient"
        yield fine(Where(), text, seen("tensors that get a gradient", text))


_KEPT_IN = {
    "modules in a list": "ModuleList",
    "modules in a dict": "ModuleDict",
    "tensors in a list": "ParameterList",
    "tensors in a dict": "ParameterDict",
}


def _unregistered(each: Unregistered) -> Finding:
    kept = f"self.{each.attribute}"
    more = f" and {each.count - 1} more" if each.count > 1 else ""
    how = {"tensor": "is a plain tensor", "object": "is in a plain object"}.get(each.kind, f"are {each.kind}")
    return fail(
        Where(),
        f"{each.name}{more} get gradients and are no parameters of the model: {kept} of {each.owner} {how}",
        why="model.parameters() does not hold them: no optimizer changes them, DDP does not average them over "
        "ranks, no checkpoint has them, and .to(device) leaves them behind.",
        owner="job",
        evidence=[
            seen(each.name, "has a gradient after a backward pass, and stands in no named_parameters()"),
            seen("elements outside of model.parameters()", f"{each.elements:,}"),
        ],
        fix=[
            you(f"Register them in {each.owner}.__init__.", *_register(each)),
            you("Or freeze them, where they are not to be trained: requires_grad_(False)."),
        ],
    )


def _register(each: Unregistered) -> list[str]:
    kept = f"self.{each.attribute}"
    if each.kind == "tensor":
        return [f"{kept} = nn.Parameter({kept}.detach())  # the line after it is made"]
    if kind := _KEPT_IN.get(each.kind):
        inner = "{name: nn.Parameter(t.detach()) for name, t in %s.items()}" if kind == "ParameterDict" else "%s"
        inner = "nn.Parameter(t.detach()) for t in %s" if kind == "ParameterList" else inner
        return [f"{kept} = nn.{kind}({inner % kept})  # the line after it is made"]
    return [f"self.inner = nn.ModuleList([...])  # every layer that {kept} holds"]


def _drifts(cluster: Cluster, lost: Sequence[KeptState], steps: int) -> Finding:
    of_model = lost[0].of == "model"
    where = {
        "model": "no parameter and no buffer",
        "state": "of the step's state",
        "global": "a global variable",
    }[lost[0].of]
    return (fail if of_model else warn)(
        place(cluster, lost[0].ranks[0]),
        f"after {steps} steps {_names(lost)}, {where}, {_is(lost)} another on {ranks(lost[0].ranks)}, and the "
        "training depends on it",
        why="DDP hands out parameters and buffers alone. Each rank follows its own batches here: the ranks train "
        f"different models, and a checkpoint has {'none of it' if of_model else 'that of rank 0'}.",
        owner="job",
        evidence=[
            *(seen(kept.name, f"differs on {ranks(kept.ranks)}") for kept in lost[:_SHOWN]),
            seen("with another value of it", "the step comes to another loss or other weights"),
        ],
        fix=[_fix(lost)],
    )


def _fix(lost: Sequence[KeptState]) -> Remedy:
    owner = lost[0].owner
    here = [kept for kept in lost if kept.owner == owner and kept.of == lost[0].of]
    lines = [line for kept in here[:_SHOWN] for line in _registered(kept)]
    lines += [line for kept in here[:_SHOWN] for line in _averaged(kept)]
    text = (
        f"Make {_attributes(here)} a buffer in {owner}.__init__, and average over ranks what it is updated with, "
        "or the value itself after each update."
        if here[0].of == "model"
        else f"Average {_names(here)} over ranks after each update, and save it with the rest."
    )
    return you(text, *lines)


def _registered(kept: KeptState) -> list[str]:
    if kept.of != "model" or kept.kind == "number":
        return []
    name = _attribute(kept)
    made = f"torch.as_tensor({kept.made or '...'})" if kept.kind == "array" else kept.made or "..."
    return [f"self.register_buffer('{name}', {made})  # in {kept.owner}.__init__, instead of self.{name} = ..."]


def _averaged(kept: KeptState) -> list[str]:
    name = {"model": f"self.{_attribute(kept)}", "state": kept.name, "global": _attribute(kept)}[kept.of]
    if kept.kind == "number":
        return [
            f"total = torch.tensor(float({name}))\ndist.all_reduce(total)  # on every rank, after each update\n"
            f"{name} = total.item() / dist.get_world_size()"
        ]
    tensor = f"torch.from_numpy({name})" if kept.kind == "array" and kept.of != "model" else name
    return [f"dist.all_reduce({tensor})  # after each update\n{name} /= dist.get_world_size()"]


def _attribute(kept: KeptState) -> str:
    return kept.name.rpartition(".")[2]


def _attributes(kept: Sequence[KeptState]) -> str:
    return ", ".join(_attribute(kept) for kept in kept[:_SHOWN])


def _names(kept: Sequence[KeptState]) -> str:
    return first_of((each.name for each in kept), _SHOWN)


def _is(kept: Sequence[KeptState]) -> str:
    return "is" if len(kept) == 1 else "are"
