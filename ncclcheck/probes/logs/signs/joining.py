"""How processes find each other: torch's TCPStore, torchrun's rendezvous, gloo."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

_ADDRESS = r"[0-9a-fA-F.:]{2,45}|localhost"

SIGNS = (
    Sign(
        "address-in-use",
        r"(?:(?:\]:|port: ?|\w:)(?P<port>\d{2,5})(?=[ ,.)]).{0,80}?)?EADDRINUSE"
        r"|(?:(?:\]:|port: ?|\w:)(?P<taken>\d{2,5})(?=[ ,.)]).{0,80}?)?ddress already in use",
        (
            "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address "
            "already in use).",
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
            "address. "
            "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            "RuntimeError: The server socket has failed to listen on any local network address. The server "
            "socket has failed "
            "to bind to 0.0.0.0:29500 (errno: 98 - Address already in use).",
            "RuntimeError: Address already in use",
        ),
    ),
    Sign(
        "store-unreachable",
        r"client socket has timed out after (?P<after>\S{1,20}) while trying to connect to "
        r"\(?(?P<host>[^\s,()]{1,253}?)(?:, |:)(?P<port>\d{1,5})\)?(?:[\s.]|$)"
        r"|failed to connect to any network address of \((?P<name>[^\s,()]{1,253}), (?P<at>\d{1,5})\)"
        r"|connect\(\) timed out\. Original timeout was",
        (
            "[E1109 22:40:00.100 socket.cpp:1011] [c10d] The client socket has timed out after 60000ms while "
            "trying to connect to (10.0.3.17, 29500).",
            "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to "
            "(gpu-a17, 29400).",
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address "
            "of (gpu-a17, 29500).",
            "RuntimeError: connect() timed out. Original timeout was 60000 ms.",
        ),
    ),
    Sign(
        "store-refused",
        r"client socket has failed to connect to \[?(?P<host>[^\s\]]{1,253}?)\]?:(?P<port>\d{1,5}) "
        r"\(errno: (?P<errno>(?!97)\d{1,3}) - (?P<error>.{1,60}?)\)",
        (
            "[W1109 22:39:00.100 socket.cpp:752] [c10d] The client socket has failed to connect to "
            "[gpu-a17]:29500 (errno: 113 - No route to host).",
        ),
    ),
    Sign(
        "name-unresolved",
        r"network addresses of \((?P<host>[^\s,()]{1,253}), (?P<port>\d{1,5})\) cannot be retrieved \(gai "
        r"error: (?P<error>-?\d{1,6} - .{1,60}?)\)",
        (
            "[W1109 22:39:00.100 socket.cpp:764] [c10d] The IPv6 network addresses of (gpu-a17.internal, 29500) "
            "cannot be retrieved (gai error: -2 - Name or service not known).",
        ),
    ),
    Sign(
        "address-malformed",
        r"(?:network address(?:es)? of|trying to connect to) \((?P<host>\s{0,9}|\d{1,10}|255\.[\d.]{1,12}|0\.0\.0\.0"
        r"|[^()]{0,200}[\s\[\],/][^()]{0,200}), (?P<port>\d{1,5})\)"
        r"|connect to \[(?:::ffff:)?(?P<dialled>\s{0,9}|\d{1,10}|255\.[\d.]{1,12})\]:(?P<at>\d{1,5}) \(errno",
        (
            "[W socket.cpp:764] [c10d] The IPv6 network addresses of (, 29500) cannot be retrieved (gai error: -2 - Name "
            "or service not known).",
            "[E socket.cpp:1011] [c10d] The client socket has timed out after 60000ms while trying to connect to "
            "(255.255.255.0, 29500).",
            "[W socket.cpp:764] [c10d] The IPv4 network addresses of (gpu-[01-04], 29500) cannot be retrieved (gai error: "
            "-2 - Name or service not known).",
            "[W socket.cpp:663] [c10d] The client socket has failed to connect to [::ffff:255.255.0.0]:29500 (errno: 110 - "
            "Connection timed out).",
            "[W socket.cpp:752] [c10d] The client socket has failed to connect to [15]:29500 (errno: 22 - Invalid "
            "argument).",
        ),
        words=("network address", "trying to connect to", "connect to ["),
    ),
    Sign(
        "python-name-unresolved",
        r"gaierror: \[Errno -?\d{1,4}\] (?P<error>.{1,60})|RuntimeError: (?P<told>Name or service not known|"
        r"Temporary failure in name resolution)"
        r"|ValueError: host not found: (?P<error_of>.{1,60})"
        r"|error encountered when getting address info : (?P<nccl>.{1,60})"
        r"|Could not resolve hostname (?P<host>\S{1,253}): (?P<ssh>.{1,60})",
        (
            "gpu-a17:1:1 [0] misc/socket.cc:257 NCCL WARN Net : error encountered when getting address info : Name or "
            "service not known",
            "ssh: Could not resolve hostname gpu-a19: Name or service not known",
            "ValueError: host not found: Name or service not known",
            "RuntimeError: Name or service not known",
            "socket.gaierror: [Errno -2] Name or service not known",
        ),
    ),
    Sign(
        "clients-missing",
        r"Timed out after (?P<after>\d{1,8}) seconds waiting for clients\. "
        r"(?P<joined>\d{1,7})/(?P<wanted>\d{1,7}) clients joined"
        r"|Timed out initializing process group in store based barrier on rank:? \d{1,7}, for key: \S{1,80} "
        r"\(world_size=(?P<world>\d{1,7}), (?:num_workers_joined|worker_count)=(?P<came>\d{1,7})",
        (
            "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank 0, "
            "for key: store_based_barrier_key:1 (world_size=4, num_workers_joined=3, timeout=0:30:00)",
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: "
            "store_based_barrier_key:1 (world_size=8, worker_count=6, timeout=0:30:00)",
            "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 3/4 clients "
            "joined.",
        ),
    ),
    Sign(
        "rendezvous-file",  # of init_method="file://...", and a program's own words of it
        r"(?i)\bfile (?:already )?exists:? [`'\"]?(?P<path>[^\s`'\"]{0,300}(?:dist|init|rdzv|rendezvous|store|shared)[^\s`'\"]{0,80})"
        r"|\b(?:init_?method|distributed init|dist_?url)\b.{0,60}?file://(?P<file>/[^\s`'\",)]{1,300})",
        (
            "File already exists: output.tmp/dist_init",
            "| distributed init (rank 1): file:///checkpoint/run-7/init, gpu 1",
        ),
        words=("exists", "file://"),
    ),
    Sign(
        "barrier-waits",
        r"Waiting in store based barrier to initialize process group for (?:rank: (?P<me>\d{1,7})|\d{1,7} seconds, rank: "
        r"(?P<self>\d{1,7})), key: \S{1,80} \(world_size=(?P<world>\d{1,7}), (?:num_workers_joined|worker_count)="
        r"(?P<came>\d{1,7})",
        (
            "Waiting in store based barrier to initialize process group for rank: 2, key: store_based_barrier_key:2 "
            "(world_size=8, worker_count=7, timeout=0:30:00)",
            "Waiting in store based barrier to initialize process group for 10 seconds, rank: 2, key: "
            "store_based_barrier_key:1 (world_size=8, num_workers_joined=7, timeout=0:30:00)",
        ),
    ),
    Sign(
        "lightning-member",  # of each rank, before it joins
        r"[Ii]nitializing (?:ddp|distributed): GLOBAL_RANK: (?P<me>\d{1,7}), MEMBER: \d{1,7}/(?P<of>\d{1,7})",
        (
            "initializing ddp: GLOBAL_RANK: 1, MEMBER: 2/8",
            "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/2",
        ),
    ),
    Sign(
        "rank-announced",  # of each rank once, where a program or a library says that it joins
        r"\bdistributed init \(rank (?P<me>\d{1,7})\)"
        r"|^(?:.{0,120}[ |])?[Ii]nitialized host \S{1,253} as rank (?P<self>\d{1,7})$",
        (
            "| distributed init (rank 3): env://",
            "2026-03-01 10:00:00 | INFO | fairseq.distributed.utils | initialized host gpu-a17 as rank 3",
        ),
        words=("distributed init (rank", "initialized host "),
    ),
    Sign(
        "lightning-registered",  # of rank 0, after all of them joined
        r"All distributed processes registered\. Starting with \d",
        ("All distributed processes registered. Starting with 6 processes",),
    ),
    Sign(
        "rendezvous-timeout",
        r"RendezvousTimeoutError",
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",),
    ),
    Sign(
        "rendezvous-unreachable",
        r"RendezvousConnectionError: The connection to the C10d store has failed",
        (
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d "
            "store has failed. See inner exception for details.",
        ),
    ),
    Sign(
        "run-id-of-its-own",
        r"config has no run_id, generated a random run_id",
        ("WARNING:torch.distributed.launcher.api:config has no run_id, generated a random run_id: 304504801270",),
    ),
    Sign(
        "rendezvous-closed",
        r"RendezvousClosedError",
        ("torch.distributed.elastic.rendezvous.api.RendezvousClosedError",),
    ),
    Sign(
        "store-wait",
        r"wait timeout after (?P<ms>\d{1,12})ms, keys: (?P<keys>\S{1,120})"
        r"|(?:retrieving ncclUniqueId from \[(?P<owner>\d{1,7})\].{0,120}?)?store->get\('(?P<key>[^']{1,80})'\)(?: got error|.{0,40}[Tt]imeout)"
        r"|(?:RuntimeError|DistStoreError): (?P<old>Socket Timeout)\s*$"  # before torch 2.5
        r"|waitForInput: socket .{0,200}?remote=\[(?P<store>[^\]]{1,253})\]:(?P<port>\d{1,5})\) timed out after (?P<waited>\d{1,12})ms",
        (
            "[W228 18:45:15.741 socket.cpp:487] [c10d] waitForInput: socket SocketImpl(fd=11, addr=[gpu-a17]:38674, "
            "remote=[::ffff:10.0.3.17]:29500) timed out after 900000ms",
            "torch.distributed.DistStoreError: wait timeout after 1800000ms, keys: /default_pg/0//cpu//0/rank_3",
            "RuntimeError: [2] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
            "key-value store by key '0', but store->get('0') got error: Socket Timeout",
            "torch.distributed.DistStoreError: Socket Timeout",
        ),
        words=("wait timeout after", "store->get(", "socket timeout", "waitforinput"),
    ),
    Sign(
        "gloo-connect",
        rf"timed out connecting: .{{0,160}}?remote=\[(?P<remote>{_ADDRESS})\]"
        rf"|gloo/transport/tcp/.{{0,160}}? connect \[(?P<dialled>{_ADDRESS})\]"
        r"|connectFullMesh failed with .{0,300}?[\[ =/](?P<own>127\.\d{1,3}\.\d{1,3}\.\d{1,3}|::1|localhost)\b"
        rf"|failed to connect, willRetry=.{{0,200}}?remote=\[(?P<refused>{_ADDRESS})\]",
        (
            "RuntimeError: Gloo connectFullMesh failed with "
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: Connection "
            "refused, remote=[127.0.0.1]:21345",
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:24791: "
            "Connection refused",
        ),
    ),
    Sign(
        "gloo-mesh",
        r"Gloo connectFullMesh failed",
        (
            "RuntimeError: Gloo connectFullMesh failed with "
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
        ),
    ),
    Sign(
        "gloo-loopback",
        r"Unable to resolve hostname to a \(local\) address",
        (
            "[W ProcessGroupGloo.cpp:751] Warning: Unable to resolve hostname to a (local) address. Using the "
            "loopback address as fallback. Manually set the network interface to bind to with "
            "GLOO_SOCKET_IFNAME. (function operator())",
        ),
    ),
    Sign(
        "gloo-interface",
        r"Unable to find (?:address|interface) for: (?P<name>\S{1,64})",
        (
            "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != "
            "nullptr. Unable to find address for: ^lo",
        ),
    ),
)
