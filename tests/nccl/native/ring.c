/* The device side of NCCL: what its kernels would do, on a thread of the stream, with the data.
 *
 * Collectives over rings and sends and receives, both in the protocol Simple (NCCL_ALGO=Ring NCCL_PROTO=Simple
 * NCCL_P2P_LL_THRESHOLD=0). A chunk goes on only after the one before it came in, so NCCL's own proxies move the bytes over
 * its own transports, a missing rank stalls its neighbours, and ncclCommAbort ends it. Both ends of every connection are
 * ours; with NCCL's proxies we agree on the slots, on the steps and on the fifo of sizes.
 *
 * The layouts are those that `gdb -ex 'ptype /o struct ncclDevWorkColl'` shows of libnccl 2.23.4 to 2.27.7 on x86-64.
 */
#include "fake.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 8, SIMPLE = 2, MOST_CHANNELS = 64, OFFSET_MODE = 1 };
enum { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER };                     /* what told() is told */
enum { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE };                                       /* ncclRedOp_t */
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT };        /* ncclDataType_t */
static const int SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

struct fifo { /* ncclConnFifo */
    int mode, offset;
    int64_t size;
    void *pointer;
};
struct connection { /* ncclConnInfo */
    char *buffers[3];
    void *handles[3];
    volatile u64 *tail, *head;
    int flags, shared, step_size;
    void *exchange, *operation;
    struct fifo *fifo;
    u64 step, cleaned;
    char device[32];
};
struct peer { /* ncclDevChannelPeer */
    struct connection send[2], receive[2];
};
struct channel { /* ncclDevChannel */
    struct peer **peers;
    int previous, next, *ranks, index;
    char rest[336];
};
struct communicator { /* ncclDevComm, ncclKernelComm; from 2.27 without `consumed` */
    int rank, ranks, node, nodes, buffer_sizes[3], p2p_chunk, nvlink;
    void *rest[5];
};
struct batch { /* ncclDevWorkBatch */
    uint32_t flags, offset;
    u64 bits;
};
struct arguments { /* ncclDevKernelArgs */
    struct communicator *communicator;
    u64 channels;
    uint8_t storage;
    uint32_t mask;
    char *fifo;
    struct batch batches[];
};
struct collective { /* ncclDevWorkColl */
    uint8_t low, high, warps, flags;
    uint32_t root;
    char *receive, *send;
    u64 registered[4], count_low, count_middle, count_high, grains, argument;
};
struct transfer { /* ncclDevWorkP2p */
    char *send, *receive;
    size_t send_bytes, receive_bytes;
    int send_rank, receive_rank;
    uint8_t channels, base, send_channels, receive_channels, send_chunk, receive_chunk, flags, padding;
};
_Static_assert(sizeof(struct connection) == 152 && sizeof(struct channel) == 368 && sizeof(struct collective) == 96, "layout");
_Static_assert(sizeof(struct arguments) == 32 && sizeof(struct transfer) == 48 && sizeof(struct fifo) == 24, "layout");


/* -- what the calls were, as told by whoever made them --------------------------------------------------------------- */
struct call {
    int kind, type, operation;
    const void *send;
    void *receive;
};
static struct call calls[1024];
static unsigned called;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Before a collective: what it is, for a kernel's arguments do not say. */
API void fakecuda_told(int kind, int type, int operation, const void *send, void *receive) {
    pthread_mutex_lock(&lock);
    calls[called++ % LENGTH(calls)] = (struct call){kind, type, operation, send, receive};
    pthread_mutex_unlock(&lock);
}

/* The newest call with these buffers. Someone whose data is not needed may have given another send buffer. */
static int call_of(const struct collective *work, struct call *out) {
    int there = 0;
    pthread_mutex_lock(&lock);
    for (unsigned back = 1; back <= called && back <= LENGTH(calls) && !there; back++) {
        struct call *one = &calls[(called - back) % LENGTH(calls)];
        if ((there = one->send == work->send && one->receive == work->receive)) *out = *one;
    }
    pthread_mutex_unlock(&lock);
    return there;
}

/* -- arithmetic -------------------------------------------------------------------------------------------------------- */
static float of_bfloat(uint16_t v) {
    uint32_t bits = (uint32_t)v << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}
