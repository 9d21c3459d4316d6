/* kv_side.c: rows of a side as the host sees them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kv_group.h"
#include "kv_side.h"
#include "usage.h"

bool kv_side_type(const struct kv_side *side, quire_type *type) {
    switch (side->type) {
    case GGML_TYPE_F32:
        *type = QUIRE_F32;
        return true;
    case GGML_TYPE_F16:
        *type = QUIRE_F16;
        return true;
    case GGML_TYPE_BF16:
        *type = QUIRE_BF16;
        return true;
    default:
        return false;
    }
}

static quire_type row_type(const struct kv_side *side) {
    quire_type type = QUIRE_F16;
    kv_side_type(side, &type);
    return type;
}

/* ---------------------------------------------------------------- the addresses */

/* Whole pages of memory inside the tensor's addresses; what shares a page with a neighbour stays.
 */
static bool pages_of(const struct kv_side *side, char **first, size_t *bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)side->data;
    uintptr_t to = from + (size_t)kv_side_cells(side) * side->row_bytes;
    from = (from + page - 1) / page * page;
    to = to / page * page;
    *first = (char *)from;
    *bytes = to > from ? to - from : 0;
    return *bytes > 0;
}

/* A stray access to packed rows faults here instead of reading zeros. */
static void close_addresses(const struct kv_side *side) {
    char *first;
    size_t bytes;
    if (pages_of(side, &first, &bytes)) {
        madvise(first, bytes, MADV_DONTNEED);
        mprotect(first, bytes, PROT_NONE);
    }
}

static bool open_addresses(const struct kv_side *side) {
    char *first;
    size_t bytes;
    return !pages_of(side, &first, &bytes) || mprotect(first, bytes, PROT_READ | PROT_WRITE) == 0;
}

/* ---------------------------------------------------------------- rows in pages */

bool kv_side_write_range(struct kv_side *side, int64_t first, int64_t n, const void *rows) {
    enum { PART = 1024 };
    int64_t cells[PART], most = side->group->max_rows < PART ? side->group->max_rows : PART;
    for (int64_t done = 0; done < n;) {
        int64_t part = n - done < most ? n - done : most;
        /* up to the end of a page: one that is written at once is packed at once */
        if (part < n - done && part > QUIRE_PAGE_TOKENS)
            part -= (first + done + part) % QUIRE_PAGE_TOKENS;
        for (int64_t i = 0; i < part; i++)
            cells[i] = first + done + i;
        quire_rows source = {.data = (const char *)rows + (size_t)done * side->row_bytes,
                             .type = row_type(side)};
        if (quire_cells_plan(side->group->cells, side->index, side->which, cells, (int32_t)part,
                             0) != QUIRE_OK ||
            quire_cells_write(side->group->cells, side->index, side->which, source, 0, 1) !=
                QUIRE_OK)
            return false;
        done += part;
    }
    return true;
}

static bool read_range(struct kv_side *side, int64_t first, int64_t n, void *rows) {
    return quire_cells_read(side->group->cells, side->index, side->which, first, n, row_type(side),
                            rows) == QUIRE_OK;
}

/* ---------------------------------------------------------------- changing state */

void kv_side_mark(struct kv_side *side, int64_t first, int64_t end) {
    size_t words = (size_t)(kv_side_cells(side) + 63) / 64;
    if (!side->marked)
        side->marked = calloc(words, sizeof *side->marked);
    if (!side->marked) {
        kv_side_make_plain(side, "out of memory");
        return;
    }
    for (int64_t cell = first; cell < end; cell++)
        if (cell >= 0 && cell < kv_side_cells(side)) /* ggml-cpu refuses others when it writes */
            side->marked[cell / 64] |= UINT64_C(1) << (cell % 64);
}

static bool is_marked(const struct kv_side *side, int64_t cell) {
    return side->marked && (side->marked[cell / 64] >> (cell % 64) & 1);
}

bool kv_side_pack(struct kv_side *side) {
    side->state = SIDE_PACKED;
    for (int64_t first = 0, end; side->marked && first < kv_side_cells(side); first = end) {
        for (end = first + 1;
             end < kv_side_cells(side) && is_marked(side, end) == is_marked(side, first);)
            end++;
        if (is_marked(side, first) &&
            !kv_side_write_range(side, first, end - first,
                                 side->data + (size_t)first * side->row_bytes)) {
            side->state = SIDE_NEW;
            return false;
        }
    }
    free(side->marked);
    side->marked = NULL;
    close_addresses(side);
    return true;
}

void kv_side_make_plain(struct kv_side *side, const char *why) {
    if (side->state == SIDE_PLAIN)
        return;
    bool kept = side->state != SIDE_PACKED || side->lent || kv_side_lend(side);
    if (!kept && open_addresses(side)) /* as a program would get them */
        memset(side->data, 0, (size_t)kv_side_cells(side) * side->row_bytes);
    side->lent = false;
    side->state = SIDE_PLAIN;
    snprintf(side->why, sizeof side->why, "%s%s", kept ? "" : "its rows were lost: ", why);
    free(side->marked);
    side->marked = NULL;
    kv_group_changed();
    if (side->partner)
        kv_side_make_plain(side->partner, why);
}

