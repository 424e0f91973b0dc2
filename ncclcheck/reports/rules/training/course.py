"""TRN: over some steps numbers stay finite, nothing piles up, and torch's functions get what they take."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training import Course, Growing, Misused, NotFiniteAt
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, fail, fine, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.training import operations
from ncclcheck.reports.subjects.training.trained import number, place, ranks

_JOBS = ("smoke",)
_OUT_OF_BOUNDS = 1e3  # times the first loss: no schedule or batch does that, a learning rate that is too high does


def _courses(cluster: Cluster) -> list[Course]:
    """All that were watched. Raises NothingToJudge."""
    smoke = cluster.measurements.smoke
    courses = smoke.checks.courses if smoke and smoke.checks else []
    if not courses:
        raise NothingToJudge("no steps of your own model were watched")
    return courses


def _whose(course: Course) -> str:
    return "given steps" if course.own else "steps"


@rule("TRN030", "numbers stay finite from step to step", worst=State.FAIL, over="", commands=_JOBS)
def stay_finite(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The batch, the loss, the gradients and the weights of each of some steps in a row, on every rank.

    ## Why it matters
    One NaN reaches all ranks with the next all_reduce, and all weights with the next step of the optimizer. The
    step at which that happens is often hours in, and the first number that was wrong is in no log.

    ## Seen as
    wrong results

    ## How we know
    Each tensor that an operation gives in the forward pass is examined, with your line that called it: the first
    NaN that came from numbers is named, else the first infinity (masks of -inf are no fault: they count only where
    the loss is not finite). Examined as well are the batch, what goes into backward(), gradients as the optimizer
    gets them, and weights after its step. Up to 20 steps; a fault that comes later is not seen. A loss that is
    not finite while weights stay finite is a note: the step leaves it out, or a GradScaler does.

    ## Fix
    - **you** batch: find the sample (`ncclcheck data` names it) and repair it or leave it out.
    - **you** log, sqrt, norm, division: add an epsilon inside; exp: clamp what goes in, or use logsumexp.
    - **you** weights first: a lower learning rate, warm-up, clip_grad_norm_.

    ## Source
    PyTorch, Autograd mechanics (division by zero, sqrt at 0); PyTorch, torch.autograd.detect_anomaly.
    """
    for course in _courses(cluster):
        if course.not_finite is None:
            text = f"loss {number(course.first)}, then {number(course.last)}"
            yield fine(Where(), f"all is finite in {course.steps} {_whose(course)}: {text}", seen("loss", text))
        elif not _said_already(cluster, course.not_finite):
            yield _not_finite(cluster, course, course.not_finite)


def _said_already(cluster: Cluster, lapse: NotFiniteAt) -> bool:
    """Whether TRN012 fails with the first batch already."""
    smoke = cluster.measurements.smoke
    precision = smoke.checks.precision if smoke and smoke.checks else None
    return lapse.step == 1 and precision is not None and bool(precision.bad)


def _not_finite(cluster: Cluster, course: Course, lapse: NotFiniteAt) -> Finding:
    say = fail if lapse.lasting else note
    at = f", at {lapse.at}" if lapse.at else ""
    what = {
        "batch": f"{lapse.name} of the batch is not finite",
        "operation": f"{lapse.name}() gives the first number that is not finite{at}",
        "loss": f"the loss is {lapse.name}",
        "gradient": f"the gradient of {lapse.name} is not finite, though the loss is",
        "weight": f"{lapse.name} is not finite after the optimizer's step, though its gradient is",
    }[lapse.what]
    before = f"; the loss of the step before is {number(lapse.before)}" if lapse.before is not None else ""
    if _diverges(course):
        what = f"the loss, {number(course.first)} at first and {number(lapse.before)} before it, overflows"
    where = place(cluster, lapse.ranks[0]) if lapse.ranks and len(lapse.ranks) < cluster.job.ranks else Where()
    return say(
        where,
        f"in step {lapse.step} of {course.steps} {_whose(course)} {what} ({ranks(lapse.ranks, len(lapse.ranks))})",
        why="The next all_reduce spreads it to all ranks, and the optimizer to every weight."
        if lapse.lasting
        else "Weights stay finite: this step is skipped. Often repeated, it is a fault of the data or the loss.",
        owner="job",
        evidence=[seen(f"step {lapse.step}", f"{what}{before}")],
        fix=[_SMALLER if _diverges(course) else _fix_numbers(lapse)],
    )


