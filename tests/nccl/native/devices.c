/* How many GPUs, what they are, who reaches whom. */
#include "fake.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST = 64 };
__thread int current;

int physical(void) { return number("FAKECUDA_DEVICES", 8); }
int compute_capability(void) { return number("FAKECUDA_CC", 90); }
const char *gpu_name(void) { return text("FAKECUDA_NAME", "NVIDIA H100 80GB HBM3"); }

/* CUDA_VISIBLE_DEVICES, indexes only; how many there are. */
static int seen(int *map) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int n = 0, all = physical();
    if (!list) {
        for (; n < all && n < MOST; n++) map[n] = n;
        return n;
    }
    while (*list && n < MOST) {
        char *end;
        long device = strtol(list, &end, 10);
        if (end == list || device < 0 || device >= all) break;
        map[n++] = device;
        if (*end != ',') break;
        list = end + 1;
    }
    return n;
}

int visible(void) {
    int map[MOST];
    return seen(map);
}

int physical_of(int device) {
    int map[MOST], n = seen(map);
    return device >= 0 && device < n ? map[device] : -1;
}

void bus_id(int device, char *out, size_t size) {
    const char *list = getenv("FAKECUDA_BUS");
    for (int i = 0; list && i < device; i++) {
        list = strchr(list, ',');
        if (list) list++;
    }
    if (list && *list)
        snprintf(out, size, "%.*s", (int)strcspn(list, ","), list);
    else
        snprintf(out, size, "0000:%02x:00.0", (device + 1) * 16 & 0xff);
}

static int too_old(void) { return number("FAKECUDA_DRIVER", 12090) < number("FAKECUDA_MIN_DRIVER", 12000); }
static int peers(void) { return number("FAKECUDA_P2P", 0); }

API E cudaDriverGetVersion(int *version) {
    IN;
    *version = number("FAKECUDA_DRIVER", 12090);
    return OK;
}
API E cudaRuntimeGetVersion(int *version) {
    IN;
    *version = number("FAKECUDA_RUNTIME", 12090);
    return OK;
}
API E cudaGetDeviceCount(int *n) {
    IN;
    if (too_old()) return failed(OLD_DRIVER);
    *n = visible();
    return *n ? OK : failed(NO_DEVICE);
}
API E cudaGetDevice(int *device) {
    IN;
    if (too_old()) return failed(OLD_DRIVER);
    if (!visible()) return failed(NO_DEVICE);
    *device = current;
    return OK;
}
API E cudaSetDevice(int device) {
    IN;
    if (device < 0 || device >= visible()) return failed(BAD_DEVICE);
    current = device;
    return OK;
}
API E cudaDeviceSetLimit(int limit, size_t value) {
    IN;
    return OK;
}
API E cudaDeviceGetPCIBusId(char *out, int size, int device) {
    IN;
    if (physical_of(device) < 0) return failed(BAD_DEVICE);
    bus_id(physical_of(device), out, size);
    for (; *out; out++)
        if (*out >= 'a') *out -= 'a' - 'A';
    return OK;
}
API E cudaDeviceCanAccessPeer(int *can, int a, int b) {
    IN;
    *can = a != b && peers();
    return OK;
}
API E cudaDeviceEnablePeerAccess(int device, unsigned flags) {
    IN;
    return peers() ? OK : failed(NO_PEER_ACCESS);
}

/* cudaDeviceAttr and CUdevice_attribute share their numbers. */
static int attribute(int which) {
    switch (which) {
    case 16: return 132;                          /* MultiProcessorCount */
    case 75: return compute_capability() / 10;    /* ComputeCapabilityMajor */
    case 76: return compute_capability() % 10;    /* ComputeCapabilityMinor */
    case 97: return 232448;                       /* MaxSharedMemoryPerBlockOptin */
    case 102: return number("FAKECUDA_VMM", 1);   /* virtual memory management */
    case 110:                                     /* GPUDirect RDMA with virtual memory management */
    case 116:                                     /* GPUDirect RDMA */
    case 124: return number("FAKECUDA_GDR", 0);   /* DMA-BUF */
    case 115: return 1;                           /* memory pools */
    default: return 0;                            /* 128 fabric handles, 132 multicast, ...: no */
    }
}
API E cudaDeviceGetAttribute(int *value, int which, int device) {
    IN;
    if (physical_of(device) < 0) return failed(BAD_DEVICE);
    *value = attribute(which);
    return OK;
}
API E cuDeviceGetAttribute(int *value, int which, int device) {
    IN;
    *value = attribute(which);
    return OK;
}

/* The part of cudaDeviceProp, up to .minor, that is laid out alike in CUDA 12 and 13. */
REPLACEABLE E cudaGetDeviceProperties_v2(char *out, int device) {
    IN;
    if (physical_of(device) < 0) return failed(BAD_DEVICE);
    memset(out, 0, 368);
    snprintf(out, 256, "%s", gpu_name());
    out[256] = physical_of(device) + 1;                            /* uuid */
    *(u64 *)(out + 288) = (u64)number("FAKECUDA_MEM_GB", 80) << 30; /* totalGlobalMem */
    *(u64 *)(out + 296) = 49152;                                   /* sharedMemPerBlock */
    *(int *)(out + 308) = 32;                                      /* warpSize */
    *(int *)(out + 320) = 1024;                                    /* maxThreadsPerBlock */
    *(int *)(out + 360) = compute_capability() / 10;
    *(int *)(out + 364) = compute_capability() % 10;
    return OK;
}
API E cudaGetDeviceProperties(char *out, int device) { return cudaGetDeviceProperties_v2(out, device); }

static char context; /* there is one; only its address matters */
API E cuDeviceGet(int *out, int device) {
    IN;
    *out = device;
    return OK;
}
API E cuDeviceGetUuid(char *out, int device) {
    IN;
    memset(out, 0, 16);
    out[0] = physical_of(device) + 1;
    return OK;
}
API E cuCtxCreate(void **out) {
    IN;
    *out = &context;
    return OK;
}
API E cuCtxDestroy(void *c) {
    IN;
    return OK;
}
API E cuCtxGetCurrent(void **out) {
    IN;
    *out = &context;
    return OK;
}
API E cuCtxSetCurrent(void *c) {
    IN;
    return OK;
}
API E cuCtxGetDevice(int *device) {
    IN;
    *device = current;
    return OK;
}
