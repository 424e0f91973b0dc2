/* Puts all of this in the place of the CUDA runtime that is linked into a libnccl.so.2.
 *
 * NVIDIA's wheels are not stripped: .symtab says where each cudaXxx of the statically linked runtime begins. Its first
 * bytes, in memory alone, become a jump to ours of the same name, or to an error where we have none. NCCL finds the
 * driver's functions through cudaGetDriverEntryPoint, hence with us, and NVML by our SONAME, libnvidia-ml.so.1. */
#include "fake.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JUMP = 14, PAGE = 4096, LEAST_TO_REFUSE = 64 };
static int patched;
static char path_of_nccl[PATH_MAX];
static void *library;
/* ncclProxySaveOp: nothing to do for the proxies where kernels do nothing either, else ncclCommDestroy waits for ever. */
static const char SAVE_OP[] = "_Z15ncclProxySaveOpP8ncclCommP11ncclProxyOpPb";
static const unsigned char NO_WORK[] = {0x48, 0x85, 0xd2, 0x74, 0x03, 0xc6, 0x02, 0x00, 0x31, 0xc0, 0xc3}; /* if (rdx) *rdx = 0; return 0 */

void *ourselves(void) {
    static void *handle;
    if (!handle) {
        Dl_info info;
        dladdr((void *)ourselves, &info);
        handle = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    return handle;
}

int nccl_version(void) {
    static int version;
    int (*ask)(int *) = library ? dlsym(library, "ncclGetVersion") : 0;
    if (!version && ask) ask(&version);
    return version;
}

static E not_faked(void) {
    say("a CUDA function that is not faked was called");
    return failed(UNSUPPORTED);
}

/* What a function of libnccl becomes; 0: it stays as it is. */
static void *instead_of(const char *name, size_t size) {
    if (strncmp(name, "cuda", 4) || name[4] < 'A' || name[4] > 'Z' || strchr(name, '.')) return 0;
    void *ours = dlsym(ourselves(), name);
    if (!ours && size >= LEAST_TO_REFUSE) ours = (void *)not_faked;
    return size >= JUMP ? ours : 0;
}

static int write_jumps(char *file, char *base) {
    Elf64_Ehdr *header = (void *)file;
    Elf64_Shdr *sections = (void *)(file + header->e_shoff);
    int idle = !strcmp(text("FAKECUDA_KERNEL", "run"), "done"), n = 0;
    for (int k = 0; k < header->e_shnum; k++) {
        if (sections[k].sh_type != SHT_SYMTAB) continue;
        Elf64_Sym *symbol = (void *)(file + sections[k].sh_offset), *end = (void *)((char *)symbol + sections[k].sh_size);
        const char *names = file + sections[sections[k].sh_link].sh_offset;
        for (; symbol < end; symbol++) {
            if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || !symbol->st_value) continue;
            const char *name = names + symbol->st_name;
            char *at = base + symbol->st_value;
            if (idle && !strcmp(name, SAVE_OP)) memcpy(at, NO_WORK, sizeof NO_WORK);
            void *ours = instead_of(name, symbol->st_size);
            if (!ours) continue;
            memcpy(at, "\xff\x25\0\0\0\0", 6); /* jmp *0(%rip) */
            memcpy(at + 6, &ours, 8);
            n++;
        }
    }
    return n;
}

static int protect(struct dl_phdr_info *info, int how) {
    for (int k = 0; k < info->dlpi_phnum; k++) {
        const Elf64_Phdr *part = &info->dlpi_phdr[k];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        u64 low = (info->dlpi_addr + part->p_vaddr) & ~(u64)(PAGE - 1);
        u64 high = round_up(info->dlpi_addr + part->p_vaddr + part->p_memsz, PAGE);
        if (mprotect((void *)low, high - low, how)) return -1;
    }
    return 0;
}

static int patch(struct dl_phdr_info *info, size_t size, void *argument) {
    const char *path = info->dlpi_name, *slash = path ? strrchr(path, '/') : 0;
    struct stat status;
    if (!path || strncmp(slash ? slash + 1 : path, "libnccl.so", 10)) return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status)) return 0;
    char *file = mmap(0, status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED || protect(info, PROT_READ | PROT_WRITE | PROT_EXEC)) return 0;
    patched = write_jumps(file, (char *)info->dlpi_addr);
    protect(info, PROT_READ | PROT_EXEC);
    munmap(file, status.st_size);
    snprintf(path_of_nccl, sizeof path_of_nccl, "%s", path);
    return 1;
}

/* How many functions of a libnccl.so.2 are ours now; 0: none is loaded, or it has no symbols. */
API int fakecuda_attach(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static __thread int inside;
    if (patched || inside) return patched;
    inside = 1;
    pthread_mutex_lock(&lock);
    ourselves();
    if (!patched && dl_iterate_phdr(patch, 0)) library = dlopen(path_of_nccl, RTLD_NOW | RTLD_NOLOAD);
    pthread_mutex_unlock(&lock);
    inside = 0;
    return patched;
}

API E cudaGetDriverEntryPoint(const char *name, void **out, u64 flags, int *status) {
    IN;
    *out = dlsym(ourselves(), name);
    if (!*out && traced()) say("no %s", name);
    if (status) *status = *out ? 0 : 1;
    return *out || status ? OK : failed(NOT_FOUND);
}
API E cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, u64 flags, int *status) {
    return cudaGetDriverEntryPoint(name, out, flags, status);
}

/* -- collectives, told to ring.c by whoever calls them through us ---------------------------------------------------- */
API void fakecuda_told(int kind, int type, int operation, const void *send, void *receive);
#define REAL(name) ((typeof(&name))dlsym((fakecuda_attach(), library), #name))
API E ncclAllReduce(const void *s, void *r, size_t n, int type, int op, void *comm, void *stream) {
    fakecuda_told(0, type, op, s, r);
    return REAL(ncclAllReduce)(s, r, n, type, op, comm, stream);
}
API E ncclBroadcast(const void *s, void *r, size_t n, int type, int root, void *comm, void *stream) {
    fakecuda_told(1, type, 0, s, r);
    return REAL(ncclBroadcast)(s, r, n, type, root, comm, stream);
}
API E ncclReduce(const void *s, void *r, size_t n, int type, int op, int root, void *comm, void *stream) {
    fakecuda_told(2, type, op, s, r);
    return REAL(ncclReduce)(s, r, n, type, op, root, comm, stream);
}
API E ncclAllGather(const void *s, void *r, size_t n, int type, void *comm, void *stream) {
    fakecuda_told(3, type, 0, s, r);
    return REAL(ncclAllGather)(s, r, n, type, comm, stream);
}
API E ncclReduceScatter(const void *s, void *r, size_t n, int type, int op, void *comm, void *stream) {
    fakecuda_told(4, type, op, s, r);
    return REAL(ncclReduceScatter)(s, r, n, type, op, comm, stream);
}
