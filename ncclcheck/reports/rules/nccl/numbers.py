"""Numbers that NCCL takes as they are and that make it hang, crawl or compute wrongly."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, State, fail, note, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nccl import profiles
from ncclcheck.reports.subjects.nccl.settings import Settings, nodes_with

_MOST_SOCKETS = 64  # NCCL's MAX_SOCKETS, of one connection. Source: NVIDIA/nccl src/transport/net_socket.cc
_BUFFERS = ("NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE")
# an LL128 line carries 120 bytes of data and 8 of flag, so that its buffer is 120 times a power of two
_LL128_UNIT = 120
# what NCCL takes as they are: multiples of a warp; others up to 512 are replaced by its default
_THREADS = (64, 128, 256, 512)
_WARP = 32  # threads. Source: CUDA C++ Programming Guide
_LARGE_CHUNK_BYTES = 2**20  # from here on results were wrong. Source: NVIDIA/nccl#2408
_BOUNDS = (("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"))


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


@rule("NCC013", "NCCL opens at most 64 sockets per connection", worst=State.WARN, needs=("job.variables",))
def sockets(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD.

    ## Why it matters
    On plain Ethernet several sockets a connection bring speed, so people raise both numbers. NCCL takes at most
    64 in all; above that it reduces them by itself and the setting is another than the one that was measured. On
    a slow machine the helper threads also take the cores of the data loaders.

    ## Seen as
    slow

    ## How we know
    Both variables, as NCCL parses them, in the environment or in nccl.conf. One that is not set counts as 1: NCCL
    chooses more by itself only on AWS and Google's cloud.

    ## Fix
    - **you** 4 threads with 4 sockets each is NVIDIA's advice for 100 Gb/s; measure it with `ncclcheck bench`.

    ## Source
    NCCL user guide, NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD (NCCL 2.4 and later).
    """
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    for settings in nodes_with(cluster, *names):
        threads, each = (settings.number(name) or 1 for name in names)
        if threads * each > _MOST_SOCKETS:
            yield warn(
                settings.where,
                f"{threads} threads with {each} sockets each are more than {_MOST_SOCKETS} a connection",
                why="NCCL takes at most 64 and reduces the numbers by itself.",
                owner="job",
                evidence=settings.evidence(*names),
                fix=[
                    you(
                        "Keep the product at 64 or below.", "export NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4"
                    )
                ],
            )


