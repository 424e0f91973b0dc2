"""Ways between the GPUs of a node: NVLink and its switches, peer to peer over PCIe, the topology that NCCL saw."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

SIGNS = (
    Sign(
        "nvls-bind",
        r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory.{0,120}?"
        r"CUDA error (?P<code>\d{1,4})(?: '(?P<error>[^']{1,120}))?",
        (
            "elm4:311:340 [2] transport/nvls.cc:254 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast "
            "memory of size "
            "4194304 : CUDA error 401 'the operation cannot be performed in the present state'",
            "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 at MC group 7f12 offset 0 : "
            "CUDA error 1 "
            "'invalid argument'.",
        ),
    ),
    Sign(
        "no-capability-files",
        r"/dev/nvidia-caps\S{0,40}['\"`‘’]?:? (?:No such file|not found|is missing|does not exist)",
        (
            "ls: cannot access '/dev/nvidia-caps': No such file or directory",
            "find: ‘/dev/nvidia-caps’: No such file or directory",
        ),
    ),
    Sign(
        "nvls-passed-on",
        r"transport/nvls\.cc:\d{1,5}(?: \(\S{1,80}\))? -> [1-5]\b",
        (
            "elm4:311:340 [2] NCCL INFO transport/nvls.cc:339 -> 1",
            "elm4:311:340 [2] NCCL INFO transport/nvls.cc:412 (ncclNvlsSetup) -> 1",
        ),
    ),
    Sign(
        "fabric-not-ready",
        r"[Ss]ystem not yet initialized|\b(?:library init failure|cuInit err): 802\b",
        (
            "elm4: Test CUDA failure common.cu:941 'system not yet initialized'",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            "elm4:311:340 [0] init.cc:410 NCCL WARN Cuda failure 802 'system not yet initialized'",
            "   [[ System not yet initialized (error 802) ]]",
            "Unable to load cudart library libcuda.so.570.86.15: cuda driver library init failure: 802",
        ),
        words=("system not yet initialized", "library init failure: 802", "cuinit err: 802"),
    ),
    Sign(
        "mnnvl-broken",
        r"MNNVL.{0,40} available but not (?:working|supported).{0,80}?Check the (?P<look>[^.]{1,80})",
        (
            "tray3:88:120 [1] mnnvl.cc:61 NCCL WARN MNNVL (cliqueSize 36) is available but not working on "
            "this system. Check "
            "the IMEX channel configuration (/dev/nvidia-caps-imex-channels). Set NCCL_MNNVL_ENABLE=0 to "
            "ignore this issue.",
            "tray3:88:120 [1] mnnvl.cc:54 NCCL WARN MNNVL (cliqueSize 12) is available but not supported on this system. "
            "Check the IMEX configuration.",
            "tray3:88:120 [1] mnnvl.cc:71 NCCL WARN MNNVL (cliqueSize 8) is available but not working on this "
            "system. Check "
            "the IMEX configuration (nvidia-imex-ctl -N). Set NCCL_MNNVL_ENABLE=0 to ignore this issue.",
        ),
    ),
    Sign(
        "p2p-nvlink-off",
        r"P2P is disabled between NVLINK connected GPUs (?P<a>\d{1,4}) and (?P<b>\d{1,4})",
        (
            "elm4:311:340 [2] graph/paths.cc:300 NCCL WARN P2P is disabled between NVLINK connected GPUs 5 "
            "and 2. This should "
            "not be the case given their connectivity, and is probably due to a hardware issue.",
        ),
    ),
    Sign(
        "p2p-off",
        r"P2P is disabled between connected GPUs (?P<a>\d{1,4}) and (?P<b>\d{1,4})",
        (
            "elm4:311:340 [1] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this "
            "message with "
            "NCCL_IGNORE_DISABLED_P2P=1.",
        ),
    ),
    Sign(
        "p2p-not-enabled",
        r"Could not enable P2P between dev (?P<a>\d{1,4})",
        ("elm4:311:340 [0] NCCL INFO Could not enable P2P between dev 0(=3b000) and dev 1(=5e000)",),
    ),
    Sign(
        "ipc-handle",
        r"[Ff]ailed to (?:open|get) CUDA IPC handle (?:to device \S{1,40} )?: (?P<code>\d{1,4}) (?P<error>.{2,80})",
        (
            "elm4:311:340 [0] p2p.cu:446 NCCL WARN failed to open CUDA IPC handle : 33 invalid resource handle",
            "elm4:311:340 [0] p2p.cu:301 NCCL WARN rank 3 failed to get CUDA IPC handle to device 3(=5e000) : 33 invalid "
            "resource handle",
        ),
    ),
    Sign(
        "p2p-unsupported",
        r"peer access is not supported between these two devices|cudaErrorPeerAccessUnsupported",
        (
            "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:307 'peer access is not supported between these two devices'",
            "Program hit cudaErrorPeerAccessUnsupported (error 217)",
        ),
        words=("peer access is not supported", "peeraccessunsupported"),
    ),
    Sign("legacy-ipc", r"Legacy IPC not supported", ("elm4:311:340 [0] NCCL INFO Legacy IPC not supported",)),
    Sign(
        "ipc-socket",
        r"UDS: Sending data over socket (?P<path>\S{1,120}) failed(?: : (?P<error>[^(]{1,80}\S) \(\d{1,4}\))?",
        (
            "elm4:311:340 [0] misc/ipcsocket.cc:197 NCCL WARN UDS: Sending data over socket "
            "/tmp/nccl-socket-1-9fe21 failed : "
            "Connection refused (111)",
        ),
    ),
    Sign(
        "no-transport",
        r"No transport found for rank (?P<a>\d{1,7})(?:\[[0-9a-f]{1,16}\])? -> rank (?P<b>\d{1,7})",
        ("elm4:311:340 [0] transport.cc:34 NCCL WARN No transport found for rank 0[1b000] -> rank 1[1c000]",),
    ),
    Sign(
        "topology-unread",
        r"Topology detection ?: could not read (?P<path>/sys/\S{1,300}?), (?:ignoring|using empty affinity)",
        (
            "elm4:311:340 [0] NCCL INFO Topology detection : could not read "
            "/sys/devices/pci0001:00/0001:00:00.0/../max_link_speed, ignoring",
            "elm4:311:340 [0] NCCL INFO Topology detection: could not read "
            "/sys/devices/system/node/node4294967295/cpumap, using empty affinity",
        ),
    ),
    Sign(
        "topology-file-missing",
        r"Could not open XML topology file (?P<path>\S{1,200})",
        (
            "elm4:311:340 [0] graph/xml.cc:330 NCCL WARN Could not open XML topology file /opt/topo/nd.xml : "
            "No such file or directory",
        ),
    ),
)