def _diverges(course: Course) -> bool:
    """Whether the loss had grown out of all bounds before."""
    before = course.not_finite.before if course.not_finite else None
    return (
        before is not None
        and course.first is not None
        and abs(before) > _OUT_OF_BOUNDS * max(1, abs(course.first))
    )


_SMALLER = you(
    "The steps are too large: lower the learning rate, warm it up, or clip gradients.",
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
)


def _fix_numbers(lapse: NotFiniteAt) -> Remedy:
    if lapse.what == "batch":
        return you(
            "Find the sample that holds it, and repair it or leave it out.", "ncclcheck data MODULE:FACTORY"
        )
    if lapse.what == "operation":
        return operations.fix(lapse.name, lapse.at)
    if lapse.what == "gradient":
        operation, _, line = lapse.at.partition(" ")
        return operations.fix(operation, line)
    return _SMALLER


@rule("TRN031", "no step keeps the graphs of earlier ones", worst=State.WARN, over="", commands=_JOBS)
def nothing_piles_up(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    What the step's `state`, the model, functions and globals of your files hold after each of some steps.

    ## Why it matters
    `total += loss`, `losses.append(loss)` and outputs kept for a metric hold the graph of their backward pass:
    each step takes more memory than the one before, until it is out of memory after hours.

    ## Seen as
    wrong results, out of memory

    ## How we know
    Containers and tensors are followed from there, by name. Named is what grows with every step but the first:
    by the nodes of the graphs behind it (a warning), or by 64 KiB of tensors a step without a graph (a note:
    predictions that are kept for the end of an epoch grow as well). Buffers with a largest length are left out.
    Hooks of a module that each step registers again are a warning as well.

    ## Fix
    - **you** keep numbers: `loss.item()`, or `loss.detach()` where waiting for the GPU is too slow.
    - **you** a state that goes on into the next step: `hidden = hidden.detach()`.

    ## Source
    PyTorch, Frequently Asked Questions (My model reports "cuda runtime error(2): out of memory").
    """
    for course in _courses(cluster):
        for growing in course.growing:
            yield _graph(growing) if growing.graph else _tensors(growing) if growing.bytes else _hooks(growing)
        if not course.growing:
            text = f"nothing grows with each of {course.steps} {_whose(course)}"
            yield fine(Where(), text, seen("state, model, globals and closures", text))


def _graph(growing: Growing) -> Finding:
    by = f"by {growing.entries} entries a step" if growing.entries else "its graph by that of each step"
    name = growing.place.rpartition(": ")[2].partition(",")[0]
    fix = (
        you("Keep numbers, not tensors with their graph.", f"{name}.append(value.detach())")
        if growing.entries
        else you("Add up numbers.", f"{name} += loss.item()")
    )
    return warn(
        Where(),
        f"{growing.place} grows with each step, {by}, and holds the graphs of all steps so far",
        why="Memory grows until the job runs out of it; steps become slower.",
        owner="job",
        evidence=[
            seen(f"{growing.place}, after each of {growing.steps} steps", "holds more nodes of autograd's graph")
        ],
        fix=[fix],
    )


def _hooks(growing: Growing) -> Finding:
    more = f"{growing.entries} more with each step"
    return warn(
        Where(),
        f"{growing.place} become {more}: the step registers them again and again",
        why="All of them run in each pass: steps become slower, and what they hold is never given back.",
        owner="job",
        evidence=[seen(f"{growing.place}, after each of {growing.steps} steps", more)],
        fix=[
            you(
                "Register a hook once, in the first step, or remove it at the end of the step.",
                "handle = module.register_forward_hook(keep)\n...\nhandle.remove()",
            )
        ],
    )


def _tensors(growing: Growing) -> Finding:
    kib = growing.bytes // 1024
    return note(
        Where(),
        f"{growing.place} grows with each step, by {growing.entries} entries and {kib} KiB",
        why="Meant so for predictions of one epoch; else memory runs out.",
        owner="job",
        evidence=[seen(f"{growing.place}, after each of {growing.steps} steps", f"{kib} KiB more of tensors")],
        fix=[you("Empty it each epoch, or keep sums instead.")],
    )


@rule("TRN032", "losses are given what they are made for", worst=State.WARN, over="", commands=_JOBS)
def made_for(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    What torch's losses and dropout are given in the passes of your model, loss and step; and warnings of torch
    that say that training is wrong.

    ## Why it matters
    A softmax before cross_entropy, a target of shape (N) beside an output of (N, 1), or cross_entropy over a
    single class raise no error. The loss falls a little, and the model learns little or nothing.

    ## Seen as
    wrong results

    ## How we know
    Calls are seen as they are made. Scores are called probabilities where a softmax or sigmoid gave them, or all
    rows add up to 1; operands stretched to a table where the result has more entries than either. Dropout with
    `training=True` counts in passes of a model in eval().

    ## Fix
    - **you** give cross_entropy and binary_cross_entropy_with_logits scores, nll_loss the result of log_softmax.
    - **you** bring output and target into one shape: `output.squeeze(-1)`.

    ## Source
    PyTorch, torch.nn.functional.cross_entropy, BCEWithLogitsLoss, MSELoss.
    """
    courses = _courses(cluster)
    misused = {(misused.function, misused.at): misused for course in courses for misused in course.misused}
    warned = [text for course in courses for text in course.warned]
    yield from map(_misused, misused.values())
    yield from map(_warned, dict.fromkeys(warned))
    if not misused and not warned:
        yield fine(Where(), "losses get what they take", seen("calls of torch's losses", "none is unfit"))


_MISUSES = {
    "broadcast": (
        "compares each output with the target of every sample",
        "Both are stretched to a table of all pairs, so that outputs are drawn to the mean of all targets.",
        "Bring output and target into one shape.",
        "loss = F.mse_loss(output.squeeze(-1), target)",
    ),
    "probabilities": (
        "is given probabilities instead of scores",
        "It computes the softmax or sigmoid itself: applied twice, gradients almost vanish.",
        "Leave the softmax or sigmoid out of what goes into the loss.",
        "loss = F.cross_entropy(scores, target)  # scores: before the softmax",
    ),
    "not_log": (
        "is given scores instead of logarithms of probabilities",
        "It adds them up as they are: the loss falls without end, and is no likelihood.",
        "Give it log_softmax, or use cross_entropy.",
        "loss = F.nll_loss(F.log_softmax(scores, dim=1), target)",
    ),
    "one_class": (
        "is computed over a single class",
        "The probability of one class is always 1: loss and gradients are 0.",
        "One score a sample is for binary_cross_entropy_with_logits.",
        "loss = F.binary_cross_entropy_with_logits(scores.squeeze(1), target.float())",
    ),
    "training": (
        "drops out at random in eval() too",
        "Its `training` is True whatever the mode of the model: evaluation is random.",
        "Tell it the mode.",
        "F.dropout(x, p, training=self.training)",
    ),
}  # fmt: skip


def _misused(misused: Misused) -> Finding:
    what, why, fix, code = _MISUSES[misused.problem]
    at = f", at {misused.at}" if misused.at else ""
    return warn(
        Where(),
        f"{misused.function}() {what}{at}",
        why=why,
        owner="job",
        evidence=[seen(misused.at or misused.function, misused.detail or what)],
        fix=[you(fix, code)],
    )


_WARNINGS = (
    ("lr_scheduler", "The first value of the schedule is skipped.", "Step the optimizer first.",
     "optimizer.step()\nscheduler.step()"),
    ("None of the inputs", "No gradient reaches what stands before the checkpointed layer, nor the layer itself.",
     "Take the kind of checkpoint that needs no such input.", "checkpoint(layer, x, use_reentrant=False)"),
    ("Implicit dimension", "Which dimension is taken depends on the shape.", "Name it.", "F.softmax(x, dim=-1)"),
)  # fmt: skip


def _warned(text: str) -> Finding:
    known = next((warning for warning in _WARNINGS if warning[0] in text), None)
    if known is None:
        return note(Where(), f"while the model trains a library warns: {text}", evidence=[seen("warning", text)])
    return warn(
        Where(),
        f"torch warns in the first steps: {text[:200]}",
        why=known[1],
        owner="job",
        evidence=[seen("warning", text)],
        fix=[you(known[2], known[3])],
    )
