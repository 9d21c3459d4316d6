/* Context shift: drops tokens in the middle of a sequence. The rows after them move down into new
 * pages, with K turned back by as many positions.
 *
 * New page p takes rows from old pages p and above, so pages are rebuilt in ascending order, each
 * into a free leaf: an old page that is not shared becomes the leaf of the next new page.
 * Everything is reserved before anything changes.
 */
#include <math.h>
#include <string.h>

#include "seq/seq.h"

typedef struct shift {
    quire_seq *seq;
    quire_pool *pool;
    int32_t from, by; /* new token t >= from is old token t + by */
    int32_t length;   /* afterwards */
    const quire_rope *rope;
    int32_t n_rope;
} shift;

static int32_t origin(const shift *s, int32_t token) {
    return token < s->from ? token : token + s->by;
}

static const quire_rope *rope_of(const shift *s, int32_t layer) {
    return &s->rope[s->n_rope == 1 ? 0 : layer];
}

/* ------------------------------------------------------------------ checks */

static quire_status check_rope(const quire_pool *pool, const quire_rope *r, int32_t i) {
    const quire_layer *l = &pool->layer[i].config;
    quire_rope_pairs pairs;
    const quire_status status = quire__rope_pairs_init(&pairs, r, l->k_dim);
    if (status != QUIRE_OK)
        return quire__fail_where(status, "layer %d", (int)i);
    const quire_side_format *k = &pool->layer[i].format.k;
    if (!pool->class[pool->layer[i].class].raw && k->family != QUIRE_FAMILY_RAW &&
        k->bits + (k->family == QUIRE_FAMILY_PROD) < 3)
        return quire__fail(
            QUIRE_E_UNSUPPORTED,
            "layer %d: K codec %s is too coarse to be turned and packed again by a context shift",
            (int)i, quire_codec_name(l->k));
    return QUIRE_OK;
}

/* Bits of the rows of new page `page` whose old rows exist. */
static uint64_t held_rows(const shift *s, int32_t g, int32_t page) {
    uint64_t held = 0;
    for (int32_t i = 0; i < QUIRE_T && page * QUIRE_T + i < s->length; i++) {
        const int32_t at = origin(s, page * QUIRE_T + i);
        held |= (quire__rows_held(s->seq, g, at / QUIRE_T) >> at % QUIRE_T & 1) << i;
    }
    return held;
}

