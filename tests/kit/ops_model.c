#include "ops_model.h"

#include <math.h>
#include <string.h>

#include "base/element.h"
#include "ledger.h"

enum { D = OPS_D, T = 64 };

/* ------------------------------------------------------------------ pages */

static bool is_raw(const form *f, quire_codec codec) {
    const quire_codec same[] = {[QUIRE_F32] = QUIRE_CODEC_F32,
                                [QUIRE_F16] = QUIRE_CODEC_F16,
                                [QUIRE_BF16] = QUIRE_CODEC_BF16};
    return codec == QUIRE_CODEC_RAW || codec == same[f->raw];
}

bool model_is_raw(const form *f, int layer) {
    return is_raw(f, f->pair[layer].k) && is_raw(f, f->pair[layer].v);
}

int model_sinks(const form *f, int layer) { return model_is_raw(f, layer) ? 0 : f->sinks; }

bool model_page_stale(const model *m, const page *p, int layer) {
    return p && (p->raw ? !model_is_raw(&m->now, layer) : p->stale);
}

static page *page_new(model *m, size_t bytes) {
    page *p = calloc(1, sizeof *p);
    p->refs = 1;
    p->bytes = bytes;
    p->next = m->pages;
    if (p->next)
        p->next->before = p;
    m->pages = p;
    return p;
}

static page *share(page *p) {
    if (p)
        p->refs++;
    return p;
}

static void drop_page(model *m, page *p) {
    if (!p || --p->refs > 0)
        return;
    if (p->next)
        p->next->before = p->before;
    if (p->before)
        p->before->next = p->next;
    else
        m->pages = p->next;
    free(p);
}

static void set(model *m, page **place, page *p) { /* takes the reference */
    page *old = *place;
    *place = p;
    drop_page(m, old);
}

float model_rounded(const model *m, float x) {
    uint8_t bytes[4];
    quire__put_element(m->f.options.raw, bytes, 0, x);
    return quire__get_element(m->f.options.raw, bytes, 0);
}

static size_t raw_bytes(const model *m) { return 2 * 64 * D * quire__type_bytes(m->f.options.raw); }

/* ------------------------------------------------------------------ lost rows A row that the
 * pool no longer has is NaN here, in every channel of K and V, and stays NaN wherever it is
 * copied: so each token tells by itself whether it is there, and a query that meets a lost one
 * cannot go unnoticed. */

static bool is_lost(const float *k, int row) { return isnan(k[row * D]); }

static void lose(float *k, float *v, int row) {
    for (int d = 0; d < D; d++)
        k[row * D + d] = v[row * D + d] = NAN;
}

static void round_rows(const model *m, const float *k, const float *v, int n_rows, page *to) {
    for (int i = 0; i < n_rows * D; i++) {
        to->k[i] = model_rounded(m, k[i]);
        to->v[i] = model_rounded(m, v[i]);
    }
    for (int t = 0; t < n_rows; t++)
        if (is_lost(k, t))
            lose(to->k, to->v, t);
}

static page *page_raw(model *m, const float *k, const float *v) {
    page *p = page_new(m, raw_bytes(m));
    p->raw = true;
    round_rows(m, k, v, T, p);
    return p;
}

/* What a query sees of rows that were packed as page `index`, its raw sinks apart. Lost rows are
 * packed as zeros. */
static page *page_packed(model *m, int layer, int index, const float *rows_k, const float *rows_v) {
    float k[T * D], v[T * D];
    for (int i = 0; i < T * D; i++) {
        k[i] = is_lost(rows_k, i / D) ? 0 : rows_k[i];
        v[i] = is_lost(rows_k, i / D) ? 0 : rows_v[i];
    }
    const quire_page_shape shape = {m->now.pair[layer], D, D, m->f.options.raw};
    size_t bytes;
    assert_ok(quire_page_bytes(&shape, &bytes));
    uint8_t *record = malloc(bytes);
    page *p = page_new(m, bytes);
    const uint16_t *order = m->f.layer[layer].k_order;
    float placed[T * D];
    rows_into_order(shape.pair.k, order, D, k, placed);
    assert_ok(
        quire_page_encode(&shape, placed, v, index == 0 ? model_sinks(&m->now, layer) : 0, record));
    assert_ok(quire_page_decode(&shape, record, placed, p->v));
    rows_from_order(shape.pair.k, order, D, placed, p->k);
    free(record);
    for (int t = 0; t < T; t++)
        if (is_lost(rows_k, t))
            lose(p->k, p->v, t);
    return p;
}

