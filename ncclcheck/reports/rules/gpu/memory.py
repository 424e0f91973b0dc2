"""Rules about errors of GPU memory: ECC, replaced rows, retired pages."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Unread, known, value_or
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, admin, fail, note, warn
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nodes.cards import Card, cards, leave_out, odd_ones, reset

_GPUS = "nodes.gpus.cards"


@rule(
    "GPU007", "no GPU has uncorrectable memory errors", worst=State.FAIL, over=_GPUS, needs=(".ecc_uncorrected",)
)
def uncorrected(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Memory errors that ECC could not correct, since the driver was loaded; and NVIDIA's own limit for errors of
    the GPU's caches (SRAM threshold exceeded, Hopper and later).

    ## Why it matters
    The program that reads such a cell dies ("uncorrectable ECC error encountered"), and with it the whole job.
    A GPU past the SRAM limit is one that NVIDIA replaces.

    ## Seen as
    dies

    ## How we know
    nvmlDeviceGetTotalEccErrors, volatile counters; nvmlDeviceGetSramEccErrorStatus. Errors of earlier loads of
    the driver alone are a note.

    ## Fix
    - **admin** drain the node; reset the GPU, which replaces the bad rows; run `dcgmi diag -r 3`; replace it
      where the errors come back or the SRAM limit is passed.
    - **you** leave the node out.

    ## Source
    NVIDIA GPU memory error management; NVML API reference; NVIDIA Xid errors, 48, 94, 95; vllm-project/vllm#5222.
    """
    for card in cards(cluster):
        count, ever = known(card.gpu.ecc_uncorrected), value_or(card.gpu.ecc_uncorrected_ever, 0)
        if value_or(card.gpu.sram_exceeded, False):
            yield _bad(
                card, "its caches had more errors than NVIDIA allows", card.seen("SRAM threshold", "exceeded")
            )
        elif count:
            yield _bad(card, f"{count} uncorrected memory errors", card.seen("uncorrected ECC errors", count))
        elif ever:
            what = f"{ever} uncorrected memory errors in its life, none since the driver was loaded"
            yield note(card.where, what, owner="node", evidence=[card.seen("aggregate ECC errors", ever)])


def _bad(card: Card, what: str, evidence: Evidence) -> Finding:
    return fail(
        card.where,
        what,
        why="A program that reads the bad cell dies, and the job with it.",
        owner="node",
        evidence=[evidence],
        fix=[reset(), leave_out()],
    )