/* Every token that the next query sees must still exist. */
static quire_status check_window(const shift *s) {
    for (int32_t g = 0; g < s->pool->n_classes; g++) {
        const quire_class *class = &s->pool->class[g];
        const int32_t seen = quire__window_start(class, s->length) / QUIRE_T;
        for (int32_t p = 0; p <= (s->length - 1) / QUIRE_T; p++) {
            /* Raw sinks do not replace a page that is not rebuilt. */
            const bool gone =
                p >= seen && p < s->from / QUIRE_T && s->seq->class[g].table[p] == QUIRE_NO_LEAF;
            if (gone || (quire__rows_seen(class, p, s->length) & ~held_rows(s, g, p)))
                return quire__fail(QUIRE_E_GONE,
                                   "cannot shift: the window of %d tokens has moved past tokens "
                                   "that page %d needs",
                                   (int)class->window, (int)p);
        }
    }
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ rows of a new page */

/* A layer's RoPE pairs, and how far each turns back for `by` positions. */
typedef struct step {
    quire_rope_pairs pairs;
    double cosine[QUIRE_DIM_MAX / 2], sine[QUIRE_DIM_MAX / 2];
} step;

static void make_step(const shift *s, int32_t layer, step *turn) {
    /* Cannot fail: check_rope has tried it. */
    quire__rope_pairs_init(&turn->pairs, rope_of(s, layer), s->pool->layer[layer].config.k_dim);
    for (int32_t j = 0; j < turn->pairs.n; j++) {
        const double angle = -(double)s->by * turn->pairs.angle[j];
        turn->cosine[j] = cos(angle);
        turn->sine[j] = sin(angle);
    }
}

static void turn_row(const step *turn, float *row) {
    for (int32_t j = 0; j < turn->pairs.n; j++) {
        float *x = &row[turn->pairs.first[j]], *y = &row[turn->pairs.second[j]];
        const double a = (double)*x, b = (double)*y;
        *x = (float)(a * turn->cosine[j] - b * turn->sine[j]);
        *y = (float)(a * turn->sine[j] + b * turn->cosine[j]);
    }
}

/* Rows of new page `page` into pool->rows[v]; those past the end become zeros. */
static void gather(const shift *s, int32_t g, int32_t page, int32_t layer, int32_t head, int v,
                   const step *turn) {
    const quire_pool *pool = s->pool;
    const quire_layer *l = &pool->layer[layer].config;
    const size_t dim = (size_t)(v ? l->v_dim : l->k_dim);
    float *rows = pool->rows[v], *old = pool->rows[2];
    for (int32_t i = 0, n; i < QUIRE_T; i += n) {
        const int32_t token = page * QUIRE_T + i, at = origin(s, token);
        n = QUIRE_T - at % QUIRE_T; /* as many as are consecutive in one old page */
        if (n > QUIRE_T - i)
            n = QUIRE_T - i;
        if (token < s->from && n > s->from - token)
            n = s->from - token;
        float *to = rows + (size_t)i * dim;
        if (token >= s->length) {
            memset(to, 0, (size_t)n * dim * sizeof *to);
            continue;
        }
        const quire_page_source source = quire__page_source(s->seq, g, at / QUIRE_T);
        quire__page_rows(pool, &source, layer, head, v, old);
        memcpy(to, old + (size_t)(at % QUIRE_T) * dim, (size_t)n * dim * sizeof *to);
        for (int32_t j = 0; !v && token >= s->from && j < n; j++)
            turn_row(turn, to + (size_t)j * dim);
    }
    const quire_format *form = &pool->layer[layer].format;
    quire__clamp_rows(rows, QUIRE_T * dim,
                      quire__largest_value(pool->raw, v ? &form->v : &form->k));
}

/* ------------------------------------------------------------------ new pages */

/* V keeps its bytes if whole pages move. */
static void copy_v(const shift *s, int32_t g, int32_t page, int32_t layer, int32_t head,
                   uint8_t *record) {
    const quire_layer_state *l = &s->pool->layer[layer];
    const quire_page_source source =
        quire__page_source(s->seq, g, origin(s, page * QUIRE_T) / QUIRE_T);
    if (s->from % QUIRE_T || s->by % QUIRE_T || source.raw != QUIRE_NO_LEAF ||
        source.leaf == QUIRE_NO_LEAF || quire__leaf_stale(s->pool, source.leaf) ||
        (page == 0 && l->sinks > 0))
        return;
    const size_t start = l->format.v.codes, end = quire__side_end(&l->format.v);
    memcpy(record + start, quire__sealed_record(s->pool, l, source.leaf, head) + start,
           end - start);
}

/* Fills the leaf of the table, the sinks and the open leaf, where they are not NO_LEAF. */
static void build(const shift *s, int32_t g, int32_t page, int32_t leaf, int32_t sinks,
                  int32_t open) {
    quire_pool *pool = s->pool;
    const int32_t leaves[3] = {leaf, sinks, open};
    const uint64_t lost = ~held_rows(s, g, page);
    step turn;
    for (int i = 0; i < 3; i++)
        if (leaves[i] != QUIRE_NO_LEAF)
            pool->leaf[leaves[i]].lost = lost;
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer_state *l = &pool->layer[i];
        if (l->class != g || l->source != i)
            continue;
        make_step(s, i, &turn);
        for (int32_t head = 0; head < l->config.n_kv_heads; head++) {
            for (int v = 0; v < 2; v++)
                gather(s, g, page, i, head, v, &turn);
            if (sinks != QUIRE_NO_LEAF)
                quire__sink_rows(pool, i, head, pool->rows[0], pool->rows[1], sinks);
            const int32_t raw = open != QUIRE_NO_LEAF ? open
                                : pool->class[g].raw  ? leaf
                                                      : QUIRE_NO_LEAF;
            for (int v = 0; raw != QUIRE_NO_LEAF && v < 2; v++)
                quire__raw_rows(pool, i, head, v, pool->rows[v], raw);
            if (leaf == QUIRE_NO_LEAF || pool->class[g].raw)
                continue;
            uint8_t *record = quire__sealed_record(pool, l, leaf, head);
            quire__seal_rows(pool->kernels.rows, l, head, page, pool->rows[0], pool->rows[1],
                             page == 0 ? l->sinks : 0, record);
            copy_v(s, g, page, i, head, record);
            if (!quire__form_is_raw(l, pool->raw))
                atomic_fetch_add(&pool->sealed_pages, 1);
        }
    }
}

