/* A libibverbs.so.1 whose RDMA writes go into other processes of this machine (process_vm_writev; needs root).
 *
 * Enough for NCCL's NET/IB: reliable connections, RDMA_WRITE, RDMA_WRITE_WITH_IMM and RDMA_READ, completions. No header of
 * rdma-core is used; the structures below are of our own making, in the layout of its binary interface on x86-64.
 *
 * FAKEVERBS_FILE   a file that the processes share: where each queue pair lives and what came for it
 * FAKEVERBS_CARDS  "mlx5_0; mlx5_1 state=down; mlx5_2 link=ethernet gids=fe80::1|::ffff:10.77.0.11 fail=12". Of a card:
 *   state=active|down|init|armed   link=infiniband|ethernet   speed=128 (NDR)   width=2 (4x)   mtu=5 (4096)   lid=   gids=
 *   pkey=   fail=STATUS of its completions of sends   receive_fail=STATUS   after=SENDS that still go well (0)
 *   delay=SECONDS until a failing completion is seen (2)   event=NUMBER@SECONDS, an asynchronous event (9: port active,
 *   10: port error, 1: fatal error of a queue pair)   modify=ERRNO, memory=ERRNO, queue=ERRNO, open=ERRNO, pd=ERRNO of
 *   ibv_modify_qp (to RTR), ibv_reg_mr, ibv_create_qp, ibv_open_device and ibv_alloc_pd
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { QUEUES = 8192, RING = 512, CARDS = 16, COMPLETIONS = 4096, DEST_QPN = 1 << 20 };
enum { WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM, WR_RDMA_READ = 4, SIGNALED = 1 << 1 };
enum { WC_RDMA_WRITE = 1, WC_RDMA_READ = 2, WC_RECV_RDMA_WITH_IMM = 129, WC_WITH_IMM = 2 };
enum { DOWN = 1, INIT, ARMED, ACTIVE, LINK_IB = 1, LINK_ETHERNET };

struct device { /* ibv_device */
    void *ops[2];
    int node_type, transport_type;
    char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};
struct context { /* ibv_context; NCCL looks at abi_compat for newer extensions, which are not here */
    struct device *device;
    void *ops[32];
    int command_fd, async_fd, vectors;
    pthread_mutex_t mutex;
    void *abi_compat;
    struct card *card; /* ours, behind what the interface knows */
};
struct domain { /* ibv_pd */
    struct context *context;
    uint32_t handle;
};
struct region { /* ibv_mr */
    struct context *context;
    struct domain *domain;
    void *address;
    size_t length;
    uint32_t handle, lkey, rkey;
};
struct completion { /* ibv_wc */
    uint64_t id;
    int status, opcode;
    uint32_t vendor_error, length, immediate, queue, source;
    unsigned flags;
    uint16_t pkey, slid;
    uint8_t sl, path;
};
struct completions { /* ibv_cq */
    struct context *context;
    void *channel, *cq_context;
    uint32_t handle;
    int entries;
    char rest[96];
    pthread_mutex_t lock;
    unsigned head, tail;
    struct {
        struct completion what;
        double at;
    } ring[COMPLETIONS];
};
struct queue { /* ibv_qp */
    struct context *context;
    void *qp_context;
    struct domain *domain;
    struct completions *sends, *receives;
    void *srq;
    uint32_t handle, number;
    int state, type;
    char rest[96];
    uint32_t peer;
    int broken, sent;
    unsigned head, tail;
    uint64_t posted[RING];
    struct queue *next;
};
struct piece { /* ibv_sge */
    uint64_t address;
    uint32_t length, lkey;
};
struct send { /* ibv_send_wr */
    uint64_t id;
    struct send *next;
    struct piece *pieces;
    int count, opcode;
    unsigned flags;
    uint32_t immediate;
    uint64_t remote;
    char rest[80];
};
struct receive { /* ibv_recv_wr */
    uint64_t id;
    struct receive *next;
    struct piece *pieces;
    int count;
};
struct port { /* ibv_port_attr */
    int state, max_mtu, active_mtu, gids;
    uint32_t capabilities, largest_message, bad_pkeys, violations;
    uint16_t pkeys, lid, sm_lid;
    uint8_t lmc, max_vl, sm_sl, subnet_timeout, init_reply, width, speed, physical, link, flags;
    uint16_t more;
};
struct event { /* ibv_async_event */
    uint64_t element;
    int type;
};
_Static_assert(sizeof(struct device) == 664 && offsetof(struct context, abi_compat) == 320, "layout");
_Static_assert(sizeof(struct completion) == 48 && sizeof(struct send) == 128, "layout");
_Static_assert(offsetof(struct queue, rest) == 64 && offsetof(struct queue, number) == 52, "layout");
_Static_assert(offsetof(struct port, lid) == 34 && offsetof(struct port, link) == 46, "layout");

