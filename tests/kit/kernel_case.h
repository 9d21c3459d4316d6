/* One call of an attention kernel, every buffer guarded, so that each level can be given exactly
 * the same. */
#ifndef QUIRE_TESTS_KERNEL_CASE_H
#define QUIRE_TESTS_KERNEL_CASE_H

#include "guard.h"
#include "kern/kern.h"
#include "kit.h"

/* ---- levels: those of kern.c that this machine runs, the reference first */
typedef struct kernel_level {
    const char *name;
    quire_kernels kernels;
} kernel_level;

int kernel_levels(const kernel_level **levels);

/* Every codec that serves K (or V), raw ones too. */
int codecs_of_side(bool is_v, quire_codec *codecs);

typedef struct kernel_case {
    quire_format format;
    int n_rows, n_group, n_pages; /* pages first_page .. are there unless taken away */
    guarded record[QUIRE_CHUNK_PAGES];
    guarded q, q_rotated, q_projected, alibi, mask;
    guarded scratch, workspace, m, l, o; /* o: as the kernel leaves it */
    guarded run_k[2], run_v[2];
    quire_attend_job job;
    char text[160]; /* names the case in messages */
} kernel_case;

typedef struct case_shape {
    quire_codec k, v;
    int k_dim, v_dim, n_rows, n_group, n_pages;
    quire_type raw; /* QUIRE_F32 unless said otherwise */
    int first_page;
} case_shape;

/* False: a codec cannot serve the size. Everything is allocated, nothing is filled. at_end: see
 * guard.h. */
bool case_open(kernel_case *c, const case_shape *shape, bool at_end);
void case_close(kernel_case *c);

/* Pages sealed from normal rows, normal q. */
void case_fill(kernel_case *c, rng *r);
/* q_rotated and q_projected from q. */
void case_derive_queries(kernel_case *c);
/* A record from bit patterns (64, D); parameters are put with quire__put_param. */
void case_put_codes(kernel_case *c, int page, bool is_v, const uint8_t *codes,
                    const uint8_t *signs /* or NULL */);
void case_add_alibi(kernel_case *c, rng *r);
float *case_add_mask(kernel_case *c); /* (n_rows, n_group, tokens), zero; strides are in the job */
/* Raw rows instead of pages: sinks first, if any, and the own page. */
void case_add_runs(kernel_case *c, rng *r, quire_type type, int n_sinks, int own_offset);

/* Codecs whose scales may be negative: mlx's, and ggml's q4_0. */
static inline bool case_signed_scales(const quire_side_format *side) {
    return side->family == QUIRE_FAMILY_AFFINE ||
           (side->family == QUIRE_FAMILY_BLOCK && side->bits == 4);
}

static inline int case_heads(const kernel_case *c) { return c->n_rows * c->n_group; }

/* What a kernel left: a copy. */
typedef struct case_result {
    float *m, *l, *o;
} case_result;

case_result case_attend(kernel_case *c, const kernel_level *level);
/* Chunks one after the other, of which each is the case with other pages; a kernel that does not
 * gather them leaves their merge to quire__states_merge. */
case_result case_attend_chunks(kernel_case *c, const kernel_level *level,
                               const uint8_t *(*records)[QUIRE_CHUNK_PAGES], int n, bool gather);
case_result case_attend_raw(kernel_case *c, const kernel_level *level);
void result_free(case_result *r);

#endif
