/* Copies pieces of pages from sequences and files, and into new sequences. */
#include "file/page_piece.h"

#include <string.h>

/* ------------------------------------------------------------------ which, and how large */

size_t quire__piece_leaf_bytes(const quire_class *class) {
    return class->raw ? class->raw_bytes : class->sealed_bytes;
}

static bool has_sinks(const quire_class *class, int32_t page) {
    return page == 0 && class->sinks > 0;
}

/* For pieces after 0. */
static int32_t class_of(int32_t piece) { return (piece - 1) / 2; }
static bool is_sinks(int32_t piece) { return piece % 2 == 0; }
static uint64_t rows_of(const quire_class *class, int32_t piece) {
    return is_sinks(piece) ? quire__rows_below(class->sinks) : UINT64_MAX;
}

bool quire__piece_exists(quire_pieces p, int32_t piece, int32_t page) {
    if (piece < 0 || piece >= quire__piece_count(p) || page < 0)
        return false;
    if (piece == 0)
        return true;
    const quire_class *class = &p.class[class_of(piece)];
    return class->window > 0 && (!is_sinks(piece) || has_sinks(class, page));
}

int32_t quire__live_from(const quire_class *class, int32_t n_pages) {
    const int32_t first_seen = quire__window_start(class, n_pages * QUIRE_T) / QUIRE_T;
    return first_seen < n_pages ? first_seen : n_pages;
}

bool quire__piece_needed(quire_pieces p, int32_t piece, int32_t page, int32_t n_pages) {
    if (page >= n_pages || !quire__piece_exists(p, piece, page))
        return false;
    if (piece == 0)
        return true;
    const quire_class *class = &p.class[class_of(piece)];
    const int32_t live_from = quire__live_from(class, n_pages);
    return is_sinks(piece) ? class->keep > 0 || live_from == 0
                           : page >= live_from || quire__pinned(class, page);
}

size_t quire__piece_bytes(quire_pieces p, int32_t piece, int32_t page) {
    if (!quire__piece_exists(p, piece, page))
        return 0;
    if (piece > 0)
        return is_sinks(piece) ? p.class[class_of(piece)].sink_bytes
                               : quire__piece_leaf_bytes(&p.class[class_of(piece)]);
    return quire__piece_offset(p, page, p.n_classes);
}

size_t quire__piece_offset(quire_pieces p, int32_t page, int32_t class) {
    size_t bytes = 0;
    for (int32_t g = 0; g < class; g++)
        if (p.class[g].window == 0)
            bytes += quire__piece_leaf_bytes(&p.class[g]) +
                     (has_sinks(&p.class[g], page) ? p.class[g].sink_bytes : 0);
    return bytes;
}

/* ------------------------------------------------------------------ out of a sequence */

bool quire__seq_has_piece(const quire_seq *seq, int32_t piece, int32_t page) {
    const quire_pool *pool = seq->pool;
    if (page >= seq->length / QUIRE_T ||
        !quire__piece_exists(quire__pool_pieces(pool), piece, page))
        return false;
    if (piece == 0)
        return true; /* no window, so nothing is recycled */
    const quire_seq_class *s = &seq->class[class_of(piece)];
    const int32_t leaf = is_sinks(piece) ? s->sinks : s->table[page];
    const uint64_t rows = rows_of(&pool->class[class_of(piece)], piece);
    /* A page that has lost rows is of no use to other sequences. */
    return leaf != QUIRE_NO_LEAF && (pool->leaf[leaf].lost & rows) == 0;
}

/* One leaf of a piece. */
typedef struct piece_leaf {
    int32_t leaf;
    quire_part_kind kind;
} piece_leaf;

/* Leaf number i of a piece; false after the last. */
static bool leaf_at(const quire_seq *seq, int32_t piece, int32_t page, int32_t i,
                    piece_leaf *found) {
    const quire_pool *pool = seq->pool;
    const int32_t from = piece == 0 ? 0 : class_of(piece),
                  to = piece == 0 ? pool->n_classes : from + 1;
    for (int32_t g = from; g < to; g++) {
        const quire_seq_class *s = &seq->class[g];
        if (piece == 0 && pool->class[g].window > 0)
            continue;
        const bool leaf = piece == 0 || !is_sinks(piece),
                   sinks = piece == 0 ? has_sinks(&pool->class[g], page) : !leaf;
        if (leaf && i-- == 0) {
            *found = (piece_leaf){s->table[page], QUIRE_PART_SEALED};
            return true;
        }
        if (sinks && i-- == 0) {
            *found = (piece_leaf){s->sinks, QUIRE_PART_SINKS};
            return true;
        }
    }
    return false;
}

void quire__seq_piece(const quire_seq *seq, int32_t piece, int32_t page, uint8_t *to) {
    const quire_pool *pool = seq->pool;
    piece_leaf l;
    for (int32_t i = 0; leaf_at(seq, piece, page, i, &l); i++) {
        memcpy(to, quire__leaf_memory(pool, l.leaf), pool->leaf[l.leaf].bytes);
        to += pool->leaf[l.leaf].bytes;
    }
}

/* ------------------------------------------------------------------ out of a file */

bool quire__file_has_piece(const quire_file *file, int32_t piece, int32_t page) {
    if (page >= file->n_pages || !quire__piece_exists(quire__form_pieces(&file->form), piece, page))
        return false;
    if (piece == 0)
        return true; /* quire_file_open has checked it */
    const quire_file_class *part = &file->part[class_of(piece)];
    const uint64_t rows = rows_of(&file->form.class[class_of(piece)], piece);
    return (is_sinks(piece) ? part->sink_rows : quire__file_page_rows(part, page)) == rows;
}

