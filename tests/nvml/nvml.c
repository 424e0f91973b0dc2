/* A libnvidia-ml.so.1 that says what a file tells it (told.h); without a line, a sound H100 of an NVSwitch node. */
#include <stdint.h>

#include "told.h"

typedef void *device;
typedef unsigned long long u64;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };
#define MIG 1000 /* handle of a MIG instance: MIG * (instance + 1) + GPU + 1 */

static int number_of(device d) { return (int)(((intptr_t)d) % MIG) - 1; }

/* A value as text, or the code that stands there instead of it. */
static int text_of(device d, const char *key, const char *otherwise, char *out, size_t size) {
    char lost[16];
    int gpu = number_of(d);
    told(gpu, "lost", "0", lost, sizeof lost);
    if (atoi(lost)) return atoi(lost) == 1 ? LOST : atoi(lost);
    told(gpu, key, otherwise, out, size);
    return out[0] == '!' ? atoi(out + 1) : OK;
}

static int number(device d, const char *key, const char *otherwise, u64 *out) {
    char text[4096];
    int code = text_of(d, key, otherwise, text, sizeof text);
    if (code == OK) *out = strtoull(text, NULL, 0);
    return code;
}

static int unsigned_of(device d, const char *key, const char *otherwise, unsigned *out) {
    u64 value = 0;
    int code = number(d, key, otherwise, &value);
    if (code == OK) *out = (unsigned)value;
    return code;
}

#define ENTER entered(__func__, number_of(d))
#define UNSIGNED(call, key, otherwise) \
    int call(device d, unsigned *out) { ENTER; return unsigned_of(d, key, otherwise, out); }
#define TEXT(call, key, otherwise) \
    int call(device d, char *out, unsigned size) { ENTER; return text_of(d, key, otherwise, out, size); }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    entered(__func__, -1);
    return (int)told_number(-1, "init", "0");
}

int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
    default: return "an error of the fake";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    told(-1, "driver", "570.124.06", out, size);
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)told_number(-1, "gpus", "8");
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) {
    char text[32];
    device d = (device)(intptr_t)(index + 1);
    ENTER;
    told((int)index, "handle", "0", text, sizeof text);
    *out = d;
    return atoi(text);
}

/* GPU-00000000-0000-0000-0000-0000000000NN, as the fake libcuda has them. */
int nvmlDeviceGetHandleByUUID(const char *uuid, device *out) {
    int index = strlen(uuid) == 40 ? (int)strtol(uuid + 38, NULL, 16) : -1;
    *out = (device)(intptr_t)(index + 1);
    return index < 0 ? NOT_FOUND : OK;
}

TEXT(nvmlDeviceGetName, "model", "NVIDIA H100 80GB HBM3")
TEXT(nvmlDeviceGetVbiosVersion, "vbios", "96.00.A5.00.01")

int nvmlDeviceGetUUID(device d, char *out, unsigned size) {
    char text[64];
    intptr_t instance = ((intptr_t)d) / MIG;
    ENTER;
    snprintf(text, sizeof text, instance ? "MIG-%08d-0000-%04d" : "GPU-%08d-0000-%04d", number_of(d), (int)instance);
    return text_of(d, instance ? "mig_uuid" : "uuid", text, out, size);
}

struct pci { char legacy[16]; unsigned domain, bus, device_, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(device d, struct pci *out) {
    char text[32];
    ENTER;
    memset(out, 0, sizeof *out);
    snprintf(text, sizeof text, "00000000:%02X:00.0", 0x10 + 8 * number_of(d) % 0xe8);
    return text_of(d, "pci", text, out->bus_id, sizeof out->bus_id);
}

struct memory { unsigned version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(device d, struct memory *out) {
    ENTER;
    int code = number(d, "memory_total", "85520809984", &out->total);
    return code ? code : number(d, "memory_used", "0", &out->used);
}

struct window { u64 total, free, used; };
int nvmlDeviceGetBAR1MemoryInfo(device d, struct window *out) {
    ENTER;
    return number(d, "bar1", "137438953472", &out->total);
}

struct process { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *count, struct process *out) {
    char text[4096], *rest = text, *part;
    unsigned found = 0, size = *count;
    ENTER;
    int code = text_of(d, "processes", "", text, sizeof text);
    if (code) return code;
    while ((part = strsep(&rest, ", ")) != NULL) {
        char *colon = strchr(part, ':');
        if (!colon) continue;
        if (found < size && out) {
            memset(&out[found], 0, sizeof *out);
            out[found].pid = (unsigned)strtoul(part, NULL, 0);
            out[found].memory = colon[1] == 'n' ? ~0ull : strtoull(colon + 1, NULL, 0);
        }
        found++;
    }
    *count = found;
    return found > size || (found && !out) ? TOO_SMALL : OK;
}

UNSIGNED(nvmlDeviceGetComputeMode, "compute_mode", "0")
UNSIGNED(nvmlDeviceGetPersistenceMode, "persistence", "1")
UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, "mig_instances", "7")

int nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *pending) {
    ENTER;
    int code = unsigned_of(d, "mig", "0", now);
    *pending = *now;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned index, device *out) {
    ENTER;
    if (index >= told_number(number_of(d), "mig_instances", "7")) return NOT_FOUND;
    *out = (device)((intptr_t)d + (intptr_t)MIG * (index + 1));
    return OK;
}