/* -- what the cards are ----------------------------------------------------------------------------------------------- */
struct card {
    char name[64], gids[512], event[32];
    int state, link, speed, width, mtu, lid, pkey, fail, receive_fail, after;
    int modify, memory, queue, open, pd;
    double delay;
};
static struct card cards[CARDS];
static int many = -1;

static void set(struct card *card, const char *key, const char *value) {
    static const char *const states[] = {"", "down", "init", "armed", "active"};
    int n = atoi(value);
    if (!strcmp(key, "state"))
        for (int i = 1; i < 5; i++) card->state = strcmp(states[i], value) ? card->state : i;
    else if (!strcmp(key, "link")) card->link = strcmp(value, "ethernet") ? LINK_IB : LINK_ETHERNET;
    else if (!strcmp(key, "gids")) snprintf(card->gids, sizeof card->gids, "%s", value);
    else if (!strcmp(key, "event")) snprintf(card->event, sizeof card->event, "%s", value);
    else if (!strcmp(key, "speed")) card->speed = n;
    else if (!strcmp(key, "width")) card->width = n;
    else if (!strcmp(key, "mtu")) card->mtu = n;
    else if (!strcmp(key, "lid")) card->lid = n;
    else if (!strcmp(key, "pkey")) card->pkey = strtol(value, 0, 0);
    else if (!strcmp(key, "fail")) card->fail = n;
    else if (!strcmp(key, "receive_fail")) card->receive_fail = n;
    else if (!strcmp(key, "after")) card->after = n;
    else if (!strcmp(key, "delay")) card->delay = atof(value);
    else if (!strcmp(key, "modify")) card->modify = n;
    else if (!strcmp(key, "memory")) card->memory = n;
    else if (!strcmp(key, "queue")) card->queue = n;
    else if (!strcmp(key, "open")) card->open = n;
    else if (!strcmp(key, "pd")) card->pd = n;
    else fprintf(stderr, "fakeverbs: nothing is known of %s\n", key);
}

static void read_cards(void) {
    const char *given = getenv("FAKEVERBS_CARDS");
    char *copy = strdup(given ? given : ""), *rest = copy, *one;
    for (many = 0; (one = strsep(&rest, ";")) && many < CARDS;) {
        char *words = one, *word;
        struct card *card = &cards[many];
        *card = (struct card){.state = ACTIVE, .link = LINK_IB, .speed = 128, .width = 2, .mtu = 5, .pkey = 0xffff, .delay = 2};
        card->lid = many + 1;
        while ((word = strsep(&words, " "))) {
            char *value = strchr(word, '=');
            if (!*word) continue;
            if (value) *value++ = 0;
            if (value)
                set(card, word, value);
            else
                snprintf(card->name, sizeof card->name, "%s", word);
        }
        if (*card->name) many++;
    }
    free(copy);
}

