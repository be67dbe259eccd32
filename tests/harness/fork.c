/* Makes `chroot` fork, preloaded into a program of the tests: the standard library of Rust can call `chroot`, and has no safe
 * call that forks. In the child, `chroot` returns success; in the parent, it fails with the child's id as the error number. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int chroot(const char *path) {
    (void)path;
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        abort();
    }
    if (child == 0) {
        return 0;
    }
    errno = child;
    return -1;
}
