/* Memory: allocation, CUDA IPC, virtual memory management. All of it is memfds of the host. */
#include "fake.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, GRANULE = 2 << 20, DEVICE = 0, PINNED = 1, OF_DEVICE = 1, IPC_MAGIC = 0xfa4e };

/* What cuMemCreate made: a file that is mapped wherever it is wanted. */
struct handle {
    int fd, references, device, location;
    size_t size;
};
struct block {
    char *start;
    size_t size;
    int device, fd, kind;
    struct handle *handle;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static int count, capacity;

size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

/* The block that holds an address; the lock is held. */
static struct block *find(const void *p) {
    for (int i = 0; i < count; i++)
        if ((char *)p >= blocks[i].start && (char *)p < blocks[i].start + blocks[i].size) return &blocks[i];
    return 0;
}

/* A copy of the block that holds an address; 0: none does. */
static int found(const void *p, struct block *out) {
    pthread_mutex_lock(&lock);
    struct block *block = find(p);
    if (block) *out = *block;
    pthread_mutex_unlock(&lock);
    return block != 0;
}

int known(const void *p) {
    struct block block;
    return found(p, &block);
}

static void note(struct block block) {
    pthread_mutex_lock(&lock);
    if (count == capacity) blocks = realloc(blocks, (capacity = capacity ? capacity * 2 : 256) * sizeof *blocks);
    blocks[count++] = block;
    pthread_mutex_unlock(&lock);
}

static int forget(void *p, struct block *out) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < count && blocks[i].start != (char *)p) i++;
    int there = i < count;
    if (there) {
        *out = blocks[i];
        blocks[i] = blocks[--count];
    }
    pthread_mutex_unlock(&lock);
    return there;
}

size_t held(int device) {
    size_t sum = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++)
        if (blocks[i].device == device && blocks[i].kind == DEVICE) sum += blocks[i].size;
    pthread_mutex_unlock(&lock);
    return sum;
}

static size_t total(void) { return (u64)number("FAKECUDA_MEM_GB", 80) << 30; }

static int new_file(size_t size) {
    int fd = syscall(SYS_memfd_create, "fakecuda", 1 /* MFD_CLOEXEC */);
    if (fd >= 0 && ftruncate(fd, size)) {
        close(fd);
        return -1;
    }
    return fd;
}

static E allocate(void **out, size_t size, int kind) {
    size_t n = round_up(size ? size : 1, kind == PINNED ? PAGE : GRANULE);
    if (kind == DEVICE && held(current) + n > total()) return failed(OUT_OF_MEMORY);
    int fd = new_file(n);
    if (fd < 0) return failed(OUT_OF_MEMORY);
    char *start = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (start == MAP_FAILED) {
        close(fd);
        return failed(OUT_OF_MEMORY);
    }
    note((struct block){start, n, current, fd, kind, 0});
    *out = start;
    return OK;
}

static E release(void *p) {
    struct block block;
    if (!p) return OK;
    if (!forget(p, &block)) return failed(INVALID);
    munmap(block.start, block.size);
    if (block.fd >= 0) close(block.fd);
    return OK;
}

