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
    /* Being saved or loaded: its leaves and the pool's forms are read without the lock. */
    bool in_file;
    int32_t length;
    int32_t last_page; /* page sealed last, whose raw rows `last_raw` may hold; -1: none */
    uint32_t history;  /* quire_history, ORed ... */
    int32_t exact;     /* ... and how many first tokens it left unaffected; INT32_MAX: no history */
    int32_t place;     /* in a list that is being filtered */
    quire_seq_class *class; /* (n_classes) */
};

/* ---- rows of one page, layer and KV head, from the most exact source (page_rows.c); the caller
 * holds the lock */
typedef struct quire_page_source {
    int32_t page;
    int32_t raw;   /* leaf with its raw rows, or NO_LEAF */
    int32_t leaf;  /* of the table; NO_LEAF: it has left the window ... */
    int32_t sinks; /* ... but its sinks may exist; only for page 0 */
} quire_page_source;

quire_page_source quire__page_source(const quire_seq *seq, int32_t class, int32_t page);
/* Bit t: row t exists. In an open page, bits of rows beyond the length are undefined. */
uint64_t quire__source_held(const quire_pool *pool, const quire_page_source *source);
uint64_t quire__rows_held(const quire_seq *seq, int32_t class, int32_t page);
/* Rows that do not exist become zeros, so that pages packed from them depend only on rows that do
 * exist. */
void quire__page_rows(const quire_pool *pool, const quire_page_source *source, int32_t layer,
                      int32_t head, bool is_v, float *rows /* (64, D) */);

/* ---- lifetime; the caller holds the lock (seq.c, trim.c) */
/* Raw sinks stay as long as page 0, and for ever if the class keeps tokens. */
static inline bool quire__sinks_needed(const quire_class *class, const quire_seq_class *s) {
    return class->keep > 0 || s->live_from == 0;
}

void quire__seq_recycle(quire_seq *seq); /* drops pages that no later query can see */
void quire__seq_release(quire_seq *seq); /* frees it */
/* Takes the lock itself. */
QUIRE_INTERNAL void quire__seq_in_file(const quire_seq *seq, bool in_file);
void quire__seq_drop_last_raw(quire_seq *seq); /* the raw rows of the page sealed last */
quire_status quire__seq_trim(quire_seq *seq, int32_t n_tokens);

/* ---- history of a sequence; the caller holds the lock (history.c) */
/* Records that tokens from `token` on differ from a fresh computation. */
void quire__history_note(quire_seq *seq, quire_history what, int32_t token);
void quire__history_cut(quire_seq *seq); /* after a trim: clears it if no such token is left */
int32_t quire__history_exact(const quire_seq *seq);

#endif