static page *sinks_of(model *m, int layer, const float *k, const float *v) {
    const int n = model_sinks(&m->now, layer);
    const size_t bytes = 2 * (size_t)n * D * quire__type_bytes(m->f.options.raw);
    if (n == 0)
        return NULL;
    page *p = page_new(m, (bytes + 127) / 128 * 128);
    p->n_sinks = n;
    round_rows(m, k, v, n, p);
    return p;
}

/* ------------------------------------------------------------------ windows */

static const quire_layer *config(const model *m, int layer) { return &m->f.layer[layer]; }

static int window_start(const quire_layer *l, int i) {
    return l->window == 0 || i < l->window ? 0 : i - l->window + 1;
}

static bool pinned(const quire_layer *l, int sinks, int p) {
    return p * T < l->keep && !(p == 0 && l->keep <= sinks);
}

static int sinks_when(const model *m, int layer, const page *p) { /* in the form that a page has */
    return p->raw ? 0 : model_sinks(p->stale ? &m->before : &m->now, layer);
}

static void recycle(model *m, mseq *s) {
    for (int l = 0; l < OPS_LAYERS; l++) {
        layer_view *v = &s->layer[l];
        const int seen = window_start(config(m, l), s->length) / T,
                  last = s->kept_page >= 0 ? s->kept_page : s->length / T;
        for (; v->live_from < seen && v->live_from < last; v->live_from++) {
            page **p = &v->table[v->live_from];
            if (*p && !pinned(config(m, l), sinks_when(m, l, *p), v->live_from))
                set(m, p, NULL);
        }
        if (config(m, l)->keep == 0 && v->live_from > 0)
            set(m, &v->sinks, NULL);
    }
}

/* ------------------------------------------------------------------ append */

void model_arrive(model *m, const mseq *s, arrival *a) {
    const int offset = s->length % T, start = s->length - offset, end = s->length + a->n_tokens;
    memset(a->sealed, 0, sizeof a->sealed);
    memset(a->sinks, 0, sizeof a->sinks);
    a->first = s->length;
    for (int l = 0; l < OPS_LAYERS; l++) {
        if (offset > 0) {
            memcpy(a->k[l], s->layer[l].open->k, (size_t)(offset * D) * sizeof(float));
            memcpy(a->v[l], s->layer[l].open->v, (size_t)(offset * D) * sizeof(float));
        }
        for (int p = start / T; p < end / T; p++) {
            const float *k = a->k[l] + (p * T - start) * D, *v = a->v[l] + (p * T - start) * D;
            a->sealed[l][p] =
                model_is_raw(&m->now, l) ? page_raw(m, k, v) : page_packed(m, l, p, k, v);
            if (p == 0)
                a->sinks[l] = sinks_of(m, l, k, v);
        }
    }
}

void model_abort(model *m, arrival *a) {
    for (int l = 0; l < OPS_LAYERS; l++) {
        for (int p = 0; p < OPS_MAX_PAGES; p++)
            set(m, &a->sealed[l][p], NULL);
        set(m, &a->sinks[l], NULL);
    }
}

