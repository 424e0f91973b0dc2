"""How processes find each other: NCCL's sockets and its bootstrap. torch's store and gloo are in `joining`."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

_WARN = "gpu-a17:4711:4800 [3] misc/socket.cc:441 NCCL WARN "
SIGNS = (
    Sign(
        "no-socket-interface",
        r"no socket interface found|NET/Socket ?: no interface found|"
        r"No usable listening interface found|No interface found in the same subnet|NET/IB ?: No IP interface found",
        (
            _WARN + "Bootstrap : no socket interface found",
            "gpu-a17:1:1 [0] transport/net_ib.cc:590 NCCL WARN NET/IB : No IP interface found.",
            _WARN + "NET/Socket : No usable listening interface found",
        ),
    ),
    Sign(
        "socket-family",
        r"connecting to address (?:\S{0,80} )?with family (?P<family>\d{1,6}) is neither AF_INET",
        (
            _WARN
            + "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)",
            _WARN + "ncclSocketInit: connecting to address with family 0 is neither AF_INET(2) nor AF_INET6(10)",
            _WARN + "ncclSocketInit: connecting to address \\xffq<12> with family 3 is neither AF_INET(2) nor "
            "AF_INET6(10)",
        ),
    ),
    Sign(
        "no-address-family",
        r"Socket creation failed ?: Address family not supported|Call to socket failed ?: Address family not "
        r"supported",
        (
            "gpu-a17:1:1 [0] include/socket.h:311 NCCL WARN Socket creation failed : Address family not "
            "supported by protocol",
            _WARN + "Call to socket failed: Address family not supported by protocol",
            _WARN + "ncclSocketInit: Socket creation failed : Address family not supported by protocol",
        ),
    ),
    Sign(
        "bind-failed",
        r"Call to bind (?:to (?P<own>\S{1,120}?)(?:<\d{1,5}>)? )?failed ?: (?P<error>Cannot assign requested address)",
        (_WARN + "Call to bind failed: Cannot assign requested address",),
    ),
    Sign(
        "connect-failed",
        r"onnect(?: to (?P<peer>\S{1,120}?)(?:<(?P<port>\d{1,5})>)?)? ?(?:failed|returned|timeout)"
        r"(?: with)?(?: error)?(?: after \d{1,5} (?:retries|attempts))?[ :]{0,3}(?:\d{1,5} ?\(?)?(?P<error>[A-Z][A-Za-z ]{4,60})(?!.{0,80}retrying)"
        r"|onnect(?:ion)? to (?P<far>\S{1,120}?)(?:<\d{1,5}>)? (?P<late>timed out)"
        r"|socket(?:Start|Poll)Connect: exceeded (?P<spent>retries|timeouts)"
        r"|socketPollConnect poll\(\) returned \d{1,3}, no POLLOUT events",
        (
            "gpu-a17:1:1 [0] include/socket.h:409 NCCL WARN Net : Connect to 10.0.3.18<40113> failed : No route "
            "to host",
            _WARN + "socketStartConnect: Connect to 10.0.3.18<40113> failed : Connection timed out",
            _WARN + "socketPollConnect: Connect to 10.0.3.18<40113> returned 111(Connection refused) errno "
            "115(Operation now in progress)",
            _WARN
            + "socketPollConnect: connect to 10.0.3.18<40113> returned Connection refused, exceeded error retry "
            "count after 35 attempts",
            _WARN + "socketPollConnect: connect returned Connection timed out, exceeded error retry count (20001)",
            _WARN + "socketPollConnect: Connect to 10.0.3.18<40113> failed after 34 retries: No route to host",
            _WARN + "socketStartConnect: exceeded retries (20000)",
            _WARN + "socketPollConnect poll() returned 1, no POLLOUT events",
            _WARN + "socketStartConnect: Connect to fe80::42:1fff:fe2c:9d1%veth2c1<40113> failed : Network is "
            "unreachable",
        ),
    ),
    Sign(
        "mpi-connect-failed",
        r"\bbtl_tcp\w{0,80}.{0,120}connect\(\) to (?P<peer>[\d.]{7,15}|[0-9a-f:]{3,45})(?::\d{1,5})? failed: (?P<error>[A-Z][\w ]{4,60})",
        (
            "[gpu-a17][[38971,1],2][btl_tcp_endpoint.c:796:mca_btl_tcp_endpoint_complete_connect] connect() to 172.17.0.1 "
            "failed: Connection refused (111)",
        ),
    ),
    Sign(
        "connect-retried",
        r"connect(?: to (?P<peer>\S{1,120}?)(?:<(?P<port>\d{1,5})>)?)? returned (?P<error>.{1,60}?), retrying",
        (
            "gpu-a17:1:1 [0] NCCL INFO socketPollConnect: connect to 10.0.3.18<40113> returned Connection "
            "refused, retrying (1/34) after sleep for 100 msec",
            "gpu-a17:1:1 [0] NCCL INFO Call to connect returned Connection refused, retrying",
        ),
    ),
    Sign(
        "connection-gone",
        r"Call to (?:recv|send)\w{0,10}(?: (?:from|to) (?P<peer>\S{1,120}?)(?:<(?P<port>\d{1,5})>)?)? failed ?: "
        r"(?P<error>Connection timed out|No route to host|Network is unreachable|Host is unreachable|Network is down"
        r"|Host is down|Connection refused|Software caused connection abort)",
        (_WARN + "socketProgressOpt: Call to recv from 10.0.3.18<40113> failed : Connection timed out",),
    ),
    Sign(
        "service-closed",
        r"\[Service thread\] Connection closed by localRank (?P<local>\d{1,4})\b",
        ("gpu-a17:4711:4790 [1] NCCL INFO [Service thread] Connection closed by localRank 0",),
    ),
    Sign(
        "wrong-socket-type",
        r"(?:from (?P<peer>\S{1,120}?)(?:<\d{1,5}>)?: )?"
        r"wrong (?:socket )?type(?: \(?(?:peer )?(?P<got>\d) != (?:expected )?(?P<wanted>\d))?",
        (
            _WARN + "socketFinalizeAccept: wrong type 3 != 4",
            _WARN + "socketFinalizeAccept from 10.0.3.18<40113>: wrong type 4 != 3",
            "gpu-a17:1:1 [0] NCCL INFO socketFinalizeAccept from 10.0.3.18<40113>: wrong socket type (peer 3 != "
            "expected 4 -- peer connected to wrong NCCL socket), discarding peer connection",
        ),
    ),
    Sign(
        "wrong-magic",
        r"(?:from (?P<peer>\S{1,120}?)(?:<\d{1,5}>)?: )?"
        r"(?:wrong (?:socket )?magic|socket magic mismatch)(?: \(?(?:peer )?(?:0x)?(?P<got>[0-9a-f]{1,16}) != )?"
        r"|(?:didn't receive a valid magic from|handshake receive from|socketFinalizeAccept: peer) (?P<from>\S{1,120}?)(?:<\d{1,5}>|$)",
        (
            _WARN + "socketFinalizeAccept: wrong magic 312e312f50545448 != e4a2a1c7730b5d11",
            "gpu-a17:1:1 [0] NCCL INFO socketFinalizeAccept: didn't receive a valid magic from 10.0.9.40<51234>",
            _WARN + "socketFinalizeAccept from 10.0.9.40<51234>: wrong magic 0 != e4a2a1c7730b5d11",
            "gpu-a17:1:1 [0] NCCL INFO socketFinalizeAccept from 10.0.9.40<51234>: socket magic mismatch (peer "
            "0x312e312f50545448 != expected 0xe4a2a1c7730b5d11), discarding peer connection",
            "gpu-a17:1:1 [0] NCCL INFO socketFinalizeAccept: peer 10.0.9.40<51234> closed before magic handshake, "
            "discarding",
        ),
        words=("magic", "handshake receive from", "socketfinalizeaccept: peer"),
    ),
    Sign(
        "nccl-mismatch",
        r"Mismatched NCCL version detected ?: rank (?P<rank_a>\d{1,7}) version (?P<a>\d{3,6}) "
        r"rank (?P<rank_b>\d{1,7}) version (?P<b>\d{3,6})",
        (
            "gpu-a17:1:1 [0] init.cc:1012 NCCL WARN Mismatched NCCL version detected : rank 0 version 22105 "
            "rank 8 version 22005",
        ),
    ),
    Sign(
        "bootstrap-truncated",
        r"Message truncated : received (?P<got>\d{1,12})(?:,\d{1,12})? bytes instead of (?P<wanted>\d{1,12})",
        (
            "gpu-a17:1:1 [0] bootstrap.cc:51 NCCL WARN Message truncated : received 1024,1024 bytes instead of 256,256",
            "gpu-a17:1:1 [0] bootstrap.cc:44 NCCL WARN Message truncated : received 1024 bytes instead of 256",
        ),
    ),
    Sign(
        "duplicate-rank",
        r"rank (?P<rank>\d{1,7}) of (?P<world>\d{1,7}) ranks has already checked in",
        ("gpu-a17:1:1 [0] bootstrap.cc:188 NCCL WARN Bootstrap Root : rank 3 of 16 ranks has already checked in",),
    ),
    Sign(
        "world-differs",
        r"mismatch in (?:rank count|info) from procs,? (?:nranks )?(?P<a>\d{1,7}) (?::|vs) (?!(?P=a)\b)(?P<b>\d{1,7})",
        (
            "gpu-a17:1:1 [0] bootstrap.cc:402 NCCL WARN Bootstrap Root : mismatch in info from procs, nranks 16 vs 8, "
            "nroots 1 vs 1, iroot 0 vs 0",
            "gpu-a17:1:1 [0] bootstrap.cc:179 NCCL WARN Bootstrap Root : mismatch in rank count from procs 16 : 8",
        ),
    ),
    Sign(
        "rank-out-of-range",
        r"[Rr]ank (?P<high>\d{1,7}) (?:>=|is out of range|is not in range|must be less than)|"
        r"Invalid rank requested : (?P<rank>-?\d{1,7})/(?P<world>\d{1,7})|Invalid rank (?P<sampled>-?\d{1,7}), "
        r"rank should be in(?: the interval \[0, (?P<last>\d{1,7})\])?",
        (
            "gpu-a17:1:1 [0] init.cc:1899 NCCL WARN Invalid rank requested : 8/8",
            "ValueError: Invalid rank 8, rank should be in the interval [0, 7]",
            "RuntimeError: rank 8 >= world size 8",
        ),
    ),
    Sign(
        "nccl-too-many-files",
        r"(?:[Aa]ccept|[Cc]all to \w{1,40}|[Ss]ocket creation|listen|bind|[Pp]oll(?:\(\))?)\b.{0,80}Too many open files"
        r"|\[Proxy Service\] Poll failed: Invalid argument",  # of more descriptors than the limit, poll(2)
        (
            _WARN + "socketTryAccept: Accept failed: Too many open files",
            "gpu-a17:1:1 [0] include/socket.h:521 NCCL WARN Net : Call to accept failed : Too many open files",
            _WARN + "ncclSocketInit: Socket creation failed : Too many open files",
            "gpu-a17:1:1 [0] proxy.cc:1615 NCCL WARN [Proxy Service] Poll failed: Invalid argument",
        ),
    ),
    Sign(
        "mesh-sidecar",
        r"127\.0\.0\.6|upstream (?:connect|request|reset)|upstream_(?:reset|transport|connection)|healthy "
        r"upstream|"
        r"istio-proxy|Envoy|envoy|PassthroughCluster|BlackHoleCluster|outbound\|\d{1,5}\||inbound\|\d{1,5}\|",
        (
            _WARN + "socketProgressOpt: Call to recv from 127.0.0.6<40113> failed : Connection reset by peer",
            "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
            "2026-05-16T16:39:51.208Z info Envoy proxy is ready",
        ),
        words=("127.0.0.6", "upstream", "istio", "envoy", "cluster"),
    ),
)
