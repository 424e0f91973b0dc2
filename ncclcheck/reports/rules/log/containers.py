"""LOG181: pods and containers that are not placed, not started, or taken away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from msgspec import structs

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Owner, Remedy, admin, you
from ncclcheck.reports.subjects.logs.ending import goes_on_after
from ncclcheck.reports.subjects.logs.logged import cause, events_of, in_order, log_rule
from ncclcheck.reports.subjects.logs.words.wording import BESIDE, quoted, tells_most, tells_why

# The lines of the engine's own log are indented; what pyxis itself says is not.
_OF_ENGINE, _OF_PYXIS = re.compile(r"^.*?pyxis: {3,}"), re.compile(r"^.*?pyxis: {1,}")
_SIGNS = ("pod-evicted", "container-not-started", "image-not-pulled", "pod-not-placed")
_DESCRIBE = you("Confirm: what Kubernetes says of it.", "kubectl describe pod POD | tail -20")


@log_rule("LOG181", "pods and containers start and keep running")
def containers_start_and_stay(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A pod found no node, its image could not be pulled, its container did not start, or Kubernetes took it away.

    ## Why it matters
    All other ranks wait for its rank, and report a time-out or a connection that was closed; why is logged by
    Kubernetes or the container runtime alone.

    ## Seen as
    hangs

    ## How we know
    `FailedScheduling ... Insufficient nvidia.com/gpu`, `ErrImagePull`, `could not select device driver`,
    `nvidia-container-cli: ...`, `The node was low on resource: ephemeral-storage`, `Evicted`. A container that
    used too
    much memory (OOMKilled) is LOG093.

    ## Fix
    - **you** ask for what the cluster has; write checkpoints and caches to a volume and not into the container.
    - **admin** the container toolkit of the node; free nodes; the image's secret.

    ## Source
    Kubernetes documentation, Node-pressure Eviction, Images, Scheduling; NVIDIA Container Toolkit documentation.
    """
    events = [
        event for event in in_order(events_of(logs, *_SIGNS)) if not goes_on_after(logs, event.file, event.line)
    ]
    if events:
        sign = next(kind for kind in _SIGNS if any(event.sign == kind for event in events))
        alike = [event for event in events if event.sign == sign]
        said_by = _engine_says(logs, alike)
        what, why, owner, fix = _KINDS[sign](alike)
        if said_by:
            what = f"{what}; its engine says: {quoted(said_by, BESIDE)}"
        yield cause([*alike[:1], *([said_by] if said_by else []), *alike[1:]], what, why=why, owner=owner, fix=fix)


def _engine_says(logs: Logs, events: list[LogEvent]) -> LogEvent | None:
    """What enroot or podman wrote of the start that failed, which pyxis hands on indented: what says most."""
    if not any("engine" in event.fields for event in events):
        return None
    here = [
        event
        for event in in_order(logs.events)
        if event.file == events[0].file and event not in events[:1] and tells_why(event)
    ]
    of_pyxis = [event for event in here if _OF_PYXIS.search(event.text)]
    of_engine = [event for event in of_pyxis if _OF_ENGINE.search(event.text)] or of_pyxis
    most = tells_most(of_engine) if of_engine else None
    return most and structs.replace(most, text=_OF_PYXIS.sub("", most.text))


_Said = tuple[str, str, Owner, list[Remedy]]


def _evicted(events: list[LogEvent]) -> _Said:
    resource = next((event.fields["resource"] for event in events if "resource" in event.fields), "")
    what = "Kubernetes evicted the pod"
    if resource == "ephemeral-storage" or any("local" in event.fields for event in events):
        what += ": too much was written into its container (ephemeral storage)"
    elif resource:
        what += f": its node was low on {resource}"
    return what, "The pod's rank is gone, and all others wait for it.", "job", [
        _DESCRIBE,
        you("Write checkpoints, caches and data to a volume (PVC, hostPath), and ask for what is needed "
            "(resources.requests: ephemeral-storage, memory)."),
        admin("See what else fills the node.", "kubectl describe node NODE | grep -A8 Conditions"),
    ]  # fmt: skip


