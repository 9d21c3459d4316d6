/* Creating cells: the layers are described as a pool describes them, then memory is divided. */
#include <string.h>

#include "base/element.h"
#include "base/size.h"
#include "cells/cells.h"

enum { SPLIT_TILES = 8 /* tiles of one row whose chunks can be attended apart */ };

void quire_cells_options_default(quire_cells_options *options) {
    if (!options)
        return;
    *options = (quire_cells_options){.struct_size = sizeof *options,
                                     .raw = QUIRE_F16,
                                     .n_streams = 1,
                                     .max_rows = 512,
                                     .max_workers = 8,
                                     .measure_order = true};
    quire_policy_parse("none", &options->policy);
}

/* ------------------------------------------------------------------ layers */

/* Whether a layer's K codec needs an order that it was not given. */
static bool lacks_order(const quire_cells_options *o, int32_t i) {
    const quire_layer *l = &o->layers[i];
    const quire_policy *p = &o->policy;
    const quire_codec k = l->k != QUIRE_CODEC_DEFAULT                            ? l->k
                          : l->window > 0                                        ? p->windowed.k
                          : i < p->edge_first || i >= o->n_layers - p->edge_last ? p->edge.k
                                                                                 : p->pair.k;
    return quire__codec_is_mixed(k) && !l->k_order;
}

static quire_status check(const quire_cells_options *o) {
    if (o->struct_size != sizeof *o)
        return quire__fail(QUIRE_E_INVALID,
                           "options were not set up by quire_cells_options_default");
    if (o->n_streams < 1 || o->n_cells < QUIRE_T || o->n_cells % QUIRE_T ||
        o->n_cells > QUIRE_MAX_TOKENS / o->n_streams)
        return quire__fail(QUIRE_E_INVALID,
                           "%d streams of %d cells: at least one, of a multiple of 64 cells, "
                           "2^30 cells in all",
                           (int)o->n_streams, (int)o->n_cells);
    return QUIRE_OK;
}

/* The same layers for a pool: without what attention is given call by call, and with a natural
 * order where one is to be measured. -> one block, or NULL. */
static quire_layer *layers_for_pool(const quire_cells_options *o,
                                    const quire_allocator *allocator) {
    size_t places = 0;
    for (int32_t i = 0; i < o->n_layers; i++)
        if (lacks_order(o, i) && o->layers[i].k_dim > 0 && o->layers[i].k_dim <= QUIRE_DIM_MAX)
            places += (size_t)o->layers[i].n_kv_heads * (size_t)o->layers[i].k_dim;
    quire_carver sizing = {NULL, 0, false};
    quire__carve(&sizing, (size_t)o->n_layers, sizeof(quire_layer));
    quire__carve(&sizing, places, sizeof(uint16_t));
    quire_carver c = {quire__alloc(allocator, sizing.used, QUIRE_CACHE_LINE), 0, false};
    if (!c.base)
        return NULL;
    quire_layer *layers = quire__carve(&c, (size_t)o->n_layers, sizeof *layers);
    uint16_t *order = quire__carve(&c, places, sizeof *order);
    for (int32_t i = 0; i < o->n_layers; i++) {
        quire_layer *l = &layers[i];
        *l = o->layers[i];
        l->alibi = l->sink_logits = NULL;
        l->scale = l->softcap = 0;
        l->keep = 0;
        if (!lacks_order(o, i) || l->k_dim <= 0 || l->k_dim > QUIRE_DIM_MAX)
            continue;
        l->k_order = order;
        for (int32_t j = 0; j < l->n_kv_heads * l->k_dim; j++)
            *order++ = (uint16_t)(j % l->k_dim);
    }
    return layers;
}

/* A pool that describes the layers and never gets memory for pages. */
static quire_status describe(const quire_cells_options *o, quire_pool **pool) {
    quire_pool_options options;
    quire_pool_options_default(&options);
    if (!o)
        return quire__fail(QUIRE_E_INVALID, "options is NULL");
    QUIRE_TRY(check(o));
    options.layers = o->layers;
    options.n_layers = o->n_layers;
    options.policy = o->policy;
    options.raw = o->raw;
    options.max_batch_tokens = o->max_rows;
    options.max_workers = o->max_workers;
    options.allocator = o->allocator;
    options.cpu = o->cpu;
    QUIRE_TRY(quire__pool_check(&options));
    for (int32_t i = 0; i < o->n_layers; i++) {
        if (o->layers[i].share != -1)
            return quire__fail(QUIRE_E_INVALID,
                               "layer %d shares layer %d's cache: attend over that one instead",
                               (int)i, (int)o->layers[i].share);
        if (lacks_order(o, i) && !o->measure_order)
            return quire__fail(QUIRE_E_INVALID,
                               "layer %d: its K codec needs a channel order: set "
                               "quire_layer.k_order, or measure_order",
                               (int)i);
    }
    const quire_allocator *allocator = o->allocator ? o->allocator : &quire__default_allocator;
    quire_layer *layers = layers_for_pool(o, allocator);
    if (!layers)
        return quire__fail(QUIRE_E_NOMEM, "no memory for %d layers", (int)o->n_layers);
    options.layers = layers;
    const quire_status status = quire__pool_describe(&options, pool);
    quire__free(allocator, layers);
    return status;
}

