"""A gloo training job of several kinds that hangs on demand: `hang_training.py KIND FAULT RANK FOLDER`.

RANK and the rest of the rendezvous come from the environment; the fault is one of that rank, or of all where it is
-1. In FOLDER lie what faults need (pipes, a lock) and, once the job is where it stays, ready.N of each rank.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

KIND, FAULT, CULPRIT, FOLDER = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MINE = CULPRIT in (RANK, -1)
_SOUND_STEPS = 30
_PAUSE = 0.02  # seconds of a step's own work
_WORK_S = 0.02  # of CPU a step, of a rank that is to be throttled: with a hundredth of a core that takes 2 s
step = 0


# Faults in the rank's own process, before it enters the step's first collective.
def _spin() -> None:
    while True:
        pass


def _poll() -> None:
    while True:
        time.sleep(0.05)


def _gil_spins() -> None:
    threading.Thread(target=_poll, daemon=True).start()
    library = ctypes.PyDLL(None)  # keeps Python's lock in its calls
    library.qsort(ctypes.create_string_buffer(64), 8, 8, ctypes.CFUNCTYPE(ctypes.c_int)(_never))


def _never() -> int:
    while True:
        pass


def _gil_sleeps() -> None:
    threading.Thread(target=_poll, daemon=True).start()
    ctypes.PyDLL(None).sleep(1000)


def _reads_pipe() -> None:
    os.read(os.open(FOLDER / "pipe", os.O_RDWR), 1)


def _saves_into_pipe() -> None:
    torch.save({"weights": torch.zeros(2**20)}, FOLDER / "checkpoint")


def _lock() -> None:
    with (FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def _posix_lock() -> None:
    with (FOLDER / "posix").open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)


def _fuse() -> None:
    (FOLDER / "mount" / "file").read_bytes()


def _fuse_writes() -> None:
    with (FOLDER / "mount" / "file").open("wb") as file:
        file.write(bytes(2**20))


def _child_program() -> None:
    subprocess.run(["sleep", "1000"], check=False)


def _download() -> None:
    with socket.create_connection((os.environ["MASTER_ADDR"], int((FOLDER / "mute").read_text()))) as server:
        server.sendall(b"GET /weights HTTP/1.0\r\n\r\n")
        server.recv(1)


def _own_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _own_queue() -> None:
    queue.Queue().get()


def _long_evaluation() -> None:
    weights = torch.randn(256, 256)
    while True:
        weights = torch.tanh(weights @ weights)


def _saves_long() -> None:
    with (FOLDER / "big").open("wb", buffering=0) as file:
        while True:
            file.seek(0)
            file.write(bytes(2**20))
            time.sleep(0.05)


def _waits_for_a_signal() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    signal.sigwait([signal.SIGUSR1])


def _reads_from_a_child() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()


def _two_locks() -> None:
    locks = [threading.Lock(), threading.Lock()]

    def take(first: threading.Lock, second: threading.Lock) -> None:
        with first:
            time.sleep(0.2)
            with second:
                pass

    threads = [threading.Thread(target=take, args=pair) for pair in (locks, locks[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _waits_for_the_store() -> None:
    store = dist.distributed_c10d._get_default_store()
    store.wait(["what nobody says"], timedelta(seconds=1800))


def _computes_in_a_pool() -> None:
    with ThreadPoolExecutor(2) as pool:
        pool.submit(_long_evaluation).result()


def _asks_a_stopped_daemon() -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(FOLDER / "daemon"))
    server.listen()
    daemon = os.fork()
    if not daemon:
        time.sleep(1000)
    os.kill(daemon, signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(FOLDER / "daemon"))
        client.recv(1)


def _takes_memory() -> None:
    blocks = []
    while True:
        blocks.append(bytearray(b"x") * 2**20)
        time.sleep(0.02)


def _waits_for_an_event() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    asyncio.run(wait())


def _begins_a_busy_helper() -> None:
    if os.fork() == 0:
        _spin()


def _saves_beside() -> None:
    threading.Thread(target=_saves_long, daemon=True).start()


def _orphans_a_worker() -> None:
    """Its loader's worker outlives it, with the connections that it has inherited."""
    if os.fork() == 0:
        time.sleep(1000)
    os.kill(os.getpid(), signal.SIGKILL)


def _orphans_a_program() -> None:
    subprocess.Popen(["sleep", "1000"], close_fds=False)
    os.kill(os.getpid(), signal.SIGKILL)