def _not_started(events: list[LogEvent]) -> _Said:
    why = "Its rank was never started."
    if "config" in events[0].fields:
        return "a container was not created: something that its pod names is missing", why, "job", [
            _DESCRIBE,
            you("Make the secret, config map or variable that the pod names.", "kubectl get secret,configmap"),
        ]  # fmt: skip
    if "pyxis" in events[0].fields:
        return f"pyxis did not start the container: {events[0].fields['pyxis'].strip()[:160]}", why, "job", [
            you("Confirm, on that node: the containers that it has.", "enroot list"),
            you("Name an image, or a container that was made on this node by an earlier step.",
                "srun --container-image=IMAGE --container-name=NAME ..."),
        ]  # fmt: skip
    if "engine" in events[0].fields and not any({"cli", "oci"} & event.fields.keys() for event in events):
        return f"pyxis: {events[0].fields['engine'].strip()[:160]}", why, "node", [
            you("Confirm, on that node: start it by hand.", "enroot start --rw NAME sh -c true"),
            admin("What it mounts must exist there and be the user's: enroot's own lines beside it say which."),
        ]  # fmt: skip
    said_by = (event.fields[key] for key in ("cli", "oci") for event in events if key in event.fields)
    what = f"a container did not start: {next(said_by, '').strip()[:160]}"
    if any({"driver", "cdi"} & event.fields.keys() for event in events):
        what = "the container runtime gives no GPU: the NVIDIA Container Toolkit is missing"
    return what, why, "node", [
        you("Confirm on that node: whether the host has its GPUs, and a container gets them.",
            "nvidia-smi -L", "docker run --rm --gpus all ubuntu nvidia-smi -L"),
        admin("Install the toolkit and configure the runtime for it. Containers of docker end, unless "
              "live-restore is on.",
              "nvidia-ctk runtime configure --runtime=docker", "systemctl restart docker"),
        admin("Where nvidia-smi fails on the host the driver is not loaded.", "modprobe nvidia"),
    ]  # fmt: skip


def _not_pulled(events: list[LogEvent]) -> _Said:
    image = next((event.fields["image"] for event in events if "image" in event.fields), "")
    why = next((event.fields["why"] for event in events if "why" in event.fields), "The registry did not give it.")
    refused = next((event for event in events if "url" in event.fields), None)
    if refused is not None:
        image = image or refused.fields["url"].partition("/v2/")[2].partition("/manifests/")[0]
        why = f"The registry answered {refused.fields['http'].strip()}."
    named = f": {image}" if image else ""
    by_pyxis = any(event.fields.keys() & {"pyxis", "url"} for event in events)
    return f"the image could not be pulled{named}", why.strip()[-200:], "job", [
        you("Confirm, on that node.", f"enroot import docker://{quote(image or 'IMAGE')}")
        if by_pyxis
        else _DESCRIBE,
        you("Correct its name and tag, or give enroot the registry's secret.", "cat ~/.config/enroot/.credentials")
        if by_pyxis
        else you("Correct its name and tag, or give the registry's secret (imagePullSecrets).",
            f"docker manifest inspect {quote(image or 'IMAGE')}"),
        admin("Let the node reach the registry; see that its disk has room for the image."),
    ]  # fmt: skip


def _not_placed(events: list[LogEvent]) -> _Said:
    fields = events[0].fields
    words = (fields.get("why") or fields["admission"]).split(" preemption:")[0].strip().rstrip(".")
    return f"Kubernetes finds no node for the pod: {words[:160]}", "The others wait for its rank.", "site", [
        _DESCRIBE,
        you("Ask for less, or wait: all pods of a job must fit at once (gang scheduling: Kueue, Volcano)."),
        admin("See what is free; where GPUs are missing: the device plugin, or one that it calls unhealthy.",
              "kubectl describe nodes | grep -A6 'Allocated resources'",
              "kubectl get pods -A -o wide | grep nvidia-device-plugin"),
    ]  # fmt: skip


_KINDS = {
    "pod-evicted": _evicted,
    "container-not-started": _not_started,
    "image-not-pulled": _not_pulled,
    "pod-not-placed": _not_placed,
}
