"""What is wrong with the given step whatever the number of ranks: it clips, clears or holds the wrong things."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts.training import Cosine, OwnStep
from ncclcheck.reports.judgement.findings import Finding, Remedy, Where, fail, note, seen, warn, you
from ncclcheck.reports.text.words.fold import first_of

_FEW = 0.5  # of all elements that are trained: more of them without an optimizer is fine-tuning of a head
_SHOWN = 3  # names in one finding, then a count: chosen, three fit a heading of 80 columns


def wrong(step: OwnStep) -> Iterator[Finding]:
    """The causes first: what changes no parameter at all, then what trains otherwise than is meant."""
    yield from _by_its_schedule_or_clipping(step)
    if step.factors:
        yield _by_pieces(step)
    if step.reseeded:
        yield _reseeded(step)
    if step.idle:
        yield _idle(step)
    elif _unmoving(step):
        yield _stands(step)
    if step.stale and not step.idle:
        yield warn(
            Where(),
            "the given step adds its gradients to those of the step before",
            why="The optimizer has used these already: each step uses the sum of all gradients so far.",
            owner="job",
            evidence=[seen("gradient of the first parameter as a new step's first one arrives", "is not zero")],
            fix=[you("Clear gradients once a step.", "optimizer.step()\noptimizer.zero_grad(set_to_none=True)")],
        )
    if step.lost and not step.idle:
        yield _lost(step)
    if step.remade:
        yield _remade(step)
    if step.undivided:
        yield _undivided(step)
    if not step.idle:
        yield from (say(step) for without, say in ((step.unheld, _unheld), (step.zero, _zero)) if without)
    if step.evaluating:
        yield _evaluating(step)
    if step.aliased:
        yield _aliased(step)
    if len(step.still) == 2:
        yield _still(step, *step.still)


def _by_its_schedule_or_clipping(step: OwnStep) -> Iterator[Finding]:
    if step.clipped_scaled:
        yield _clipped_scaled()
    if step.clipped:
        yield _clipped(step)
    if step.cosine:
        yield _cosine(step.cosine)


def _clipped_scaled() -> Finding:
    order = (
        "clip_grad_norm_ or clip_grad_value_ came after scaler.scale(loss) and before scaler.unscale_(optimizer)"
    )
    return warn(
        Where(),
        "the given step clips gradients while they are still multiplied by GradScaler's factor",
        why="Their norm is thousands of times too large then, so every step is clipped to almost nothing.",
        owner="job",
        evidence=[seen("calls in the first step", order)],
        fix=[
            you(
                "Call unscale_ between backward and clipping.",
                "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
                "scaler.step(optimizer)",
            )
        ],
    )


def _clipped(step: OwnStep) -> Finding:
    when = "before its backward pass" if step.clipped == "before" else "after the optimizer's step"
    return warn(
        Where(),
        f"the given step clips gradients {when}, where that does nothing",
        why="The optimizer gets gradients that nobody clipped.",
        owner="job",
        evidence=[seen("calls in the first step", f"clipping comes only {when}")],
        fix=[
            you(
                "Clip between backward and step.",
                "loss.backward()\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()",
            )
        ],
    )


_ANY_OPTIMIZER = "torch.optim.AdamW(model.parameters(), lr=1e-3)"


def optimizer_of(step: OwnStep, parameters: str = "model.parameters()") -> str:
    """The call that makes the step's optimizer again, of these parameters."""
    return (step.optimizer or _ANY_OPTIMIZER).replace("model.parameters()", parameters, 1)


_IDLE = {
    "": ("Nothing is trained.", "See what the optimizer is given at its step.", "print(model.weight.grad)"),
    "others": (
        "No optimizer holds a parameter of the model that the step is called with.",
        "Give the optimizer the parameters of the model that the step is called with.",
        "optimizer = {}",
    ),
    "rate": (
        "The learning rate is 0 in every step that was seen.",
        "Let the schedule begin above 0, and count its steps as the loop does.",
        "print(scheduler.get_last_lr())",
    ),
    "never": ("No optimizer takes a step.", "Step it after backward().", "loss.backward()\noptimizer.step()"),
    "nothing": (
        "No gradient is there when the optimizer steps: the loss is cut off from the parameters, or is constant.",
        "Search for .detach(), .item(), .data and torch.no_grad() between the parameters and the loss.",
        "print(loss.grad_fn)",
    ),
    "rounded": (
        "The weights have 16 bits: a change of less than 1/256 of a weight in bfloat16 (1/2048 in float16) is "
        "rounded away, and the optimizer's steps are smaller than that.",
        "Keep the weights in float32, and let autocast compute in 16 bits.",
        "model = model.float()\nwith torch.autocast(device_type, dtype=torch.bfloat16):\n    loss = ...",
    ),
}  # fmt: skip


