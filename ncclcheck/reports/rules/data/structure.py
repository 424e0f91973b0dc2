"""DAT014: whether samples can be made into batches."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.data import Made, Structure
from ncclcheck.probes.facts.data.made import Code
from ncclcheck.probes.facts.data.structure import Mixed, Unpaired, Unstacked
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    fail,
    fine,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.data import own_names
from ncclcheck.reports.subjects.data.streamed import numbers, structures

# share of samples below which those that do not stack are a failure, not another design: chosen (DAT014.rare)
_RARE = 0.1
# The sizes of a part: the first, and the rest.
_SIZES = re.compile(r"\[(\d+)((?:, \d+)*)\]")
# A tensor, as it is shown: its dtype and its sizes.
_SHAPE = re.compile(r"(float\d+|int\d+) \[(\d+(?:, \d+)*)\]")
_NUMBERS = {"bool", "int", "float"}
# An image: one, three or four channels, first or last, and two sides of ten and more.
_IMAGE = re.compile(r"\[[134], \d{2,}, \d{2,}\]|\[\d{2,}, \d{2,}, [134]\]")


@rule("DAT014", "samples collate into a batch", worst=State.FAIL, commands=("data",))
def stack(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Type, dtype and shape of every part of a sample, over as many samples as there is time for; and whether the
    loader's collate function makes a batch of samples that differ.

    ## Why it matters
    One sample in ten thousand that is 1-D, `None`, float64 or longer than the others ends the job after hours, in
    the batch that it happens to fall into: "stack expects each tensor to be equal size". Where dtypes differ,
    nothing is raised: the batch takes the dtype of the first sample, and the model gets another one now and then.

    ## Seen as
    wrong results, dies

    ## How we know
    Your own batches where the order is known (a sampler, a batch_sampler, no shuffling); where any two samples may
    meet, pairs of samples that differ, in both orders. A dataset alone is tried with torch's own collate function:
    a warning, since the loader may have another, and a failure where less than a tenth of the samples
    (`DAT014.rare`) differ from all others; a note, where the last alone is smaller in the first size of each
    part: then it gives batches. A batch size of 1, or None, stacks nothing.

    ## Fix
    - **you** a collate_fn that pads: `torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)`.
    - **you** raise on a broken sample, or leave it out when the index is made; never give `None`.
    - **you** one dtype at the end of `__getitem__`: `x.to(torch.float32)`.

    ## Source
    PyTorch, torch.utils.data, Working with collate_fn; torch.utils.data.default_collate.
    """
    rare = cluster.policy.thresholds.get("DAT014.rare", _RARE)
    made = {report.node: report.made or Made() for report in cluster.measurements.data}
    for node, structure in structures(cluster):
        mixed = [
            mixed for mixed in structure.mixed if mixed.kind == "dtype" or {mixed.usual, mixed.other} <= _NUMBERS
        ]
        if _is_rest(structure):
            first = structure.mixed[0]
            yield note(
                Where(node=node),
                f"it gives batches: the last is smaller ({first.other}, else {first.usual})",
                fix=[you("Let DataLoader put nothing together.", "DataLoader(dataset, batch_size=None)")],
            )
        elif structure.unstacked:
            yield from (
                _refused(node, made[node], structure, unstacked, rare)
                for unstacked in _telling(structure.unstacked)
            )
        elif mixed and not structure.custom and structure.batch_size not in (0, 1):
            yield from (_cast(node, made[node], mixed, structure) for mixed in mixed)
        else:
            yield fine(Where(node=node), _sound(structure))


def _is_rest(structure: Structure) -> bool:
    """Whether a dataset alone gives batches, of which the last is smaller: all parts in one first size."""
    leaves = structure.shapes[0].leaves if structure.shapes else []
    sizes = [(_SIZES.search(mixed.usual), _SIZES.search(mixed.other)) for mixed in structure.mixed]
    kinds = {(int(usual[1]), int(other[1]), usual[2] == other[2]) for usual, other in sizes if usual and other}
    last = (structure.length or 0) - 1
    if structure.batch_size is not None or structure.custom or len(sizes) < 2 or len(sizes) < len(leaves):
        return False
    usual, other, alike = kinds.pop() if len(kinds) == 1 and all(map(all, sizes)) else (0, 0, False)
    return (
        alike and other < usual and all(mixed.indices == [last] and mixed.count == 1 for mixed in structure.mixed)
    )


