/* kv_side.h: K or V of one layer, and where its rows are.
 *
 *   NEW     no graph has shown the layer yet. Rows that the host sets (a saved state) lie plain in
 *           the addresses that ggml gave the tensor; `marked` says which.
 *   PACKED  rows are in the pages of a group (kv_group.h). The addresses cannot be touched.
 *   PLAIN   rows are in the addresses, as ggml believes. Graphs are not changed there. Once plain,
 *           always plain; `why` says why.
 */
#ifndef QUIRE_PLUGIN_KV_SIDE_H
#define QUIRE_PLUGIN_KV_SIDE_H

#include "host_ggml.h"

#include <quire_cells.h>

enum side_state { SIDE_NEW, SIDE_PACKED, SIDE_PLAIN };

struct kv_buffer;
struct kv_group;

struct kv_side {
    struct kv_buffer *buffer;
    char name[GGML_MAX_NAME];
    enum ggml_type type;
    char *data;      /* the addresses */
    int64_t row;     /* elements of a cell: all KV heads */
    int64_t n_cells; /* of one stream */
    int64_t n_streams;
    size_t row_bytes;
    _Atomic int32_t max_rows; /* of one write, in any graph that was laid out so far */

    enum side_state state;
    char why[96];
    bool lent;            /* packed, but its rows are in the addresses for a while */
    _Atomic bool refused; /* rows of the running graph were refused: counted once */
    uint64_t *marked;     /* (cells of all streams) bits, or NULL */
    int64_t *kept; /* (n_kept) of a packed K, the cells of its last write in a part of a graph */
    int32_t n_kept;
    struct kv_group *group;
    struct kv_side *partner; /* V of this K, or K of this V: they are packed or plain together */
    int32_t index;           /* of their layer in the group */
    quire_side which;
    int32_t n_heads, n_kv_heads, k_dim, v_dim; /* that the pages were made for, once packed */
};

static inline int64_t kv_side_cells(const struct kv_side *side) {
    return side->n_cells * side->n_streams;
}

/* The library's name of a type in which rows can be exchanged; false: ggml's own quantized types.
 */
bool kv_side_type(const struct kv_side *side, quire_type *type);

/* Bytes of the tensor, as the host sees it, wherever the rows are. */
void kv_side_get(struct kv_side *side, size_t offset, void *data, size_t size);
void kv_side_set(struct kv_side *side, size_t offset, const void *data, size_t size);
/* Within a packed side, whole pages; false: not possible so, nothing was done. */
bool kv_side_copy(struct kv_side *side, size_t from, size_t to, size_t size);
/* Its memory and its pages were just cleared. */
void kv_side_cleared(struct kv_side *side);

/* Cells that a graph writes while the side is new. */
void kv_side_mark(struct kv_side *side, int64_t first, int64_t end);

/* Remembers the cells of a write until attention that another part of the graph computes. By then
 * the graph may have used their memory for something else. False: no memory. */
bool kv_side_keep(struct kv_side *side, const int64_t *cells, int32_t n);

/* Rows of cells first .. first + n - 1 into pages. False: refused (quire_last_error). */
bool kv_side_write_range(struct kv_side *side, int64_t first, int64_t n, const void *rows);

/* NEW -> PACKED: what was set so far moves into the pages. False: refused. */
bool kv_side_pack(struct kv_side *side);
/* NEW or PACKED -> PLAIN, and its partner too. Rows that cannot be had are zeros then, and its
 * `why` says so. */
void kv_side_make_plain(struct kv_side *side, const char *why);

/* Puts all rows of a packed side into the addresses, for a while. kv_side_return forgets them
 * again, unless the side has become plain. False: they cannot be had, and nothing was done. */
bool kv_side_lend(struct kv_side *side);
void kv_side_return(struct kv_side *side);

void kv_side_free(struct kv_side *side);

#endif
