"""What the ranks of the job measured of themselves and of each other, to tell a slow host from a slow link."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ncclcheck.probes.facts.guard.bounds import Amount, Bits, Count, Whole
from ncclcheck.probes.facts.measured.bench import Times


class PairTime(Struct, frozen=True, kw_only=True):
    """One exchange between two nodes; each direction is timed apart, at its receiver.

    rail: the local rank that measured on both nodes, which goes with one NIC where nodes have several.
    timed_out: nothing had arrived in time; failed: the transport reported an error (`reason`). changed: bytes of
    a direction that arrived otherwise than they were sent; null where that was not looked at. waited: the share of
    the exchange's time in which threads of the two ranks wanted a core and had none, both sides together.
    """

    a: str
    b: str
    bytes: Whole
    rail: Count = 0
    round: Count = 0
    a_to_b_gb_s: Amount | None = None
    b_to_a_gb_s: Amount | None = None
    a_to_b_changed: Whole | None = None
    b_to_a_changed: Whole | None = None
    latency_us: Amount | None = None
    waited: Amount = 0.0
    state: Literal["ok", "timed_out", "failed"] = "ok"
    reason: str = ""


class Lateness(Struct, frozen=True, kw_only=True):
    """How much later than the first rank one rank came to an iteration, microseconds over iterations.

    The late rank waits least: this is the longest wait of any rank less the rank's own wait, so no clocks are
    compared. Waiting is the time in the operation and in the barrier after it: a slow link, for which both wait,
    makes nobody late. last: of how many iterations it was the last. What its process did meanwhile: wall and CPU
    seconds, seconds in which its threads were runnable and had no core (schedstat, summed over threads), seconds
    in which it did not run though a timer of its own was due (stopped, throttled), involuntary context switches.
    running: how many threads of the whole machine could run, for each of its cores, on average of some looks.
    continued: how often it was let go on by SIGCONT, as after a SIGSTOP.
    """

    rank: Count
    node: str
    iterations: Whole
    last: Whole
    late_us: Times
    wall_s: Amount
    cpu_s: Amount
    runqueue_s: Amount | None = None
    stalled_s: Amount = 0.0
    involuntary: Whole = 0
    running: Amount | None = None
    continued: Whole = 0


class RankSpeed(Struct, frozen=True, kw_only=True):
    """What one rank reaches alone, without any network; null where it was not measured.

    device: `cuda:0` or `cpu`. to_device and from_device: copies between pinned host memory and the GPU. waited:
    share of the time in which its threads wanted a core that they had none. products: how often one matrix product
    was computed whose result is known, wrong_products: how often it was another; product_sum: a hash of one.
    """

    rank: Count
    node: str
    device: str
    memory_gb_s: Amount | None = None
    matmul_gflop_s: Amount | None = None
    to_device_gb_s: Amount | None = None
    from_device_gb_s: Amount | None = None
    waited: Amount = 0.0
    reason: str = ""
    products: Whole = 0
    wrong_products: Whole = 0
    product_sum: Bits | None = None


class NodeSpeed(Struct, frozen=True, kw_only=True):
    """An all_reduce among the ranks of one node alone: NVLink, PCIe or shared memory, and no network.

    waited: as that of a rank, of the lowest one.
    """

    node: str
    ranks: Count
    bytes: Whole
    busbw_gb_s: Amount | None = None
    waited: Amount = 0.0
    reason: str = ""
