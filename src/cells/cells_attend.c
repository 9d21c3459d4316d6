/* Attention over the pages that a sight sorted. Units of work and merging are as in attn/attend.c:
 * a chunk of 16 pages is attended from an empty state, chunks are merged in order, raw pages last.
 */
#include <math.h>
#include <string.h>

#include "attn/work_units.h"
#include "base/element.h"
#include "base/real.h"
#include "cells/cells.h"

enum { CHUNK_CELLS = QUIRE_CHUNK_PAGES * QUIRE_T, EVERYTHING = 1 << 30 };

typedef struct call {
    quire_cells *cells;
    quire_cells_layer *layer;
    const quire_cells_attend_args *args;
    const quire_sight *sight;
    quire_cells_worker *worker;
    size_t q_row_bytes, q_head_bytes, out_stride;
    float q_scale;
} call;

typedef struct work { /* one tile and KV head */
    const quire_sight_tile *tile;
    int32_t index; /* of the tile */
    int32_t kv, n_group, n;
    int32_t first_page; /* of the tile's stream */
} work;

static void load_queries(const call *c, const work *w) {
    const quire_layer_state *form = c->layer->form;
    const int dim = form->config.k_dim;
    const quire_query_forms forms = {
        .order = form->format.k.n_mixed ? form->config.k_order + (size_t)w->kv * (size_t)dim : NULL,
        .rotated = form->format.k.rotated,
        .projected = form->format.k.family == QUIRE_FAMILY_PROD};
    if (c->worker->loaded_tile == w->index && c->worker->loaded_kv == w->kv)
        return;
    for (int32_t i = 0; i < w->n; i++) {
        const int32_t row = w->tile->row + i / w->n_group,
                      head = w->kv * w->n_group + i % w->n_group;
        const uint8_t *from = (const uint8_t *)c->args->q + (size_t)row * c->q_row_bytes +
                              (size_t)head * c->q_head_bytes;
        quire__query_row_load(&c->worker->q, i, c->cells->pool->kernels.rows, &forms,
                              c->args->q_type, from, dim, c->q_scale);
    }
    c->worker->loaded_tile = w->index;
    c->worker->loaded_kv = w->kv;
    c->worker->prepared = false;
}

/* Each tile and KV head once. */
static void measure_queries(const call *c, const work *w) {
    if (c->layer->measure.waiting)
        quire__cells_measure_queries(c->cells, c->layer, w->kv, c->worker->q.plain, w->n,
                                     c->q_scale);
}

static quire_attend_job make_job(const call *c, const work *w) {
    quire_attend_job job = {
        .format = &c->layer->form->format, .n_rows = w->tile->n_rows, .n_group = w->n_group};
    job.see.softcap_log2 = c->args->softcap * QUIRE_LOG2E;
    job.see.first_position = EVERYTHING;
    job.scratch = c->worker->scores;
    job.workspace = c->worker->workspace;
    job.raw = c->cells->pool->raw;
    return job;
}

/* ------------------------------------------------------------------ masks */

/* Rows that fit the worker's mask at once, with one mask per head if there are slopes; one always
 * does. */
static int32_t mask_rows(const call *c, const work *w) {
    if (!c->args->mask_slopes)
        return QUIRE_CELLS_TILE_ROWS;
    return w->n_group < QUIRE_CELLS_TILE_ROWS ? QUIRE_CELLS_TILE_ROWS / w->n_group : 1;
}

/* Cells of one page as fp32, from column `to` of the job's mask on; cells past the sight's last are
 * hidden. Logits have base 2. */
static void expand_mask(const call *c, const work *w, int32_t page, int32_t to, int32_t first_row,
                        int32_t n_rows) {
    const quire_sight_args *a = &c->sight->args;
    const int32_t left = a->n_cells - page * QUIRE_T, n = left < QUIRE_T ? left : QUIRE_T;
    const int32_t n_heads = c->args->mask_slopes ? w->n_group : 1;
    for (int32_t r = 0; r < n_rows; r++) {
        const void *mask = quire__sight_mask(c->sight, w->tile->row + first_row + r);
        float *row = c->worker->mask + (size_t)(r * n_heads) * CHUNK_CELLS + to;
        if (mask)
            c->cells->pool->kernels.rows->from_raw(
                a->mask_type,
                (const uint8_t *)mask + (size_t)page * QUIRE_T * quire__type_bytes(a->mask_type),
                (size_t)n, row);
        else
            memset(row, 0, QUIRE_T * sizeof *row);
        for (int32_t i = n; i < QUIRE_T; i++)
            row[i] = -INFINITY;
        /* the first head's own slope last: the others are made from its row */
        for (int32_t h = n_heads - 1; c->args->mask_slopes && h >= 0; h--) {
            const float slope = c->args->mask_slopes[w->kv * w->n_group + h];
            float *at = row + (size_t)h * CHUNK_CELLS;
            for (int32_t i = 0; i < QUIRE_T; i++)
                at[i] = row[i] == 0 || row[i] == -INFINITY ? row[i] : slope * row[i];
        }
    }
}

