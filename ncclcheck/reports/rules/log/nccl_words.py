"""What NCCL's warnings are about, by their words: those for which no check of their own is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ncclcheck.probes.facts import LogEvent
from ncclcheck.reports.judgement.findings import Owner


class Meaning(NamedTuple):
    """One kind of warning. words: a pattern of its text; what: for a heading, after which the host stands."""

    words: re.Pattern[str]
    what: str
    why: str
    fix: tuple[tuple[str, ...], ...]  # each: what to do, and its commands
    owner: Owner = "job"


def meaning(event: LogEvent, of: Iterable[Meaning]) -> Meaning | None:
    """The first kind whose words are in NCCL's own text."""
    text = event.text.partition("NCCL WARN ")[2] or event.text
    return next((kind for kind in of if kind.words.search(text)), None)


# Where in NCCL a call failed, by the file that a line names, and what it was doing there.
_STAGES = {
    "plugin/tuner": "it starts its tuner plugin",
    "plugin/net": "it starts its network plugin",
    "plugin/gin": "it starts its network plugin",
    "plugin/profiler": "it starts its profiler plugin",
    "plugin/": "it starts a plugin",
    "net.cc": "it starts its network",
    "transport/p2p": "it lets the ranks of a host into each other's GPU memory",
    "transport/shm": "it shares memory of the host between ranks",
    "transport/nvls": "it sets up NVLink SHARP",
    "transport/coll_net": "it sets up SHARP on the network",
    "transport/net_ib": "it sets up the connections over RDMA",
    "transport/net_socket": "it sets up the connections over sockets",
    "transport/net": "it sets up the connections between hosts",
    "proxy": "its proxy thread moves data",
    "enqueue": "it starts a kernel",
    "group": "it starts a kernel",
    "graph/": "it looks at the machine",
    "allocator": "it allocates memory",
    "include/alloc": "it allocates memory",
    "register": "it registers a buffer of the program",
    "bootstrap": "the ranks find each other",
    "init": "it sets up the communicator",
    "misc/strongstream": "it orders its work in streams",
    "dev_runtime": "it registers a window of symmetric memory",
}


def stage(event: LogEvent) -> str:
    """What NCCL was doing, as a clause: ` while it starts a kernel`."""
    file = event.fields.get("place", "").removeprefix("src/")
    return next((f" while {doing}" for begin, doing in _STAGES.items() if file.startswith(begin)), "")


def meant(pattern: str, what: str, why: str, *fix: tuple[str, ...], owner: Owner = "job") -> Meaning:
    return Meaning(re.compile(pattern), what, why, fix, owner)


def _refused_peers(pattern: str) -> Meaning:
    """CUDA and NCCL have different words for it."""
    return meant(
        pattern,
        "GPUs of one host do not reach each other's memory, although they should",
        "NCCL asked CUDA for direct access between two GPUs, and was refused: virtualisation, ACS or MIG.",
        (
            "Confirm: what the driver says of each pair, and whether it works without.",
            "nvidia-smi topo -p2p r",
            "export NCCL_P2P_DISABLE=1",
        ),
        owner="node",
    )


LIBRARIES = (
    "Compare driver, CUDA and NCCL of the ranks.",
    "nvidia-smi | head -4",
    "python -c 'import torch; print(torch.version.cuda, torch.cuda.nccl.version())'",
)