/* ------------------------------------------------------------------ memory */

typedef struct sizes {
    size_t records, slots; /* bytes, all layers */
} sizes;

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t side_dim(const quire_layer_state *form, int side) {
    return (size_t)(side == 1 ? form->config.v_dim : form->config.k_dim);
}

static sizes sizes_of(const quire_cells *cells) {
    const size_t pages = (size_t)cells->n_pages, raw = quire__type_bytes(cells->pool->raw);
    sizes n = {0};
    for (int32_t i = 0; i < cells->pool->n_layers; i++) {
        const quire_layer_state *form = &cells->pool->layer[i];
        const size_t heads = (size_t)form->config.n_kv_heads;
        n.records += pages * heads * form->format.bytes;
        for (int side = 0; side < 2; side++) {
            const size_t row = heads * side_dim(form, side) * raw;
            if (!quire__form_is_raw(form, cells->pool->raw))
                n.slots += pages * QUIRE_T * row;
        }
    }
    return n;
}

static void carve_side(quire_carver *c, quire_cells *cells, const quire_layer_state *form,
                       quire_cells_side *s, int side) {
    const size_t pages = (size_t)cells->n_pages, raw = quire__type_bytes(cells->pool->raw),
                 dim = side_dim(form, side);
    s->format = side == 1 ? &form->format.v : &form->format.k;
    s->is_v = side == 1;
    s->head_bytes = QUIRE_T * dim * raw;
    s->place = quire__carve(c, pages, sizeof *s->place);
    s->written = quire__carve(c, pages, sizeof *s->written);
    s->bad = quire__carve(c, pages, sizeof *s->bad);
    s->slot_page = quire__carve(c, pages, sizeof *s->slot_page);
    s->slot_hot = quire__carve(c, pages, sizeof *s->slot_hot);
    s->slot_sealing = quire__carve(c, pages, sizeof *s->slot_sealing);
    s->sinks = quire__carve(c, (size_t)cells->n_streams * (size_t)form->sinks,
                            (size_t)form->config.n_kv_heads * dim * raw);
}

static void carve_write(quire_carver *c, const quire_cells *cells, quire_cells_side *s) {
    const size_t pages = (size_t)cells->n_pages, rows = (size_t)cells->max_rows;
    s->touch = quire__carve(c, rows + pages, sizeof *s->touch);
    s->next_row = quire__carve(c, rows, sizeof *s->next_row);
    s->offset = quire__carve(c, rows, sizeof *s->offset);
}

static void carve_state(quire_carver *c, quire_state *state, size_t n, size_t dim) {
    state->m = quire__carve(c, n + QUIRE_STATE_ROWS, sizeof *state->m);
    state->l = quire__carve(c, n + QUIRE_STATE_ROWS, sizeof *state->l);
    state->o = quire__carve(c, (n + QUIRE_STATE_ROWS) * dim, sizeof *state->o);
}

static void carve_worker(quire_carver *c, quire_cells *cells, quire_cells_worker *w, size_t dk,
                         size_t dv) {
    const size_t n = QUIRE_CELLS_TILE_ROWS * (size_t)cells->max_group, dim = larger(dk, dv);
    const size_t first = c->used;
    w->scratch = c->base ? c->base + first : NULL;
    w->q.plain = quire__carve(c, n * dk, sizeof(float));
    w->q.rotated = quire__carve(c, n * dk, sizeof(float));
    w->q.projected = quire__carve(c, n * dk, sizeof(float));
    w->q.ordered = quire__carve(c, n * dk, sizeof(float));
    w->q.usable = quire__carve(c, n, sizeof *w->q.usable);
    carve_state(c, &w->part, n, dv);
    carve_state(c, &w->extra, n, dv);
    carve_state(c, &w->total, n, dv);
    w->scores = quire__carve(c, n * QUIRE_BLOCK_TOKENS, sizeof(float));
    w->rows = quire__carve(c, QUIRE_T * dim, sizeof(float));
    w->mask = quire__carve(c, larger(QUIRE_CELLS_TILE_ROWS, (size_t)cells->max_group),
                           QUIRE_CHUNK_PAGES * QUIRE_T * sizeof(float));
    w->workspace = quire__carve(c, 1, cells->workspace_bytes);
    w->raw[0] = quire__carve(c, QUIRE_T * dk, sizeof(float));
    w->raw[1] = quire__carve(c, QUIRE_T * dv, sizeof(float));
    w->scratch_bytes = c->used - first;
}

