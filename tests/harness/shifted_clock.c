/* Preloaded into a server, adds the number of microseconds in the file SHIFTED_CLOCK to its wall clock. A number behind `=` is the
 * time itself. The monotonic clocks stay as they are, as when an administrator sets the time. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static void set(struct timespec *time) {
    static int file = -1;
    char text[32] = {0}; /* WIDTH of shifted_clock.rs, and the end */
    long long nanos;
    if (file < 0) {
        const char *path = getenv("SHIFTED_CLOCK");
        file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    }
    if (file < 0 || pread(file, text, sizeof text - 1, 0) <= 0) {
        return;
    }
    if (text[0] == '=') {
        nanos = atoll(text + 1) * 1000;
    } else {
        nanos = time->tv_sec * 1000000000LL + time->tv_nsec + atoll(text) * 1000;
    }
    time->tv_sec = nanos / 1000000000LL;
    time->tv_nsec = nanos % 1000000000LL;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        set(time);
    }
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) {
        return -1;
    }
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) {
        *place = now.tv_sec;
    }
    return now.tv_sec;
}
