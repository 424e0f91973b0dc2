"""What a job went on after is not what ended it, and what looks like a cause in healthy logs is none."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, raised

_STEPS = "".join(f"iteration {step} / 1000 | loss 2.1\n" for step in range(100, 250))
_WELL = "`Trainer.fit` stopped: `max_epochs=3` reached.\n"
_OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.1 GiB)\n"
_XID = "[81.5] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
_DIED = "E1109 22:47:01.5 771 api.py:869] failed (exitcode: 1) local_rank: 3 (pid: 4711) of binary: python\n"


@pytest.mark.parametrize(
    ("text", "code", "state"),
    [
        (_OOM, "LOG063", "fail"),
        (_OOM + _STEPS, "LOG063", "note"),
        (_OOM + _WELL, "LOG063", "note"),
        (_STEPS + _OOM, "LOG063", "fail"),
        (_OOM + _STEPS + _OOM, "LOG063", "fail"),
        (_OOM + _STEPS[:70], "LOG063", "fail"),
        (_OOM + _STEPS + _DIED, "LOG063", "fail"),
        (_XID + _STEPS, "LOG067", "warn"),
        ("RuntimeError: NCCL Error 2: unhandled system error\n", "LOG004", "ok"),
        ("ValueError: no such mirror\n" + _STEPS, "LOG004", "ok"),
        ("ValueError: no such mirror\n" + _STEPS, "LOG001", "ok"),
    ],
)
def test_a_job_that_went_on(text: str, code: str, state: str) -> None:
    assert judged(text)[code].state.value == state


def test_steps_of_another_file_do_not_count() -> None:
    """The order of files is not the order in time."""
    assert raised(_OOM, _STEPS)["LOG063"] == "fail"


_WAITED = (
    "[rank1]:[E1109 22:46:25.933 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600012 milliseconds\n"
)
_SRUN = "srun: error: gpu-a17: task"
_SOUND = {
    "a warning from the loader's file": (
        "/opt/torch/utils/data/dataloader.py:557: UserWarning: 8 workers\n",
        "LOG089",
    ),
    "a callback's warning": ("/opt/pl/callbacks/model_checkpoint.py:654: Checkpoint directory there\n", "LOG086"),
    "gradients of a scaled loss": ("step 1 loss 2.3 grad_norm: inf\n", "LOG092"),
    "a loss that came back": ("step 1 loss nan\n" + _STEPS, "LOG092"),
    "a counter of the cgroup": ("oom_kill 0\nOOMKilled: false\n", "LOG093"),
    "tasks that Slurm ended": (f"{_SRUN} 3: Exited with exit code 1\n{_SRUN}s 0-2: Killed\n", "LOG093"),
    "a GPU whose link sleeps": ("LnkSta: Speed 2.5GT/s (downgraded), Width x16 (ok)\n", "LOG118"),
    "a warm CPU": ("CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)\n", "LOG120"),
    "TensorFlow without a GPU": ("cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected\n", "LOG166"),
    "a CUDA graph": (
        "a:1:2 [0] enqueue.cc:9 NCCL WARN Cuda failure 900 'operation not permitted when stream is capturing'\n",
        "LOG056",
    ),
    "libfabric on one machine": (
        "a:1:2 [0] ofi.c:9 NCCL WARN NET/OFI Couldn't find any optimal provider\n"
        "a:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 busId 10 commId 0x2 - Init COMPLETE\n",
        "LOG045",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "code"), _SOUND.values(), ids=_SOUND.keys())
def test_no_cause(text: str, code: str) -> None:
    assert code not in raised(text + _WAITED)


_LOST = "a:1:2 [0] net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.0.3.8<4> with status=12 opcode=0\n"
_MESH = "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error\n"


@pytest.mark.parametrize(("line", "code"), [(_LOST, "LOG036"), (_MESH, "LOG028")])
def test_an_error_after_a_death_follows_from_it(line: str, code: str) -> None:
    assert code in raised(line)
    assert code not in raised(_DIED + line)
    assert code in raised(line + _DIED)
