"""LOG076 and LOG183: accelerators of other makers: RCCL without its driver, a kernel that failed on an NPU."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Logs
from ncclcheck.probes.facts.log.fields import LogFields
from ncclcheck.reports.judgement.findings import Finding, State, admin, you
from ncclcheck.reports.subjects.logs.logged import cause, events_of, in_order, log_rule
from ncclcheck.reports.subjects.logs.logged_node import hosts, on
from ncclcheck.reports.subjects.logs.reported import starting

_HANGS = ("watchdog-timeout", "watchdog-stuck", "gloo-timeout")


@log_rule("LOG076", "RCCL finds the driver and the kernel parameters that it needs", risk=True)
def rccl_finds_its_host(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    RCCL found no ROCm runtime or no GPU by its address; or the kernel was started without `iommu=pt`.

    ## Why it matters
    Without the runtime no job starts. Without `iommu=pt` GPUs of several nodes, or of one, may hang in their first
    transfer; RCCL says so on every machine that lacks it, also where all is well.

    ## Seen as
    hangs, setting without effect

    ## How we know
    `ROCr failure`, `ROCm SMI init failure`, `device index not found`: an error. `Missing "iommu=pt" from kernel
    command line` is a warning only where the log shows a hang or of a start that did not end, else a note.
    "NUMA auto balancing enabled" and HSA_FORCE_FINE_GRAIN_PCIE cost speed at most.

    ## Fix
    - **admin** `iommu=pt` (with `amd_iommu=on` on AMD hosts) on the kernel's command line; the container must see
      /dev/kfd and /dev/dri.

    ## Source
    ROCm/rccl src/init.cc and src/include/rocmwrap.h; ROCm documentation, RCCL usage tips and system optimization.
    """
    for where, events in hosts(events_of(logs, "rocm-failure")):
        yield cause(
            events,
            f"RCCL cannot use ROCm's runtime{on(where)}: {events[0].text[:120]}",
            why="Without it no GPU can be used.",
            owner="node",
            at=where,
            fix=[
                you(
                    "Confirm: the GPUs and their devices are there.", "rocminfo | head", "ls -l /dev/kfd /dev/dri"
                ),
                you("Give the container the devices.", "docker run --device=/dev/kfd --device=/dev/dri ..."),
                admin("Install ROCm of the version that the image was built with.", "cat /opt/rocm/.info/version"),
            ],
        )
    if missing := in_order(events_of(logs, "rccl-iommu")):
        hangs = bool(events_of(logs, *_HANGS)) or any(starting(process) for process in logs.processes)
        yield cause(
            missing,
            "the kernel was started without iommu=pt, with which RCCL may hang",
            why="GPUs then reach each other and the network cards through the IOMMU's translation.",
            owner="node",
            state=State.WARN if hangs else State.NOTE,
            fix=[
                you("Confirm on the named host.", "cat /proc/cmdline"),
                admin("Add it, and reboot.", "grubby --update-kernel=ALL --args=iommu=pt"),
            ],
        )


@log_rule("LOG183", "no kernel fails on an NPU")
def npu_kernels_run(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A kernel failed on an Ascend NPU.

    ## Why it matters
    torch hears of it in a later call (`ACL stream synchronize failed, error code:507011`), and all other ranks end
    or wait: none of them names the kernel.

    ## Seen as
    dies

    ## How we know
    CANN's own lines: `The error from device(chipId:0, ...) there is an aicore error exception`, `errorStr: ...`,
    and where it is logged `fault kernel_name`.

    ## Fix
    - **you** a release of CANN and of its operators in which that kernel is right; inputs within its limits.
    - **admin** where it is one chip only, test it.

    ## Source
    Ascend CANN documentation, AI Core errors (EZ9999); sgl-project/sglang's logs on NPUs.
    """
    events = in_order(events_of(logs, "npu-fault"))
    if not events:
        return
    fields = LogFields()
    for event in reversed(events):
        fields.update(event.fields)
    chips = {event.fields["chip"] for event in events if "chip" in event.fields}
    kernel = f"the kernel {fields['kernel']}" if "kernel" in fields else "a kernel"
    alone = [admin("One chip alone has it: test that one.", "npu-smi info -t health -i 0")]
    what = " ".join(filter(None, [fields.get("what", ""), f"({fields['words']})" if "words" in fields else ""]))
    yield cause(
        events,
        f"{kernel} failed on an NPU: {what}",
        why="torch hears of it in a later call only, and the other ranks wait for this one.",
        owner="job",
        fix=[
            you("Confirm: where it fails, one kernel at a time.", "export ASCEND_LAUNCH_BLOCKING=1"),
            you("Take releases of CANN, torch_npu and the operators that go together, or leave that kernel out."),
            *(alone if len(chips) == 1 else []),
        ],
    )  # fmt: skip