static void use_mask(const call *c, const work *w, quire_attend_job *job) {
    const size_t n_heads = c->args->mask_slopes ? (size_t)w->n_group : 1;
    job->see.mask = c->worker->mask;
    job->see.mask_row_stride = n_heads * CHUNK_CELLS;
    job->see.mask_head_stride = c->args->mask_slopes ? CHUNK_CELLS : 0;
}

/* The queries and the state of some rows of a tile. */
static void rows_of_job(const call *c, const work *w, quire_attend_job *job, int32_t first_row,
                        int32_t n_rows, bool packed, const quire_state *state, quire_state *rows) {
    const size_t at = (size_t)(first_row * w->n_group), dk = (size_t)c->layer->form->config.k_dim,
                 dv = (size_t)c->layer->form->config.v_dim;
    job->n_rows = n_rows;
    if (packed) {
        quire__query_rows_use(job, &c->worker->q, &c->layer->form->format.k);
        job->q_rotated += job->q_rotated ? at * dk : 0;
        job->q_projected += job->q_projected ? at * dk : 0;
    } else {
        job->q = c->worker->q.plain;
        job->q_rotated = job->q_projected = NULL;
    }
    job->q += at * dk;
    *rows = (quire_state){state->m + at, state->l + at, state->o + at * dv};
}

/* ------------------------------------------------------------------ packed pages */

/* `whole`: the job has all rows of the tile, so the next such job finds its queries prepared. */
static void attend_records(const call *c, quire_attend_job *job, bool whole,
                           const quire_state *state) {
    job->bytes_read = 0;
    job->q_is_new = !c->worker->prepared;
    c->worker->prepared = whole;
    c->layer->form->packed->attend(job, state);
    if (quire__falls_back(&c->cells->pool->kernels, c->layer->form->packed))
        atomic_fetch_add_explicit(&c->layer->fallbacks, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->layer->packed_read, job->bytes_read, memory_order_relaxed);
}

static const uint8_t *record_of(const call *c, const work *w, int32_t page, int *kind) {
    *kind = page < c->sight->n_pages && page != w->tile->own_page ? w->tile->kind[page]
                                                                  : QUIRE_PAGE_HIDDEN;
    const int32_t at = w->first_page + page;
    if (*kind == QUIRE_PAGE_HIDDEN || !quire__cells_is_packed(c->layer, 0, at) ||
        !quire__cells_is_packed(c->layer, 1, at))
        return NULL;
    return quire__cells_record(c->layer, at, w->kv);
}

/* Attends over the packed pages of a chunk: those that all rows see whole, then the rest under the
 * mask. */
