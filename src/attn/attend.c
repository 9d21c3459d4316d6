/* Attention of a batch over one layer, divided into units of work for whichever worker is free.
 *
 * A unit is one tile and KV head or, when few rows see many pages, one chunk of it; then the worker
 * that finishes the last unit of a tile merges the parts. Parts are merged by position, so the
 * result does not depend on which worker did what.
 */
#include <math.h>
#include <string.h>

#include "attn/softmax_state.h"
#include "attn/work_units.h"
#include "base/element.h"
#include "base/real.h"
#include "batch/batch.h"

typedef struct call {
    quire_batch *batch;
    quire_layer_state *layer;
    int32_t index; /* of the layer */
    const quire_attend_args *args;
    quire_worker *worker;
    size_t q_row_bytes, out_stride;
} call;

/* One tile and KV head. */
typedef struct work {
    const quire_tile *tile;
    const quire_tile_class *plan;
    const quire_seq_class *seq;
    int32_t kv, n_group, n; /* KV head, query heads per KV head, rows * query heads */
} work;

/* Loads the scaled queries (rows, heads of this KV head, DK). */
static void load_queries(const call *c, const work *w) {
    const quire_layer *config = &c->layer->config;
    const quire_side_format *k = &c->layer->format.k,
                            *before = &c->batch->pool->layer_before[c->index].format.k;
    const bool stale = w->plan->sees_stale;
    const size_t dim = (size_t)config->k_dim, size = quire__type_bytes(c->args->q.type);
    const quire_query_forms forms = {.order = k->n_mixed || (stale && before->n_mixed)
                                                  ? config->k_order + (size_t)w->kv * dim
                                                  : NULL,
                                     .rotated = k->rotated || (stale && before->rotated),
                                     .projected = k->family == QUIRE_FAMILY_PROD ||
                                                  (stale && before->family == QUIRE_FAMILY_PROD)};
    for (int32_t i = 0; i < w->n; i++) {
        const int32_t row = w->tile->row + i / w->n_group,
                      head = w->kv * w->n_group + i % w->n_group;
        const uint8_t *from = (const uint8_t *)c->args->q.data + (size_t)row * c->q_row_bytes +
                              (size_t)head * dim * size;
        quire__query_row_load(&c->worker->q, i, c->batch->pool->kernels.rows, &forms,
                              c->args->q.type, from, config->k_dim, c->layer->q_scale);
    }
}

static quire_attend_job make_job(const call *c, const work *w) {
    const quire_layer *config = &c->layer->config;
    quire_attend_job job = {
        .format = &c->layer->format, .n_rows = w->tile->n_rows, .n_group = w->n_group};
    job.see.first_position = w->tile->page * QUIRE_T + w->tile->offset;
    job.see.window = config->window;
    job.see.keep = config->keep;
    job.see.softcap_log2 = config->softcap * QUIRE_LOG2E;
    if (config->alibi)
        job.see.alibi = config->alibi + w->kv * w->n_group;
    if (c->args->mask) {
        const bool per_kv_head = c->args->mask_per_kv_head;
        job.see.mask_row_stride = c->args->mask_row_stride;
        job.see.mask_head_stride = per_kv_head ? 0 : c->args->mask_head_stride;
        job.see.mask =
            c->args->mask + (size_t)w->tile->row * c->args->mask_row_stride +
            (size_t)(per_kv_head ? w->kv : w->kv * w->n_group) * c->args->mask_head_stride;
    }
    job.scratch = c->worker->scores;
    job.workspace = c->worker->workspace;
    job.raw = c->batch->pool->raw;
    /* Units come in runs of one tile and head, the raw one last, so queries are prepared once per
     * run. */
    const bool known = c->worker->loaded == w->tile && c->worker->loaded_kv == w->kv;
    if (!known)
        load_queries(c, w);
    c->worker->loaded = w->tile;
    c->worker->loaded_kv = w->kv;
    job.q_is_new = !known || w->plan->sees_stale;
    return job;
}

