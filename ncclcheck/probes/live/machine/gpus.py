"""The GPUs of this host at two looks, by NVML alone, in a child that may hang with its driver: `gpus.py SECONDS`.

A part of the streamed probe: standard library only, Python 3.6. Nothing is set, and no event is waited for.
"""

import ctypes
import json
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

Raw = Dict[str, Any]

_MOST_GPUS = 64  # of a host, MIG instances not counted: chosen, hosts have up to 16
_MOST_PROCESSES = 64  # of one GPU: chosen; of more the answer is INSUFFICIENT_SIZE, and none are told
_MORE_S = 8.0  # for nvmlInit, which took 2 s on 8 GPUs without the persistence daemon
_SM_CLOCK = 1  # NVML_CLOCK_SM. Source: nvml.h
_XID_CRITICAL = 0x8  # nvmlEventTypeXidCriticalError. Source: nvml.h
_DIES_WITH_PARENT = (1, 9)  # prctl(PR_SET_PDEATHSIG, SIGKILL)


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _NvmlProcess(ctypes.Structure):
    """nvmlProcessInfo_t of the calls that end in _v2 and _v3."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Event(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class LiveNvml:
    """The library, and a handle a GPU. Raises OSError where there is none or it does not begin."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        begin = getattr(self.library, "nvmlInit_v2", None) or self.library.nvmlInitWithFlags
        code = begin(0)
        if code:
            raise OSError(f"NVML says {code}")
        count = ctypes.c_uint()
        self.library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        self.handles = [self.handle(index) for index in range(min(count.value, _MOST_GPUS))]

    def handle(self, index: int) -> Optional[ctypes.c_void_p]:
        """None: this GPU is lost."""
        gpu = ctypes.c_void_p()
        return None if self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu)) else gpu

    def number(self, call: str, gpu: ctypes.c_void_p, *arguments: int) -> Optional[int]:
        """One unsigned number; None where this GPU or this driver has none."""
        value = ctypes.c_uint()
        function = getattr(self.library, call, None)
        if function is None or function(gpu, *arguments, ctypes.byref(value)):
            return None
        return value.value

    def sample(self, gpu: ctypes.c_void_p) -> Raw:
        """What it does now. Power in milliwatts, clocks in MHz, utilisation in percent of the last second."""
        used = _Utilisation()
        busy = self.library.nvmlDeviceGetUtilizationRates(gpu, ctypes.byref(used)) == 0
        return {
            "busy": used.gpu if busy else None,
            "power_mw": self.number("nvmlDeviceGetPowerUsage", gpu),
            "clock_mhz": self.number("nvmlDeviceGetClockInfo", gpu, _SM_CLOCK),
        }

    def lasting(self, gpu: ctypes.c_void_p) -> Raw:
        """What does not change between two looks."""
        return {
            "power_limit_mw": self.number("nvmlDeviceGetPowerManagementLimit", gpu),
            "clock_limit_mhz": self.number("nvmlDeviceGetMaxClockInfo", gpu, _SM_CLOCK),
            "pids": self.pids(gpu),
        }

    def pids(self, gpu: ctypes.c_void_p) -> List[int]:
        """Processes that compute on it, by the numbers of the host."""
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            function = getattr(self.library, name, None)
            if function is None:
                continue
            processes, room = (_NvmlProcess * _MOST_PROCESSES)(), ctypes.c_uint(_MOST_PROCESSES)
            if function(gpu, ctypes.byref(room), processes) == 0:
                return [process.pid for process in processes[: min(room.value, _MOST_PROCESSES)]]
        return []

    def watch(self) -> Optional[ctypes.c_void_p]:
        """A set of events in which critical Xids are kept from now on; None where that is not possible."""
        if getattr(self.library, "nvmlEventSetCreate", None) is None:
            return None
        events = ctypes.c_void_p()
        if self.library.nvmlEventSetCreate(ctypes.byref(events)):
            return None
        for gpu in filter(None, self.handles):
            self.library.nvmlDeviceRegisterEvents(gpu, ctypes.c_ulonglong(_XID_CRITICAL), events)
        return events

    def xids(self, events: Optional[ctypes.c_void_p]) -> List[List[int]]:
        """(GPU, Xid) of what came since, without waiting."""
        pairs: List[List[int]] = []
        handles = [handle.value if handle else None for handle in self.handles]
        while events is not None and len(pairs) < 64:
            event = _Event()
            if self.library.nvmlEventSetWait_v2(events, ctypes.byref(event), 0):
                break
            pairs.append([handles.index(event.device) if event.device in handles else -1, event.data])
        return pairs


def two_looks(seconds: float) -> List[Raw]:
    """Every GPU at both looks."""
    nvml = LiveNvml()
    events = nvml.watch()
    first = [nvml.sample(gpu) if gpu else {} for gpu in nvml.handles]
    time.sleep(seconds)
    xids = nvml.xids(events)
    cards = []
    for index, gpu in enumerate(nvml.handles):
        card: Raw = {"index": index, "lost": gpu is None, "xids": [code for of, code in xids if of == index]}
        if gpu:
            last = nvml.sample(gpu)
            card.update(nvml.lasting(gpu))
            card.update({key: [first[index].get(key), last[key]] for key in last})
        cards.append(card)
    return cards


class GpuChild:
    """The child that looks while others look at /proc. It has a time limit, and dies with us."""

    def __init__(self, source: str, seconds: float) -> None:
        self.limit = time.time() + seconds + _MORE_S
        try:
            self.child: Optional[subprocess.Popen] = subprocess.Popen(  # type: ignore[type-arg]
                [sys.executable, "-S", "-", str(seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert self.child.stdin is not None
            self.child.stdin.write(source.encode())
            self.child.stdin.close()
            self.child.stdin = None
        except OSError:
            self.child = None

    def answer(self) -> Raw:
        """Its answer, or why there is none."""
        if self.child is None:
            return {"gpus": [], "problem": "the child that asks NVML could not be started"}
        try:
            out, _ = self.child.communicate(timeout=max(0.1, self.limit - time.time()))
        except subprocess.TimeoutExpired:
            self.child.kill()
            return {"gpus": [], "problem": "NVML gave no answer in time: the driver may hang"}
        try:
            made = json.loads(out.decode())
            return made if isinstance(made, dict) else {"gpus": [], "problem": "NVML's child printed no JSON"}
        except ValueError:
            return {"gpus": [], "problem": f"NVML's child ended with status {self.child.returncode}"}


def main(argv: List[str]) -> None:
    """The child: one line of JSON."""
    ctypes.CDLL(None).prctl(*_DIES_WITH_PARENT)
    try:
        answer: Raw = {"gpus": two_looks(float(argv[0])), "problem": ""}
    except (OSError, AttributeError) as error:
        absent = "libnvidia-ml" in str(error)
        answer = {"gpus": [], "problem": "" if absent else str(error)[:200]}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
