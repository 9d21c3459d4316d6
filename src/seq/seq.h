/* Sequences: page tables that share leaves (page/pages.h has the picture). */
#ifndef QUIRE_SEQ_SEQ_H
#define QUIRE_SEQ_SEQ_H

#include "page/pages.h"

typedef struct quire_seq_class {
    int32_t *table;                /* (max_pages) leaf of each sealed page */
    int32_t live_from;             /* pages below have been recycled, pinned ones excepted */
    int32_t open, last_raw, sinks; /* leaves */
} quire_seq_class;

struct quire_seq {
    quire_pool *pool;
    quire_seq *next_free;
    quire_batch *batch; /* that it is in, or NULL */
    bool used;
    bool in_file; /* being saved or loaded: its leaves, and the pool's forms, are read without the
                     lock */
    int32_t length;
    int32_t last_page; /* page sealed last, whose raw rows `last_raw` may hold; -1: none */
    uint32_t history;  /* quire_history: what was done to it ... */
    int32_t exact; /* ... and how many of its first tokens that left alone; INT32_MAX: nothing was
                      done */
    int32_t place; /* in a list that is being filtered */
    quire_seq_class *class; /* (n_classes) */
};

/* ---- rows of one page, layer and KV head, from wherever they are best known (page_rows.c); the
 * caller holds the lock */
typedef struct quire_page_source {
    int32_t page;
    int32_t raw;   /* leaf with its raw rows, or NO_LEAF */
    int32_t leaf;  /* of the table; NO_LEAF: it has left the window ... */
    int32_t sinks; /* ... but these may be there; counts for page 0 */
} quire_page_source;

quire_page_source quire__page_source(const quire_seq *seq, int32_t class, int32_t page);
/* Bit t: row t is there. Of an open page, bits of rows beyond the length mean nothing. */
uint64_t quire__source_held(const quire_pool *pool, const quire_page_source *source);
uint64_t quire__rows_held(const quire_seq *seq, int32_t class, int32_t page);
/* Rows that are not there come out as zeros: what is packed from them depends on what is there
 * alone. */
void quire__page_rows(const quire_pool *pool, const quire_page_source *source, int32_t layer,
                      int32_t head, bool is_v, float *rows /* (64, D) */);

/* ---- life; the caller holds the lock (seq.c, trim.c) */
/* Raw sinks stay as long as page 0, and for ever if there are kept tokens among them. */
static inline bool quire__sinks_needed(const quire_class *class, const quire_seq_class *s) {
    return class->keep > 0 || s->live_from == 0;
}

void quire__seq_recycle(quire_seq *seq); /* drops pages that no query from `length` on can see */
void quire__seq_release(quire_seq *seq); /* frees it */
QUIRE_INTERNAL void quire__seq_in_file(const quire_seq *seq,
                                       bool in_file); /* takes the lock itself */
void quire__seq_drop_last_raw(quire_seq *seq);        /* the raw rows of the page sealed last */
quire_status quire__seq_trim(quire_seq *seq, int32_t n_tokens);

/* ---- what was done to a sequence; the caller holds the lock (history.c) */
/* Tokens from `token` on are no longer what computing them from the start would give. */
void quire__history_note(quire_seq *seq, quire_history what, int32_t token);
void quire__history_cut(quire_seq *seq); /* after a trim: what it took away is forgotten */
int32_t quire__history_exact(const quire_seq *seq);

#endif
