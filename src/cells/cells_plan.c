/* Which pages a write touches, and what becomes of them. */
#include <string.h>

#include "cells/cells.h"

quire_status quire__cells_check(const quire_cells *cells, int32_t layer, quire_side side) {
    if (!cells)
        return quire__fail(QUIRE_E_INVALID, "cells is NULL");
    if (layer < 0 || layer >= cells->pool->n_layers)
        return quire__fail(QUIRE_E_INVALID, "layer %d of %d", (int)layer,
                           (int)cells->pool->n_layers);
    if (side != QUIRE_SIDE_K && side != QUIRE_SIDE_V)
        return quire__fail(QUIRE_E_INVALID, "side %d is neither K nor V", (int)side);
    return QUIRE_OK;
}

int32_t quire__cells_take_slot(quire_cells_side *s, int32_t page) {
    int32_t slot = 0; /* the lowest free one, so that few are ever touched */
    while (slot < s->n_slots && s->slot_page[slot] >= 0)
        slot++;
    if (slot == s->n_slots)
        s->n_slots++;
    if (s->n_slots > s->n_resident)
        s->n_resident = s->n_slots;
    s->slot_page[slot] = page;
    s->slot_hot[slot] = s->slot_sealing[slot] = false;
    s->place[page] = slot;
    return slot;
}

void quire__cells_free_slot(quire_cells_side *s, int32_t slot) {
    s->slot_page[slot] = -1;
    s->slot_sealing[slot] = false;
    while (s->n_slots > 0 && s->slot_page[s->n_slots - 1] < 0)
        s->n_slots--;
}

/* Many are in use at once while an order is measured. In decoding one slot is taken and freed again
 * and again: it is kept. */
void quire__cells_give_back(quire_cells *cells, int32_t layer, int side) {
    quire_cells_layer *l = &cells->layer[layer];
    quire_cells_side *s = &l->side[side];
    if (s->n_resident < s->n_slots + 2)
        return;
    const size_t bytes = (size_t)l->form->config.n_kv_heads * s->head_bytes;
    quire__give_back(&cells->pool->allocator, s->slots + (size_t)s->n_slots * bytes,
                     (size_t)(s->n_resident - s->n_slots) * bytes);
    s->n_resident = s->n_slots;
}

static void take_effect(quire_cells_side *s) {
    for (int32_t i = 0; i < s->n_touch; i++) {
        const quire_cells_touch *t = &s->touch[i];
        if (!t->seal)
            continue;
        if (!t->in_region)
            quire__cells_free_slot(s, t->raw);
        s->place[t->page] = QUIRE_CELLS_PACKED;
    }
}

static void take_back(const quire_cells_layer *layer, quire_cells_side *s) {
    for (int32_t i = 0; i < s->n_touch; i++) {
        const quire_cells_touch *t = &s->touch[i];
        /* A page that was to be replaced whole has lost its cells; nobody else needed them. */
        s->written[t->page] = t->fresh ? 0 : t->written;
        atomic_fetch_and_explicit(&s->bad[t->page], ~t->rewritten, memory_order_relaxed);
        if (layer->in_place) {
            if (t->fresh)
                s->place[t->page] = QUIRE_CELLS_EMPTY;
        } else if (t->in_region) {
            s->place[t->page] = QUIRE_CELLS_EMPTY;
        } else if (t->fresh || t->decode) {
            quire__cells_free_slot(s, t->raw);
            s->place[t->page] = t->decode ? QUIRE_CELLS_PACKED : QUIRE_CELLS_EMPTY;
        } else {
            s->slot_sealing[t->raw] = false;
        }
    }
}

void quire__cells_settle(quire_cells *cells, int32_t layer, int side) {
    quire_cells_layer *l = &cells->layer[layer];
    quire_cells_side *s = &l->side[side];
    if (!s->planned)
        return;
    quire__cells_forget_read(cells);
    if (s->nth > 0 && atomic_load(&s->finished) == s->nth)
        take_effect(s);
    else
        take_back(l, s);
    quire__cells_give_back(cells, layer, side);
    s->planned = false;
    s->n_touch = 0;
}

/* The touch of a page: the one that the plan has, or a new one. */
static quire_cells_touch *touch_page(quire_cells *cells, quire_cells_side *s, int32_t page) {
    if (cells->touched[page] >= 0)
        return &s->touch[cells->touched[page]];
    quire_cells_touch *t = &s->touch[s->n_touch];
    cells->touched[page] = s->n_touch++;
    *t = (quire_cells_touch){.page = page, .first_row = -1, .raw = -1, .written = s->written[page]};
    return t;
}

/* Where the touched page's raw rows lie, and whether it is packed afterwards. */
static void decide(const quire_cells *cells, quire_cells_layer *layer, quire_cells_side *s,
                   quire_cells_touch *t, int32_t *n_region) {
    const bool full = s->written[t->page] == UINT64_MAX, may_pack = !layer->measure.waiting,
               whole = t->rewritten == UINT64_MAX;
    const int32_t place = s->place[t->page];
    t->fresh = place == QUIRE_CELLS_EMPTY;
    if (layer->in_place) {
        s->place[t->page] = QUIRE_CELLS_PACKED;
        return;
    }
    t->fresh = t->fresh || (whole && place == QUIRE_CELLS_PACKED);
    if (whole && place >= 0)
        s->slot_hot[place] = false;
    if (t->fresh && full && may_pack && *n_region < cells->region_pages) {
        t->in_region = t->seal = true;
        t->raw = (*n_region)++;
        s->place[t->page] = QUIRE_CELLS_PACKED;
        return;
    }
    t->decode = place == QUIRE_CELLS_PACKED && !whole;
    t->raw = place >= 0 ? place : quire__cells_take_slot(s, t->page);
    if (t->decode) {
        s->slot_hot[t->raw] = true;
        atomic_fetch_add_explicit(&layer->reopened, 1, memory_order_relaxed);
    }
    t->seal = full && may_pack && !s->slot_hot[t->raw];
    s->slot_sealing[t->raw] = t->seal;
}

