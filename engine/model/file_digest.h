/* file_digest.h: the digest of a large file, computed once and kept for the next process.
 *
 * It is kept in DIRECTORY/file-DEVICE-INODE together with the file's size and times of change,
 * and is used as long as these are the same. Nobody who writes to a file can set its ctime, so a
 * file with another content is told apart even where its mtime was put back; only writes through
 * a mapping of the file may go unnoticed until they reach the disk. */
#ifndef ENGINE_MODEL_FILE_DIGEST_H
#define ENGINE_MODEL_FILE_DIGEST_H

#include "base/hash.h"
#include "base/status.h"

typedef quire_status quire__digest_job(void *user, quire_digest *digest);

/* `compute` is called unless the digest is kept. It is not kept if the file changed meanwhile,
 * or had changed less than two seconds before `now` (seconds of the clock that files have): the
 * next change could leave the same times. directory NULL: nothing is kept. */
quire_status quire__file_digest(const char *directory, int fd, int64_t now,
                                quire__digest_job *compute, void *user, quire_digest *digest);

#endif
