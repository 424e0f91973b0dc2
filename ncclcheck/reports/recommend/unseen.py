"""Rules of the field that no fact of this tool can call for, each with the reason: for the docs."""

from __future__ import annotations

_HOST = "no variable changes it: the machine or its network has to"
_JOB = "it belongs into the training's own code"

UNSEEN: dict[str, tuple[str, str]] = {
    "S10": ("packets leave by another card than the chosen one", f"{_HOST}; told by NET003 and NET011"),
    "S11": ("a firewall closes the ports that the kernel gives out", f"{_HOST}; told by NET006"),
    "S12": ("another network plugin is loaded than the one meant", "which library is mapped is not read; NCC010 tells "
            "of plugins that are not found"),
    "R4": ("a class of its own for NCCL's small control messages", "the switches' queues are not seen"),
    "R8": ("a bond of two RoCE ports", f"{_HOST}; told by RDM023"),
    "R11": ("ports merged across rails or planes", "to which switch a port leads is not seen"),
    "R13": ("error 12 after a long healthy time", "it takes the log of a long job: ncclcheck logs"),
    "R14": ("rails without a way from one to the other", "pairs are measured along their own rail only"),
    "R15": ("all cards of a node on one switch", "to which switch a port leads is not seen"),
    "R20": ("sizes of packets that differ between nodes", f"{_HOST}; told by NET004 and RDM015"),
    "R21": ("RDMA packets smaller than 4096 bytes", f"{_HOST}; told by RDM015"),
    "R22": ("no module for GPUDirect RDMA", f"{_HOST}; told by RDM022"),
    "R25": ("ACS on the bridges above the GPUs", f"{_HOST}; told by FAB001"),
    "R27": ("too little memory may be locked", f"{_HOST}; told by HST001"),
    "R28": ("a container without the devices of InfiniBand", f"{_HOST}; told by RDM002 and RDM003"),
    "R31": ("error counters of ports that rise", f"{_HOST}; told by RDM007 and RDM008"),
    "R32": ("too many queue pairs for all-to-all over hundreds of nodes", "the job's own pattern of messages is not seen"),
    "T3": ("a limit of the cloud for each flow", "flows are not measured one by one; T1 is the way out"),
    "T5": ("small packets, few queues or offloads that are off on a fast card", f"{_HOST}; NET004 tells of packet sizes"),
    "T7": ("Google's plugin for TCP", "it has to be installed, no variable brings it"),
    "T9": ("fewer bytes over a slow network", _JOB),
    "I8": ("a small /dev/shm", f"{_HOST}; told by HST003"),
    "I13": ("GPUs that are not registered with the NVSwitch fabric", f"{_HOST}; told by GPU020"),
    "I14": ("NVLinks that are down", f"{_HOST}; told by GPU018"),
    "I15": ("PCIe links below their width or speed", f"{_HOST}; told by GPU015, GPU016 and FAB003"),
    "I16": ("IMEX that is not up", f"{_HOST}; GPU020 tells of the fabric's state"),
    "I18": ("a topology file for virtual machines", "files of the image are not looked for, but for the one that NCCL "
            "finds by itself; FAB009 tells of its absence, P11 names Azure's"),
    "I21": ("an unlimited stack", f"{_HOST}; told by HST010"),
    "I22": ("too few open files", f"{_HOST}; told by HST002"),
    "I23": ("shared memory that goes with the user's session", f"{_HOST}; told by HST012"),
    "I24": ("nvidia-uvm that is not loaded", f"{_HOST}; CON002 and GPU001 tell of devices that are missing"),
    "I25": ("several containers of a machine in one job", "how they share memory is a matter of their deployment; "
            "told by CON003"),
    "I27": ("other versions or settings on some nodes", "no value is right by itself; told by NCC002 and NCC005"),
    "I28": ("fewer cores of the GPU for communication", f"{_JOB} (options of the process group)"),
    "I29": ("NVLink SHARP in groups of five GPUs of B200", "a forecast that nobody has measured"),
    "L12": ("nccl.conf and the environment that say different things", "which of them is meant is not known; told by "
            "NCC024"),
    "P1": ("AWS p4d and p4de", "nothing is to be set: the plugin does (L18 takes copies of it away)"),
    "P2": ("AWS p5 and p5e", "nothing is to be set: the plugin does"),
    "P3": ("AWS p5en and p6-b200", "nothing is to be set: the plugin does"),
    "P4": ("AWS p6-b300 and p6e-gb200", "nothing is to be set: the plugin does"),
    "P5": ("AWS g5, g6 and g6e", "nothing of their own: I4 and I5 speak of PCIe"),
    "P7": ("GCP a3-highgpu with TCPX", "Google's own list comes with its plugin; what it pins is left alone"),
    "P8": ("GCP a3-megagpu with TCPXO", "Google's own script is to be sourced; what it pins is left alone"),
    "P10": ("GKE pods", "annotations of the pod, no variable"),
    "P13": ("Azure NC and GB200", "graph files of the image are not looked for; R18 speaks of GB300"),
    "P15": ("OCI with H100 to B300", "as P14; what Oracle's table sets beside it is left alone"),
    "P17": ("CoreWeave", "nothing is to be set; what its manifests set is left alone"),
    "P19": ("InfiniBand with a rail for each GPU", "nothing is to be set: NCCL's defaults are made for it"),
    "P20": ("RoCE that was built by oneself", "nothing of its own: R3, R5 and RDM015 speak of its parts"),
    "P22": ("one node with NVLink", "nothing is to be set: the defaults reach the rate of the links"),
    "P23": ("one node with PCIe alone", "nothing of its own: I2 to I5 speak of its parts"),
    "P24": ("a pair of DGX Spark", "nothing of its own: R10 and RDM015 speak of its parts"),
    "P25": ("Kubernetes", "fields of the pod, no variable; told by CON001 to CON006"),
    "X3": ("a slow init of a thousand ranks", f"{_JOB} (device_id= of init_process_group)"),
    "X5": ("much communication that nothing hides", f"{_JOB}; smoke tells how much"),
}  # fmt: skip
