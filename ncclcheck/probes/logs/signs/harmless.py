"""Lines that frighten people and say nothing bad by themselves."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

_IN_NCCL = "gpu-a17:4711:4800 [3] NCCL INFO "

SIGNS = (
    Sign(
        "no-plugin",
        r"NET/Plugin ?: (?:dlerror=)?(?P<error>(?:\S{1,300}: )?\S{1,200}: (?:cannot open shared object file|file too short"
        r"|undefined symbol|invalid ELF header|wrong ELF class).{0,120})"
        r"|(?:NET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?:.{0,120}(?:[Nn]o plugin found|Could not find|[Ff]ailed to find nccl\w{1,60}|"
        r"returned \d{1,3} :|dlerror=|using internal|Using internal|load returned)",
        (
            _IN_NCCL + "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
            _IN_NCCL + "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
            _IN_NCCL + "PROFILER/Plugin: Could not find: libnccl-profiler.so.",
            _IN_NCCL + "NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
            _IN_NCCL + "PROFILER/Plugin: failed to find ncclProfiler_v4",
            _IN_NCCL
            + "NET/Plugin: /opt/net.so: libefa.so.1: cannot open shared object file: No such file or directory",
        ),
    ),
    Sign(
        "ranks-met",  # of 2.23 and later, once the ranks' first ring is closed
        r"^Bootstrap timings total \d",
        (
            _IN_NCCL
            + "Bootstrap timings total 0.123737 (create 0.000028, send 0.000195, recv 0.098493, ring 0.02)",
        ),
        often=True,
    ),
    Sign(
        "plugin-taken",
        r"(?P<part>NET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: (?:Using (?!internal)|Loaded )(?:[a-z]{3,8} plugin )?(?P<name>\S.{0,60})"
        r"|Successfully loaded external (?P<kind>\w{1,20}) plugin (?P<path>\S{1,300})",
        (
            _IN_NCCL + "TUNER/Plugin: Using tuner plugin acme",
            _IN_NCCL + "TUNER/Plugin: Using acme (v4)",
            _IN_NCCL + "Successfully loaded external tuner plugin /opt/acme/libnccl-tuner-acme.so",
        ),
        words=("/plugin", "loaded external"),
    ),
    Sign(
        "gdrcopy",
        r"(?i)gdrcopy(?! failure \d)|Failed to open libgdrapi",
        (_IN_NCCL + "Failed to open libgdrapi.so.2",),
        words=("gdrcopy", "libgdrapi"),
    ),
    Sign(
        "no-verbs",
        r"lib wrapper not initialized|Failed to initialize NET plugin IB",
        (
            "vm:32389:32389 [0] misc/ibvwrap.cc:185 (wrap_ibv_alloc_pd) NCCL WARN lib wrapper not initialized.",
            "vm:32389:32389 [0] NCCL ATTN Failed to initialize NET plugin IB",
        ),
    ),
    Sign(
        "no-libmlx5", r"(?:Failed to open|Could not open) libmlx5", (_IN_NCCL + "Failed to open libmlx5.so[.1]",)
    ),
    Sign(
        "ib-notice",
        r"NET/IB ?:(?: [^\s:]{1,40}:\d{1,3})? Got (?:non-fatal )?async (?:error )?event ?: (?:client reregistration"
        r"|(?:LID|SM|P_Key|GID table) change|communication established|send queue drained|path migrat(?:ed|ion$)"
        r"|last WQE reached|SRQ limit reached|unknown event type|(?:device )?speed change)|NET/IB : \S{1,60} (?:GID table changed|unknown event type)",
        (
            "gpu-a17:4711:4800 [3] transport/net_ib.cc:199 NCCL WARN NET/IB : mlx5_0:1 Got async error event: SM change",
            "gpu-a17:4711:4800 [3] transport/net_ib.cc:178 NCCL WARN NET/IB : mlx5_0:1 unknown event type (18)",
            "gpu-a17:4711:4800 [3] transport/net_ib.cc:103 NCCL WARN NET/IB : mlx5_0:1 Got async event : path migration",
        ),
    ),
    Sign(
        "speed-not-told",
        r"Could not get speed from /sys/class/net/(?P<interface>\S{1,32})/speed",
        (_IN_NCCL + "Could not get speed from /sys/class/net/veth9/speed. Defaulting to 10 Gbps.",),
    ),
    Sign(
        "virtual-network-card",
        r"network path .{1,200} is not a PCI device",
        (
            _IN_NCCL
            + "Topology detection: network path /sys/devices/virtual/net/bond0 is not a PCI device (vmbus?). Attaching to first CPU",
        ),
    ),
    Sign(
        "no-nvls",
        r"NVLS multicast support is not available",
        (_IN_NCCL + "NVLS multicast support is not available on dev 3",),
    ),
    Sign(
        "value-corrected",
        r"NCCL_\w{2,40} is (?:greater|larger|more|less|smaller|lower) than the (?:maximum|minimum) allowed, setting to \d"
        r"|Invalid NCCL_\w{2,40} -?\d{1,9} \((?:must be a multiple of|maximum|minimum) \d"
        r"|User asked for a m(?:ini|axi)mum of -?\d{1,9} channels, |NCCL_\w{2,40}=-?\d{1,20} is being ignored because"
        r"|too big\. Limiting value to \d|upper limit -?\d{1,9}, cap it to|larger than maxCTAs|not a valid value 0/1, set it"
        r"|NCCL_\w{2,40}: unknown value \S{1,80}, defaulting|Unable to open \S{1,200}, not dumping topology"
        r"|, disabling CollNet|, ignoring NCCL_ALGO|maximum allowed, setting NCCL_\w{2,40} to|Unsetting POLICY_"
        r"|is invalid for family \w{2,20}, ignoring|Ignoring SHM locality|matching NCCL_OOB_NET_IFNAME=\S{0,80}, ignoring"
        r"|pre-posted receive work requests\. Enabling|PARAM: Duplicate|FLID configured as zero .{1,120}as fallback",
        (
            "h1:4045:4045 [0] graph/tuning.cc:19 NCCL WARN Invalid NCCL_NTHREADS 100 (must be a multiple of 32)",
            "[2026-11-28 00:01:11] h1:8720:8782 [0] transport/net_socket.cc:287 NCCL WARN NET/Socket : "
            "NCCL_SOCKET_NTHREADS is greater than the maximum allowed, setting to 16",
            "elm4:311:340 [0] graph/connect.cc:420 NCCL WARN User asked for a minimum of 64 channels, limiting to 32",
            "elm4:311:340 [0] init.cc:1510 NCCL WARN minCTAs 64 is larger than #channels upper limit 32, cap it to 32",
            "elm4:311:340 [0] graph/xml.cc:301 NCCL WARN Unable to open /x/topo.xml, not dumping topology.",
        ),
    ),
    Sign(
        "not-a-device-plugin",
        r"Using non-device net plugin",
        (_IN_NCCL + "Using non-device net plugin version 0",),
    ),
    Sign(
        "no-profiler",
        r"Profiler init failed",
        (_IN_NCCL + "Profiler init failed with error (3). Continue without profiler.",),
    ),
    Sign(
        "omp-threads",
        r"Setting OMP_NUM_THREADS environment variable for each process to be 1",
        (
            "W1109 22:40:00.000000 771 torch/distributed/run.py:766] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded",
        ),
    ),
    Sign(
        "not-destroyed",
        r"destroy_process_group\(\) was not called before program exit|process group has NOT been destroyed",
        (
            "[rank0]:[W1109 23:59:00.100 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.",
        ),
    ),
    Sign(
        "ddp-slower",
        r"Grad strides do not match bucket view strides|find_unused_parameters=True was specified in DDP constructor, but did not find",
        (
            "[W reducer.cpp:320] Warning: Grad strides do not match bucket view strides. This may indicate grad was not created according to the gradient layout contract",
            "[W reducer.cpp:1303] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters in the forward pass.",
        ),
    ),
    Sign(
        "hostname-not-found",
        r"The hostname of the client socket cannot be retrieved",
        (
            "[W1109 22:40:00.100 socket.cpp:759] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
        ),
    ),
    Sign(
        "ipv6-not-there",
        r"The client socket (?:has failed to connect|cannot be initialized to connect) to \[\S{1,120}\]:\d{1,5} \(errno: 97",
        (
            "[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [gpu-a17]:29500 (errno: 97 - Address family not supported by protocol).",
        ),
    ),
)
