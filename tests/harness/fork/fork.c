/* Makes `chroot` fork, preloaded into a program of the tests: the standard library of Rust can call `chroot`, and has no safe
 * call that forks. In the child, `chroot` returns success; in the parent, it fails with the child's id as the error number.
 *
 * A child may not use a file that its parent had open at the fork, except the standard streams. A call that reads, writes,
 * shuts down or polls such a file ends the child with the status 99 and a line that names the call. Closing it is allowed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST 4096

static char inherited[MOST];

int chroot(const char *path) {
    (void)path;
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        abort();
    }
    if (child == 0) {
        for (int file = 3; file < MOST; file++) {
            inherited[file] = fcntl(file, F_GETFD) != -1;
        }
        return 0;
    }
    errno = child;
    return -1;
}

static void check(int file, const char *call) {
    if (file >= 0 && file < MOST && inherited[file]) {
        dprintf(2, "%s of the inherited file %d\n", call, file);
        _exit(99);
    }
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define CHECKED(type, name, parameters, ...)    \
    type name parameters {                      \
        check(file, #name);                     \
        return NEXT(name)(__VA_ARGS__);         \
    }

CHECKED(ssize_t, read, (int file, void *to, size_t size), file, to, size)
CHECKED(ssize_t, readv, (int file, const struct iovec *to, int count), file, to, count)
CHECKED(ssize_t, recv, (int file, void *to, size_t size, int flags), file, to, size, flags)
CHECKED(ssize_t, write, (int file, const void *from, size_t size), file, from, size)
CHECKED(ssize_t, writev, (int file, const struct iovec *from, int count), file, from, count)
CHECKED(ssize_t, send, (int file, const void *from, size_t size, int flags), file, from, size, flags)
CHECKED(ssize_t, sendmsg, (int file, const struct msghdr *message, int flags), file, message, flags)
CHECKED(int, shutdown, (int file, int how), file, how)
CHECKED(int, epoll_wait, (int file, struct epoll_event *events, int most, int timeout), file, events, most, timeout)

/* The inherited file may be the epoll instance, or the file that is added to it or taken from it. */
int epoll_ctl(int file, int what, int other, struct epoll_event *event) {
    check(file, "epoll_ctl");
    check(other, "epoll_ctl");
    return NEXT(epoll_ctl)(file, what, other, event);
}

/* After a close, the next file with this number is the child's own. */
int close(int file) {
    if (file >= 0 && file < MOST) {
        inherited[file] = 0;
    }
    return NEXT(close)(file);
}
