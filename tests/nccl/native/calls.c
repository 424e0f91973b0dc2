/* Every call: counted, traced, made to fail; and the names of errors. */
#include "fake.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__thread E last_error;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const char *name;
    int calls;
} counted[512];

long number(const char *variable, long otherwise) {
    const char *value = getenv(variable);
    return value && *value ? strtol(value, 0, 0) : otherwise;
}

const char *text(const char *variable, const char *otherwise) {
    const char *value = getenv(variable);
    return value && *value ? value : otherwise;
}

void say(const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = snprintf(line, sizeof line, "fakecuda %d: ", getpid());
    vsnprintf(line + length, sizeof line - length, format, arguments);
    va_end(arguments);
    const char *path = getenv("FAKECUDA_SAYS");
    FILE *file = path && *path ? fopen(path, "ae") : 0;
    fprintf(file ? file : stderr, "%s\n", line);
    if (file) fclose(file);
}

int traced(void) {
    static int on = -1;
    if (on < 0) on = number("FAKECUDA_TRACE", 0);
    return on;
}

static int count(const char *function) {
    int i = 0;
    while (i < LENGTH(counted) - 1 && counted[i].name && strcmp(counted[i].name, function)) i++;
    counted[i].name = function;
    return ++counted[i].calls;
}

/* The error that FAKECUDA_FAIL wants of this call; OK: none. */
static E wanted(const char *list, const char *function, int call) {
    E error = OK;
    for (const char *one = list; one; one = strchr(one, ',') ? strchr(one, ',') + 1 : 0) {
        char name[64], plus[2] = "";
        int at, code;
        if (sscanf(one, "%63[^@]@%d%1[+]=%d", name, &at, plus, &code) != 4 &&
            sscanf(one, "%63[^@]@%d=%d", name, &at, &code) != 3)
            continue;
        if (!strcmp(name, function) && (at == 0 || at == call || (*plus && call > at))) error = code;
    }
    return error;
}

E enter(const char *function) {
    fakecuda_attach();
    if (traced()) say("%s", function);
    const char *list = getenv("FAKECUDA_FAIL");
    if (!list || !*list) return OK;
    pthread_mutex_lock(&lock);
    int call = count(function);
    E error = wanted(list, function, call);
    pthread_mutex_unlock(&lock);
    if (error) say("%s call %d fails with %d", function, call, error);
    return error;
}

E failed(E error) {
    last_error = error;
    return error;
}

static const struct {
    E code;
    const char *name, *text;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {4, "cudaErrorCudartUnloading", "driver shutting down"},
    {34, "cudaErrorStubLibrary", "CUDA driver is a stub library"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {36, "cudaErrorCallRequiresNewerDriver", "API call is not supported in the installed CUDA driver"},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {104, "cudaErrorDeviceNotLicensed", "device doesn't have valid Grid license"},
    {201, "cudaErrorDeviceUninitialized", "invalid device context"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {216, "cudaErrorDeviceAlreadyInUse", "exclusive-thread device already in use by a different thread"},
    {217, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {220, "cudaErrorNvlinkUncorrectable", "uncorrectable NVLink error detected during the execution"},
    {222, "cudaErrorUnsupportedPtxVersion", "the provided PTX was compiled with an unsupported toolchain."},
    {304, "cudaErrorOperatingSystem", "OS call failed or operation not supported on this OS"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {401, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {709, "cudaErrorContextIsDestroyed", "context is destroyed"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {711, "cudaErrorTooManyPeers", "peer mapping resources exhausted"},
    {714, "cudaErrorHardwareStackError", "hardware stack error"},
    {715, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {717, "cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space"},
    {718, "cudaErrorInvalidPc", "invalid program counter"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {800, "cudaErrorNotPermitted", "operation not permitted"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {802, "cudaErrorSystemNotReady", "system not yet initialized"},
    {803, "cudaErrorSystemDriverMismatch", "system has unsupported display driver / cuda driver combination"},
    {804, "cudaErrorCompatNotSupportedOnDevice", "forward compatibility was attempted on non supported HW"},
    {805, "cudaErrorMpsConnectionFailed", "MPS client failed to connect to the MPS control daemon or the MPS server"},
    {806, "cudaErrorMpsRpcFailure", "the remote procedural call between the MPS server and the MPS client failed"},
    {807, "cudaErrorMpsServerNotReady", "the MPS server is not ready to accept new MPS client requests"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {999, "cudaErrorUnknown", "unknown error"},
};

static int index_of(E code) {
    for (int i = 0; i < LENGTH(errors); i++)
        if (errors[i].code == code) return i;
    return LENGTH(errors) - 1;
}

API const char *cudaGetErrorString(E code) { return errors[index_of(code)].text; }
API const char *cudaGetErrorName(E code) { return errors[index_of(code)].name; }
API E cudaPeekAtLastError(void) { return last_error; }
API E cudaGetLastError(void) {
    E error = last_error;
    last_error = OK;
    return error;
}
API E cuGetErrorString(E code, const char **out) {
    *out = errors[index_of(code)].text;
    return OK;
}
API E cuGetErrorName(E code, const char **out) {
    *out = errors[index_of(code)].name;
    return OK;
}
