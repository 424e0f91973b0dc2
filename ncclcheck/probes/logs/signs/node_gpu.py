"""GPUs: what CUDA answered, in the words of NCCL, torch, nccl-tests and the kernel."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

_TIMED = (
    r" {1,20}\d{1,9}(?:\.\d{1,3})?(?:e\+\d\d)? {1,20}\d{1,6}\.\d{1,3} {1,20}\d{1,6}\.\d{1,3}"  # time, algbw, busbw
)
# Of nccl-tests: how many values are wrong; before 2022 the greatest difference, which rounding alone makes as well.
_WRONG = r"[1-9]\d{0,9}|[1-9](?:\.\d{1,6})?e\+(?:0[5-9]|[1-9]\d)"


def _raised(text: str) -> bool:
    """Whether a line tells of more than a warning."""
    return "Warning: " not in text


SIGNS = (
    Sign(
        "nccl-cuda-failure",
        r"(?:Cuda|HIP) failure(?: \d{1,4})? '(?P<error>(?:[^']|(?<=n)'(?=t )){2,120})",
        (
            "elm4:311:340 [2] include/alloc.h:48 NCCL WARN Cuda failure 'out of memory'",
            "elm4:311:340 [2] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'",
            "elm4:311:340 [2] NCCL WARN HIP failure 'out of memory' at src/init.cc:812",
        ),
    ),
    Sign(
        "torch-cuda-error",
        r"(?:(?:CUDA|cuda|HIP) (?:driver |runtime )?[Ee]rror(?: ?\(?\d{1,4}\)?)? ?: |RuntimeError: (?=no kernel image)|THCudaCheck FAIL file=.{1,300} error=\d{1,4} : )(?P<error>[A-Za-z][^'(]{2,120})",
        (
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "torch.AcceleratorError: CUDA error: invalid device ordinal",
            "RuntimeError: HIP error: invalid device function",
            "CUDA Error: out of memory at /workspace/csrc/allocator.cpp:139",
            "RuntimeError: no kernel image is available for execution on the device",
            "RuntimeError: cuda runtime error (101) : invalid device ordinal at /torch/csrc/cuda/Module.cpp:59",
            "THCudaCheck FAIL file=/pytorch/torch/csrc/cuda/Module.cpp line=59 error=101 : invalid device ordinal",
        ),
        words=(" error", "no kernel image"),
    ),
    Sign(
        "tests-cuda-failure",
        r"(?:Test (?:CUDA|HIP)|^Cuda) failure [\w./-]{1,80}:\d{1,6} '(?P<error>[^']{2,120})",
        (
            "elm4: Test CUDA failure common.cu:294 'invalid device ordinal'",
            "Cuda failure common.cu:891 'invalid device ordinal'",
            "elm4: Test HIP failure common.cu:1129 'hipErrorInvalidDevice'",
        ),
        words=("cuda failure ", "hip failure "),
    ),
    Sign(
        "tests-wrong-data",
        r"Out of bounds values : (?P<count>\d{1,12}) FAILED"
        rf"|(?:^|[ >:])(?P<size>\d{{1,15}}) {{1,20}}\d{{1,15}} {{1,20}}(?:float|half|double|b?float16|u?int\d{{1,2}}|f8e\w{{1,8}}|fp8_e\w{{1,8}})"
        rf"(?: {{1,20}}\w{{3,8}})?(?: {{1,20}}-?\d{{1,6}})?{_TIMED} {{1,20}}(?:(?P<wrong>{_WRONG})(?: |\s*$)|\S{{1,8}}{_TIMED} {{1,20}}(?P<in_place>{_WRONG})\s*$)",
        (
            "# Out of bounds values : 36 FAILED",
            "     1048576        262144     float     sum      -1    31.21   33.60   63.00   1024    30.80   34.04   63.83      0",
            "     1048576        262144  bfloat16    none       0    31.21   33.60   33.60      0    30.80   34.04   34.04     12",
            "    33554432       8388608     float     sum   412.10   81.42  142.48  1e+06   409.31   81.97  143.46  0e+00",
            "      524288         65536      half    none      -1    31.21   16.80   14.70 1.2e+06    30.80   17.02   14.89    N/A",
        ),
        words=(
            "out of bounds values",
            " float",
            " half",
            " double",
            "int8",
            "int32",
            "int64",
            "bfloat16",
            "f8e",
            "fp8_e",
        ),
    ),
    Sign(
        "gpu-duplicate",
        r"Duplicate GPU detected ?: rank (?P<a>\d{1,7}) and rank (?P<b>\d{1,7})\b"
        r"(?: both on CUDA device (?P<gpu>[0-9a-f]{1,16})|(?: b\w{0,3}(?: \w{0,2}(?: \w{0,4})?)?)?\s*$)",
        (
            "Duplicate GPU detected : rank 5 and rank 0 b",  # cut off, as torch hands it on
            "elm4:311:340 [0] init.cc:720 NCCL WARN Duplicate GPU detected : rank 3 and rank 1 both on CUDA "
            "device 5e000",
        ),
    ),
    Sign(
        "gpu-shared",
        r"Multiple [Rr]anks (?:are|detected) using the same GPU",
        (
            "elm4:311:340 [0] init.cc:1060 (initTransportsRank) NCCL WARN Multiple Ranks are using the same "
            "GPU/Partition. "
            "Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.",
        ),
    ),
    Sign(
        "gpu-slice",
        r"\bMIG (?:\d{1,2}c\.)?\d{1,2}g\.\d{1,3}gb|\bMIG-(?:GPU-)?[0-9a-f]{8}-",
        ("  MIG 3g.40gb     Device  0: (UUID: MIG-6f2d3a51-7c1e-5a0b-9f3e-2b7f0c61d5aa)",),
        words=("mig 1", "mig-"),
    ),
    Sign(
        "gpus-too-few",
        r"Invalid number of GPUs: (?P<wanted>\d{1,4}) requested but only (?P<found>\d{1,4})"
        r"|You requested gpu: \[(?P<asked>[\d, ]{1,120})\]",
        (
            "Invalid number of GPUs: 8 requested but only 4 were found.",
            "MisconfigurationException: You requested gpu: [0, 1, 2, 3]",
        ),
    ),
    Sign(
        "gpu-alloc",
        r"Failed to CUDA (?P<call>calloc async|calloc|malloc|host alloc) (?P<bytes>\d{1,20}) bytes",
        (
            "elm4:311:340 [5] NCCL WARN Failed to CUDA calloc async 6291456 bytes",
            "Failed to CUDA calloc 536870912 bytes",
        ),
    ),
    Sign(
        "torch-gpu-memory",
        r"(?:(?:^|[\]:|] {0,3})(?:\[(?P<here>(?=[a-z-]{0,60}\d)[a-z][\w-]{0,62}\.[a-z][\w.-]{1,100})\] {0,3})?"
        r"[Rr]ank[ :=]{0,2}(?P<me>\d{1,7})\b.{0,40}?)?(?:CUDA|HIP) out of memory\. (?:Tried to allocate|.{0,110}?Requested size:) (?P<size>[\d.]{1,12} ?[KMGT]?i?B)",
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total "
            "capacity of 79.11 GiB",
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 3; 39.39 GiB "
            "total capacity)",
            "[gpu-a17.cluster.local] Rank 6, Local Rank 2, CUDA out of memory. Tried to allocate 12.25 GiB.",
            "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because it would exceed "
            "per_process_memory_fraction limit. Requested size: 2.00 GiB",
        ),
        words=("out of memory",),
    ),
    Sign(
        "gpu-xid",
        r"Xid \((?P<gpu>PCI:[0-9a-fA-F:.]{4,20})(?: GPU-C?I:\d{1,4}){0,2}\): (?P<xid>\d{1,4})\b",
        (
            "[81324.5] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off "
            "the bus.",
            "[81324.5] NVRM: Xid (PCI:0000:9b:00 GPU-I:05 GPU-CI:00): 43, pid=812, name=python, Ch 00000008",
        ),
    ),
    Sign(
        "gpu-lost",
        r"GPU is lost|GPU has fallen off the bus|Unable to determine the device handle for GPU",
        (
            "Unable to determine the device handle for GPU0000:9B:00.0: Unknown Error",
            "elm4:311:340 [0] misc/nvmlwrap.cc:180 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: GPU is lost",
        ),
    ),
    Sign(
        "nvml-failed",
        r"(?P<call>nvml[A-Z]\w{2,60})\([^()]{0,60}\) failed: (?!GPU is lost|Driver/library version)(?P<error>[A-Z][A-Za-z ,'/-]{2,80})"
        r"|(?:^|(?<=[\s:]))Failed to initialize NVML: (?!Driver/library version|GPU is lost)(?P<init>[A-Z][A-Za-z ,'/-]{2,80})"
        r"|(?:^|(?<=[\s.]))NVMLError_(?P<kind>Unknown|Uninitialized|NoPermission|InsufficientPermissions|LibraryNotFound"
        r"|DriverNotLoaded|NoDevice|OperatingSystem|GpuIsLost)\b",
        (
            "elm4:311:311 [0] misc/nvmlwrap.cc:119 NCCL WARN nvmlInit_v2() failed: Driver Not Loaded",
            "elm4:311:311 [0] misc/nvmlwrap.cc:150 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found",
            "elm4:311:311 [0] misc/nvmlwrap.cc:160 NCCL WARN nvmlDeviceGetHandleByIndex(0) failed: Insufficient Permissions",
            "Failed to initialize NVML: Unknown Error",
            "pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
        ),
        words=("nvml",),
        check=_raised,
    ),
    Sign(
        "gpu-hang",
        r"HW Exception by GPU node-\d{1,4} .{0,60}?reason ?: ?(?P<error>GPU Hang|ECC\b.{0,40})"
        r"|(?P<ring>amdgpu: ring \S{2,20} timeout|amdgpu_job_timedout.{0,20}\*ERROR\* ring)"
        r"|(?P<hardware>amdgpu .{0,60}uncorrectable hardware error)"
        r"|(?P<queue>amdgpu: .{0,40}(?:failed to (?:suspend|remove|unmap|evict) .{0,30}queues?|Queue preemption failed))",
        (
            "HW Exception by GPU node-2 (Agent handle: 0x55d0c0a1b2c0) reason :GPU Hang",
            "[81324.5] amdgpu 0000:c1:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=4, emitted seq=6",
            "[81324.5] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=4",
            "[81324.5] amdgpu 0000:c1:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
            "[81324.5] amdgpu 0000:c1:00.0: amdgpu: Queue preemption failed for queue with doorbell_id: 8000700a",
        ),
        words=("hw exception by gpu", "amdgpu"),
    ),
    Sign(
        "ipc-refused",
        r"(?P<call>(?:cuda|cu|hip)Ipc(?:Get|Open)MemHandle)(?:\(.{0,80}?\))? failed ?: ?(?P<error>[a-z][\w ,'-]{2,120})",
        (
            "elm4:311:340 [1] /src/transport/p2p.cc:220 NCCL WARN hipIpcGetMemHandle failed : invalid argument",
            "elm4:311:340 [1] transport/p2p.cc:262 NCCL WARN cudaIpcOpenMemHandle failed: invalid device context",
        ),
    ),
    Sign(
        "gpu-unknown-error",
        r"CUDA unknown error - this may be due to an incorrectly set up environment",
        (
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. "
            "changing env "
            "variable CUDA_VISIBLE_DEVICES after program start.",
        ),
    ),
    Sign(
        "gpu-geforce",
        r"NVIDIA GeForce RTX (?P<model>\d{4})",
        ("#  Rank  0 Group  0 Pid    810 on    birch07 device  0 [0x21] NVIDIA GeForce RTX 4090",),
    ),
    Sign(
        "kernel-shared-memory",
        r"(?:ncclMaxSharedMem|dynamic smem) (?P<wanted>\d{1,8}) exceeds device/fn maxSharedMem (?P<most>\d{1,8})",
        (
            "elm4:311:340 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856",
            "elm4:311:340 [0] enqueue.cc:98 (ncclInitKernelsForDevice) NCCL WARN cudaArch 1200 dynamic smem 82240 exceeds "
            "device/fn maxSharedMem 79856",
            "elm4:311:340 [0] enqueue.cc:98 NCCL WARN cudaArch 1200 ncclMaxSharedMem 82240 exceeds device/fn "
            "maxSharedMem 79856",
        ),
    ),
    Sign(
        "torch-lacks-gpu",
        r"(?P<arch>sm_\w{2,5}) is not compatible with the current PyTorch installation"
        r"|which is of cuda capability (?P<old>\d{1,2}\.\d)|(?P<warned>warn\(incompatible_device_warn)"
        r"|(?P<static>Cannot retrieve Static function, error: (?:209|218)\b)"
        r"|rocBLAS error: .{0,200}GPU arch ?: (?P<amd>gfx\w{3,6})"
        r"|(?P<new>nvrtc: error: invalid value for --gpu-architecture|ptxas fatal {1,4}: Value 'sm_\w{2,5}' is not defined)",
        (
            "Found GPU0 Tesla K80 which is of cuda capability 3.7.",
            "nvrtc: error: invalid value for --gpu-architecture (-arch)",
            "Cannot retrieve Static function, error: 218",
            "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",
            "rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: Illegal seek for GPU arch : gfx1103",
            "  warnings.warn(incompatible_device_warn.format(device_name, capability, ' '.join(arch_list), device_name))",
            "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch "
            "installation.",
        ),
        words=(
            "is not compatible with the current",
            "which is of cuda capability",
            "incompatible_device_warn",
            *("nvrtc: error: invalid value", "ptxas fatal"),
            *("rocblas error", "retrieve static function"),
        ),
    ),
    Sign(
        "affinity-narrow",
        r"Setting affinity for GPU (?P<gpu>\d{1,4}) to "
        r"(?P<mask>(?:0|[1-9]\d{0,2})(?:,\d{1,4})?|[0,]{0,320}(?:[1248]|[1248][0,]{0,160}[1248])[0,]{0,320})$",
        (
            "elm4:311:340 [3] NCCL INFO Setting affinity for GPU 3 to 01",
            "elm4:311:340 [3] NCCL INFO Setting affinity for GPU 3 to 17",  # cores by number since 2.27
            "elm4:311:340 [3] NCCL INFO Setting affinity for GPU 3 to 12,68",
            "elm4:311:340 [3] NCCL INFO Setting affinity for GPU 3 to 0400,00000000,00000400",
        ),
    ),
    Sign(
        "affinity-one-core",
        r"Affinity for GPU (?P<gpu>\d{1,4}) is (?P<mask>\d{1,5}(?:,\d{1,5})?|(?P<tens>\d{0,4})(?:0-(?P=tens)1|2-(?P=tens)3"
        r"|4-(?P=tens)5|6-(?P=tens)7|8-(?P=tens)9))\. \(GPU affinity",
        (
            "elm4:311:340 [3] NCCL INFO ncclTopoGetCpuAffinity: Affinity for GPU 3 is 0. (GPU affinity = 0-55 "
            "; CPU "
            "affinity = 0).",
            "elm4:311:340 [3] NCCL INFO ncclTopoGetCpuAffinity: Affinity for GPU 3 is 12-13. (GPU affinity = 0-55 ; CPU "
            "affinity = 12-13).",
        ),
    ),
    Sign(
        "gpu-memory-of-others",
        r"Process \d{1,10} has [\d.]{1,8} [KMG]iB memory in use\. Process \d{1,10} has",
        (
            "GPU 0 has a total capacity of 79.19 GiB of which 190.06 MiB is free. Process 18301 has 5.40 GiB memory in use. Process 18303 has 5.40 GiB memory in use.",
        ),
    ),
    Sign(
        "segfault",
        r"(?<!signal: )Segmentation fault|exitcode *: -11\b|Caught signal 11|Signal 11 \(SIGSEGV\)",
        (
            "[elm4:00311] Signal: Segmentation fault (11)",
            "Fatal Python error: Segmentation fault",
            "  exitcode  : -11 (pid: 311)",
            "[elm4:311  :0:340] Caught signal 11 (Segmentation fault: address not mapped to object at address "
            "0x7f00)",
        ),
    ),
    Sign(
        "bus-error",
        r"Caught signal 7\b|Signal: Bus error \(7\)|Fatal Python error: Bus error|received signal SIGBUS",
        (
            'Thread 687 "python" received signal SIGBUS, Bus error.',
            "[elm4:311  :0:340] Caught signal 7 (Bus error: nonexistent physical address)",
            "[elm4:00311] Signal: Bus error (7)",
            "Fatal Python error: Bus error",
        ),
    ),
    Sign(
        "segfault-in-nccl",
        r"libnccl\.so[.\d]{0,16}\((?:\+|p?nccl)|segfault at .{1,120} in libnccl|\bnccl[A-Z]\w{2,60}\(\)  /",
        (
            " 1 0x00000000000e3a17 ncclTopoSearchRecGpu()  /build/src/graph/search.cc:509",
            "[elm4:00311] [ 4] /usr/lib/x86_64-linux-gnu/libnccl.so.2(+0x5f2c1)[0x7f1a5c05f2c1]",
            "python[311]: segfault at 7f2b61ffe8 ip 00007f2b8c2a sp 00007f2b62 error 6 in "
            "libnccl.so.2[7f2b8c+d2b0000]",
        ),
    ),
)