/* -- what the processes share ------------------------------------------------------------------------------------------ */
struct mailbox { /* one for each queue pair of all processes */
    volatile int pid;
    volatile unsigned head, tail;
    struct {
        uint32_t immediate, length;
    } ring[RING];
};
static struct {
    volatile unsigned next;
    struct mailbox boxes[QUEUES];
} *shared;
static struct queue *queues;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct mailbox *box(uint32_t queue) { return &shared->boxes[queue % QUEUES]; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int attach(void) {
    const char *path = getenv("FAKEVERBS_FILE");
    if (shared) return 1;
    int fd = open(path ? path : "/dev/shm/fakeverbs", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *shared)) return 0;
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return shared != MAP_FAILED;
}

/* -- devices ----------------------------------------------------------------------------------------------------------- */
static int poll_completions(struct completions *c, int most, struct completion *out);
static int post_send(struct queue *q, struct send *work, struct send **bad);
static int post_receive(struct queue *q, struct receive *work, struct receive **bad);

API struct device **ibv_get_device_list(int *n) {
    struct device **list = calloc(CARDS + 1, sizeof *list);
    if (many < 0) read_cards();
    for (int i = 0; attach() && i < many; i++) {
        struct device *device = list[i] = calloc(1, sizeof *device);
        device->node_type = 1;      /* a channel adapter */
        device->transport_type = 0; /* InfiniBand, also for RoCE */
        snprintf(device->name, sizeof device->name, "%s", cards[i].name);
        snprintf(device->dev_name, sizeof device->dev_name, "uverbs%d", i);
        snprintf(device->ibdev_path, sizeof device->ibdev_path, "/sys/class/infiniband/%s", cards[i].name);
    }
    if (n) *n = many;
    return list;
}
API void ibv_free_device_list(struct device **list) { free(list); }
API const char *ibv_get_device_name(struct device *device) { return device->name; }
API struct context *ibv_open_device(struct device *device) {
    int i = 0;
    while (i < many && strcmp(cards[i].name, device->name)) i++;
    if (cards[i].open) {
        errno = cards[i].open;
        return 0;
    }
    struct context *context = calloc(1, sizeof *context);
    context->device = device;
    context->card = &cards[i];
    context->ops[11] = (void *)poll_completions; /* their places in ibv_context_ops */
    context->ops[25] = (void *)post_send;
    context->ops[26] = (void *)post_receive;
    return context;
}
API int ibv_close_device(struct context *context) {
    free(context);
    return 0;
}
API int ibv_query_device(struct context *context, char *out) {
    memset(out, 0, 232);
    strcpy(out, "28.39.1002"); /* firmware */
    uint64_t guid = 0x1000 + (context->card - cards);
    memcpy(out + 64, &guid, 8);
    memcpy(out + 72, &guid, 8);
    *(uint32_t *)(out + 96) = 0x15b3;   /* vendor */
    *(uint32_t *)(out + 100) = 4129;    /* ConnectX-7 */
    *(uint32_t *)(out + 108) = 1 << 17; /* most queue pairs */
    *(uint32_t *)(out + 132) = 1 << 20; /* most completions */
    out[227] = 1;                       /* ports */
    return 0;
}
static int gid_count(const struct card *card) {
    int n = 1;
    for (const char *p = card->gids; *p; p++) n += *p == '|';
    return n;
}
API int ibv_query_port(struct context *context, uint8_t number, struct port *out) {
    const struct card *card = context->card;
    memset(out, 0, 48); /* of the oldest callers */
    out->state = card->state;
    out->max_mtu = out->active_mtu = card->mtu;
    out->gids = gid_count(card);
    out->pkeys = 1;
    out->lid = card->link == LINK_IB ? card->lid + getpid() % 1000 * CARDS : 0;
    out->width = card->width;
    out->speed = card->speed;
    out->physical = card->state == ACTIVE ? 5 : 3;
    out->link = card->link;
    return 0;
}
API int ibv_query_gid(struct context *context, uint8_t port, int index, uint8_t *out) {
    const char *p = context->card->gids;
    char one[64];
    memset(out, 0, 16);
    if (!*p) { /* a link-local one */
        out[0] = 0xfe, out[1] = 0x80, out[15] = 1 + (context->card - cards);
        return 0;
    }
    while (index-- > 0) {
        p = strchr(p, '|');
        if (!p++) return -1;
    }
    snprintf(one, sizeof one, "%.*s", (int)strcspn(p, "|"), p);
    return inet_pton(AF_INET6, one, out) == 1 ? 0 : -1;
}
API int ibv_query_pkey(struct context *context, uint8_t port, int index, uint16_t *out) {
    *out = htons(context->card->pkey);
    return 0;
}
API int ibv_fork_init(void) { return 0; }