# CUDA's answers, by cudaGetErrorString(); those that other checks know are not here.
CUDA = (
    _refused_peers(
        r"peer access is not supported|peer access is already enabled|peer access has not been enabled"
    ),
    meant(
        r"\bMPS\b|hardware resources required to support device connections",
        "CUDA's MPS server does not serve this process",
        "Where MPS is on, CUDA works only through its daemon, which is away, full or of another user.",
        (
            "Confirm: whether the daemon answers, and which folder this process looks into.",
            "echo get_server_list | nvidia-cuda-mps-control",
            "env | grep CUDA_MPS",
        ),
        (
            "Start it again, or go without: ranks that have a GPU each need no MPS.",
            "echo quit | nvidia-cuda-mps-control",
            "unset CUDA_MPS_PIPE_DIRECTORY",
        ),
        owner="node",
    ),
    meant(
        r"exclusive-thread device already in use",
        "a GPU serves one thread only, and another holds it",
        "Its compute mode is exclusive.",
        ("Confirm, and let it serve all.", "nvidia-smi -q -d COMPUTE", "nvidia-smi -c 0"),
        owner="node",
    ),
    meant(
        r"stub library",
        "the stub of libcuda.so is loaded in place of the driver's",
        "The toolkit's folder stubs/ serves the linker only; it stands in LD_LIBRARY_PATH before the driver's.",
        ("Take it out of the path.", "echo $LD_LIBRARY_PATH", "ldconfig -p | grep libcuda.so"),
    ),
    meant(
        r"not supported in the installed CUDA driver|PTX JIT|unsupported toolchain|kernel image is invalid"
        r"|shared object (?:symbol|initialization)|integrity checks|CDP (?:not|version)|unrecognized error code"
        r"|function is not loaded|: file not found|'file not found",
        "the driver does not take the code of NCCL or torch: it is older than their CUDA",
        "Code for a newer CUDA than the driver's is loaded, or is damaged.",
        LIBRARIES,
        (
            "Install a newer driver, or a build for the driver's CUDA.",
            "nvidia-smi --query-gpu=driver_version --format=csv",
        ),
        owner="node",
    ),
    meant(
        r"Grid license",
        "the virtual GPU has no licence",
        "A vGPU without one runs no CUDA.",
        ("Confirm, and look at the licence service.", "nvidia-smi -q | grep -i license"),
        owner="node",
    ),
    meant(
        r"launch timed out",
        "a kernel ran longer than a GPU with a display allows",
        "The watchdog of the display ends kernels after some seconds.",
        ("Confirm, and take the display off the GPU.", "nvidia-smi --query-gpu=display_active --format=csv"),
        owner="node",
    ),
    meant(
        r"[Ii]nvalid access of peer GPU memory|contained memory error|contained by error containment",
        "a GPU failed in reaching another's memory: NVLink or the hardware",
        "CUDA names an access to a peer's memory that failed.",
        ("Confirm in the kernel's log and at the links.", "dmesg | grep -i xid", "nvidia-smi nvlink -e"),
        owner="node",
    ),
    meant(
        r"stream is capturing|during capture|capture sequence|capturing stream|capturing blocking stream"
        r"|dependent on a capturing|legacy stream depend|unjoined work|captured event|graph (?:update|recapture)"
        r"|stream is detached",
        "a call that cannot be captured came while a CUDA graph was captured",
        "NCCL's first collective of a communicator sets up connections, and other threads' calls count as well.",
        (
            "Run each collective once before the capture; or let the capture look at its own thread only.",
            "torch.cuda.graph(g, capture_error_mode='thread_local')",
        ),
    ),
    meant(
        r"driver shutting down|context is destroyed|invalid device context",
        "CUDA had ended in this process while NCCL still worked",
        "The program left, reset the device or destroyed the context before its communicators were destroyed.",
        (
            "Destroy the groups before the program ends, and look what ended it before this line.",
            "torch.distributed.destroy_process_group()",
        ),
    ),
    meant(
        r"blocks in cooperative launch",
        "a kernel asks for more blocks than its GPU holds at once",
        "Another library's kernels or a partition of the GPU (MIG, MPS) leave too little of it.",
        ("Confirm with fewer channels.", "export NCCL_MAX_NCHANNELS=4", "nvidia-smi"),
    ),
    meant(
        r"invalid argument|invalid resource handle|already mapped|not configured|^.{0,200}device not ready"
        r"|array index|buffer object failed|external entity|invalid (?:pitch|texture|copy|device (?:symb|point))"
        r"|invalid configuration argument|nested too deep|cluster misconf|missing configuration|texturing mode"
        r"|profiler|resource (?:already|not) |limit is not supported|execution affinity|introspection"
        r"|while device is active|registered memory region|resource types|insufficient or non-applicable"
        r"|wait operation timed out|unsupported call to cuda|tensor memory leak",
        "CUDA refuses a call of NCCL",
        "The rank's current GPU is not the communicator's, the ranks' drivers or libraries differ, or the driver "
        "cannot do what this NCCL asks for.",
        ("Set the rank's GPU before anything else.", "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"),
        LIBRARIES,
    ),
)

