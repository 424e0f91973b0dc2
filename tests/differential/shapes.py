"""Machines by what is public of them, halved: where GPUs and cards hang, those of storage among them."""

from __future__ import annotations

import random

from tests.differential.machines import CardOf, MachineOf, PortOf, Slot

_GEN4 = "16.0 GT/s PCIe"


def _card(
    number: int, rate: int = 400, *, roce: bool = False, function: int = 0, speed: str = "32.0 GT/s PCIe"
) -> CardOf:
    gids = [("0000:0000:0000:0000:0000:ffff:0a01:0005", "RoCE v2")]
    port = PortOf(layer="Ethernet", rate=rate, gids=gids) if roce else PortOf(rate=rate)
    return CardOf(name=f"mlx5_{number}", ports=[port], function=function, speed=speed)


def half_dgx() -> MachineOf:
    """NVIDIA DGX H100: a GPU and a card below each switch; two dual-port cards for storage on the sockets."""
    pairs = [slot for n in range(4) for slot in _pair(n, [_card(n)])]
    storage = [Slot(cards=[_card(8, 200), _card(9, 200, function=1)]), Slot(cards=[_card(10, 200)], socket=1)]
    return MachineOf(slots=[*pairs, *storage])


def half_p5() -> MachineOf:
    """As Amazon's p5: several cards of 100 Gb/s below the switch of each GPU."""
    return MachineOf(
        slots=[slot for n in range(2) for slot in _pair(n, [_card(2 * n, 100), _card(2 * n + 1, 100)])]
    )


def half_nd() -> MachineOf:
    """As Azure's ND H100 v5: a card for each GPU below one switch with it, and the machine's own network."""
    pairs = [slot for n in range(4) for slot in _pair(n, [_card(n)])]
    return MachineOf(slots=[*pairs, Slot(cards=[_card(4, 100, roce=True)])])


def storage_as_fast() -> MachineOf:
    """Two cards for storage on the sockets, as fast as the four of the GPUs, which have switches."""
    pairs = [slot for n in range(4) for slot in _pair(n, [_card(n)])]
    return MachineOf(slots=[*pairs, Slot(cards=[_card(4)]), Slot(cards=[_card(5)], socket=1)])


def half_a3() -> MachineOf:
    """Google's a3: two GPUs and two cards below a switch, and a card for all else on the socket."""
    gpus = [Slot(gpu=True, socket=n // 2, switch=n // 2) for n in range(4)]
    cards = [Slot(cards=[_card(n, 200, roce=True)], socket=n // 2, switch=n // 2) for n in range(4)]
    return MachineOf(slots=[*gpus, *cards, Slot(cards=[_card(4, 100, roce=True)])])


def flat() -> MachineOf:
    """A virtual machine whose PCIe tree is flat: nothing is near to anything."""
    return MachineOf(slots=[Slot(gpu=True)] * 2 + [Slot(cards=[_card(n)]) for n in range(2)], sockets=1)


def half_l40s() -> MachineOf:
    """Four L40S without NVLink, a card of 200 Gb/s on one socket, and one for management on the other."""
    gpus = [Slot(gpu=True, socket=n // 2, switch=n // 2) for n in range(4)]
    return MachineOf(
        slots=[*gpus, Slot(cards=[_card(0, 200, roce=True)]), Slot(cards=[_card(1, 25, roce=True)], socket=1)],
        nvlinks=0,
    )


def slow_card_near() -> MachineOf:
    """A slow card below the switch of one GPU, a fast one on the other socket."""
    slots = [
        *_pair(0, [_card(0, 25, roce=True)]),
        Slot(gpu=True, socket=1, switch=1),
        Slot(cards=[_card(1, roce=True)], socket=1),
    ]
    return MachineOf(slots=slots)


def slow_card_beside() -> MachineOf:
    """A slow and a fast card below one switch."""
    return MachineOf(slots=[*_pair(0, [_card(0), _card(1, 100)]), *_pair(1, [_card(2)])])


def narrow_slot() -> MachineOf:
    """A fast card in a slot of an older generation beside a slower one in a good slot."""
    return MachineOf(
        slots=[*_pair(0, [_card(0, 400, speed="8.0 GT/s PCIe"), _card(1, 200)]), *_pair(1, [_card(2, 200)])]
    )


SHAPES = (
    *(half_dgx, half_p5, half_nd, half_a3, half_l40s, storage_as_fast),
    *(flat, slow_card_near, slow_card_beside, narrow_slot),
)


def shape(rng: random.Random) -> MachineOf:
    """One of them, or two GPUs with any cards anywhere."""
    if rng.random() < 0.5:
        return rng.choice(SHAPES)()
    gpus = [Slot(gpu=True, socket=n, switch=rng.choice((None, n))) for n in range(2)]
    cards = [
        Slot(cards=[_any_card(rng, n)], socket=rng.randint(0, 1), switch=rng.choice((None, 0, 1)))
        for n in range(rng.choice((1, 2, 3, 4)))
    ]
    return MachineOf(slots=[*gpus, *cards], nvlinks=rng.choice((18, 18, 0)))


def _any_card(rng: random.Random, number: int) -> CardOf:
    return _card(number, rng.choice((400, 200, 100, 25)), roce=True, speed=rng.choice(("32.0 GT/s PCIe", _GEN4)))


def _pair(number: int, cards: list[CardOf]) -> list[Slot]:
    """A GPU and cards below a switch of its own, on the first or the second socket in turn."""
    return [
        Slot(gpu=True, socket=number % 2, switch=number),
        *(Slot(cards=[card], socket=number % 2, switch=number) for card in cards),
    ]
