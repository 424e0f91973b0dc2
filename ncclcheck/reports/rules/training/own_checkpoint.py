"""TRN: a run that goes on from the user's own checkpoint functions is the run that was saved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training import LostState, OwnCheckpoint
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, fail, fine, note, seen, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.training.trained import checked, ranks
from ncclcheck.reports.text.words.fold import first_of

_ROUNDED = 0.01  # of the norm of a parameter; bf16 has 8 bits, 0.4 %
_SHOWN = 4  # names in one finding, then a count: chosen, model, optimizer, scheduler and RNG are four
_GENERATORS = (
    "saved['rng'] = torch.get_rng_state()  # one a rank",
    "torch.set_rng_state(saved['rng'])",
)


@rule(
    "TRN029",
    "the given checkpoint functions restore the run",
    worst=State.FAIL,
    over="",
    ground=("TRN027",),
    commands=("smoke",),
)
@checked("own_checkpoint")
def own_checkpoint(cluster: Cluster, checkpoint: OwnCheckpoint) -> Iterator[Finding]:
    """
    ## What
    The functions given with `--checkpoint-save` and `--checkpoint-load`, called on every rank as
    `save(model, state, path)` and `load(model, state, path)` with the wrapped model and the dict `state` of
    `--step`: a run that goes on from them against the run that saved.

    ## Why it matters
    A scheduler, a GradScaler, an average or a counter that is not in the checkpoint begins anew after every
    resume: the learning rate warms up again, and the curve has a step where the job was restarted.

    ## Seen as
    wrong results

    ## How we know
    Three steps, a save, and three more steps. Then a new model and a new `state`, made by one step; all generators
    at another seed; load; and the same three steps. Compared are what `state` and the attributes of the model's
    modules hold right after loading, and the parameters at the end, within 1e-4 of their norm and with the same
    random numbers in both runs. What is neither an entry of a state_dict nor a whole number, and changes no
    parameter, is a note; so are random generators: dropout and augmentation go on otherwise than they would have.
    Weights that are not restored and end more than 1 % of their norm off are a failure; what bf16 rounds is less.
    `state` is read through dicts, lists and objects of your own; a dict or list of as many tensors of the same
    shapes as the model has parameters is an average of them. Parameters are known by identity: with DDP one that
    loading put in the place of another is a failure. torch.save to one name on several ranks is a warning.

    ## Fix
    - **you** put the named object's state_dict() into the checkpoint and load it on every rank.
    - **you** a counter of the model belongs in a buffer (`register_buffer`), one of the loop in the checkpoint.

    ## Source
    PyTorch, Saving and loading a general checkpoint; huggingface/accelerate, Checkpointing (random states).
    """
    if checkpoint.replaced:
        yield _replaced(checkpoint)
    weights = [lost for lost in checkpoint.lost if lost.kind == "weight"]
    losts = weights or [lost for lost in checkpoint.lost if lost.kind in ("state", "counter")]
    losts.sort(key=lambda lost: ".param_groups[" in lost.name)  # a scheduler that begins anew sets these
    others = [lost for lost in checkpoint.lost if lost not in losts]
    if not checkpoint.off:
        others = [lost for lost in others if lost.how != "value" or "." not in lost.name]  # of meters and logs
    elif not losts:  # a number that the step counts in a global explains it
        others.sort(key=lambda lost: lost.kind != "global")
    if checkpoint.replaced and not losts:
        pass  # whatever else differs follows from it
    elif losts or checkpoint.off:
        lost = losts or others
        some = _some_only(checkpoint, cluster.job.ranks)
        end = f"{checkpoint.parameter} is off by {checkpoint.off:.2g} of its norm {checkpoint.steps} steps later"
        yield (fail if weights and checkpoint.off > _ROUNDED else warn)(
            Where(),
            f"the given load function restores nothing on {ranks(some)}: {_said(lost)} there"
            if some
            else f"a run resumed by the given functions is not the one that was saved: {_said(lost)}"
            + (f"; {end}" if checkpoint.off else ""),
            why="DDP hands out weights when it wraps the model, and never again: what is loaded later on some "
            "ranks only makes the ranks train different models from the resume on."
            if some
            else "What is not restored begins anew after every restart of the job.",
            owner="job",
            evidence=[
                *(seen(lost.name, f"is another after loading, on {ranks(lost.ranks)}") for lost in lost[:_SHOWN]),
                seen("parameters after further steps", end if checkpoint.off else "are the same"),
            ],
            fix=[_on_every_rank(some) if some else _fix(lost)],
        )
    elif others:
        text = f"not restored by the given functions, without an effect on parameters: {_names(others)}"
        yield note(Where(), text, evidence=[seen("after loading", _names(others))])
    if checkpoint.together:
        yield _together(checkpoint)
    if checkpoint.unseeded:
        yield note(
            Where(),
            "the given functions restore no random generator, and the steps draw random numbers",
            why="Dropout and augmentation go on otherwise after a resume; two runs cannot be compared bit by bit.",
            owner="job",
            evidence=[seen("torch's generator after loading", "is not the one at the save")],
            fix=[you("Save the generators of each rank, if a run must be repeatable.", *_GENERATORS)],
        )
    same = not (losts or others or checkpoint.off or checkpoint.replaced)
    if same and not checkpoint.unseeded and not checkpoint.together:
        text = f"{checkpoint.steps} steps after loading are those of the run that saved"
        yield fine(Where(), text, seen("the given checkpoint functions", text))


def _some_only(checkpoint: OwnCheckpoint, world: int) -> list[int]:
    """The ranks that have other weights after loading, where others have all of theirs."""
    apart = {rank for lost in checkpoint.lost if lost.kind == "weight" for rank in lost.ranks}
    return sorted(apart) if len(apart) < world else []


def _on_every_rank(some: Sequence[int]) -> Remedy:
    return you(
        f"Read the checkpoint on every rank, or before the model is wrapped: {ranks(some)} came past the load.",
        "saved = torch.load(path, map_location='cpu')  # on every rank",
        "model.module.load_state_dict(saved['model'])",
        "state['optimizer'].load_state_dict(saved['optimizer'])",
    )


def _replaced(checkpoint: OwnCheckpoint) -> Finding:
    names = first_of(checkpoint.replaced, _SHOWN)
    unknown = "neither DDP nor the optimizer knows them" if checkpoint.unheld else "DDP does not know them"
    tied = f" Weights shared with {checkpoint.untied} are no longer shared." if checkpoint.untied else ""
    return fail(
        Where(),
        f"the given load function puts other parameters in the place of {names}: {unknown}",
        why="DDP averages, and an optimizer steps, the very parameters that it was made with. After each resume "
        f"the new ones stay as they were loaded, or differ between ranks.{tied}",
        owner="job",
        evidence=[
            seen("parameters that were not there before loading", names),
            *(seen("held by no optimizer", first_of(checkpoint.unheld, _SHOWN)) for _ in checkpoint.unheld[:1]),
        ],
        fix=[
            you(
                "Copy into the parameters that are there: no new layer, no nn.Parameter, no assign=True in load.",
                "model.module.load_state_dict(saved['model'])  # strict, without assign=True",
            )
        ],
    )


def _together(checkpoint: OwnCheckpoint) -> Finding:
    return warn(
        Where(),
        f"several ranks write the same file with torch.save: {checkpoint.together}",
        why="Each begins it anew while others write: it is whole only if nobody is late, and a job that ends then "
        "leaves none.",
        owner="job",
        evidence=[seen("torch.save in the given save function", f"{checkpoint.together} on more than one rank")],
        fix=[
            you(
                "Let rank 0 write what is the same on all ranks, and the others wait for it; or name it by rank.",
                "if dist.get_rank() == 0:\n    torch.save(saved, path)\ndist.barrier()",
            )
        ],
    )


def _names(lost: Sequence[LostState]) -> str:
    return first_of((each.name for each in lost), _SHOWN)


def _said(lost: Sequence[LostState]) -> str:
    if not lost:
        return "something outside of `state` and of every state_dict differs"
    return f"{_names(lost)} {'is' if len(lost) == 1 else 'are'} not restored"


def _fix(lost: Sequence[LostState]) -> Remedy:
    if not lost:
        return you("Search for numbers that the step or the model keeps in globals or closures, and save them.")
    first = lost[0]
    if first.kind == "weight":
        return you(
            "Load the model's state_dict on every rank, strictly: names with `module.` before them fit nothing, "
            "and strict=False hides it.",
            "saved['model'] = model.module.state_dict()",
            "model.module.load_state_dict(saved['model'])  # strict",
        )
    if first.kind == "global":
        return you(
            f"Save {first.holder}, a global variable, with the rest, and set it on every rank: a new process "
            "begins with what its module says.",
            f"saved['{first.holder}'] = {first.holder}",
            f"global {first.holder}",
            f"{first.holder} = saved['{first.holder}']",
        )
    if first.kind == "attribute":
        name = first.name.rpartition(".")[2]
        return you(
            f"Keep {name} in a buffer, which state_dict() holds.",
            f"self.register_buffer('{name}', torch.tensor(0))",
        )
    holder, name = _holder(first)
    if first.how == "weights":
        return you(
            f"Save the tensors of {name}, and copy them back on every rank.",
            f"saved['{name}'] = copy.deepcopy({holder})",
            f"{holder} = saved['{name}']  # in load, once it has been made",
        )
    if first.how == "value" or first.kind != "state":
        return you(
            f"Save {name} with the rest, and set it on every rank.",
            f"saved['{name}'] = {holder}",
            f"{holder} = saved['{name}']",
        )
    return you(
        f"Save the state_dict of {name}, and load it on every rank.",
        f"saved['{name}'] = {holder}.state_dict()",
        f"{holder}.load_state_dict(saved['{name}'])",
    )


def _holder(lost: LostState) -> tuple[str, str]:
    """The expression of what holds it, and a name for it in the checkpoint."""
    if not lost.holder:  # of a result of an older version
        name = lost.name.partition(".")[0]
        return f"state['{name}']", name
    name = re.sub(r"\W+", "", lost.holder.rpartition(".")[2].rpartition("[")[2]) or "state"
    return lost.holder, name if not name.isdigit() else lost.name.partition("[")[0]
