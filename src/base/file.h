/* Files: written whole or not at all, read in full or with the reason why not. */
#ifndef QUIRE_BASE_FILE_H
#define QUIRE_BASE_FILE_H

#include "base/internal.h"
#include "base/status.h"

enum { QUIRE_PATH_BYTES = 4096, QUIRE_WRITE_BUFFER = 1 << 15 };

/* A file that takes the place of `path` at commit. Until then it is PATH.part, which belongs to
 * this writer alone; what a killed process left of it is overwritten by the next one. */
typedef struct quire_writer {
    int fd;
    uint64_t bytes;   /* written so far, buffer included */
    uint64_t started; /* of which the disk has been told to take */
    size_t n_buffered;
    char path[QUIRE_PATH_BYTES], part[QUIRE_PATH_BYTES];
    uint8_t buffer[QUIRE_WRITE_BUFFER];
} quire_writer;

QUIRE_INTERNAL quire_status
quire__writer_open(quire_writer *w, const char *path); /* E_IO, E_BUSY: another is writing it */
QUIRE_INTERNAL quire_status quire__writer_add(quire_writer *w, const void *bytes, size_t n_bytes);
/* Overwrites what was written before. */
quire_status quire__writer_patch(quire_writer *w, uint64_t offset, const void *bytes,
                                 size_t n_bytes);
/* On stable storage, then under its name, then its name on stable storage. The writer is closed,
 * also on failure. */
QUIRE_INTERNAL quire_status quire__writer_commit(quire_writer *w);
QUIRE_INTERNAL void
quire__writer_abort(quire_writer *w); /* after commit, or an open that failed: nothing to do */

/* Exactly n_bytes from `offset`. E_TRUNCATED: the file ends before. E_IO. */
QUIRE_INTERNAL quire_status quire__read_at(int fd, uint64_t offset, void *bytes, size_t n_bytes);

#endif