/* ------------------------------------------------------------------ leaves */

static quire_leaf_kind table_kind(const shift *s, int32_t g) {
    return s->pool->class[g].raw ? QUIRE_LEAF_RAW : QUIRE_LEAF_SEALED;
}

/* Whether the sequence will hold new page `page` in its table. */
static bool needs_page(const shift *s, int32_t g, int32_t page) {
    const quire_class *class = &s->pool->class[g];
    return page >= quire__window_start(class, s->length) / QUIRE_T || quire__pinned(class, page);
}

/* Whether an old leaf may be written to once its rows have been read. */
static bool reusable(const shift *s, int32_t g, int32_t leaf) {
    return leaf != QUIRE_NO_LEAF && s->pool->leaf[leaf].refs == 1 &&
           s->pool->leaf[leaf].kind == table_kind(s, g) && !quire__leaf_stale(s->pool, leaf);
}

static void push(quire_pool *pool, int32_t *stack, int32_t leaf) {
    pool->leaf[leaf].next_free = *stack;
    *stack = leaf;
}

static int32_t pop(quire_pool *pool, int32_t *stack) {
    const int32_t leaf = *stack;
    *stack = pool->leaf[leaf].next_free;
    return leaf;
}

typedef struct reserved { /* for one class */
    int32_t *stack, *open, *sinks;
} reserved;

static reserved reserved_of(const shift *s, int32_t g) {
    int32_t *r = s->pool->reserved, n = s->pool->n_classes;
    return (reserved){r + g, r + n + g, r + 2 * n + g};
}

static void give_back(const shift *s, int32_t g) {
    const reserved r = reserved_of(s, g);
    while (*r.stack != QUIRE_NO_LEAF)
        quire__leaf_drop(s->pool, pop(s->pool, r.stack));
    quire__leaf_drop(s->pool, *r.open);
    quire__leaf_drop(s->pool, *r.sinks);
}

static bool reserve(const shift *s, int32_t g) {
    quire_pool *pool = s->pool;
    const reserved r = reserved_of(s, g);
    const int32_t first = s->from / QUIRE_T, n_pages = s->length / QUIRE_T;
    int32_t n = n_pages > first;
    *r.stack = *r.open = *r.sinks = QUIRE_NO_LEAF;
    for (int32_t p = first; p < n_pages; p++)
        n += needs_page(s, g, p) && !reusable(s, g, s->seq->class[g].table[p]);
    for (; n > 0; n--) {
        const int32_t leaf = quire__leaf_take(pool, g, table_kind(s, g));
        if (leaf == QUIRE_NO_LEAF)
            return false;
        push(pool, r.stack, leaf);
    }
    if (s->length % QUIRE_T &&
        (*r.open = quire__leaf_take(pool, g, QUIRE_LEAF_RAW)) == QUIRE_NO_LEAF)
        return false;
    return !(first == 0 && n_pages > 0 && pool->class[g].sinks > 0) ||
           (*r.sinks = quire__leaf_take(pool, g, QUIRE_LEAF_SINKS)) != QUIRE_NO_LEAF;
}

