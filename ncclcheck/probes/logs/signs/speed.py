"""What tells of speed: settings left on, what is printed, sockets, the way from GPU to card, start-up times."""

from __future__ import annotations

import re

from ncclcheck.probes.logs.signs.sign import Sign

_INFO = "gpu-a17:4711:4790 [0] NCCL INFO"
_NO_STEP = re.compile(r"\bhas different values for step\b|\bmaxBytes \d")  # FSDP's states, nccl-tests' header


def _steps(text: str) -> bool:
    return _NO_STEP.search(text) is None


SIGNS = (
    Sign(
        "debug-setting",
        r"(?P<name>NCCL_(?:P2P_DISABLE|P2P_LEVEL|SHM_DISABLE|NET_GDR_LEVEL|NET_GDR_READ|DMABUF_ENABLE|ALGO|PROTO"
        r"|NTHREADS|MAX_NCHANNELS|MAX_CTAS|LL_BUFFSIZE|LL128_BUFFSIZE|BUFFSIZE|CHUNK_SIZE|LAUNCH_MODE"
        r"|CHECK_POINTERS|IGNORE_DISABLED_P2P|NVB_DISABLE|RUNTIME_CONNECT)) set (?:by environment )?to "
        r"(?P<value>\S{1,100}?)\.?$",
        (
            f"{_INFO} NCCL_P2P_DISABLE set by environment to 1.",
            f"{_INFO} NCCL_ALGO set by environment to Tree",
        ),
    ),
    Sign(
        "value-not-understood",
        r"Unrecognized (?:element token|token|base token) \"(?P<token>[^\"]{1,80})\" when parsing "
        r"\"(?P<value>[^\"]{0,200})\"",
        ('gpu-a17:1:1 [0] graph/tuning.cc:103 NCCL WARN Unrecognized element token "LL12" when parsing "LL12"',),
    ),
    Sign(
        "setting-refused",
        r"Invalid (?P<name>NCCL_\w{2,40})[, ](?!-?\d{1,9} \()|device found .{1,120}, verify (?P<verify>NCCL_\w{2,40})"
        r"|specify a valid (?P<merge>NCCL_\w{2,40}) string|'?(?P<small>NCCL_\w{2,40})(?:=\S{1,40})? (?:is too small"
        r"|has invalid value|is out of range)|(?P<set>NCCL_\w{2,40}) has been set to .{1,200}not compatible|(?P<ooo>OOO RQ is force)|Try setting (?P<level>NCCL_NET_MERGE_LEVEL)|(?P<fused>Specified fused NIC )"
        r"|(?P<token>Unrecognized prefix token|All entries except the first must have a prefix)"
        r"|Net : (?P<address>No valid (?:<IPv4_or_hostname>|\[IPv6\]):|unsupported IP family|Unsupported address family)",
        (
            "gpu-a17:1:1 [0] bootstrap.cc:57 NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or"
            " [<ipv6>]:<port> or <hostname>:<port>",
            "gpu-a17:1:1 [0] graph/topo.cc:1100 NCCL WARN TOPO/NET : Could not force merge NICs mlx5_0. Please specify"
            " a valid NCCL_NET_FORCE_MERGE string.",
            "gpu-a17:1:1 [0] enqueue.cc:70 NCCL WARN 'NCCL_WORK_FIFO_DEPTH=1' is too small. Minimum value is 64",
            "gpu-a17:1:1 [0] transport/net_ib/connect.cc:671 NCCL WARN NET/IB: OOO RQ is force enabled but AR is not"
            " enabled, which is required for OOO RQ (device=mlx5_0)",
            'gpu-a17:1:1 [0] graph/tuning.cc:90 NCCL WARN Unrecognized prefix token "x" when parsing "x:ring"',
        ),
        words=(
            *("invalid nccl_", "verify nccl_", "specify a valid nccl_", "is too small", "has invalid value"),
            *(
                "is out of range",
                "has been set to",
                "ooo rq",
                "try setting nccl_",
                "specified fused nic",
                "prefix token",
                "must have a prefix",
                "net : ",
            ),
        ),
    ),
    Sign(
        "no-algorithm",
        r"[Nn]o algorithm/protocol available(?: for function (?P<function>\w{2,40}) with datatype (?P<type>\w{2,40}))?"
        r"(?:\. (?P<name>NCCL_(?:ALGO|PROTO)) was set to (?P<value>[^.]{1,200}))?",
        (
            "gpu-a17:1:1 [0] enqueue.cc:1825 NCCL WARN Error : no algorithm/protocol available for function AllReduce"
            " with datatype ncclFloat32. NCCL_ALGO was set to NVLS.",
            "gpu-a17:1:1 [0] enqueue.cc:1299 NCCL WARN Error : no algorithm/protocol available",
        ),
    ),
    Sign(
        "nic-setting",
        r"(?P<name>NCCL_IB_(?:DISABLE|HCA|GID_INDEX|TC|SL|PKEY)|NCCL_NET) set (?:by environment )?to "
        r"(?P<value>\S{1,200}?)\.?$",
        (
            f"{_INFO} NCCL_IB_HCA set to mlx5_1",
            f"{_INFO} NCCL_IB_HCA set to =mlx5_0,mlx5_1",
            f"{_INFO} NCCL_IB_TC set by environment to 106.",
        ),
    ),
    Sign(
        "trace-setting",
        r"NCCL_DEBUG=[\"']?(?P<level>TRACE)\b"
        r"|NCCL_DEBUG_SUBSYS=[\"']?"
        r"(?P<subsystem>\S{0,60}(?:ALL|COLL|CALL|PROXY)\S{0,60})",
        (
            "+ export NCCL_DEBUG=TRACE",
            "export NCCL_DEBUG_SUBSYS=INIT,COLL",
        ),
    ),
    Sign(
        "call-trace",
        r"^nccl[A-Z]\w{2,40}\(.{0,300}\)$",
        ("gpu-a17:4711:4790 NCCL CALL ncclAllReduce(0x7f1,0x7f2,1048576,7,0,0x55d0,0x55e0)",),
    ),
    Sign(
        "socket-streams",
        r"NET/Socket ?: Using (?P<threads>\d{1,2}) threads and (?P<sockets>\d{1,2}) sockets per thread",
        (f"{_INFO} NET/Socket: Using 1 threads and 1 sockets per thread",),
    ),
    Sign(
        "net-speed",
        r"\+ NET\[(?P<speed>\d{1,4}\.\d{1,3})\] - NET/[0-9A-F]",
        (
            f"{_INFO}               + NET[12.5] - NET/0 (0/0/12.500000)",
            f"{_INFO}               + NET[25.0] - NET/A (1f3c/1/25.000000)",
        ),
    ),
    Sign(
        "nvlink-seen",
        r"\+ NVL\[(?P<speed>\d{1,4}\.\d{1,3})\] - (?P<to>NVS|GPU|DEV)/",
        (f"{_INFO}               + NVL[240.0] - NVS/0", f"{_INFO}               + NVL[80.0] - DEV/0-5e000"),
    ),
    Sign(
        "nvlink-inactive",
        r"Link \d{1,2}: <?inactive>?",
        ("\t Link 3: <inactive>",),
    ),
    Sign(
        "pcie-gpu",
        r"\+ PCI\[(?P<speed>\d{1,4}\.\d{1,3})\] - (?:GPU|DEV)/(?P<gpu>[0-9A-Fa-f-]{1,16})",
        (
            f"{_INFO}               + PCI[24.0] - GPU/1b000 (0)",
            f"{_INFO}               + PCI[24.0] - DEV/0-1b000 (10de233010de16c1)",
        ),
    ),
    Sign(
        "pcie-narrow",
        r"Width x\d{1,2} \(downgraded\)|limited by (?P<rate>[\d.]{1,5} GT/s (?:PCIe )?x[1248]) link"
        r"|class=\"0x030[02]00\".{0,300}?link_width=\"(?P<width>[124])\"",
        (
            "LnkSta: Speed 2.5GT/s (downgraded), Width x4 (downgraded)",
            "pci 0000:1b:00.0: 8.000 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x4 link at 0000:1a:00.0",
            "pci 0000:1b:00.0: 15.752 Gb/s available PCIe bandwidth, limited by 8 GT/s x2 link at 0000:1a:00.0",
            '<pci busid="0000:1b:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="4">',
        ),
    ),
    Sign(
        "slow-rank-said",
        r"STRAGGLER.{0,120}?(?:RANK|[Rr]anks?)[ =:\[{(]{1,4}(?P<upper>\d{1,7})"
        r"|traggler.{0,120}?[Rr]anks?[ =:\[{(]{1,4}(?P<lower>\d{1,7})"
        r"|[Rr]ank[ =:#\[]{1,3}(?P<named>\d{1,7})\b.{0,80}?straggler"
        r"|[Rr]ank[ =:#\[]{1,3}(?P<behind>\d{1,7})\b.{0,80}?slower than"
        r"|[Rr]ank[ =:#\[]{1,3}(?P<worst>\d{1,7})\b.{0,80}?slowest"
        r"|[Ss]lowest (?:rank|GPU|worker)[ =:#\[]{1,4}(?P<last>\d{1,7})",
        (
            "STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: [5]",
            "DETECTED RELATIVE STRAGGLER GPU RANK=2 NODE=gpu-a17 SCORE=0.65",
            "rank 3 on gpu-a17 is 1.9 times slower than the median",
            "slowest rank: 3 (812 ms a step)",
        ),
        words=("straggler", "slow"),
    ),
    Sign(
        "throttled",
        r"(?:HW|SW|hw|sw)[ _](?:Thermal |thermal_|Power Brake |power_brake_)?[Ss]lowdown(?: {0,60}[:,=] ?| {1,60})Active\b"
        r"|(?:(?<!cpu )(?<!CPU )[Cc]locks?|GPU \d{1,3}|[Tt]hermal|[Pp]ower)\b.{0,80}?\b[Tt]hrottl(?:ed|ing)\b",
        (
            "        HW Thermal Slowdown               : Active",
            "clocks_event_reasons.hw_thermal_slowdown: Active",
            "5, clocks.sm 1095 MHz, clocks_event_reasons.hw_thermal_slowdown Active",
            "GPU 3: clocks throttled (thermal)",
        ),
    ),
    Sign(
        "p2p-missing",
        r"Check P2P Type (?:intraNodeP2pSupport|isAllDirectP2p) 0\b|\bisAllDirectP2p 0\b",
        (
            f"{_INFO} Check P2P Type intraNodeP2pSupport 0 directMode 0",
            f"{_INFO} Check P2P Type isAllDirectP2p 0 directMode 0 isAllCudaP2p 0",
        ),
    ),
    Sign(
        "graph-far",
        r"Pattern \d{1,2}, crossNic \d, nChannels \d{1,3}, (?:bw|speed) [\d.]{1,12}/[\d.]{1,12}, "
        r"type \w{1,5}/(?P<path>PHB|SYS|NODE)\b",
        (
            f"{_INFO} Pattern 4, crossNic 0, nChannels 2, bw 12.000000/12.000000, type NVL/SYS, sameChannels 1",
            f"{_INFO} Pattern 1, crossNic 1, nChannels 4, speed 5.000000/5.000000, type PIX/PHB, sameChannels 0",
        ),
    ),
    Sign(
        "gdr-far",
        r"GPU Direct RDMA Disabled for GPU(?: (?P<gpu>\w{1,16}) / HCA (?P<hca>[0-9a-f]{1,16})"
        r"|/\d{1,20}-\d{1,20} \(rank (?P<of>\d{1,7})\) - NET/\d{1,20}-(?P<net>\d{1,20})) "
        r"\((?: using PXN via GPU/[\d-]{1,41}, )?distance (?P<far>\d{1,2}) > (?P<limit>\d{1,2})\)",
        (
            f"{_INFO} GPU Direct RDMA Disabled for GPU 3 / HCA 1 (distance 7 > 5)",
            f"{_INFO} GPU Direct RDMA Disabled for GPU 3 / HCA a (distance 7 > 5)",
            f"{_INFO} GPU Direct RDMA Disabled for GPU/0-110592 (rank 3) - NET/0-1 (distance 8 > 6)",
        ),
    ),
    Sign(
        "init-timings",
        r"Init timings(?: - (?P<call>\w{1,40}))?: rank (?P<of>\d{1,7}) nranks (?P<nranks>\d{1,7}) "
        r"total (?P<total>\d{1,6}\.\d{1,4}) \((?P<parts>[^)]{1,300})\)",
        (
            f"{_INFO} Init timings: rank 3 nranks 16 total 1.61 (kernels 0.24, bootstrap 0.86, allgathers 0.01, "
            "topo 0.30, graphs 0.10, connections 0.06, rest 0.04)",
            f"{_INFO} Init timings - ncclCommInitRank: rank 0 nranks 16 total 95.20 (kernels 0.24, alloc 0.10, "
            "bootstrap 93.86, allgathers 0.01, topo 0.50, graphs 0.10, connections 0.30, rest 0.09)",
        ),
    ),
    Sign(
        "training-goes-on",
        r"\b[Ii]teration['\" :=#\[]{1,12}0{0,8}[1-9]\d{1,8}|\b[Ss]tep['\" :=#\[]{1,12}0{0,8}[1-9]\d{1,8}"
        r"|\b[Ee]poch(?: is)?['\" :=#\[]{1,12}(?:0{0,8}[1-9]|0\.\d{0,6}[1-9])"
        r"|\b[Ii]ters?:? {1,3}\[?[1-9]\d{0,8} ?/ ?\d{1,9}\b"
        r"|\b[Ss]tep['\" :=#\[]{1,12}[1-9]\b.{0,40}\bloss\b|\bstep:[1-9]\d{0,8} - "
        r"|\b[Ee]poch['\" :=]{0,4}\[\d{1,6}\]\s{0,3}\[\s{0,6}[1-9]\d{0,8}/\d"
        r"|\b(?:[Ii]ter(?:ation)?|[Bb]atch)['\" :=#\[]{1,12}[1-9]\d{0,8}\b.{0,80}\b[Ll]oss\b"
        r"|(?<!\w)(?:\w{1,20}[ _/])?[Ll]oss['\"]?\s{0,4}[:=|(]?\s{0,4}[-+]?\d{1,9}\.\d{1,12}(?:e[-+]?\d{1,3})?(?![\w.])"
        r"|\beta: {1,2}(?:\d{1,3} days?, )?\d{1,3}:\d\d(?::\d\d)?\b",
        (
            "iteration      120/   10000 | loss 2.31",
            "step 1200 loss 1.80 lr 3e-4",
            "segmentation INFO: Iters: 15210/20000 || Lr: 0.0055 || Task Loss: 7.1",
            "Epoch: [3][ 10/500] loss 0.9",
            "{'loss': 1.2, 'learning_rate': 3e-05, 'epoch': 1.25}",
            "{'loss': 1.2607, 'learning_rate': 6.3e-06, 'epoch': 0.03}",
            "[titan] 2026-02-24 18:46:17,508 - root - INFO - step:  4  loss:  7.62585  grad_norm: 26.6250",
            "Evaluation  [ 40/125]  eta: 0:05:56    time: 4.1312  data: 0.0139  max mem: 27450",
            "(TaskRunner pid=11) step:1 - actor/entropy_loss:0.31 - critic/score/mean:0.12",
            "Epoch: [0][  10/5005]\tTime  0.320 ( 0.911)\tData  0.001 ( 0.120)",
            "iter 1: loss 3.2100, time 20.11ms",
            "Rank 1: average training loss 0.4322",
        ),
        words=("iter", "step", "epoch", "eta: ", "loss", "batch"),
        often=True,
        check=_steps,
    ),
)
