"""Code that is compiled while a job starts: extensions of torch, DeepSpeed's operators, Triton's launchers."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

SIGNS = (
    Sign(
        "compiler-failed",
        r"fatal error: (?P<header>[\w./+-]{1,120}\.(?:h|hpp|cuh)): No such file|ld(?:\.\w{2,5})?: cannot find -l(?!cufile|aio)(?P<library>[\w.+-]{1,60})"
        r"|(?P<gnu>unsupported GNU version)|nvcc fatal {1,4}: (?P<nvcc>.{3,120})"
        r"|Error building extension '(?P<extension>[^']{1,80})'|(?P<ninja>Ninja is required to load C\+\+ extensions)"
        r"|(?P<none>Failed to find C compiler)|(?P<home>CUDA_HOME (?:environment variable is not set|does not exist))"
        r"|Installed CUDA version (?P<installed>[\d.]{2,8}) does not match the version torch was compiled with (?P<torch>[\d.]{2,8})"
        r"|detected CUDA version \((?P<detected>[\d.]{2,8})\) mismatches the version that was used to compile PyTorch \((?P<built>[\d.]{2,8})\)",
        (
            "/tmp/tmpabc/main.c:5:10: fatal error: Python.h: No such file or directory",
            "/usr/bin/ld: cannot find -lcuda: No such file or directory",
            "error: #error -- unsupported GNU version! gcc versions later than 12 are not supported!",
            "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
            "RuntimeError: Error building extension 'fused_adam'",
            "RuntimeError: Ninja is required to load C++ extensions",
            "RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl.",
            "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
            "deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version 11.8 does not match the version torch was compiled with 12.1, unable to compile",
            "The detected CUDA version (11.8) mismatches the version that was used to compile PyTorch (12.1). Please make sure to use the same CUDA versions.",
        ),
        words=(
            *("fatal error: ", "cannot find -l", "unsupported gnu", "nvcc fatal", "error building", "ninja is"),
            *("failed to find c compiler", "cuda_home", "installed cuda version", "detected cuda version"),
        ),
    ),
)
