"""--anonymise: no name and no address is left in any output, and the rules say the same as before."""

from __future__ import annotations

import importlib
import ipaddress
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import (
    Cluster,
    Dialled,
    Filter,
    Gpu,
    GpuProcess,
    Gpus,
    Hiding,
    Job,
    JobEnd,
    Measurements,
    Meeting,
    Mount,
    Node,
    Other,
    Place,
    Resources,
    Run,
    Silence,
    Stack,
    Storage,
    at,
    replace,
)
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output import junit, markdown, prometheus, terminal
from ncclcheck.reports.output.anonymise import anonymised
from ncclcheck.reports.output.anonymise.addresses import InventedAddresses
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.conftest import Command
from tests.helpers import clusters, hcas, stories

# Names without a word of ours in them, so that one which is found in an output can only be a leak.
_WORDS = st.text("bcdfghkqvwxz", min_size=4, max_size=8)
_NETWORKS = st.sampled_from(["10.31.7", "172.22.9", "192.168.44", "100.91.3", "131.159.20", "10.0.0"])
_STORIES = [name for name in stories.NAMES if stories.load(name).baseline is None]


def test_whither_ssh_leads_names_nobody() -> None:
    way = Dialled(
        node="mill7",
        host="mill7.corp",
        user="gretchen",
        by="ProxyJump hans@bastion:22,gatehouse",
        master="/home/gretchen/cm",
    )
    cluster = Cluster(
        nodes=[Node(name="mill1")], run=Run(dialled=[way]), job=Job(nodes_asked=2, missing=["mill7"])
    )
    document = finish.make(cluster, Options(command="env"), finish.Story("2026-01-01T00:00:00+00:00", 1.0))
    shown = jsondoc.encode(anonymised(document)).decode()
    assert not {word for word in ("mill7", "corp", "gretchen", "hans", "bastion", "gatehouse") if word in shown}


def _outputs(document: Document) -> Iterator[str]:
    """The document in every form that needs no extra."""
    yield jsondoc.encode(document).decode()
    yield terminal.text(document, terminal.Style(verbose=True))
    yield terminal.short(document, terminal.Style())
    for module in (markdown, junit, prometheus):
        yield module.text(document)


def _judged_again(document: Document, story: stories.Told) -> Document:
    cluster = replace(story.cluster, nodes=[entry.facts for entry in document.nodes], job=document.job)
    cluster = replace(cluster, run=document.run, measurements=document.measurements)
    return finish.make(cluster, Options(command=story.command), finish.Story(document.started, 1.0))


# Of an anonymous script nothing is left that could be judged (tests/commands/test_script.py).
_JUDGED_AGAIN = [name for name in _STORIES if stories.load(name).measurements.script is None]


@pytest.mark.parametrize("name", _JUDGED_AGAIN)
def test_rules_say_of_invented_names_what_they_said_of_the_true_ones(name: str) -> None:
    before = stories.document(name)
    after = _judged_again(anonymised(before), stories.load(name))
    counted = {verdict.code: (verdict.state, len(verdict.findings)) for verdict in before.verdicts}
    assert {verdict.code: (verdict.state, len(verdict.findings)) for verdict in after.verdicts} == counted


@pytest.mark.parametrize("name", _STORIES[::4])
def test_no_node_of_a_story_is_named(name: str) -> None:
    document = stories.document(name)
    hidden = jsondoc.encode(anonymised(document)).decode()
    names = {entry.name for entry in document.nodes if re.search(r"\d", entry.name) and entry.name[:3] != "sim"}
    assert not [name for name in names if re.search(rf"(?<![\w]){re.escape(name)}(?!\w)", hidden)]


@dataclass
class _Made:
    """A result, and what must not be left of it."""

    document: Document = field(repr=False)  # a hundred kilobytes
    names: set[str]
    addresses: set[str]


