/* What the tests of stores share: directories for them, texts, and pools of several shapes. */
#ifndef QUIRE_TESTS_STORE_KIT_H
#define QUIRE_TESTS_STORE_KIT_H

#include "kit.h"

/* A directory that is not there yet, in memory where the machine has such a place. Valid until
 * the next call but three. */
const char *store_dir(const char *name);
void store_remove_all(void);
int store_teardown(void **state); /* removes stores and saved files, as a group's teardown */

/* Token ids of a text; texts of the same seed share all of them. */
void text_tokens(uint64_t seed, int n, int32_t *tokens);

typedef enum pool_kind { POOL_FULL, POOL_WINDOWS, POOL_MIXED, POOL_KEEP, POOL_KINDS } pool_kind;

/* Three layers: no window; all with one; one without and two with different ones, raw and
 * packed; windows with kept tokens. */
void open_pool(fixture *f, const char *kv, pool_kind kind, quire_type raw);
/* One layer of one head of 32: small records. */
void open_small_pool(fixture *f, const char *kv);

/* Both sequences take n tokens, in single steps and in one piece; every output must have the
 * same bits. */
void assert_same_future(fixture *fa, quire_seq *a, fixture *fb, quire_seq *b, const source *s,
                        int n);

#endif