void model_append(model *m, mseq *s, arrival *a, int n_accept) {
    const int start = s->length / T * T, end = s->length + a->n_tokens, cut = s->length + n_accept,
              n_pages = cut / T;
    if (a->n_tokens == 0)
        return;
    for (int l = 0; l < OPS_LAYERS; l++) {
        layer_view *view = &s->layer[l];
        for (int p = start / T; p < n_pages; p++) {
            const float *k = a->k[l] + (p * T - start) * D, *v = a->v[l] + (p * T - start) * D;
            view->table[p] = share(a->sealed[l][p]);
            if (p == 0)
                view->sinks = share(a->sinks[l]);
            if (p < n_pages - 1)
                continue;
            /* Raw rows are kept of the page sealed last, unless it was in the middle of the
             * batch. */
            const bool has_raw = p == end / T - 1 || (p == s->length / T && s->length % T != 0);
            set(m, &view->kept, has_raw && !model_is_raw(&m->now, l) ? page_raw(m, k, v) : NULL);
        }
        page *open = NULL;
        if (cut % T != 0) {
            open = page_new(m, raw_bytes(m));
            open->raw = true;
            const size_t n = (size_t)((cut - n_pages * T) * D) * sizeof(float);
            memcpy(open->k, a->k[l] + (n_pages * T - start) * D, n);
            memcpy(open->v, a->v[l] + (n_pages * T - start) * D, n);
        }
        set(m, &view->open, open);
    }
    if (n_pages > s->length / T)
        s->kept_page = n_pages - 1;
    s->length = cut;
    recycle(m, s);
    model_abort(m, a);
}

/* ------------------------------------------------------------------ fork, free, trim */

void model_fork(mseq *child, const mseq *s) {
    quire_seq *seq = child->seq;
    *child = *s;
    child->seq = seq;
    for (int l = 0; l < OPS_LAYERS; l++) {
        const layer_view *v = &s->layer[l];
        share(v->open), share(v->kept), share(v->sinks);
        for (int p = 0; p < OPS_MAX_PAGES; p++)
            share(v->table[p]);
    }
}

static page *copy_page(model *m, const page *p) {
    if (!p)
        return NULL;
    page *copy = page_new(m, p->bytes), *next = copy->next, *before = copy->before;
    *copy = *p;
    copy->refs = 1;
    copy->next = next;
    copy->before = before;
    return copy;
}

void model_copy(model *m, mseq *copy, const mseq *s) {
    quire_seq *seq = copy->seq;
    *copy = *s;
    copy->seq = seq;
    for (int l = 0; l < OPS_LAYERS; l++) {
        layer_view *v = &copy->layer[l];
        v->open = copy_page(m, v->open);
        v->kept = copy_page(m, v->kept);
        v->sinks = copy_page(m, v->sinks);
        for (int p = 0; p < OPS_MAX_PAGES; p++)
            v->table[p] = copy_page(m, v->table[p]);
    }
}

void model_free(model *m, mseq *s) {
    for (int l = 0; l < OPS_LAYERS; l++) {
        layer_view *v = &s->layer[l];
        drop_page(m, v->open), drop_page(m, v->kept), drop_page(m, v->sinks);
        for (int p = 0; p < OPS_MAX_PAGES; p++)
            drop_page(m, v->table[p]);
    }
    memset(s, 0, sizeof *s);
}

/* Whether a layer still has token t's rows: in the open page, beside page 0, or in its page. */
static bool is_there(const mseq *s, int layer, int t) {
    const layer_view *v = &s->layer[layer];
    if (t / T == s->length / T)
        return !is_lost(v->open->k, t % T);
    if (v->sinks && t < v->sinks->n_sinks)
        return !is_lost(v->sinks->k, t);
    return v->table[t / T] && !is_lost(v->table[t / T]->k, t % T);
}

static bool is_seen(const quire_layer *l, int t, int position) {
    return t >= window_start(l, position) || t < l->keep;
}

static bool has_page(const mseq *s, int layer, int p) {
    return p == s->length / T || s->layer[layer].table[p];
}

/* All that a query behind the first n tokens sees must be there. A page of which nothing but raw
 * sinks is left counts as gone, and a page that has gone cannot be opened again, even if nobody
 * would see a token of it. */
bool model_can_trim(const model *m, const mseq *s, int n) {
    for (int l = 0; l < OPS_LAYERS; l++) {
        if (n % T != 0 && !has_page(s, l, n / T))
            return false;
        for (int t = 0; t < n; t++)
            if ((t >= window_start(config(m, l), n) && !has_page(s, l, t / T)) ||
                (is_seen(config(m, l), t, n) && !is_there(s, l, t)))
                return false;
    }
    return true;
}