static void attend_chunk(const call *c, const work *w, int32_t chunk, const quire_state *part) {
    const int dim = c->layer->form->config.v_dim;
    quire_attend_job seen = make_job(c, w), mixed = make_job(c, w);
    int n_seen = 0, n_mixed = 0;
    for (int32_t i = 0; i < QUIRE_CHUNK_PAGES + QUIRE_AHEAD_PAGES; i++) {
        int kind;
        const uint8_t *record = record_of(c, w, chunk * QUIRE_CHUNK_PAGES + i, &kind);
        if (i >= QUIRE_CHUNK_PAGES) {
            seen.next[i - QUIRE_CHUNK_PAGES] = record;
            continue;
        }
        seen.record[i] = kind == QUIRE_PAGE_SEEN ? record : NULL;
        mixed.record[i] = kind == QUIRE_PAGE_MIXED ? record : NULL;
        n_seen += seen.record[i] != NULL;
        n_mixed += mixed.record[i] != NULL;
    }
    /* Pages count from the chunk, so that a mask need not be longer. Sinks are those of page 0. */
    seen.skip = mixed.skip = chunk == 0 ? c->layer->form->sinks : 0;
    quire__states_empty(part, w->n);
    quire_state rows;
    if (n_seen > 0) {
        rows_of_job(c, w, &seen, 0, w->tile->n_rows, true, part, &rows);
        attend_records(c, &seen, true, part);
    }
    if (n_mixed == 0)
        return;
    atomic_fetch_add_explicit(&c->layer->masked, (uint64_t)n_mixed, memory_order_relaxed);
    const quire_state *to = n_seen > 0 ? &c->worker->extra : part;
    use_mask(c, w, &mixed);
    for (int32_t first = 0, most = mask_rows(c, w); first < w->tile->n_rows; first += most) {
        const int32_t left = w->tile->n_rows - first, n = left < most ? left : most;
        for (int32_t i = 0; i < QUIRE_CHUNK_PAGES; i++)
            if (mixed.record[i])
                expand_mask(c, w, chunk * QUIRE_CHUNK_PAGES + i, i * QUIRE_T, first, n);
        if (n < w->tile->n_rows)
            c->worker->prepared = false;
        rows_of_job(c, w, &mixed, first, n, true, to, &rows);
        attend_records(c, &mixed, n == w->tile->n_rows, &rows);
    }
    if (n_seen > 0)
        quire__states_merge(c->cells->pool->kernels.rows, part, to, w->n, dim);
}

/* ------------------------------------------------------------------ raw pages */

/* Raw K and V of a page; a side that is packed is decoded into the worker's buffer. */
static struct quire_raw_run raw_run(const call *c, const work *w, int32_t page, int32_t first,
                                    int32_t count) {
    const uint8_t *rows[2];
    for (int side = 0; side < 2; side++) {
        rows[side] = quire__cells_raw(c->cells, c->layer, side, page, w->kv);
        if (rows[side])
            continue;
        const quire_side_format *format = c->layer->side[side].format;
        float *decoded = c->worker->rows;
        if (c->layer->side[side].place[page] == QUIRE_CELLS_EMPTY)
            memset(decoded, 0, QUIRE_T * (size_t)format->dim * sizeof *decoded);
        else
            quire__cells_decode(c->cells, c->layer, side, page, w->kv, decoded);
        quire__clamp_rows(decoded, QUIRE_T * (size_t)format->dim,
                          quire__largest_value(c->cells->pool->raw, format));
        c->cells->pool->kernels.rows->to_raw(c->cells->pool->raw, c->worker->raw[side],
                                             QUIRE_T * (size_t)format->dim, decoded);
        rows[side] = c->worker->raw[side];
    }
    return (struct quire_raw_run){first, count, rows[0], rows[1]};
}

static void attend_runs(const call *c, quire_attend_job *job, const quire_state *state) {
    job->bytes_read = 0;
    c->worker->prepared = false;
    c->cells->pool->kernels.raw->attend(job, state);
    atomic_fetch_add_explicit(&c->layer->raw_read, job->bytes_read, memory_order_relaxed);
}

/* Attends over the runs of a job under the mask: columns 0 .. are page pages[0], 64 .. pages[1]. */
static void attend_masked_runs(const call *c, const work *w, quire_attend_job *job,
                               const int32_t pages[2], const quire_state *state) {
    use_mask(c, w, job);
    for (int32_t first = 0, most = mask_rows(c, w); first < w->tile->n_rows; first += most) {
        const int32_t left = w->tile->n_rows - first, n = left < most ? left : most;
        quire_state rows;
        for (int i = 0; i < 2; i++)
            if (pages[i] >= 0)
                expand_mask(c, w, pages[i], i * QUIRE_T, first, n);
        rows_of_job(c, w, job, first, n, false, state, &rows);
        attend_runs(c, job, &rows);
    }
}

/* Whether page 0 of the tile's stream is packed, seen, and has sinks beside it. */
static bool sees_sinks(const call *c, const work *w) {
    return c->layer->form->sinks > 0 && w->tile->own_page != 0 && c->sight->n_pages > 0 &&
           w->tile->kind[0] != QUIRE_PAGE_HIDDEN &&
           quire__cells_is_packed(c->layer, 0, w->first_page) &&
           quire__cells_is_packed(c->layer, 1, w->first_page);
}

