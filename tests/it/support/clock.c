// Preloaded into a relay: its wall clock is off by CLOCK_OFFSET seconds, its monotonic clock is right. Waits until a time of
// day, which the Kafka client asks for, are shifted back, as the kernel of a machine with a wrong clock would have it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>

static time_t offset;
static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_timedwait)(cnd_t *, mtx_t *, const struct timespec *);

__attribute__((constructor)) static void find(void) {
    offset = atol(getenv("CLOCK_OFFSET"));
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_timedwait = dlsym(RTLD_NEXT, "cnd_timedwait");
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = real_gettime(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}

int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *until) {
    struct timespec shifted = *until;
    shifted.tv_sec -= offset;
    return real_timedwait(condition, mutex, &shifted);
}