def _telling(refused: list[Unstacked]) -> list[Unstacked]:
    """One of each error."""
    return [*{unstacked.error.partition(":")[0]: unstacked for unstacked in reversed(refused)}.values()]


def _sound(structure: Structure) -> str:
    if not structure.mixed:
        return (
            f"{structure.read} samples have one form: "
            f"{'; '.join(structure.shapes[0].leaves[:4]) if structure.shapes else ''}"
        )
    if structure.batch_size in (0, 1):
        return f"samples differ, and are not stacked: batch_size={structure.batch_size or None}"
    made = f" into {'; '.join(structure.collated[:3])}" if structure.collated else ""
    return f"samples differ, and {structure.collate} puts them together{made}"


def _refused(node: str, made: Made, structure: Structure, refusal: Unstacked, rare: float) -> Finding:
    known = structure.custom or structure.batch_size is not None
    what = "samples of one form" if refusal.alike else "samples that differ"
    return (fail if known or _is_rare(structure, rare) else warn)(
        Where(node=node),
        f"{structure.collate} cannot make a batch of {what}, such as {numbers(refusal.indices)}: {refusal.error}",
        why="The job ends in the batch that they fall into."
        if known
        else "A loader with torch's own collate function ends in the batch that they fall into.",
        owner="job",
        evidence=[
            *(_difference(mixed, structure) for mixed in structure.mixed[:3]),
            seen(f"{structure.collate} of samples {numbers(refusal.indices)}", refusal.error),
        ],
        fix=[_other_samples(made, structure, refusal, rare)],
    )


def _other_samples(made: Made, structure: Structure, unstacked: Unstacked, rare: float) -> Remedy:
    """A few that are not like the others are mistakes; a collate function of the user's own that raises is his."""
    if structure.custom and unstacked.alike:
        return you(f"Repair {structure.collate}: it raises for samples that have one form.")
    if lines := _three_channels(made, structure):
        return you(
            "Give the images that have one channel three, in "
            f"{own_names.owner(made)}.__getitem__; of PIL, image.convert('RGB') does it.",
            *lines,
        )
    if _is_rare(structure, rare) and structure.mixed and (test := _like_others(structure)):
        first = structure.mixed[0]
        return you(
            f"Leave these samples out where the index is made, or repair them; {structure.read} of "
            f"{structure.length} were read, and {first.count} of them are such. This finds all.",
            f"kept = [i for i in range(len(dataset)) if {test}]",
            "dataset = torch.utils.data.Subset(dataset, kept)",
        )
    if value := _in_place_of_none(structure):
        first = structure.mixed[0]
        return you(
            f"Give {first.leaf or 'the sample'} a tensor of the usual form where there is none, in "
            f"{own_names.owner(made)}.__getitem__; the model can tell it by its value.",
            f"{first.leaf.rpartition('.')[2] or 'value'} = {value}  # instead of None",
        )
    if _is_rare(structure, rare) and structure.mixed:
        indices = sorted({index for mixed in structure.mixed for index in mixed.indices})
        more = structure.mixed[0].count > len(indices)
        return you(
            "Leave these samples out where the index is made, or repair them"
            + (f"; there are {structure.mixed[0].count}, such as:" if more else ":"),
            f"broken = {{{numbers(indices)}}}",
            "dataset = torch.utils.data.Subset(dataset, [i for i in range(len(dataset)) if i not in broken])",
        )
    kinds: set[str] = {mixed.kind for mixed in structure.mixed}
    if not kinds & {"type", "missing"} and "shape" in kinds and "dimensions" not in kinds:
        return you("Make samples alike, or put them together yourself.", *_alike(structure.mixed))
    return _one_form(made, structure, kinds)


def _in_place_of_none(structure: Structure) -> str:
    """A tensor like the others', where all that differs is a part that is None."""
    first = structure.mixed[0] if len(structure.mixed) == 1 else None
    usual = _SHAPE.fullmatch(first.usual) if first and first.other.startswith("NoneType") else None
    return f"torch.full([{usual[2]}], -1, dtype=torch.{usual[1]})" if usual else ""


