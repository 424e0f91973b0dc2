"""Rules about what makes a GPU slow: throttling, clocks, power limits, heat."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Gpu, Unread, known, value_or
from ncclcheck.reports.judgement.findings import Finding, State, admin, note, warn
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nodes.cards import Card, busy, cards, leave_out, odd_ones

_GPUS = "nodes.gpus.cards"
_SLOWED = {
    "hw_thermal": ("it is too hot and was slowed down by its hardware", "Look at fans, air flow and heat sinks."),
    "hw_power_brake": ("its power supply asserted power brake", "Look at power supplies, cables and rack power."),
    "sw_thermal": ("it is too hot and the driver slows it down", "Look at fans, air flow and heat sinks."),
    "hw_slowdown": ("its hardware slows it down", "Look at heat and at power supplies."),
}
_NORMAL = {"idle", "sw_power_cap", "sync_boost", "display"}


@rule("GPU011", "no GPU is throttled", worst=State.WARN, over=_GPUS, needs=(".throttle",))
def throttled(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether heat or the power supply is throttling a GPU right now.

    ## Why it matters
    A collective goes at the pace of the slowest rank. One GPU at half its clock halves the speed of all, and no
    error is printed anywhere.

    ## Seen as
    slow

    ## How we know
    NVML's reasons for the current clock: hw_slowdown, hw_thermal_slowdown, hw_power_brake_slowdown and
    sw_thermal_slowdown are warnings. Idle, and the power cap that a busy GPU normally runs into, are sound.

    ## Fix
    - **admin** fans, dust, air flow, inlet temperature; for the power brake: power supplies and their cables.
    - **you** leave the node out, or put it where its pace does not matter.

    ## Source
    NVML API reference, nvmlClocksEventReasons; NVIDIA GPU debug guidelines; nvidia-smi(1), clocks event reasons.
    """
    for card in cards(cluster):
        reasons = known(card.gpu.throttle)
        for reason in (name for name in _SLOWED if name in reasons):
            what, look = _SLOWED[reason]
            yield warn(
                card.where,
                what,
                why="All ranks go at the pace of the slowest.",
                owner="node",
                evidence=[card.seen("clock event reasons", ", ".join(reasons)), card.seen("now", _now(card.gpu))],
                fix=[admin(look, "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"), leave_out()],
            )
            break


def _now(gpu: Gpu) -> str:
    facts = (("clock", "MHz"), ("temperature", "C"), ("power_draw", "W"))
    return ", ".join(
        f"{getattr(gpu, name):g} {unit}" for name, unit in facts if not isinstance(getattr(gpu, name), Unread)
    )


