"""Jobs that somebody stopped, and what a rank's own exception, or a full GPU, says of itself."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, raised

_STEPS = "".join(f"iteration {step} / 1000 | loss 2.1\n" for step in range(100, 150))
_WELL = "{'train_runtime': 3.1, 'epoch': 1.0}\n"
_CTRL_C = (
    "[2026-03-01 10:00:00,100] [INFO] [launch.py:324:sigkill_handler] Main process received SIGINT, exiting\n"
)
_CANCELLED = "slurmstepd: error: *** JOB 4711 ON gpu-a17 CANCELLED AT 2026-03-01T10:00:00 ***\n"
_ORDINAL = "[rank{}]: torch.AcceleratorError: CUDA error: invalid device ordinal\n"
_FULL = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity "
    "of 79.10 GiB of which 1.00 GiB is free. Process 4711 has 40.00 GiB memory in use. Of the allocated memory "
    "30.00 GiB is allocated by PyTorch, and {} is reserved by PyTorch but unallocated.\n"
)


@pytest.mark.parametrize("words", [_CTRL_C, "KeyboardInterrupt\n", "[rank0]: KeyboardInterrupt\n"])
@pytest.mark.parametrize(
    ("before", "state"),
    [("", "fail"), (_STEPS, "fail"), (_WELL + _STEPS, "fail"), (_STEPS + _WELL, "note")],
)
def test_an_interrupt_before_the_work_was_finished(before: str, state: str, words: str) -> None:
    assert judged("torchrun train.py\n" + before + words)["LOG006"].state.value == state


def test_a_job_that_slurm_cancelled_by_order() -> None:
    finding = judged(_STEPS + _CANCELLED)["LOG006"].findings[0]
    assert (finding.state.value, "by scancel" in finding.what) == ("fail", True)
    assert "LOG006" not in raised("ValueError: bad sample\n" + _CANCELLED)


def test_a_rank_behind_the_address_of_its_host() -> None:
    line = "10.0.3.17: [rank4]: FileNotFoundError: [Errno 2] No such file or directory: 'doc_idx.npy'\n"
    finding = judged(line)["LOG004"].findings[0]
    assert (finding.where.rank, finding.state.value) == (4, "fail")


@pytest.mark.parametrize("kind", ["DeprecationWarning", "FutureWarning", "UserWarning"])
def test_a_warning_of_python_ends_no_job(kind: str) -> None:
    assert "LOG004" not in raised(f"{kind}: `old` will be removed in a future version.\n")


def test_a_device_number_of_a_second_node() -> None:
    """The rank of the whole job was taken: fewer ranks would be no fix."""
    far, near = (judged(_ORDINAL.format(rank))["LOG058"].findings[0].remedies for rank in (11, 3))
    assert "LOCAL_RANK" in str(far[1:])
    assert "nproc" not in str(far)
    assert "nproc" in str(near)


@pytest.mark.parametrize(("kept", "fragments"), [("200.00 MiB", False), ("6.00 GiB", True)])
def test_a_full_gpu_by_its_numbers(kept: str, *, fragments: bool) -> None:
    finding = judged(_FULL.format(kept) * 2)["LOG063"].findings[0]
    assert "40.00 GiB by process 4711" in finding.what
    assert finding.what.startswith("other processes hold the GPU of 1 rank ")
    assert ("expandable_segments" in str(finding.remedies)) == fragments
