"""What NET/IB, its plugins and verbs say: devices, addresses, connections, completions, memory."""

from __future__ import annotations

import re

from ncclcheck.probes.logs.signs.sign import Sign

_IB = "gpu-a17:4711:4790 [0] transport/net_ib.cc:1290 NCCL WARN"
_VERBS = "gpu-a17:4711:4790 [0] misc/ibvwrap.cc:130 NCCL WARN"
_INFO = "gpu-a17:4711:4790 [0] NCCL INFO"
_ROCE_V1 = "NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument"
_FAILS = re.compile(
    r"(?i)\b(?:fail(?:ed|ure)|errors?|local protection|exceeded)\b"
)  # what says this lists no card
_FROM = "NET/IB : Got completion from peer 10.0.3.18<40113> with"


def _lists(text: str) -> bool:
    return _FAILS.search(text) is None


SIGNS = (
    Sign(
        "ib-completion",
        r"Got completion (?:from peer (?P<peer>[^\s<]{1,64})(?:<\d{1,5}>)? )?with (?:error |status=)"
        r"(?:\w{1,40}\()?(?!5\b)(?P<status>\d{1,3})\b"
        r"(?:.{0,200}?vendor[ _]err[ =](?P<vendor>\d{1,5}))?"
        r"(?:.{0,200}?localGid (?P<local>[0-9a-f:.]{2,46}))?"
        r"(?:.{0,60}?remoteGids? ?(?P<remote>[0-9a-f:.]{2,46}))?"
        r"(?:.{0,60}?hca (?P<hca>\w{1,40}))?",
        (
            f"{_IB} NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
            f"{_IB} {_FROM} error 12, opcode 0, len 0, vendor err 129 (Send) localGid fe80::1 remoteGids fe80::2",
            f"{_IB} {_FROM} status=12 opcode=0 len=0 vendor err 129 (Recv) localGid ::ffff:10.1.0.1 "
            "remoteGids::ffff:10.1.0.2 hca mlx5_0",
            f"{_IB} NET/IB: Got completion from peer 10.0.3.18<40113> with status=IBV_WC_RETRY_EXC_ERR(12) "
            "opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send hca mlx5_0",
        ),
    ),
    Sign(
        "ib-modify-qp",
        r"Call to ibv_modify_qp failed(?!.{0,700}retrying \d) with (?:error )?"
        r"(?:(?P<errno>\d{1,3})\b ?)?(?:(?<=\d)$|(?P<error>[A-Z](?:(?! errno )[\w ]){1,60}))(?: errno \d{1,3})?"
        r"(?:, on dev (?P<device>[^\s,]{1,64}), curr state \w{1,20}, next state \w{1,20}"
        r"(?:, local GID index (?P<index>\d{1,4}), local GID (?P<local>[^\s,]{1,46}),"
        r" remote GID (?P<remote>[^\s,]{1,46}))?)?",
        (
            f"{_VERBS} Call to ibv_modify_qp failed with error Connection timed out",
            f"{_VERBS} Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, "
            "curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.1.0.5, "
            "remote GID ::ffff:10.2.0.6",
            f"{_VERBS} Call to ibv_modify_qp failed with error Invalid argument",
            f"{_VERBS} Call to ibv_modify_qp failed with error Connection timed out errno 110",
        ),
    ),
    Sign(
        "ib-memory",
        r"(?:Call to |(?P<ucx>UCX) {1,3}ERROR )(?P<call>ibv_reg_mr\w{0,10}|ibv_reg_dmabuf_mr|ibv_create_cq|ibv_create_qp"
        r"|ibv_alloc_pd)(?:\([^)]{0,160}\))? failed(?:(?: with error|:) (?P<error>[A-Z][\w ]{1,60}))?",
        (
            f"{_VERBS} Call to ibv_reg_mr failed with error Cannot allocate memory",
            f"{_VERBS} Call to ibv_reg_mr_iova2 failed with error Bad address",
            f"{_VERBS} Call to ibv_create_cq failed",
            "[1580511823.09] [gpu-a17:4711:1] ib_md.c:478 UCX  ERROR ibv_reg_mr(address=0x2a, length=8, access=0xf) "
            "failed: Bad address",
        ),
    ),
    Sign(
        "ib-open-device",
        r"Call to ibv_open_device failed|NET/IB ?: Unable to open device (?P<device>\S{1,64})",
        (
            f"{_VERBS} Call to ibv_open_device failed",
            f"{_IB} NET/IB : Unable to open device mlx5_bond_0",
        ),
    ),
    Sign(
        "ib-no-library",
        r"(?:Failed to|Could not) open libibverbs\.so|Count not open libibverbs\.so\.1",  # 2.30 tries without .1 first
        (
            f"{_INFO} Failed to open libibverbs.so[.1]",
            "gpu-a17:4711:4790 [0] misc/ibvwrap.cu:61 NCCL WARN Failed to open libibverbs.so[.1]",
            f"{_INFO} Count not open libibverbs.so.1",
        ),
    ),
    Sign("ib-no-device", r"NET/IB ?: No device found", (f"{_INFO} NET/IB : No device found.",)),
    Sign(
        "ib-devices",
        r"NET/IB ?: Using \[0\]",
        (f"{_INFO} NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.3.17<0>",),
    ),
    Sign(
        "hca-listed",
        r"hca_id:\s{1,8}\w|^CA '\w{1,20}'|/sys/class/infiniband/\w|NIC\d{1,2}: \w{1,20}_\d"
        r"|\w{1,20} port \d ==> \w|Infiniband controller: |Infiniband device '\w|(?:^|[\s:=])(?<!NET/IB : )mlx5_\d{1,2}(?=[\s:,]|$)",
        (
            "hca_id:\tmlx5_0",
            "CA 'mlx5_0'",
            "/sys/class/infiniband/mlx5_0",
            "  NIC0: mlx5_0",
            "mlx5_0 port 1 ==> ib0 (Up)",
            "[prolog] HCAs active: mlx5_0 mlx5_1 (2/2)",
            "86:00.0 Infiniband controller: Mellanox Technologies MT28908 Family [ConnectX-6]",
        ),
        words=(
            *("hca_id:", "ca '", "/sys/class/infiniband/", "nic1: ", "nic11: ", " port 1 ==> ", "mlx5_"),
            *("infiniband controller: ", "infiniband device '"),
        ),
        check=_lists,
    ),
    Sign(
        "ib-gid-unreadable",
        r"failed in ncclIbRoceGetVersionNum: (?P<error>.{1,60})",
        (f"{_IB} {_ROCE_V1}", "Last error: " + _ROCE_V1),
    ),
    Sign(
        "ib-gid-missing",
        r"Call to ibv_query_gid failed",
        (f"{_VERBS} Call to ibv_query_gid failed with error Unknown error -1 errno -1",),
    ),
    Sign(
        "ib-port-event",
        r"NET/IB ?:(?: (?P<device>[^\s:]{1,40}:\d{1,3}))? Got (?:non-fatal )?async (?:error )?event ?: "
        r"(?P<event>port error|port active)",
        (
            f"{_IB} NET/IB : Got async event : port error",
            f"{_IB} NET/IB : mlx5_3:1 Got async event : port error",
            f"{_IB} NET/IB : mlx5_3:1 Got async error event: port error",
            f"{_IB} NET/IB : mlx5_3:1 Got non-fatal async event: port active(9)",
        ),
    ),
    Sign(
        "ib-device-fatal",
        r"NET/IB ?:(?: (?P<device>[^\s:]{1,40}:\d{1,3}))? (?:Got async (?:error )?event ?|async fatal event"
        r"(?: on [^:]{1,200})?): (?P<event>local catastrophic error|CQ error|local work queue catastrophic error"
        r"|invalid request local work queue error|SRQ catastrophic error)",
        (
            f"{_IB} NET/IB : mlx5_2:1 Got async event : local catastrophic error",
            f"{_IB} NET/IB : mlx5_2:1 async fatal event: local catastrophic error",
            f"{_IB} NET/IB : mlx5_2:1 async fatal event on QP (0x7f3c): local work queue catastrophic error",
            f"{_IB} NET/IB : mlx5_2:1 async fatal event on QP (0x7f3c10001230) qpn=811 handle=12 send_cq=7 recv_cq=7 "
            "state=6 sq_psn=120311 rq_psn=88213: local work queue catastrophic error",
        ),
    ),
    Sign(
        "ib-access-violation",
        r"(?:NET/IB ?: (?P<device>\S{1,64}) .{0,80})?local access violation work queue error",
        (
            f"{_IB} NET/IB : mlx5_1:1 Got async event : local access violation work queue error",
            f"{_IB} NET/IB : mlx5_1:1 async fatal event on QP (0x7f3c): local access violation work queue error",
        ),
    ),
    Sign(
        "ib-path-mtu",
        r"NET/IB ?: .{0,80}?Port \d{1,3} (?:qpn|qp_num) \d{1,9} mtu (?P<mtu>[1-5])\b",
        (
            f"{_INFO} NET/IB: Dev 0 Port 1 qpn 4711 mtu 5 LID 17",
            f"{_INFO} NET/IB: Dev 2 Port 1 qpn 811 mtu 3 GID 3 (0/0503010AFFFF0000) fifoRkey=0x2 fifoLkey=0x2",
            f"{_INFO} NET/IB: ncclIbConnectImpl: NCCL Dev 0 IbDev 0 Port 1 qp_num 811 mtu 3 GID 3 (0/0503010AFFFF0000) "
            "ctsFifoRkey=0x2 ctsFifoLkey=0x2",
            f"{_INFO} NET/IB: NCCL Dev 1 IbDev 1 Port 1 qpn 90123 mtu 3 query_ece={{supported=1, vendor_id=0x15b3, "
            "options=0x0, comp_mask=0x0} GID 3 (0/0503010AFFFF0000)",
        ),
    ),
    Sign(
        "ib-link-mix",
        r"Attempted to (?:connect|merge) incompatible devices|devices (?:together )?with different link_layer"
        r"|Remote \S{1,20} device is incompatible with the local",
        (
            f"{_IB} NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE."
            " Try selecting NICs of only one link type using NCCL_IB_HCA",
            f"{_IB} NET/IB : Can't merge net devices with different link_layer. i=1 ndevs=2 link_layer=1",
            f"{_IB} NET/IB : Trying to merge multiple devices together with different link_layer properties mlx5_0 -> 1",
            f"{_IB} NET/IB : Attempted to merge incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE."
            " Try selecting NICs of only one link type using NCCL_IB_HCA",
            f"{_IB} NET/IB : Remote IB device is incompatible with the local [1]mlx5_1:1/RoCE."
            " Try selecting NICs of only one link type using NCCL_IB_HCA",
        ),
    ),
    Sign(
        "ib-gdr-disabled",
        r"GPU Direct RDMA Disabled for HCA \d{1,3} '(?P<hca>[^']{1,64})'",
        (f"{_INFO} NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",),
    ),
    Sign(
        "no-peermem-banner",
        r"NVIDIA peer memory driver not detected|nv_peer_mem driver was not detected",
        (
            "NOTE: Mellanox network driver detected, but NVIDIA peer memory driver not detected.",
            "NOTE: MOFED driver was detected, but nv_peer_mem driver was not detected.",
        ),
    ),
    Sign(
        "ib-plugin",
        r"Using network (?P<network>IBext\w{0,10})|Plugin Path : (?P<path>\S{1,200})",
        (
            f"{_INFO} Using network IBext_v8",
            f"{_INFO} Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so",
        ),
    ),
    Sign(
        "ofi-no-provider",
        r"NET/OFI (?:Could not|Couldn't|Unable to) find (?:any |an )?(?:optimal|eligible|suitable) provider"
        r"s?(?! supporting GPU)|NET/OFI .{0,40}?No eligible providers were found"
        r"|NET/OFI Unable to find a protocol that worked|NET/OFI .{0,80}?fi_getinfo\(\) (?:call )?failed"
        r"|NET/OFI (?:aws-ofi-nccl )?[Ii]nitialization failed",
        (
            "gpu-a17:4711:4790 [0] find_ofi_provider:543 NCCL WARN NET/OFI Couldn't find any optimal provider",
            "gpu-a17:4711:4790 [0] nccl_net_ofi_create_plugin:211 NCCL WARN NET/OFI Unable to find a protocol that"
            " worked.  Failing initialization.",
            "gpu-a17:4711:4790 [0] init.cpp:90 NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
        ),
    ),
    Sign(
        "ofi-failed",  # any call or transfer of the plugin; what is better known is told by the others
        r"NET/OFI (?!OFI fi_getinfo).{0,160}?(?:(?:Couldn't|Could not|Unable to|[Ff]ailed)\b.{0,160}?(?:RC: ?-\d|ERROR: |: \w[\w ]{3,60}$)"
        r"|completed with error)",
        (
            "gpu-a17:4711:4790 [0] nccl_net_ofi_create_ep:459 NCCL WARN NET/OFI Couldn't open CQ. RC: -22, ERROR: Invalid"
            " argument",
            "gpu-a17:4711:4790 [0] get_ep:969 NCCL WARN NET/OFI Creating new endpoint for domain 0x7f9b failed: Invalid"
            " argument",
            "gpu-a17:4711:4790 [0] process_err:1723 NCCL WARN NET/OFI Operation with NULL context completed with error",
        ),
        words=("net/ofi ",),
    ),
    Sign(
        "efa-not-offered",
        r"fi_getinfo: provider efa output empty list",
        (
            "libfabric:85:1747438790::core:core:fi_getinfo_():1392<warn> fi_getinfo: provider efa output empty list",
        ),
    ),
    Sign(
        "ofi-address",
        r"Unable to insert remote address into address vector|Failed call to fi_av_insert"
        r"|Unresponsive receiver \(reachable by EFA device but handshake failed\)",
        (
            "gpu-a17:4711:4790 [0] init_send_comm_rails:3301 NCCL WARN NET/OFI Unable to insert remote address into"
            " address vector for device 0. RC: Invalid argument",
            "gpu-a17:4711:4790 [0] NCCL WARN NET/OFI CM: Unable to insert remote address into address vector for device."
            " RC: Invalid argument",
            "gpu-a17:4711:4790 [0] NCCL WARN NET/OFI Request completed with error: Unresponsive receiver (reachable by"
            " EFA device but handshake failed)",
        ),
    ),
    Sign(
        "ofi-peer-gone",
        r"Invalid receiver queue pair number \(QPN\)|Unresponsive receiver \(never responded|(?:Destination|Remote) peer "
        r"(?:is )?(?:dead|unresponsive)|Error: Unreachable remote",
        (
            "gpu-a17:4711:4790 [0] process_err_completion:1562 NCCL WARN NET/OFI Request 0x7f18 completed with error. RC:"
            " 5. Error: Invalid receiver queue pair number (QPN) My EFA addr: fi_addr_efa://[fe80::30]:0:65",
        ),
        words=("receiver", "peer ", "unreachable remote"),
    ),
    Sign(
        "sharp-refused",
        r"SHARP coll init error: (?P<error>.{2,120})|No Aggregation Manager \(sharp_am\) detected"
        r"|SHArP Job init error: (?P<job>.{2,80})",
        (
            "gpu36:20775:20825 [0] sharp_plugin.c:365 NCCL WARN NET/IB : SHARP coll init error: Cannot create SHARP"
            " job(-11)",
            "ERROR No Aggregation Manager (sharp_am) detected in sharp_create_job.",
            "[gpu34:0:34088 - context.c:705][2025-05-26 15:39:24] ERROR SHArP Job init error: No resource",
        ),
    ),
    Sign(
        "collnet-given-up",
        r"Cannot initialize CollNet, using point-to-point network instead",
        (
            "gpu36:20775:20807 [0] transport.cc:384 NCCL WARN Cannot initialize CollNet, using point-to-point network"
            " instead",
        ),
    ),
    Sign(
        "net-not-found",
        r"Error: network (?P<network>.{1,40}?) not found|Failed to initialize any NET plugin",
        (
            "gpu-a17:4711:4790 [0] net.cc:560 NCCL WARN Error: network IB not found.",
            "gpu-a17:4711:4790 [0] plugin/net.cc:379 NCCL WARN Failed to initialize any NET plugin",
        ),
    ),
    Sign(
        "config-net",  # the program's own choice, in its ncclConfig_t
        r"Comm config Net name set to (?P<network>\S.{0,40})",
        (f"{_INFO} Comm config Net name set to Rail",),
    ),
    Sign(
        "net-counts-differ",
        r"Rank (?P<short>\d{1,7}) has (?P<count>\d{1,4}) local Net devices \(max (?P<most>\d{1,4})\)",
        (f"{_INFO} Rank 3 has 1 local Net devices (max 4).",),
    ),
    Sign(
        "net-counts-refused",
        r"Detected mixed local Net device counts across ranks "
        r"\(min (?P<least>\d{1,4}), max (?P<most>\d{1,4})\)\. Set",
        (
            "gpu-a17:4711:4790 [0] init.cc:1590 NCCL WARN Detected mixed local Net device counts across ranks "
            "(min 1, max 4). Set NCCL_IGNORE_NET_MISMATCH=1 to continue.",
        ),
    ),
)
