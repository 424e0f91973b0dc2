/* NVML, as far as NCCL asks. */
#include "fake.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, NVML_BAD_ARGUMENT = 2, LINK_STATE = 165, C2C_LINKS = 170 };

/* Before every function: FAKECUDA_FAIL's numbers are NVML's here. */
#define ASKED                            \
    do {                                 \
        E told_ = enter(__func__);       \
        if (told_) return told_;         \
    } while (0)

static unsigned links(void) { return number("FAKECUDA_NVLINKS", 0); }

/* A device's handle is its number plus one. */
API E nvmlInit_v2(void) {
    ASKED;
    return OK;
}
API E nvmlInit(void) { return nvmlInit_v2(); }
API E nvmlShutdown(void) {
    ASKED;
    return OK;
}
API const char *nvmlErrorString(E code) {
    switch (code) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 7: return "Insufficient Size";
    case 8: return "Insufficient External Power";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 11: return "Interrupt Request Issue";
    case 12: return "NVML Shared Library Not Found";
    case 13: return "Function Not Found";
    case 14: return "Corrupted infoROM";
    case 15: return "GPU is lost";
    case 16: return "GPU requires restart";
    case 17: return "The operating system has blocked the request.";
    case 18: return "Driver/library version mismatch";
    case 19: return "In use by another client";
    case 20: return "Insufficient Memory";
    case 23: return "Insufficient Resources";
    default: return "Unknown Error";
    }
}
API E nvmlDeviceGetCount_v2(unsigned *n) {
    ASKED;
    *n = physical();
    return OK;
}
API E nvmlDeviceGetCount(unsigned *n) { return nvmlDeviceGetCount_v2(n); }
API E nvmlDeviceGetHandleByIndex(unsigned index, u64 *out) {
    ASKED;
    if ((int)index >= physical()) return NVML_BAD_ARGUMENT;
    *out = index + 1;
    return OK;
}
API E nvmlDeviceGetHandleByPciBusId(const char *id, u64 *out) {
    ASKED;
    for (int i = 0; i < physical(); i++) {
        char own[32];
        bus_id(i, own, sizeof own);
        if (strcasecmp(own, id)) continue;
        *out = i + 1;
        return OK;
    }
    return NVML_NOT_FOUND;
}
API E nvmlDeviceGetIndex(u64 device, unsigned *out) {
    ASKED;
    *out = device - 1;
    return OK;
}
API E nvmlDeviceGetName(u64 device, char *out, unsigned size) {
    ASKED;
    snprintf(out, size, "%s", gpu_name());
    return OK;
}
API E nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ASKED;
    snprintf(out, size, "575.57.08");
    return OK;
}
API E nvmlDeviceGetCudaComputeCapability(u64 device, int *major, int *minor) {
    ASKED;
    *major = compute_capability() / 10;
    *minor = compute_capability() % 10;
    return OK;
}
API E nvmlDeviceGetP2PStatus(u64 a, u64 b, int which, int *out) {
    ASKED;
    *out = number("FAKECUDA_P2P", 0) ? 0 : 1;
    return OK;
}
API E nvmlDeviceGetMemoryErrorCounter(u64 device, int type, int counter, int location, u64 *out) {
    ASKED;
    *out = type == 1 ? number("FAKECUDA_ECC", 0) : 0; /* 1: uncorrected */
    return OK;
}

