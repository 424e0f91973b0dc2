"""DAT026: whether the loader gives as many samples a second as the GPU takes, and which settings give more."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.data import Speed
from ncclcheck.probes.facts.data.speed import Held, Point
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    fine,
    note,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.data import curve, examined

_ENOUGH = "Take the setting that was measured to be enough."
_ALONE = "Read samples in the training process: to send one costs more than to make it."


@rule("DAT026", "the loader keeps up with the GPU", worst=State.WARN, commands=("data",))
def feeds(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Samples a second of the loader with 0, 1, 2, 4 ... workers up to the cores of a rank, and with its own number;
    with twice the prefetch_factor, and where there is a GPU with and without pin_memory.

    ## Why it matters
    A GPU that waits for data costs as much as one that computes. The number of workers is usually guessed: too
    few starve the GPU, and too many starve each other.

    ## Seen as
    wrong results

    ## How we know
    A real DataLoader a point, from your own pieces, a fixed short time after its workers are warm, on few samples
    again and again: files come from memory. The first epoch from a slow disk is slower, and so is one where all
    ranks load at once on cores that they share. `--need` is what one rank's GPU takes: more than the best
    point gave in its fastest quarter is a warning, and so is a loader whose own setting gives less where another
    gives enough. A setting is recommended where it gives a tenth more (`DAT026.gain`, 1.1) and its slowest quarter
    beats the other's fastest. One sample that takes 20 times the median, and over 50 ms, is a note: batches come
    in order, so all wait for it.

    ## Fix
    - **you** the settings that are recommended; then `ncclcheck smoke` shows what a step still waits for.
    - **you** decode once and store smaller samples; move resizing and augmentation to the GPU.

    ## Source
    PyTorch, torch.utils.data, Multi-process data loading and Memory pinning; pytorch/pytorch#13246.
    """
    gain = cluster.policy.thresholds.get("DAT026.gain", 1.1)
    looked = examined.speeds(cluster)
    if not any(curve.plain(speed) for _, speed in looked):
        raise NothingToJudge(f"the speed could not be measured: {_why(looked[0][1])}")
    for node, speed in looked:
        if not curve.plain(speed):
            yield _nothing(node, speed)
            continue
        yield _need(node, speed, gain) if speed.need > 0 else _measured(node, speed, gain)
        yield from _pinned(node, speed, gain)
        yield from _slow_sample(node, speed)


def _why(speed: Speed) -> str:
    return speed.missed[0].why if speed.missed else "there was no time"


def _nothing(node: str, speed: Speed) -> Finding:
    """On this node alone."""
    return unknown(
        Where(node=node),
        f"the speed of the loader could not be measured: {_why(speed)}",
        why="The other nodes may have to wait for this one.",
        owner="job",
    )


def _need(node: str, speed: Speed, gain: float) -> Finding:
    """Against what the GPU takes."""
    points = curve.plain(speed)
    top = max(points, key=lambda point: point.samples_s)
    mine = curve.own(speed)
    if speed.need > top.high:
        return warn(
            Where(node=node),
            f"no setting that was tried feeds the GPU: {curve.rate(top.samples_s)} samples/s at most with "
            f"{curve.counted(top.workers)}, {curve.rate(speed.need)} are needed",
            why=f"The GPU waits {1 - top.samples_s / speed.need:.0%} of the time, however fast it is.",
            owner="job",
            evidence=_evidence(speed),
            fix=[
                *_fastest(speed, gain),
                you("Make a sample cheaper: decode once, store it smaller, augment on the GPU."),
            ],
        )
    if mine is not None and speed.workers is not None and mine.high < speed.need:
        enough = next((point for point in points if point.workers and point.high >= speed.need), top)
        return warn(
            Where(node=node),
            f"{curve.gives(mine)} samples/s, {curve.rate(speed.need)} are needed; {curve.gives(enough)}",
            why=f"The GPU waits {1 - mine.samples_s / speed.need:.0%} of the time.",
            owner="job",
            evidence=_evidence(speed),
            fix=[_setting(enough, speed, _ENOUGH if enough.workers else _ALONE)],
        )
    return fine(
        Where(node=node),
        f"{curve.gives(top)} samples/s, {curve.rate(speed.need)} are needed",
        *_evidence(speed),
    )


