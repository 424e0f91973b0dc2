/* What torch's CUDA build asks of a CUDA runtime and driver, beyond what NCCL does.
 *
 * Torch's kernels are known by name only. One of them is done here, the fill; any other is refused with "invalid device
 * function": the operators' values come from torch's CPU kernels, on the same memory (../operators.py), and a kernel that
 * comes here all the same must not leave memory as it was and be believed.
 */
#include "fake.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_FUNCTION = 98, INVALID_USAGE = 5, MOST_PENDING = 8, LEAST_NAMES = 1 << 16 };

/* -- kernels, registered by libraries as they are loaded: address -> name ---------------------------------------------- */
static struct kernel {
    const void *address;
    const char *name;
} *kernels;
static size_t known_kernels, capacity; /* a power of two */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct kernel *place_of(const void *address) {
    size_t i = ((u64)address * 0x9E3779B97F4A7C15ull >> 20) & (capacity - 1);
    while (kernels[i].address && kernels[i].address != address) i = (i + 1) & (capacity - 1);
    return &kernels[i];
}
static void make_room(void) {
    struct kernel *before = kernels;
    size_t many = capacity;
    if (known_kernels * 2 < capacity) return;
    capacity = many ? many * 2 : LEAST_NAMES;
    kernels = calloc(capacity, sizeof *kernels);
    for (size_t i = 0; i < many; i++)
        if (before[i].address) *place_of(before[i].address) = before[i];
    free(before);
}
static const char *name_of(const void *address) {
    pthread_mutex_lock(&lock);
    const char *name = capacity ? place_of(address)->name : 0;
    pthread_mutex_unlock(&lock);
    return name ? name : "without a name";
}
API void __cudaRegisterFunction(void **handle, const char *address, char *device, const char *name, int limit, void *a, void *b,
                                void *c, void *d, int *warp) {
    pthread_mutex_lock(&lock);
    make_room();
    struct kernel *kernel = place_of(address);
    known_kernels += !kernel->address;
    *kernel = (struct kernel){address, name};
    pthread_mutex_unlock(&lock);
}
API void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    return &handle;
}
API void __cudaRegisterFatBinaryEnd(void **handle) {}
API void __cudaUnregisterFatBinary(void **handle) {}
API char __cudaInitModule(void **handle) { return 1; }
API void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant,
                           int global) {}
API E __cudaGetKernel(const void **out, const void *address) {
    *out = address;
    return OK;
}

/* A launch written as f<<<grid, block>>>() leaves its shape here, and takes it up in the stub of f. */
static __thread struct {
    struct dim3 grid, block;
    size_t shared;
    void *stream;
} pending[MOST_PENDING];
static __thread int pendings;
API unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared, void *stream) {
    if (pendings == MOST_PENDING) return 1;
    pending[pendings].grid = grid;
    pending[pendings].block = block;
    pending[pendings].shared = shared;
    pending[pendings++].stream = stream;
    return 0;
}
API E __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, void **stream) {
    if (!pendings) return failed(INVALID);
    *grid = pending[--pendings].grid;
    *block = pending[pendings].block;
    *shared = pending[pendings].shared;
    *stream = pending[pendings].stream;
    return OK;
}

/* The size of the element that a FillFunctor<T> fills with, by T's mangled name; 0: not known. */
static int filled_size(const char *type) {
    if (strchr("abchy", *type)) return *type == 'y' ? 8 : 1; /* signed char, bool, char, unsigned char; unsigned long long */
    if (strchr("st", *type)) return 2;
    if (strchr("fij", *type)) return 4;
    if (strchr("dlmx", *type)) return 8;
    if (!strncmp(type, "N3c104Half", 10) || !strncmp(type, "N3c108BFloat16", 14)) return 2;
    if (!strncmp(type, "N3c107complexIdE", 16)) return 16;
    if (!strncmp(type, "N3c107complexIfE", 16)) return 8;
    return 0;
}
static void fill(struct work *work) {
    for (u64 i = 0; i < work->n; i++) memcpy((char *)work->a + i * work->v, work->blob, work->v);
}
static E torch_kernel(const void *address, void **arguments, void *stream) {
    static const char FILL[] = "FillFunctorI";
    const char *name = name_of(address), *functor = strstr(name, FILL);
    int size = functor ? filled_size(functor + strlen(FILL)) : 0;
    if (!size || !strstr(name, "elementwise_kernel") || !strstr(name, "Lm1EE")) { /* the last: one array, so no input */
        say("kernel refused: %s", name);
        return failed(INVALID_FUNCTION);
    }
    void *value = malloc(size); /* arguments: how many, the functor (which is its value), the array of pointers */
    memcpy(value, arguments[1], size);
    push(stream_of(stream), (struct work){.run = fill, .a = *(void **)arguments[2], .n = *(int *)arguments[0], .v = size, .blob = value});
    return OK;
}
API E cudaLaunchKernel(const void *f, struct dim3 grid, struct dim3 block, void **arguments, size_t shared, void *stream) {
    IN;
    return torch_kernel(f, arguments, stream);
}
API E __cudaLaunchKernel(const void *f, struct dim3 grid, struct dim3 block, void **arguments, size_t shared, void *stream) {
    return cudaLaunchKernel(f, grid, block, arguments, shared, stream);
}
API E cudaFuncGetAttributes(int *out, const void *f) {
    IN;
    memset(out, 0, 60);
    out[6] = 1024; /* maxThreadsPerBlock */
    out[7] = 32;   /* numRegs */
    out[8] = out[9] = compute_capability(); /* ptxVersion, binaryVersion */
    return OK;
}
API E cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *f, int block, size_t shared, unsigned flags) {
    IN;
    *out = 8;
    return OK;
}

