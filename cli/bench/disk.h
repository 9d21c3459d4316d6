/* disk.h: how fast a directory's disk takes and gives a file, one piece after the other. */
#ifndef CLI_BENCH_DISK_H
#define CLI_BENCH_DISK_H

#include <stdbool.h>
#include <stddef.h>

/* Seconds; negative: failed, errno says why. Writing ends when the file is on stable storage. */
double cli_disk_write(const char *path, size_t n_bytes);
double cli_disk_read(const char *path, size_t n_bytes);
/* Asks the system to forget what it remembers of a file, so that reading means the disk. False:
 * it cannot. */
bool cli_disk_forget(const char *path);

#endif