/* -- NVLink: every link ends at one NVSwitch ----------------------------------------------------------------------- */
struct pci_first { /* nvmlPciInfo_t in its first version: 52 bytes of it are written */
    char legacy[16];
    unsigned domain, bus, device, pci_id, subsystem;
    char id[32];
};
API E nvmlDeviceGetNvLinkState(u64 device, unsigned link, int *out) {
    ASKED;
    if (link >= links()) return NVML_NOT_SUPPORTED;
    *out = 1;
    return OK;
}
API E nvmlDeviceGetNvLinkCapability(u64 device, unsigned link, int which, unsigned *out) {
    ASKED;
    *out = link < links();
    return *out ? OK : NVML_NOT_SUPPORTED;
}
API E nvmlDeviceGetNvLinkRemotePciInfo(u64 device, unsigned link, struct pci_first *out) {
    ASKED;
    if (link >= links()) return NVML_NOT_SUPPORTED;
    memset(out, 0, 52);
    snprintf(out->legacy, sizeof out->legacy, "ffff:ff:ff.f");
    snprintf(out->id, 16, "ffff:ff:ff.f");
    return OK;
}
API E nvmlDeviceGetNvLinkRemoteDeviceType(u64 device, unsigned link, int *out) {
    ASKED;
    if (link >= links()) return NVML_NOT_SUPPORTED;
    *out = 2; /* a switch */
    return OK;
}
struct field { /* nvmlFieldValue_t */
    unsigned id, scope;
    long long at, took;
    int type, result;
    union {
        unsigned u;
        u64 ull;
    } value;
};
API E nvmlDeviceGetFieldValues(u64 device, int n, struct field *fields) {
    ASKED;
    for (int i = 0; i < n; i++) {
        fields[i].result = OK;
        fields[i].type = 1;
        fields[i].value.ull = 0;
        if (fields[i].id == LINK_STATE)
            fields[i].value.u = fields[i].scope < links();
        else if (fields[i].id != C2C_LINKS)
            fields[i].result = NVML_NOT_SUPPORTED;
    }
    return OK;
}

/* -- PCI ----------------------------------------------------------------------------------------------------------------- */
/* domain, bus, device, device id, subsystem id */
static void pci(u64 device, unsigned *numbers, char *id) {
    char own[32];
    bus_id(device - 1, own, sizeof own);
    memset(numbers, 0, 3 * sizeof *numbers);
    sscanf(own, "%x:%x:%x", numbers, numbers + 1, numbers + 2);
    numbers[3] = 0x233010de; /* H100 SXM */
    numbers[4] = 0x16c110de;
    snprintf(id, 32, "%08X:%02X:%02X.0", numbers[0], numbers[1], numbers[2]);
}
API E nvmlDeviceGetPciInfo_v3(u64 device, struct pci_first *out) {
    ASKED;
    memset(out, 0, sizeof *out);
    pci(device, &out->domain, out->id);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    return OK;
}
API E nvmlDeviceGetPciInfoExt(u64 device, unsigned *out) { /* version, the five numbers with two classes, the id */
    ASKED;
    pci(device, out + 1, (char *)(out + 8));
    out[6] = 3;
    out[7] = 2;
    return OK;
}
API E nvmlDeviceGetPcieLinkMaxSpeed(u64 device, unsigned *out) {
    ASKED;
    *out = 32000;
    return OK;
}
API E nvmlDeviceGetCurrPcieLinkGeneration(u64 device, unsigned *out) {
    ASKED;
    *out = number("FAKECUDA_PCIE_GEN", 5);
    return OK;
}
API E nvmlDeviceGetCurrPcieLinkWidth(u64 device, unsigned *out) {
    ASKED;
    *out = number("FAKECUDA_PCIE_WIDTH", 16);
    return OK;
}

API E nvmlDeviceGetGpuFabricInfoV(u64 device, void *out) {
    ASKED;
    return NVML_NOT_SUPPORTED;
}
API E nvmlDeviceGetPlatformInfo(u64 device, void *out) {
    ASKED;
    return NVML_NOT_SUPPORTED;
}
API E nvmlSystemGetConfComputeState(unsigned *out) {
    ASKED;
    memset(out, 0, 3 * sizeof *out);
    return OK;
}
API E nvmlSystemGetConfComputeSettings(unsigned *out) {
    ASKED;
    memset(out + 1, 0, 4 * sizeof *out);
    return OK;
}