def _measured(node: str, speed: Speed, gain: float) -> Finding:
    """Without a need: the curve, and what is better than the loader's own setting."""
    mine, better = curve.own(speed), _better(speed, gain)
    if mine is None or better is None or speed.workers is None:
        return fine(Where(node=node), f"samples/s by workers: {curve.by_workers(speed)}", *_evidence(speed))
    more = better.samples_s / max(mine.samples_s, 1e-9)
    return note(
        Where(node=node),
        f"{curve.gives(better)} samples/s, {more:.2g} times as many as the loader's {curve.counted(mine.workers)}",
        why="Give `--need` or run ncclcheck smoke to see whether the GPU can use so many.",
        evidence=_evidence(speed),
        fix=[_setting(better, speed, "Take the fastest setting that was measured.")],
    )


def _better(speed: Speed, gain: float) -> Point | None:
    """A setting that beats the loader's own; without workers the training process would wait itself."""
    mine = curve.own(speed)
    top = curve.best([point for point in curve.plain(speed) if point.workers], gain)
    more = mine is not None and top is not None and top.workers > mine.workers  # fewer are better by chance
    return top if mine and top and more and curve.beats(top, mine, gain) else None


def _fastest(speed: Speed, gain: float) -> list[Remedy]:
    better = _better(speed, gain)
    return [_setting(better, speed, "Take the fastest setting that was measured.")] if better else []


def _setting(point: Point, speed: Speed, text: str) -> Remedy:
    """Written as it is pasted; each keyword only where it was seen to matter."""
    words = [f"num_workers={point.workers}"]
    if point.workers:
        words += [f"prefetch_factor={twice.prefetch}" for twice in _more_prefetch(speed, point)]
        words += ["persistent_workers=True"] if _starts_often(speed, point) else []
    return you(text, f"DataLoader(..., {', '.join(words)})")


def _more_prefetch(speed: Speed, point: Point) -> list[Point]:
    others = [other for other in speed.points if not other.to_gpu and other.workers == point.workers]
    return [other for other in others if other.prefetch > point.prefetch and curve.beats(other, point)]


def _starts_often(speed: Speed, point: Point) -> bool:
    """Where the start of workers takes a tenth of an epoch."""
    epoch = (speed.length or 0) / max(point.samples_s, 1e-9)
    return 0 < epoch < 10 * point.start_s and not speed.persistent


def _evidence(speed: Speed) -> list[Evidence]:
    all_evidence = [seen("samples/s by workers, warm", curve.by_workers(speed))]
    shown = [point for point in curve.plain(speed) if point.workers][-1:]
    all_evidence += [seen(f"start of {curve.counted(point.workers)}", f"{point.start_s:.2g} s") for point in shown]
    all_evidence += [seen(f"with {curve.counted(missed.workers)}", missed.why) for missed in speed.missed[:2]]
    return all_evidence


def _pinned(node: str, speed: Speed, gain: float) -> Iterator[Finding]:
    plain = next((point for point in speed.points if point.to_gpu and not point.pinned), None)
    pinned = next((point for point in speed.points if point.to_gpu and point.pinned), None)
    if plain and pinned and curve.beats(pinned, plain, gain):
        rates = f"{curve.rate(pinned.samples_s)} samples/s reach the GPU, {curve.rate(plain.samples_s)} without"
        yield note(
            Where(node=node),
            f"pin_memory=True pays: {rates}",
            evidence=[seen("batches copied to the GPU", rates)],
            fix=[you("Pin the memory of batches.", "DataLoader(..., pin_memory=True)")],
        )


