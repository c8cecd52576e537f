/* Preloaded into a process, makes its disk fail: the file that $FAILING_DISK names has one line, the names of the calls that
   fail with EIO ("sync", "write"; "later": writes after the first fsync that failed) followed by "=" and a part of the path
   of the files they fail on. No file: nothing fails. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static int sync_failed;

static int fails(const char *call, int fd) {
    const char *control = getenv("FAILING_DISK");
    char line[512], link[64], path[4096];
    if (control == NULL)
        return 0;
    int file = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t size = syscall(SYS_read, file, line, sizeof line - 1);
    syscall(SYS_close, file);
    if (size <= 0)
        return 0;
    line[size] = 0;
    line[strcspn(line, "\n")] = 0;
    char *part = strchr(line, '=');
    if (part == NULL)
        return 0;
    *part++ = 0;
    int is_write = strcmp(call, "write") == 0;
    if (strstr(line, call) == NULL && !(is_write && sync_failed && strstr(line, "later") != NULL))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    if (strstr(path, part) == NULL)
        return 0;
    sync_failed |= !is_write;
    errno = EIO;
    return 1;
}

int fsync(int fd) { return fails("sync", fd) ? -1 : (int)syscall(SYS_fsync, fd); }

int fdatasync(int fd) { return fails("sync", fd) ? -1 : (int)syscall(SYS_fdatasync, fd); }

ssize_t write(int fd, const void *data, size_t size) {
    return fails("write", fd) ? -1 : (ssize_t)syscall(SYS_write, fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return fails("write", fd) ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return fails("write", fd) ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, data, size, at);
}
