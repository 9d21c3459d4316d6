/* query_rows.h: queries in every form that a kernel may ask for. */
#ifndef QUIRE_KERN_QUERY_ROWS_H
#define QUIRE_KERN_QUERY_ROWS_H

#include "kern/kern.h"

typedef struct quire_query_rows {
    /* (rows * heads per KV head, DK): scaled; rotated; rotated and projected; with channels in K's
     * order */
    float *plain, *rotated, *projected, *ordered;
    bool *usable; /* (rows * heads per KV head) whether q is finite and not too large */
} quire_query_rows;

/* The forms that some K needs. */
typedef struct quire_query_forms {
    const uint16_t *order; /* of K's channels, or NULL */
    bool rotated, projected;
} quire_query_forms;

/* Loads row i. A query that is not finite becomes zero and is marked as not usable: its result is
 * NaN. */
void quire__query_row_load(const quire_query_rows *to, int32_t i, const quire_row_kernels *kernels,
                           const quire_query_forms *forms, quire_type type, const void *from,
                           int dim, float scale);

/* The rows that a job over packed K of this format takes. */
static inline void quire__query_rows_use(quire_attend_job *job, const quire_query_rows *rows,
                                         const quire_side_format *k) {
    job->q = k->n_mixed ? rows->ordered : rows->plain;
    job->q_rotated = k->rotated ? rows->rotated : NULL;
    job->q_projected = k->family == QUIRE_FAMILY_PROD ? rows->projected : NULL;
}

#endif
