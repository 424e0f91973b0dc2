/* A CUDA runtime, driver and NVML without a GPU, as far as NCCL's host code asks for them.
 *
 * "Device memory" is host memory in memfds, so that CUDA IPC handles and cuMem file descriptors work between processes.
 * A stream is a thread that does one piece of work after the other. Kernels are not run: ring.c does the part of a
 * collective that NCCL's kernel would do. No header of CUDA is used; what is declared here is of our own making.
 *
 *   calls.c    every call: counted, traced, made to fail; the names of errors
 *   devices.c  how many GPUs, what they are, who reaches whom
 *   memory.c   allocation, CUDA IPC, virtual memory management
 *   streams.c  streams, events, copies, kernel launches
 *   ring.c     the device side of a collective
 *   nvml.c     NVML
 *   patch.c    puts all of it in the place of the CUDA runtime that is linked into a libnccl.so.2
 *
 * Environment:
 *   FAKECUDA_DEVICES 8          FAKECUDA_CC 90              FAKECUDA_MEM_GB 80     FAKECUDA_NAME "NVIDIA H100 80GB HBM3"
 *   FAKECUDA_DRIVER 12090       FAKECUDA_RUNTIME 12090      FAKECUDA_MIN_DRIVER 12000 (an older driver: error 35)
 *   FAKECUDA_BUS                PCI bus ids, by commas; 0000:10:00.0, 0000:20:00.0, ... where it is not set
 *   FAKECUDA_P2P 0              1: GPUs reach each other    FAKECUDA_NVLINKS 0     links of each GPU to one NVSwitch
 *   FAKECUDA_GDR 0              1: GPUDirect RDMA           FAKECUDA_ECC 0         uncorrected errors that NVML counts
 *   FAKECUDA_KERNEL run         run: collectives move and reduce data; hang: kernels never end; done: they end at once
 *   FAKECUDA_FAIL               cudaMalloc@3=2,nvmlInit_v2@0=999,cudaEventQuery@5+=700: the n-th call of a function
 *                               returns that error; 0 is every call, 5+ the fifth and all that follow
 *   FAKECUDA_SAYS               a file for what we say ourselves; stderr where it is not set
 *   FAKECUDA_TRACE              1: every call is said
 */
#pragma once
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct dim3 {
    unsigned x, y, z;
};

#define API __attribute__((visibility("default")))
#define REPLACEABLE API __attribute__((weak)) /* torch.c has more of it, for torch beside NCCL */
#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

typedef int E; /* cudaError_t, CUresult or nvmlReturn_t */
typedef uint64_t u64;

enum {
    OK = 0,
    INVALID = 1,
    OUT_OF_MEMORY = 2,
    OLD_DRIVER = 35,
    NO_DEVICE = 100,
    BAD_DEVICE = 101,
    NO_PEER_ACCESS = 217,
    NOT_FOUND = 500,
    NOT_READY = 600,
    TIMED_OUT = 702,
    UNSUPPORTED = 801,
};

/* calls.c */
E enter(const char *function);
E failed(E error);
long number(const char *variable, long otherwise);
const char *text(const char *variable, const char *otherwise);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
int traced(void);
extern __thread E last_error;

/* The first line of every function of the API: it may have been told to fail. */
#define IN                                \
    do {                                  \
        E told_ = enter(__func__);        \
        if (told_) return failed(told_);  \
    } while (0)

/* devices.c */
extern __thread int current; /* the device of this thread, as CUDA_VISIBLE_DEVICES counts */
int physical(void);          /* how many GPUs the machine has */
int visible(void);           /* how many the process sees */
int physical_of(int device); /* -1: no such device */
void bus_id(int physical_device, char *out, size_t size);
int compute_capability(void);
const char *gpu_name(void);

/* memory.c */
size_t round_up(size_t n, size_t step);
int known(const void *p);
size_t held(int device); /* bytes that this process has on a device */

/* streams.c */
struct stream;
struct work {
    struct work *next;
    void (*run)(struct work *);
    struct stream *stream;
    void *a, *b, *blob; /* blob is freed with the work */
    u64 n;
    int v;
};
struct stream {
    int device, priority, running, ending;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct work *head, *last;
    volatile u64 queued, done;
    struct stream *next;
};
struct stream *stream_of(void *handle);
u64 push(struct stream *stream, struct work work);
E wait_for(struct stream *stream, u64 sequence);

/* ring.c */
E collective_kernel(void *arguments, size_t size, struct stream *stream);

/* patch.c */
API int fakecuda_attach(void);
int nccl_version(void); /* 22705 is 2.27.5; 0: none is loaded */