int nvmlDeviceGetEccMode(device d, unsigned *now, unsigned *pending) {
    ENTER;
    int code = unsigned_of(d, "ecc", "1", now);
    return code ? code : unsigned_of(d, "ecc_pending", *now ? "1" : "0", pending);
}

int nvmlDeviceGetTotalEccErrors(device d, int kind, int since, u64 *out) {
    static const char *const keys[2][2] = {
        {"ecc_corrected", "ecc_corrected_ever"}, {"ecc_uncorrected", "ecc_uncorrected_ever"}};
    ENTER;
    return number(d, keys[kind == 1][since == 1], "0", out);
}

struct sram { unsigned version; u64 counts[11]; unsigned exceeded; };
int nvmlDeviceGetSramEccErrorStatus(device d, struct sram *out) {
    ENTER;
    return unsigned_of(d, "sram_exceeded", "0", &out->exceeded);
}

int nvmlDeviceGetRemappedRows(device d, unsigned *right, unsigned *wrong, unsigned *pending, unsigned *failed) {
    ENTER;
    int code = unsigned_of(d, "remapped_correctable", "0", right);
    if (!code) code = unsigned_of(d, "remapped_uncorrectable", "0", wrong);
    if (!code) code = unsigned_of(d, "remap_pending", "0", pending);
    return code ? code : unsigned_of(d, "remap_failed", "0", failed);
}

struct histogram { unsigned all, many, some, few, none; };
int nvmlDeviceGetRowRemapperHistogram(device d, struct histogram *out) {
    ENTER;
    int code = unsigned_of(d, "spare_all", "640", &out->all);
    if (!code) code = unsigned_of(d, "spare_many", "0", &out->many);
    if (!code) code = unsigned_of(d, "spare_some", "0", &out->some);
    if (!code) code = unsigned_of(d, "spare_few", "0", &out->few);
    return code ? code : unsigned_of(d, "spare_none", "0", &out->none);
}

int nvmlDeviceValidateInforom(device d) {
    unsigned unused;
    ENTER;
    return unsigned_of(d, "inforom", "0", &unused);
}