@st.composite
def _made(draw: st.DrawFn) -> _Made:
    """A result with everything that could give a cluster away, beside these names and addresses."""
    stem, other, user, folder, server, domain, job = (
        f"{draw(_WORDS)}{end}" for end in ("-n", "-m", "", "", "srv", "", "job")
    )
    names = [f"{stem}{number}" for number in sorted(draw(st.sets(st.integers(1, 99), min_size=2, max_size=3)))]
    network, last = draw(_NETWORKS), draw(st.lists(st.integers(1, 250), min_size=3, max_size=3, unique=True))
    addresses = [f"{network}.{number}" for number in last]
    port = f"2001:610:1:{draw(st.integers(1, 9))}::{draw(st.integers(2, 99))}"
    path, mac, guid = f"/home/{user}/{folder}/venv/bin/python", "b8:3f:d2:0a:7c:91", "b83f:d203:00a1:7c91"
    uuid = "8932f937-d72c-4106-c12f-20bd9faed9f6"
    env = {
        "SLURM_JOB_NODELIST": f"{stem}[{','.join(name[len(stem) :] for name in names)}]",
        "SLURM_JOB_NAME": job,
        "SLURM_JOB_USER": user,
        "MASTER_ADDR": f"{names[0]}.{domain}.com",
        "NCCL_TOPO_FILE": f"/opt/{folder}/{folder}.xml",
        "NCCL_SOCKET_IFNAME": "eth1",
        "CUDA_VISIBLE_DEVICES": f"GPU-{uuid[:8]}",
    }
    mount = Mount(point="/home", kind="nfs4", source=f"{server}:/{folder}", options=["rw"], network=True)
    card = Gpu(name="GPU 0", index=0, uuid=f"GPU-{uuid}", processes=[GpuProcess(pid=7, user=f"{user}b")])
    place = Place(name="working directory", path=f"/home/{user}/{folder}", told_by="PWD", mount=mount)
    nodes = [
        clusters.node(
            name,
            clusters.nic("eth0", f"{address}/24", f"{port}/64"),
            routes=[
                clusters.route("0.0.0.0/0", "eth0", f"{network}.254"),
                clusters.route(f"{network}.0/24", "eth0"),
            ],
            env=env,
            stack=Stack(executable=path, torch_path=f"/home/{user}/{folder}/lib/torch"),
            rdma=hcas.rdma(hcas.hca(0, hcas.roce(address), node_guid=guid)),
            gpus=Gpus(user=user, cards=[card]),
            storage=Storage(places=[place]),
        )
        for name, address in zip(names, addresses, strict=False)
    ]
    run = Run(
        silent=[
            Silence(node=f"{other}7", last_step="", since_s=1.0, detail=f"ssh: {other}7.{domain}.com: no route")
        ],
        ends=[
            JobEnd(node=names[0], exit=1, detail=f"{path}: peer [{port}]:29500 {mac} {names[1]}-ib0 x-{names[1]}")
        ],
    )
    job_of = Job(
        launcher="slurm", nodes_asked=3, nodes_answered=2, missing=[f"{other}7"], chosen_by=f"--hostfile {path}",
        meeting=Meeting(endpoint=f"{names[0]}:29500", told_by="", outcome="open", addresses=[addresses[0]]),
    )  # fmt: skip
    cluster = Cluster(nodes=nodes, run=run, job=job_of)
    document = finish.make(cluster, Options(command="env"), finish.Story("2026-01-01T00:00:00+00:00", 1.0))
    secret = {
        stem,
        other,
        *names,
        f"{other}7",
        user,
        f"{user}b",
        folder,
        server,
        domain,
        job,
        mac,
        guid,
        uuid,
        uuid[:8],
    }
    return _Made(document, secret, {*addresses[: len(names)], f"{network}.254", port})


def _addresses_in(text: str) -> Iterator[str]:
    for word in re.findall(r"[0-9A-Fa-f:.]{4,}", text):
        try:
            yield str(ipaddress.ip_address(word.strip(".")))
        except ValueError:
            continue


def _check(made: _Made, outputs: Iterable[str]) -> None:
    for output in outputs:
        lowered = output.lower()
        assert not [name for name in made.names if name in lowered]
        assert made.addresses.isdisjoint(_addresses_in(output))


@settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
@given(made=_made())
def test_no_name_and_no_address_is_left_in_any_output(made: _Made) -> None:
    known = jsondoc.encode(made.document).decode()
    assert all(secret in known for secret in made.names | made.addresses)
    _check(made, _outputs(anonymised(made.document)))


@settings(deadline=None, max_examples=1, phases=[Phase.generate])
@given(made=_made())
def test_nor_in_a_page_for_the_browser(made: _Made) -> None:
    pytest.importorskip("matplotlib")
    html = importlib.import_module("ncclcheck.reports.output.html")
    _check(made, [html.text(anonymised(made.document))])