/* The raw rows of page p that the pool still has, or NULL. */
static page *raw_rows(const mseq *s, int layer, int p) {
    const layer_view *v = &s->layer[layer];
    if (v->table[p] && v->table[p]->raw)
        return v->table[p];
    return s->kept_page == p ? v->kept : NULL;
}

bool model_trim_decodes(const mseq *s, int n) {
    bool decodes = false;
    for (int l = 0; l < OPS_LAYERS && n % T && n / T < s->length / T; l++)
        decodes = decodes || !raw_rows(s, l, n / T);
    return decodes;
}

/* The best that is known of a page's rows. */
static void best_rows(const page *raw, const page *packed, const page *sinks, float *k, float *v) {
    const page *from = raw ? raw : packed;
    for (int t = 0; t < T; t++)
        lose(k, v, t);
    if (from) {
        memcpy(k, from->k, T * D * sizeof *k);
        memcpy(v, from->v, T * D * sizeof *v);
    }
    if (!raw && sinks) {
        memcpy(k, sinks->k, (size_t)(sinks->n_sinks * D) * sizeof *k);
        memcpy(v, sinks->v, (size_t)(sinks->n_sinks * D) * sizeof *v);
    }
}

void model_trim(model *m, mseq *s, int n) {
    const int p = n / T, n_pages = s->length / T;
    m->reopened += model_trim_decodes(s, n);
    for (int l = 0; l < OPS_LAYERS; l++) {
        layer_view *view = &s->layer[l];
        if (view->live_from > window_start(config(m, l), n) / T)
            view->live_from = window_start(config(m, l), n) / T;
        if (p == n_pages && n % T != 0)
            continue;
        page *open = NULL;
        if (n % T != 0) {
            page *raw = raw_rows(s, l, p);
            float k[T * D], v[T * D];
            best_rows(raw, view->table[p], p == 0 ? view->sinks : NULL, k, v);
            open = raw ? share(raw) : page_raw(m, k, v);
        }
        set(m, &view->open, open);
        for (int i = p; i < n_pages; i++)
            set(m, &view->table[i], NULL);
        if (s->kept_page >= p)
            set(m, &view->kept, NULL);
        if (p == 0)
            set(m, &view->sinks, NULL);
    }
    if (s->kept_page >= p)
        s->kept_page = -1;
    s->length = n;
}

/* ------------------------------------------------------------------ shift */

static int origin(int t, int from, int by) { return t < from ? t : t + by; }

bool model_can_shift(const model *m, const mseq *s, int from, int by) {
    const int length = s->length - by;
    for (int l = 0; l < OPS_LAYERS; l++)
        for (int t = 0; t < length; t++)
            if ((t >= window_start(config(m, l), length) && t / T < from / T &&
                 !has_page(s, l, t / T)) ||
                (is_seen(config(m, l), t, length) && !is_there(s, l, origin(t, from, by))))
                return false;
    return true;
}

/* The best that is known of tokens `index` * 64 .. of the shifted sequence. */
static void shifted_rows(const mseq *s, int l, int index, int from, int by, float *k, float *v) {
    const layer_view *view = &s->layer[l];
    float old_k[T * D], old_v[T * D];
    int held = -1;
    for (int i = 0; i < T; i++) {
        const int t = origin(index * T + i, from, by), p = t / T;
        if (t >= s->length) {
            memset(k + i * D, 0, D * sizeof *k);
            memset(v + i * D, 0, D * sizeof *v);
            continue;
        }
        if (p != held)
            best_rows(p == s->length / T ? view->open : raw_rows(s, l, p),
                      p == s->length / T ? NULL : view->table[p],
                      p == 0 && p < s->length / T ? view->sinks : NULL, old_k, old_v);
        held = p;
        memcpy(k + i * D, old_k + t % T * D, D * sizeof *k);
        memcpy(v + i * D, old_v + t % T * D, D * sizeof *v);
    }
}

