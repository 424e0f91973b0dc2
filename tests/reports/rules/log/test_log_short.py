"""Excerpts of one to five lines: what the only telling line says is the cause, with its fix."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, raised

# The lines that public threads show, shortened; the thread stands behind each.
SHORT = {
    "Error: peer access is not supported between these two devices": "LOG061",  # efeslab/Nanoflow#22
    "ncclInternalError: Internal check failed.\nLast error:\n"
    "Cuda failure 'peer access is not supported between these two devices'": "LOG186",  # consistency_models#46
    "Failed: Cuda error custom_all_reduce.cuh:307 'peer access is not supported between these two devices'":
        "LOG061",  # sgl-project/sglang#1509
    "error：train.py: error: unrecognized arguments: --local-rank=0，failed (exitcode: 2)": "LOG164",
    "0: train.py: error: unrecognized arguments: --local-rank=0": "LOG164",
    "Failed to initialize NVML: Unknown Error": "LOG067",  # NVIDIA/nvidia-docker#1671
    "    raise NVMLError(ret)\npynvml.NVMLError_Unknown: Unknown Error": "LOG067",  # sehoffmann/dmlcloud#58
    "slurmd: fatal: can't stat gres.conf file /dev/nvidia0: No such file or directory": "LOG190",
    'slurmstepd: error: pyxis: error: a container with name "a" does not exist, and --container-image is not set':
        "LOG181",  # NVIDIA/pyxis#172
    "h:1:1 [0] graph/xml.h:77 NCCL WARN Attribute arch of node cpu not found": "LOG073",  # NVIDIA/nccl#1726
    "Cuda failure common.cu:891 'invalid device ordinal'": "LOG058",  # NVIDIA/nccl#118
    "mpirun has detected an attempt to run as root.": "LOG124",
    "worker-2: bash: /opt/conda/bin/python: No such file or directory": "LOG161",
    "python: /lib/libm.so.6: version `GLIBC_2.29' not found (required by /opt/nccl/lib/libnccl.so.2)": "LOG190",
    "[88123.4] mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: fe00000000800400": "LOG190",
    "watchdog: BUG: soft lockup - CPU#33 stuck for 22s! [python:88123]": "LOG190",
    "LustreError: 11-0: scratch-OST0004: operation ost_write to node 10.0.1.4@o2ib failed: rc = -28": "LOG190",
}  # fmt: skip
# Of the same words, what is no failure: an error that was corrected, a warning, a state that may be.
QUIET = (
    "[88123.4] mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00000000800400",
    "UserWarning: Failed to initialize NVML: Unknown Error",
    "2026-03-01 10:00:00 INFO version GLIBC_2.29 was found",
)
_STEPS = "".join(f"iteration {number} / 1000 | loss 2.1\n" for number in range(100, 150))


@pytest.mark.parametrize(("text", "code"), SHORT.items())
def test_the_only_line_names_the_cause(text: str, code: str) -> None:
    codes = {name for name, state in raised(f"{text}\n").items() if state == "fail"} - {"LOG001", "LOG004"}
    assert codes == {code}
    assert all(finding.remedies for finding in judged(f"{text}\n")[code].findings)


@pytest.mark.parametrize("text", QUIET)
def test_what_is_no_failure_stays_quiet(text: str) -> None:
    assert not {"LOG190", "LOG067"} & raised(f"{_STEPS}{text}\n").keys()


@pytest.mark.parametrize("text", ["[81324.5] INFO: task python:41211 blocked for more than 120 seconds."])
def test_a_host_that_stood_still_for_a_while_is_a_risk(text: str) -> None:
    assert raised(f"{text}\n{_STEPS}").get("LOG190") == "warn"