def _by_pieces(step: OwnStep) -> Finding:
    factors = ", ".join(f"{factor:.4g} on rank {rank}" for rank, factor in enumerate(step.factors[:4]))
    return warn(
        Where(),
        f"the given step scales the pieces of one gradient by different factors: {factors}",
        why="The norm that it clips by is that of the rank's own piece, not of the whole gradient: the step has "
        "another direction, which depends on the number of ranks.",
        owner="job",
        evidence=[seen("norm at optimizer.step() against that after backward(), by rank", factors)],
        fix=[
            you(
                "Take the norm of the whole gradient: of sharded parameters torch's own function does.",
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            ),
            you(
                "In a function of your own sum up the squares over ranks.",
                "dist.all_reduce(squares)  # sum of the squares of this rank's pieces\nnorm = squares.sqrt()",
            ),
        ],
    )


def _reseeded(step: OwnStep) -> Finding:
    at = f", at {step.seeded_at}" if step.seeded_at else ""
    names = ", ".join(step.reseeded)
    return warn(
        Where(),
        f"the given step sets the seed of {names} to the same in every step and on every rank{at}",
        why="What is drawn after it (noise, masks, time steps, dropout) is the same in all steps on all ranks: "
        "the model learns one draw by heart.",
        owner="job",
        evidence=[
            seen(f"state of the generator {names} after each step, given other seeds before it", "the same")
        ],
        fix=[
            you(
                "Set the seed once, before training, by rank, and not in the step.",
                "torch.manual_seed(seed + dist.get_rank())  # before the loop",
            )
        ],
    )


_LEAST_STILL = 3  # steps at a rate of 0; a warm-up from 0 begins with one


def _unmoving(step: OwnStep) -> int:
    """Steps at a learning rate of 0, where they are most of those that were seen, or all of the last ones."""
    still = step.rates.count(0.0)
    ended = still >= _LEAST_STILL and not any(step.rates[-still:])
    return still if still >= _LEAST_STILL and (ended or 2 * still > len(step.rates)) else 0


def _stands(step: OwnStep) -> Finding:
    rates = ", ".join(f"{rate:.3g}" for rate in step.rates)
    return warn(
        Where(),
        f"the learning rate is 0 in {_unmoving(step)} of {len(step.rates)} steps of the optimizer",
        why=_FLOORED.format(step.floored)
        if step.floored
        else "The schedule stands at 0: nothing is trained there.",
        owner="job",
        evidence=[seen("learning rate from the second step on", rates[:200])],
        fix=[_schedule(step)],
    )


def _cosine(cosine: Cosine) -> Finding:
    """Past its end while the first epoch lasts it was meant to count epochs; a whole training may be as short."""
    name = f"state['{cosine.name}']" if cosine.name else "scheduler"
    past = cosine.steps > cosine.length
    say = warn if past and cosine.length < cosine.batches else note
    return say(
        Where(),
        f"CosineAnnealingLR(T_max={cosine.length}) is stepped with each batch, and an epoch has {cosine.batches}: "
        f"{'it is past' if past else 'it will be past'} its end, where the learning rate rises again",
        why="T_max is counted in calls of step(): counted in epochs and stepped with each batch, the rate goes up "
        f"and down every {cosine.length} batches.",
        owner="job",
        evidence=[seen("steps of the schedule", f"{cosine.steps}, of T_max={cosine.length}")],
        fix=[
            you(
                "Count T_max in batches, or step the schedule once an epoch, outside of the step.",
                f"{name} = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))",
            )
        ],
    )


_FLOORED = "The schedule divides by `//`, at {}: the result is a whole number, 0 in nearly all steps."


def _schedule(step: OwnStep) -> Remedy:
    if step.floored:
        return you(f"Divide by `/` at {step.floored.partition(' ')[0]}.", "return current_step / warmup_steps")
    return you(
        "Print the schedule over all steps of the training, and let it be above 0.",
        "print(scheduler.get_last_lr())",
    )


def _idle(step: OwnStep) -> Finding:
    why, fix, code = _IDLE[step.idle_why]
    code = code.format(optimizer_of(step))
    if step.idle_why == "rate" and step.floored:
        why = f"The learning rate is 0 in every step that was seen. {_FLOORED.format(step.floored)}"
    if step.wiped:
        why = "zero_grad() comes between backward() and the optimizer's step: gradients are gone by then."
        fix = "Clear gradients before backward(), or after the step."
        code = "optimizer.zero_grad()\nloss.backward()\noptimizer.step()"
    sure = step.wiped or step.idle_why in ("others", "nothing")  # a schedule may begin after these steps
    return (fail if sure else warn)(
        Where(),
        f"{step.steps} of the given steps change no parameter",
        why=why,
        owner="job",
        evidence=[seen("bits of all parameters", "are those of before the steps, on all ranks")],
        fix=[_schedule(step) if step.idle_why == "rate" and step.floored else you(fix, code)],
    )