static uint16_t to_bfloat(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
#define COMBINED(a, b, operation) \
    ((operation) == PRODUCT ? (a) * (b) : (operation) == MAXIMUM ? ((a) > (b) ? (a) : (b)) : (operation) == MINIMUM ? ((a) < (b) ? (a) : (b)) : (a) + (b))
#define EACH(T)                                                                          \
    {                                                                                    \
        T *out = to;                                                                     \
        const T *a = x, *b = y;                                                          \
        for (size_t i = 0; i < n; i++) out[i] = COMBINED(a[i], b[i], operation);         \
        break;                                                                           \
    }
static void combine(void *to, const void *x, const void *y, size_t n, int type, int operation) {
    switch (type) {
    case INT8: EACH(int8_t)
    case UINT8: EACH(uint8_t)
    case INT32: EACH(int32_t)
    case UINT32: EACH(uint32_t)
    case INT64: EACH(int64_t)
    case UINT64: EACH(uint64_t)
    case HALF: EACH(_Float16)
    case FLOAT: EACH(float)
    case DOUBLE: EACH(double)
    case BFLOAT: {
        uint16_t *out = to;
        const uint16_t *a = x, *b = y;
        for (size_t i = 0; i < n; i++) {
            float p = of_bfloat(a[i]), q = of_bfloat(b[i]);
            out[i] = to_bfloat(COMBINED(p, q, operation));
        }
        break;
    }
    default: say("no arithmetic for data type %d", type);
    }
}
static void divide(void *at, size_t n, int type, int by) {
    for (size_t i = 0; i < n; i++) switch (type) {
        case INT32: ((int32_t *)at)[i] /= by; break;
        case INT64: ((int64_t *)at)[i] /= by; break;
        case HALF: ((_Float16 *)at)[i] /= by; break;
        case FLOAT: ((float *)at)[i] /= by; break;
        case DOUBLE: ((double *)at)[i] /= by; break;
        case BFLOAT: ((uint16_t *)at)[i] = to_bfloat(of_bfloat(((uint16_t *)at)[i]) / by); break;
        }
}

/* -- lanes ------------------------------------------------------------------------------------------------------------- */
/* One chunk's way through this rank: where it comes from, what it is combined with, where it goes. */
struct move {
    int receive, send;       /* over the connections */
    char *with, *to;         /* the user's memory to combine with or send (0: none), and to write (0: none) */
    int64_t elements;
    int last;                /* nothing is to be reduced after this: an average divides */
};
/* A sequence of moves over one pair of connections. */
struct lane {
    struct move (*move)(struct lane *, int64_t index);
    struct connection *from, *to;
    int64_t index, moves;
    int slice, slices, steps; /* slices of a chunk, steps of a slice */
    u64 received, sent;       /* the steps of the connections */
    int begun, stage;
    struct call call;
    int size; /* of an element */
    /* of a collective */
    int ranks, *order, ring_index, root, rank;
    int64_t loops, chunk, part, count, all;
    char *in, *out;
    /* of a send or a receive */
    int64_t bytes;
};
struct job {
    struct communicator *communicator;
    volatile uint32_t *aborted;
    int lanes, stages[MOST_CHANNELS];
    struct {
        int channel;
        struct lane lane;
    } l[];
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t at_least_0(int64_t a) { return a < 0 ? 0 : a; }

/* How many elements the chunk of one loop has, and how many are left from its start on. */
static int64_t in_loop(struct lane *l, int64_t loop, int64_t width, int64_t *left) {
    *left = l->count - loop * width * l->chunk;
    if (*left >= width * l->chunk) return l->chunk;
    int64_t even = (*left + width - 1) / width, grain = 16 / l->size;
    return (even + grain - 1) / grain * grain;
}

static struct move all_reduce(struct lane *l, int64_t index) {
    int n = l->ranks, per = 2 * n - 1, phase = index % per;
    int64_t loop = index / per, left, chunk = in_loop(l, loop, n, &left);
    int which = phase < n ? (l->ring_index + n - 1 - phase) % n : (l->ring_index + 2 * n - 1 - phase) % n;
    int64_t offset = which * chunk, elements = at_least_0(least(chunk, left - offset));
    int64_t at = (l->part + loop * n * l->chunk + offset) * l->size;
    struct move move = {.receive = phase > 0, .send = phase < per - 1, .elements = elements, .last = phase == n - 1};
    if (phase < n) move.with = l->in + at;
    if (phase >= n - 1) move.to = l->out + at;
    return move;
}

static struct move all_gather(struct lane *l, int64_t index) {
    int n = l->ranks, phase = index % n;
    int64_t start = index / n * l->chunk, elements = least(l->chunk, l->count - start);
    int whose = l->order[phase ? n - phase : 0];
    char *mine = l->in + (l->part + start) * l->size, *to = l->out + (l->part + start + whose * l->all) * l->size;
    struct move move = {.receive = phase > 0, .send = phase < n - 1, .with = phase ? 0 : mine, .to = to, .elements = elements};
    return move;
}

static struct move reduce_scatter(struct lane *l, int64_t index) {
    int n = l->ranks, phase = index % n, whose = l->order[n - 1 - phase];
    int64_t start = index / n * l->chunk, elements = least(l->chunk, l->count - start);
    struct move move = {.receive = phase > 0, .send = phase < n - 1, .elements = elements, .last = phase == n - 1};
    move.with = l->in + (l->part + start + whose * l->all) * l->size;
    if (move.last) move.to = l->out + (l->part + start) * l->size;
    return move;
}

static struct move broadcast(struct lane *l, int64_t index) {
    int64_t start = index * l->chunk, at = (l->part + start) * l->size;
    int mine = l->rank == l->root;
    struct move move = {.receive = !mine, .send = l->order[1] != l->root, .to = l->out + at};
    move.elements = least(l->chunk, l->count - start);
    if (mine) move.with = l->in + at;
    return move;
}

static struct move reduce(struct lane *l, int64_t index) {
    int64_t start = index * l->chunk, at = (l->part + start) * l->size;
    int mine = l->rank == l->root, first = l->order[l->ranks - 1] == l->root;
    struct move move = {.receive = !first, .send = !mine, .with = l->in + at, .last = mine};
    move.elements = least(l->chunk, l->count - start);
    if (mine) move.to = l->out + at;
    return move;
}

static struct move one_way(struct lane *l, int64_t index) {
    int64_t start = index * l->chunk;
    struct move move = {.receive = l->from != 0, .send = l->to != 0, .elements = least(l->chunk, l->bytes - start)};
    if (l->to) move.with = l->in + start;
    if (l->from) move.to = l->out + start;
    return move;
}

/* Where the data of a step lies. Shared buffers of the network proxy have their place in the fifo. */
static char *slot(struct connection *c, u64 step) {
    struct fifo *fifo = c->fifo ? &c->fifo[step % STEPS] : 0;
    if (fifo && fifo->mode == OFFSET_MODE) return c->buffers[SIMPLE] + *(volatile int *)&fifo->offset;
    return c->buffers[SIMPLE] + step % STEPS * c->step_size;
}

static void begin(struct lane *l) {
    int chunk_steps = l->slices * l->steps;
    if (l->from) *l->from->head = l->received = round_up(l->from->step, chunk_steps);
    if (l->to) l->sent = round_up(l->to->step, chunk_steps);
    l->begun = 1;
}

/* Do the next slice if what it waits for is there; 1: done. */
static int advance(struct lane *l) {
    if (!l->begun) begin(l);
    struct move m = l->move(l, l->index);
    if (m.receive && *l->from->tail < l->received + l->steps) return 0;
    if (m.send && *l->to->head + STEPS < l->sent + l->steps) return 0;
    __sync_synchronize();
    int64_t grain = 16 / l->size, share = (m.elements + l->slices - 1) / l->slices;
    int64_t each = (share + grain - 1) / grain * grain, start = least(l->slice * each, m.elements);
    int64_t n = least(each, m.elements - start);
    size_t bytes = n * l->size;
    char *with = m.with ? m.with + start * l->size : 0, *to = m.to ? m.to + start * l->size : 0;
    char *came = m.receive ? slot(l->from, l->received) : 0, *out = m.send ? slot(l->to, l->sent) : to;
    if (came && with)
        combine(out, came, with, n, l->call.type, l->call.operation);
    else if (bytes && out != (came ? came : with))
        memmove(out, came ? came : with, bytes);
    if (m.last && l->call.operation == AVERAGE) divide(out, n, l->call.type, l->ranks);
    if (to && to != out) memmove(to, out, bytes);
    __sync_synchronize();
    if (m.receive) *l->from->head = l->received += l->steps;
    if (m.send) {
        if (l->to->fifo) l->to->fifo[l->sent % STEPS].size = bytes;
        __sync_synchronize();
        *l->to->tail = l->sent += l->steps;
    }
    if (++l->slice == l->slices) {
        l->slice = 0;
        l->index++;
    }
    return 1;
}

static void run_job(struct work *work) {
    struct job *job = work->blob;
    int left = job->lanes;
    while (left && !(job->aborted && *job->aborted)) {
        int moved = 0;
        for (int i = 0; i < job->lanes; i++) {
            struct lane *l = &job->l[i].lane;
            int *stage = &job->stages[job->l[i].channel];
            if (l->index >= l->moves || l->stage != *stage) continue;
            while (l->index < l->moves && advance(l)) moved = 1;
            if (l->index < l->moves) continue;
            if (l->from) l->from->step = l->received;
            if (l->to) l->to->step = l->sent;
            left--;
            int same = 0; /* the next stage of a channel begins when all of this one have ended */
            for (int k = 0; k < job->lanes; k++) {
                struct lane *other = &job->l[k].lane;
                same += job->l[k].channel == job->l[i].channel && other->stage == *stage && other->index < other->moves;
            }
            if (!same) ++*stage;
        }
        if (!moved) usleep(50);
    }
}

static void hang(struct work *work) {
    volatile uint32_t *aborted = work->a;
    while (!(aborted && *aborted)) usleep(1000);
}
static void nothing(struct work *work) { (void)work; }

/* -- from a kernel's arguments to lanes ------------------------------------------------------------------------------- */
static struct lane lane_of(const struct collective *w, int number_, struct channel *ch, struct communicator *c) {
    struct lane l = {.ranks = c->ranks, .rank = c->rank, .order = ch->ranks, .ring_index = ch->index, .root = w->root};
    if (!call_of(w, &l.call)) {
        say("a kernel's collective was not told to us: it never ends");
        l.call.kind = -1;
    }
    l.in = w->send;
    l.out = w->receive;
    int bytes = l.call.kind == ALL_GATHER || l.call.kind == BROADCAST; /* NCCL counts these in bytes */
    l.size = bytes ? 1 : SIZES[l.call.type];
    u64 middle = number_ - w->low - 1;
    int first = number_ == w->low, final = number_ == w->high;
    l.count = first ? w->count_low : final ? w->count_high : w->count_middle;
    l.part = first ? 0 : w->count_low + middle * w->count_middle;
    l.all = w->count_low + (w->high > w->low ? w->count_high + (w->high - w->low - 1) * w->count_middle : 0);
    u64 grains = w->grains >> (first ? 0 : final ? 42 : 21) & 0x1fffff;
    l.chunk = grains * 512 / l.size;
    l.from = &ch->peers[ch->previous]->receive[0];
    l.to = &ch->peers[ch->next]->send[0];
    int whole = l.call.kind == BROADCAST || l.call.kind == REDUCE;
    l.slices = whole ? 1 : 2;
    l.steps = whole ? 1 : 2;
    int64_t width = l.call.kind == ALL_REDUCE ? l.chunk * l.ranks : l.chunk;
    int64_t loops = width ? (l.count + width - 1) / width : 0;
    switch (l.call.kind) {
    case ALL_REDUCE: l.move = all_reduce, l.moves = loops * (2 * l.ranks - 1); break;
    case ALL_GATHER: l.move = all_gather, l.moves = loops * l.ranks; break;
    case REDUCE_SCATTER: l.move = reduce_scatter, l.moves = loops * l.ranks; break;
    case BROADCAST: l.move = broadcast, l.moves = loops; break;
    case REDUCE: l.move = reduce, l.moves = loops; break;
    }
    return l;
}

/* NCCL's small float of eight bits. */
static int64_t chunk_size(uint8_t v) {
    int exponent = v >> 3;
    int64_t mantissa = (v & 7) | (exponent ? 8 : 0);
    return mantissa << (exponent ? exponent - 1 : 0);
}

/* Which part of a transfer goes over this channel: the bits of the channel's number, reversed. */
static int part_of(int channels, int base, int channel) {
    int v = (channel - base) & (channels - 1), out = 0;
    for (int bit = 1; bit < channels; bit <<= 1, v >>= 1) out = out << 1 | (v & 1);
    return out;
}

static struct lane half(char *memory, size_t bytes, int parts, int part, int64_t chunk) {
    size_t each = round_up((bytes + parts - 1) / parts, 4096), start = least(part * each, bytes);
    struct lane l = {.move = one_way, .in = memory + start, .out = memory + start, .size = 1, .slices = 1, .steps = 1};
    l.bytes = least(each, bytes - start);
    l.chunk = chunk ? chunk : 1;
    l.moves = l.bytes ? (l.bytes + l.chunk - 1) / l.chunk : 1;
    return l;
}

static int halves_of(const struct transfer *w, int channel, struct channel *ch, struct communicator *c, struct lane *out) {
    int part = part_of(w->channels, w->base, channel), n = 0;
    if (w->send_rank == c->rank && w->receive_rank == c->rank) {
        if (part == 0 && w->send != w->receive) memmove(w->receive, w->send, w->send_bytes);
        return 0;
    }
    if (w->flags & 3) say("a transfer in the protocol LL never ends: set NCCL_P2P_LL_THRESHOLD=0");
    if (w->send_rank >= 0 && w->send_rank != c->rank && (int64_t)w->send_bytes >= 0 && part < w->send_channels) {
        out[n] = half(w->send, w->send_bytes, w->send_channels, part, chunk_size(w->send_chunk));
        out[n++].to = &ch->peers[w->send_rank]->send[1];
    }
    if (w->receive_rank >= 0 && w->receive_rank != c->rank && (int64_t)w->receive_bytes >= 0 && part < w->receive_channels) {
        out[n] = half(w->receive, w->receive_bytes, w->receive_channels, part, chunk_size(w->receive_chunk));
        out[n++].from = &ch->peers[w->receive_rank]->receive[1];
    }
    return n;
}

/* Add the lanes of one channel: those of all works of all its batches. */
static struct job *add(struct job *job, const struct arguments *a, int channel, const struct batch *batch, struct channel *ch) {
    static const int WORK_SIZES[] = {sizeof(struct transfer), sizeof(struct collective), 288};
    for (int stage = 0;; batch += batch->flags & 0x3fff) {
        int kind = batch->flags >> 15 & 3, several = 0;
        for (int bit = 0; bit < 64; bit++) {
            if (!(batch->bits >> bit & 1)) continue;
            uint32_t offset = batch->offset + bit * WORK_SIZES[kind];
            const void *w = a->storage == 0 ? (char *)a + offset : a->fifo + (offset & a->mask);
            struct lane lanes[2];
            int n = kind == 0 ? halves_of(w, channel, ch, a->communicator, lanes) : 1;
            if (kind) lanes[0] = lane_of(w, channel, ch, a->communicator);
            job = realloc(job, sizeof *job + (job->lanes + n) * sizeof *job->l);
            for (int i = 0; i < n; i++) {
                lanes[i].stage = stage;
                job->l[job->lanes].channel = channel;
                job->l[job->lanes++].lane = lanes[i];
            }
            several += n;
            if (kind && several) stage++, several = 0; /* collectives follow each other, transfers run side by side */
        }
        if (several) stage++;
        if (!(batch->flags & 0x3fff)) return job;
    }
}

/* What the kernel with these arguments would do is queued in its stream. */
E collective_kernel(void *arguments, size_t size, struct stream *stream) {
    struct arguments *a = arguments;
    const char *mode = text("FAKECUDA_KERNEL", "run");
    if (size < sizeof *a || !strcmp(mode, "done")) {
        push(stream, (struct work){.run = nothing});
        return OK;
    }
    void **rest = a->communicator->rest + (nccl_version() < 22700);
    volatile uint32_t *aborted = rest[1];
    struct channel *channels = rest[2];
    if (!strcmp(mode, "hang")) {
        push(stream, (struct work){.run = hang, .a = (void *)aborted});
        return OK;
    }
    struct job *job = calloc(1, sizeof *job);
    job->communicator = a->communicator;
    job->aborted = aborted;
    int at = 0;
    for (int channel = 0; channel < MOST_CHANNELS; channel++)
        if (a->channels >> channel & 1) job = add(job, a, channel, &a->batches[at++], &channels[channel]);
    int lost = 0;
    for (int i = 0; i < job->lanes; i++) lost |= !job->l[i].lane.move;
    push(stream, (struct work){.run = lost ? hang : run_job, .a = (void *)aborted, .blob = job});
    return OK;
}