int nvmlDeviceGetRetiredPages(device d, int cause, unsigned *count, u64 *out) {
    unsigned size = *count;
    ENTER;
    int code = unsigned_of(d, cause ? "retired_double" : "retired_single", "!3", count);
    if (code) return code;
    if (*count > size) return TOO_SMALL;
    memset(out, 0, size * sizeof *out);
    return OK;
}
UNSIGNED(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending", "!3")

struct rates { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(device d, struct rates *out) {
    ENTER;
    out->memory = 0;
    return unsigned_of(d, "utilization", "0", &out->gpu);
}

int nvmlDeviceGetClockInfo(device d, unsigned type, unsigned *out) {
    ENTER;
    return type == 2 ? unsigned_of(d, "clock_memory", "2619", out) : unsigned_of(d, "clock", "345", out);
}
int nvmlDeviceGetMaxClockInfo(device d, unsigned type, unsigned *out) {
    ENTER;
    return type == 2 ? unsigned_of(d, "clock_memory_max", "2619", out) : unsigned_of(d, "clock_max", "1980", out);
}
int nvmlDeviceGetCurrentClocksEventReasons(device d, u64 *out) {
    ENTER;
    return number(d, "throttle", "1", out);
}
UNSIGNED(nvmlDeviceGetPowerUsage, "power_draw", "69850")
UNSIGNED(nvmlDeviceGetPowerManagementLimit, "power_cap", "700000")
UNSIGNED(nvmlDeviceGetPowerManagementDefaultLimit, "power_default", "700000")

int nvmlDeviceGetTemperature(device d, unsigned sensor, unsigned *out) {
    (void)sensor;
    ENTER;
    return unsigned_of(d, "temperature", "41", out);
}
int nvmlDeviceGetTemperatureThreshold(device d, unsigned threshold, unsigned *out) {
    (void)threshold;
    ENTER;
    return unsigned_of(d, "slowdown_at", "!3", out);
}
struct margin { unsigned version; int degrees; };
int nvmlDeviceGetMarginTemperature(device d, struct margin *out) {
    ENTER;
    return unsigned_of(d, "margin", "46", (unsigned *)&out->degrees);
}

UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen", "5")
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max", "5")
UNSIGNED(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_gen_device", "5")
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", "16")
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", "16")
UNSIGNED(nvmlDeviceGetPcieReplayCounter, "pcie_replays", "0")

int nvmlDeviceGetNvLinkState(device d, unsigned link, unsigned *out) {
    char down[256], text[16];
    ENTER;
    if (link >= told_number(number_of(d), "nvlinks", "18")) return INVALID;
    int code = text_of(d, "nvlinks_down", "", down, sizeof down - 2);
    if (code) return code;
    memmove(down + 1, down, strlen(down) + 1);
    down[0] = ',';
    strcat(down, ",");
    snprintf(text, sizeof text, ",%u,", link);
    *out = strstr(down, text) == NULL && strcmp(down, ",all,");
    return OK;
}

int nvmlDeviceGetNvLinkErrorCounter(device d, unsigned link, unsigned counter, u64 *out) {
    static const char *const keys[] = {"nvlink_replays", "nvlink_recoveries", "nvlink_crc"};
    ENTER;
    *out = 0;
    return link || counter > 2 ? OK : number(d, keys[counter], "0", out);
}

struct field { uint32_t field, scope; int64_t time, latency; uint32_t type, code; union { double d; u64 u; } value; };
int nvmlDeviceGetFieldValues(device d, int count, struct field *out) {
    ENTER;
    for (int i = 0; i < count; i++) {
        const char *key = out[i].field == 230 ? "recovery" : "nvlink_mbps";
        out[i].value.u = 0;
        out[i].code = (uint32_t)number(d, key, out[i].field == 230 ? "0" : "26562", &out[i].value.u);
    }
    return OK;
}

struct fabric {
    unsigned version;
    uint8_t cluster[16];
    unsigned status;
    uint32_t clique;
    unsigned state;
    uint32_t mask;
    uint8_t health;
};
int nvmlDeviceGetGpuFabricInfoV(device d, struct fabric *out) {
    unsigned health = 0;
    ENTER;
    int code = unsigned_of(d, "fabric", "3", &out->state);
    if (!code) code = unsigned_of(d, "fabric_status", "0", &out->status);
    if (!code) code = unsigned_of(d, "fabric_health", "1", &health);
    out->health = (uint8_t)health;
    return code;
}

int nvmlDeviceGetTopologyCommonAncestor(device d, device other, unsigned *out) {
    (void)other;
    ENTER;
    return unsigned_of(d, "path", "40", out);
}
int nvmlDeviceGetP2PStatus(device d, device other, unsigned kind, unsigned *out) {
    (void)other, (void)kind;
    ENTER;
    return unsigned_of(d, "p2p", "0", out);
}

/* Events: `0 xid = 79` is one Xid of GPU 0, given once to each set. */
struct event { device d; u64 kind, data; unsigned gpu_instance, compute_instance; };
static int given[64];
int nvmlEventSetCreate(void **out) { *out = (void *)1; memset(given, 0, sizeof given); return OK; }
int nvmlDeviceRegisterEvents(device d, u64 kinds, void *set) { (void)d; (void)kinds; (void)set; return OK; }
int nvmlEventSetWait_v2(void *set, struct event *out, unsigned milliseconds) {
    (void)set; (void)milliseconds;
    for (int gpu = 0; gpu < 64; gpu++) {
        long long xid = told_number(gpu, "xid", "0");
        if (!xid || given[gpu]) continue;
        given[gpu] = 1;
        out->d = (device)(intptr_t)(gpu + 1);
        out->kind = 8;
        out->data = (u64)xid;
        return OK;
    }
    return 10; /* timed out */
}