@rule("NCC014", "NCCL's buffer sizes are valid", worst=State.FAIL, needs=("job.variables",))
def buffer_sizes(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_BUFFSIZE, NCCL_LL_BUFFSIZE and NCCL_LL128_BUFFSIZE, where somebody set them.

    ## Why it matters
    NCCL does not check them. A size that is no power of two, or for LL128 no multiple of 120 by a power of two,
    made jobs hang in the first collective or fail their result check. The maintainers advise not to set them.

    ## Seen as
    hangs

    ## How we know
    The values as NCCL parses them. A wrong form is a failure for the two LL buffers and a warning for
    NCCL_BUFFSIZE, for which the guide asks for a power of two.

    ## Fix
    - **you** remove them. Vendor plugins set NCCL_BUFFSIZE themselves where it helps (8388608 on AWS).

    ## Source
    NVIDIA/nccl#1739; NCCL user guide, NCCL_BUFFSIZE.
    """
    for settings in nodes_with(cluster, *_BUFFERS):
        for name in _BUFFERS:
            size = settings.number(name)
            unit = _LL128_UNIT if name == "NCCL_LL128_BUFFSIZE" else 1
            if size is None or size < 0 or (size % unit == 0 and _is_power_of_two(size // unit)):
                continue
            level = warn if name == "NCCL_BUFFSIZE" else fail
            form = "120 times a power of two" if unit > 1 else "a power of two"
            yield level(
                settings.where,
                f"{name}={settings.text(name)} is not {form}",
                why="NCCL does not check the size: jobs hung or computed wrong results with such a value.",
                owner="job",
                evidence=settings.evidence(name),
                fix=[you("Remove it; NCCL knows the size.", f"unset {name}")],
            )


@rule("NCC015", "NCCL_NTHREADS is a valid number of threads", worst=State.FAIL,
      needs=("job.variables",))  # fmt: skip
def threads(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_NTHREADS, where somebody set it.

    ## Why it matters
    It is the number of CUDA threads in a block of NCCL's kernels. With a number that is no power of two results
    were wrong without any error. One that is no multiple of 32, or is below 64 or above 512, is not taken at all:
    NCCL then goes by its own number or by the bound. The variable is meant for finding faults, and any value makes
    some sizes slower.

    ## Seen as
    slow, wrong results

    ## How we know
    The value as NCCL parses it; 64, 128, 256 and 512 are allowed. A number that is not taken is a warning only.

    ## Fix
    - **you** remove it from the job script and from nccl.conf.

    ## Source
    NVIDIA/nccl#698; NCCL user guide, NCCL_NTHREADS.
    """
    for settings in nodes_with(cluster, "NCCL_NTHREADS"):
        number = settings.number("NCCL_NTHREADS")
        if number is None or number <= 0 or number in _THREADS:
            continue
        taken = number % _WARP == 0 and _THREADS[0] <= number <= _THREADS[-1]
        level = fail if taken else warn
        yield level(
            settings.where,
            f"NCCL_NTHREADS={settings.text('NCCL_NTHREADS')} is none of 64, 128, 256 and 512",
            why="With such a number NCCL has given wrong results without an error."
            if taken
            else "NCCL rejects it and uses another number, its default or the nearest bound.",
            owner="job",
            evidence=settings.evidence("NCCL_NTHREADS"),
            fix=[you("Remove it.", "unset NCCL_NTHREADS")],
        )


@rule("NCC016", "NCCL_CHUNK_SIZE is not large enough to corrupt data", worst=State.FAIL, needs=("job.variables",))
def chunk_size(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_CHUNK_SIZE of 1 MiB or more.

    ## Why it matters
    It stands in tuning advice, NVIDIA's own among it, and no code checks it against the buffers. From 1 MiB on
    results were wrong without an error, or the GPU reported Xid 31. NVIDIA reproduced it.

    ## Seen as
    wrong results, dies

    ## How we know
    The value as NCCL parses it.

    ## Fix
    - **you** remove it. NCCL_P2P_NET_CHUNKSIZE is another variable and did not show the fault by itself.

    ## Source
    NVIDIA/nccl#2408; NCCL user guide, performance and tuning.
    """
    for settings in nodes_with(cluster, "NCCL_CHUNK_SIZE"):
        if (settings.number("NCCL_CHUNK_SIZE") or 0) >= _LARGE_CHUNK_BYTES:
            yield fail(
                settings.where,
                f"NCCL_CHUNK_SIZE={settings.text('NCCL_CHUNK_SIZE')} is 1 MiB or more",
                why="NCCL then computes wrong results without an error, or the GPU reports Xid 31.",
                owner="job",
                evidence=settings.evidence("NCCL_CHUNK_SIZE"),
                fix=[you("Remove it.", "unset NCCL_CHUNK_SIZE")],
            )


@rule("NCC017", "the number of channels is left to NCCL, or its bounds are valid", worst=State.WARN,
      needs=("job.variables",))  # fmt: skip
def channels(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_MIN_CTAS and NCCL_MAX_CTAS, and their old names NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS.

    ## Why it matters
    They hold for all process groups of a job and go before what the program itself asks for with
    `ProcessGroupNCCL.Options`. A high minimum takes multiprocessors away from the computation, and on plain
    Ethernet it cut the bandwidth of large messages to a quarter. With a minimum above the maximum NCCL goes by
    the maximum and says so only at NCCL_DEBUG=INFO; older versions stopped with `invalid argument`.

    ## Seen as
    slow, setting without effect

    ## How we know
    The values as NCCL parses them. A minimum above the maximum is a warning, any other value a note.

    ## Fix
    - **you** remove them; where one group needs another number, set max_ctas in the options of that group
      (NCCL 2.17 and later).

    ## Source
    NVIDIA/nccl#450; NCCL user guide, NCCL_MIN_CTAS and NCCL_MAX_CTAS; NVIDIA/nccl src/init.cc.
    """
    for settings in nodes_with(cluster, *(name for pair in _BOUNDS for name in pair)):
        yield from (finding for pair in _BOUNDS for finding in _bounds(settings, *pair))


def _bounds(settings: Settings, low: str, high: str) -> Iterator[Finding]:
    least, most = settings.number(low), settings.number(high)
    if least is None and most is None:
        return
    here = [name for name in (low, high) if name in settings.all]
    fix = [you("Leave the number to NCCL; bench --with measures it.", f"unset {' '.join(here)}")]
    evidence = settings.evidence(low, high)
    if least is not None and most is not None and least > most > 0:
        yield warn(
            settings.where,
            f"{low}={least} is above {high}={most}",
            why="NCCL uses the maximum; older versions stop with 'invalid argument'.",
            owner="job",
            evidence=evidence,
            fix=fix,
        )
    else:
        if {*here} <= profiles.keeps([settings.node]).keys():
            return
        values = " and ".join(item.value for item in evidence)
        why = "It holds for every process group and goes before what the program asks for."
        yield note(
            settings.where, f"the number of channels is fixed: {values}", why=why, evidence=evidence, fix=fix
        )
