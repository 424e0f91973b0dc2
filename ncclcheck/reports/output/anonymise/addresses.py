"""Addresses of machines and cards, each replaced by one of its own kind that stands in the same relations."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable

_V4 = r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_HEX = "[0-9A-Fa-f]"
PATTERN = re.compile(
    rf"(?P<uuid>(?<!{_HEX}){_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}(?!{_HEX}))"
    rf"|(?P<card>(?<=GPU-){_HEX}{{6,8}}(?!{_HEX}))"
    rf"|(?P<mac>(?<![\w:])(?:{_HEX}{{2}}[:-]){{5,19}}{_HEX}{{2}}(?![\w:]))"
    rf"|(?P<guid>(?<![\w:])(?:{_HEX}{{4}}:){{3}}{_HEX}{{4}}(?![\w:]))"
    rf"|(?P<v6>(?<![\w:.])(?:{_HEX}{{0,4}}:){{2,7}}(?:{_V4}|{_HEX}{{1,4}}|(?<=:))(?:/\d{{1,3}})?(?![\w:]))"
    rf"|(?P<v4>(?<![\w.]){_V4}(?:/\d{{1,2}})?(?!\.?\w))"
    rf"|(?P<plain>(?<![\w.])(?:0x)?{_HEX}{{16}}(?!\w))"
    rf"|(?P<nic>(?<=enx){_HEX}{{12}}(?!\w))"
)
_AS_THEY_ARE = [
    # Every machine has these; 172.17.0.0/16 is docker's own choice everywhere.
    *map(ipaddress.ip_network, ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.17.0.0/16", "224.0.0.0/3")),
    *map(ipaddress.ip_network, ("::/127", "ff00::/8")),
]
# Ranges with a meaning of their own: carrier-grade NAT, link-local, private, private, benchmarks.
_MEANT = [
    *map(ipaddress.IPv4Network, ("100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")),
    ipaddress.IPv4Network("198.18.0.0/15"),
]
_DOCKER = ipaddress.IPv4Network("172.17.0.0/16")
_SUBNET = {4: 24, 6: 64}  # what an address without a prefix length is taken to lie in
_MAPPED = ipaddress.ip_network("::ffff:0:0/96")
_LINK = ipaddress.ip_network("fe80::/64")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class InventedAddresses:
    """What each address has become. Addresses that share their first n bits share them afterwards too."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._numbers: dict[str, dict[int, int]] = {"guid": {}, "mac": {}, "uuid": {}}
        self._taken: dict[str, set[int]] = {"guid": set(), "mac": set(), "uuid": set()}
        self._fabrics: set[int] = set()
        self._flips: dict[tuple[int, int, int], int] = {}
        self._salts: dict[tuple[int, int, int], int] = {}
        self._seen: dict[tuple[int, int, int], list[int]] = {}
        self._networks: dict[tuple[int, int, int], set[tuple[int, int]]] = {}  # number, bits behind the prefix
        matches = [match for text in texts for match in PATTERN.finditer(text)]
        for match in matches:
            self._learn(match)
        for group in self._seen:
            self._salts[group] = self._salt(group)

    def replace(self, text: str) -> str:
        """The text with every address in it replaced."""
        return PATTERN.sub(self._replaced, text)

    def _learn(self, match: re.Match[str]) -> None:
        kind, words = str(match.lastgroup), match[0]
        if kind in ("v4", "v6"):
            self._learn_ip(words)
        elif kind in ("uuid", "mac", "guid"):
            self._taken[kind].add(int(re.sub("[:-]", "", words), 16))

    def _learn_ip(self, words: str) -> None:
        address = _parsed(words.partition("/")[0])
        if address is not None and address.version == 6:
            self._fabrics.add(int(address) >> 64)
        if address is None or any(address in net for net in _AS_THEY_ARE if net.version == address.version):
            return
        if address in _MAPPED:
            self._learn_ip(str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)))
        elif address in _LINK:
            self._taken["guid"].add(int(address) & (2**64 - 1))
        else:
            group = _group(address)
            self._seen.setdefault(group, []).append(int(address))
            length = words.partition("/")[2]
            free = address.max_prefixlen - min(int(length or _SUBNET[address.version]), address.max_prefixlen)
            if address.max_prefixlen - free > group[1]:
                self._networks.setdefault(group, set()).add((int(address) >> free, free))

    def _replaced(self, match: re.Match[str]) -> str:
        kind, words = str(match.lastgroup), match[0]
        replace: Callable[[str], str] = getattr(self, f"_{kind}")
        return replace(words)

    def _v4(self, words: str) -> str:
        return self._ip(words)

    def _v6(self, words: str) -> str:
        return self._ip(words)

    def _ip(self, words: str) -> str:
        """An address, or a network when no bit behind its prefix is set."""
        host, slash, length = words.partition("/")
        address = _parsed(host)
        if address is None:
            return words
        image = self._image(address)
        if slash and int(length) <= address.max_prefixlen:
            free = address.max_prefixlen - int(length)
            if int(address) % 2**free == 0:
                image = type(image)(int(image) >> free << free)
        full = ":" in host and len(host) == len(address.exploded)
        return f"{image.exploded if full else image}{slash}{length}"

    def _image(self, address: _Address) -> _Address:
        if any(address in net for net in _AS_THEY_ARE if net.version == address.version):
            return address
        low = int(address)
        if address in _MAPPED:
            inner = self._image(ipaddress.IPv4Address(low & 0xFFFFFFFF))
            return ipaddress.IPv6Address(0xFFFF << 32 | int(inner))
        if address in _LINK:
            return ipaddress.IPv6Address(int(_LINK[0]) | self._number("guid", low & (2**64 - 1)))
        group = _group(address)
        return type(address)(self._flipped(low, group) ^ self._salts.get(group, 0))

    def _flipped(self, number: int, group: tuple[int, int, int]) -> int:
        """Bit by bit; the first address that comes by becomes 0...01, and all others follow from it."""
        width, kept, _ = group
        image = number >> (width - kept)
        for depth in range(kept, width):
            bit = number >> (width - 1 - depth) & 1
            place = (width, depth, number >> (width - depth))
            image = image << 1 | (bit ^ self._flips.setdefault(place, bit ^ int(depth == width - 1)))
        return image

    def _salt(self, group: tuple[int, int, int]) -> int:
        """A change of the next bits under which no invented network is one that there is; else no address."""
        width, kept, _ = group
        shift, first = width - kept - (8 if width == 32 else 16), [0xDB8] if width == 128 else []
        salts: list[int] = [tried << shift for tried in [*first, *range(256 if width == 32 else 4096)]]
        networks = self._networks.get(group, set())
        originals = {(number, 0) for number in self._seen[group]}
        for number in self._seen[group]:
            self._flipped(number, group)  # the first one that comes by decides: an address before its network
        for wanted in (networks | originals, originals):
            images = [(self._flipped(number << free, group) >> free, free) for number, free in wanted]
            for salt in salts:
                new = [(image ^ salt >> free, free) for image, free in images]
                if wanted.isdisjoint(new) and not any(_is_kept(number << free, width) for number, free in new):
                    return salt
        return 0

    def _number(self, kind: str, original: int) -> int:
        """One, two, three..., without those that there are."""
        given = self._numbers[kind]
        if original not in given:
            number = len(given) + 1
            while _shaped(kind, number) in self._taken[kind]:
                number += 1
            self._taken[kind].add(_shaped(kind, number))
            given[original] = _shaped(kind, number)
        return given[original]

    def _guid(self, words: str) -> str:
        number = int(words.replace(":", ""), 16)
        digits = f"{self._fabric(number) if number in self._fabrics else self._number('guid', number):016x}"
        return ":".join(digits[at : at + 4] for at in range(0, 16, 4))

    def _fabric(self, number: int) -> int:
        """The first half of an IPv6 address, which in a GID is the prefix of its fabric."""
        return int(self._image(ipaddress.IPv6Address(number << 64))) >> 64

    def _plain(self, words: str) -> str:
        """A GUID without colons, if it is one that stands elsewhere with them."""
        number = int(words, 16)
        known = self._numbers["guid"].keys() | self._taken["guid"]
        return f"{words[:-16]}{self._number('guid', number):016x}" if number in known else words

    def _mac(self, words: str) -> str:
        count = (len(words) + 1) // 3
        digits = f"{self._number('mac', int(re.sub('[:-]', '', words), 16)):0{2 * count}x}"[-2 * count :]
        return words[2].join(digits[at : at + 2] for at in range(0, 2 * count, 2))

    def _nic(self, words: str) -> str:
        return f"{self._number('mac', int(words, 16)):012x}"

    def _uuid(self, words: str) -> str:
        digits = f"{self._number('uuid', int(words.replace('-', ''), 16)):032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def _card(self, words: str) -> str:
        """The beginning of a card's UUID, which CUDA_VISIBLE_DEVICES may hold."""
        short = len(words) * 4
        whole = next((n for n in sorted(self._taken["uuid"]) if n >> (128 - short) == int(words, 16)), None)
        return words if whole is None else f"{self._number('uuid', whole):032x}"[: len(words)]


