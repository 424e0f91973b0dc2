"""Kubernetes and container runtimes: pods that are not placed, not started, or taken away."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

SIGNS = (
    Sign(
        "image-not-pulled",
        r"(?P<state>ErrImagePull|ImagePullBackOff|InvalidImageName)|Failed to pull image \"(?P<image>[^\"]{1,300})\": (?P<why>.{3,300})"
        r"|pyxis: .{0,60}(?P<pyxis>couldn't import .{3,120}|failed to import docker image.{0,120})"
        r"|pyxis: .{0,20}\[ERROR\] URL (?P<url>\S{1,200}) returned error code: (?P<http>\d{3}.{0,40})",
        (
            'Warning  Failed  2m  kubelet  Failed to pull image "ghcr.io/u/train:1": rpc error: code = Unknown desc = unauthorized',
            "Warning  Failed  1m  kubelet  Error: ImagePullBackOff",
            "slurmstepd: error: pyxis: couldn't import docker image",
        ),
        words=("imagepull", "failed to pull image", "invalidimagename", "pyxis: "),
    ),
    Sign(
        "pod-not-placed",
        r"FailedScheduling.{0,200}?(?P<why>\d{1,6}/\d{1,6} nodes are available: .{3,200})|(?P<admission>UnexpectedAdmissionError.{0,160})",
        (
            "Warning  FailedScheduling  3m  default-scheduler  0/6 nodes are available: 6 Insufficient nvidia.com/gpu.",
            "Warning  UnexpectedAdmissionError  1m  kubelet  Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu",
        ),
        words=("failedscheduling", "unexpectedadmissionerror"),
    ),
    Sign(
        "pod-evicted",
        r"The node was low on resource: (?P<resource>[\w.-]{3,40})|(?P<local>ephemeral local storage usage exceeds.{0,120}|exceeded its local ephemeral.{0,120})"
        r"|TaintManagerEviction.{0,90}(?P<taint>deletion of? ?[Pp]od.{0,120}|deletion [Pp]od.{0,120})|^(?:Reason|reason): {1,20}(?P<reason>Evicted|Preempting|NodeLost|NodeShutdown|Terminated due to)",
        (
            "Message:  The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 8Gi.",
            "Pod ephemeral local storage usage exceeds the total limit of containers 100Gi.",
            "Normal  TaintManagerEviction  1m  taint-eviction-controller  Marking for deletion Pod ml/train-worker-3",
            "Reason:               Evicted",
        ),
        words=(
            "low on resource",
            "ephemeral",
            "evict",
            "preempting",
            "nodelost",
            "nodeshutdown",
            "terminated due to",
        ),
    ),
    Sign(
        "container-not-started",
        r"could not select device driver .{0,20} with capabilities: \[\[(?P<driver>gpu)\]\]|nvidia-container-cli: (?P<cli>.{3,200})"
        r"|unresolvable CDI devices (?P<cdi>.{3,80})|OCI runtime (?:create|exec) failed: (?P<oci>.{3,300})"
        r"|(?P<config>CreateContainer(?:Config)?Error)|pyxis: error: (?P<pyxis>.{3,200})"
        r"|pyxis: (?P<engine>couldn't (?:start|create) .{3,120}|container (?:start|create) failed.{0,120})",
        (
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
            "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file",
            "Error response from daemon: unresolvable CDI devices nvidia.com/gpu=all: unknown.",
            "Error response from daemon: OCI runtime create failed: runc create failed: unable to start container process",
            "Warning  Failed  1m  kubelet  Error: CreateContainerConfigError",
            'slurmstepd: error: pyxis: error: a container with name "pyxis_nemo" does not exist, and --container-image is not set',
            "slurmstepd: error: pyxis: couldn't start container",
        ),
        words=(
            "pyxis: error: ",
            "pyxis: co",
            "could not select device driver",
            "nvidia-container-cli",
            "unresolvable cdi",
            "oci runtime",
            "createcontainer",
        ),
    ),
)
