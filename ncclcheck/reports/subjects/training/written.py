"""What to say of lines that change weights outside of an optimizer, where ranks have different weights."""

from __future__ import annotations

from ncclcheck.probes.facts.training import OwnStep, Written
from ncclcheck.reports.judgement.findings import Evidence, Remedy, seen, you
from ncclcheck.reports.subjects.training.trained import ranks


def by_some(step: OwnStep) -> Written | None:
    """The line that only some ranks came to, or ranks in different steps: the cause of what differs."""
    return next((line for line in step.written if line.ranks or line.uneven), None)


def by_all(step: OwnStep) -> Written | None:
    """The line that all ranks came to in the same steps: with values of their own, if weights differ after it."""
    return next(iter(step.written), None)


def why(one: Written) -> str:
    """The cause, where parameters differ over ranks."""
    changes = f"changes weights outside of the optimizer at {one.at}"
    if one.ranks:
        return (
            f"{ranks(one.ranks).capitalize()} alone {changes}, in step {one.step} first: the others keep theirs."
        )
    if one.uneven:
        return f"Each rank {changes}, in steps of its own choice: it decides by its own numbers."
    return f"Each rank {changes}, with values of its own: gradients were not seen to differ first."


def evidence(one: Written) -> Evidence:
    """The line, and who came to it."""
    who = ranks(one.ranks) if one.ranks else "all ranks, in different steps" if one.uneven else "all ranks"
    return seen(f"{one.name} changed at {one.at}", f"{who}, step {one.step} first")


def fix(one: Written) -> Remedy:
    """What makes ranks alike again."""
    if one.ranks:
        return you(
            "Change weights on all ranks or on none; to look at other weights on one rank, load them into a copy.",
            "other = copy.deepcopy(model.module)\nother.load_state_dict(weights)  # evaluate other, not the model",
        )
    if one.uneven:
        return you(
            "Let all ranks decide alike: by the mean of what each of them decides by.",
            "mean = loss.detach().clone()\ndist.all_reduce(mean)\nmean /= dist.get_world_size()  # decide by this",
        )
    return you(
        "Give all ranks the same values: hand out those of rank 0 after it, or seed what draws them alike.",
        "for parameter in model.parameters():\n    dist.broadcast(parameter.data, src=0)",
    )