typedef struct meta_sizes {
    size_t cleared; /* at first: tables that must begin as zeros */
    size_t all;
} meta_sizes;

/* Everything but records and slots. With `base` NULL: only its size. */
static meta_sizes carve_meta(quire_cells *cells, uint8_t *base) {
    const quire_pool *pool = cells->pool;
    quire_carver c = {base, 0, false};
    size_t dk = 0, dv = 0, side_bytes = 0;
    cells->layer = quire__carve(&c, (size_t)pool->n_layers, sizeof *cells->layer);
    for (int32_t i = 0; i < pool->n_layers; i++) {
        quire_layer_state *form = &cells->pool->layer[i];
        const size_t heads = (size_t)form->config.n_kv_heads, k_dim = side_dim(form, 0);
        quire_cells_layer sizing, *l = base ? &cells->layer[i] : &sizing;
        l->form = form;
        l->in_place = quire__form_is_raw(form, pool->raw);
        for (int side = 0; side < 2; side++) {
            carve_side(&c, cells, form, &l->side[side], side);
            side_bytes = larger(side_bytes, heads * l->side[side].head_bytes);
        }
        l->measure.squares = form->format.k.n_mixed
                                 ? quire__carve(&c, heads * k_dim, sizeof *l->measure.squares)
                                 : NULL;
        dk = larger(dk, k_dim);
        dv = larger(dv, side_dim(form, 1));
    }
    cells->touched = quire__carve(&c, (size_t)cells->n_pages, sizeof *cells->touched);
    cells->tile_done = quire__carve(&c, (size_t)cells->max_rows * (size_t)cells->max_kv_heads,
                                    sizeof *cells->tile_done);
    cells->worker = quire__carve(&c, (size_t)cells->max_workers, sizeof *cells->worker);
    meta_sizes n = {.cleared = c.used};
    for (int32_t i = 0; i < pool->n_layers; i++)
        for (int side = 0; side < 2; side++) {
            quire_cells_side sizing;
            carve_write(&c, cells, base ? &cells->layer[i].side[side] : &sizing);
        }
    cells->region_side_bytes = side_bytes;
    for (int r = 0; r < QUIRE_CELLS_REGIONS; r++)
        cells->region[r] = quire__carve(&c, 2 * (size_t)cells->region_pages, side_bytes);
    cells->partial =
        quire__carve(&c, (size_t)cells->split_rows * cells->partial_floats, sizeof(float));
    for (int32_t i = 0; i < cells->max_workers; i++) {
        quire_cells_worker sizing;
        carve_worker(&c, cells, base ? &cells->worker[i] : &sizing, dk, dv);
    }
    n.all = c.overflow ? SIZE_MAX : c.used;
    return n;
}

/* Numbers that all layers share. */
static void measure_layers(quire_cells *cells) {
    const quire_pool *pool = cells->pool;
    cells->max_group = 1;
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer *l = &pool->layer[i].config;
        const int32_t group = l->n_heads / l->n_kv_heads;
        cells->max_group = group > cells->max_group ? group : cells->max_group;
        cells->max_kv_heads =
            l->n_kv_heads > cells->max_kv_heads ? l->n_kv_heads : cells->max_kv_heads;
        cells->partial_floats =
            larger(cells->partial_floats, (size_t)l->n_heads * (size_t)(l->v_dim + 2));
    }
    const int n_rows = QUIRE_CELLS_TILE_ROWS * cells->max_group;
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer *l = &pool->layer[i].config;
        cells->workspace_bytes =
            larger(cells->workspace_bytes,
                   quire__workspace_bytes(&pool->kernels, n_rows, l->k_dim, l->v_dim));
    }
}

/* Cells without memory for pages. */
static quire_status plan(const quire_cells_options *o, quire_cells **result) {
    quire_pool *pool;
    QUIRE_TRY(describe(o, &pool));
    quire_cells *cells = quire__alloc(&pool->allocator, sizeof *cells, QUIRE_CACHE_LINE);
    if (!cells) {
        quire__pool_discard(pool);
        return quire__fail(QUIRE_E_NOMEM, "no memory for cells");
    }
    memset(cells, 0, sizeof *cells);
    cells->pool = pool;
    cells->n_streams = o->n_streams;
    cells->n_cells = o->n_cells;
    cells->pages_per_stream = o->n_cells / QUIRE_T;
    cells->n_pages = cells->pages_per_stream * o->n_streams;
    cells->max_rows = o->max_rows;
    cells->max_workers = o->max_workers;
    cells->region_pages = o->max_rows / QUIRE_T;
    cells->split_rows = SPLIT_TILES * (cells->pages_per_stream / QUIRE_CHUNK_PAGES + 2);
    measure_layers(cells);
    *result = cells;
    return QUIRE_OK;
}