/* The page, packed, whose V moves as it is; NULL: it is packed again. */
static const page *whole_page(const model *m, const mseq *s, int l, int index, int from, int by) {
    const int p = origin(index * T, from, by) / T;
    if (from % T || by % T || p >= s->length / T || raw_rows(s, l, p) ||
        (index == 0 && model_sinks(&m->now, l) > 0))
        return NULL;
    const page *old = s->layer[l].table[p];
    return old && !model_page_stale(m, old, l) ? old : NULL;
}

void model_shift(model *m, mseq *s, int from, int by) {
    const int length = s->length - by, first = from / T, n_pages = length / T;
    for (int l = 0; l < OPS_LAYERS; l++) {
        layer_view *view = &s->layer[l];
        page *table[OPS_MAX_PAGES] = {0}, *open = NULL, *sinks = NULL;
        const int seen = window_start(config(m, l), length) / T;
        float k[T * D], v[T * D];
        for (int p = first; p <= n_pages; p++) {
            shifted_rows(s, l, p, from, by, k, v);
            if (p == n_pages) {
                open = length % T ? page_raw(m, k, v) : NULL;
                continue;
            }
            if (p == 0)
                sinks = sinks_of(m, l, k, v);
            if (p < seen && !pinned(config(m, l), model_sinks(&m->now, l), p))
                continue;
            const page *whole = model_is_raw(&m->now, l) ? NULL : whole_page(m, s, l, p, from, by);
            table[p] = model_is_raw(&m->now, l) ? page_raw(m, k, v) : page_packed(m, l, p, k, v);
            if (whole)
                memcpy(table[p]->v, whole->v, sizeof whole->v);
        }
        for (int p = first; p < OPS_MAX_PAGES; p++)
            set(m, &view->table[p], table[p]);
        set(m, &view->open, open);
        set(m, &view->kept, NULL);
        if (first == 0)
            set(m, &view->sinks, sinks);
        if (view->live_from > seen)
            view->live_from = seen;
    }
    s->length = length;
    s->kept_page = -1;
    recycle(m, s);
}

/* ------------------------------------------------------------------ another policy */

static bool layer_unchanged(const model *m, int l) {
    return m->now.pair[l].k == m->before.pair[l].k && m->now.pair[l].v == m->before.pair[l].v &&
           model_sinks(&m->now, l) == model_sinks(&m->before, l);
}

void model_change(model *m, const form *f) {
    m->before = m->now;
    m->now = *f;
    m->changing = true;
    m->converted = 0;
    for (page *p = m->pages; p; p = p->next)
        p->use = 0;
    for (int i = 0; i < OPS_MAX_SEQS; i++)
        for (int l = 0; l < OPS_LAYERS && m->seq[i].seq; l++) {
            layer_view *v = &m->seq[i].layer[l];
            for (int p = 0; p <= OPS_MAX_PAGES; p++) {
                page *x = p < OPS_MAX_PAGES ? v->table[p] : v->sinks;
                if (x && !x->raw && !x->use && !layer_unchanged(m, l))
                    x->stale = !x->stale;
                if (x)
                    x->use = 1;
            }
        }
}

static bool needs_page(const model *m, const mseq *s, int l, int p) {
    return p >= s->layer[l].live_from || pinned(config(m, l), model_sinks(&m->now, l), p);
}

static bool needs_sinks(const model *m, const mseq *s, int l) {
    return model_sinks(&m->now, l) > 0 && (config(m, l)->keep > 0 || s->layer[l].live_from == 0);
}

static bool layer_stale(const model *m, const mseq *s, int l, int p) {
    const layer_view *v = &s->layer[l];
    return model_page_stale(m, v->table[p], l) || (p == 0 && v->sinks && v->sinks->stale);
}

/* Whoever has the page, or (page 0) its sinks. */
static int holders_of(model *m, const mseq *s, int l, int p, mseq **holder) {
    const layer_view *v = &s->layer[l];
    int n = 0;
    for (int i = 0; i < OPS_MAX_SEQS; i++) {
        mseq *o = &m->seq[i];
        if (o->seq && p < o->length / T &&
            ((v->table[p] && o->layer[l].table[p] == v->table[p]) ||
             (p == 0 && v->sinks && o->layer[l].sinks == v->sinks)))
            holder[n++] = o;
    }
    return n;
}