static void rebuild(const shift *s, int32_t g) {
    quire_pool *pool = s->pool;
    quire_seq_class *class = &s->seq->class[g];
    const reserved r = reserved_of(s, g);
    const int32_t first = s->from / QUIRE_T, n_pages = s->length / QUIRE_T,
                  old_pages = s->seq->length / QUIRE_T;
    const quire_class *layers = &pool->class[g];
    const int32_t seen = quire__window_start(layers, s->length) / QUIRE_T;
    for (int32_t p = first; p < n_pages; p++) {
        const int32_t old = class->table[p],
                      leaf = needs_page(s, g, p) ? pop(pool, r.stack) : QUIRE_NO_LEAF,
                      sinks = p == 0 ? *r.sinks : QUIRE_NO_LEAF;
        build(s, g, p, leaf, sinks, QUIRE_NO_LEAF);
        class->table[p] = leaf;
        if (reusable(s, g, old))
            push(pool, r.stack, old);
        else
            quire__leaf_drop(pool, old);
        if (p == 0) { /* old page 0 has been read for the last time */
            quire__leaf_drop(pool, class->sinks);
            class->sinks = sinks;
            *r.sinks = QUIRE_NO_LEAF;
        }
    }
    if (*r.open != QUIRE_NO_LEAF)
        build(s, g, n_pages, QUIRE_NO_LEAF, QUIRE_NO_LEAF, *r.open);
    for (int32_t p = n_pages; p < old_pages; p++)
        quire__leaf_drop(pool, class->table[p]);
    quire__leaf_drop(pool, class->open);
    quire__leaf_drop(pool, class->last_raw);
    class->open = *r.open;
    class->last_raw = *r.open = QUIRE_NO_LEAF;
    if (n_pages == 0) {
        quire__leaf_drop(pool, class->sinks);
        class->sinks = QUIRE_NO_LEAF;
    }
    if (class->live_from > seen) /* check_window made sure that they exist */
        class->live_from = seen;
    give_back(s, g);
}

static quire_status shift_locked(const shift *s) {
    quire_pool *pool = s->pool;
    for (int32_t i = 0; i < pool->n_layers; i++)
        if (pool->layer[i].source == i)
            QUIRE_TRY(check_rope(pool, rope_of(s, i), i));
    QUIRE_TRY(check_window(s));
    for (int32_t g = 0; g < pool->n_classes; g++)
        if (!reserve(s, g)) {
            for (; g >= 0; g--)
                give_back(s, g);
            return quire__fail(QUIRE_E_NO_PAGES,
                               "the pool has no room to rebuild the pages after token %d",
                               (int)s->from);
        }
    for (int32_t g = 0; g < pool->n_classes; g++)
        rebuild(s, g);
    s->seq->length = s->length;
    s->seq->last_page = -1;
    quire__history_note(s->seq, QUIRE_HISTORY_SHIFTED, s->from / QUIRE_T * QUIRE_T);
    quire__seq_recycle(s->seq);
    return QUIRE_OK;
}

quire_status quire_seq_shift(quire_seq *seq, int32_t from, int32_t to, const quire_rope *rope,
                             int32_t n_rope) {
    if (!seq || !rope)
        return quire__fail(QUIRE_E_INVALID, "sequence or rope is NULL");
    quire_pool *pool = seq->pool;
    quire_status status = QUIRE_OK;
    pthread_mutex_lock(&pool->lock);
    if (seq->batch)
        status = quire__fail(QUIRE_E_BUSY, "cannot shift a sequence that is in a batch");
    else if (n_rope != 1 && n_rope != pool->n_layers)
        status = quire__fail(QUIRE_E_INVALID,
                             "rope has %d entries for %d layers: pass 1, or one for each layer",
                             (int)n_rope, (int)pool->n_layers);
    else if (from < 0 || to < from || to > seq->length)
        status = quire__fail(QUIRE_E_INVALID, "cannot drop tokens %d to %d of a sequence of %d",
                             (int)from, (int)to, (int)seq->length);
    else if (to == seq->length)
        status = quire__seq_trim(seq, from);
    else if (from < to)
        status = shift_locked(
            &(shift){seq, pool, from, to - from, seq->length - (to - from), rope, n_rope});
    pthread_mutex_unlock(&pool->lock);
    return status;
}