/* -- the device as torch sees it --------------------------------------------------------------------------------------- */
/* cudaDeviceProp of CUDA 12, 1032 bytes; an H100's figures. */
API E cudaGetDeviceProperties_v2(char *out, int device) {
    IN;
    if (physical_of(device) < 0) return failed(BAD_DEVICE);
    static const struct {
        int at, value;
    } words[] = {
        {304, 65536},   {308, 32},     {320, 1024},      {324, 1024},     {328, 1024},  {332, 64},
        {336, 0x7fffffff}, {340, 65535}, {344, 65535},   {348, 1980000},  {388, 132},   {400, 1},
        {576, 1},       {580, 1},      {600, 3},         {604, 1},        {608, 2619000}, {612, 5120},
        {616, 50 << 20}, {624, 2048},  {648, 65536},     {652, 1},        {712, 32},
    };
    static const struct {
        int at;
        u64 value;
    } longs[] = {{296, 49152}, {312, 0x7fffffff}, {352, 65536}, {640, 233472}, {696, 232448}};
    memset(out, 0, 1032);
    snprintf(out, 256, "%s", gpu_name());
    out[256] = physical_of(device) + 1; /* uuid */
    *(u64 *)(out + 288) = (u64)number("FAKECUDA_MEM_GB", 80) << 30;
    for (int i = 0; i < LENGTH(words); i++) *(int *)(out + words[i].at) = words[i].value;
    for (int i = 0; i < LENGTH(longs); i++) *(u64 *)(out + longs[i].at) = longs[i].value;
    *(int *)(out + 360) = compute_capability() / 10;
    *(int *)(out + 364) = compute_capability() % 10;
    char own[32];
    unsigned domain = 0, bus = 0, slot = 0;
    bus_id(physical_of(device), own, sizeof own);
    sscanf(own, "%x:%x:%x", &domain, &bus, &slot);
    *(int *)(out + 584) = bus;
    *(int *)(out + 588) = slot;
    *(int *)(out + 592) = domain;
    return OK;
}
API E cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) {
    IN;
    *lowest = 0;
    *highest = -5;
    return OK;
}
API E cudaStreamGetPriority(void *stream, int *out) {
    IN;
    *out = stream_of(stream)->priority;
    return OK;
}
API E cudaDeviceGetDefaultMemPool(void **out, int device) {
    IN;
    static int pool;
    *out = &pool;
    return OK;
}
API E cudaMemPoolGetAttribute(void *pool, int which, u64 *out) {
    IN;
    *out = 0;
    return OK;
}
API E cudaMemPoolSetAccess(void *pool, void *who, size_t n) {
    IN;
    return OK;
}
API E cudaMemPoolTrimTo(void *pool, size_t n) {
    IN;
    return OK;
}
API E cudaProfilerStart(void) { return OK; }
API E cudaProfilerStop(void) { return OK; }

/* -- copies and callbacks ---------------------------------------------------------------------------------------------- */
API E cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream);
API E cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t n, void *stream) {
    return cudaMemcpyAsync(to, from, n, 4, stream);
}
static void copy_rows(struct work *work) {
    size_t *shape = work->blob; /* pitch of the target, of the source, bytes of a row, rows */
    for (size_t i = 0; i < shape[3]; i++) memmove((char *)work->a + i * shape[0], (char *)work->b + i * shape[1], shape[2]);
}
API E cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind,
                        void *handle) {
    IN;
    size_t *shape = malloc(4 * sizeof *shape);
    shape[0] = to_pitch, shape[1] = from_pitch, shape[2] = width, shape[3] = height;
    struct stream *stream = stream_of(handle);
    return wait_for(stream, push(stream, (struct work){.run = copy_rows, .a = to, .b = (void *)from, .blob = shape}));
}
static void call_back(struct work *work) { ((void (*)(void *, E, void *))work->a)(work->stream, OK, work->b); }
API E cudaStreamAddCallback(void *stream, void *function, void *argument, unsigned flags) {
    IN;
    push(stream_of(stream), (struct work){.run = call_back, .a = function, .b = argument});
    return OK;
}