static void convert(model *m, const mseq *s, int l, int p) {
    mseq *holder[OPS_MAX_SEQS];
    const int n = holders_of(m, s, l, p, holder);
    page *raw = NULL, *packed = NULL, *sinks = p == 0 ? s->layer[l].sinks : NULL;
    bool wants_page = false, wants_sinks = false;
    for (int i = 0; i < n; i++) {
        raw = raw ? raw : raw_rows(holder[i], l, p);
        packed = packed ? packed : holder[i]->layer[l].table[p];
        wants_page = wants_page || needs_page(m, holder[i], l, p);
        wants_sinks = wants_sinks || (p == 0 && needs_sinks(m, holder[i], l));
    }
    float k[T * D], v[T * D];
    best_rows(raw, packed, sinks, k, v);
    const bool same =
        m->now.pair[l].k == m->before.pair[l].k && m->now.pair[l].v == m->before.pair[l].v;
    page *fresh = NULL, *fresh_sinks = wants_sinks ? sinks_of(m, l, k, v) : NULL;
    if (wants_page && same && p > 0) { /* only the number of sinks has changed: the bytes stay */
        fresh = page_new(m, packed->bytes);
        memcpy(fresh->k, packed->k, sizeof fresh->k);
        memcpy(fresh->v, packed->v, sizeof fresh->v);
    } else if (wants_page) {
        fresh = model_is_raw(&m->now, l) ? page_raw(m, k, v) : page_packed(m, l, p, k, v);
    }
    for (int i = 0; i < n; i++) {
        layer_view *view = &holder[i]->layer[l];
        if (holder[i]->kept_page == p) {
            if (model_is_raw(&m->now, l))
                set(m, &view->kept, NULL);
            else if (view->table[p] && view->table[p]->raw)
                set(m, &view->kept, share(view->table[p]));
        }
        set(m, &view->table[p], needs_page(m, holder[i], l, p) ? share(fresh) : NULL);
        if (p == 0)
            set(m, &view->sinks, needs_sinks(m, holder[i], l) ? share(fresh_sinks) : NULL);
    }
    drop_page(m, fresh);
    drop_page(m, fresh_sinks);
}

/* The pool's order: by the place of the sequence in its pool, then by position. */
static int by_place(const void *a, const void *b) {
    const mseq *x = *(mseq *const *)a, *y = *(mseq *const *)b;
    return x->seq < y->seq ? -1 : x->seq > y->seq;
}

int64_t model_step(model *m, int64_t max_pages) {
    mseq *order[OPS_MAX_SEQS], *holder[OPS_MAX_SEQS];
    int n_order = 0;
    int64_t n = 0;
    for (int i = 0; i < OPS_MAX_SEQS; i++)
        if (m->seq[i].seq)
            order[n_order++] = &m->seq[i];
    qsort(order, (size_t)n_order, sizeof *order, by_place);
    for (int i = 0; i < n_order; i++)
        for (int p = 0; p < order[i]->length / T; p++)
            for (int l = 0; l < OPS_LAYERS && n < max_pages; l++) {
                bool busy = false;
                if (!layer_stale(m, order[i], l, p))
                    continue;
                for (int h = holders_of(m, order[i], l, p, holder) - 1; h >= 0; h--)
                    busy = busy || holder[h]->busy;
                if (busy)
                    continue;
                convert(m, order[i], l, p);
                n++;
            }
    m->converted += n;
    m->changing = m->changing && model_stale_pages(m) > 0;
    return n;
}

int64_t model_stale_pages(model *m) {
    int64_t n = 0;
    for (page *p = m->pages; p; p = p->next)
        p->use = 0;
    for (int i = 0; i < OPS_MAX_SEQS; i++)
        for (int p = 0; m->seq[i].seq && p < m->seq[i].length / T; p++)
            for (int l = 0; l < OPS_LAYERS; l++) {
                const layer_view *v = &m->seq[i].layer[l];
                page *x = p == 0 && v->sinks ? v->sinks : v->table[p];
                if (!layer_stale(m, &m->seq[i], l, p))
                    continue;
                n += !x->use;
                x->use = 1;
            }
    return n;
}

