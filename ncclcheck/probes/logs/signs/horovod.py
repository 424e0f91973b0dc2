"""Horovod's stall inspector: which ranks did not hand in a tensor that the others wait for."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

SIGNS = (
    Sign(
        "horovod-stall",
        r"waiting for remainder of ranks for more than (?P<seconds>\d{1,7}) seconds",
        (
            "[2026-03-01 10:00:00.7: W /tmp/horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be "
            "reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 "
            "seconds.",
        ),
    ),
    Sign(
        "horovod-missing",
        r"\[missing ranks: (?P<ranks>[\d, ]{1,200})\]|\[ready ranks: (?P<ready>[\d, ]{1,200})\]"
        r"|^(?:\[\d{1,6}\]<std(?:out|err)>:)?(?:(?P<alone>\d{1,6}): )?\[(?P<tensor>(?:allreduce|broadcast|allgather|alltoall|reducescatter)\.[^\]]{1,300})",
        (
            "gradients/HorovodAllreduce_layer_0_grad_Reshape_0 [missing ranks: 3, 6]",
            "Stalled ops: HorovodBroadcast_layer_0_weights_0 [ready ranks: 1, 3, 0]",  # before 0.15
            "0: [broadcast.bool.sz]",
            "[0]<stderr>:0: [broadcast.bool.sz]",
            "1: [allreduce.c_d1.bias, allreduce.c_d1.weight ...]",
        ),
        words=(
            "missing ranks: ",
            "ready ranks: ",
            "[allreduce.",
            "[broadcast.",
            "[allgather.",
            "[alltoall.",
            "[reducescatter.",
        ),
    ),
)