static void discard(quire_cells *cells) {
    const quire_allocator allocator = cells->pool->allocator;
    quire__free(&allocator, cells->records);
    quire__release(&allocator, cells->slots, sizes_of(cells).slots);
    quire__free(&allocator, cells->meta);
    quire__free(&allocator, cells->read.room);
    quire__pool_discard(cells->pool);
    quire__free(&allocator, cells);
}

static quire_status take_memory(quire_cells *cells) {
    const quire_allocator *allocator = &cells->pool->allocator;
    const meta_sizes meta = carve_meta(cells, NULL);
    const sizes n = sizes_of(cells);
    if (meta.all == SIZE_MAX)
        return quire__fail(QUIRE_E_TOO_BIG, "cells with these options need more than 64 TiB");
    cells->meta = quire__alloc(allocator, meta.all, QUIRE_CACHE_LINE);
    cells->records = quire__alloc(allocator, n.records, 4096);
    /* Each side uses only its first few slots: pages that are open. */
    cells->slots = n.slots ? quire__reserve(allocator, n.slots) : NULL;
    if (cells->meta) /* plans and workers: for the most rows that a step may have */
        quire__expect_little_use(cells->meta, meta.all);
    if (!cells->meta || !cells->records || (n.slots && !cells->slots))
        return quire__fail(QUIRE_E_NOMEM, "no memory for %zu bytes of pages and %zu of tables",
                           n.records + n.slots, meta.all);
    memset(cells->meta, 0, meta.cleared);
    carve_meta(cells, cells->meta);
    return QUIRE_OK;
}

static void hand_out(quire_cells *cells, const quire_cells_options *o) {
    uint8_t *records = cells->records, *slots = cells->slots;
    for (int32_t i = 0; i < cells->pool->n_layers; i++) {
        quire_cells_layer *l = &cells->layer[i];
        const size_t pages = (size_t)cells->n_pages, heads = (size_t)l->form->config.n_kv_heads;
        l->records = records;
        records += pages * heads * l->form->format.bytes;
        for (int side = 0; side < 2; side++) {
            quire_cells_side *s = &l->side[side];
            s->slots = slots;
            slots += l->in_place ? 0 : pages * heads * s->head_bytes;
            for (size_t page = 0; page < pages; page++) {
                s->place[page] = QUIRE_CELLS_EMPTY;
                s->slot_page[page] = -1;
            }
        }
        l->measure.waiting = lacks_order(o, i);
        /* the pool's own copy of the natural order, to be written over */
        l->measure.order =
            l->measure.waiting ? (uint16_t *)(uintptr_t)l->form->config.k_order : NULL;
    }
    for (int32_t page = 0; page < cells->n_pages; page++)
        cells->touched[page] = -1;
}

quire_status quire_cells_create(quire_cells **result, const quire_cells_options *o) {
    if (!result)
        return quire__fail(QUIRE_E_INVALID, "result is NULL");
    *result = NULL;
    quire_cells *cells;
    QUIRE_TRY(plan(o, &cells));
    quire_status status = take_memory(cells);
    if (status == QUIRE_OK && pthread_mutex_init(&cells->lock, NULL) != 0)
        status = quire__fail(QUIRE_E_NOMEM, "the system cannot give cells their mutex");
    if (status != QUIRE_OK) {
        discard(cells);
        return status;
    }
    hand_out(cells, o);
    *result = cells;
    return QUIRE_OK;
}

void quire_cells_free(quire_cells *cells) {
    if (!cells)
        return;
    pthread_mutex_destroy(&cells->lock);
    discard(cells);
}

quire_status quire_cells_price(const quire_cells_options *o, size_t *bytes) {
    if (!bytes)
        return quire__fail(QUIRE_E_INVALID, "bytes is NULL");
    quire_cells *cells;
    QUIRE_TRY(plan(o, &cells));
    const size_t meta = carve_meta(cells, NULL).all;
    const sizes n = sizes_of(cells);
    *bytes =
        meta == SIZE_MAX ? SIZE_MAX : meta + n.records + n.slots / (size_t)cells->pages_per_stream;
    discard(cells);
    return *bytes == SIZE_MAX ? quire__fail(QUIRE_E_TOO_BIG, "cells need more than 64 TiB")
                              : QUIRE_OK;
}
