/* Files: written completely or not at all; reads return all bytes or an error. */
#ifndef QUIRE_BASE_FILE_H
#define QUIRE_BASE_FILE_H

#include "base/internal.h"
#include "base/status.h"

enum { QUIRE_PATH_BYTES = 4096, QUIRE_WRITE_BUFFER = 1 << 15 };

/* A file that replaces `path` at commit. Until then it is PATH.part, made and locked by this
 * writer. Only its owner can read it. If a process is killed, the next writer removes what it left.
 */
typedef struct quire_writer {
    int fd;
    uint64_t bytes;   /* written so far, buffer included */
    uint64_t started; /* of which write-back has been started */
    size_t n_buffered;
    char path[QUIRE_PATH_BYTES], part[QUIRE_PATH_BYTES];
    uint8_t buffer[QUIRE_WRITE_BUFFER];
} quire_writer;

/* E_IO. E_BUSY: another writer has it. */
QUIRE_INTERNAL quire_status quire__writer_open(quire_writer *w, const char *path);
QUIRE_INTERNAL quire_status quire__writer_add(quire_writer *w, const void *bytes, size_t n_bytes);
/* Overwrites bytes written earlier. */
quire_status quire__writer_patch(quire_writer *w, uint64_t offset, const void *bytes,
                                 size_t n_bytes);
/* Syncs the file, renames it, and syncs the directory. Closes the writer, also on failure. */
QUIRE_INTERNAL quire_status quire__writer_commit(quire_writer *w);
/* Does nothing after a commit or a failed open. */
QUIRE_INTERNAL void quire__writer_abort(quire_writer *w);

/* Reads exactly n_bytes from `offset`. E_TRUNCATED: the file ends earlier. E_IO. */
QUIRE_INTERNAL quire_status quire__read_at(int fd, uint64_t offset, void *bytes, size_t n_bytes);

#endif
