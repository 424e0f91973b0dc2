"""TRN: the user's own model, loss and step enter the same collectives on all ranks."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training import Entered, EnteredCollective
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, fail, seen, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.training.trained import checked, place, ranks


@rule("TRN028", "all ranks enter the same collectives", worst=State.FAIL, over="", commands=("smoke",))
@checked("entered")
def entered(cluster: Cluster, fact: Entered) -> Iterator[Finding]:
    """
    ## What
    The collectives (`all_reduce`, `barrier`, ...) that the given model, loss and step call themselves, by rank.

    ## Why it matters
    A collective under a condition that holds on some ranks only, such as `if rank == 0` or `if loss > 1`, hangs
    the job until the timeout, or is matched with another one and mixes up numbers.

    ## Seen as
    hangs, wrong results

    ## How we know
    In the first passes, and with `--step` in each step that is tried (20 at most), all ranks exchange which
    collective they are about to enter, of how many elements, and from which line, before any of them enters it.
    Collectives of a group of some ranks are not followed. The first backward pass counts as one: DDP averages in
    it.

    ## Fix
    - **you** call the collective on every rank; what only some ranks contribute is a zero on the others.

    ## Source
    PyTorch, Distributed communication package, Debugging torch.distributed applications; pytorch/pytorch#21144.
    """
    if {"none", "backward"} <= {call.name for call in fact.calls}:
        yield _no_backward(cluster, fact)
        return
    if len({call.name for call in fact.calls}) == 1:
        yield _sizes(cluster, fact)
        return
    odd = fact.ranks[0] if fact.ranks else 0
    calls = [call for call in fact.calls if call.lines]
    text = "; ".join(f"rank {rank} in {call.where}" for rank, call in enumerate(fact.calls[:4]))
    when = f"in step {fact.step} of the given steps " if fact.step else ""
    yield fail(
        place(cluster, odd) if len(fact.ranks) == 1 and len(fact.entered) > 2 else Where(),
        f"{when}ranks enter different collectives: {text}",
        why="A collective ends on no rank before all have entered it: the job hangs, or mixes up numbers.",
        owner="job",
        evidence=[seen(f"rank {rank}", call.where) for rank, call in enumerate(fact.calls[:8])],
        fix=[
            _alone(calls[0])
            if _of_rank_0(fact)
            else _together(calls[0] if calls else EnteredCollective("the collective"))
        ],
    )


def _sizes(cluster: Cluster, record: Entered) -> Finding:
    """As where each rank has as many masked tokens, or boxes, as its own batch holds."""
    first = record.calls[0]
    sizes = ", ".join(f"{call.size} on rank {rank}" for rank, call in enumerate(record.calls[:4]))
    when = f"in step {record.step} of the given steps " if record.step else ""
    return fail(
        place(cluster, record.ranks[0]) if len(record.ranks) == 1 and len(record.entered) > 2 else Where(),
        f"{when}ranks enter {first.name} with different sizes: {sizes}",
        why="It takes as much from each rank: NCCL hangs or writes past an end, gloo ends the job.",
        owner="job",
        evidence=[seen(f"rank {rank}", call) for rank, call in enumerate(record.entered[:8])],
        fix=[
            you(
                f"At {first.lines[0] if first.lines else 'that line'} give all ranks the same size: exchange the "
                "lengths first, and fill up to the longest.",
                "lengths = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]\n"
                "dist.all_gather(lengths, torch.tensor([len(x)]))\n"
                "most = int(max(lengths))\n"
                "x = torch.cat([x, x.new_zeros(most - len(x), *x.shape[1:])])  # and cut to lengths afterwards",
            )
        ],
    )


def _no_backward(cluster: Cluster, record: Entered) -> Finding:
    """As where a rank skips a batch whose loss is NaN."""
    without = [rank for rank, call in enumerate(record.calls) if call.name == "none"]
    step = record.step or 1
    return fail(
        place(cluster, without[0]) if len(without) == 1 else Where(),
        f"{ranks(without, len(without))} {'calls' if len(without) == 1 else 'call'} no backward() in step {step}, "
        "while the others do",
        why="DDP averages gradients in backward(): the others wait there until the timeout, or get those of "
        "another step.",
        owner="job",
        evidence=[seen(f"rank {rank}", call) for rank, call in enumerate(record.entered[:8])],
        fix=[
            you(
                "Let all ranks decide alike whether to skip a batch, before backward().",
                "skip = torch.tensor(float(not torch.isfinite(loss)), device=loss.device)\n"
                "dist.all_reduce(skip, op=dist.ReduceOp.MAX)\nif skip:\n    return loss",
            )
        ],
    )


def _of_rank_0(record: Entered) -> bool:
    """Whether rank 0 alone enters one, as under `if rank == 0`."""
    return [bool(call.lines) for call in record.calls] == [True] + [False] * (len(record.calls) - 1)


def _alone(call: EnteredCollective) -> Remedy:
    """Of a call under `if rank == 0`: that of the collective, or of the user's function that has it."""
    in_function = len(call.lines) > 1
    if call.name == "barrier" and not in_function:
        return you(
            f"Take the barrier at {call.outermost} out of the condition on the rank.",
            "if dist.get_rank() == 0:\n    ...  # what rank 0 does alone\ndist.barrier()  # on every rank",
        )
    function = call.function if in_function else f"dist.{call.name}"
    return you(
        f"Let all ranks call {function} at {call.outermost}, and rank 0 use what it gives: take the call out of "
        "its condition, on the rank or on its data.",
        f"value = {function}(...)  # on every rank, before the condition\nif dist.get_rank() == 0:\n"
        "    print(value)",
    )


def _together(call: EnteredCollective) -> Remedy:
    code = ["total = value if condition else torch.zeros_like(value)\ndist.all_reduce(total)"]
    line = call.lines[0] if call.lines else "the named line"
    return you(
        f"Call {call.name} at {line} on every rank, whatever its data; give zeros where it has nothing.",
        *(code if call.name == "all_reduce" else []),
    )