# What keeps NCCL from its libraries and from other processes of the host.
AROUND = (
    meant(
        r"CUDA Driver version found|Retrieve \w+ (?:version \d+ )?failed with|missing symbol cu|some PFN functions"
        r"|due to old driver|cuDriverGetVersion failed",
        "the driver lacks calls that this NCCL needs: it is too old",
        "NCCL asks libcuda for its functions by name, and did not get them.",
        LIBRARIES,
        ("Install a newer driver, or an NCCL for an older CUDA.", "nvidia-smi | head -4"),
        owner="node",
    ),
    meant(
        r"Failed to open libnvidia-ml",
        "NVIDIA's libraries are not in this container or on this host",
        "Without libnvidia-ml.so.1 NCCL knows nothing of the GPUs.",
        (
            "Confirm, and give the container its GPUs.",
            "ldconfig -p | grep libnvidia-ml",
            "docker run --gpus all IMAGE",
        ),
        owner="node",
    ),
    meant(
        r"Failed to (?:create|set) CUDA (?:context|device)",
        "a thread of NCCL cannot use its GPU",
        "CUDA refused it: the line before has the error.",
        ("Confirm: what the driver says of the GPU.", "nvidia-smi", "dmesg | grep -i xid"),
        owner="node",
    ),
    meant(
        r"more devices \(\d+\) than the internal maximum",
        "the host has more GPUs than this NCCL counts",
        "Its tables are of a fixed size.",
        ("Hide the others, or take a newer NCCL.", "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"),
    ),
    meant(
        r"\bgdr_\w+\(|\bgdr_\w+.{0,60} failed: -?\d|GDRCOPY failure|libgdrapi|[Dd]lsym failed on .{0,80}gdr",
        "GDRCopy fails",
        "Its kernel module gdrdrv and its library are of different versions, or the container lacks /dev/gdrdrv.",
        ("Confirm without it.", "export NCCL_GDRCOPY_ENABLE=0", "ls -l /dev/gdrdrv; lsmod | grep gdrdrv"),
        owner="node",
    ),
    meant(
        r"\bUDS: ",
        "ranks of one host do not reach each other over their local sockets",
        "They pass handles of memory over Unix sockets without a file, which containers with networks of their "
        "own do not share.",
        (
            "Confirm: let the containers of a host share its network, or go without.",
            "docker run --network=host IMAGE",
            "export NCCL_CUMEM_ENABLE=0",
        ),
    ),
    _refused_peers(r"failed to peer with device"),
    meant(
        r"TOPO/NET : (?!Importing)|[Tt]ry(?:ing|ied)? to merge|virtual (?:NIC|device)|vNics?\b|too many devices"
        r"|mergedDev|network devices = \d+ for policy",
        "cards cannot be joined to one as NCCL wants to",
        "NCCL_NET_FORCE_MERGE or the merge level asks for it, or the two ends have different numbers of ports.",
        (
            "Confirm with every port by itself, on all hosts.",
            "export NCCL_NET_MERGE_LEVEL=LOC",
            "unset NCCL_NET_FORCE_MERGE",
        ),
    ),
    meant(
        r"GIN Error",
        "one-sided communication (GIN) failed on a card or in a kernel",
        "A GPU asked a card for a transfer, and the card or its driver answered with an error.",
        (
            "Confirm at the card and in the kernel's log, on the hosts that say it.",
            "dmesg -T | grep -iE 'mlx5|xid'",
            "ibstat",
        ),
        owner="node",
    ),
    meant(
        r"version mismatch with remote peer",
        "hosts of the job run different versions of NCCL, as its RAS threads report to each other",
        "RAS cannot ask such a peer; jobs of both versions in one network, or one job with two.",
        (
            "Confirm: compare the version and the file on every node.",
            'python -c "import torch; print(torch.cuda.nccl.version())"',
        ),
    ),
    meant(
        r"[Pp]lugin returned invalid|plugin has incompatible version|(?:net|gin|rma)Plugin\[|[Pp]lugin refcount",
        "NCCL and a plugin of it do not go together",
        "The plugin was built for another NCCL, or answers what NCCL does not take.",
        (
            "Confirm without it; then install the plugin that was made for this NCCL, the same on all hosts.",
            "export NCCL_NET_PLUGIN=none",
            "env | grep -E 'NCCL_.*PLUGIN|LD_LIBRARY_PATH'",
        ),
    ),
    meant(
        r"marked as failed|failed devices out of|replacement QP|is not on a functional device"
        r"|find a functional device|no other device to fail over|probing attempts|outstanding recovery"
        r"|stale CQE|Unsupported completion status|The error is fatal \(|alive message",
        "an RDMA card failed, and NCCL could not go on over the others",
        "With NCCL_IB_RESILIENCY_PORT_FAILOVER another card takes over, where one works on both ends.",
        (
            "Confirm at the card and its link, on both hosts.",
            "ibstat",
            "dmesg -T | grep -iE 'mlx5|infiniband'",
        ),
        owner="node",
    ),
    meant(
        r"Unable to query (?:device|port)|Call to ibv_\w{3,40} failed\.?$"
        r"|Call to ibv_poll_cq\(\) returned|ibv_post_(?:send|recv)\(\) failed"
        r"|mlx5dv_\w+ failed|Error in mlx5dv_|Got CQE with error|DOCA (?:failure|Error)|dlvsym failed",
        "an RDMA card's driver refuses a call of NCCL",
        "The card went away, was reset, or rdma-core in the image and the kernel's driver are of different times.",
        (
            "Confirm in the kernel's log, and whether other programs can use it.",
            "dmesg -T | grep -iE 'mlx5|infiniband'",
            "ibv_devinfo",
        ),
        owner="node",
    ),
    meant(
        r"posted incorrect receive info|already connected|not a gin type",
        "the two ends of a connection do not agree",
        "Ranks call different collectives, or sizes, or their hosts have different builds of NCCL or of a plugin.",
        (
            "Confirm that all call the same, and that all have one NCCL.",
            "export TORCH_DISTRIBUTED_DEBUG=DETAIL",
            "export NCCL_DEBUG=VERSION",
        ),
    ),
    meant(
        r"(?:de)?register (?:userbuff|NET|NVLS|COLLNET|IPC|sendbuff|buffer|fails)|registration requirements",
        "a buffer of the program cannot be registered",
        "NCCL goes on without where it may; where it ends, registration can be switched off.",
        ("Confirm without it.", "export NCCL_LOCAL_REGISTER=0", "export NCCL_GRAPH_REGISTER=0"),
    ),
)

