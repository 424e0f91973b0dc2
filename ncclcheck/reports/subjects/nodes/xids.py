"""What NVIDIA's driver means by the numbers of its errors (Xids): whose fault each is, in words.

Source: NVIDIA's Xid catalog, https://docs.nvidia.com/deploy/xid-errors (of 2025-10); its immediate action decides.
"""

from __future__ import annotations

import re

HARDWARE = {
    46: "the GPU stopped processing",
    48: "an error of two bits in GPU memory",
    54: "the GPU board has no auxiliary power",
    61: "the GPU's own controller stopped",
    62: "the GPU's own controller stopped",
    64: "a bad row or page of memory could not be taken out of use",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "a memory error that was not contained: every program on this GPU is affected",
    109: "the GPU did not switch between programs in time",
    110: "a security fault of the GPU",
    119: "the GPU's system processor (GSP) does not answer",
    120: "the GPU's system processor (GSP) has failed",
    136: "an NVLink could not be trained",
    140: "a memory error that was not recovered",
    143: "the GPU could not be initialised",
    155: "NVLinks were taken down by software",
    158: "the GPU did not answer in time, which is fatal",
    167: "a fatal time-out of PCIe",
    168: "errors in the GPU's protected memory",
    169: "the GPU's own controller stopped",
}
_NVLINK_5 = dict.fromkeys(range(144, 151), "an error of an NVLink (Blackwell)")
LESSER = {
    **_NVLINK_5,
    63: "a bad row or page of memory was marked, and is replaced at the next reset",
    92: "many corrected memory errors",
    94: "a memory error that was contained: it ended one program",
    156: "a part of the GPU was disabled, and stays excluded after a reset",
    157: "a part of the GPU could not be taken out of use",
    171: "more of an error of two bits: which memory",
    172: "more of an error of two bits: which memory",
}
PROGRAM = {
    11: "a program sent the GPU commands that it does not know",
    13: "a kernel went wrong: an illegal instruction, or an address out of its array",
    25: "a program sent the GPU commands that it does not know",
    31: "a kernel used an address that is not mapped",
    32: "a program sent the GPU commands that are damaged",
    43: "a program's work was stopped after an error of its own",
    45: "a program was ended while its kernels ran",
    69: "a program used the GPU's graphics engine wrongly",
    80: "a program sent damaged data to the GPU",
    137: "a program used the memory of another GPU without the right to",
}
RECOVERY = 154  # it only says what the driver asks for after another Xid
_SWITCH = "SXid"
_TO = re.compile(r"\(([A-Za-z][\w &,-]{2,60})\)\s*$")


def asked_for(line: str) -> str:
    """What Xid 154 says that the driver asks for now, as `Node Reboot Required`; empty for none."""
    match = _TO.search(line)
    return match[1] if match and match[1].lower() != "none" else ""


def of_switch(name: str) -> bool:
    """Whether it is one of an NVSwitch (SXid), whose own line says whether it is fatal."""
    return name.startswith(_SWITCH)


def is_fatal(line: str) -> bool:
    """Of the line of an NVSwitch: `20034, Fatal, Link 30 LTSSM Fault Up`."""
    return re.search(r"\d, Fatal\b", line) is not None