def _three_channels(made: Made, structure: Structure) -> list[str]:
    """What `__getitem__` returns, where images differ in that some have one channel, and others three."""
    first = structure.mixed[0] if len(structure.mixed) == 1 else None
    shapes = [_SIZES.search(text) for text in (first.usual, first.other)] if first else []
    if first is None or not all(shapes) or not _IMAGE.search(first.usual) or not _IMAGE.search(first.other):
        return []
    (usual, sides), (other, same) = ((match[1], match[2]) for match in shapes if match)
    if {usual, other} != {"1", "3"} or sides != same or "numpy" in first.usual:
        return []
    form = f"torch.as_tensor({{}}).expand(3{', -1' * sides.count(',')})"
    return own_names.returned(made.code.item if made.code else None, form, first.leaf)


def _like_others(structure: Structure) -> str:
    """A condition that holds for the samples that look like most; empty where all that are not are known."""
    first = structure.mixed[0]
    size = _SIZES.search(first.usual)
    whole = structure.read >= (structure.length or 0) and first.count <= len(first.indices)
    if whole or size is None or len(structure.mixed) > 1 or first.kind not in ("shape", "dimensions"):
        return ""
    keys = [] if first.leaf in ("sample", "the sample", "") else first.leaf.split(".")
    part = "dataset[i]" + "".join(f"[{key}]" if key.isdecimal() else f'["{key}"]' for key in keys)
    return f"tuple({part}.shape) == ({size[1]}{size[2] or ','})"


def _is_rare(structure: Structure, rare: float) -> bool:
    """Nearly all samples look alike: the others are mistakes."""
    return bool(structure.mixed and structure.shapes) and structure.shapes[0].count >= (1 - rare) * structure.read


def _difference(mixed: Mixed, structure: Structure) -> Evidence:
    text = (
        f"{mixed.other} in {mixed.count} of {structure.read} samples ({numbers(mixed.indices[:4])}), else "
        f"{mixed.usual}"
    )
    return seen(f"part {mixed.leaf} of the sample" if mixed.leaf != "sample" else "the sample", text)


def _one_form(made: Made, structure: Structure, kinds: set[str]) -> Remedy:
    """What `__getitem__` returns, in one form; words alone where it is not known how it is written."""
    method = f"{own_names.owner(made)}.__getitem__"
    item, first = made.code.item if made.code else None, next(iter(structure.mixed), None)
    if first is None:
        lines = own_names.returned(item, "torch.as_tensor({})")
        return you(f"Let {method} return tensors, arrays, numbers, or dicts and lists of them.", *lines)
    if kinds & {"type", "missing"}:
        return you(
            f"Let {method} return the same parts, of the same types, for each index: part {first.leaf} is "
            f"{first.other} for {numbers(first.indices[:4])}, else {first.usual}."
        )
    usual, other = first.usual.count(","), first.other.count(",")
    if usual == other + 1:
        form = "({0} if {0}.ndim == %d else {0}[None])".replace("{0}", "{}") % (usual + 1)
        lines = own_names.returned(item, form, first.leaf)
        return you(f"Give the samples that lack a dimension one of size 1, in {method}.", *lines)
    return you(f"Make part {first.leaf} {first.usual} for each index, in {method}.")


def _alike(mixed: list[Mixed]) -> list[str]:
    """Images are made one size; what has a length is padded, by the key or the place that it has in a sample."""
    differing = [mixed for mixed in mixed if mixed.kind == "shape"]
    if all(_IMAGE.search(mixed.usual) and _IMAGE.search(mixed.other) for mixed in differing):
        return [
            "image = torch.nn.functional.interpolate(image[None].float(), size=(224, 224))[0]  # in __getitem__",
            "# or, in your transforms: torchvision.transforms.RandomResizedCrop(224)",
        ]
    names = list(dict.fromkeys(mixed.leaf for mixed in differing))
    pad, rest = "torch.nn.utils.rnn.pad_sequence", "torch.utils.data.default_collate"
    if names[0] in ("", "sample", "the sample"):
        body = [f"    return {pad}([torch.as_tensor(sample) for sample in batch], batch_first=True)"]
    elif any("." in name for name in names):
        body = ["    return tuple(zip(*batch))  # lists, as models of detection take them"]
    elif all(name.isdecimal() for name in names):
        body = [
            f"    pad = {{{', '.join(names)}}}  # places in a sample",
            "    parts = [[torch.as_tensor(one) if place in pad else one for one in column]",
            "             for place, column in enumerate(zip(*batch))]",
            f"    return tuple({pad}(part, batch_first=True) if place in pad else {rest}(part)",
            "                 for place, part in enumerate(parts))",
        ]
    else:
        body = [
            f"    pad = {{{', '.join(repr(name) for name in names)}}}",
            "    parts = {key: [torch.as_tensor(one[key]) if key in pad else one[key] for one in batch]",
            "             for key in batch[0]}",
            f"    return {{key: {pad}(part, batch_first=True) if key in pad else {rest}(part)",
            "            for key, part in parts.items()}",
        ]
    return ["def collate(batch):", *body, "DataLoader(dataset, collate_fn=collate)"]


