/* Sealed pages outside a pool, in pieces: the only part of pages and sequences that store/ uses.
 *
 * A page of 64 tokens is split into pieces, so that what has left a window need not be stored or
 * fetched:
 *
 *   piece 0        the leaves of all layer classes without a window, in their order; in page 0 the
 *                  leaf of each packed class is followed by its raw sinks. Every page has this
 *                  piece; it is empty if every layer has a window
 *   piece 1 + 2g   the leaf of class g, if that has a window
 *   piece 2 + 2g   page 0 only: the raw sinks of class g, if that has a window, packs and has sinks
 */
#ifndef QUIRE_FILE_PAGE_PIECE_H
#define QUIRE_FILE_PAGE_PIECE_H

#include "base/internal.h"
#include "file/snapshot.h"

/* The layer classes of a pool or of a form. */
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

/* Whether a page can have this piece. */
QUIRE_INTERNAL bool quire__piece_exists(quire_pieces p, int32_t piece, int32_t page);
/* Whether a sequence of exactly n_pages full pages needs it. */
QUIRE_INTERNAL bool quire__piece_needed(quire_pieces p, int32_t piece, int32_t page,
                                        int32_t n_pages);
QUIRE_INTERNAL size_t quire__piece_bytes(quire_pieces p, int32_t piece, int32_t page);
/* Offset in piece 0 of the leaf of a class without a window; its sinks, if any, follow it. */
QUIRE_INTERNAL size_t quire__piece_offset(quire_pieces p, int32_t page, int32_t class);
QUIRE_INTERNAL size_t quire__piece_leaf_bytes(const quire_class *class);
/* The first page of a class that such a sequence still has. */
QUIRE_INTERNAL int32_t quire__live_from(const quire_class *class, int32_t n_pages);

/* ---- from a sequence, between quire__seq_hold and quire__seq_in_file(seq, false) */
QUIRE_INTERNAL bool quire__seq_has_piece(const quire_seq *seq, int32_t piece, int32_t page);
QUIRE_INTERNAL void quire__seq_piece(const quire_seq *seq, int32_t piece, int32_t page,
                                     uint8_t *to);

/* ---- from a file that quire_file_check has accepted */
QUIRE_INTERNAL bool quire__file_has_piece(const quire_file *file, int32_t piece, int32_t page);
QUIRE_INTERNAL quire_status quire__file_piece(const quire_file *file, int32_t piece, int32_t page,
                                              uint8_t *to);
/* The bytes of the section "layers". */
QUIRE_INTERNAL const uint8_t *quire__file_layers(const quire_file *file, size_t *n_bytes);

/* ---- without a sequence: in between, the pool's form does not change */
QUIRE_INTERNAL void quire__form_hold(quire_pool *pool);
QUIRE_INTERNAL void quire__form_release(quire_pool *pool);

/* ---- into a new sequence: begin, reserve, write every piece that it needs, end. In between
 * nothing else refers to the sequence, and the pool's form does not change. */
/* E_NO_SLOT. */
QUIRE_INTERNAL quire_status quire__seq_begin_pieces(quire_pool *pool, quire_seq **seq);
/* E_TOO_BIG, E_NO_PAGES. */
QUIRE_INTERNAL quire_status quire__seq_reserve_pieces(quire_seq *seq, int32_t n_pages);
/* Copies the piece, then checks the copy. E_FORMAT: invalid values; the sequence must then be
 * dropped. */
QUIRE_INTERNAL quire_status quire__seq_write_piece(quire_seq *seq, int32_t piece, int32_t page,
                                                   const uint8_t *from);
/* keep false: frees the sequence. */
QUIRE_INTERNAL void quire__seq_end_pieces(quire_seq *seq, bool keep);

/* ---- without a pool: whether every value in a piece is valid. `from` is aligned to 128. */
QUIRE_INTERNAL bool quire__piece_valid(const quire_form *form, int32_t piece, int32_t page,
                                       const uint8_t *from);

#endif