API E cudaMalloc(void **out, size_t n) {
    IN;
    return allocate(out, n, DEVICE);
}
API E cudaMallocAsync(void **out, size_t n, void *stream) {
    IN;
    return allocate(out, n, DEVICE);
}
API E cudaMallocFromPoolAsync(void **out, size_t n, void *pool, void *stream) {
    IN;
    return allocate(out, n, DEVICE);
}
API E cudaFree(void *p) {
    IN;
    return release(p);
}
API E cudaFreeAsync(void *p, void *stream) {
    IN;
    return release(p);
}
API E cudaHostAlloc(void **out, size_t n, unsigned flags) {
    IN;
    return allocate(out, n, PINNED);
}
API E cudaMallocHost(void **out, size_t n) {
    IN;
    return allocate(out, n, PINNED);
}
API E cudaFreeHost(void *p) {
    IN;
    return release(p);
}
API E cudaHostRegister(void *p, size_t n, unsigned flags) {
    IN;
    note((struct block){p, n, current, -1, PINNED, 0});
    return OK;
}
API E cudaHostUnregister(void *p) {
    struct block block;
    IN;
    return forget(p, &block) ? OK : failed(INVALID);
}
API E cudaHostGetDevicePointer(void **out, void *p, unsigned flags) {
    IN;
    *out = p;
    return OK;
}
API E cudaMemPoolCreate(void **out, const void *properties) {
    IN;
    *out = calloc(1, 64);
    return OK;
}
API E cudaMemPoolDestroy(void *pool) {
    IN;
    free(pool);
    return OK;
}
API E cudaMemPoolSetAttribute(void *pool, int which, void *value) {
    IN;
    return OK;
}
API E cudaMemGetInfo(size_t *free_bytes, size_t *all) {
    IN;
    *all = total();
    *free_bytes = total() - held(current);
    return OK;
}

/* cudaPointerAttributes */
struct pointer {
    int type, device;
    void *device_pointer, *host_pointer;
};
API E cudaPointerGetAttributes(struct pointer *out, const void *p) {
    IN;
    struct block block;
    if (found(p, &block))
        *out = (struct pointer){block.kind == PINNED ? 1 : 2, block.device, (void *)p, block.kind == PINNED ? (void *)p : 0};
    else
        *out = (struct pointer){0, -2, 0, (void *)p};
    return OK;
}
API E cuPointerGetAttribute(void *out, int which, u64 p) {
    IN;
    struct block block;
    if (!found((void *)p, &block)) return failed(INVALID);
    switch (which) {
    case 2: *(int *)out = block.kind == PINNED ? 1 : 2; break; /* memory type */
    case 9: *(int *)out = block.device; break;                 /* device ordinal */
    case 10: *(int *)out = !block.handle; break;               /* is of the older CUDA IPC */
    case 14: *(u64 *)out = block.handle ? 1 : 0; break;        /* allowed handle types */
    default: *(int *)out = 0;
    }
    return OK;
}
API E cuPointerSetAttribute(const void *value, int which, u64 p) {
    IN;
    return OK;
}
API E cuMemGetAddressRange(u64 *base, size_t *size, u64 p) {
    IN;
    struct block block;
    if (!found((void *)p, &block)) return failed(INVALID);
    if (base) *base = (u64)block.start;
    if (size) *size = block.size;
    return OK;
}

/* -- CUDA IPC: a file descriptor of the process that owns the memory ------------------------------------------------- */
struct ipc {
    int magic, pid, fd;
    u64 size, offset;
};
struct ipc_handle {
    char bytes[64];
};
API E cudaIpcGetMemHandle(struct ipc_handle *out, void *p) {
    IN;
    struct block block;
    if (!found(p, &block) || block.fd < 0) return failed(INVALID);
    struct ipc ipc = {IPC_MAGIC, getpid(), block.fd, block.size, (char *)p - block.start};
    memset(out, 0, sizeof *out);
    memcpy(out, &ipc, sizeof ipc);
    return OK;
}
API E cudaIpcOpenMemHandle(void **out, struct ipc_handle handle, unsigned flags) {
    IN;
    struct ipc ipc;
    char path[64];
    memcpy(&ipc, &handle, sizeof ipc);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ipc.pid, ipc.fd);
    int fd = ipc.magic == IPC_MAGIC ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return failed(INVALID);
    char *start = mmap(0, ipc.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (start == MAP_FAILED) {
        close(fd);
        return failed(OUT_OF_MEMORY);
    }
    note((struct block){start, ipc.size, current, fd, DEVICE, 0});
    *out = start + ipc.offset;
    return OK;
}
API E cudaIpcCloseMemHandle(void *p) {
    IN;
    return release(p);
}

