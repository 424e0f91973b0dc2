/* A wall clock that is off by the seconds in /etc/clock_shift; for LD_PRELOAD or /etc/ld.so.preload.
 *
 * Monotonic clocks and sleeps stay as they are. A wait until a moment of the wall clock gets its deadline moved
 * back, as a kernel whose clock is off would wait: C++'s wait_for() computes such moments from the shifted clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Nobody's uptime: a later deadline is one of the wall clock, whichever clock its condition variable has. */
#define LONGEST_UPTIME 1000000000L

static long shift;

__attribute__((constructor)) static void read_shift(void)
{
    char text[32] = {0};
    int file = open("/etc/clock_shift", O_RDONLY | O_CLOEXEC);
    if (file >= 0 && read(file, text, sizeof text - 1) > 0)
        shift = atol(text);
    if (file >= 0)
        close(file);
}

static int is_wall(clockid_t id)
{
    return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
}

static struct timespec kernels(const struct timespec *deadline)
{
    struct timespec moved = *deadline;
    if (moved.tv_sec > LONGEST_UPTIME)
        moved.tv_sec -= shift;
    return moved;
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && is_wall(id))
        now->tv_sec += shift;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *until, struct timespec *rest)
{
    int (*real)(clockid_t, int, const struct timespec *, struct timespec *) = dlsym(RTLD_NEXT, "clock_nanosleep");
    struct timespec moved = flags & TIMER_ABSTIME ? kernels(until) : *until;
    return real(id, flags, &moved, rest);
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    /* x86-64 has an older one of the same name, for condition variables of another layout. */
    real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real)
        real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec moved = kernels(until);
    return real(cond, mutex, &moved);
}

int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t id, const struct timespec *until)
{
    int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    struct timespec moved = kernels(until);
    return real(cond, mutex, id, &moved);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until)
{
    int (*real)(sem_t *, const struct timespec *) = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec moved = kernels(until);
    return real(semaphore, &moved);
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until)
{
    int (*real)(pthread_mutex_t *, const struct timespec *) = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    struct timespec moved = kernels(until);
    return real(mutex, &moved);
}