_CONFIG = (
    "Correct the field, or leave it out and confirm that it starts (torch: ProcessGroupNCCL.Options().config).",
    "grep -rnE 'min_ctas|max_ctas|cga_cluster_size|ncclConfig_t|Options\\(\\)' --include=*.py --include=*.c* .",
)
# What the program asked of NCCL and does not get: its calls, its configuration, what this NCCL or GPU cannot do.
ASKED = (
    meant(
        r"Invali[dg] config min/max channels",
        "the program's ncclConfig_t asks for what cannot be: minCTAs must be above 0 and not above maxCTAs",
        "NCCL takes both numbers (minCTAs/maxCTAs) from the program, or from NCCL_MIN_CTAS and NCCL_MAX_CTAS.",
        _CONFIG,
        ("See whether variables set them.", "env | grep -E 'NCCL_(MIN|MAX)_CTAS'"),
    ),
    meant(
        r"Invali[dg] config \w",
        "the program's ncclConfig_t has a value that NCCL does not take",
        "The line names the field and its value. A number that nobody wrote means that the structure was not "
        "filled (NCCL_CONFIG_INITIALIZER), or made for another NCCL.",
        _CONFIG,
        (
            "Where the number is nobody's: build against the NCCL that is loaded.",
            'python -c "import torch; print(torch.cuda.nccl.version())"',
            "ldd PROGRAM | grep nccl",
        ),
    ),
    meant(
        r"_INITIALIZER\b|[Ll]ibrary (?:version )?is too old|compiled with too old version"
        r"|not backwards compatible|MIN_VERSION",
        "the program and this NCCL do not go together: it passes a structure that was not made for it",
        "The program was compiled for another NCCL than the one that is loaded, or left the structure unset.",
        (
            "Confirm which NCCL is loaded, and build against it.",
            'python -c "import torch; print(torch.cuda.nccl.version())"',
            "ldd PROGRAM | grep nccl",
        ),
    ),
    meant(
        r"without a matching (?:recv|send)|Streams given to a communicator|must either be all uncaptured"
        r"|none or all communicators|Blocking and nonblocking communicators|not in a group call"
        r"|before the previous operation returned|has already been destroyed|was revoked|operator (?:is|unknown)"
        r"|ncclRedOp|invalid communicator passed|corrupted comm object|improper usage of ncclCommInitRank"
        r"|should not be called when NCCL_COMM_ID",
        "the program calls NCCL out of order",
        "NCCL takes such a call for a mistake of the program, and the communicator is of no more use.",
        (
            "Look what this rank calls right before it: groups of calls, threads that share a communicator, one "
            "that is used after it was destroyed.",
            "export TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
    ),
    meant(
        r"argument is NULL|invalid (?:root|type|reduction operation|device count|arguments?\b|pointer)"
        r"|reduction operation \d+ unknown|[Ii]nvalid device(?: count requested)? |exceeds ndev"
        r"|(?:[Ww]in|Buff|[Aa]rgument) is NULL\b"
        r"|Data type supplied to user-created|is invalid \(must be|count must be 0|must be positive|must pass"
        r"|exceeds total ranks|is less than current ranks|not within valid range|is not a member of"
        r"|suitably aligned|Invalid (?:handle|window|key size|ce )|must be provided|is not power of 2$",
        "the program passes NCCL an argument that it does not take",
        "NCCL refuses the call on this rank, and the others wait for it.",
        (
            "Look at the arguments that this rank passes: count, type, root, communicator, memory.",
            "export NCCL_DEBUG_SUBSYS=COLL",
        ),
    ),
    meant(
        r"parent comm netName|does not match the parent|fails to share parent",
        "a communicator is to share with its parent what the two have not in common",
        "Their networks or their numbers of ranks differ.",
        ("Leave sharing out.", "unset NCCL_COMM_SPLIT_SHARE_RESOURCES NCCL_NET"),
    ),
    meant(
        r"symmetric registration check failed|identical segment configurations|Legacy IPC cleanup",
        "ranks pass buffers of different registrations to one collective",
        "With symmetric memory every rank has to pass the same window at the same offset.",
        ("Register and pass the same buffer on every rank.", "export NCCL_WIN_ENABLE=0"),
    ),
    meant(
        r"does not support symmetric memory|[Mm]ult(?:icast|imem) .{0,60}(?:none available|does not support)"
        r"|\b(?:GIN|Gin|RMA|Rma)\b|[Oo]ne.sided RMA|ncclPutSignal|ncclWaitSignal|ncclRma|Fusing NET devices"
        r"|CE collective not supported|physical segments|spans? multiple"
        r"|not support(?:ed)? (?:on|in|by|prior|for)|supports? (?:only|begins with)|support begins with"
        r"|requires CUDA driver|cannot be captured in a graph if|MemManager"
        r"|[Mm]emory (?:suspend|resume) not supported",
        "this NCCL, GPU or driver cannot do what the program asks for",
        "The feature needs newer GPUs, drivers or NVSwitches, or was switched off.",
        (
            "Confirm what is there, and do without the feature where possible.",
            "nvidia-smi",
            "env | grep NCCL_",
        ),
    ),
    meant(
        r"Multi-GPU CC Off",
        "confidential computing is on, and its protection between GPUs is off",
        "GPUs in that mode may not exchange data.",
        ("Confirm the mode, and let the administrator set it for several GPUs.", "nvidia-smi conf-compute -f"),
        owner="node",
    ),
)

# Checks of NCCL's own state: what they say does not follow from what a user set.
OWN_CHECKS = (
    meant(
        r"Internal error|pass NULL socket|socket state|file descriptor is -1|socket is invalid|invalid socket"
        r"|Unexpected connections|does not loop back|does not contain rank|has bugs|Unknown (?:pattern|type|"
        r"node|message|collnet)|too many (?:XML|Topo|nodes|DEV)|tried to create too many|Failed to determine"
        r"|KV Convert|[Cc]ould(?: not|n't) find|could not find|not found in the list|Attribute \S+ of node"
        r"|not at head of strong stream|captured by the expected graph|ran out of room|out of range"
        r"|\[(?:Proxy Service|Service thread)|[Tt]oo many connections|opId=|nonexistent async|null operation"
        r"|List loop|Inactive op|[Pp]roxy (?:append|op chain)|no transport for"
        r"|reqSize is|respSize is|sizes: want|in unknown state|NULL request|nLocals = |Group creation failed"
        r"|ran out of channel|unable to allocate (?:requests|subtasks)"
        r"|Unknown (?:device code|netDevs|command)|unknown (?:notification|message) type"
        r"|events=\{|called when comm|uninitialized netPlugin|Unable to post|No allocation found|beyond allocation"
        r"|Invalid regBufType|invalid algorithm|localId|not aligned for self",
        "a check of NCCL's own state failed",
        "It does not follow from a setting: NCCL takes this machine for what it is not, hosts run different "
        "builds, or it has a defect.",
        (
            "Confirm with the newest NCCL, without files that describe the machine to it.",
            "env | grep -E 'NCCL_(TOPO|GRAPH)_FILE'",
            "python -m pip install -U nvidia-nccl-cu12",
        ),
        ("Search for these words in the issues of NVIDIA/nccl.",),
    ),
)

WARNINGS = (*AROUND, *ASKED, *OWN_CHECKS)

# Answers of the RDMA driver, by strerror(); memory and addresses are known to other checks.
VERBS = (
    meant(
        r"No such device|Input/output error|Remote I/O error",
        "finds that the card, or its port, is gone",
        "It was reset, fell off the bus, or its driver was restarted while the job ran; its connections are lost.",
        (
            "Confirm in the kernel's log, and whether the card is there.",
            "dmesg -T | grep -iE 'mlx5|pcieport|AER|infiniband'",
            "ibv_devinfo; ls /sys/class/infiniband",
        ),
        ("Reset it, or drain the node where it comes back.", "mlxfwreset -d DEVICE reset"),
        owner="node",
    ),
    meant(
        r"Operation not permitted|Permission denied",
        "may not use the card",
        "The container or the job's cgroup has no right to it.",
        ("Confirm inside of the container.", "ls -l /dev/infiniband", "ulimit -l", "ibv_devinfo"),
        owner="node",
    ),
    meant(
        r"No space left on device|Resource temporarily unavailable|Too many open files|Device or resource busy",
        "finds the card's objects used up",
        "A cgroup's limit of RDMA objects, or those of the card, are exhausted by this and other jobs.",
        ("Confirm who holds them.", "rdma resource show", "cat /sys/fs/cgroup/rdma.max"),
        ("Fewer connections.", "export NCCL_NCHANNELS_PER_NET_PEER=1", "unset NCCL_IB_QPS_PER_CONNECTION"),
        owner="node",
    ),
    meant(
        r"not supported|not implemented|Inappropriate ioctl",
        "asks for what the card's driver does not have",
        "rdma-core in the image and the kernel's driver are of different times, or the card cannot do it.",
        (
            "Confirm: compare the image's library with the host's driver.",
            "dpkg -l | grep -E 'libibverbs|rdma-core'",
            "ofed_info -s || modinfo -F version mlx5_core",
        ),
        owner="node",
    ),
    meant(
        r"timed out|No data available|Invalid argument"
        r"|Bad address|Cannot allocate memory|Network is (?:down|unreachable)|errno",
        "is refused by the card",
        "The card went away, was reset or its firmware refuses: its driver says why.",
        (
            "Confirm in the kernel's log, and whether other programs can use it.",
            "dmesg -T | grep -iE 'mlx5|infiniband'",
            "ibv_devinfo",
        ),
        owner="node",
    ),
)