/* Attends over the pages of one chunk in the layer's form or, if `stale`, in the previous form. */
static void attend_chunk(const call *c, const work *w, quire_attend_job *job, int32_t chunk,
                         bool stale, const quire_state *state) {
    const quire_pool *pool = c->batch->pool;
    const quire_layer_state *form = stale ? &pool->layer_before[c->index] : c->layer;
    const quire_class *class =
        stale ? &pool->class_before[c->layer->class] : &pool->class[c->layer->class];
    const int32_t first_seen = quire__window_start(class, job->see.first_position) / QUIRE_T;
    job->format = &form->format;
    quire__query_rows_use(job, &c->worker->q, &form->format.k);
    job->first_page = chunk * QUIRE_CHUNK_PAGES;
    job->skip = form->sinks;
    for (int32_t i = 0; i < QUIRE_CHUNK_PAGES + QUIRE_AHEAD_PAGES; i++) {
        const int32_t page = job->first_page + i;
        const bool seen =
            page < w->tile->page && (page >= first_seen || quire__pinned(class, page));
        const int32_t leaf = seen ? w->seq->table[page] : QUIRE_NO_LEAF;
        const bool here = leaf != QUIRE_NO_LEAF &&
                          (!w->plan->sees_stale || quire__leaf_stale(pool, leaf) == stale);
        const uint8_t *record = here ? quire__sealed_record(pool, form, leaf, w->kv) : NULL;
        if (i < QUIRE_CHUNK_PAGES)
            job->record[i] = record;
        else
            job->next[i - QUIRE_CHUNK_PAGES] = record;
    }
    job->bytes_read = 0;
    form->packed->attend(job, state);
    if (quire__falls_back(&pool->kernels, form->packed))
        atomic_fetch_add_explicit(&c->layer->fallbacks, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->layer->packed_read, job->bytes_read, memory_order_relaxed);
}

/* Attends over the tile's own page, and over the raw sinks if that is not page 0. */
static void attend_raw(const call *c, const work *w, quire_attend_job *job,
                       const quire_state *state) {
    const quire_pool *pool = c->batch->pool;
    job->q = c->worker->q.plain;
    job->n_runs = 0;
    if (w->tile->page > 0 && w->seq->sinks != QUIRE_NO_LEAF) {
        const quire_layer_state *form = quire__layer_of(pool, c->index, w->seq->sinks);
        const quire_class *class = quire__class_of(pool, w->seq->sinks);
        const uint8_t *sinks = quire__sink_record(pool, form, w->seq->sinks, w->kv);
        if (form->sinks > 0 &&
            (class->keep > 0 || quire__window_start(class, job->see.first_position) < form->sinks))
            job->run[job->n_runs++] =
                (struct quire_raw_run){0, form->sinks, sinks, sinks + form->sink_v_offset};
    }
    const uint8_t *own = quire__tile_raw(c->batch, w->tile, c->layer, w->kv);
    job->run[job->n_runs++] =
        (struct quire_raw_run){w->tile->page * QUIRE_T, w->tile->offset + w->tile->n_rows, own,
                               own + c->layer->raw_v_offset};
    job->bytes_read = 0;
    pool->kernels.raw->attend(job, state);
    atomic_fetch_add_explicit(&c->layer->raw_read, job->bytes_read, memory_order_relaxed);
}

/* ------------------------------------------------------------------ parts and their merge */

/* Where a unit of a split tile saves row r, head h: {m, l, o (DV)}. */
static float *slot(const call *c, const work *w, int32_t unit, int32_t i) {
    const size_t row = (size_t)(w->tile->first_slot + unit * w->tile->n_rows + i / w->n_group);
    const size_t head = (size_t)(w->kv * w->n_group + i % w->n_group);
    return c->batch->partial + row * c->batch->partial_floats +
           head * (size_t)(c->layer->config.v_dim + 2);
}

static void save_part(const call *c, const work *w, int32_t unit, const quire_state *state) {
    const int dim = c->layer->config.v_dim;
    for (int32_t i = 0; i < w->n; i++)
        quire__state_save(quire__state_at(state, i, dim), slot(c, w, unit, i), dim);
}

static void unrotate(const call *c, const work *w, const quire_layer_state *form,
                     const quire_state *total) {
    if (form->format.v.rotated)
        quire__states_unrotate(c->batch->pool->kernels.rows, total, w->n, c->layer->config.v_dim);
}

static void write_rows(const call *c, const work *w, const quire_state *total) {
    const quire_layer *config = &c->layer->config;
    const int dim = config->v_dim;
    for (int32_t i = 0; i < w->n; i++) {
        const int32_t row = w->tile->row + i / w->n_group,
                      head = w->kv * w->n_group + i % w->n_group;
        float *out = c->args->out + (size_t)row * c->out_stride + (size_t)head * (size_t)dim;
        const quire_partial part = quire__state_at(total, i, dim);
        if (config->sink_logits)
            quire__state_add_sink(part, config->sink_logits[head], dim);
        float lse = quire__state_finish(part, out, dim);
        if (!c->worker->q.usable[i]) {
            lse = NAN;
            for (int d = 0; d < dim; d++)
                out[d] = NAN;
        }
        if (c->args->lse)
            c->args->lse[(size_t)row * (size_t)config->n_heads + (size_t)head] = lse;
    }
}

