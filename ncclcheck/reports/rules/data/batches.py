"""DAT022 and DAT023: what a batch takes on its way from a worker to the training process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ncclcheck.probes.facts import Cluster, Limits, known, value_or
from ncclcheck.probes.facts.data import Made
from ncclcheck.probes.facts.data.resources import CollatedBatch, DataResources
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.data import examined, own_names
from ncclcheck.reports.text.words.fold import size

_DATA = ("data",)


@rule("DAT022", "batches are not small views of large tensors", worst=State.WARN, commands=_DATA)
def views(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The memory behind the tensors of a batch, against the bytes of their elements.

    ## Why it matters
    `self.data[i * 16 : (i + 1) * 16]` is a view: sent to another process, the whole of `self.data` goes with it.
    torch's own collate function copies into a new tensor, and all is well; one that gives the samples as they are
    (`collate_fn=lambda batch: batch`, `batch_size=None`) makes each worker put the whole into /dev/shm.

    ## Seen as
    wrong results

    ## How we know
    The loader's collate function is given its first samples. The storages of the result, each counted once, hold
    eight times its elements (`DAT022.ratio`) and 256 KiB more (`DAT022.kib`). Tensors that are in shared memory
    already do not count.

    ## Fix
    - **you** `.clone()` the view in `__getitem__`, or stack in collate_fn.

    ## Source
    PyTorch, Tensor Views; PyTorch, torch.multiprocessing, Sharing CPU tensors.
    """
    limits = cluster.policy.thresholds
    judged, unread = examined.resources(cluster, "batch")
    yield from unread
    made = {report.node: report.made or Made() for report in cluster.measurements.data}
    for node, resources in judged:
        batch = known(resources.batch)
        more = batch.held - batch.used
        if (
            batch.held < limits.get("DAT022.ratio", 8.0) * batch.used
            or more < limits.get("DAT022.kib", 256.0) * 1024
        ):
            yield fine(Where(node=node), f"{size(batch.held)} are behind {size(batch.used)} of tensors in a batch")
            continue
        yield warn(
            Where(node=node),
            f"a batch of {batch.samples} samples has {size(batch.used)} of elements and drags {size(batch.held)} "
            "with it",
            why="All of it goes to /dev/shm, and stays in memory as long as one tensor of the batch does.",
            owner="job",
            evidence=[
                seen("storages of the batch", f"{size(batch.held)} in {batch.tensors}"),
                seen("collate_fn", batch.collate or ("torch's own" if batch.size else "none: batch_size=None")),
            ],
            fix=[_copied(made.get(node, Made()), batch)],
        )


def _copied(made: Made, batch: CollatedBatch) -> Remedy:
    parts = [name for name in batch.views if name]
    lines = own_names.returned(made.code.item if made.code else None, "{}.clone()", next(iter(parts), ""))
    what = f"Copy part {', '.join(parts)} of the sample" if parts else "Copy what the sample needs"
    return you(f"{what}, in {own_names.owner(made)}.__getitem__.", *lines)