_IN_USE = st.ip_addresses(v=4) | st.sampled_from(["2001:610::/32", "fd12::/16", "fec0::/16"]).flatmap(
    lambda network: st.ip_addresses(network=network)
)


@settings(deadline=None)
@given(st.lists(_IN_USE, min_size=2, max_size=12, unique=True))
def test_invented_addresses_share_the_networks_that_the_true_ones_share(
    listed: list[ipaddress.IPv4Address | ipaddress.IPv6Address],
) -> None:
    hidden = InventedAddresses([" ".join(map(str, listed))])
    images = [ipaddress.ip_address(hidden.replace(str(address))) for address in listed]
    for first, first_image in zip(listed, images, strict=True):
        assert first_image.is_loopback == first.is_loopback
        assert first_image.is_link_local == first.is_link_local
        assert first_image.is_multicast == first.is_multicast
        for second, second_image in zip(listed, images, strict=True):
            if first.version == second.version:
                differ, differs = int(first) ^ int(second), int(first_image) ^ int(second_image)
                assert differ.bit_length() == differs.bit_length()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("127.0.0.1 0.0.0.0/0 172.17.0.1 169.254.169.254 ::1 :: 255.255.0.0", True),
        ("driver 570.124.06, NCCL 2.27.3, firmware 28.41.1000, vbios 96.00.74.00.1A", True),
        ("0000:1b:00.0 at 12:30:45, std::vector", True),
        ("10.7.1.9:29500 and [2001:610::7]:29500, fe80::21:3c", False),
        ("mac b8:3f:d2:0a:7c:91", False),
    ],
)
def test_only_what_is_an_address_is_taken_for_one(text: str, kept: bool) -> None:
    assert (InventedAddresses([text]).replace(text) == text) is kept


def test_a_network_stays_a_network_and_its_addresses_stay_in_it() -> None:
    hidden = InventedAddresses(["10.16.3.7/24 10.16.3.0/24 10.16.4.9 0000:0000:0000:0000:0000:ffff:0a10:0307"])
    network = ipaddress.ip_network(hidden.replace("10.16.3.0/24"))
    address = ipaddress.ip_address(hidden.replace("10.16.3.7"))
    assert address in network
    assert ipaddress.ip_address(hidden.replace("10.16.4.9")) not in network
    gid = hidden.replace("0000:0000:0000:0000:0000:ffff:0a10:0307")
    assert len(gid) == 39
    assert ipaddress.IPv6Address(gid).ipv4_mapped == address


def test_folded_names_are_folded_again() -> None:
    document = stories.document("healthy")
    text = terminal.text(anonymised(document), terminal.Style())
    assert "gpu-a" not in text
    assert "node[1-2]" in text


