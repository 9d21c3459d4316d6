/* Loading queries. */
#include "kern/query_rows.h"

#include <math.h>
#include <string.h>

/* A larger query would overflow its scores; it is treated like one that is not finite. */
static const float LARGEST_QUERY = 1e20f;

void quire__query_row_load(const quire_query_rows *to, int32_t i, const quire_row_kernels *kernels,
                           const quire_query_forms *forms, quire_type type, const void *from,
                           int dim, float scale) {
    const size_t at = (size_t)i * (size_t)dim, bytes = (size_t)dim * sizeof(float);
    float *q = to->plain + at;
    kernels->from_raw(type, from, (size_t)dim, q);
    int unusable = 0;
    for (int d = 0; d < dim; d++) {
        q[d] *= scale;
        unusable |= !(fabsf(q[d]) <= LARGEST_QUERY);
    }
    to->usable[i] = !unusable;
    if (unusable)
        memset(q, 0, bytes);
    if (forms->order)
        quire__into_order(forms->order, dim, q, to->ordered + at);
    if (forms->rotated) {
        memcpy(to->rotated + at, q, bytes);
        kernels->rotate(to->rotated + at, dim);
    }
    if (forms->projected) {
        memcpy(to->projected + at, to->rotated + at, bytes);
        kernels->project(to->projected + at, dim);
    }
}
