/* A naive model of a pool: every page is a heap object with the values that a query must see in it,
 * counted by hand.
 *
 * It has two cached layers, 0 without a window and 1 with one, of one KV head each, and so two
 * groups of one layer. Packing goes through quire_page_encode and quire_page_decode; everything
 * else is written again here, in the simplest way. What the pool has lost is NaN here, token by
 * token (ops_model.c), and never looked up by the pool's own rule. */
#ifndef QUIRE_TESTS_OPS_MODEL_H
#define QUIRE_TESTS_OPS_MODEL_H

#include "kit.h"

enum {
    OPS_D = 32,
    OPS_LAYERS = 2,
    OPS_MAX_PAGES = 8,
    OPS_MAX_TOKENS = OPS_MAX_PAGES * 64 - 7,
    OPS_MAX_SEQS = 40
};

/* 64 rows, or the raw sinks, of one layer. */
typedef struct page {
    struct page *next, *before; /* all that are alive */
    int refs;
    bool raw;    /* as they came; else packed */
    int n_sinks; /* > 0: this object holds raw sinks, not a page */
    bool stale;  /* in the codecs of before; meaningless for raw pages */
    size_t bytes;
    int use; /* scratch for counting */
    float k[64 * OPS_D], v[64 * OPS_D];
} page;

typedef struct layer_view {
    page *table[OPS_MAX_PAGES];
    page *open, *kept, *sinks;
    int live_from;
} layer_view;

typedef struct mseq {
    quire_seq *seq; /* NULL: a free slot */
    bool busy;
    int length, kept_page;
    layer_view layer[OPS_LAYERS];
} mseq;

typedef struct form {
    quire_pair pair[OPS_LAYERS];
    int sinks;
    quire_type raw; /* of the pool */
} form;

typedef struct model {
    fixture f;
    form now, before;
    bool changing;
    page *pages; /* all that are alive */
    mseq seq[OPS_MAX_SEQS];
    uint64_t reopened;
    int64_t converted;
} model;

bool model_is_raw(const form *f, int layer);
int model_sinks(const form *f, int layer); /* raw layers need none */
bool model_page_stale(const model *m, const page *p, int layer);

/* Rows that came in a batch: positions from the start of the page that was open. */
typedef struct arrival {
    int first, n_tokens; /* position of the first new row, and how many */
    float k[OPS_LAYERS][(OPS_MAX_TOKENS + 64) * OPS_D],
        v[OPS_LAYERS][(OPS_MAX_TOKENS + 64) * OPS_D];
    page *sealed[OPS_LAYERS][OPS_MAX_PAGES]; /* pages that are full after it */
    page *sinks[OPS_LAYERS];
} arrival;

float model_rounded(const model *m, float x); /* as the pool's raw type holds it */
/* Packs what a batch would pack; model_append or model_abort must follow. New rows (rounded) are
 * in a->k, a->v from `first` % 64 on; earlier rows of the open page are filled in here. */
void model_arrive(model *m, const mseq *s, arrival *a);
void model_append(model *m, mseq *s, arrival *a, int n_accept);
void model_abort(model *m, arrival *a);

void model_fork(mseq *child, const mseq *s);          /* child->seq is the caller's */
void model_copy(model *m, mseq *copy, const mseq *s); /* the same, with pages of its own */
void model_free(model *m, mseq *s);
bool model_can_trim(const model *m, const mseq *s, int n);
bool model_trim_decodes(const mseq *s, int n);
void model_trim(model *m, mseq *s, int n);
bool model_can_shift(const model *m, const mseq *s, int from,
                     int by); /* drop tokens from .. from+by-1; some follow */
void model_shift(model *m, mseq *s, int from, int by); /* with a rotation that turns nothing */
void model_change(model *m, const form *f);
int64_t model_step(model *m, int64_t max_pages); /* -> pages converted */
int64_t model_stale_pages(model *m);

/* The dense answer for one query: fp64 over all that it sees. q (DK) of one head. */
void model_attend(const model *m, const mseq *s, const arrival *a, int layer, int position,
                  const float *q, double *out);
/* Every byte in use is where the statistics say. */
void model_check_bytes(model *m);

#endif
