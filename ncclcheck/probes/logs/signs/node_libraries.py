"""The driver and the libraries of NCCL: too old, too new, two of them, none."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

SIGNS = (
    Sign(
        "driver-too-old",
        r"NVIDIA driver on your system is too old(?: \(found version (?P<driver>\d{4,6})\))?|"
        r"CUDA driver version is insufficient|compiled with an unsupported toolchain",
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update "
            "your GPU driver",
        ),
    ),
    Sign(
        "driver-combination",
        r"unsupported display driver|forward compatibility was attempted",
        (
            "elm4: Test CUDA failure common.cu:894 'system has unsupported display driver / cuda driver combination'",
            "RuntimeError: CUDA error: forward compatibility was attempted on non supported HW",
        ),
    ),
    Sign(
        "driver-mismatch",
        r"Driver/library version mismatch",
        (
            "Failed to initialize NVML: Driver/library version mismatch",
            "elm4:311:311 [0] misc/nvmlwrap.cc:150 NCCL WARN nvmlInit_v2() failed: Driver/library version "
            "mismatch",
        ),
    ),
    Sign(
        "libcuda-not-found",
        r"Failed to find CUDA library (?:(?:in )?(?P<library>\S{1,200}) )?\(NCCL_CUDA_PATH=",
        (
            "elm4:311:311 [0] misc/cudawrap.cc:179 NCCL WARN Failed to find CUDA library libcuda.so "
            "(NCCL_CUDA_PATH='') : libcuda.so: cannot open shared object file: No such file or directory",
            "elm4:311:311 [0] misc/cudawrap.cc:112 NCCL WARN Failed to find CUDA library in /opt/cuda "
            "(NCCL_CUDA_PATH=/opt/cuda)",
            "elm4:311:311 [0] misc/cudawrap.cc:120 NCCL WARN Failed to find CUDA library (NCCL_CUDA_PATH='') : "
            "libcuda.so: cannot open shared object file: No such file or directory",
        ),
    ),
    Sign(
        "nccl-symbol",
        r"undefined symbol: (?P<symbol>nccl\w{2,60})",
        (
            "ImportError: /opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so: undefined "
            "symbol: ncclCommShrink",
            "python: symbol lookup error: /opt/x/libtorch_cuda.so: undefined symbol: ncclMemFree",
        ),
    ),
    Sign(
        "nccl-not-loaded",  # vLLM's own loader, of the file that VLLM_NCCL_SO_PATH names
        r"Failed to load NCCL library from (?P<library>\S{1,300}?)\.?(?:\s|$)",
        (
            "(VllmWorker rank=3 pid=4711) ERROR 11-09 22:47:01 [pynccl_wrapper.py:229] Failed to load NCCL library from "
            "/opt/nccl/lib/libnccl.so.2. It is expected if you are not running on NVIDIA/AMD GPUs.",
        ),
    ),
    Sign(
        "nccl-not-found",
        r"\blibnccl\.so[.\d]{0,16}: cannot open shared object file",
        ("ImportError: libnccl.so.2: cannot open shared object file: No such file or directory",),
    ),
)