bool kv_side_keep(struct kv_side *side, const int64_t *cells, int32_t n) {
    int64_t *kept = realloc(side->kept, (size_t)n * sizeof *kept);
    if (!kept)
        return false;
    memcpy(kept, cells, (size_t)n * sizeof *kept);
    side->kept = kept;
    side->n_kept = n;
    return true;
}

bool kv_side_lend(struct kv_side *side) {
    side->lent = open_addresses(side) && read_range(side, 0, kv_side_cells(side), side->data);
    if (side->lent)
        return true;
    usage_count(&usage.refused, 1);
    close_addresses(side);
    return false;
}

void kv_side_return(struct kv_side *side) {
    if (!side->lent)
        return;
    side->lent = false;
    close_addresses(side);
}

/* ---------------------------------------------------------------- bytes for the host */

/* A range of bytes as cells: the first one, and the cell behind the last. */
static void cells_of(const struct kv_side *side, size_t offset, size_t size, int64_t *first,
                     int64_t *end) {
    *first = (int64_t)(offset / side->row_bytes);
    *end = (int64_t)((offset + size + side->row_bytes - 1) / side->row_bytes);
}

/* The rows of cells first .. end - 1, which the caller frees. NULL: `why` says why not. */
static char *rows_of(struct kv_side *side, int64_t first, int64_t end, const char **why) {
    char *rows = malloc((size_t)(end - first) * side->row_bytes);
    *why = rows ? NULL : "out of memory";
    if (!rows || read_range(side, first, end - first, rows))
        return rows;
    *why = quire_last_error();
    free(rows);
    return NULL;
}

/* Parts of rows go through a copy of these rows. llama.cpp asks for whole rows of packed sides. */
static bool get_part(struct kv_side *side, size_t offset, void *data, size_t size) {
    int64_t first, end;
    const char *why;
    cells_of(side, offset, size, &first, &end);
    char *rows = rows_of(side, first, end, &why);
    if (rows)
        memcpy(data, rows + (offset - (size_t)first * side->row_bytes), size);
    free(rows);
    return rows != NULL;
}

/* NULL, or why pages did not take the bytes. */
static const char *set_part(struct kv_side *side, size_t offset, const void *data, size_t size) {
    int64_t first, end;
    const char *why;
    cells_of(side, offset, size, &first, &end);
    char *rows = rows_of(side, first, end, &why);
    if (!rows)
        return why;
    memcpy(rows + (offset - (size_t)first * side->row_bytes), data, size);
    bool good = kv_side_write_range(side, first, end - first, rows);
    free(rows);
    return good ? NULL : quire_last_error();
}

static const char *set_rows(struct kv_side *side, size_t offset, const void *data, size_t size) {
    return kv_side_write_range(side, (int64_t)(offset / side->row_bytes),
                               (int64_t)(size / side->row_bytes), data)
               ? NULL
               : quire_last_error();
}

static bool is_whole_rows(const struct kv_side *side, size_t offset, size_t size) {
    return offset % side->row_bytes == 0 && size % side->row_bytes == 0;
}

void kv_side_get(struct kv_side *side, size_t offset, void *data, size_t size) {
    usage_count(&usage.gets, 1);
    if (side->state != SIDE_PACKED) {
        memcpy(data, side->data + offset, size);
        return;
    }
    bool good = is_whole_rows(side, offset, size)
                    ? read_range(side, (int64_t)(offset / side->row_bytes),
                                 (int64_t)(size / side->row_bytes), data)
                    : get_part(side, offset, data, size);
    if (good)
        return;
    usage_count(&usage.refused, 1);
    memset(data, 0, size);
}

void kv_side_set(struct kv_side *side, size_t offset, const void *data, size_t size) {
    usage_count(&usage.sets, 1);
    if (side->state == SIDE_PACKED) {
        const char *why = is_whole_rows(side, offset, size) ? set_rows(side, offset, data, size)
                                                            : set_part(side, offset, data, size);
        if (!why)
            return;
        usage_count(&usage.refused, 1);
        kv_side_make_plain(side, why);
    } else if (side->state == SIDE_NEW) {
        int64_t first, end;
        cells_of(side, offset, size, &first, &end);
        kv_side_mark(side, first, end);
    }
    memcpy(side->data + offset, data, size);
}

bool kv_side_copy(struct kv_side *side, size_t from, size_t to, size_t size) {
    size_t page = side->row_bytes * QUIRE_PAGE_TOKENS;
    if (side->state != SIDE_PACKED || from % page || to % page || size % page)
        return false;
    if (quire_cells_copy(side->group->cells, side->index, side->which,
                         (int64_t)(from / side->row_bytes), (int64_t)(to / side->row_bytes),
                         (int64_t)(size / side->row_bytes)) != QUIRE_OK)
        return false;
    usage_count(&usage.copies, 1);
    return true;
}

void kv_side_cleared(struct kv_side *side) {
    if (side->state == SIDE_PACKED)
        close_addresses(side);
    free(side->marked);
    side->marked = NULL;
}

void kv_side_free(struct kv_side *side) {
    free(side->marked);
    free(side->kept);
}
