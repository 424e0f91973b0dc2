"""What RCCL, AMD's NCCL, says of the host at its start, on healthy machines too."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

_WARN = "elm4:311:340 [0] /long_pathname/src/init.cc:142 NCCL WARN "

SIGNS = (
    Sign(
        "rccl-numa-balancing",
        r"NUMA auto balancing enabled which can lead to variability",
        (
            _WARN
            + "NUMA auto balancing enabled which can lead to variability in the RCCL performance! Disable by "
            '"sudo sysctl kernel.numa_balancing=0"',
        ),
    ),
    Sign(
        "rccl-iommu",
        r'Missing "[\w.=-]{2,60}" from kernel command line',
        (
            _WARN + 'Missing "amd_iommu=on" from kernel command line which can lead to system instablity or hang!',
            _WARN + 'Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!',
        ),
    ),
    Sign(
        "rccl-fine-grain",
        r'Missing "[\w.=-]{2,60}" from environment',
        (
            _WARN
            + 'Missing "HSA_FORCE_FINE_GRAIN_PCIE=1" from environment which can lead to low RCCL performance, '
            "system instablity or hang!",
        ),
    ),
    Sign(
        "rccl-no-profiler",
        r"rocprofiler-register failed with error code|MSCCL Internal Scheduler: .{0,20}Unable to find algorithm files",
        (
            _WARN + "[rocprofiler-sdk-rccl][340] rocprofiler-register failed with error code 7 : not supported",
            _WARN
            + "MSCCL Internal Scheduler:  Unable to find algorithm files in /opt/rocm/share. Please ensure that "
            "RCCL has been installed properly",
        ),
    ),
    Sign(
        "rocm-failure",
        r"ROCr failure|ROCm SMI init failure|ARSMI failure|_lib: \S{4,20} device index not found"
        r"|Failed to find ROCm runtime library",
        (
            _WARN + "ROCr failure 'HSA_STATUS_ERROR_OUT_OF_RESOURCES: out of resources'",
            _WARN + "rocm_smi_lib: 0000:c1:00.0 device index not found",
            _WARN + "Failed to find ROCm runtime library in /opt/rocm (RCCL_ROCR_PATH=/opt/rocm)",
        ),
    ),
    Sign(
        "npu-fault",
        r"The error from device\(chipId:(?P<chip>\d{1,3}).{0,120}? there is an (?:exception of )?(?P<what>[\w ]{3,40}?)(?: "
        r"error)?(?: exception)?,(?:.{0,500}?fault kernel_name=(?P<kernel>[\w.]{1,120}))?"
        r"|errorStr: (?P<words>[A-Z][^.]{3,160})",
        (
            "The error from device(chipId:1, dieId:0), serial number is 4, there is an aicore error exception, core id is "
            "17, error code = 0x800000, dump info: pc start: 0x12, fault kernel_name=MoeDispatch_1",
            "The extend info: errcode:(0x800000, 0, 0) errorStr: The DDR address of the MTE instruction is out of range.",
        ),
        words=("error from device(chipid", "errorstr: "),
    ),
)
