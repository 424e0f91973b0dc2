"""A small gloo job that ends in one of many ways on one rank: `watched_job.py KIND [RANK]`."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "12"))
AT = 4  # the step at which it happens
TIMEOUT_S = float(os.environ.get("TIMEOUT_S", "20"))
NUMBERS = int(os.environ.get("NUMBERS", "1000"))  # of a gradient
SLOW_S = 0.3  # of computing that a straggler does more in each step


class Items(Dataset[torch.Tensor]):
    """A few tensors; an item may be what ends the job."""

    def __init__(self, bad: Callable[[], object] | None = None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.bad is not None and index == 9:
            self.bad()
        return torch.full((4,), float(index))


def _eat(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    pieces = []
    while True:
        pieces.append(bytearray(2**26))


def _grow() -> None:
    """Real pages, until the kernel says no."""
    pieces = []
    while True:
        pieces.append(bytearray(os.urandom(2**20)) * 16)


def _full_disk() -> None:
    with open(os.path.join(os.environ["FULL"], "checkpoint.pt"), "wb") as file:
        while True:
            file.write(bytes(2**20))
            file.flush()


def _nan() -> None:
    loss = torch.log(torch.tensor(-1.0))
    assert torch.isfinite(loss), f"loss is {loss.item()} at step {AT}"


def _checkpoint() -> None:
    model = torch.nn.Linear(4, 4)
    model.load_state_dict({"weight": torch.zeros(4, 5), "bias": torch.zeros(4)})


def _loaded(bad: Callable[[], object]) -> None:
    for _ in DataLoader(Items(bad), batch_size=4, num_workers=2, timeout=0):
        pass


def _deadlock() -> None:
    import threading  # noqa: PLC0415

    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _spin() -> None:
    end = time.time() + 600
    while time.time() < end:
        pass


def _other_collective() -> None:
    dist.broadcast(torch.ones(8), 0)


def _fifo() -> None:
    path = os.path.join(os.environ["FULL"], "pipe")
    os.mkfifo(path)
    with open(path, "rb") as file:
        file.read()


def _raise(error: BaseException) -> None:
    raise error


def _from_cause() -> None:
    try:
        dict[str, float]()["learning_rate"]
    except KeyError as error:
        raise RuntimeError("cannot build the schedule") from error


def _leak() -> None:
    """A little more in each step, until the kernel says no."""
    pieces = []
    for _ in range(2000):
        pieces.append(bytearray(os.urandom(2**20)) * 32)
        time.sleep(0.1)


def _compute(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def _uploaded() -> None:
    """A thread that is to write dies, and who waits for it is not told."""
    import queue  # noqa: PLC0415
    import threading  # noqa: PLC0415

    work: queue.Queue[int] = queue.Queue()
    threading.Thread(target=lambda: _raise(OSError(f"bucket is gone ({work.get()})")), daemon=True).start()
    work.put(1)
    work.join()


def _out_of_time() -> None:
    used = int(time.process_time()) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (used, used + 5))
    _spin()


def _cut_short() -> None:
    """A mapped file becomes shorter."""
    import mmap  # noqa: PLC0415
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryFile() as file:
        file.truncate(2**20)
        mapped = mmap.mmap(file.fileno(), 2**20)
        file.truncate(0)
        mapped[2**19]


def _noisy() -> None:
    """What looks like failures and is none."""
    import subprocess  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    try:
        _from_cause()
    except RuntimeError:
        traceback.print_exc()
    print("ERROR: retrying; NCCL WARN is a word; CUDA out of memory was seen yesterday", flush=True)
    subprocess.run(["sh", "-c", "kill -9 $$"], check=False)


def _fails_once() -> None:
    if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        raise ValueError("the first attempt fails")


KINDS: dict[str, Callable[[], object]] = {
    "sound": lambda: None,
    "raise": lambda: _raise(ValueError("labels do not fit")),
    "cause": _from_cause,
    "shape": lambda: torch.ones(3) @ torch.ones(4),
    "index": lambda: torch.nn.Embedding(4, 2)(torch.tensor([7])),
    "nan": _nan,
    "checkpoint": _checkpoint,
    "import": lambda: __import__("no_such_module"),
    "file": lambda: open("/no/such/shard-00017.tar", "rb"),  # noqa: SIM115
    "leak": _leak,
    "limit": lambda: _eat(6 * 2**30),
    "oom": _grow,
    "full": _full_disk,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit3": lambda: sys.exit(3),
    "hard-exit": lambda: os._exit(7),
    "leave": lambda: os._exit(0),
    "sleep": lambda: time.sleep(600),
    "stop": _stop,
    "spin": _spin,
    "deadlock": _deadlock,
    "other": _other_collective,
    "fifo": _fifo,
    "worker-killed": lambda: _loaded(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "worker-raises": lambda: _loaded(lambda: _raise(KeyError("image"))),
    "worker-segv": lambda: _loaded(lambda: ctypes.string_at(0)),
    "worker-deadlock": lambda: _loaded(_deadlock),
    "worker-oom": lambda: _loaded(_grow),
    "thread-died": _uploaded,
    "cpu-limit": _out_of_time,
    "bus": _cut_short,
    "noisy": _noisy,
    "evaluates": lambda: time.sleep(15),
    "spawned": lambda: list[int]()[7],
    "quiet-exit": lambda: _raise(SystemExit("config is not valid")),
}


def main(kind: str, bad: int) -> None:
    if "RANK" not in os.environ:  # srun started it, no torchrun
        os.environ |= {"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": os.environ["SLURM_NTASKS"]}
    if kind == "restarted":  # before any rank is known to the store, whose keys outlive an attempt
        _fails_once()
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    rank = dist.get_rank()
    weights = torch.zeros(NUMBERS)
    bad = rank if socket.gethostname() == os.environ.get("BAD_HOST") else bad
    slow_from = float(os.environ.get("SLOW_AFTER_S", "30")) + time.monotonic()
    for step in range(STEPS):
        if step == AT and rank == bad:
            KINDS.get(kind, lambda: None)()
        if kind == "straggler" and rank == bad and time.monotonic() > slow_from:
            _compute(SLOW_S)
        if step >= AT and rank == bad and (kind == "uneven" or (kind == "skipped" and step == AT)):
            continue
        gradient = torch.full((NUMBERS,), float(rank))
        dist.all_reduce(gradient)
        weights += gradient
        if rank == 0:
            print(f"step {step} {weights[0].item()}", flush=True)
        time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()


def spawned(rank: int, port: int) -> None:
    """One process of torch.multiprocessing.spawn."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    main("spawned", 1)


if __name__ == "__main__" and sys.argv[1] == "spawned":
    from torch.multiprocessing.spawn import spawn

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(spawned, (port,), 3)  # type: ignore[no-untyped-call]
elif __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