quire_status quire__file_piece(const quire_file *file, int32_t piece, int32_t page, uint8_t *to) {
    const quire_form *form = &file->form;
    const int32_t from = piece == 0 ? 0 : class_of(piece),
                  end = piece == 0 ? form->n_classes : from + 1;
    for (int32_t g = from; g < end; g++) {
        const quire_file_class *part = &file->part[g];
        const uint64_t start = file->section[QUIRE_SECTION_PAGES + g].offset;
        if (piece == 0 && form->class[g].window > 0)
            continue;
        if (piece == 0 || !is_sinks(piece)) {
            QUIRE_TRY(quire__read_at(
                file->fd, start + part->pages + (uint64_t)part->rank[page] * part->leaf_bytes, to,
                part->leaf_bytes));
            to += part->leaf_bytes;
        }
        if (piece == 0 ? has_sinks(&form->class[g], page) : is_sinks(piece)) {
            QUIRE_TRY(quire__read_at(file->fd, start + part->sinks, to, form->class[g].sink_bytes));
            to += form->class[g].sink_bytes;
        }
    }
    return QUIRE_OK;
}

const uint8_t *quire__file_layers(const quire_file *file, size_t *n_bytes) {
    const quire_file_section *s = &file->section[QUIRE_SECTION_LAYERS];
    *n_bytes = (size_t)s->bytes;
    return file->small + (s->offset - file->section[0].offset);
}

/* ------------------------------------------------------------------ into a sequence */

static void plan(quire_seq *seq, int32_t n_pages) {
    const quire_pool *pool = seq->pool;
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_class *class = &pool->class[g];
        quire_seq_class *s = &seq->class[g];
        s->live_from = quire__live_from(class, n_pages);
        for (int32_t page = 0; page < n_pages; page++)
            s->table[page] = quire__reserve_if(page >= s->live_from || quire__pinned(class, page));
        s->sinks =
            quire__reserve_if(n_pages > 0 && class->sinks > 0 && quire__sinks_needed(class, s));
    }
}

static void count_hold(quire_pool *pool, int32_t more) {
    pthread_mutex_lock(&pool->lock);
    pool->form_holds += more;
    pthread_mutex_unlock(&pool->lock);
}

void quire__form_hold(quire_pool *pool) { count_hold(pool, 1); }
void quire__form_release(quire_pool *pool) { count_hold(pool, -1); }

quire_status quire__seq_begin_pieces(quire_pool *pool, quire_seq **seq) {
    QUIRE_TRY(quire_seq_create(pool, seq));
    quire__seq_in_file(*seq, true);
    return QUIRE_OK;
}

quire_status quire__seq_reserve_pieces(quire_seq *seq, int32_t n_pages) {
    quire_pool *pool = seq->pool;
    if (n_pages > pool->max_tokens / QUIRE_T)
        return quire__fail(QUIRE_E_TOO_BIG,
                           "%d tokens: a sequence of this pool holds at most %d (max_tokens)",
                           (int)n_pages * QUIRE_T, (int)pool->max_tokens);
    pthread_mutex_lock(&pool->lock);
    plan(seq, n_pages);
    const quire_status status = quire__restore_reserve(seq, n_pages * QUIRE_T, -1);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

quire_status quire__seq_write_piece(quire_seq *seq, int32_t piece, int32_t page,
                                    const uint8_t *from) {
    const quire_pool *pool = seq->pool;
    piece_leaf l;
    for (int32_t i = 0; leaf_at(seq, piece, page, i, &l); i++) {
        memcpy(quire__leaf_memory(pool, l.leaf), from, pool->leaf[l.leaf].bytes);
        from += pool->leaf[l.leaf].bytes;
        int32_t layer, head;
        if (!quire__restored_check(pool, l.leaf, l.kind, QUIRE_T, &layer, &head))
            return quire__page_invalid(layer, head);
    }
    return QUIRE_OK;
}

void quire__seq_end_pieces(quire_seq *seq, bool keep) {
    quire__seq_in_file(seq, false);
    if (!keep)
        quire_seq_free(seq);
}

/* ------------------------------------------------------------------ without a pool */

static bool leaf_valid(const quire_form *form, int32_t g, quire_part_kind kind,
                       const uint8_t *from) {
    int32_t layer, head;
    return quire__leaf_valid((quire_leaf_layers){form->layer, form->n_layers, form->raw}, g, kind,
                             QUIRE_T, from, &layer, &head);
}

bool quire__piece_valid(const quire_form *form, int32_t piece, int32_t page, const uint8_t *from) {
    const int32_t first = piece == 0 ? 0 : class_of(piece),
                  end = piece == 0 ? form->n_classes : first + 1;
    for (int32_t g = first; g < end; g++) {
        const quire_class *class = &form->class[g];
        if (piece == 0 && class->window > 0)
            continue;
        if (piece == 0 || !is_sinks(piece)) {
            if (!leaf_valid(form, g, QUIRE_PART_SEALED, from))
                return false;
            from += quire__piece_leaf_bytes(class);
        }
        if (piece == 0 ? has_sinks(class, page) : is_sinks(piece)) {
            if (!leaf_valid(form, g, QUIRE_PART_SINKS, from))
                return false;
            from += class->sink_bytes;
        }
    }
    return true;
}
