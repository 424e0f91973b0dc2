/* Streams, events, copies and kernel launches: a stream is a thread that does one piece of work after the other. */
#include "fake.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct event {
    struct stream *stream;
    volatile u64 sequence;
    double at; /* milliseconds, when the record was reached */
};

static struct stream defaults[64] = {
    [0 ... 63] = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER}};
static struct stream *streams;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* 0, 1 and 2 are names of the default stream. */
struct stream *stream_of(void *handle) {
    if ((u64)handle >= 16) return handle;
    defaults[current].device = current;
    return &defaults[current];
}

static void *engine(void *argument) {
    struct stream *stream = argument;
    current = stream->device;
    for (;;) {
        pthread_mutex_lock(&stream->lock);
        while (!stream->head && !stream->ending) pthread_cond_wait(&stream->changed, &stream->lock);
        struct work *work = stream->head;
        pthread_mutex_unlock(&stream->lock);
        if (!work) return 0;
        work->run(work);
        pthread_mutex_lock(&stream->lock);
        stream->head = work->next;
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
        pthread_mutex_unlock(&stream->lock);
        free(work->blob);
        free(work);
    }
}

/* Queue a piece of work; its place in the stream. */
u64 push(struct stream *stream, struct work work) {
    struct work *one = malloc(sizeof *one);
    *one = work;
    one->next = 0;
    one->stream = stream;
    pthread_mutex_lock(&stream->lock);
    if (stream->head)
        stream->last->next = one;
    else
        stream->head = one;
    stream->last = one;
    u64 sequence = ++stream->queued;
    if (!stream->running) {
        stream->running = 1;
        pthread_create(&stream->thread, 0, engine, stream);
        pthread_detach(stream->thread);
    }
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return sequence;
}

E wait_for(struct stream *stream, u64 sequence) {
    pthread_mutex_lock(&stream->lock);
    while (stream->done < sequence) pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
    return OK;
}

static double milliseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static E new_stream(void **out, int priority) {
    struct stream *stream = calloc(1, sizeof *stream);
    stream->device = current;
    stream->priority = priority;
    pthread_mutex_init(&stream->lock, 0);
    pthread_cond_init(&stream->changed, 0);
    pthread_mutex_lock(&lock);
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&lock);
    *out = stream;
    return OK;
}
API E cudaStreamCreate(void **out) {
    IN;
    return new_stream(out, 0);
}
API E cudaStreamCreateWithFlags(void **out, unsigned flags) {
    IN;
    return new_stream(out, 0);
}
API E cudaStreamCreateWithPriority(void **out, unsigned flags, int priority) {
    IN;
    return new_stream(out, priority);
}
API E cudaStreamDestroy(struct stream *stream) { /* kept: an event may still name it */
    IN;
    if ((u64)stream < 16) return failed(INVALID);
    pthread_mutex_lock(&stream->lock);
    stream->ending = 1;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return OK;
}
API E cudaStreamQuery(void *handle) {
    IN;
    struct stream *stream = stream_of(handle);
    return stream->done < stream->queued ? NOT_READY : OK;
}
API E cudaStreamSynchronize(void *handle) {
    IN;
    return wait_for(stream_of(handle), stream_of(handle)->queued);
}
API E cudaDeviceSynchronize(void) {
    IN;
    wait_for(stream_of(0), stream_of(0)->queued);
    pthread_mutex_lock(&lock);
    struct stream *stream = streams;
    pthread_mutex_unlock(&lock);
    for (; stream; stream = stream->next)
        if (stream->device == current) wait_for(stream, stream->queued);
    return OK;
}
API E cudaStreamGetId(void *handle, u64 *out) {
    IN;
    *out = (u64)handle;
    return OK;
}

/* Nothing is ever being captured in a graph. */
API E cudaStreamIsCapturing(void *handle, int *out) {
    IN;
    *out = 0;
    return OK;
}
API E cudaStreamGetCaptureInfo(void *handle, int *status, u64 *id) {
    IN;
    *status = 0;
    if (id) *id = 0;
    return OK;
}
API E cudaStreamGetCaptureInfo_v2(void *handle, int *status, u64 *id) { return cudaStreamGetCaptureInfo(handle, status, id); }
API E cudaStreamGetCaptureInfo_v3(void *handle, int *status, u64 *id) { return cudaStreamGetCaptureInfo(handle, status, id); }
API E cudaThreadExchangeStreamCaptureMode(int *mode) {
    IN;
    return OK;
}
#define REFUSED(name)              \
    API E name(void) {             \
        IN;                        \
        return failed(UNSUPPORTED); \
    }
REFUSED(cudaStreamUpdateCaptureDependencies)
REFUSED(cudaStreamUpdateCaptureDependencies_v2)
REFUSED(cudaGraphAddDependencies)
REFUSED(cudaGraphAddDependencies_v2)
REFUSED(cudaGraphAddEventRecordNode)
REFUSED(cudaGraphRetainUserObject)
REFUSED(cudaUserObjectCreate)
REFUSED(cudaMemcpyBatchAsync)

/* -- events ------------------------------------------------------------------------------------------------------------- */
static void do_record(struct work *work) { ((struct event *)work->a)->at = milliseconds(); }
static void do_wait(struct work *work) { wait_for(work->a, work->n); }

