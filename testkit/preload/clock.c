// Preloaded into a relay: its wall clock is off by CLOCK_OFFSET seconds, its monotonic clock is right. Once the file SUSPENDED is there, its
// boot clock is an hour ahead, as if the machine had been suspended for so long, which the monotonic clock does not count. Waits until a time of
// day, which the Kafka client asks for, are shifted back, as the kernel of a machine with a wrong clock would have it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static time_t offset;
static const char *suspended;
static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_timedwait)(cnd_t *, mtx_t *, const struct timespec *);

__attribute__((constructor)) static void find(void) {
    const char *seconds = getenv("CLOCK_OFFSET");
    offset = seconds ? atol(seconds) : 0;
    suspended = getenv("SUSPENDED");
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_timedwait = dlsym(RTLD_NEXT, "cnd_timedwait");
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = real_gettime(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset;
    if (!failed && clock == CLOCK_BOOTTIME && suspended && access(suspended, F_OK) == 0) now->tv_sec += 3600;
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