/* The tile's own page, and the sinks. */
static void attend_own(const call *c, const work *w, const quire_state *state) {
    const quire_sight_tile *tile = w->tile;
    quire_attend_job job = make_job(c, w);
    int32_t pages[2] = {-1, -1};
    bool masked = false;
    if (sees_sinks(c, w)) {
        job.run[job.n_runs++] = (struct quire_raw_run){
            0, c->layer->form->sinks,
            quire__cells_sink_rows(c->cells, c->layer, 0, w->first_page, w->kv),
            quire__cells_sink_rows(c->cells, c->layer, 1, w->first_page, w->kv)};
        pages[0] = 0;
        masked = tile->kind[0] == QUIRE_PAGE_MIXED;
    }
    if (tile->own_page >= 0 && tile->kind[tile->own_page] != QUIRE_PAGE_HIDDEN) {
        const int32_t page = w->first_page + tile->own_page;
        const bool prefix = tile->own == QUIRE_OWN_PREFIX && !masked;
        const int32_t count = prefix ? tile->own_count + tile->n_rows - 1 : QUIRE_T;
        job.run[job.n_runs++] = raw_run(c, w, page, QUIRE_T, count < QUIRE_T ? count : QUIRE_T);
        pages[1] = tile->own_page;
        masked = !prefix;
        if (prefix)
            job.see.first_position = QUIRE_T + tile->own_count - 1;
    }
    quire__states_empty(state, w->n);
    if (job.n_runs == 0)
        return;
    if (masked) {
        attend_masked_runs(c, w, &job, pages, state);
        return;
    }
    quire_state rows;
    rows_of_job(c, w, &job, 0, tile->n_rows, false, state, &rows);
    attend_runs(c, &job, state);
}

/* Pages that are not complete, the tile's own aside: adds them to `total`. */
static void attend_open(const call *c, const work *w, const quire_state *total) {
    const quire_sight_tile *tile = w->tile;
    for (int32_t p = 0; p < c->sight->n_pages; p++) {
        const int32_t at = w->first_page + p;
        if (tile->kind[p] == QUIRE_PAGE_HIDDEN || p == tile->own_page ||
            (c->layer->side[0].place[at] == QUIRE_CELLS_EMPTY &&
             c->layer->side[1].place[at] == QUIRE_CELLS_EMPTY) ||
            (quire__cells_is_packed(c->layer, 0, at) && quire__cells_is_packed(c->layer, 1, at)))
            continue;
        quire_attend_job job = make_job(c, w);
        quire_state rows;
        job.run[job.n_runs++] = raw_run(c, w, at, 0, QUIRE_T);
        quire__states_empty(&c->worker->extra, w->n);
        if (tile->kind[p] == QUIRE_PAGE_MIXED) {
            attend_masked_runs(c, w, &job, (int32_t[2]){p, -1}, &c->worker->extra);
        } else {
            rows_of_job(c, w, &job, 0, tile->n_rows, false, &c->worker->extra, &rows);
            attend_runs(c, &job, &c->worker->extra);
        }
        quire__states_merge(c->cells->pool->kernels.rows, total, &c->worker->extra, w->n,
                            c->layer->form->config.v_dim);
    }
}

/* ------------------------------------------------------------------ parts and their merge */

/* Where a unit of a split tile saves row and head i: {m, l, o (DV)}. */
static float *slot(const call *c, const work *w, int32_t unit, int32_t i) {
    const size_t row = (size_t)(w->tile->first_slot + unit * w->tile->n_rows + i / w->n_group);
    const size_t head = (size_t)(w->kv * w->n_group + i % w->n_group);
    return c->cells->partial + row * c->cells->partial_floats +
           head * (size_t)(c->layer->form->config.v_dim + 2);
}

static void save_part(const call *c, const work *w, int32_t unit, const quire_state *state) {
    const int dim = c->layer->form->config.v_dim;
    for (int32_t i = 0; i < w->n; i++)
        quire__state_save(quire__state_at(state, i, dim), slot(c, w, unit, i), dim);
}

static void unrotate(const call *c, const work *w, const quire_state *total) {
    if (c->layer->form->format.v.rotated)
        quire__states_unrotate(c->cells->pool->kernels.rows, total, w->n,
                               c->layer->form->config.v_dim);
}

