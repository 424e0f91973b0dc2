"""What the checks of the training run saw."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole, Word
from ncclcheck.probes.facts.training.course import Course


class DifferingTensor(Struct, frozen=True, kw_only=True):
    """A tensor of the model that has other bits on some ranks. ranks: the first of those that differ from the most
    common bits (from rank 0's where no bits are more common than others), count: how many do.

    local: a running mean or variance of BatchNorm, of which every rank has its own. unsaved: no state_dict has it.
    how: a parameter of another shape, or frozen, on some ranks, in words.
    """

    name: str
    kind: Literal["parameter", "buffer"] = "parameter"
    ranks: list[Count] = field(default_factory=list)
    count: Count = 0
    local: bool = False
    unsaved: bool = False
    how: str = ""


class Agreement(Struct, frozen=True, kw_only=True):
    """Parameters and buffers, compared over all ranks bit by bit. tensors: of the model; differ: how many of them;
    tied: no bits were more common than others, so that nobody can tell who is wrong.
    """

    tensors: Count
    differ: Count = 0
    tied: bool = False
    differing: list[DifferingTensor] = field(default_factory=list)


class Doubles(Struct, frozen=True, kw_only=True):
    """Parameters of the bare model that lie in the same memory and are not one Parameter, by their names."""

    parameters: Count
    groups: list[list[str]] = field(default_factory=list)


class TakenSteps(Struct, frozen=True, kw_only=True):
    """How many steps the optimizer of a rank took."""

    rank: Count
    steps: Count


class Trained(Struct, frozen=True, kw_only=True):
    """Steps on the ranks' own batches. every: compared after so many; after: the step at which a difference was
    seen first, `agreement` is of that comparison, else of the last one. taken: ranks that took fewer steps.
    """

    steps: Count
    every: Count
    agreement: Agreement
    after: Count | None = None
    taken: list[TakenSteps] = field(default_factory=list)


class FixedBatch(Struct, frozen=True, kw_only=True):
    """The loss of one batch that was trained on again and again; null where it was no number."""

    steps: Count
    first: float | None
    last: float | None


class RankError(Struct, frozen=True, kw_only=True):
    """How far a rank's gradient is from what it should be, as a share of its norm (null: not finite), and the
    parameter that adds most to it.
    """

    rank: Count
    error: Amount | None
    parameter: str = ""


class Gradients(Struct, frozen=True, kw_only=True):
    """Gradients against a reference. micro_batches: that were added up, all but the last without communication.

    errors: of the worst ranks against the mean of what each rank computes alone with the bare model; wrong: how
    many ranks are beyond the tolerance. joined: of the worst rank against one pass over the joined batch; null
    where that was not looked at, `not_joined` says why. hooked: parameters with a hook on their gradient.
    tokens: that the loss counts on each rank, where their numbers are all that sets the joined batch apart.
    """

    tolerance: Amount
    micro_batches: Count = 1
    samples: Whole = 0
    errors: list[RankError] = field(default_factory=list)
    wrong: Count = 0
    joined: Amount | None = None
    not_joined: str = ""
    hooked: list[str] = field(default_factory=list)
    tokens: list[Whole] = field(default_factory=list)


class Cosine(Struct, frozen=True, kw_only=True):
    """A CosineAnnealingLR that is stepped with each batch. length: its `T_max`; steps: that it has taken, which
    are more, or the batches of an epoch are. name: in the step's state, empty where it is kept elsewhere.
    """

    name: str
    length: Count
    steps: Count
    batches: Count


class WrittenWeights(Struct, frozen=True, kw_only=True):
    """A line of the user's that changes weights outside of an optimizer. name: a parameter that it changes; step:
    the first of the given steps that came to it; ranks: that came to it at all, none: all did. uneven: these came
    to it in different steps.
    """

    at: str
    name: str
    step: Count
    ranks: list[Count] = field(default_factory=list)
    uneven: bool = False


class OwnStep(Struct, frozen=True, kw_only=True):
    """The user's own step. state: entries of what it keeps that differ over ranks. off: of the gradients that its
    optimizer was given first, from those of one process on all batches, as a share of the norm; ratio: the factor
    between them; tolerance: of `off`. not_joined: why they were not compared. taken: steps that the optimizers of
    each rank took, where these differ. unaveraged: the optimizers of ranks were given different gradients.

    clipped_scaled: gradients were clipped while they were still multiplied by GradScaler's factor. idle: the steps
    changed no parameter; idle_why: since the optimizers hold others, their learning rate is 0, they never step, no
    gradient arrives, or weights of 16 bits round the changes away. stale: a step added its gradients up on some
    that the optimizer had taken already.

    clipped: clipping comes only before the backward pass, or only after the optimizer's step. wiped: zero_grad
    comes between the backward pass and the step. unheld: parameters that get gradients and stand in no optimizer,
    unheld_share: of all elements that are trained. evaluating: layers that eval() changes, where the model is in
    it while it trains. aliased: averages of the weights that are the weights themselves. still: one that never
    changes, and the line whose result goes into a name of the loop alone. undivided: micro-batches
    that a step adds up without dividing by their number; 0: it divides, or that is not known. unfrozen: parameters
    that were frozen or not there when the model was wrapped, and are trained since. evaluating_since: the step
    from which on the model was in eval(), after it had trained; 0: from the first one, or never.

    factors: of each rank, by which it scaled its pieces of the gradients (FSDP), where these differ. rates: the
    learning rate of each step after the first. floored: the user's line that divides by `//` in a schedule.
    cosine: one that comes to its end within an epoch, stepped with each batch.
    reseeded: generators that each step leaves in one and the same state, on all ranks, whatever it was before.
    seeded_at: the user's line that sets torch's seed in the step. calls: of the step until its optimizer takes
    one, 0: none of those that were tried. reached: parameters that the first backward pass of the given loss does
    not reach, and a later one of the step does. plateaus: names of schedulers in its state that are fed a metric.
    unaveraged_only: parameters, where gradients of others are averaged. remade: steps, each by an optimizer with
    moments that was made for it; 0: one optimizer took several. skipped: calls in which the optimizers of some
    ranks only take a step. altered: ranks had the same gradients after the backward pass, and not at the
    optimizer's step. added: parameters that are in the model since it was wrapped, where DDP ended the last of
    `steps`, for it still waits for those that were there. zero: parameters whose gradients are there, and exactly
    0 on all ranks in all steps after the first. optimizer: the call that would make one of the step's again, with
    what it was given: `torch.optim.SGD(model.parameters(), lr=0.1)`. lost: backward passes of one optimizer step
    whose gradients were cleared before it, on the same weights; the fewest of any step. of_rank: the gradients of
    all ranks are those of this one's batch. past_wrap: the step never calls the wrapped model, and averages its
    gradients itself.
    """

    steps: Count
    parameters: Agreement
    tolerance: Amount = 1e-3
    clipped_scaled: bool = False
    idle: bool = False
    idle_why: Literal["", "others", "rate", "never", "nothing", "rounded"] = ""
    clipped: Literal["", "before", "after"] = ""
    wiped: bool = False
    unheld: list[str] = field(default_factory=list)
    unheld_share: Amount = 0.0
    evaluating: list[str] = field(default_factory=list)
    evaluating_since: Count = 0
    factors: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    floored: str = ""
    cosine: Cosine | None = None
    reseeded: list[str] = field(default_factory=list)
    seeded_at: str = ""
    calls: Count = 1
    reached: list[str] = field(default_factory=list)
    plateaus: list[str] = field(default_factory=list)
    aliased: list[str] = field(default_factory=list)
    still: list[str] = field(default_factory=list)
    undivided: Count = 0
    unfrozen: list[str] = field(default_factory=list)
    stale: bool = False
    lost: Count = 0
    of_rank: Count | None = None
    past_wrap: bool = False
    unaveraged: bool = False
    unaveraged_only: list[str] = field(default_factory=list)
    optimizer: str = ""
    remade: Count = 0
    skipped: list[Count] = field(default_factory=list)
    altered: bool = False
    added: list[str] = field(default_factory=list)
    zero: list[str] = field(default_factory=list)
    taken: list[Count] = field(default_factory=list)
    state: list[DifferingTensor] = field(default_factory=list)
    written: list[WrittenWeights] = field(default_factory=list)
    off: Amount | None = None
    ratio: float | None = None
    not_joined: str = ""


class LostState(Struct, frozen=True, kw_only=True):
    """Something that is otherwise after the user's own load than it was when it was saved, and on which ranks.

    kind: an entry of a state_dict in the step's state; a whole number (counter), or another value, of that state
    itself; a number that a module of the model keeps as an attribute; a parameter or buffer (weight); or a global
    variable of the user's module. holder:
    the expression of what holds it, `state['trainer'].averages`; how: that has a state_dict, or is a dict or list
    of tensors like the model's parameters (weights), or a value.
    """

    name: str
    kind: Literal["state", "counter", "number", "attribute", "weight", "global"]
    ranks: list[Count] = field(default_factory=list)
    holder: str = ""
    how: Literal["state_dict", "weights", "value"] = "state_dict"


class OwnCheckpoint(Struct, frozen=True, kw_only=True):
    """A run that went on for `steps` from the user's own save and load, against the one that saved.

    off: the largest difference of a parameter as a share of its norm, with the same generators in both; parameter:
    which. unseeded: the step draws random numbers, and loading did not restore the generator. together: a file
    that several ranks write with torch.save. replaced: parameters of the model that loading put in the place of
    those that DDP had wrapped; unheld: of these, that no optimizer holds; untied: one that shared its memory with
    such a one before.
    """

    steps: Count
    lost: list[LostState] = field(default_factory=list)
    off: Amount = 0.0
    parameter: str = ""
    unseeded: bool = False
    together: str = ""
    replaced: list[str] = field(default_factory=list)
    unheld: list[str] = field(default_factory=list)
    untied: str = ""


class KeptState(Struct, frozen=True, kw_only=True):
    """A tensor, array or number beside parameters, buffers and state_dicts that changes as steps are taken, and
    with which steps come to something else. name: `model.vq.codebook`, `state['center']`, `train.PRIORS`; ranks:
    those that have another than most, none: it is the same on all. owner: its class; made: what __init__ gives it,
    as written.
    """

    name: str
    of: Literal["model", "state", "global"]
    kind: Literal["tensor", "array", "number"]
    ranks: list[Count] = field(default_factory=list)
    owner: str = ""
    made: str = ""


class Beside(Struct, frozen=True, kw_only=True):
    """What stands beside parameters and buffers after so many steps."""

    steps: Count
    kept: list[KeptState] = field(default_factory=list)


class ReadTwice(Struct, frozen=True, kw_only=True):
    """A sample that more than one place of an epoch holds, and on which ranks."""

    index: Whole
    ranks: list[Count] = field(default_factory=list)


class EnteredCollective(Struct, frozen=True):
    """A collective that a rank is about to enter. lines: the user's, innermost first: `model.py:20 in forward`.
    size: what all ranks must have in common, `12 elements`; empty where they need not, or it is not known.
    """

    name: str
    lines: tuple[str, ...] = ()
    size: str = ""

    def __str__(self) -> str:
        """As results keep it: `all_reduce of 4 elements at a.py:20 in mean, called at b.py:51 in step`."""
        what = f"{self.name} of {self.size}" if self.size else self.name
        return f"{what} at {', called at '.join(self.lines)}" if self.lines else what

    @classmethod
    def read(cls, text: str) -> EnteredCollective:
        """What __str__ has written."""
        what, _, lines = text.partition(" at ")
        name, _, size = what.partition(" of ")
        return cls(name, tuple(lines.split(", called at ")) if lines else (), size)

    @property
    def where(self) -> str:
        """Without its size."""
        return str(EnteredCollective(self.name, self.lines))

    @property
    def function(self) -> str:
        """The user's function that calls it."""
        return self.lines[0].rpartition(" in ")[2]

    @property
    def outermost(self) -> str:
        """File and number of the last of the lines."""
        return self.lines[-1].partition(" in ")[0]


class Entered(Struct, frozen=True, kw_only=True):
    """The collective that each rank was about to enter, as Call writes it, where they differ.
    ranks: those that differ from the most common one. empty: all ranks entered the same. step: of the given steps
    that came to it, 0: none was given, or not reached.
    """

    entered: list[str] = field(default_factory=list)
    ranks: list[Count] = field(default_factory=list)
    step: Count = 0

    @property
    def calls(self) -> list[EnteredCollective]:
        """By rank."""
        return [EnteredCollective.read(call) for call in self.entered]


class Contents(Struct, frozen=True, kw_only=True):
    """Whether ranks have the same samples at the same indices. compared: indices that were read on all ranks.

    ranks: that have others than most; index: one of them; sizes: of the datasets of ranks where they differ.
    common: of `followed` samples of all ranks, how many another rank has too, at whatever index.
    """

    compared: Count
    ranks: list[Count] = field(default_factory=list)
    index: Whole | None = None
    sizes: list[Whole] = field(default_factory=list)
    common: Whole = 0
    followed: Whole = 0


class EpochSamples(Struct, frozen=True, kw_only=True):
    """What all ranks read in one epoch, by their samplers. missing, repeated: samples that none reads, and reads
    beyond the first. batch: samples that one step of all ranks takes. contents: None where nobody could compare.
    """

    sampler: str
    dataset: Whole
    ranks: Count
    batch: Whole
    read: Whole
    missing: Whole = 0
    repeated: Whole = 0
    twice: list[ReadTwice] = field(default_factory=list)
    absent: list[Whole] = field(default_factory=list)
    contents: Contents | None = None


class EpochsDiffer(Struct, frozen=True, kw_only=True):
    """Whether epochs differ. shuffled: whether the first one is in another order than the dataset; same: ranks of
    which the second epoch is the first one again, count: how many.
    """

    sampler: str
    shuffled: bool
    same: list[Count] = field(default_factory=list)
    count: Count = 0


class Metric(Struct, frozen=True, kw_only=True):
    """The mean loss of samples, summed up over ranks, and computed by one process; null: no number."""

    samples: Whole
    reduced: float | None
    whole: float | None


class SharedGenerator(Struct, frozen=True, kw_only=True):
    """A random generator with the same state on several ranks. generator: python, numpy, torch, cuda, loader."""

    generator: Word
    ranks: list[Count]
    count: Count
    when: Literal["made", "trained"]


class Generators(Struct, frozen=True, kw_only=True):
    """The generators of ranks, each of which was given a seed of its own before the data were made."""

    looked_at: list[Word]
    shared: list[SharedGenerator] = field(default_factory=list)
    workers: Count = 0


class UnusedParameter(Struct, frozen=True, kw_only=True):
    """A parameter without a gradient after a backward pass of the bare model. everywhere: on all ranks. varies:
    another pass reaches it, on the same batch by other random numbers (dice), or on another batch.
    """

    name: str
    ranks: list[Count]
    everywhere: bool = True
    varies: Literal["", "dice", "batch"] = ""


class Unregistered(Struct, frozen=True, kw_only=True):
    """Tensors that get a gradient and are no parameters of the model. name: of the first, `moe.experts[0].weight`;
    count, elements: of all of them; owner, attribute: the class of the module that keeps them, and under which
    name; kind: in what.
    """

    name: str
    count: Count
    elements: Whole
    owner: str
    attribute: str
    kind: Literal[
        "tensor", "modules in a list", "modules in a dict", "tensors in a list", "tensors in a dict", "object"
    ]


class Unused(Struct, frozen=True, kw_only=True):
    """Parameters that a batch does not reach. parameters: of the model that want a gradient. unregistered: what a
    batch reaches, and `model.parameters()` does not hold.
    """

    parameters: Count
    count: Count = 0
    unused: list[UnusedParameter] = field(default_factory=list)
    unregistered: list[Unregistered] = field(default_factory=list)


class RankBatches(Struct, frozen=True, kw_only=True):
    """How many batches a rank has in an epoch."""

    rank: Count
    batches: Whole


class Lengths(Struct, frozen=True, kw_only=True):
    """The batches that ranks have in an epoch. short: ranks that have fewer than the most; count: how many.
    upto: a stream without a length was read up to so many batches to count them; 0: it has a length.
    """

    least: Whole
    most: Whole
    short: list[RankBatches] = field(default_factory=list)
    count: Count = 0
    upto: Whole = 0


class NotFiniteStep(Struct, frozen=True, kw_only=True):
    """What was infinite or NaN on a rank. origin: the part of the batch, or the operation with the user's line,
    that came first, empty where neither is known; of_batch: it is the batch.
    """

    rank: Count
    loss: bool = False
    origin: str = ""
    of_batch: bool = False
    parameters: list[str] = field(default_factory=list)


class Precision(Struct, frozen=True, kw_only=True):
    """Loss and gradients in the precision that was asked for. loss, full: of rank 0, in it and in fp32."""

    precision: Literal["fp32", "bf16", "fp16"]
    loss: float | None
    full: float | None
    bad: list[NotFiniteStep] = field(default_factory=list)
    count: Count = 0


class Unchecked(Struct, frozen=True, kw_only=True):
    """A check that was not made, and why. late: there was no time for it."""

    check: Word
    why: str
    late: bool = False


class Checks(Struct, frozen=True, kw_only=True):
    """One aspect a field; None: not looked at, for the reason in `unchecked`."""

    before_wrap: Agreement | None = None
    doubles: Doubles | None = None
    trained: Trained | None = None
    fixed_batch: FixedBatch | None = None
    gradients: Gradients | None = None
    accumulation: Gradients | None = None
    samples: EpochSamples | None = None
    orders: EpochsDiffer | None = None
    metric: Metric | None = None
    generators: Generators | None = None
    unused: Unused | None = None
    lengths: Lengths | None = None
    precision: Precision | None = None
    own_step: OwnStep | None = None
    entered: Entered | None = None
    own_checkpoint: OwnCheckpoint | None = None
    beside: Beside | None = None
    courses: list[Course] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