@rule(
    "GPU008",
    "no GPU has a row remap pending or failed",
    worst=State.FAIL,
    over=_GPUS,
    needs=(".remapped",),
)
def remapped(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Row remapping of Ampere and later: whether a replacement failed, or waits for the next reset.

    ## Why it matters
    A row that could not be replaced stays in use and gives errors until the GPU is exchanged. One that waits
    is still in use: the next access can end the job.

    ## Seen as
    dies

    ## How we know
    nvmlDeviceGetRemappedRows. Rows that were replaced are history and do not count.

    ## Fix
    - **admin** pending: drain, then reset the GPU. Failed: replace the GPU (NVIDIA's criterion for an RMA).
    - **you** leave the node out where it failed.

    ## Source
    NVIDIA GPU memory error management, row remapping and RMA policy; checked by leptonai/gpud too.
    """
    for card in cards(cluster):
        rows = known(card.gpu.remapped)
        if not rows.failed and not rows.pending:
            continue
        counts = f"{rows.correctable + rows.uncorrectable}; pending {rows.pending}, failed {rows.failed}"
        evidence = [card.seen("rows replaced", counts)]
        if rows.failed:
            yield fail(
                card.where,
                "a bad row of its memory could not be replaced",
                why="It has no spare row left: errors will recur until the GPU is replaced.",
                owner="node",
                evidence=evidence,
                fix=[admin("Replace the GPU.", "nvidia-smi -q -d ROW_REMAPPER"), leave_out()],
            )
        else:
            yield warn(
                card.where,
                "a bad row of its memory is replaced only at the next reset",
                why="Until then the bad row is in use, and the next access can end the job.",
                owner="node",
                evidence=evidence,
                fix=[reset()],
            )


@rule(
    "GPU009",
    "few GPU memory pages are retired, and none is pending",
    worst=State.FAIL,
    over=_GPUS,
    needs=(".retired",),
)
def retired(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Page retirement of GPUs before Ampere (V100, T4, P100): how many pages were taken out of use, and whether
    some wait for the next reset.

    ## Why it matters
    A pending page is still in use. With 60 retired pages NVIDIA exchanges the GPU: the table is full at 64, and
    after that errors can no longer be kept away from programs.

    ## Seen as
    out of memory

    ## How we know
    nvmlDeviceGetRetiredPages for both causes, and the pending status. The limit is `GPU009.pages` (60).

    ## Fix
    - **admin** pending: drain, then reset the GPU. At the limit: replace it.
    - **you** leave the node out where the limit is reached.

    ## Source
    NVIDIA dynamic page retirement; Azure/azurehpc-health-checks (its recorded nodes have 65 and 61 pages).
    """
    most = cluster.policy.thresholds.get("GPU009.pages", 60.0)
    for card in cards(cluster):
        pages = known(card.gpu.retired)
        count = pages.single_bit + pages.double_bit
        counts = (
            f"{pages.single_bit} by single-bit, {pages.double_bit} by double-bit errors, pending {pages.pending}"
        )
        evidence = [card.seen("retired pages", counts)]
        if count >= most:
            yield fail(
                card.where,
                f"{count} pages of its memory are retired",
                why="The table of bad pages is nearly full; after that errors reach programs.",
                owner="node",
                evidence=evidence,
                fix=[admin("Replace the GPU.", "nvidia-smi -q -d PAGE_RETIREMENT"), leave_out()],
            )
        elif pages.pending:
            yield warn(
                card.where,
                "a bad page of its memory is retired only at the next reset",
                why="Until then the bad page is in use, and the next access can end the job.",
                owner="node",
                evidence=evidence,
                fix=[reset()],
            )


@rule("GPU010", "ECC is enabled, and the same on all GPUs", worst=State.WARN, over=_GPUS, needs=(".ecc",))
def ecc_mode(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether error correction of GPU memory is on, on all GPUs of a model, and whether a change waits for a reset.

    ## Why it matters
    Without ECC a flipped bit changes a weight or a gradient and nothing reports it; on older cards it also changes
    the size and speed of memory, so that one GPU is faster and larger than its peers.

    ## Seen as
    slow

    ## How we know
    nvmlDeviceGetEccMode, current and pending. A GPU that differs from most of its model is a warning; where ECC
    is off on all of them the site wanted it so, which is a note. GPUs without ECC are skipped.

    ## Fix
    - **admin** `nvidia-smi -e 1`, then reset or reboot.

    ## Source
    NVIDIA GPU memory error management; nvidia-smi(1), ecc-config.
    """
    gpus = list(cards(cluster))
    odd = {id(card.gpu): most for card, _, most in odd_ones(gpus, lambda card: known(card.gpu.ecc))}
    for card in gpus:
        now, pending = known(card.gpu.ecc), value_or(card.gpu.ecc_pending, known(card.gpu.ecc))
        if id(card.gpu) in odd:
            usual = odd[id(card.gpu)]
            yield _changed(card, f"ECC is {_word(now)}, on most others {_word(usual)}", wanted=usual)
        elif now != pending:
            yield _changed(card, f"ECC is {_word(now)}, and {_word(pending)} from its next reset")
        elif not now:
            yield note(card.where, "ECC is off", owner="site", evidence=[card.seen("ECC mode", "off")])


def _changed(card: Card, what: str, *, wanted: bool = True) -> Finding:
    now, pending = known(card.gpu.ecc), value_or(card.gpu.ecc_pending, known(card.gpu.ecc))
    return warn(
        card.where,
        what,
        why="Without ECC a flipped bit corrupts results silently.",
        owner="node",
        evidence=[card.seen("ECC mode", f"current {_word(now)}, pending {_word(pending)}")],
        fix=[admin(f"Turn it {_word(wanted)}, then reset the GPU or reboot.", f"nvidia-smi -i N -e {wanted:d}")],
    )


def _word(on: bool) -> str:
    return "on" if on else "off"


@rule(
    "GPU040",
    "every GPU memory bank has spare rows left",
    worst=State.WARN,
    over=_GPUS,
    needs=(".spare_rows",),
)
def spare_rows(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How many banks of a GPU's memory have used up their spare rows (Ampere and later).

    ## Why it matters
    The next bad row in such a bank cannot be replaced. Then GPU008 fails, in the middle of a job, and the GPU has
    to be exchanged. Here it is known while there is time to plan for it.

    ## How we know
    nvmlDeviceGetRowRemapperHistogram: banks with all, many, some, few and no spare rows left. A bank without one
    is a warning, one with few is a note. MIG GPUs with instances do not answer.

    ## Fix
    - **admin** note the serial number, run `dcgmi diag -r 3` at the next maintenance, and ask the vendor about an
      exchange before the job that must not fail.

    ## Source
    NVML API reference, nvmlRowRemapperHistogramValues_t; NVIDIA GPU memory error management, row remapping and RMA
    policy; oci-hpc, check_gpu_setup.py (row remap check); facebookresearch/gcm, check-nvidia-smi row_remap.
    """
    for card in cards(cluster):
        rows, replaced = known(card.gpu.spare_rows), card.gpu.remapped
        if not isinstance(replaced, Unread) and replaced.failed:
            continue  # it has come to that already, and GPU008 says so
        counts = f"all {rows.all}, many {rows.many}, some {rows.some}, few {rows.few}, none {rows.none}"
        evidence = [card.seen("banks by spare rows left", counts)]
        if rows.none:
            yield warn(
                card.where,
                f"{_banks(rows.none)} of its memory have no spare row left",
                why="The next bad row there cannot be remapped: the job dies, and the GPU has to be replaced.",
                owner="node",
                evidence=evidence,
                fix=[
                    admin(
                        "Plan its exchange; until then watch its memory errors.", "nvidia-smi -q -d ROW_REMAPPER"
                    ),
                    leave_out(),
                ],
            )
        elif rows.few:
            yield note(
                card.where, f"{_banks(rows.few)} of its memory have few spare rows left", owner="node",
                evidence=evidence,
            )  # fmt: skip


def _banks(count: int) -> str:
    return f"{count} bank{'s' if count > 1 else ''}"


@rule("GPU041", "every GPU's InfoROM is intact", worst=State.WARN, over=_GPUS, needs=(".inforom",))
def inforom(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether the checksums of a GPU's InfoROM are right: the small memory on the board in which it keeps its ECC
    errors, retired pages, replaced rows and power limits over a reboot.

    ## Why it matters
    With a corrupted InfoROM the history of the memory is not kept: bad rows that were replaced may come back into
    use with the next reboot, ECC may not be set, and the GPU may be missing at the next start. nvidia-smi prints
    "infoROM is corrupted" and goes on.

    ## Seen as
    wrong results

    ## How we know
    nvmlDeviceValidateInforom, which reads it and verifies its checksums. GPUs without that call are skipped.

    ## Fix
    - **admin** drain the node, reboot it once with the power off, look again; where it stays, exchange the GPU.
      `dcgmi diag -r 1` asks the same.
    - **you** leave the node out for long jobs.

    ## Source
    NVML API reference, nvmlDeviceValidateInforom; NVIDIA Xid errors; Azure/azurehpc-health-checks
    (check_nvsmi_healthmon); NVIDIA DCGM, diagnostics (deployment plugin).
    """
    for card in cards(cluster):
        if not known(card.gpu.inforom):
            yield warn(
                card.where,
                "its InfoROM is corrupted",
                why="What it knows of its own bad memory may be lost with the next reboot.",
                owner="node",
                evidence=[card.seen("nvmlDeviceValidateInforom", "corrupted")],
                fix=[
                    admin("Drain the node, power-cycle it and look again; else exchange the GPU.",
                          "nvidia-smi -q | grep -i -A 5 inforom"),
                    leave_out(),
                ],
            )  # fmt: skip
