/* What pynvml and torch ask of NVML, beyond what NCCL does: a healthy, idle H100. */
#include "fake.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { NOT_FOUND_ = 6, MIB = 1 << 20, USED = 600 * MIB, RESERVED = 500 * MIB };

#define ASKED                          \
    do {                               \
        E told_ = enter(__func__);     \
        if (told_) return told_;       \
    } while (0)

/* A figure that is the same for every device. */
#define FIGURE(name, value)                    \
    API E name(u64 device, unsigned *out) {    \
        ASKED;                                 \
        *out = value;                          \
        return OK;                             \
    }
/* One of a kind: clocks, errors. */
#define FIGURE_OF(name, value)                           \
    API E name(u64 device, int kind, unsigned *out) {    \
        ASKED;                                           \
        *out = value;                                    \
        return OK;                                       \
    }
#define PAIR(name, value)                                          \
    API E name(u64 device, unsigned *current, unsigned *pending) { \
        ASKED;                                                     \
        *current = *pending = value;                               \
        return OK;                                                 \
    }

FIGURE(nvmlDeviceGetPowerUsage, 71000)
FIGURE(nvmlDeviceGetPowerManagementLimit, 700000)
FIGURE(nvmlDeviceGetPowerManagementDefaultLimit, 700000)
FIGURE(nvmlDeviceGetComputeMode, 0)
FIGURE(nvmlDeviceGetPersistenceMode, 1)
FIGURE(nvmlDeviceGetMaxPcieLinkGeneration, 5)
FIGURE(nvmlDeviceGetGpuMaxPcieLinkGeneration, 5)
FIGURE(nvmlDeviceGetMaxPcieLinkWidth, 16)
FIGURE(nvmlDeviceGetPcieReplayCounter, 0)
FIGURE_OF(nvmlDeviceGetTemperature, 41)
FIGURE_OF(nvmlDeviceGetClockInfo, kind == 2 ? 2619 : 1980)
FIGURE_OF(nvmlDeviceGetMaxClockInfo, kind == 2 ? 2619 : 1980)
PAIR(nvmlDeviceGetEccMode, 1)
PAIR(nvmlDeviceGetMigMode, 0)

static u64 memory(void) { return (u64)number("FAKECUDA_MEM_GB", 80) << 30; }

API E nvmlInitWithFlags(unsigned flags) {
    ASKED;
    return OK;
}
API E nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ASKED;
    *out = number("FAKECUDA_DRIVER", 12090);
    return OK;
}
API E nvmlDeviceGetHandleByIndex(unsigned index, u64 *out);
API E nvmlDeviceGetHandleByIndex_v2(unsigned index, u64 *out) { return nvmlDeviceGetHandleByIndex(index, out); }
API E nvmlDeviceGetHandleByPciBusId(const char *id, u64 *out);
API E nvmlDeviceGetHandleByPciBusId_v2(const char *id, u64 *out) { /* 00000000:10:00.0 as well as 0000:10:00.0 */
    return nvmlDeviceGetHandleByPciBusId(id + (strlen(id) > 12 ? 4 : 0), out);
}
API E nvmlDeviceGetUUID(u64 device, char *out, unsigned size) { /* as cuDeviceGetUuid has it */
    ASKED;
    snprintf(out, size, "GPU-%02x000000-0000-0000-0000-000000000000", (unsigned)device);
    return OK;
}
API E nvmlDeviceGetHandleByUUID(const char *uuid, u64 *out) {
    for (u64 device = 1; (int)device <= physical(); device++) {
        char own[64];
        E told = nvmlDeviceGetUUID(device, own, sizeof own);
        if (told) return told;
        if (strcasecmp(own, uuid)) continue;
        *out = device;
        return OK;
    }
    return NOT_FOUND_;
}
API E nvmlDeviceGetMemoryInfo(u64 device, u64 *out) { /* total, free, used */
    ASKED;
    out[0] = memory();
    out[1] = memory() - USED;
    out[2] = USED;
    return OK;
}
API E nvmlDeviceGetMemoryInfo_v2(u64 device, u64 *out) { /* version, total, reserved, free, used */
    ASKED;
    out[1] = memory();
    out[2] = RESERVED;
    out[3] = memory() - USED;
    out[4] = USED - RESERVED;
    return OK;
}
API E nvmlDeviceGetCurrentClocksEventReasons(u64 device, u64 *out) {
    ASKED;
    *out = 1; /* idle */
    return OK;
}
API E nvmlDeviceGetTotalEccErrors(u64 device, int type, int counter, u64 *out) {
    ASKED;
    *out = type == 1 ? number("FAKECUDA_ECC", 0) : 0;
    return OK;
}
API E nvmlDeviceGetTopologyCommonAncestor(u64 a, u64 b, unsigned *out) {
    ASKED;
    *out = 50; /* the same CPU */
    return OK;
}
API E nvmlDeviceGetUtilizationRates(u64 device, unsigned *out) {
    ASKED;
    out[0] = out[1] = 0;
    return OK;
}
API E nvmlDeviceGetComputeRunningProcesses_v3(u64 device, unsigned *n, void *processes) {
    ASKED;
    *n = 0;
    return OK;
}
/* Torch asks for these two when memory is short. */
API E nvmlDeviceGetComputeRunningProcesses(u64 device, unsigned *n, void *processes) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, n, processes);
}
API E nvmlDeviceGetNvLinkRemotePciInfo(u64 device, unsigned link, void *out);
API E nvmlDeviceGetNvLinkRemotePciInfo_v2(u64 device, unsigned link, void *out) {
    return nvmlDeviceGetNvLinkRemotePciInfo(device, link, out);
}
API E nvmlDeviceGetVbiosVersion(u64 device, char *out, unsigned size) {
    ASKED;
    snprintf(out, size, "96.00.89.00.01");
    return OK;
}
