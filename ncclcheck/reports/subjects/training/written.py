"""What to say of lines that change weights outside of an optimizer, where ranks have different weights."""

from __future__ import annotations

from ncclcheck.probes.facts.training import OwnStep, WrittenWeights
from ncclcheck.reports.judgement.findings import Evidence, Remedy, seen, you
from ncclcheck.reports.subjects.training.trained import ranks


def by_some(step: OwnStep) -> WrittenWeights | None:
    """The line that only some ranks came to, or ranks in different steps: the cause of what differs."""
    return next((line for line in step.written if line.ranks or line.uneven), None)


def by_all(step: OwnStep) -> WrittenWeights | None:
    """The line that all ranks came to in the same steps: with values of their own, if weights differ after it."""
    return next(iter(step.written), None)


def why(weights: WrittenWeights) -> str:
    """The cause, where parameters differ over ranks."""
    changes = f"changes weights outside of the optimizer at {weights.at}"
    if weights.ranks:
        who = ranks(weights.ranks).capitalize()
        return f"{who} alone {changes}, in step {weights.step} first: the others keep theirs."
    if weights.uneven:
        return f"Each rank {changes}, in steps of its own choice: it decides by its own numbers."
    return f"Each rank {changes}, with values of its own: gradients were not seen to differ first."


def evidence(weights: WrittenWeights) -> Evidence:
    """The line, and who came to it."""
    who = (
        ranks(weights.ranks)
        if weights.ranks
        else "all ranks, in different steps"
        if weights.uneven
        else "all ranks"
    )
    return seen(f"{weights.name} changed at {weights.at}", f"{who}, step {weights.step} first")


def fix(weights: WrittenWeights) -> Remedy:
    """What makes ranks alike again."""
    if weights.ranks:
        return you(
            "Change weights on all ranks or on none; to look at other weights on one rank, load them into a copy.",
            "other = copy.deepcopy(model.module)\nother.load_state_dict(weights)  # evaluate other, not the model",
        )
    if weights.uneven:
        return you(
            "Let all ranks decide alike: by the mean of what each of them decides by.",
            "mean = loss.detach().clone()\ndist.all_reduce(mean)\nmean /= dist.get_world_size()  # decide by this",
        )
    return you(
        "Give all ranks the same values: hand out those of rank 0 after it, or seed what draws them alike.",
        "for parameter in model.parameters():\n    dist.broadcast(parameter.data, src=0)",
    )