@rule(
    "GPU012",
    "busy GPUs run at their full clock",
    worst=State.WARN,
    over=_GPUS,
    needs=(".utilization", ".clock", ".clock_max", ".throttle"),
)
def clocks(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The clock of a GPU that computes, against its maximum; and a clock that somebody has fixed.

    ## Why it matters
    A clock that was locked for a benchmark or to save power (`nvidia-smi -lgc`, `-ac`) stays locked after the
    job that set it. One such GPU slows every job down, and looks healthy to every other check.

    ## Seen as
    slow

    ## How we know
    nvmlDeviceGetClockInfo. Low clocks of an idle GPU are sound, so only one with at least 50 % utilization
    (`GPU012.busy`) is judged: under 60 % of its maximum (`GPU012.share`) with no reason of heat or power.

    ## Fix
    - **admin** `nvidia-smi -rgc`, `nvidia-smi -rac`; a job epilog that resets clocks.
    - **you** leave the node out until then.

    ## Source
    nvidia-smi(1), --lock-gpu-clocks and --reset-gpu-clocks; NVML API reference, applications clocks setting.
    """
    limits = cluster.policy.thresholds
    gpus = [card for card in cards(cluster) if busy(card, limits.get("GPU012.busy", 50.0))]
    if not gpus:
        raise NothingToJudge("no GPU is computing, and an idle one lowers its clock")
    share = limits.get("GPU012.share", 0.6)
    for card in gpus:
        clock, most = known(card.gpu.clock), known(card.gpu.clock_max)
        if clock < share * most and not set(known(card.gpu.throttle)) - _NORMAL - {"application_clocks"}:
            yield warn(
                card.where,
                f"computes at {clock} of {most} MHz, and neither heat nor power is the reason",
                why="A locked clock slows all ranks down.",
                owner="node",
                evidence=[
                    card.seen("clock", f"{clock} of {most} MHz"),
                    card.seen("clock event reasons", ", ".join(known(card.gpu.throttle)) or "none"),
                ],
                fix=[admin("Take the lock off.", "nvidia-smi -i N -rgc", "nvidia-smi -i N -rac"), leave_out()],
            )


@rule(
    "GPU013",
    "power limits are at their default and equal on all GPUs",
    worst=State.WARN,
    over=_GPUS,
    needs=(".power_cap", ".power_default"),
)
def power(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The power limit that is set on each GPU, against its default and against other GPUs of its model.

    ## Why it matters
    A limit is kept until the next reboot, and often set by a script that did not run on all nodes. A GPU
    with less power lowers its clock under load, and every rank waits for it.

    ## How we know
    nvmlDeviceGetPowerManagementLimit and its default. A limit that differs from that of most GPUs of the model,
    is a warning; the same lower limit on all of them, or on the only one (laptops choose theirs), is a note.

    ## Fix
    - **admin** `nvidia-smi -pl WATTS` on all nodes alike.
    - **you** leave the node out until then.

    ## Source
    nvidia-smi(1), --power-limit; NVML API reference.
    """
    gpus = list(cards(cluster))
    odd = {id(card.gpu): most for card, _, most in odd_ones(gpus, lambda card: round(known(card.gpu.power_cap)))}
    for card in gpus:
        cap, default = known(card.gpu.power_cap), known(card.gpu.power_default)
        if id(card.gpu) in odd:
            yield _capped(card, cap, odd[id(card.gpu)])
        elif cap < 0.99 * default:
            what = f"its power limit is {cap:g} W, {default:g} W by default"
            evidence = [card.seen("power limit", f"{cap:g} W, default {default:g} W")]
            yield note(card.where, what, owner="site", evidence=evidence)


def _capped(card: Card, cap: float, usual: int) -> Finding:
    default = known(card.gpu.power_default)
    return warn(
        card.where,
        f"its power limit is {cap:g} W, on most others {usual} W",
        why="GPUs with different limits compute at different speeds, and all ranks wait for the slowest.",
        owner="node",
        evidence=[card.seen("power limit", f"{cap:g} W, default {default:g} W")],
        fix=[admin("Set the same limit everywhere.", f"nvidia-smi -i N -pl {usual}"), leave_out()],
    )


@rule("GPU014", "no GPU is close to thermal throttling", worst=State.WARN, over=_GPUS, needs=(".temperature",))
def heat(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How many degrees are left until a GPU throttles.

    ## Why it matters
    A GPU that is hot before the job starts, or much hotter than its neighbours, will be throttled under load: a
    fan has failed, a heat sink came loose, or warm air flows back.

    ## Seen as
    slow

    ## How we know
    nvmlDeviceGetMarginTemperature (Hopper and later), else the slowdown threshold less the temperature. At most
    5 degrees (`GPU014.degrees`) is a warning.

    ## Fix
    - **admin** fans, air flow, inlet temperature, heat sink; water temperature where it is cooled by water.
    - **you** leave the node out where GPU011 speaks too.

    ## Source
    NVML API reference, nvmlDeviceGetMarginTemperature and nvmlDeviceGetTemperatureThreshold; nvidia-smi(1).
    """
    least = cluster.policy.thresholds.get("GPU014.degrees", 5.0)
    judged = [(card, left) for card in cards(cluster) if (left := _degrees_left(card.gpu)) is not None]
    if not judged:
        raise NothingToJudge("no GPU says at which temperature it slows down")
    for card, left in judged:
        if left <= least:
            text = f"{known(card.gpu.temperature)} C, {left} below the slowdown"
            yield warn(
                card.where,
                f"{known(card.gpu.temperature)} C: {left} degrees until it must slow down",
                why="Under load it will be throttled, and all ranks go at the pace of the slowest.",
                owner="node",
                evidence=[card.seen("temperature", text)],
                fix=[admin("Look at fans and air flow.", "nvidia-smi -q -d TEMPERATURE"), leave_out()],
            )


def _degrees_left(gpu: Gpu) -> int | None:
    if not isinstance(gpu.margin, Unread):
        return gpu.margin
    limit = value_or(gpu.slowdown_at, 0)
    return limit - known(gpu.temperature) if limit else None