/* Complete pages that this write leaves alone: reopened ones, and those that waited for an order.
 */
static void pack_the_rest(const quire_cells *cells, quire_cells_layer *layer, quire_cells_side *s) {
    if (layer->in_place || layer->measure.waiting)
        return;
    for (int32_t slot = 0; slot < s->n_slots; slot++) {
        const int32_t page = s->slot_page[slot];
        if (page < 0 || cells->touched[page] >= 0 || s->written[page] != UINT64_MAX)
            continue;
        s->touch[s->n_touch++] = (quire_cells_touch){
            .page = page, .first_row = -1, .raw = slot, .seal = true, .written = UINT64_MAX};
        s->slot_hot[slot] = false;
        s->slot_sealing[slot] = true;
    }
}

quire_status quire_cells_plan(quire_cells *cells, int32_t layer, quire_side side,
                              const int64_t *cell, int32_t n_rows, int32_t region) {
    QUIRE_TRY(quire__cells_check(cells, layer, side));
    if (n_rows < 0 || n_rows > cells->max_rows || (n_rows > 0 && !cell))
        return quire__fail(QUIRE_E_INVALID, "layer %d: a write of %d rows, must be 0 to %d",
                           (int)layer, (int)n_rows, (int)cells->max_rows);
    if (region < 0 || region >= QUIRE_CELLS_REGIONS)
        return quire__fail(QUIRE_E_INVALID, "layer %d: region %d of %d", (int)layer, (int)region,
                           QUIRE_CELLS_REGIONS);
    const int64_t n_cells = (int64_t)cells->n_pages * QUIRE_T;
    for (int32_t i = 0; i < n_rows; i++)
        if (cell[i] < 0 || cell[i] >= n_cells)
            return quire__fail(QUIRE_E_INVALID, "layer %d, row %d: cell %lld of %lld", (int)layer,
                               (int)i, (long long)cell[i], (long long)n_cells);

    quire_cells_layer *l = &cells->layer[layer];
    quire_cells_side *s = &l->side[side == QUIRE_SIDE_V];
    quire__cells_settle(cells, layer, side == QUIRE_SIDE_V);
    quire__cells_forget_read(cells);
    /* With K, whose last write has been settled: V's plan may be made before K is written. */
    if (l->measure.waiting && side == QUIRE_SIDE_K)
        quire__cells_measure_order(cells, l);
    for (int32_t i = n_rows - 1; i >= 0; i--) { /* backwards, so that chains are in order of rows */
        const int32_t page = (int32_t)(cell[i] / QUIRE_T);
        quire_cells_touch *t = touch_page(cells, s, page);
        s->next_row[i] = t->first_row;
        t->first_row = i;
        s->offset[i] = (uint8_t)(cell[i] % QUIRE_T);
        t->rewritten |= (uint64_t)1 << s->offset[i];
        s->written[page] |= t->rewritten;
    }
    int32_t n_region = 0;
    for (int32_t i = 0; i < s->n_touch; i++)
        decide(cells, l, s, &s->touch[i], &n_region);
    pack_the_rest(cells, l, s);
    for (int32_t i = 0; i < s->n_touch; i++) {
        const quire_cells_touch *t = &s->touch[i];
        atomic_fetch_and_explicit(&s->bad[t->page], ~t->rewritten, memory_order_relaxed);
        cells->touched[t->page] = -1;
    }
    s->n_rows = n_rows;
    s->region = region;
    s->nth = 0;
    atomic_store(&s->finished, 0);
    s->planned = true;
    return QUIRE_OK;
}

bool quire__cells_is_packed(const quire_cells_layer *layer, int side, int32_t page) {
    const quire_cells_side *s = &layer->side[side];
    const int32_t place = s->place[page];
    return place == QUIRE_CELLS_PACKED || (place >= 0 && s->slot_sealing[place]);
}

uint8_t *quire__cells_raw(const quire_cells *cells, const quire_cells_layer *layer, int side,
                          int32_t page, int32_t head) {
    const quire_cells_side *s = &layer->side[side];
    const size_t at = (size_t)head * s->head_bytes,
                 page_bytes = (size_t)layer->form->config.n_kv_heads * s->head_bytes;
    const int32_t place = s->place[page];
    if (layer->in_place)
        return place == QUIRE_CELLS_EMPTY
                   ? NULL
                   : quire__cells_record(layer, page, head) + s->format->codes;
    if (place >= 0)
        return s->slots + (size_t)place * page_bytes + at;
    for (int32_t i = 0; place == QUIRE_CELLS_PACKED && i < s->n_touch; i++)
        if (s->touch[i].page == page && s->touch[i].in_region)
            return cells->region[s->region] +
                   ((size_t)side * (size_t)cells->region_pages + (size_t)s->touch[i].raw) *
                       cells->region_side_bytes +
                   at;
    return NULL;
}
