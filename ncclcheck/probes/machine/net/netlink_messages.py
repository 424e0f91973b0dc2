"""The framing of netlink(7): messages within what the kernel sent, and attributes within a message."""

from __future__ import annotations

import struct
from collections.abc import Iterator

# NLM_F_REQUEST, NLM_F_DUMP; NLMSG_ERROR, NLMSG_DONE. Source: linux/netlink.h
REQUEST_DUMP = 0x1 | 0x300
ERROR, DONE = 2, 3
HEADER, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")

Attributes = dict[int, bytes]


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and body of each message."""
    while len(data) >= HEADER.size:
        length, kind, *_ = HEADER.unpack_from(data)
        if length < HEADER.size:
            return
        yield kind, data[HEADER.size : length]
        data = data[aligned(length) :]


def attributes_of(data: bytes) -> Attributes:
    """By number, without its flags."""
    attributes: Attributes = {}
    while len(data) >= ATTRIBUTE.size:
        length, name = ATTRIBUTE.unpack_from(data)
        if length < ATTRIBUTE.size:
            break
        attributes[name & 0x3FFF] = data[ATTRIBUTE.size : length]
        data = data[aligned(length) :]
    return attributes


def aligned(length: int) -> int:
    """The length with the bytes up to the next multiple of four."""
    return (length + 3) & ~3
