/* Loaded before libc: as long as the file that FAILING_DISK names is there, reading what lies beside
 * it, under a folder "checkpoints", fails with EIO. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(int file) {
    const char *on = getenv("FAILING_DISK");
    if (!on || access(on, F_OK)) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    size_t folder = strrchr(on, '/') - on + 1;
    return !strncmp(path, on, folder) && strstr(path + folder, "/checkpoints/");
}

ssize_t read(int file, void *to, size_t count) {
    int before = errno;
    if (fails(file)) return errno = EIO, -1;
    errno = before;
    return ((ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read"))(file, to, count);
}

ssize_t pread(int file, void *to, size_t count, off_t at) {
    int before = errno;
    if (fails(file)) return errno = EIO, -1;
    errno = before;
    return ((ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(file, to, count, at);
}

ssize_t pread64(int file, void *to, size_t count, off64_t at) { return pread(file, to, count, at); }