def _cast(node: str, made: Made, mixed: Mixed, structure: Structure) -> Finding:
    return warn(
        Where(node=node),
        f"part {mixed.leaf} is {mixed.other} in {mixed.count} of {structure.read} samples, else {mixed.usual}",
        why="Nothing is raised: the dtype of a batch depends on which sample comes first in it.",
        owner="job",
        evidence=[
            _difference(mixed, structure),
            *(seen("a batch of both", text) for text in structure.collated[:2]),
        ],
        fix=[
            you(
                f"Give one dtype at the end of {own_names.owner(made)}.__getitem__.",
                *own_names.returned(made.code.item if made.code else None, _to(mixed.usual), mixed.leaf),
            )
        ],
    )


def _to(usual: str) -> str:
    """What makes a tensor, an array or a number of this dtype."""
    kind = usual.partition(" ")[0]
    if kind in _NUMBERS:
        return f"{kind}({{}})"
    return f"torch.as_tensor({{}}).to(torch.{kind})" if kind.isalnum() else "{}"


@rule("DAT029", "a batch keeps together what belongs to one sample", worst=State.FAIL, commands=("data",))
def paired(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The rows of a batch that your own collate function makes: whether all parts of a row are of the same sample.

    ## Why it matters
    A collate function that sorts sequences by length and leaves the labels as they were, or takes them from the
    wrong sample, raises no error. The model is trained with wrong labels, and learns little or nothing.

    ## Seen as
    wrong results

    ## How we know
    Eight samples are collated, and each row is searched for the parts of each sample: equal, in another dtype, or
    padded. Where two parts of a row fit no common sample, the row is named with both. Parts that are changed
    (normalised, mixed, one-hot) are not compared, and a part that the batch holds twice, as for mixup or
    negatives, may stand anywhere.

    ## Fix
    - **you** sort or filter the samples themselves, before their parts are taken apart.

    ## Source
    PyTorch, torch.utils.data, Working with collate_fn; torch.nn.utils.rnn.pack_padded_sequence (enforce_sorted).
    """
    code = {report.node: report.made.code for report in cluster.measurements.data if report.made}
    for node, structure in structures(cluster):
        if structure.unpaired:
            yield _mixed_up(node, structure, structure.unpaired, code.get(node))
        elif structure.custom and structure.read:
            yield fine(Where(node=node), f"{structure.collate}: no row of parts of two samples was seen")


def _mixed_up(node: str, structure: Structure, example: Unpaired, code: Code | None) -> Finding:
    return fail(
        Where(node=node),
        f"{structure.collate} mixes up samples: row {example.row} of a batch holds part {example.first} of sample "
        f"{example.first_of} and part {example.second} of sample {example.second_of}",
        why="Inputs are trained with labels of other samples: no error is raised, and little is learned.",
        owner="job",
        evidence=[
            seen(
                f"a batch of {example.of} samples by {structure.collate}",
                f"{example.rows} rows of two samples each",
            )
        ],
        fix=[
            you(
                f"In {structure.collate}: sort, shuffle or filter the samples first, and take them apart "
                "afterwards.",
                *_sorted_first(structure, example, code),
            )
        ],
    )


def _sorted_first(structure: Structure, unpaired: Unpaired, code: Code | None) -> list[str]:
    """The first line of the collate function. It sorts as that does, so that nothing is sorted apart later."""
    names = code.collate.parameters if code and code.collate else []
    long = [mixed.leaf for mixed in structure.mixed if mixed.kind == "shape"]
    part = (long or [name for name in (unpaired.first, unpaired.second) if not name.startswith("the ")] or [""])[0]
    if len(names) != 1 or not long:
        return []
    keys = "".join(f"[{key}]" if key.isdecimal() else f'["{key}"]' for key in part.split(".") if key != "sample")
    return [
        f"{names[0]} = sorted({names[0]}, key=lambda sample: len(sample{keys}), reverse=True)  # its first line"
    ]