def _sends(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _hosts_a_debugger() -> None:
    (FOLDER / "debug").write_text(str(os.getpid()))
    _spin()


_ALONE: dict[str, Callable[[], object]] = {
    "stopped": _sends(signal.SIGSTOP),
    "ctrl-z": _sends(signal.SIGTSTP),
    "killed": _sends(signal.SIGKILL),
    "exits": lambda: os._exit(0),
    "orphan worker": _orphans_a_worker,
    "orphan program": _orphans_a_program,
    "sleeps": lambda: time.sleep(1000),
    "polls": _poll,
    "spins": _spin,
    "evaluates": _long_evaluation,
    "gil spins": _gil_spins,
    "gil sleeps": _gil_sleeps,
    "opens pipe": (FOLDER / "pipe").read_bytes,
    "reads pipe": _reads_pipe,
    "saves into pipe": _saves_into_pipe,
    "lock": _lock,
    "posix lock": _posix_lock,
    "fuse": _fuse,
    "fuse writes": _fuse_writes,
    "child program": _child_program,
    "download": _download,
    "own lock": _own_lock,
    "own queue": _own_queue,
    "saves long": _saves_long,
    "debugger": _hosts_a_debugger,
    "waits for a signal": _waits_for_a_signal,
    "reads from a child": _reads_from_a_child,
    "two locks": _two_locks,
    "waits for the store": _waits_for_the_store,
    "computes in a pool": _computes_in_a_pool,
    "stopped daemon": _asks_a_stopped_daemon,
    "takes memory": _takes_memory,
    "waits for an event": _waits_for_an_event,
    "busy helper": _begins_a_busy_helper,
    "saves beside": _saves_beside,
    "broadcast": lambda: dist.broadcast(torch.ones(25_000), CULPRIT),
    "barrier": dist.barrier,
    "size": lambda: dist.all_reduce(torch.ones(50_000)),
    "receives": lambda: dist.recv(torch.ones(10), (RANK + 1) % WORLD),
    "compiles": lambda: subprocess.run([sys.executable, "-c", "while True: pass"], check=False),
}
_ENDS = ("killed", "exits", "orphan worker", "orphan program")


class Samples(Dataset[torch.Tensor]):
    """Numbers; of the culprit those after the sound steps do not come."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        if MINE and index > _SOUND_STEPS * 4:
            time.sleep(0.5)  # the batches before have left this process
            {"worker reads": _reads_pipe, "worker spins": _spin, "worker sleeps": _poll, "worker locks": _own_lock,
             "worker stopped": _sends(signal.SIGSTOP), "worker fuse": _fuse}.get(FAULT, int)()  # fmt: skip
        return torch.ones(64)


def _faulty() -> None:
    """What the culprit does where it should go on; what the others do before they wait for ever."""
    if step != _SOUND_STEPS:
        return
    (FOLDER / f"ready.{RANK}").touch()
    if MINE and FAULT in _ALONE:
        _ALONE[FAULT]()
    if FAULT in _ENDS:  # gloo sees the end of a peer and raises; a job that catches that waits for its store
        store = dist.distributed_c10d._get_default_store()
        store.wait(["what the culprit would say"], timedelta(seconds=1800))
    if FAULT == "all spin":
        _spin()


def _pause() -> None:
    global step  # noqa: PLW0603 - one counter of one process
    step += 1
    slow = step > _SOUND_STEPS
    if slow and FAULT in ("all slow", "slow step"):
        time.sleep(2.0)
    elif slow and FAULT == "all sleep":
        time.sleep(30.0)
    elif slow and FAULT == "long steps":
        end, weights = time.monotonic() + 5.0, torch.randn(64, 64)
        while time.monotonic() < end:
            weights = torch.tanh(weights @ weights)
    elif slow and MINE and FAULT == "straggles":
        time.sleep(0.8)
    elif slow and MINE and FAULT == "straggles computing":
        end = time.monotonic() + 0.8
        while time.monotonic() < end:
            pass
    elif MINE and FAULT == "throttled":
        end = time.thread_time() + _WORK_S
        while time.thread_time() < end:
            pass
    else:
        time.sleep(_PAUSE)
    if MINE and FAULT == "unequal batches" and step == _SOUND_STEPS + 1:
        raise StopIteration


def _plain() -> Iterator[None]:
    gradient = torch.ones(25_000)
    while True:
        yield
        dist.all_reduce(gradient)
        gradient /= WORLD


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def _ddp() -> Iterator[None]:
    model = nn.parallel.DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    while True:
        yield
        optimizer.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()


def _loader() -> Iterator[None]:
    model = nn.parallel.DistributedDataParallel(_model())
    workers = DataLoader(Samples(), batch_size=4, num_workers=2, prefetch_factor=2)
    for batch in workers:
        yield
        model(batch).sum().backward()


def _fsdp() -> Iterator[None]:
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - slow, and for one kind of job

    model = _model()
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    while True:
        yield
        optimizer.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()


def _pipe() -> Iterator[None]:
    """Stages in a row, by send and recv; the last one sends the gradient back."""
    data = torch.ones(4096)
    while True:
        if RANK:
            dist.recv(data, RANK - 1)
        yield
        if RANK < WORLD - 1:
            dist.send(data, RANK + 1)
            dist.recv(data, RANK + 1)
        if RANK:
            dist.send(data, RANK - 1)


def _groups() -> Iterator[None]:
    """Tensor parallel pairs 0-1 and 2-3, data parallel pairs 0-2 and 1-3."""
    tensor = [dist.new_group([n, n + 1]) for n in range(0, WORLD, 2)][RANK // 2]
    data = [dist.new_group([*range(n, WORLD, 2)]) for n in range(2)][RANK % 2]
    activations, gradient = torch.ones(4096), torch.ones(25_000)
    while True:
        yield
        if FAULT == "crossed groups" and step >= _SOUND_STEPS and RANK in (0, WORLD - 1):
            dist.all_reduce(gradient, group=data)
        for _ in range(2):
            dist.all_reduce(activations, group=tensor)
            activations /= 2
        dist.all_reduce(gradient, group=data)
        gradient /= 2


_KINDS = {"plain": _plain, "ddp": _ddp, "loader": _loader, "fsdp": _fsdp, "pipe": _pipe, "groups": _groups}


def main() -> None:
    """Sound steps, then the fault."""
    torch.set_num_threads(1)
    if FAULT == "leaves a worker":
        if os.fork():
            os._exit(0)
        time.sleep(1000)
    if FAULT == "starts slowly":
        time.sleep(1000)
    dist.init_process_group("gloo", timeout=timedelta(seconds=1800))
    if FAULT == "downloads at the start" and not RANK:
        time.sleep(1000)
    dist.barrier()
    try:
        for _ in _KINDS[KIND]():
            _pause()
            _faulty()
    except StopIteration:
        (FOLDER / f"ready.{RANK}").touch()
        dist.barrier()
    except RuntimeError:
        if FAULT not in _ENDS:
            raise
        time.sleep(1000)


if __name__ == "__main__":
    main()