@rule(
    "DAT023", "/dev/shm and the open-file limit are large enough for the batches", worst=State.FAIL, commands=_DATA
)
def room(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    What the batches that workers have ready need in /dev/shm and in descriptors, against what this node has.

    ## Why it matters
    Each tensor of a batch is a file in /dev/shm and a descriptor. A container has 64 MiB there unless it is given
    more: workers then die of SIGBUS or with "unable to allocate shared memory". A batch of many tensors meets
    the limit of open files: "Too many open files", or "received 0 items of ancdata".

    ## Seen as
    wrong results, out of memory, dies

    ## How we know
    Bytes of the loader's own batch x workers x prefetch_factor (2 where nobody says) x ranks of the node, and one
    batch a rank more, against what statvfs says is free: more is a failure, over eight tenths (`DAT023.share`) a
    warning. Tensors of a batch x workers x prefetch_factor against RLIMIT_NOFILE in the same way. A loader that
    does not say how many workers it has is judged for those that we tried, and only warned about.

    ## Fix
    - **you** `docker run --ipc=host` or `--shm-size=16g`; in Kubernetes an emptyDir of medium Memory on /dev/shm.
    - **you** fewer workers, a smaller prefetch_factor; stack tensors in collate_fn.
    - **you** `ulimit -n 65536`, or `torch.multiprocessing.set_sharing_strategy("file_system")`.

    ## Source
    PyTorch, torch.multiprocessing, Sharing strategies; pytorch/pytorch#5040, pytorch/pytorch#108861,
    pytorch/pytorch#973; shm_overview(7), getrlimit(2).
    """
    judged, unread = examined.resources(cluster, "batch")
    yield from unread
    share = cluster.policy.thresholds.get("DAT023.share", 0.8)
    for node, resources in judged:
        if not resources.workers:
            yield fine(Where(node=node), "the loader has no workers: nothing goes through /dev/shm")
            continue
        findings = [
            finding for finding in (_memory(node, resources, share), _files(node, resources, share)) if finding
        ]
        yield from findings or [fine(Where(node=node), _enough(resources))]


def _ready(resources: DataResources) -> int:
    """Batches that the workers of one rank may have ready at once."""
    return resources.workers * max(1, resources.prefetch)


def _bytes(batch: CollatedBatch) -> int:
    """Of the loader's own batch, in memory segments. Views of one tensor are one segment however many they are."""
    factor = batch.size / max(1, batch.samples) if batch.size else 1.0
    grows = batch.tensors >= batch.samples or batch.held <= 2 * batch.used
    return int(batch.held * (factor if grows else 1.0))


def _tensors(batch: CollatedBatch) -> int:
    """A collate function that does not stack gives several tensors a sample."""
    if batch.size and batch.tensors >= batch.samples > 1:
        return batch.tensors * batch.size // batch.samples
    return batch.tensors


def _needed(resources: DataResources) -> int:
    """Bytes in /dev/shm, of all ranks of the node. A view's storage is shared once by each worker."""
    batch = known(resources.batch)
    dragged = batch.size and batch.tensors < batch.samples and batch.held > 2 * batch.used
    ready = resources.workers if dragged else _ready(resources) + 1
    return _bytes(batch) * ready * max(1, resources.ranks_per_node)


def _enough(resources: DataResources) -> str:
    free = value_or(resources.shm, None)
    return f"{size(_needed(resources))} of /dev/shm are needed" + (f", {size(free.free)} are free" if free else "")


def _memory(node: str, resources: DataResources, share: float) -> Finding | None:
    shm, needed = value_or(resources.shm, None), _needed(resources)
    if shm is None or needed <= share * max(0, shm.free):
        return None
    sizes = f"{size(needed)} needed, {size(shm.free)} of {size(shm.size)} free"
    return _bad(resources, needed > shm.free)(
        Where(node=node),
        f"the batches that workers have ready need {size(needed)} in /dev/shm, which has {size(shm.free)} free",
        why='Workers end with "Bus error" or "unable to allocate shared memory", and the job with them.',
        owner="job",
        evidence=[seen("statvfs(/dev/shm)", sizes), *_sum(resources)],
        fix=[
            you("Give the container more of it.", "docker run --ipc=host ...", "docker run --shm-size=16g ..."),
            *_fewer(resources, shm.free),
            admin("Make it larger.", "mount -o remount,size=50% /dev/shm"),
        ],
    )


def _bad(resources: DataResources, certain: bool) -> Callable[..., Finding]:
    return fail if certain and resources.asked else warn


def _fewer(resources: DataResources, free: int) -> list[Remedy]:
    """As many workers as there is room for, where there is room for any."""
    each = _bytes(known(resources.batch)) * max(1, resources.ranks_per_node)
    batches = int(0.8 * free / max(1, each)) - 1
    if batches < 1:
        return [you("Make batches smaller: there is no room for two of them.")]
    workers, prefetch = (min(resources.workers, batches // 2), 2) if batches > 1 else (1, 1)
    return [you("Have fewer ready.", f"DataLoader(..., num_workers={workers}, prefetch_factor={prefetch})")]


def _sum(resources: DataResources) -> list[Evidence]:
    batch = known(resources.batch)
    words = f"{resources.workers} workers x {resources.prefetch} batches x {size(_bytes(batch))}"
    ranks = f" x {resources.ranks_per_node} ranks" if resources.ranks_per_node > 1 else ""
    return [seen("worked out", words + ranks)]


def _files(node: str, resources: DataResources, share: float) -> Finding | None:
    limit: Limits | None = value_or(resources.nofile, None)
    each = _tensors(known(resources.batch))
    needed = each * _ready(resources) + resources.descriptors
    if limit is None or limit.soft < 0 or needed <= share * limit.soft:
        return None
    fix: list[Remedy] = [
        you(
            "Stack tensors in collate_fn: one tensor for each part of a batch, not one a sample.",
            "torch.stack([s[0] for s in batch])",
        ),
        you("Raise the limit, where the job starts.", "ulimit -n 65536"),
    ]
    return _bad(resources, needed > limit.soft)(
        Where(node=node),
        f"the batches that workers have ready hold {needed} descriptors, the limit is {limit.soft}",
        why='The training process ends with "Too many open files" or "received 0 items of ancdata".',
        owner="job",
        evidence=[
            seen("tensors in a batch", each),
            seen("batches ready at once", _ready(resources)),
            seen("ulimit -n", limit.soft),
        ],
        fix=fix,
    )
