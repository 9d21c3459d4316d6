/* Sealed pages outside a pool, piece by piece: what src/store keeps, and all that it knows of
 * sequences.
 *
 * 64 tokens are kept as a few pieces, so that nobody need hold or fetch what has left a window:
 *
 *   piece 0        the leaves of all classes without a window, in their order; for page 0 each
 *                  packed class's leaf is followed by its raw sinks. It may have no bytes (every
 *                  layer has a window), but every page has it
 *   piece 1 + 2g   the leaf of class g, which has a window
 *   piece 2 + 2g   for page 0: the raw sinks of class g, which has a window, packs, and has
 *                  sinks
 */
#ifndef QUIRE_FILE_PAGE_PIECE_H
#define QUIRE_FILE_PAGE_PIECE_H

#include "base/internal.h"
#include "file/snapshot.h"

/* Classes of a pool or of a form. */
typedef struct quire_pieces {
    const quire_class *class;
    int32_t n_classes;
} quire_pieces;

static inline quire_pieces quire__pool_pieces(const quire_pool *pool) {
    return (quire_pieces){pool->class, pool->n_classes};
}
static inline quire_pieces quire__form_pieces(const quire_form *form) {
    return (quire_pieces){form->class, form->n_classes};
}
static inline int32_t quire__piece_count(quire_pieces p) { return 1 + 2 * p.n_classes; }

/* Whether a page can have such a piece at all. */
QUIRE_INTERNAL bool quire__piece_exists(quire_pieces p, int32_t piece, int32_t page);
/* Whether a sequence of n_pages full pages and nothing more needs it. */
QUIRE_INTERNAL bool quire__piece_needed(quire_pieces p, int32_t piece, int32_t page,
                                        int32_t n_pages);
QUIRE_INTERNAL size_t quire__piece_bytes(quire_pieces p, int32_t piece, int32_t page);
/* Where the leaf of a class without a window lies in piece 0; its sinks, if it has some there,
 * follow it. */
QUIRE_INTERNAL size_t quire__piece_offset(quire_pieces p, int32_t page, int32_t class);
QUIRE_INTERNAL size_t quire__piece_leaf_bytes(const quire_class *class);
/* The first page that such a sequence still has of a class. */
QUIRE_INTERNAL int32_t quire__live_from(const quire_class *class, int32_t n_pages);

/* ---- out of a sequence, between quire__seq_hold and quire__seq_in_file(seq, false) */
QUIRE_INTERNAL bool quire__seq_has_piece(const quire_seq *seq, int32_t piece, int32_t page);
QUIRE_INTERNAL void quire__seq_piece(const quire_seq *seq, int32_t piece, int32_t page,
                                     uint8_t *to);

/* ---- out of a file, which quire_file_check found sound */
QUIRE_INTERNAL bool quire__file_has_piece(const quire_file *file, int32_t piece, int32_t page);
QUIRE_INTERNAL quire_status quire__file_piece(const quire_file *file, int32_t piece, int32_t page,
                                              uint8_t *to);
/* The section "layers", as it is. */
QUIRE_INTERNAL const uint8_t *quire__file_layers(const quire_file *file, size_t *n_bytes);

/* ---- into a new sequence: begin, reserve, every piece that it needs, end. Nobody else sees it
 * in between, and the pool's form stays what it is. */
QUIRE_INTERNAL quire_status quire__seq_begin_pieces(quire_pool *pool,
                                                    quire_seq **seq); /* E_NO_SLOT */
QUIRE_INTERNAL quire_status quire__seq_reserve_pieces(quire_seq *seq,
                                                      int32_t n_pages); /* E_TOO_BIG, E_NO_PAGES */
/* Copies, then checks the copy. E_FORMAT: values that cannot be; the sequence must then be
 * dropped. */
QUIRE_INTERNAL quire_status quire__seq_write_piece(quire_seq *seq, int32_t piece, int32_t page,
                                                   const uint8_t *from);
QUIRE_INTERNAL void quire__seq_end_pieces(quire_seq *seq,
                                          bool keep); /* keep false: as if it had never been */

/* ---- the bytes of a piece, without a pool: whether every value can be. `from` is aligned to
 * 128. */
QUIRE_INTERNAL bool quire__piece_valid(const quire_form *form, int32_t piece, int32_t page,
                                       const uint8_t *from);

#endif