def test_the_command_hides_and_what_it_saved_is_judged_the_same(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(jsondoc.encode(stories.document("one-node-in-another-subnet")))
    ran = ncclcheck("report", "a.json", "--anonymise", "--save", "b.json", "--markdown", "b.md")
    again = ncclcheck("report", "b.json", "-o", "json")
    assert ran.code == again.code == 1
    # What is offered (a free address, a gateway) goes by the numbers of hosts, which are hidden.
    kept, judged = (
        [
            (verdict["code"], [finding["what"] for finding in verdict["findings"]])
            for verdict in json.loads(text)["verdicts"]
        ]
        for text in ((tmp_path / "b.json").read_text(), again.out)
    )
    assert kept == judged
    names = [entry["name"] for entry in json.loads((tmp_path / "a.json").read_text())["nodes"]]
    written = ran.out + (tmp_path / "b.json").read_text() + (tmp_path / "b.md").read_text()
    assert not [name for name in names if name in written]
    refused = ncclcheck("report", "a.json", "--anonymise", "--env-file", "nccl.env")
    assert (refused.code, "true names" in refused.err) == (2, True)


def test_facts_keep_their_shape() -> None:
    document = stories.document("healthy")
    hidden = anonymised(document)
    for before, after in zip(document.nodes, hidden.nodes, strict=True):
        assert at(before.facts, "stack.torch") == at(after.facts, "stack.torch")
        assert len(at(before.facts, "network.interfaces")) == len(at(after.facts, "network.interfaces"))


@pytest.mark.parametrize(
    "network",
    ["100.126.0.0/16", "192.168.64.0/21", "192.168.1.0/24", "172.16.0.0/16", "172.31.16.0/20", "10.40.0.0/22"],
)
def test_a_private_network_becomes_another_private_one(network: str) -> None:
    before = ipaddress.ip_network(network)
    inside, beside = before[5], before.network_address + before.num_addresses + 5
    hidden = InventedAddresses([f"{inside}/{before.prefixlen} {network} {beside} 172.17.0.1"])
    after = ipaddress.ip_network(hidden.replace(network))
    assert after != before
    assert after.prefixlen == before.prefixlen
    assert after.is_private == before.is_private
    assert ipaddress.ip_address(hidden.replace(str(inside))) in after
    assert ipaddress.ip_address(hidden.replace(str(beside))) not in after
    assert hidden.replace("172.17.0.1") == "172.17.0.1"


def test_what_people_wrote_of_their_job_leaves_as_a_whole() -> None:
    variables = {
        "SLURM_JOB_COMMENT": "for the wbqkz people: do not kill",
        "SLURM_JOB_NAME": "train vxqh 7B",
        "SLURM_JOB_ACCOUNT": "kdzwf/proj",
        "SLURM_JOB_EXTRA": "hgbzq",
        "SLURM_JOB_ID": "4711",
        "SLURM_DISTRIBUTION": "block",
        "FI_PROVIDER": "efa",
        "UCX_NOTE": "mine, fqwzx",
    }
    node = clusters.node("a", env=variables)
    document = finish.make(Cluster(nodes=[node]), Options(command="env"), finish.Story("2026-01-01", 1.0))
    for output in _outputs(anonymised(document)):
        assert not [word for word in ("wbqkz", "vxqh", "kdzwf", "hgbzq", "fqwzx") if word in output]
    kept = {variable.name: variable.value for variable in anonymised(document).nodes[0].facts.job.variables}  # type: ignore[union-attr]
    assert (kept["SLURM_JOB_ID"], kept["SLURM_DISTRIBUTION"], kept["FI_PROVIDER"]) == ("4711", "block", "efa")


def test_of_filters_foreign_processes_and_files_in_the_way_nobody_is_known() -> None:
    rule = "ip saddr @wbqkz_clients skuid vxqhk tcp dport 22 drop"
    chains = [
        Filter(family="inet", table="kdzwf-net", chain="input", hook="input", does=["drop"], rule=rule),
        Filter(family="ip", table="filter", chain="KUBE-FORWARD", hook="output", does=["drop"]),
    ]
    other = Other(pid=7, user="hgbzq", command="/opt/fqwzx/solve --project cwvkg at 10.31.7.5 --rate 3", cores=1.5)
    stack = Stack(hiding=[Hiding(module="queue", path="/home/qhxdb/zkfgw/queue.py", by="PYTHONPATH")],
                  preloaded="/usr/local/lib/gvqxw.so", customised=["/home/bwqcd/sitecustomize.py"])  # fmt: skip
    env = {"LD_PRELOAD": "/srv/kqvhb/lib.so", "PYTHONHOME": "/srv/dwzxq", "MALLOC_CONF": "stats_print:true"}
    nodes = [replace(clusters.node(name, env=env), stack=stack) for name in ("a", "b")]
    nodes = [replace(node, network=replace(at(node, "network"), filters=chains)) for node in nodes]
    measured = Measurements(resources=[Resources(node="a", seconds=9.0, others=[other])])
    ends = [JobEnd(node="a", exit=1, detail="ImportError: /srv/kqvhb/lib.so: cannot open 10.31.7.5")]
    cluster = Cluster(nodes=nodes, run=Run(started_job=True, ends=ends), measurements=measured)
    document = finish.make(cluster, Options(command="bench"), finish.Story("2026-01-01", 1.0))
    hidden = anonymised(document)
    secrets = ("wbqkz", "vxqhk", "kdzwf", "hgbzq", "fqwzx", "cwvkg", "10.31.7.5", "qhxdb", "zkfgw", "gvqxw",
               "bwqcd", "kqvhb", "dwzxq")  # fmt: skip
    for output in _outputs(hidden):
        assert not [word for word in secrets if word in output]
    kept = at(hidden.nodes[0].facts, "network.filters")
    assert (kept[1].table, kept[1].chain) == ("filter", "KUBE-FORWARD")
    assert "--project" not in hidden.measurements.resources[0].others[0].command