/* ------------------------------------------------------------------ units */

/* Attends over part i of a tile's packed pages. If the tile sees pages of two forms, each part is
 * un-rotated on its own. */
static void attend_part(const call *c, const work *w, quire_attend_job *job, int32_t i,
                        const quire_state *part) {
    if (!w->plan->sees_stale) {
        attend_chunk(c, w, job, quire__tile_chunk(w->plan, i), false, part);
        return;
    }
    const bool stale = i % 2 == 0;
    attend_chunk(c, w, job, quire__tile_chunk(w->plan, i / 2), stale, part);
    unrotate(c, w, stale ? &c->batch->pool->layer_before[c->index] : c->layer, part);
}

static void run_whole(const call *c, const work *w) {
    const int dim = c->layer->config.v_dim;
    const quire_state *total = &c->worker->total, *part = &c->worker->part;
    quire_attend_job job = make_job(c, w);
    const int32_t n_parts = quire__tile_parts(w->plan);
    const bool gathers = !w->plan->sees_stale && quire__gathers(c->layer->packed, w->n);
    if (n_parts == 0)
        quire__states_empty(total, w->n);
    for (int32_t i = 0; i < n_parts; i++) {
        job.q_is_new = i == 0 || w->plan->sees_stale;
        job.follows = gathers && i > 0;
        job.goes_on = gathers && i + 1 < n_parts;
        attend_part(c, w, &job, i, i == 0 || gathers ? total : part);
        if (i > 0 && !gathers)
            quire__states_merge(c->batch->pool->kernels.rows, total, part, w->n, dim);
    }
    if (!w->plan->sees_stale)
        unrotate(c, w, c->layer, total);
    attend_raw(c, w, &job, part);
    quire__states_merge(c->batch->pool->kernels.rows, total, part, w->n, dim);
    write_rows(c, w, total);
}

static void run_split(const call *c, const work *w, int32_t unit, atomic_int *done) {
    const int dim = c->layer->config.v_dim;
    const int32_t n_parts = quire__tile_parts(w->plan), n_units = n_parts + 1;
    const quire_state *part = &c->worker->part, *total = &c->worker->total;
    quire_attend_job job = make_job(c, w);
    if (unit < n_parts)
        attend_part(c, w, &job, unit, part);
    else
        attend_raw(c, w, &job, part); /* last of its run, so it may use the workspace */
    save_part(c, w, unit, part);
    if (atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) + 1 < n_units)
        return;
    atomic_store_explicit(done, 0, memory_order_relaxed);
    quire__states_empty(total, w->n);
    for (int32_t u = 0; u < n_units; u++) {
        if (u == n_parts && !w->plan->sees_stale)
            unrotate(c, w, c->layer, total);
        for (int32_t i = 0; i < w->n; i++)
            quire__state_merge_saved(c->batch->pool->kernels.rows, quire__state_at(total, i, dim),
                                     slot(c, w, u, i), dim);
    }
    write_rows(c, w, total);
}

static work work_of(const call *c, const quire_tile *tile, int32_t kv) {
    const quire_layer *config = &c->layer->config;
    const int32_t n_group = config->n_heads / config->n_kv_heads;
    return (work){.tile = tile,
                  .plan = &tile->class[c->layer->class],
                  .seq = &c->batch->item[tile->item].seq->class[c->layer->class],
                  .kv = kv,
                  .n_group = n_group,
                  .n = tile->n_rows * n_group};
}

static void run_unit(const call *c, int32_t unit) {
    const quire_batch *batch = c->batch;
    const int32_t g = c->layer->class, at = unit % batch->n_units[g];
    int32_t low = 0, high = batch->n_tiles - 1; /* finds the last tile with first_unit <= at */
    while (low < high) {
        const int32_t middle = (low + high + 1) / 2;
        if (batch->tile[middle].class[g].first_unit <= at)
            low = middle;
        else
            high = middle - 1;
    }
    const quire_tile *tile = &batch->tile[low];
    const work w = work_of(c, tile, unit / batch->n_units[g]);
    if (!tile->split)
        run_whole(c, &w);
    else
        run_split(c, &w, at - w.plan->first_unit,
                  &c->batch->tile_done[low * batch->tile_done_stride + w.kv]);
}

/* Units for whichever worker is free. */
static void run_shared(const call *c, int32_t nth) {
    quire_batch *batch = c->batch;
    const int32_t n_units = batch->n_units[c->layer->class] * c->layer->config.n_kv_heads;
    for (int32_t first, end = 0;
         (first = quire__take_units(&batch->next_unit, n_units, nth, &end)) < end;)
        for (int32_t unit = first; unit < end; unit++)
            run_unit(c, unit);
}