/* ------------------------------------------------------------------ what must come out */

void model_attend(const model *m, const mseq *s, const arrival *a, int layer, int position,
                  const float *q, double *out) {
    const int cache = m->f.layer[layer].share < 0 ? layer : m->f.layer[layer].share;
    const quire_layer *l = config(m, cache);
    const layer_view *view = &s->layer[cache];
    const int start = a->first / T * T, own = position / T;
    double logit[OPS_MAX_TOKENS + 1], top = -INFINITY, sum = 0;
    const float *value[OPS_MAX_TOKENS + 1];
    for (int t = 0; t <= position; t++) {
        value[t] = NULL;
        if (l->window > 0 && position - t >= l->window && t >= l->keep)
            continue;
        const page *sinks = a->sinks[cache] ? a->sinks[cache] : view->sinks;
        const float *k;
        if (t / T == own || (t / T == 0 && own > 0 && sinks && t < sinks->n_sinks)) {
            k = t / T == own ? a->k[cache] + (t - start) * D : sinks->k + t * D;
            value[t] = t / T == own ? a->v[cache] + (t - start) * D : sinks->v + t * D;
        } else {
            const page *p = t >= start ? a->sealed[cache][t / T] : view->table[t / T];
            if (!p)
                fail_msg("layer %d: token %d is seen from %d but gone", layer, t, position);
            k = p->k + t % T * D;
            value[t] = p->v + t % T * D;
        }
        if (is_lost(k, 0))
            fail_msg("layer %d: token %d is seen from %d but lost", layer, t, position);
        double y = 0;
        for (int d = 0; d < D; d++)
            y += (double)q[d] * (double)k[d];
        logit[t] = y / sqrt(D);
        top = logit[t] > top ? logit[t] : top;
    }
    for (int d = 0; d < D; d++)
        out[d] = 0;
    for (int t = 0; t <= position; t++) {
        if (!value[t])
            continue;
        const double e = exp(logit[t] - top);
        sum += e;
        for (int d = 0; d < D; d++)
            out[d] += e * (double)value[t][d];
    }
    for (int d = 0; d < D; d++)
        out[d] /= sum;
}

enum { IN_TABLE = 1, IN_OPEN = 2, IN_KEPT = 4, IN_SINKS = 8 };

void model_check_bytes(model *m) {
    size_t sealed = 0, open = 0, kept = 0, sinks = 0;
    int64_t tokens = 0;
    int n_seqs = 0;
    for (page *p = m->pages; p; p = p->next)
        p->use = 0;
    for (int i = 0; i < OPS_MAX_SEQS; i++) {
        const mseq *s = &m->seq[i];
        n_seqs += s->seq != NULL;
        tokens += s->seq ? s->length : 0;
        for (int l = 0; l < OPS_LAYERS && s->seq; l++) {
            const layer_view *v = &s->layer[l];
            for (int p = 0; p < OPS_MAX_PAGES; p++)
                if (v->table[p])
                    v->table[p]->use |= IN_TABLE;
            if (v->open)
                v->open->use |= IN_OPEN;
            if (v->kept)
                v->kept->use |= IN_KEPT;
            if (v->sinks)
                v->sinks->use |= IN_SINKS;
        }
    }
    for (page *p = m->pages; p; p = p->next) {
        if (!p->use)
            fail_msg("the model has lost a page");
        *(p->use & IN_TABLE  ? &sealed
          : p->use & IN_OPEN ? &open
          : p->use & IN_KEPT ? &kept
                             : &sinks) += p->bytes;
    }
    const quire_pool_stats s = balance(&m->f);
    assert_int_equal(s.sealed_bytes, sealed);
    assert_int_equal(s.open_bytes, open);
    assert_int_equal(s.last_raw_bytes, kept);
    assert_int_equal(s.sink_bytes, sinks);
    assert_int_equal(s.free_bytes, s.arena_bytes - sealed - open - kept - sinks);
    assert_int_equal(s.tokens, tokens);
    assert_int_equal(s.n_seqs, n_seqs);
    assert_int_equal(s.reopened_pages, m->reopened);
}
