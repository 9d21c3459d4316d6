/* disk.h: times sequential writing and reading of a file. */
#ifndef CLI_BENCH_DISK_H
#define CLI_BENCH_DISK_H

#include <stdbool.h>
#include <stddef.h>

/* Return seconds; negative: failed, with the reason in errno. Writing includes fsync. */
double cli_disk_write(const char *path, size_t n_bytes);
double cli_disk_read(const char *path, size_t n_bytes);
/* Drops a file from the page cache, so that reading it means reading the disk. False: not
 * possible. */
bool cli_disk_forget(const char *path);

#endif