def _lost(step: OwnStep) -> Finding:
    passes = f"{step.lost} of {step.lost + 1} backward passes"
    return warn(
        Where(),
        f"the given step clears the gradients of {passes} before its optimizer takes them",
        why="zero_grad() comes with each micro-batch: only the last one is learned from.",
        owner="job",
        evidence=[
            seen("gradient of the first parameter as the next one arrives", "is gone, the weights the same")
        ],
        fix=[
            you(
                "Clear gradients once for each step of the optimizer, before the first micro-batch.",
                "optimizer.zero_grad()\nfor x, y in parts:\n    (loss_fn(model(x), y) / len(parts)).backward()\n"
                "optimizer.step()",
            )
        ],
    )


def _remade(step: OwnStep) -> Finding:
    return warn(
        Where(),
        f"the given step makes a new optimizer for each of {step.remade} steps",
        why="Its moments begin at 0 each time: Adam without them moves every weight by the whole learning rate, "
        "and momentum does nothing.",
        owner="job",
        evidence=[seen("optimizers that took a step", f"{step.remade}, one step each")],
        fix=[
            you(
                "Make it once, in the first step, and keep it in the state.",
                "if 'optimizer' not in state:\n"
                f"    state['optimizer'] = {optimizer_of(step)}\n"
                "optimizer = state['optimizer']",
            )
        ],
    )


def _undivided(step: OwnStep) -> Finding:
    count = step.undivided
    return warn(
        Where(),
        f"the given step adds up {count} micro-batches without dividing by {count}",
        why=f"Gradients are {count} times those of the mean loss: as if the learning rate were larger by as much.",
        owner="job",
        evidence=[
            seen(
                f"gradient of one batch given {count} times, against that of the given loss on it",
                f"{count} times as large",
            )
        ],
        fix=[you("Divide the loss by the number of micro-batches.", f"(loss / {count}).backward()")],
    )


def _unheld(step: OwnStep) -> Finding:
    say = warn if step.unheld_share < _FEW else note
    return say(
        Where(),
        f"{first_of(step.unheld, _SHOWN)} get gradients, and no optimizer holds them",
        why="They stay what they were at the start."
        + (" Meant so where only a head is trained." if say is note else ""),
        owner="job",
        evidence=[seen("share of all trained elements", f"{step.unheld_share:.1%}")],
        fix=[
            you(
                "Make the optimizer after the last layer, of all parameters; freeze what is not to be trained.",
                f"optimizer = {optimizer_of(step, '[p for p in model.parameters() if p.requires_grad]')}",
            )
        ],
    )


def _zero(step: OwnStep) -> Finding:
    return note(
        Where(),
        f"the gradients of {first_of(step.zero, _SHOWN)} are exactly 0 on all ranks in all steps",
        why="They learn nothing. round(), sign(), argmax and comparisons between them and the loss have a "
        "gradient of 0; so has a ReLU that is never active.",
        owner="job",
        evidence=[seen("gradients at optimizer.step(), from the second step on", "0")],
        fix=[you("Let the gradient pass by what rounds.", "z = z + (torch.round(z) - z).detach()")],
    )


def _evaluating(step: OwnStep) -> Finding:
    names = ", ".join(step.evaluating[:_SHOWN])
    since = f"from step {step.evaluating_since} on " if step.evaluating_since else ""
    mode = f"False {since.strip()}, True before" if since else "False in most of them"
    return warn(
        Where(),
        f"{since}the given step trains the model in eval(): {names} do not do what they do in training",
        why="Dropout is off, and BatchNorm uses statistics that are never updated.",
        owner="job",
        evidence=[seen("model.training in the forward passes with gradients", mode)],
        fix=[you("Go back to training after an evaluation, or begin each step with it.", "model.train()")],
    )


def _aliased(step: OwnStep) -> Finding:
    name, dot, attribute = step.aliased[0].partition(".")
    fix = f"state['{name}'] = copy.deepcopy(model).requires_grad_(False)"
    if attribute:
        fix = f"self.{attribute} = {{k: v.detach().clone() for k, v in model.state_dict().items()}}"
    return warn(
        Where(),
        f"state['{name}']{dot}{attribute} holds the weights of the model themselves, not an average of them",
        why="Whatever is trained changes it at once: it equals the model in every step.",
        owner="job",
        evidence=[seen(f"memory of the tensors in {step.aliased[0]}", "is that of the model's parameters")],
        fix=[
            you("Make a copy; state_dict() gives the model's own tensors." if attribute else "Make a copy.", fix)
        ],
    )


def _still(step: OwnStep, name: str, line: str) -> Finding:
    """`e = 0.9 * e + 0.1 * p` in a loop over tensors changes none of them."""
    at, _, code = line.partition(" ")
    average, _, value = code.partition(" = ")
    return warn(
        Where(),
        f"state['{name}'] does not change in {step.steps} steps: {at} gives its new value to a name alone",
        why=f"`{code}` binds the name {average} to a new tensor; the one in state['{name}'] stays as it is.",
        owner="job",
        evidence=[seen(f"tensors of state['{name}'] after each step", "the same bits, while the model changes")],
        fix=[you("Write into the tensor.", f"{average}.copy_({value})  # {at}")],
    )
