"""LOG179: values that nccl-tests finds wrong."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, admin, you
from ncclcheck.reports.rules.log.ways import wrong_over_pcie
from ncclcheck.reports.subjects.logs.logged import cause, events_of, in_order, log_rule


@log_rule("LOG179", "nccl-tests gets correct results")
def values_are_right(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    nccl-tests counted wrong values.

    ## Why it matters
    It goes on and prints a bandwidth as if nothing were wrong. A training with such GPUs or cards diverges, or
    learns
    nothing, and no line says why.

    ## Seen as
    slow

    ## How we know
    A number other than 0 in the column `#wrong` (out-of-place or in-place; `N/A` is none), or `Out of bounds
    values :
    N FAILED` at the end. Before 2022 the column is `error`, the greatest difference, which rounding makes as well:
    there only a large one counts, and the line at the end.

    ## Fix
    - **you** switch off one transport after the other, and see without which one the values are right:
      `NCCL_P2P_DISABLE=1`, `NCCL_NET_GDR_LEVEL=LOC`, `NCCL_IB_DISABLE=1`, `NCCL_NVLS_ENABLE=0`,
      `NCCL_PROTO=Simple`.
    - **admin** over PCIe: ACS and the IOMMU (LOG062); one GPU alone: test it (`dcgmi diag -r 3`).

    ## Source
    NVIDIA/nccl-tests README (Data check) and src/common.cu; NVIDIA/nccl-tests#117, NVIDIA/nccl#257.
    """
    events = in_order(events_of(logs, "tests-wrong-data"))
    if not events or wrong_over_pcie(logs):
        return
    first = next((event for event in events if "size" in event.fields), events[0])
    yield cause(
        [first, *(event for event in events if event is not first)],
        f"{_told(first)}; why is not in these lines",
        why="What arrived is not what was sent: data are changed or lost between GPUs, in one of them, "
            "or by NCCL itself (old releases at sizes from 2 or 4 GiB on).",
        owner="node",
        fix=[
            you("Find the faulty path: disable one transport after the other.", "export NCCL_P2P_DISABLE=1",
                "export NCCL_NET_GDR_LEVEL=LOC", "export NCCL_NVLS_ENABLE=0", "export NCCL_PROTO=Simple"),
            you("Right at small sizes, wrong from 2 or 4 GiB on: take a newer NCCL."),
            you("Find the GPU or the pair: two GPUs at a time.",
                "CUDA_VISIBLE_DEVICES=0,1 all_reduce_perf -g 2 -b 8 -e 1G -f 2"),
            admin("Without P2P it is right: ACS and the IOMMU. One GPU alone: test it.",
                  "lspci -vvv | grep -i acsctl", "dcgmi diag -r 3"),
        ],
    )  # fmt: skip


def _told(event: LogEvent) -> str:
    fields = event.fields
    count = fields.get("wrong") or fields.get("in_place") or fields["count"]
    if "size" not in fields:
        return f"nccl-tests found {count} values out of bounds"
    if "e" in count:
        return f"nccl-tests found wrong values at {fields['size']} bytes (error {count})"
    return f"nccl-tests found {count} wrong values at {fields['size']} bytes"
