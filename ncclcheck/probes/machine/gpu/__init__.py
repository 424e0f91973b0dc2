"""GPUs: signs of them, what libcuda and NVML say, and the driver's errors in the kernel log."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from ncclcheck.probes.facts import Gpus, Unread, replace
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.gpu import cuda, imex, mine, nvml, services, signs, xids

T = TypeVar("T")


def probe(machine: Machine) -> Gpus:
    """GPUs by NVML, CUDA and files. Where no file shows a GPU, neither library is asked."""
    pci, devices = signs.pci_functions(machine), signs.device_files(machine)
    if machine.recorded and isinstance(pci, Unread) and isinstance(devices, Unread):
        return _none(Unread("recorded", "neither PCI devices nor /dev are in this recording"))
    if not signs.shows(pci) and not signs.shows(devices) and not signs.library_found(machine):
        return _none(Unread("absent", "no NVIDIA device on this machine"))
    asked_cuda = _Question(lambda: cuda.ask_cuda(machine), Unread("timed_out", "libcuda.so.1 gave no answer"))
    asked_services = _Question(lambda: services.services(machine), Unread("timed_out", "services gave no answer"))
    cards = _nvml(machine, Gpus(pci=pci, devices=devices, xids=xids.xids(machine), imex=imex.channels(machine)))
    return _with_cuda(replace(cards, services=asked_services.answer()), asked_cuda.answer())


def _none(reason: Unread) -> Gpus:
    facts: dict[str, Any] = {name: reason for name in Gpus.__struct_fields__ if name != "chosen_by"}
    return Gpus(**facts)


class _Question(Generic[T]):
    """A question in a thread of its own: the libraries take their time to start."""

    def __init__(self, ask: Callable[[], T | Unread], late: Unread) -> None:
        self._ask, self._found = ask, cast("T | Unread", late)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._found = self._ask()

    def answer(self) -> T | Unread:
        """Waited for as long as the slowest of them may take."""
        self._thread.join(cuda.LONGEST_ANSWER_S + 2)
        return self._found


def _with_cuda(gpus: Gpus, cuda_answer: cuda.Cuda | Unread) -> Gpus:
    if isinstance(cuda_answer, Unread):
        return replace(gpus, usable=cuda_answer, cuda_error=cuda_answer, driver_cuda=cuda_answer)
    return replace(gpus, usable=cuda_answer.devices, cuda_error=cuda_answer.error, driver_cuda=cuda_answer.version)


def _nvml(machine: Machine, gpus: Gpus) -> Gpus:
    answer = nvml.ask_nvml(machine)
    if isinstance(answer, Unread):
        unseen = _once(answer)
        return replace(gpus, nvml=answer, nvml_driver=unseen, user=unseen, cards=unseen, others=unseen)
    if answer.error:
        unseen = Unread("absent", f"NVML: {answer.error}")
        return replace(gpus, nvml=answer.error, nvml_driver=unseen, user=unseen, cards=unseen, others=unseen)
    env = machine.ask("environment", dict[str, str], lambda: dict(os.environ))
    cards, others, chosen_by = mine.split(answer.cards, {} if isinstance(env, Unread) else env)
    return replace(
        gpus, nvml="", nvml_driver=answer.driver, user=answer.user, chosen_by=chosen_by, cards=cards, others=others
    )


def _once(unread: Unread) -> Unread:
    """What hangs or broke is said of `nvml`; the rest is only not known."""
    return Unread("absent", f"NVML: {unread.why}") if unread.kind in ("timed_out", "broken") else unread
