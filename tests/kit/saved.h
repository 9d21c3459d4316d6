/* What the tests of saved files share: a directory for them, and files changed on purpose. */
#ifndef QUIRE_TESTS_SAVED_H
#define QUIRE_TESTS_SAVED_H

#include "kit.h"

/* A path in a directory of this process's own. Valid until the next call but three. */
const char *saved_path(const char *name);
void saved_remove_all(void);      /* files and directory */
int saved_teardown(void **state); /* the same, as a group's teardown */

typedef struct bytes {
    uint8_t *data;
    size_t n;
} bytes;

bytes file_read(const char *path); /* free(data) */
void file_write(const char *path, const void *data, size_t n);
/* Makes every checksum right again after a change, as someone who means harm would. Sections
 * stay where they are. */
void file_sign(bytes file);
void file_sign_header(bytes file); /* header and table alone */

/* Opens, and loads into the pool; the first status that is not OK. The sequence is NULL on
 * failure. */
quire_status saved_load(quire_pool *pool, const char *path, const quire_load_options *options,
                        quire_seq **seq);

#endif