/* A fixed share of the tiles, each of them whole: right whatever the counters say. */
static void run_share(const call *c, int32_t ith, int32_t nth) {
    const int32_t n_heads = c->layer->config.n_kv_heads, n = c->batch->n_tiles * n_heads;
    for (int32_t i = ith; i < n; i += nth) {
        const work w = work_of(c, &c->batch->tile[i / n_heads], i % n_heads);
        run_whole(c, &w);
    }
}

/* Padding sees nothing: zeros, and -inf. */
static void write_padding(const call *c) {
    const quire_batch *batch = c->batch;
    const quire_layer *config = &c->layer->config;
    size_t row = 0;
    for (int32_t i = 0; i < batch->n_items; i++) {
        for (int32_t j = 0; j < batch->pad[i]; j++, row++) {
            memset(c->args->out + row * c->out_stride, 0,
                   (size_t)config->n_heads * (size_t)config->v_dim * sizeof *c->args->out);
            for (int32_t h = 0; c->args->lse && h < config->n_heads; h++)
                c->args->lse[row * (size_t)config->n_heads + (size_t)h] = -INFINITY;
        }
        row += (size_t)batch->item[i].n_tokens;
    }
}

static quire_status check_args(call *c, int32_t index) {
    const quire_attend_args *a = c->args;
    const quire_layer *config = &c->layer->config;
    const size_t q_dense = (size_t)config->n_heads * (size_t)config->k_dim,
                 out_dense = (size_t)config->n_heads * (size_t)config->v_dim;
    if (!a || !a->q.data || !a->out || !quire__type_valid(a->q.type))
        return quire__fail(QUIRE_E_INVALID, "layer %d: q or out is NULL, or q has an unknown type",
                           (int)index);
    if ((a->q.row_stride && a->q.row_stride < q_dense) ||
        (a->out_stride && a->out_stride < out_dense))
        return quire__fail(QUIRE_E_INVALID, "layer %d: the stride of q or out is less than a row",
                           (int)index);
    c->q_row_bytes = (a->q.row_stride ? a->q.row_stride : q_dense) * quire__type_bytes(a->q.type);
    c->out_stride = a->out_stride ? a->out_stride : out_dense;
    return QUIRE_OK;
}

static quire_status check_appended(const call *c, int32_t index) {
    const quire_batch *batch = c->batch;
    const int32_t source = c->layer->source;
    if (atomic_load(&batch->failed))
        return quire__fail(QUIRE_E_STATE, "batch failed and can only be aborted: %.200s",
                           batch->error);
    if (!quire__batch_appended(batch, source))
        return quire__fail(QUIRE_E_STATE, "layer %d: append its K and V before attending",
                           (int)index);
    if (batch->n_scratch > 0 && !batch->pool->class[c->layer->class].raw &&
        atomic_load(&batch->region_layer[c->layer->scratch_region]) != source)
        return quire__fail(QUIRE_E_STATE,
                           "layer %d: another layer was appended to since; attend a layer before "
                           "appending to the next",
                           (int)index);
    return QUIRE_OK;
}

quire_status quire_batch_attend(quire_batch *batch, int32_t index, const quire_attend_args *args,
                                int32_t ith, int32_t nth) {
    quire_status status = quire__batch_check_call(batch, index, ith, nth);
    if (status != QUIRE_OK) {
        /* Others of the same call may count on this one to be the last that leaves, and it cannot
         * be counted, since its numbers are wrong. */
        if (batch && batch->used)
            atomic_store(&batch->uncounted, true);
        return status;
    }
    if (batch->n_rows == 0)
        return QUIRE_OK;
    call c = {.batch = batch,
              .layer = &batch->pool->layer[index],
              .index = index,
              .args = args,
              .worker = &batch->worker[ith]};
    status = check_args(&c, index);
    if (status == QUIRE_OK)
        status = check_appended(&c, index);
    if (status == QUIRE_OK) {
        if (batch->padded && ith == 0)
            write_padding(&c);
        c.worker->loaded = NULL;
        if (atomic_load(&batch->uncounted))
            run_share(&c, ith, nth);
        else
            run_shared(&c, nth);
        if (ith == 0)
            atomic_fetch_add_explicit(&c.layer->attended_rows, (uint64_t)batch->n_tokens,
                                      memory_order_relaxed);
    } else {
        quire__batch_note(batch, status);
    }
    /* The last worker to leave, with or without an error, resets the counters for the next call. */
    if (atomic_fetch_add(&batch->n_finished, 1) + 1 == nth) {
        atomic_store(&batch->n_finished, 0);
        atomic_store(&batch->next_unit, 0);
    }
    return status;
}