/* Whether a row sees a cell whose K or V was not a number. */
static bool sees_bad(const call *c, const work *w, int32_t row) {
    const quire_sight_args *a = &c->sight->args;
    const void *mask = quire__sight_mask(c->sight, row);
    for (int32_t p = 0; p < c->sight->n_pages; p++) {
        const int32_t at = w->first_page + p;
        uint64_t bad = atomic_load_explicit(&c->layer->side[0].bad[at], memory_order_relaxed) |
                       atomic_load_explicit(&c->layer->side[1].bad[at], memory_order_relaxed);
        for (int32_t cell = p * QUIRE_T; bad && cell < a->n_cells; cell++, bad >>= 1)
            if ((bad & 1) &&
                (!mask || quire__get_element(a->mask_type, mask, (size_t)cell) != -INFINITY))
                return true;
    }
    return false;
}

static void write_rows(const call *c, const work *w, const quire_state *total) {
    const int dim = c->layer->form->config.v_dim;
    const bool has_bad = atomic_load_explicit(&c->layer->has_bad, memory_order_relaxed);
    bool bad = false;
    for (int32_t i = 0; i < w->n; i++) {
        const int32_t row = w->tile->row + i / w->n_group,
                      head = w->kv * w->n_group + i % w->n_group;
        float *out = c->args->out + (size_t)row * c->out_stride + (size_t)head * (size_t)dim;
        const quire_partial part = quire__state_at(total, i, dim);
        if (c->args->sink_logits)
            quire__state_add_sink(part, c->args->sink_logits[head] * QUIRE_LOG2E, dim);
        quire__state_finish(part, out, dim);
        if (has_bad && i % w->n_group == 0)
            bad = sees_bad(c, w, row);
        if (!c->worker->q.usable[i] || bad)
            for (int d = 0; d < dim; d++)
                out[d] = NAN;
    }
}

static void run_whole(const call *c, const work *w) {
    const int dim = c->layer->form->config.v_dim;
    const quire_state *total = &c->worker->total, *part = &c->worker->part;
    load_queries(c, w);
    measure_queries(c, w);
    quire__states_empty(total, w->n);
    for (int32_t i = 0; i < w->tile->n_chunks; i++) {
        attend_chunk(c, w, w->tile->first_chunk + i, part);
        quire__states_merge(c->cells->pool->kernels.rows, total, part, w->n, dim);
    }
    unrotate(c, w, total);
    attend_open(c, w, total);
    attend_own(c, w, part);
    quire__states_merge(c->cells->pool->kernels.rows, total, part, w->n, dim);
    write_rows(c, w, total);
}

static void run_split(const call *c, const work *w, int32_t unit, atomic_int *done) {
    const int dim = c->layer->form->config.v_dim;
    const int32_t n_parts = w->tile->n_chunks;
    const quire_state *part = &c->worker->part, *total = &c->worker->total;
    load_queries(c, w);
    if (unit < n_parts) {
        attend_chunk(c, w, w->tile->first_chunk + unit, part);
    } else {
        measure_queries(c, w);
        attend_own(c, w, part);
    }
    save_part(c, w, unit, part);
    if (atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) < n_parts)
        return;
    atomic_store_explicit(done, 0, memory_order_relaxed);
    quire__states_empty(total, w->n);
    for (int32_t u = 0; u <= n_parts; u++) {
        if (u == n_parts) {
            unrotate(c, w, total);
            attend_open(c, w, total);
        }
        for (int32_t i = 0; i < w->n; i++)
            quire__state_merge_saved(c->cells->pool->kernels.rows, quire__state_at(total, i, dim),
                                     slot(c, w, u, i), dim);
    }
    write_rows(c, w, total);
}

static void run_unit(const call *c, int32_t unit) {
    const quire_sight *sight = c->sight;
    const int32_t at = unit % sight->n_units;
    int32_t low = 0, high = sight->n_tiles - 1; /* finds the last tile with first_unit <= at */
    while (low < high) {
        const int32_t middle = (low + high + 1) / 2;
        if (sight->tile[middle].first_unit <= at)
            low = middle;
        else
            high = middle - 1;
    }
    const quire_sight_tile *tile = &sight->tile[low];
    work w = {.tile = tile,
              .index = low,
              .kv = unit / sight->n_units,
              .n_group = c->args->n_heads / c->layer->form->config.n_kv_heads,
              .first_page = tile->stream * c->cells->pages_per_stream};
    w.n = tile->n_rows * w.n_group;
    if (tile->split)
        run_split(c, &w, at - tile->first_unit,
                  &c->cells->tile_done[low * c->cells->max_kv_heads + w.kv]);
    else
        run_whole(c, &w);
}

