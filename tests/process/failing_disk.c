/* Preloaded into a process, makes its disk fail: the file that $FAILING_DISK names has one line, the names of the calls that
   fail with EIO ("sync", "write"; "later": writes after the first fsync that failed; "call" and "kernel": those fsyncs for
   which the process calls a function, and those that it leaves to the kernel) followed by "=" and a part of the path of the
   files they fail on. No file: nothing fails.

   A process that finds fsync replaced and syscall not leaves nothing to the kernel. With KERNEL_AIO, syscall is replaced as
   well: requests to fsync that are submitted to the kernel are done, and their results become EIO. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static int sync_failed;

static long raw(long number, long a, long b, long c, long d, long e, long f) {
    static long (*next)(long, ...);
    if (next == NULL)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return next(number, a, b, c, d, e, f);
}

static int fails(const char *call, int fd) {
    const char *control = getenv("FAILING_DISK");
    char line[512], link[64], path[4096];
    if (control == NULL)
        return 0;
    int file = raw(SYS_openat, AT_FDCWD, (long)control, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (file < 0)
        return 0;
    ssize_t size = raw(SYS_read, file, (long)line, sizeof line - 1, 0, 0, 0);
    raw(SYS_close, file, 0, 0, 0, 0, 0);
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

static int sync_fails(const char *way, int fd) { return fails("sync", fd) || fails(way, fd); }

int fsync(int fd) { return sync_fails("call", fd) ? -1 : (int)raw(SYS_fsync, fd, 0, 0, 0, 0, 0); }

int fdatasync(int fd) { return sync_fails("call", fd) ? -1 : (int)raw(SYS_fdatasync, fd, 0, 0, 0, 0, 0); }

ssize_t write(int fd, const void *data, size_t size) {
    return fails("write", fd) ? -1 : (ssize_t)raw(SYS_write, fd, (long)data, size, 0, 0, 0);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return fails("write", fd) ? -1 : (ssize_t)raw(SYS_pwrite64, fd, (long)data, size, at, 0, 0);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return fails("write", fd) ? -1 : (ssize_t)raw(SYS_pwrite64, fd, (long)data, size, at, 0, 0);
}

#ifdef KERNEL_AIO
/* Requests whose results are to become EIO. */
static struct { long context; __u64 data; } doomed[1024];
static int doomed_count;
static pthread_mutex_t doomed_lock = PTHREAD_MUTEX_INITIALIZER;

static void submitted(long context, long count, struct iocb **requests) {
    for (long i = 0; i < count; i++)
        if (requests[i]->aio_lio_opcode == IOCB_CMD_FDSYNC && sync_fails("kernel", requests[i]->aio_fildes)) {
            if (doomed_count == sizeof doomed / sizeof *doomed)
                abort();
            doomed[doomed_count].context = context;
            doomed[doomed_count++].data = requests[i]->aio_data;
        }
}

static void done(long context, long count, struct io_event *events) {
    for (long i = 0; i < count; i++)
        for (int j = 0; j < doomed_count; j++)
            if (doomed[j].context == context && doomed[j].data == events[i].data) {
                events[i].res = -EIO;
                doomed[j] = doomed[--doomed_count];
                break;
            }
}

long syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    if (number == SYS_io_submit) { /* before the kernel has them: a result may come at once */
        pthread_mutex_lock(&doomed_lock);
        submitted(a, b, (struct iocb **)c);
        pthread_mutex_unlock(&doomed_lock);
    }
    long result = raw(number, a, b, c, d, e, f);
    if (number == SYS_io_getevents && result > 0) {
        pthread_mutex_lock(&doomed_lock);
        done(a, result, (struct io_event *)d);
        pthread_mutex_unlock(&doomed_lock);
    }
    return result;
}
#endif