/* -- what is refused: graphs, IPC of events, code of other libraries ---------------------------------------------------- */
#define REFUSED(name)               \
    API E name(void) {              \
        IN;                         \
        say("%s is refused", #name); \
        return failed(UNSUPPORTED); \
    }
REFUSED(cudaGraphAddEmptyNode)
REFUSED(cudaGraphDebugDotPrint)
REFUSED(cudaGraphDestroy)
REFUSED(cudaGraphExecDestroy)
REFUSED(cudaGraphGetNodes)
REFUSED(cudaGraphInstantiate)
REFUSED(cudaGraphInstantiateWithFlags)
REFUSED(cudaGraphLaunch)
REFUSED(cudaGraphNodeGetDependencies)
REFUSED(cudaGraphNodeGetType)
REFUSED(cudaIpcGetEventHandle)
REFUSED(cudaIpcOpenEventHandle)
REFUSED(cudaStreamBeginCapture)
REFUSED(cudaStreamEndCapture)

/* -- the driver -------------------------------------------------------------------------------------------------------- */
API E cuInit(unsigned flags) {
    IN;
    return visible() ? OK : NO_DEVICE;
}
API E cudaDriverGetVersion(int *version);
API E cuDriverGetVersion(int *version) { return cudaDriverGetVersion(version); }
API E cuDeviceGetCount(int *out) {
    IN;
    *out = visible();
    return OK;
}
API E cuDeviceGetName(char *out, int size, int device) {
    IN;
    snprintf(out, size, "%s", gpu_name());
    return OK;
}
API E cuDeviceTotalMem_v2(size_t *out, int device) {
    IN;
    *out = (u64)number("FAKECUDA_MEM_GB", 80) << 30;
    return OK;
}
API E cuDeviceGetUuid(char *out, int device);
API E cuDeviceGetUuid_v2(char *out, int device) { return cuDeviceGetUuid(out, device); }
/* A context is there once memory was asked for; nothing does anything on a device without. */
API E cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    IN;
    *flags = 0;
    *active = held(device) > 0;
    return OK;
}
API E cuDevicePrimaryCtxRetain(void **out, int device) {
    static char context;
    IN;
    *out = &context;
    return OK;
}
API E cuDevicePrimaryCtxRelease_v2(int device) { return OK; }
static void fill_words(struct work *work) {
    for (u64 i = 0; i < work->n; i++) ((uint32_t *)work->a)[i] = work->v;
}
API E cuMemsetD32Async(uint32_t *to, uint32_t value, size_t n, void *stream) {
    IN;
    push(stream_of(stream), (struct work){.run = fill_words, .a = to, .n = n, .v = value});
    return OK;
}

/* -- NCCL's start: its kernels are walked over rings only ---------------------------------------------------------------- */
struct unique_id {
    char bytes[128];
};
/* Set here and not by whoever starts the process: what is looked at are the settings that the user made. */
static void *nccl(const char *name) {
    static void *library;
    if (!library) {
        setenv("NCCL_ALGO", "Ring", 0);
        setenv("NCCL_PROTO", "Simple", 0);
        setenv("NCCL_P2P_LL_THRESHOLD", "0", 0);
        library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    }
    fakecuda_attach();
    return dlsym(library, name);
}
#define REAL(name) ((typeof(&name))nccl(#name))
API E ncclGetUniqueId(struct unique_id *out) { return REAL(ncclGetUniqueId)(out); }
API E ncclCommInitRank(void **out, int ranks, struct unique_id id, int rank) { return REAL(ncclCommInitRank)(out, ranks, id, rank); }
API E ncclCommInitRankConfig(void **out, int ranks, struct unique_id id, int rank, void *config) {
    return REAL(ncclCommInitRankConfig)(out, ranks, id, rank, config);
}
API E ncclCommInitRankScalable(void **out, int ranks, int rank, int ids, struct unique_id *id, void *config) {
    return REAL(ncclCommInitRankScalable)(out, ranks, rank, ids, id, config);
}
API E ncclRedOpCreatePreMulSum(int *out, void *factor, int type, int residence, void *comm) {
    say("ncclRedOpCreatePreMulSum is refused");
    return INVALID_USAGE;
}
