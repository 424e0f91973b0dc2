/* A libcuda.so.1 beside the fake NVML, told by the same file: `cuda_error`, `cuda_devices`, `cuda_version`. */
#include "told.h"

int cuInit(unsigned flags) {
    (void)flags;
    entered(__func__, -1);
    return (int)told_number(-1, "cuda_error", "0");
}

int cuDeviceGetCount(int *count) {
    char text[16];
    told(-1, "gpus", "8", text, sizeof text);
    *count = (int)told_number(-1, "cuda_devices", text);
    return *count ? 0 : 100;
}

/* The last byte is the number, as in the fake NVML's nvmlDeviceGetHandleByUUID. */
int cuDeviceGetUuid(unsigned char *out, int device) {
    memset(out, 0, 16);
    out[15] = (unsigned char)device;
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = (size_t)told_number(device, "total_mib", "81559") << 20;
    return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    entered(__func__, device);
    *flags = 0;
    *active = (int)told_number(device, "context", "0");
    return 0;
}

int cuDriverGetVersion(int *version) {
    *version = (int)told_number(-1, "cuda_version", "12080");
    return 0;
}

int cuGetErrorName(int code, const char **name) {
    *name = code == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : "CUDA_ERROR_NO_DEVICE";
    return 0;
}
