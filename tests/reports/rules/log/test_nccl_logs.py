"""Logs of NCCL itself (2.23.4 to 2.27.7, run without a GPU by tests/nccl): which cause is said, and of whom."""

from __future__ import annotations

import pytest

from ncclcheck.reports.judgement.findings import State
from tests.conftest import ROOT
from tests.helpers.logs import judged

_LOGS = ROOT / "tests/data/logs/nccl"


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("two_zeroes", "LOG022", "h[1-2] each began as rank 0 of 2"),
        ("node_rank_twice", "LOG022", "h[1-2] each began as ranks 0-1 of 2 of one communicator"),
        ("id_used_again", "LOG192", "id is used a second time: ranks 0-1 of 2 began a communicator with it again"),
        ("id_never_sent", "LOG192", "h2 began with a unique id that holds no address"),
        ("id_of_another_job", "LOG192", "each began another communicator, with 2 different unique ids"),
        ("both_send", "LOG193", "read from a peer what this did not send for it: ranks do not make the calls"),
        ("two_masters", "LOG192", "each began another communicator, with 2 different unique ids"),
        (
            "sizes_differ",
            "LOG022",
            "ranks of one communicator believe in different numbers of ranks: 4 on h1, 2 on h2",
        ),
        (
            "one_comm_id_of_four",
            "LOG192",
            "NCCL_COMM_ID differs between ranks: 10.77.0.11:29600 on ranks 0-2 (h[1-2]), ",
        ),
        ("two_jobs_one_id", "LOG022", "h[1-2] each began as ranks 0-1 of 2 with NCCL_COMM_ID=10.77.0.11:29600"),
        ("local_rank_as_rank", "LOG022", "two processes came as rank 1 of 4; ranks 2-3 never came"),
        ("hca_excluded", "LOG030", "NCCL_IB_HCA=^mlx5 leaves NCCL no card on h2"),
        ("net_plugin_missing", "LOG030", "NCCL_NET asks for: its plugin libnccl-net-ofi.so was not found"),
        ("net_unknown", "LOG030", "NCCL_NET asks for: it is unknown, or its plugin was not loaded"),
        ("host_alloc", "LOG106", "no page-locked memory of the host on h2: it asked for 4 B at once"),
        ("file_size_limit", "LOG051", "a limit on the size of files (ulimit -f) keeps NCCL from making its files"),
        ("cumem_unsupported", "LOG068", "CUDA does not support the memory that NCCL asks for on h2: cuMem"),
        ("flush", "LOG001", "flushed (status 5): their connection had broken; what"),
        ("family6", "LOG013", "NCCL cannot listen on fe80::6ca0:5cff:fe76:bccf (eth0) of h1"),
        ("buffsize_differs", "LOG084", "NCCL_BUFFSIZE=65536 on rank 1 alone"),
        ("few_ports", "LOG019", "h2 has no free port left for NCCL"),
        ("gid_index", "LOG033", "no usable address at GID index 9"),
        ("comm_id_taken", "LOG019", "port 29511 is taken already"),
        ("address_space", "LOG106", "a process got no host memory on h2: it asked for 31.5 MiB at once"),
        (
            "driver_not_loaded",
            "LOG067",
            "driver on h2 does not answer for its GPUs: nvmlInit_v2 says 'Driver Not Loaded'",
        ),
        ("export_denied", "LOG061", "a rank cannot share GPU memory with another one on h1"),
        ("out_of_resources", "LOG064", "than its GPU has on h2 (CUDA error 701)"),
        ("bad_pointer", "LOG167", "AllReduce got memory (sendbuff) at 0x40 that is not a GPU's"),
        ("comm_id_name", "LOG072", "NCCL_COMM_ID: its host has no address (Name or service not known)"),
        ("hca_typo", "LOG016", "h2 uses NET/Socket, h1 IB: NCCL_IB_HCA=mlx5_7 names no card of h2"),
        ("nvml_permission", "LOG067", "process on h2 cannot ask the driver for its GPUs (NVML: Insufficient Perm"),
        (
            "tuner_refuses",
            "LOG189",
            "plugin /opt/site/libnccl-tuner-acme.so ended its start on h2: it answered",
        ),
        ("tuner_refuses_early", "LOG189", "tuner plugin acme ended its start on h1: it answered with an internal"),
        ("config_ctas", "LOG188", "asks for what cannot be: minCTAs must be above 0 and not above maxCTAs on h2"),
        (
            "config_net",
            "LOG030",
            "is called 'Rail', which the program (netName of its ncclConfig_t) asks for",
        ),
        ("shm_disabled_once", "LOG191", "ranks could not connect, for NCCL_SHM_DISABLE=1 on rank 1 alone"),
        ("channels_differ", "LOG191", "ranks could not connect, for NCCL_MAX_NCHANNELS=1 on rank 0 alone"),
        (
            "first_address_elsewhere",
            "LOG014",
            "h2 itself is at 10.77.0.22, so one of the two may have taken",
        ),
        ("wc_general", "LOG048", "a request of RDMA ended with general error (status 21)"),
    ],
)
def test_the_cause_is_named(name: str, code: str, words: str) -> None:
    texts = {
        verdict.code: finding.what
        for verdict in judged((_LOGS / f"{name}.log").read_text()).values()
        for finding in verdict.findings
        if finding.state is State.FAIL
    }
    assert {*texts} - {"LOG001", "LOG002", "LOG015"} <= {code}  # consequences, and what was seen
    assert words in texts[code]