def _slow_sample(node: str, speed: Speed) -> Iterator[Finding]:
    slow = speed.slowest
    if slow and slow.seconds > 0.05 and slow.seconds > 20 * slow.median_s:
        seconds = f"{slow.seconds:.3g} s, the median is {slow.median_s:.3g} s"
        yield note(
            Where(node=node),
            f"sample {slow.index} takes {seconds}: batches come in order, so all wait for it",
            evidence=[seen(f"dataset[{slow.index}]", seconds)],
            fix=[
                you(
                    "From torch 2.6 on, batches may come in the order in which they are done.",
                    "DataLoader(..., in_order=False)",
                )
            ],
        )


_ALMOST_ALL = 0.7  # of a read: no number of workers gives more than 1.4 times as much as one
_CHEAP_S = 0.001  # of a read: what takes less is not what training waits for


@rule("DAT031", "workers read side by side", worst=State.WARN, commands=("data",))
def side_by_side(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    For which share of a read a sample's reader holds a lock that all workers share: one of multiprocessing in the
    dataset, or an exclusive lock on a file.

    ## Why it matters
    A lock around the whole of `__getitem__` lets one worker read at a time: eight workers give what one gives, and
    seven wait. On a network file system each lock is a round trip to its server besides.

    ## Seen as
    wrong results

    ## How we know
    Up to 64 samples are read in one process, where nobody else wants the lock; the time from taking to leaving it
    is added up. 70 % of the reading time and more (`DAT031.share`, 0.7) is a warning; a note where a read takes
    less than 1 ms, or the loader has one worker or none. A file that is closed without unlocking it counts until
    the reads are over.

    ## Fix
    - **you** give each worker a client, connection or descriptor of its own; then it needs no lock between
      processes.
    - **you** hold the lock for what must be alone (a write to a cache), and read and decode outside of it.

    ## Source
    Python, multiprocessing, Synchronization between processes; Linux manual, flock(2), NFS details.
    """
    most = cluster.policy.thresholds.get("DAT031.share", _ALMOST_ALL)
    looked = examined.speeds(cluster)
    if not any(speed.each_s for _, speed in looked):
        raise NothingToJudge(f"no read could be timed: {_why(looked[0][1])}")
    for node, speed in looked:
        if not speed.each_s:
            continue
        long = [hold for hold in speed.held if hold.share >= most]
        for holding in long:
            yield _one_at_a_time(node, speed, holding)
        if not long:
            yield fine(Where(node=node), "no lock that workers share is held for most of a read")


def _one_at_a_time(node: str, speed: Speed, holding: Held) -> Finding:
    harmless = speed.each_s < _CHEAP_S or speed.workers in (0, 1)
    alone = "it begins to matter with two workers" if speed.workers in (0, 1) else "a read is short"
    fix = you(
        "Read outside of the lock: hold it for what must be alone.",
        f"value = ...  # read and decode here\nwith {holding.lock}:\n    ...  # the write to what is shared",
    )
    if holding.lock.startswith("/"):
        fix = you(
            "Lock only to write what is not there yet, under another name that is then renamed, which is atomic.",
            f'os.replace(path + ".tmp", path)  # then readers need no lock on {holding.lock}',
        )
    own = you(
        "Where it guards a client that one process at a time may use: give each worker one of its own, and a lock "
        "of threads.",
        f"{holding.lock} = threading.Lock()  # not multiprocessing.Lock()",
    )
    return (note if harmless else warn)(
        Where(node=node),
        f"{holding.lock} is held for {holding.share:.0%} of a read: workers read one at a time",
        why=f"Any number of workers gives at most {1 / max(holding.share, 0.01):.2g} times as much as one."
        + (f" A note: {alone}." if harmless else ""),
        owner="job",
        evidence=[seen("seconds of a read, median", f"{speed.each_s:.3g}"), *_evidence(speed)],
        fix=[fix] if holding.lock.startswith("/") else [own, fix],
    )