API int ibv_get_async_event(struct context *context, struct event *out) {
    int type;
    double after;
    if (sscanf(context->card->event, "%d@%lf", &type, &after) == 2) {
        *context->card->event = 0;
        usleep(after * 1e6);
        memset(out, 0, sizeof *out);
        out->type = type;
        out->element = 1; /* the port */
        return 0;
    }
    for (;;) pause();
}
API void ibv_ack_async_event(struct event *event) { (void)event; }
API const char *ibv_event_type_str(int type) {
    static const char *const names[] = {
        "CQ error", "local work queue catastrophic error", "invalid request local work queue error",
        "local access violation work queue error", "communication established", "send queue drained", "path migrated",
        "path migration request error", "local catastrophic error", "port active", "port error", "LID change",
        "P_Key change", "SM change", "SRQ catastrophic error", "SRQ limit reached", "last WQE reached",
        "client reregistration", "GID table change"};
    return type >= 0 && type < (int)(sizeof names / sizeof *names) ? names[type] : "unknown";
}

/* -- memory, queues ---------------------------------------------------------------------------------------------------- */
API struct domain *ibv_alloc_pd(struct context *context) {
    if ((errno = context->card->pd)) return 0;
    struct domain *domain = calloc(1, sizeof *domain);
    domain->context = context;
    return domain;
}
API int ibv_dealloc_pd(struct domain *domain) {
    free(domain);
    return 0;
}
API struct region *ibv_reg_mr(struct domain *domain, void *address, size_t length, int access) {
    static unsigned keys = 100;
    if ((errno = domain->context->card->memory)) return 0;
    struct region *region = calloc(1, sizeof *region);
    uint32_t key = __sync_add_and_fetch(&keys, 1);
    *region = (struct region){domain->context, domain, address, length, 0, key, key};
    return region;
}
API int ibv_dereg_mr(struct region *region) {
    free(region);
    return 0;
}
API struct completions *ibv_create_cq(struct context *context, int entries, void *own, void *channel, int vector) {
    struct completions *c = calloc(1, sizeof *c);
    c->context = context;
    c->cq_context = own;
    c->entries = entries;
    pthread_mutex_init(&c->lock, 0);
    return c;
}
API int ibv_destroy_cq(struct completions *c) { /* kept: it may be being polled */
    (void)c;
    return 0;
}
API struct queue *ibv_create_qp(struct domain *domain, char *wanted) {
    if ((errno = domain->context->card->queue)) return 0;
    struct queue *q = calloc(1, sizeof *q);
    q->context = domain->context;
    q->domain = domain;
    q->qp_context = *(void **)wanted;
    q->sends = *(struct completions **)(wanted + 8);
    q->receives = *(struct completions **)(wanted + 16);
    q->type = *(int *)(wanted + 52);
    q->number = __sync_add_and_fetch(&shared->next, 1);
    memset((void *)box(q->number), 0, sizeof(struct mailbox));
    box(q->number)->pid = getpid();
    pthread_mutex_lock(&lock);
    q->next = queues;
    queues = q;
    pthread_mutex_unlock(&lock);
    return q;
}
API int ibv_modify_qp(struct queue *q, char *attributes, int mask) {
    if (!(mask & DEST_QPN)) return 0;
    q->peer = *(uint32_t *)(attributes + 28);
    return q->context->card->modify;
}
API int ibv_query_qp(struct queue *q, void *attributes, int mask, void *wanted) {
    memset(attributes, 0, 144);
    return 0;
}
API int ibv_destroy_qp(struct queue *q) {
    pthread_mutex_lock(&lock);
    struct queue **at = &queues;
    while (*at && *at != q) at = &(*at)->next;
    if (*at) *at = q->next;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* -- the data path ------------------------------------------------------------------------------------------------------- */
static void complete(struct completions *c, struct completion what, double at) {
    pthread_mutex_lock(&c->lock);
    c->ring[c->tail % COMPLETIONS].what = what;
    c->ring[c->tail++ % COMPLETIONS].at = at;
    pthread_mutex_unlock(&c->lock);
}

/* Move the data of a work request; -1: the other process is gone. */
static int64_t carried(int pid, const struct send *work) {
    uint64_t remote = work->remote, sum = 0;
    for (int i = 0; i < work->count; i++) {
        struct iovec here = {(void *)work->pieces[i].address, work->pieces[i].length};
        struct iovec there = {(void *)remote, here.iov_len};
        ssize_t n = 0;
        if (here.iov_len && work->opcode == WR_RDMA_READ)
            n = process_vm_readv(pid, &here, 1, &there, 1, 0);
        else if (here.iov_len)
            n = process_vm_writev(pid, &here, 1, &there, 1, 0);
        if (n != (ssize_t)here.iov_len) return -1;
        remote += n;
        sum += n;
    }
    return kill(pid, 0) ? -1 : (int64_t)sum;
}

static int post_send(struct queue *q, struct send *work, struct send **bad) {
    const struct card *card = q->context->card;
    for (; work; work = work->next) {
        struct mailbox *to = box(q->peer);
        if (card->fail && q->sent >= card->after) q->broken = card->fail;
        int64_t length = q->broken ? -1 : carried(to->pid, work);
        if (length < 0 && !q->broken) q->broken = 12; /* retries exceeded */
        q->sent++;
        if (!q->broken && work->opcode == WR_RDMA_WRITE_WITH_IMM) {
            to->ring[to->tail % RING].immediate = work->immediate;
            to->ring[to->tail % RING].length = length;
            __sync_synchronize();
            to->tail++;
        }
        if (!q->broken && !(work->flags & SIGNALED)) continue;
        struct completion what = {.id = work->id, .status = q->broken, .queue = q->number};
        what.opcode = work->opcode == WR_RDMA_READ ? WC_RDMA_READ : WC_RDMA_WRITE;
        what.vendor_error = q->broken ? 129 : 0;
        what.length = q->broken ? 0 : length;
        complete(q->sends, what, now() + (q->broken ? card->delay : 0));
    }
    return 0;
}

static int post_receive(struct queue *q, struct receive *work, struct receive **bad) {
    const struct card *card = q->context->card;
    for (; work; work = work->next) {
        if (!card->receive_fail) {
            q->posted[q->tail++ % RING] = work->id;
            continue;
        }
        struct completion what = {.id = work->id, .status = card->receive_fail, .queue = q->number, .vendor_error = 129};
        what.opcode = WC_RECV_RDMA_WITH_IMM;
        complete(q->receives, what, now() + card->delay);
    }
    return 0;
}

static int poll_completions(struct completions *c, int most, struct completion *out) {
    int n = 0;
    double t = now();
    pthread_mutex_lock(&c->lock);
    for (; n < most && c->head != c->tail && c->ring[c->head % COMPLETIONS].at <= t; n++)
        out[n] = c->ring[c->head++ % COMPLETIONS].what;
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_lock(&lock);
    for (struct queue *q = queues; q && n < most; q = q->next) {
        struct mailbox *own = box(q->number);
        if (q->receives != c) continue;
        for (; n < most && own->head != own->tail && q->head != q->tail; n++) {
            struct completion what = {.id = q->posted[q->head++ % RING], .opcode = WC_RECV_RDMA_WITH_IMM, .queue = q->number};
            what.length = own->ring[own->head % RING].length;
            what.immediate = own->ring[own->head % RING].immediate;
            what.flags = WC_WITH_IMM;
            own->head++;
            out[n] = what;
        }
    }
    pthread_mutex_unlock(&lock);
    return n;
}