@pytest.mark.parametrize(
    ("name", "rank", "words"),
    [
        ("topo_no_class", 0, "no rank is missing; what they read then is NCCL_TOPO_FILE=/opt/site/topo.xml"),
        ("stopped_starting", 1, "no rank is missing; rank 1 (h2:24125) did not tell that much"),
    ],
)
def test_ranks_that_met_are_not_looked_for(name: str, rank: int, words: str) -> None:
    """NCCL crashed as it read a file; a rank was stopped as it began."""
    finding = judged((_LOGS / f"{name}.log").read_text())["LOG002"].findings[0]
    assert words in finding.what
    assert finding.where.rank == rank


def test_a_place_is_of_nccls_sources_where_a_build_prints_whole_paths() -> None:
    """As builds by CMake do: what NCCL was doing is told by the file's name within its sources."""
    line = "h1:7:7 [0] /build/nccl/src/transport/p2p.cc:275 NCCL WARN Cuda failure 1 'invalid argument'\n"
    text = (_LOGS / "tuner_refuses.log").read_text().partition("TUNER/Plugin")[0].rpartition("\n")[0]
    finding = judged(f"{text}\n{line.replace('h1:7:7', 'h1:18304:18304')}")["LOG186"].findings[0]
    assert "while it lets the ranks of a host into each other's GPU memory" in finding.what


def test_the_host_that_a_peer_names_as_gone_is_named() -> None:
    """Nobody says why it went; who complains is not who failed."""
    start = (_LOGS / "tuner_refuses_early.log").read_text().partition("TUNER/Plugin")[0].rpartition("\n")[0]
    line = "h2:16131:16190 [0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer h1<5>"
    assert judged(f"{start}\n{line}\n")["LOG001"].findings[0].where.node == "h1"


def test_cards_that_differ_are_a_note_of_a_sound_job() -> None:
    verdict = judged((_LOGS / "cards_differ.log").read_text())["LOG032"]
    assert [finding.state for finding in verdict.findings] == [State.NOTE]


def test_of_three_hosts_the_one_with_an_address_of_another_network_is_named() -> None:
    """h1 announces the first address of its interface; h2 and h3 have no route to it."""
    text = (_LOGS / "first_address_elsewhere.log").read_text()
    h2 = [line for line in text.splitlines() if "h2:" in line]
    third = "\n".join(line.replace("h2:", "h3:").replace("10.77.0.22", "10.77.0.33") for line in h2)
    finding = judged(text + third)["LOG014"].findings[0]
    assert finding.where.node == "h1"
    assert "h1 is at 192.168.55.5, h[2-3] at addresses like 10.77.0" in finding.what


def test_the_rank_that_stays_away_from_a_second_communicator_is_named() -> None:
    """All four came through the first one; NCCL says nothing more, and that GPUs have no P2P is no cause."""
    verdicts = judged((_LOGS / "second_communicator.log").read_text())
    assert verdicts["LOG002"].state is State.FAIL
    finding = verdicts["LOG002"].findings[0]
    assert finding.what.startswith(
        "ranks 0-2 of 4 began a communicator and did not come through; rank 3 never began it"
    )
    assert (finding.where.node, finding.where.rank) == ("h2", 3)