/* -- virtual memory management ----------------------------------------------------------------------------------------- */
struct properties { /* CUmemAllocationProp */
    int type, handle_types, location, device;
};
static struct handle *new_handle(int fd, int device, int location, size_t size) {
    struct handle *handle = malloc(sizeof *handle);
    *handle = (struct handle){fd, 1, device, location, size};
    return handle;
}
static void drop(struct handle *handle) {
    if (__sync_sub_and_fetch(&handle->references, 1)) return;
    close(handle->fd);
    free(handle);
}
static void *hidden(void *at, size_t n) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0);
    return mmap(at, n, PROT_NONE, flags, -1, 0);
}
API E cuMemGetAllocationGranularity(size_t *out, const void *properties, int option) {
    IN;
    *out = GRANULE;
    return OK;
}
API E cuMemCreate(struct handle **out, size_t n, const struct properties *properties, u64 flags) {
    IN;
    int fd = new_file(n);
    if (fd < 0) return failed(OUT_OF_MEMORY);
    *out = new_handle(fd, properties->device, properties->location, n);
    return OK;
}
API E cuMemRelease(struct handle *handle) {
    IN;
    drop(handle);
    return OK;
}
API E cuMemAddressReserve(void **out, size_t n, size_t align, u64 address, u64 flags) {
    IN;
    size_t step = align > GRANULE ? align : GRANULE;
    char *all = hidden(0, n + step);
    if (all == MAP_FAILED) return failed(OUT_OF_MEMORY);
    char *start = (char *)round_up((size_t)all, step), *end = all + n + step;
    if (start > all) munmap(all, start - all);
    if (end > start + n) munmap(start + n, end - (start + n));
    *out = start;
    return OK;
}
API E cuMemAddressFree(void *p, size_t n) {
    IN;
    munmap(p, n);
    return OK;
}
API E cuMemMap(void *p, size_t n, size_t offset, struct handle *handle, u64 flags) {
    IN;
    if (mmap(p, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, handle->fd, offset) == MAP_FAILED)
        return failed(OUT_OF_MEMORY);
    __sync_add_and_fetch(&handle->references, 1);
    int of_device = handle->location == OF_DEVICE;
    note((struct block){p, n, of_device ? handle->device : current, -1, of_device ? DEVICE : PINNED, handle});
    return OK;
}
API E cuMemUnmap(void *p, size_t n) {
    IN;
    struct block block;
    if (!forget(p, &block)) return failed(INVALID);
    hidden(p, n);
    if (block.handle) drop(block.handle);
    return OK;
}
API E cuMemSetAccess(void *p, size_t n, const void *who, size_t count_of_them) {
    IN;
    return OK;
}
API E cuMemRetainAllocationHandle(struct handle **out, void *p) {
    IN;
    struct block block;
    if (!found(p, &block) || !block.handle) return failed(INVALID);
    __sync_add_and_fetch(&block.handle->references, 1);
    *out = block.handle;
    return OK;
}
API E cuMemGetAllocationPropertiesFromHandle(struct properties *out, struct handle *handle) {
    IN;
    memset(out, 0, 32);
    *out = (struct properties){1, 1, handle->location, handle->device};
    return OK;
}
API E cuMemExportToShareableHandle(int *out, struct handle *handle, int type, u64 flags) {
    IN;
    if (type != 1) return failed(UNSUPPORTED); /* 1: a POSIX file descriptor */
    *out = dup(handle->fd);
    return *out < 0 ? failed(INVALID) : OK;
}
API E cuMemImportFromShareableHandle(struct handle **out, void *descriptor, int type) {
    IN;
    if (type != 1) return failed(UNSUPPORTED);
    int fd = dup((int)(u64)descriptor);
    struct stat status;
    if (fd < 0 || fstat(fd, &status)) return failed(INVALID);
    *out = new_handle(fd, current, OF_DEVICE, status.st_size);
    return OK;
}
