/* The channel order of km4 and km3, measured on a cache's own first pages.
 *
 * A channel's importance is the range of its K over a page, in the mean over pages, times the root
 * mean square of q in it, as in the engine's calibration; its range alone for a head that no query
 * has met, such as after a saved state. Until MEASURE_PAGES pages are complete, everything stays
 * raw. Both sums are integers, so that the order does not depend on how workers
 * shared the rows. */
#include <math.h>
#include <string.h>

#include "cells/cells.h"

enum { MEASURE_PAGES = 4 };
static const float FIXED_POINT = 1048576.0f; /* of q^2; a query beyond 2^20 counts as that */

void quire__cells_measure_queries(quire_cells *cells, quire_cells_layer *layer, int32_t kv,
                                  const float *q, int32_t n, float q_scale) {
    const size_t dim = (size_t)layer->form->config.k_dim;
    uint64_t *squares = layer->measure.squares + (size_t)kv * dim;
    pthread_mutex_lock(&cells->lock);
    for (int32_t i = 0; i < n; i++)
        for (size_t d = 0; d < dim; d++) {
            const float x = q[(size_t)i * dim + d] / q_scale;
            squares[d] += (uint64_t)(fminf(x * x, FIXED_POINT) * FIXED_POINT);
        }
    pthread_mutex_unlock(&cells->lock);
}

void quire__cells_measure_again(quire_cells_layer *layer) {
    if (layer->measure.waiting)
        memset(layer->measure.squares, 0,
               (size_t)layer->form->config.n_kv_heads * (size_t)layer->form->config.k_dim *
                   sizeof *layer->measure.squares);
}

static bool is_complete(const quire_cells_layer *layer, int32_t page) {
    return layer->side[0].written[page] == UINT64_MAX && layer->side[0].place[page] >= 0;
}

/* Adds the range of each channel of one head over one page, first tokens that stay raw aside. */
static void add_ranges(const quire_cells *cells, const quire_cells_layer *layer, int32_t page,
                       int32_t head, float *rows, double *range) {
    const int dim = layer->form->config.k_dim;
    cells->pool->kernels.rows->from_raw(cells->pool->raw,
                                        quire__cells_raw(cells, layer, 0, page, head),
                                        QUIRE_T * (size_t)dim, rows);
    for (int d = 0; d < dim; d++) {
        int32_t t = quire__cells_sinks(cells, layer, page);
        float low = rows[t * dim + d], high = low;
        for (; t < QUIRE_T; t++) {
            low = fminf(low, rows[t * dim + d]);
            high = fmaxf(high, rows[t * dim + d]);
        }
        range[d] += (double)(high - low);
    }
}

static bool any(const uint64_t *x, int n) {
    int i = 0;
    while (i < n && x[i] == 0)
        i++;
    return i < n;
}

void quire__cells_measure_order(quire_cells *cells, quire_cells_layer *layer) {
    const int dim = layer->form->config.k_dim;
    int32_t n_complete = 0;
    for (int32_t page = 0; page < cells->n_pages && n_complete < MEASURE_PAGES; page++)
        n_complete += is_complete(layer, page);
    if (n_complete < MEASURE_PAGES)
        return;
    for (int32_t head = 0; head < layer->form->config.n_kv_heads; head++) {
        double range[QUIRE_DIM_MAX] = {0};
        float importance[QUIRE_DIM_MAX];
        for (int32_t page = 0; page < cells->n_pages; page++)
            if (is_complete(layer, page))
                add_ranges(cells, layer, page, head, cells->worker[0].rows, range);
        const uint64_t *squares = layer->measure.squares + (size_t)head * (size_t)dim;
        const bool queried = any(squares, dim);
        for (int d = 0; d < dim; d++)
            importance[d] = (float)(range[d] * (queried ? sqrt((double)squares[d]) : 1));
        quire_channel_order(importance, dim, layer->measure.order + (size_t)head * (size_t)dim);
    }
    layer->measure.waiting = false;
}
