#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "guard.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kit.h"

enum { WATCHED = 0xA5 };

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static uint8_t *first_byte(const guarded *g) { return g->map + page_bytes(); }
static size_t inner_bytes(const guarded *g) { return g->map_bytes - 2 * page_bytes(); }

void guarded_open(guarded *g, size_t bytes, size_t alignment, bool at_end) {
    const size_t page = page_bytes(), inner = (bytes + alignment + page - 1) / page * page;
    g->map_bytes = inner + 2 * page;
    g->bytes = bytes;
    g->map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g->map != MAP_FAILED);
    assert_int_equal(mprotect(g->map, page, PROT_NONE), 0);
    assert_int_equal(mprotect(g->map + page + inner, page, PROT_NONE), 0);
    g->data = first_byte(g) + (at_end ? (inner - bytes) / alignment * alignment : 0);
    guarded_reset(g);
}

void guarded_close(guarded *g) {
    if (g->data)
        assert_int_equal(munmap(g->map, g->map_bytes), 0);
    *g = (guarded){0};
}

void guarded_reset(guarded *g) {
    memset(first_byte(g), WATCHED, inner_bytes(g));
    memset(g->data, 0xFF, g->bytes);
}

void guarded_writable(const guarded *g, bool writable) {
    if (g->data)
        assert_int_equal(
            mprotect(first_byte(g), inner_bytes(g), writable ? PROT_READ | PROT_WRITE : PROT_READ),
            0);
}

void guarded_check(const guarded *g, const char *name) {
    if (!g->data)
        return;
    const uint8_t *start = g->data, *end = start + g->bytes, *last = first_byte(g) + inner_bytes(g);
    for (const uint8_t *at = first_byte(g); at < last; at++) {
        if (at == start)
            at = end;
        if (at < last && *at != WATCHED)
            fail_msg("%s: byte %td of %zu was overwritten", name, at - start, g->bytes);
    }
}
