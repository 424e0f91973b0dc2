"""The manifests of examples/: each field is one of the published schema, and its pods find each other."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.launch.joining.trust.identity import identity
from ncclcheck.run.plan.options import Options
from tests.helpers.pods import Raw, documents, manifests, pods

# Fields that our manifests use, their types, what is required beside them and what is allowed, as the schemas have
# it; each kind says from where.
PUBLISHED: dict[str, Raw] = json.loads((Path(__file__).parent / "kubernetes_fields.json").read_text())
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "int or string": (int, str),
}
JOINED = ["jobset.yaml", "kubeflow-trainjob.yaml", "kubernetes-init-container.yaml", "kubernetes-job.yaml",
          "leaderworkerset.yaml", "volcano-job.yaml"]  # fmt: skip


def _problems(document: Raw) -> list[str]:
    """What the published schema does not allow."""
    key = f"{document['apiVersion']} {document['kind']}"
    return list(_wrong(document, "", PUBLISHED[key])) if key in PUBLISHED else [f"{key} is no kind we know"]


def _wrong(value: Any, path: str, schema: Raw) -> Iterator[str]:
    """path: as the excerpt has it: `[]` is any item of a list, `.*` any name of a map."""
    if path:
        kind = schema["fields"].get(path)
        if kind is None:
            yield f"{path}: is no field"
            return
        if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
            yield f"{path}: {value!r} is no {kind}"
        if value not in schema["allowed"].get(path, [value]):
            yield f"{path}: {value!r} is none of {schema['allowed'][path]}"
    if isinstance(value, dict):
        yield from (f"{path}.{name}: is missing" for name in schema["required"].get(path, []) if name not in value)
        is_map = f"{path}.*" in schema["fields"]
        for name, inner in value.items():
            yield from _wrong(inner, f"{path}.*" if is_map else f"{path}.{name}" if path else name, schema)
    elif isinstance(value, list):
        for inner in value:
            yield from _wrong(inner, f"{path}[]", schema)


@pytest.mark.parametrize("name", manifests())
def test_a_manifest_is_as_the_published_schema_has_it(name: str) -> None:
    assert [problem for document in documents(name) for problem in _problems(document)] == []


def test_what_the_schema_does_not_have_is_seen() -> None:
    [group] = documents("leaderworkerset.yaml")
    assert "spec.leaderWorkerTemplate.size: 'two' is no integer" in _problems(_with(group, "size", "two"))
    assert "spec.leaderWorkerTemplate.sizes: is no field" in _problems(_with(group, "sizes", 2))
    assert any("is none of" in problem for problem in _problems(_with(group, "restartPolicy", "Never")))
    unnamed = copy.deepcopy(group)
    del unnamed["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["name"]
    assert [problem.rsplit(".", 1)[1] for problem in _problems(unnamed)] == ["name: is missing"]


def _with(group: Raw, name: str, value: object) -> Raw:
    changed = copy.deepcopy(group)
    changed["spec"]["leaderWorkerTemplate"][name] = value
    return changed


def test_every_kind_says_where_its_fields_are_from() -> None:
    assert {key for key, schema in PUBLISHED.items() if not schema["source"]} == set()
    used = {f"{document['apiVersion']} {document['kind']}" for name in manifests() for document in documents(name)}
    assert used == set(PUBLISHED)


@pytest.mark.parametrize("name", JOINED)
def test_the_pods_of_a_manifest_are_the_nodes_of_one_join(name: str) -> None:
    listed = pods(name)
    identities = []
    for pod in listed:
        typed = dict(zip(pod.typed, pod.typed[1:], strict=False))
        options = Options(
            command="env",
            nodes=int(typed["--nodes"]) if "--nodes" in typed else None,
            node_rank=int(typed["--node-rank"]) if "--node-rank" in typed else None,
            rdzv_endpoint=typed.get("--rdzv-endpoint"),
        )
        who = identity(options, pod.env, pod.host)
        assert who is not None, f"{pod.host} would check itself alone"
        identities.append(who)
    assert [who.node_rank for who in identities] == list(range(len(listed)))
    assert {who.nodes for who in identities} == {len(listed)}
    assert {who.host for who in identities} == {listed[0].dns}
    assert len({who.ports for who in identities}) == 1
    assert [who.name for who in identities] == [f"node-of-{pod.host}" for pod in listed]
