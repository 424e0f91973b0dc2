/* A libibverbs.so.1 that shows the HCAs of /sys/class/infiniband and moves no data.
 *
 * Devices, ports, states, rates and GIDs are read from sysfs, so that NCCL and our probes see one machine.
 * Queue pairs connect and every request is refused: it is enough for what NCCL chooses, not for what it sends. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#undef ibv_query_port
#undef ibv_reg_mr

#define CLASS "/sys/class/infiniband"
enum { MOST = 64, TEXT = 256 };

static int line(char *out, const char *format, const char *device, int port, int index) {
  char path[512];
  snprintf(path, sizeof path, format, device, port, index);
  FILE *file = fopen(path, "r");
  out[0] = 0;
  if (!file) return 0;
  if (!fgets(out, TEXT, file)) out[0] = 0;
  fclose(file);
  out[strcspn(out, "\n")] = 0;
  return 1;
}

/* mlx5_2 before mlx5_10, as the kernel numbers them. */
static int natural(const void *a, const void *b) { return strverscmp(*(char *const *)a, *(char *const *)b); }

struct ibv_device **ibv_get_device_list(int *count) {
  struct ibv_device **list = calloc(MOST + 1, sizeof *list);
  char *names[MOST];
  int n = 0;
  DIR *folder = opendir(CLASS);
  struct dirent *entry;
  while (folder && n < MOST && (entry = readdir(folder)))
    if (entry->d_name[0] != '.') names[n++] = strdup(entry->d_name);
  if (folder) closedir(folder);
  qsort(names, n, sizeof *names, natural);
  for (int i = 0; i < n; i++) {
    struct ibv_device *device = list[i] = calloc(1, sizeof *device);
    device->node_type = IBV_NODE_CA;
    device->transport_type = IBV_TRANSPORT_IB;
    snprintf(device->name, sizeof device->name, "%s", names[i]);
    snprintf(device->dev_name, sizeof device->dev_name, "uverbs%d", i);
    snprintf(device->ibdev_path, sizeof device->ibdev_path, CLASS "/%s", names[i]);
  }
  if (count) *count = n;
  return list;
}
void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

static int refuse_send(struct ibv_qp *q, struct ibv_send_wr *w, struct ibv_send_wr **bad) { *bad = w; return EIO; }
static int take_recv(struct ibv_qp *q, struct ibv_recv_wr *w, struct ibv_recv_wr **bad) { return 0; }
static int nothing(struct ibv_cq *c, int n, struct ibv_wc *wc) { return 0; }
struct ibv_context *ibv_open_device(struct ibv_device *device) {
  struct ibv_context *context = calloc(1, sizeof *context + 4096);   /* NCCL looks before it for verbs_context */
  context->device = device;
  context->ops.poll_cq = nothing;
  context->ops.post_send = refuse_send;
  context->ops.post_recv = take_recv;
  return context;
}
int ibv_close_device(struct ibv_context *context) { return 0; }
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) { for (;;) pause(); }
void ibv_ack_async_event(struct ibv_async_event *event) {}

static uint64_t guid(const char *name, const char *file) {
  char text[TEXT], format[64], digits[TEXT];
  int n = 0;
  snprintf(format, sizeof format, CLASS "/%%s/%s", file);
  line(text, format, name, 0, 0);
  for (char *c = text; *c; c++) if (*c != ':') digits[n++] = *c;
  digits[n] = 0;
  return strtoull(digits, 0, 16);
}
int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
  char text[TEXT];
  memset(attr, 0, sizeof *attr);
  attr->vendor_id = 0x15b3; attr->vendor_part_id = 4129; attr->max_qp = 1 << 17; attr->max_cqe = 1 << 20;
  attr->node_guid = guid(context->device->name, "node_guid");
  attr->sys_image_guid = guid(context->device->name, "sys_image_guid");
  while (line(text, CLASS "/%s/ports/%d/state", context->device->name, attr->phys_port_cnt + 1, 0)) attr->phys_port_cnt++;
  return 0;
}
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *out) {
  struct ibv_port_attr *attr = (void *)out;
  const char *name = context->device->name;
  char text[TEXT];
  memset(attr, 0, 48);   /* the oldest form of the struct */
  if (!line(text, CLASS "/%s/ports/%d/state", name, port, 0)) return EINVAL;
  attr->state = atoi(text);
  attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
  line(text, CLASS "/%s/ports/%d/lid", name, port, 0);
  attr->lid = strtol(text, 0, 0);
  line(text, CLASS "/%s/ports/%d/link_layer", name, port, 0);
  attr->link_layer = !strcmp(text, "InfiniBand") ? IBV_LINK_LAYER_INFINIBAND : !strcmp(text, "Ethernet") ? IBV_LINK_LAYER_ETHERNET : 0;
  line(text, CLASS "/%s/ports/%d/rate", name, port, 0);
  int rate = atoi(text);
  attr->active_width = rate >= 100 || rate == 40 ? 2 : 1;   /* 4 lanes, or 1 */
  attr->active_speed = rate >= 800 ? 0 : rate >= 400 ? 128 : rate >= 200 ? 64 : rate == 40 || rate == 10 ? 4 : 32;
  while (attr->gid_tbl_len < 255 && line(text, CLASS "/%s/ports/%d/gids/%d", name, port, attr->gid_tbl_len)) attr->gid_tbl_len++;
  return 0;
}
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  char text[TEXT];
  unsigned part[8];
  if (!line(text, CLASS "/%s/ports/%d/gids/%d", context->device->name, port, index)) return -1;
  if (sscanf(text, "%x:%x:%x:%x:%x:%x:%x:%x", part, part + 1, part + 2, part + 3, part + 4, part + 5, part + 6, part + 7) != 8) return -1;
  for (int i = 0; i < 8; i++) { gid->raw[2 * i] = part[i] >> 8; gid->raw[2 * i + 1] = part[i]; }
  return 0;
}
int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *key) { *key = 0xffff; return 0; }
int ibv_fork_init(void) { return 0; }
const char *ibv_event_type_str(enum ibv_event_type type) { return "event"; }

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) { struct ibv_pd *pd = calloc(1, sizeof *pd); pd->context = context; return pd; }
int ibv_dealloc_pd(struct ibv_pd *pd) { free(pd); return 0; }
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *at, size_t length, int access) {
  static unsigned key = 100;
  struct ibv_mr *mr = calloc(1, sizeof *mr);
  *mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = at, .length = length, .lkey = ++key, .rkey = key};
  return mr;
}
int ibv_dereg_mr(struct ibv_mr *mr) { free(mr); return 0; }
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *about, struct ibv_comp_channel *channel, int vector) {
  struct ibv_cq *cq = calloc(1, sizeof *cq);
  cq->context = context; cq->cqe = size; cq->cq_context = about;
  return cq;
}
int ibv_destroy_cq(struct ibv_cq *cq) { free(cq); return 0; }
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
  static unsigned number = 1;
  struct ibv_qp *qp = calloc(1, sizeof *qp);
  qp->context = pd->context; qp->pd = pd; qp->send_cq = init->send_cq; qp->recv_cq = init->recv_cq; qp->qp_num = ++number; qp->qp_type = init->qp_type;
  return qp;
}
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) { return 0; }
int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) { memset(attr, 0, sizeof *attr); return 0; }
int ibv_destroy_qp(struct ibv_qp *qp) { free(qp); return 0; }
