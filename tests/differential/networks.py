"""Networks of a node as a generator invents them: names, families, states, and what the user set."""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec import Struct

NAMES = (
    "eth0", "eth1", "eth10", "eno1", "eno2", "enp3s0f0", "ens5", "bond0", "bond0.100", "ib0", "ib1", "ibmgmt",
    "ibp12s0", "docker0", "docker_gwbridge", "local0", "lom1", "virbr0", "virbr0-nic", "br-1a2b3c", "veth1f2e",
    "cni0", "flannel.1", "cali7", "tailscale0", "wlan0", "Eth0", "e", "i", "l", "eth,0", "^eth", "=eth0",
    "mgmt0", "idrac", "tunl0",
)  # fmt: skip
KINDS = ("bridge", "ifb", "veth", "macvlan")
_BASE = "zz-base"


class Card(Struct, frozen=True, kw_only=True):
    """An interface. labels: a second name of an IPv4 address, as ifconfig's eth0:1."""

    name: str
    kind: str
    up: bool
    addresses: list[str]
    labels: dict[str, str] = {}


class NetworkCase(Struct, frozen=True, kw_only=True):
    """A node's network, the environment of the job, and the files that configure NCCL."""

    cards: list[Card]
    env: dict[str, str]
    lo_up: bool = True
    home_conf: str | None = None
    etc_conf: str | None = None
    named_conf: str | None = None

    def links(self) -> list[str]:
        """The lines of ip(8) that make it."""
        lines = ["link set lo up"] if self.lo_up else []
        lines += [
            f"link add name {_BASE} type bridge",
            f"link set dev {_BASE} addrgenmode none",
            f"link set dev {_BASE} up",
        ]
        for number, card in enumerate(self.cards):
            lines += _made(card, number)
        return lines


def _made(card: Card, number: int) -> Iterator[str]:
    if card.name != "lo":
        yield {
            "bridge": f"link add name {card.name} type bridge",
            "ifb": f"link add name {card.name} type ifb",
            "veth": f"link add name {card.name} type veth peer name zz-peer{number}",
            "macvlan": f"link add link {_BASE} name {card.name} type macvlan mode bridge",
        }[card.kind]
        yield f"link set dev {card.name} addrgenmode none"
        if card.up:
            yield f"link set dev {card.name} up"
    for address in card.addresses:
        label = f" label {card.labels[address]}" if address in card.labels else ""
        tentative = " nodad" if ":" in address else ""
        yield f"addr add {address} dev {card.name}{label}{tentative}"


def network_case(rng: random.Random) -> NetworkCase:
    """One case; the same generator state gives the same one."""
    how_many = rng.choice((0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 20))
    names = rng.sample(NAMES, how_many)
    cards = [_card(rng, name) for name in names]
    if rng.random() < 0.1:
        cards.append(Card(name="lo", kind="loopback", up=True, addresses=["10.255.0.1/32"]))
    shuffled = rng.sample(cards, len(cards))
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    for name, value in _settings(rng, shuffled).items():
        place = rng.choice(("env", "env", "env", "home_conf", "etc_conf", "named_conf"))
        if place == "env":
            env[name] = value
        else:
            files[place] = files.get(place, "") + _line(rng, name, value)
            if rng.random() < 0.2:
                env[name] = rng.choice(("eth0", "=lo", "AF_INET", "10.1.0.9:4000"))
    return NetworkCase(cards=shuffled, env=env, lo_up=rng.random() < 0.9, **files)


def _card(rng: random.Random, name: str) -> Card:
    addresses: list[str] = []
    labels: dict[str, str] = {}
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2))):
        address = (
            f"10.{rng.randint(1, 3)}.{rng.randint(0, 1)}.{rng.randint(1, 250)}/{rng.choice((8, 16, 24, 24, 32))}"
        )
        if rng.random() < 0.1:
            address = f"169.254.{rng.randint(1, 9)}.{rng.randint(1, 250)}/16"
        addresses.append(address)
        if rng.random() < 0.1 and len(name) < 12:
            labels[address] = f"{name}:{rng.randint(0, 9)}"
    if rng.random() < 0.35:
        addresses.append(f"fd0{rng.randint(0, 2)}::{rng.randint(1, 999):x}/{rng.choice((64, 64, 48, 128))}")
    if rng.random() < 0.35:
        addresses.append(f"fe80::{rng.randint(1, 65000):x}/64")
    rng.shuffle(addresses)
    addresses = list({address.split("/")[0]: address for address in addresses}.values())
    return Card(name=name, kind=rng.choice(KINDS), up=rng.random() < 0.85, addresses=addresses, labels=labels)


def _settings(rng: random.Random, cards: list[Card]) -> dict[str, str]:
    settings = {}
    if rng.random() < 0.6:
        settings["NCCL_SOCKET_IFNAME"] = _ifname(rng, cards)
    if rng.random() < 0.3:
        settings["NCCL_SOCKET_FAMILY"] = rng.choice(
            (
                "AF_INET",
                "AF_INET",
                "AF_INET6",
                "AF_INET6",
                "AF_INET6 ",
                "af_inet6",
                "ipv6",
                "",
                "AF_INETX",
                "AF_INE",
                "4",
            )
        )
    if rng.random() < 0.2:
        settings["NCCL_COMM_ID"] = _comm_id(rng, cards)
    return settings


def _ifname(rng: random.Random, cards: list[Card]) -> str:
    there = [card.name for card in cards] or ["eth0"]
    label = [label for card in cards for label in card.labels.values()]
    tokens = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 18))):
        name = rng.choice((*there, *there, *label, rng.choice(NAMES)))
        forms = (name, name, name, name[:2], name[:3], name[:-1], f"{name}0", f"{name}:1", f" {name}", f"{name} ")
        tokens.append(rng.choice((*forms, name.upper(), f"^{name}", f"={name}", "lo", "", f"{name}:")))
    return rng.choice(("", "", "", "^", "=", "^=", "=^", "^^", "==")) + ",".join(tokens)


def _comm_id(rng: random.Random, cards: list[Card]) -> str:
    there = [a.split("/")[0] for card in cards for a in card.addresses] or ["10.1.0.9"]
    address = rng.choice(there)
    if "." in address and ":" not in address and rng.random() < 0.6:
        address = address.rpartition(".")[0] + f".{rng.randint(1, 250)}"
    scope = f"%{rng.choice(cards).name}" if cards and address.startswith("fe80") and rng.random() < 0.7 else ""
    if ":" in address:
        return f"[{address}{scope}]:{rng.randint(2000, 60000)}"
    return rng.choice(
        (f"{address}:{rng.randint(2000, 60000)}",) * 6
        + (address, "", "x", "127.0.0.1:4000", "localhost:4000", "10.1.0:40")
    )


def _line(rng: random.Random, name: str, value: str) -> str:
    line = f"{name}={value}\n"
    bent = (f"{name} = {value}\n", f"export {line}", f'{name}="{value}"\n', f"{name}={value} # why\n", f"# {line}")
    return rng.choice((*(line,) * 8, *bent, f" {line}", line[:-1], f"{name}={value}\r\n", f"{line}{name}=lo\n"))
