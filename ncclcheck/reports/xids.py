"""What NVIDIA's driver means by the numbers of its errors (Xids): whose fault each is, in words."""

from __future__ import annotations

HARDWARE = {
    46: "the GPU stopped processing",
    48: "an error of two bits in GPU memory",
    61: "the GPU's own controller stopped",
    62: "the GPU's own controller stopped",
    64: "a bad row or page of memory could not be taken out of use",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "a memory error that was not contained: every program on this GPU is affected",
    119: "the GPU's system processor (GSP) does not answer",
    120: "the GPU's system processor (GSP) has failed",
    140: "a memory error that was not recovered",
}
_NVLINK_5 = dict.fromkeys(range(144, 151), "an error of an NVLink (Blackwell)")
LESSER = {
    **_NVLINK_5,
    63: "a bad row or page of memory was marked, and is replaced at the next reset",
    92: "many corrected memory errors",
    94: "a memory error that was contained: it ended one program",
}
PROGRAM = {
    13: "a kernel went wrong: an illegal instruction, or an address out of its array",
    31: "a kernel used an address that is not mapped",
    43: "a program's work was stopped after an error of its own",
    45: "a program was ended while its kernels ran",
    137: "a program used the memory of another GPU without the right to",
}
