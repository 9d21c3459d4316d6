/* Memory that notices: bytes around a buffer are watched, and the pages next to it cannot be
 * touched at all.
 *
 *   | no access | 0xA5 .. | data | 0xA5, less than the alignment | no access |      at_end:
 *                                                                                   reads past
 *                                                                                   the end trap
 *   | no access | data | 0xA5 ..                                 | no access |      else: reads
 * before the start do
 */
#ifndef QUIRE_TESTS_GUARD_H
#define QUIRE_TESTS_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct guarded {
    uint8_t *map;
    size_t map_bytes;
    void *data; /* NULL: not open */
    size_t bytes;
} guarded;

/* Data is 0xFF, which is NaN to anyone who reads floats that he did not write. */
void guarded_open(guarded *g, size_t bytes, size_t alignment, bool at_end);
void guarded_close(guarded *g);
void guarded_reset(guarded *g); /* data and surroundings as after guarded_open */
void guarded_writable(const guarded *g,
                      bool writable); /* a write to what is only read traps as well */
void guarded_check(const guarded *g,
                   const char *name); /* fails the test if the surroundings changed */

#endif