def test_of_several_ranks_of_a_host_the_one_that_went_without_a_word_is_named() -> None:
    """A bus error ends rank 2; rank 3, of the same host, sees its connection to local rank 0 closed."""
    finding = judged((_LOGS / "sigbus.log").read_text())["LOG001"].findings[0]
    assert finding.what.startswith("rank 2 (pid 25955 of h2) was the first to go")
    assert (finding.where.node, finding.where.rank) == ("h2", 2)


def test_communicators_that_are_made_in_different_orders_wait_for_each_other() -> None:
    """Rank 0 makes x, y, z, and rank 1 x, z, y."""
    verdicts = judged((_LOGS / "three_comms_crossed.log").read_text())
    assert [verdict.code for verdict in verdicts.values() if verdict.state is State.FAIL] == ["LOG002"]
    assert "they make them in different orders" in verdicts["LOG002"].findings[0].what


def test_of_a_group_that_one_rank_began_the_other_is_missed() -> None:
    """Its number in the group is known, and not which process it is."""
    finding = judged((_LOGS / "group_half.log").read_text())["LOG002"].findings[0]
    assert finding.what == "rank 0 of 2 began a communicator and did not come through; rank 1 never began it"
    assert finding.where.node is None


def test_a_refusal_of_processes_that_wait_is_a_firewalls() -> None:
    """Both hosts answer new connections to all ports but one with a reset; both ranks wait in their start."""
    finding = judged((_LOGS / "reset_by_firewall.log").read_text())["LOG015"].findings[0]
    assert finding.what == "h2 refuses what NCCL on h1 dials (10.77.0.22), and NCCL waits there"
    assert "a firewall that answers with a reset" in finding.why


def test_an_access_violation_of_infiniband_is_no_matter_of_the_mtu() -> None:
    verdicts = judged((_LOGS / "access_violation.log").read_text())
    assert verdicts["LOG042"].state is not State.FAIL
    assert "mlx5_0:1 reports a local access violation" in verdicts["LOG047"].findings[0].what


def test_a_warning_after_which_all_ranks_end_in_order_failed_nothing() -> None:
    """A card reports that a path could not migrate; both ranks sum on and destroy their communicators."""
    verdicts = judged((_LOGS / "event_survived.log").read_text()).values()
    assert [verdict.code for verdict in verdicts if verdict.state is State.FAIL] == []
    assert [verdict.code for verdict in verdicts if verdict.state is State.WARN] == ["LOG005"]


def test_a_rank_that_does_not_end_with_the_others_is_not_healthy() -> None:
    """Rank 1 waits for what rank 0 never sends; rank 0 has destroyed its communicator."""
    verdict = judged((_LOGS / "late_recv.log").read_text())["LOG007"]
    assert verdict.state is State.UNKNOWN
    assert "do not show that rank 1 destroyed its communicators, as others did" in verdict.findings[0].what


@pytest.mark.parametrize("name", ["ras_addr_bad", "odd_values", "topo_missing", "event_benign"])
def test_what_nccl_warns_of_and_gets_over_ends_nothing(name: str) -> None:
    """NCCL_RAS_ADDR=nonsense; NCCL_NTHREADS=100; NCCL_TOPO_FILE without its file; a new subnet manager: a warning,
    and a healthy job."""
    verdicts = judged((_LOGS / f"{name}.log").read_text()).values()
    assert not [verdict.code for verdict in verdicts if verdict.state in (State.FAIL, State.WARN)]


def test_a_sound_job_over_sockets_without_libibverbs_is_sound() -> None:
    """What NCCL 2.30 and 2.32 say of it, put into the log of an older one: their wheels are not run here."""
    lines = (_LOGS / "odd_values.log").read_text().splitlines(keepends=True)
    warned = [
        f"{line.partition(' NCCL INFO')[0]} misc/ibvwrap.cc:185 (wrap_ibv_alloc_pd) NCCL WARN lib wrapper not "
        f"initialized.\n{line}"
        if "Using network Socket" in line
        else line
        for line in lines
    ]
    assert len("".join(warned).splitlines()) == len(lines) + 2
    verdicts = judged("".join(warned)).values()
    assert not [verdict.code for verdict in verdicts if verdict.state in (State.FAIL, State.WARN, State.UNKNOWN)]