def _shaped(kind: str, number: int) -> int:
    """A number as an address: locally administered, or with its difference in front, where it is cut."""
    if kind == "uuid":
        return (number * 2654435761 % 2**32) << 96 | 0x4000 << 64 | 0x8000 << 48
    return number | (0x02 << 40 if kind == "mac" else 0x02 << 56)


def _group(address: _Address) -> tuple[int, int, int]:
    """Width, how many leading bits stay, and these: what kind of address it is, is what rules look at."""
    number = int(address)
    if address.version == 4:
        kept = max([8, *(_shared(number, net) for net in _MEANT)])
        return 32, kept, number >> (32 - kept)
    kept = 8 if number >> 121 == 0x7E else 16  # fc00::/7 is private
    return 128, kept, number >> (128 - kept)


def _is_kept(number: int, width: int) -> bool:
    """Docker's network stays what it is, and none other becomes it."""
    return width == 32 and number >> 16 == int(_DOCKER.network_address) >> 16


def _shared(number: int, net: ipaddress.IPv4Network) -> int:
    """How many leading bits must stay so that what is within a network stays in it, and all else out of it."""
    alike = 32 - (number ^ int(net.network_address)).bit_length()
    return min(alike + 1, net.prefixlen) if alike >= 8 else 0


def _parsed(words: str) -> _Address | None:
    try:
        return ipaddress.ip_address(words)
    except ValueError:
        return None