API E cudaEventCreateWithFlags(struct event **out, unsigned flags) {
    IN;
    *out = calloc(1, sizeof **out);
    return OK;
}
API E cudaEventCreate(struct event **out) {
    IN;
    *out = calloc(1, sizeof **out);
    return OK;
}
API E cudaEventDestroy(struct event *event) { /* kept: its record may still be queued */
    IN;
    return OK;
}
API E cudaEventRecord(struct event *event, void *handle) {
    IN;
    struct stream *stream = stream_of(handle);
    if (!event) return failed(INVALID);
    event->sequence = push(stream, (struct work){.run = do_record, .a = event});
    event->stream = stream;
    return OK;
}
API E cudaEventRecordWithFlags(struct event *event, void *handle, unsigned flags) { return cudaEventRecord(event, handle); }
API E cudaEventQuery(struct event *event) {
    IN;
    return event && event->stream && event->stream->done < event->sequence ? NOT_READY : OK;
}
API E cudaEventSynchronize(struct event *event) {
    IN;
    return event && event->stream ? wait_for(event->stream, event->sequence) : OK;
}
API E cudaStreamWaitEvent(void *handle, struct event *event, unsigned flags) {
    IN;
    struct stream *stream = stream_of(handle);
    if (event && event->stream && event->stream != stream)
        push(stream, (struct work){.run = do_wait, .a = event->stream, .n = event->sequence});
    return OK;
}
API E cudaEventElapsedTime(float *out, struct event *a, struct event *b) {
    IN;
    if (!a->stream || !b->stream) return failed(400); /* invalid resource handle */
    if (b->stream->done < b->sequence) return NOT_READY;
    *out = b->at - a->at;
    return OK;
}

/* -- copies and the like ------------------------------------------------------------------------------------------------ */
static void do_copy(struct work *work) { memmove(work->a, work->b, work->n); }
static void do_set(struct work *work) { memset(work->a, work->v, work->n); }
static void do_nothing(struct work *work) { (void)work; }
static void do_host_function(struct work *work) { ((void (*)(void *))work->a)(work->b); }
static void do_store(struct work *work) {
    if (work->v == 4)
        *(volatile uint32_t *)work->a = work->n;
    else
        *(volatile u64 *)work->a = work->n;
}

API E cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *handle) {
    IN;
    struct stream *stream = stream_of(handle);
    u64 sequence = push(stream, (struct work){.run = do_copy, .a = to, .b = (void *)from, .n = n});
    return known(to) && known(from) ? OK : wait_for(stream, sequence); /* pageable memory is not asynchronous */
}
API E cudaMemcpy(void *to, const void *from, size_t n, int kind) {
    IN;
    struct stream *stream = stream_of(0);
    return wait_for(stream, push(stream, (struct work){.run = do_copy, .a = to, .b = (void *)from, .n = n}));
}
API E cudaMemsetAsync(void *to, int value, size_t n, void *handle) {
    IN;
    push(stream_of(handle), (struct work){.run = do_set, .a = to, .n = n, .v = value});
    return OK;
}
API E cudaMemset(void *to, int value, size_t n) {
    IN;
    struct stream *stream = stream_of(0);
    return wait_for(stream, push(stream, (struct work){.run = do_set, .a = to, .n = n, .v = value}));
}
API E cudaLaunchHostFunc(void *handle, void (*function)(void *), void *argument) {
    IN;
    push(stream_of(handle), (struct work){.run = do_host_function, .a = (void *)function, .b = argument});
    return OK;
}
API E cuStreamWriteValue32(void *handle, uint32_t *to, uint32_t value, unsigned flags) {
    IN;
    push(stream_of(handle), (struct work){.run = do_store, .a = to, .n = value, .v = 4});
    return OK;
}
API E cuStreamWriteValue64(void *handle, u64 *to, u64 value, unsigned flags) {
    IN;
    push(stream_of(handle), (struct work){.run = do_store, .a = to, .n = value, .v = 8});
    return OK;
}
API E cuStreamWaitValue32(void *handle, uint32_t *at, uint32_t value, unsigned flags) {
    IN;
    return OK;
}
API E cuStreamWaitValue64(void *handle, u64 *at, u64 value, unsigned flags) {
    IN;
    return OK;
}

/* -- kernels ------------------------------------------------------------------------------------------------------------ */
/* `extra` is pairs of CU_LAUNCH_PARAM_BUFFER_POINTER (1), ..._SIZE (2) and a value, up to a 0. NCCL's kernels come so. */
static E launched(void *handle, void **extra) {
    void *arguments = 0;
    size_t size = 0;
    for (void **pair = extra; pair && *pair; pair += 2) {
        if (*pair == (void *)1) arguments = pair[1];
        if (*pair == (void *)2) size = *(size_t *)pair[1];
    }
    if (arguments) return collective_kernel(arguments, size, stream_of(handle));
    push(stream_of(handle), (struct work){.run = do_nothing});
    return OK;
}
REPLACEABLE E cudaFuncGetAttributes(void *out, const void *function) {
    IN;
    memset(out, 0, 56);
    return OK;
}
API E cudaFuncSetAttribute(const void *function, int which, int value) {
    IN;
    return OK;
}
API E cudaGetFuncBySymbol(void **out, const void *symbol) {
    IN;
    *out = (void *)symbol;
    return OK;
}
REPLACEABLE E cudaLaunchKernel(const void *f, struct dim3 grid, struct dim3 block, void **arguments, size_t shared, void *handle) {
    IN;
    return launched(handle, 0);
}
API E cudaLaunchKernelExC(const int *config, const void *f, void **arguments) { /* the stream stands at byte 32 */
    IN;
    return launched(*(void **)(config + 8), 0);
}
API E cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                     void *handle, void **arguments, void **extra) {
    IN;
    return launched(handle, extra);
}
API E cuLaunchKernelEx(const unsigned *config, void *f, void **arguments, void **extra) {
    IN;
    return launched(*(void **)(config + 8), extra);
}