/* ------------------------------------------------------------------ the call */

static quire_status check_args(call *c, int32_t index) {
    const quire_cells_attend_args *a = c->args;
    const quire_layer *config = &c->layer->form->config;
    if (!a || !a->q || !a->out || !a->sight || !quire__type_valid(a->q_type))
        return quire__fail(QUIRE_E_INVALID,
                           "layer %d: q, out or sight is NULL, or q has an unknown type",
                           (int)index);
    if (a->sight->cells != c->cells)
        return quire__fail(QUIRE_E_INVALID, "layer %d: the sight belongs to other cells",
                           (int)index);
    if (a->sight->n_rows == 0)
        return quire__fail(QUIRE_E_STATE, "layer %d: the sight was never set", (int)index);
    if (a->n_heads < 1 || a->n_heads % config->n_kv_heads || a->n_heads > config->n_heads)
        return quire__fail(
            QUIRE_E_INVALID, "layer %d: %d query heads over %d KV heads; created for at most %d",
            (int)index, (int)a->n_heads, (int)config->n_kv_heads, (int)config->n_heads);
    if (!(a->scale >= 0 && quire__finite(a->scale)) ||
        !(a->softcap >= 0 && quire__finite(a->softcap)))
        return quire__fail(QUIRE_E_INVALID, "layer %d: scale %g, softcap %g", (int)index,
                           (double)a->scale, (double)a->softcap);
    const size_t dk = (size_t)config->k_dim, size = quire__type_bytes(a->q_type);
    const float scale = a->scale > 0 ? a->scale : 1.0f / sqrtf((float)config->k_dim);
    c->sight = a->sight;
    c->q_scale = a->softcap > 0 ? scale / a->softcap : scale * QUIRE_LOG2E;
    c->q_head_bytes = (a->q_head_stride ? a->q_head_stride : dk) * size;
    c->q_row_bytes = (a->q_row_stride ? a->q_row_stride : (size_t)a->n_heads * dk) * size;
    c->out_stride =
        a->out_row_stride ? a->out_row_stride : (size_t)a->n_heads * (size_t)config->v_dim;
    return QUIRE_OK;
}

/* Starts a worker on a layer. Buffers of the size that many rows need go back to the system at the
 * first step of few. */
static void begin(const call *c) {
    quire_cells_worker *w = c->worker;
    const bool many = c->sight->n_rows >= QUIRE_CELLS_TILE_ROWS;
    if (w->spread && !many)
        quire__give_back(&c->cells->pool->allocator, w->scratch, w->scratch_bytes);
    w->spread = many;
    w->loaded_tile = -1;
    w->prepared = false;
}

quire_status quire_cells_attend(quire_cells *cells, int32_t layer,
                                const quire_cells_attend_args *args, int32_t ith, int32_t nth) {
    QUIRE_TRY(quire__cells_check(cells, layer, QUIRE_SIDE_K));
    if (nth < 1 || nth > cells->max_workers || ith < 0 || ith >= nth)
        return quire__fail(QUIRE_E_INVALID, "worker %d of %d; cells were created for %d", (int)ith,
                           (int)nth, (int)cells->max_workers);
    call c = {
        .cells = cells, .layer = &cells->layer[layer], .args = args, .worker = &cells->worker[ith]};
    const quire_status status = check_args(&c, layer);
    if (status == QUIRE_OK) {
        const int32_t n_units = c.sight->n_units * c.layer->form->config.n_kv_heads;
        begin(&c);
        for (int32_t first, end = 0;
             (first = quire__take_units(&cells->next_unit, n_units, nth, &end)) < end;)
            for (int32_t unit = first; unit < end; unit++)
                run_unit(&c, unit);
        if (ith == 0)
            atomic_fetch_add_explicit(&c.layer->attended_rows, (uint64_t)c.sight->n_rows,
                                      memory_order_relaxed);
    }
    /* The last worker to leave resets the counters for the next call. */
    if (atomic_fetch_add(&cells->n_finished, 1) + 1 == nth) {
        atomic_store(&cells->n_finished, 0);
        atomic_store(&cells->next_unit, 0);
    }
    return status;
}
