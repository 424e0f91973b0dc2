"""Manifests of examples/ as pods: what each controller makes of them, in variables, host names and DNS names.

By the controllers' sources: Kubernetes' indexed Jobs, JobSet, Kubeflow Trainer v2 (plugins/torch), LeaderWorkerSet
(pkg/utils/pod), Volcano (plugins pytorch, svc and env). Only what our manifests use is here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"
Raw = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """One pod: its host name, the name that DNS has for it, and the container that runs ncclcheck."""

    host: str
    dns: str
    env: dict[str, str]
    argv: list[str]

    @property
    def typed(self) -> list[str]:
        """The words of its ncclcheck, up to what it becomes, with the pod's variables put in."""
        text = shlex.join(self.argv) if self.argv[0] != "sh" else self.argv[-1]
        for name, value in self.env.items():
            text = text.replace(f"${name}", value)
        words = shlex.split(text)
        words = words[words.index("ncclcheck") + 1 :]
        return words[: words.index("--")] if "--" in words else words


def documents(name: str) -> list[Raw]:
    """The documents of one manifest."""
    return [document for document in yaml.safe_load_all((EXAMPLES / name).read_text()) if document]


def manifests() -> list[str]:
    """The manifests of Kubernetes, by their file names."""
    paths = sorted(EXAMPLES.glob("*.yaml"))
    return [path.name for path in paths if all("apiVersion" in document for document in documents(path.name))]


def pods(name: str) -> list[Pod]:
    """The pods of one manifest, node 0 first."""
    made = {
        "Job batch/v1": _indexed,
        "JobSet jobset.x-k8s.io/v1alpha2": _job_set,
        "TrainingRuntime trainer.kubeflow.org/v1alpha1": _train_job,
        "LeaderWorkerSet leaderworkerset.x-k8s.io/v1": _group,
        "Job batch.volcano.sh/v1alpha1": _volcano,
    }
    listed = documents(name)
    return next(
        list(made[key](listed))
        for document in listed
        if (key := f"{document['kind']} {document['apiVersion']}") in made
    )


def _indexed(listed: list[Raw]) -> Iterator[Pod]:
    job = next(document for document in listed if document["kind"] == "Job")
    spec, name = job["spec"]["template"]["spec"], job["metadata"]["name"]
    for index in range(job["spec"]["completions"]):
        yield _pod(spec, f"{name}-{index}", spec["subdomain"], {"JOB_COMPLETION_INDEX": str(index)})


def _job_set(listed: list[Raw]) -> Iterator[Pod]:
    name = listed[0]["metadata"]["name"]
    yield from _jobs_of_set(name, listed[0]["spec"], {})


def _jobs_of_set(name: str, spec: Raw, more: dict[str, str], count: int = 0) -> Iterator[Pod]:
    [job] = spec["replicatedJobs"]
    inner = job["template"]["spec"]
    for index in range(count or inner["completions"]):
        own = {"JOB_COMPLETION_INDEX": str(index), **{key: value.format(index) for key, value in more.items()}}
        yield _pod(inner["template"]["spec"], f"{name}-{job['name']}-0-{index}", name, own)


def _train_job(listed: list[Raw]) -> Iterator[Pod]:
    runtime, job = listed
    name, nodes = job["metadata"]["name"], job["spec"]["trainer"]["numNodes"]
    [target] = runtime["spec"]["mlPolicy"]["torch"]["envInjection"]["targets"]
    assert target == {"jobName": "node", "containerNames": ["preflight"]}  # else it has no PET_*
    given = {
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": "auto",
        "PET_NODE_RANK": "{}",
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }
    yield from _jobs_of_set(name, runtime["spec"]["template"]["spec"], given, nodes)


def _group(listed: list[Raw]) -> Iterator[Pod]:
    name, spec = listed[0]["metadata"]["name"], listed[0]["spec"]["leaderWorkerTemplate"]
    for index in range(spec["size"]):
        env = {
            "LWS_LEADER_ADDRESS": f"{name}-0.{name}.default",
            "LWS_GROUP_SIZE": str(spec["size"]),
            "LWS_WORKER_INDEX": str(index),
        }
        host = f"{name}-0-{index}" if index else f"{name}-0"
        yield _pod(spec["workerTemplate"]["spec"], host, f"{name}.default", env)


def _volcano(listed: list[Raw]) -> Iterator[Pod]:
    name, spec = listed[0]["metadata"]["name"], listed[0]["spec"]
    tasks = [(task["name"], task["replicas"], task["template"]["spec"]) for task in spec["tasks"]]
    env = {}
    for task, replicas, _ in tasks:
        env[f"VC_{task.upper()}_HOSTS"] = ",".join(f"{name}-{task}-{index}.{name}" for index in range(replicas))
        env[f"VC_{task.upper()}_NUM"] = str(replicas)
    world = sum(replicas for _, replicas, _ in tasks)
    rank = 0
    for task, replicas, pod in tasks:
        for index in range(replicas):
            own = {"MASTER_ADDR": f"{name}-master-0.{name}", "MASTER_PORT": "29500"}
            own |= {"WORLD_SIZE": str(world), "RANK": str(rank)}
            yield _pod(pod, f"{name}-{task}-{index}", name, {**env, **own})
            rank += 1


def _pod(spec: Raw, host: str, domain: str, given: dict[str, str]) -> Pod:
    """The first container that runs ncclcheck, in its init or after it."""
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        argv = [*container.get("command", []), *container.get("args", [])]
        if any("ncclcheck" in word for word in argv):
            own = {
                variable["name"]: variable["value"] for variable in container.get("env", []) if "value" in variable
            }
            return Pod(host, f"{host}.{domain}", {**given, **own, "NODE_NAME": f"node-of-{host}"}, argv)
    raise AssertionError(f"{host}: no container runs ncclcheck")
