/* Random operations on dozens of sequences, a hundred thousand with QUIRE_TEST_SWEEP=full: append
 * (alone, together, left-padded, in part), fork, trim, shift, merge, extract, filter, extend,
 * change of policy, step of conversion, free; with a window that wraps all the time and batches
 * that stay open while others work.
 *
 * Every answer is held against dense fp64 attention over the values that a naive model says a query
 * sees (ops_model.c), and after every operation every byte in use is where the model says. Bounds
 * are those of test_attend.c: for each policy over all rows that ran under it, and five times that
 * for a single row.
 *
 * QUIRE_TEST_SEED=n runs that seed alone, QUIRE_TEST_OPS=n so many operations in all. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ledger.h"
#include "ops_model.h"
#include "saved.h"

enum { D = OPS_D, N_LAYERS = 3, MAX_ITEMS = 6, LIST_SIZE = 12, N_LISTS = 2, N_SEEDS = 8 };

typedef struct mlist {
    quire_list list;
    quire_seq *seq[LIST_SIZE];
    mseq *of[LIST_SIZE]; /* the same sequences in the model */
} mlist;

typedef struct step_plan {
    quire_batch *batch; /* NULL: none */
    int n_items;
    mseq *of[OPS_MAX_SEQS];
    int n_tokens[OPS_MAX_SEQS], pad[OPS_MAX_SEQS];
} step_plan;

typedef struct world {
    model m;
    rng r;
    mlist list[N_LISTS];
    step_plan held;
    arrival *arrival;          /* (MAX_ITEMS or LIST_SIZE) */
    double error, norm, bound; /* of all rows under this policy; the loosest bound it had */
    int n_rows, n_changes, n_converted, n_trims, n_gone, n_wraps, n_lists, n_loads, n_shifts;
} world;

static const quire_codec K_CODECS[] = {QUIRE_CODEC_RAW,  QUIRE_CODEC_KC8,   QUIRE_CODEC_KC4,
                                       QUIRE_CODEC_KC2,  QUIRE_CODEC_VT8,   QUIRE_CODEC_TQ4,
                                       QUIRE_CODEC_TQP4, QUIRE_CODEC_A8G32, QUIRE_CODEC_Q8_0,
                                       QUIRE_CODEC_Q4_0, QUIRE_CODEC_KM4,   QUIRE_CODEC_KM3};
static const quire_codec V_CODECS[] = {QUIRE_CODEC_RAW,  QUIRE_CODEC_VT8, QUIRE_CODEC_VT4,
                                       QUIRE_CODEC_VT2,  QUIRE_CODEC_TQ3, QUIRE_CODEC_A4G32,
                                       QUIRE_CODEC_Q8_0, QUIRE_CODEC_F32};

static bool is_one_of(quire_codec codec, quire_codec a, quire_codec b) {
    return codec == a || codec == b;
}

/* Where both sides are raw, f16 may meet q or weights that are fp16 too: side_uses_fp16. */
static double bound_under(const form *f, int cache) {
    const quire_pair pair = f->pair[cache];
    const bool k = is_one_of(pair.k, QUIRE_CODEC_RAW, QUIRE_CODEC_F16),
               v = is_one_of(pair.v, QUIRE_CODEC_RAW, QUIRE_CODEC_F16),
               raw = (k || pair.k == QUIRE_CODEC_F32) && (v || pair.v == QUIRE_CODEC_F32) &&
                     f->raw == QUIRE_F16;
    return attend_bound(pair, D, 1, raw && k, raw && v);
}

static double bound_now(const world *w, int layer) {
    const int cache = layer == 2 ? 0 : layer;
    const double now = bound_under(&w->m.now, cache),
                 before = w->m.changing ? bound_under(&w->m.before, cache) : 0;
    return now > before ? now : before;
}

/* ------------------------------------------------------------------ sequences */

static mseq *pick(world *w) {
    mseq *all[OPS_MAX_SEQS];
    int n = 0;
    for (int i = 0; i < OPS_MAX_SEQS; i++)
        if (w->m.seq[i].seq)
            all[n++] = &w->m.seq[i];
    return n ? all[rng_below(&w->r, n)] : NULL;
}

static mseq *free_slot(world *w) {
    for (int i = 0; i < OPS_MAX_SEQS; i++)
        if (!w->m.seq[i].seq)
            return &w->m.seq[i];
    return NULL;
}

static int n_free_slots(const world *w) {
    int n = 0;
    for (int i = 0; i < OPS_MAX_SEQS; i++)
        n += !w->m.seq[i].seq;
    return n;
}

static bool in_list(const world *w, const mseq *s) {
    for (int i = 0; i < N_LISTS; i++)
        for (int j = 0; j < w->list[i].list.n; j++)
            if (w->list[i].of[j] == s)
                return true;
    return false;
}

static void operate_create(world *w) {
    mseq *s = free_slot(w);
    quire_seq *seq;
    if (s && n_free_slots(w) < OPS_MAX_SEQS / 3 && rng_below(&w->r, 8))
        return; /* leave room for forks and merges, most of the time */
    if (!s) {
        assert_status(quire_seq_create(w->m.f.pool, &seq), QUIRE_E_NO_SLOT);
        return;
    }
    *s = (mseq){.seq = new_seq(&w->m.f), .kept_page = -1};
}

static void operate_fork(world *w) {
    const mseq *s = pick(w);
    mseq *child = free_slot(w);
    quire_seq *seq;
    if (!s)
        return;
    const quire_status status = quire_seq_fork(s->seq, &seq);
    assert_int_equal(status, s->busy ? QUIRE_E_BUSY : child ? QUIRE_OK : QUIRE_E_NO_SLOT);
    if (status != QUIRE_OK)
        return;
    child->seq = seq;
    model_fork(child, s);
}

static bool has_stale(const world *w, const mseq *s) {
    for (int l = 0; l < OPS_LAYERS; l++) {
        const layer_view *v = &s->layer[l];
        for (int p = 0; p < OPS_MAX_PAGES; p++)
            if (v->table[p] && model_page_stale(&w->m, v->table[p], l))
                return true;
        if (v->sinks && model_page_stale(&w->m, v->sinks, l))
            return true;
    }
    return false;
}

/* To a file and back: a second sequence with the same tokens and pages of its own. */
static void operate_save(world *w) {
    const mseq *s = pick(w);
    mseq *copy = free_slot(w);
    quire_seq *seq;
    if (!s)
        return;
    const quire_status saved = quire_seq_save(s->seq, saved_path("ops"), NULL);
    assert_int_equal(saved, s->busy ? QUIRE_E_BUSY : has_stale(w, s) ? QUIRE_E_STATE : QUIRE_OK);
    if (saved != QUIRE_OK)
        return;
    const quire_status status = saved_load(w->m.f.pool, saved_path("ops"), NULL, &seq);
    if (!copy)
        assert_int_equal(status, QUIRE_E_NO_SLOT);
    else
        assert_true(status == QUIRE_OK || status == QUIRE_E_NO_PAGES);
    if (status != QUIRE_OK)
        return;
    copy->seq = seq;
    model_copy(&w->m, copy, s);
    w->n_loads++;
}

static void operate_free(world *w) {
    mseq *s = pick(w);
    if (!s || in_list(w, s))
        return;
    assert_status(quire_seq_free(s->seq), s->busy ? QUIRE_E_BUSY : QUIRE_OK);
    if (!s->busy)
        model_free(&w->m, s);
}

static void operate_trim(world *w) {
    mseq *s = pick(w);
    if (!s || s->length == 0)
        return;
    const int back = rng_below(&w->r, rng_below(&w->r, 4) ? 100 : s->length + 1);
    int n = s->length > back ? s->length - back : 0;
    if (rng_below(&w->r, 5) == 0)
        n = n / 64 * 64;
    const bool possible = model_can_trim(&w->m, s, n);
    assert_status(quire_seq_trim(s->seq, n), s->busy    ? QUIRE_E_BUSY
                                             : possible ? QUIRE_OK
                                                        : QUIRE_E_GONE);
    w->n_gone += !possible;
    if (s->busy || !possible)
        return;
    model_trim(&w->m, s, n);
    w->n_trims++;
}

/* Drops a middle range. Rows are not turned, so that the model can follow bit by bit; test_shift.c
 * turns them. */
static void operate_shift(world *w) {
    static const quire_rope nothing_turns = {0};
    mseq *s = pick(w);
    if (!s || s->length < 2)
        return;
    int from = rng_below(&w->r, s->length - 1), by = 1 + rng_below(&w->r, s->length - 1 - from);
    if (rng_below(&w->r, 4) == 0 && s->length > 3 * 64) { /* whole pages */
        from = rng_below(&w->r, 2) * 64;
        by = 64;
    }
    const bool coarse =
                   w->m.now.pair[0].k == QUIRE_CODEC_KC2 || w->m.now.pair[1].k == QUIRE_CODEC_KC2,
               possible = model_can_shift(&w->m, s, from, by);
    assert_status(quire_seq_shift(s->seq, from, from + by, &nothing_turns, 1),
                  s->busy     ? QUIRE_E_BUSY
                  : coarse    ? QUIRE_E_UNSUPPORTED
                  : !possible ? QUIRE_E_GONE
                              : QUIRE_OK);
    if (s->busy || coarse || !possible)
        return;
    model_shift(&w->m, s, from, by);
    w->n_shifts++;
}

/* ------------------------------------------------------------------ lists */

static void operate_merge(world *w, mlist *to) {
    mseq *from[LIST_SIZE];
    quire_seq *seqs[LIST_SIZE];
    const int n = 1 + rng_below(&w->r, 5);
    bool busy = false;
    for (int i = 0; i < n; i++) {
        from[i] = pick(w);
        if (!from[i])
            return;
        seqs[i] = from[i]->seq;
        busy = busy || from[i]->busy;
    }
    const quire_status status = quire_list_merge(&to->list, seqs, n);
    if (to->list.capacity - (to->list.n - (status == QUIRE_OK ? n : 0)) < n) {
        assert_int_equal(status, QUIRE_E_TOO_BIG);
        return;
    }
    if (busy || n_free_slots(w) < n) {
        assert_true(status == QUIRE_E_BUSY || status == QUIRE_E_NO_SLOT);
        return;
    }
    assert_int_equal(status, QUIRE_OK);
    for (int i = 0; i < n; i++) {
        mseq *child = free_slot(w);
        child->seq = to->list.seq[to->list.n - n + i];
        model_fork(child, from[i]);
        to->of[to->list.n - n + i] = child;
    }
    w->n_lists++;
}

static void operate_extract(world *w, const mlist *from) {
    if (from->list.n == 0)
        return;
    const int i = rng_below(&w->r, from->list.n);
    mseq *child = free_slot(w);
    quire_seq *seq;
    const quire_status status = quire_list_extract(&from->list, i, &seq);
    assert_int_equal(status, from->of[i]->busy ? QUIRE_E_BUSY : child ? QUIRE_OK : QUIRE_E_NO_SLOT);
    if (status != QUIRE_OK)
        return;
    child->seq = seq;
    model_fork(child, from->of[i]);
}

static void operate_filter(world *w, mlist *l) {
    int32_t keep[LIST_SIZE];
    int n_keep = 0;
    bool kept[LIST_SIZE] = {0}, busy = false;
    for (int i = 0; i < l->list.n; i++)
        if (rng_below(&w->r, 3))
            keep[n_keep++] = i;
    for (int i = n_keep - 1; i > 0; i--) { /* in any order */
        const int j = rng_below(&w->r, i + 1), swap = keep[i];
        keep[i] = keep[j];
        keep[j] = swap;
    }
    if (n_keep > 1 && rng_below(&w->r, 10) == 0) {
        const int32_t twice[2] = {keep[0], keep[0]};
        assert_status(quire_list_filter(&l->list, twice, 2), QUIRE_E_INVALID);
    }
    for (int i = 0; i < n_keep; i++)
        kept[keep[i]] = true;
    for (int i = 0; i < l->list.n; i++)
        busy = busy || (!kept[i] && l->of[i]->busy);
    const int n = l->list.n;
    assert_status(quire_list_filter(&l->list, keep, n_keep), busy ? QUIRE_E_BUSY : QUIRE_OK);
    if (busy)
        return;
    mseq *after[LIST_SIZE];
    for (int i = 0; i < n_keep; i++)
        after[i] = l->of[keep[i]];
    for (int i = 0; i < n; i++)
        if (!kept[i])
            model_free(&w->m, l->of[i]);
    memcpy(l->of, after, sizeof after);
    assert_int_equal(l->list.n, n_keep);
    for (int i = 0; i < n_keep; i++)
        assert_ptr_equal(l->list.seq[i], l->of[i]->seq);
}

static void operate_extend(world *w) {
    mlist *a = &w->list[0], *b = &w->list[1];
    if (a->list.n + b->list.n > LIST_SIZE) {
        assert_status(quire_list_extend(&a->list, &b->list), QUIRE_E_TOO_BIG);
        return;
    }
    memcpy(a->of + a->list.n, b->of, (size_t)b->list.n * sizeof *b->of);
    assert_ok(quire_list_extend(&a->list, &b->list));
    assert_int_equal(b->list.n, 0);
}

/* ------------------------------------------------------------------ batches */

/* A row of one query head against the dense answer. */
static void check_row(world *w, const mseq *s, const arrival *a, int layer, int position,
                      const float *q, const float *got) {
    double wanted[D], error = 0, norm = 0;
    model_attend(&w->m, s, a, layer, position, q, wanted);
    for (int d = 0; d < D; d++) {
        error += ((double)got[d] - wanted[d]) * ((double)got[d] - wanted[d]);
        norm += wanted[d] * wanted[d];
    }
    const double bound = bound_now(w, layer);
    if (!(error <= 25 * bound * bound * norm))
        fail_msg("layer %d, position %d: off by %g, bound %g", layer, position, sqrt(error / norm),
                 bound);
    w->error += error;
    w->norm += norm;
    w->bound = bound > w->bound ? bound : w->bound;
    w->n_rows++;
    w->n_wraps += layer == 1 && position >= w->m.f.layer[1].window + w->m.f.layer[1].keep;
}

static void run_layer(world *w, const step_plan *b, int layer) {
    const quire_layer *l = &w->m.f.layer[layer];
    const int n_rows = quire_batch_rows(b->batch), h = l->n_heads;
    float *k = malloc((size_t)(n_rows * D) * 4 + 1), *v = malloc((size_t)(n_rows * D) * 4 + 1),
          *q = malloc((size_t)(n_rows * h * D) * 4 + 1),
          *out = malloc((size_t)(n_rows * h * D) * 4 + 1);
    for (int i = 0; i < n_rows * D; i++)
        k[i] = v[i] = NAN; /* padding is never looked at */
    for (int i = 0; i < n_rows * h * D; i++)
        q[i] = NAN, out[i] = 7;
    int row = 0;
    for (int i = 0; i < b->n_items; i++) {
        const arrival *a = &w->arrival[i];
        row += b->pad[i];
        for (int t = 0; t < b->n_tokens[i]; t++, row++) {
            for (int d = 0; d < D && l->share < 0; d++) {
                k[row * D + d] = a->k[layer][(a->first % 64 + t) * D + d];
                v[row * D + d] = a->v[layer][(a->first % 64 + t) * D + d];
            }
            for (int d = 0; d < h * D; d++)
                q[row * h * D + d] = rng_normal(&w->r);
        }
    }
    if (l->share < 0)
        assert_ok(quire_batch_append(b->batch, layer, (quire_rows){k, QUIRE_F32, 0},
                                     (quire_rows){v, QUIRE_F32, 0}, 0, 1));
    const quire_attend_args args = {.q = {q, QUIRE_F32, 0}, .out = out};
    assert_ok(quire_batch_attend(b->batch, layer, &args, 0, 1));
    row = 0;
    for (int i = 0; i < b->n_items; i++) {
        for (int j = 0; j < b->pad[i] * h * D; j++)
            assert_true(out[row * h * D + j] == 0);
        row += b->pad[i];
        for (int t = 0; t < b->n_tokens[i]; t++, row++) {
            if (t > 0 && t < b->n_tokens[i] - 1 && rng_below(&w->r, b->n_tokens[i]) > 1)
                continue; /* the first, the last, and some between */
            const int head = rng_below(&w->r, h);
            check_row(w, b->of[i], &w->arrival[i], layer, w->arrival[i].first + t,
                      q + (row * h + head) * D, out + (row * h + head) * D);
        }
    }
    free(k), free(v), free(q), free(out);
}

static void finish(world *w, const step_plan *b) {
    int32_t n_accept[OPS_MAX_SEQS];
    bool allowed = true;
    for (int i = 0; i < b->n_items; i++) {
        arrival *a = &w->arrival[i];
        const int offset = b->of[i]->length % 64;
        a->n_tokens = b->n_tokens[i];
        for (int l = 0; l < OPS_LAYERS; l++)
            for (int j = offset * D; j < (offset + a->n_tokens) * D; j++) {
                a->k[l][j] = model_rounded(&w->m, rng_normal(&w->r));
                a->v[l][j] = model_rounded(&w->m, rng_normal(&w->r));
            }
        model_arrive(&w->m, b->of[i], a);
        b->of[i]->busy = false;
    }
    for (int layer = 0; layer < N_LAYERS; layer++)
        run_layer(w, b, layer);
    const int how = rng_below(&w->r, 10);
    for (int i = 0; i < b->n_items; i++) {
        const int first = w->arrival[i].first, end = first + b->n_tokens[i];
        n_accept[i] = how < 4 ? rng_below(&w->r, b->n_tokens[i] + 1) : b->n_tokens[i];
        const int cut = first + n_accept[i];
        allowed = allowed && (cut % 64 == 0 || cut / 64 >= end / 64 - 1 ||
                              (first % 64 && cut / 64 == first / 64));
    }
    if (how == 9 || !allowed) {
        if (!allowed)
            assert_status(quire_batch_commit(b->batch, n_accept), QUIRE_E_INVALID);
        quire_batch_abort(b->batch);
        for (int i = 0; i < b->n_items; i++)
            model_abort(&w->m, &w->arrival[i]);
        return;
    }
    assert_ok(quire_batch_commit(b->batch, how < 4 ? n_accept : NULL));
    for (int i = 0; i < b->n_items; i++)
        model_append(&w->m, b->of[i], &w->arrival[i], n_accept[i]);
}

static void finish_held(world *w) {
    if (w->held.batch)
        finish(w, &w->held);
    w->held.batch = NULL;
}

static void begin(world *w, step_plan *b, bool padded) {
    quire_batch_item items[OPS_MAX_SEQS];
    bool too_long = false, busy = false;
    for (int i = 0; i < b->n_items; i++) {
        items[i] = (quire_batch_item){b->of[i]->seq, b->n_tokens[i]};
        too_long = too_long || b->of[i]->length + b->n_tokens[i] > OPS_MAX_TOKENS;
        busy = busy || b->of[i]->busy;
    }
    const quire_status status =
        padded ? quire_batch_begin_padded(w->m.f.pool, items, (size_t)b->n_items, b->pad, &b->batch)
               : quire_batch_begin(w->m.f.pool, items, (size_t)b->n_items, &b->batch);
    if (busy || too_long) {
        assert_true(status == QUIRE_E_BUSY || status == QUIRE_E_TOO_BIG);
        return;
    }
    assert_int_equal(status, QUIRE_OK);
    if (!w->held.batch && rng_below(&w->r, 12) == 0) {
        w->held = *b;
        for (int i = 0; i < b->n_items; i++)
            b->of[i]->busy = true;
    } else {
        finish(w, b);
    }
}

static void operate_append(world *w) {
    step_plan b = {0};
    for (int tries = 1 + rng_below(&w->r, 4); tries > 0; tries--) {
        mseq *s = pick(w);
        bool twice = false;
        for (int i = 0; i < b.n_items; i++)
            twice = twice || b.of[i] == s;
        if (!s || twice)
            continue;
        b.of[b.n_items] = s;
        const int most = rng_below(&w->r, 5) == 0 ? 150 : rng_below(&w->r, 3) == 0 ? 40 : 4;
        b.n_tokens[b.n_items++] = rng_below(&w->r, most + 1);
    }
    if (b.n_items > 0)
        begin(w, &b, false);
}

/* A step of a whole list, rows of shape (n, L) with padding on the left. */
static void operate_list_step(world *w, const mlist *l) {
    step_plan b = {.n_items = l->list.n};
    const int length = 1 + rng_below(&w->r, rng_below(&w->r, 3) ? 2 : 30);
    for (int i = 0; i < b.n_items; i++) {
        b.of[i] = l->of[i];
        b.n_tokens[i] = length == 1 ? 1 : rng_below(&w->r, length + 1);
        b.pad[i] = length - b.n_tokens[i];
    }
    if (b.n_items > 0)
        begin(w, &b, true);
}

/* ------------------------------------------------------------------ policies */

static void check_errors(world *w) {
    if (w->n_rows > 200 && !(w->error <= w->bound * w->bound * w->norm))
        fail_msg("rows under this policy are off by %g, bound %g", sqrt(w->error / w->norm),
                 w->bound);
    w->error = w->norm = w->bound = 0;
    w->n_rows = 0;
}

static quire_pair random_pair(world *w) {
    const quire_pair pair = {K_CODECS[rng_below(&w->r, sizeof K_CODECS / sizeof *K_CODECS)],
                             V_CODECS[rng_below(&w->r, sizeof V_CODECS / sizeof *V_CODECS)]};
    return rng_below(&w->r, 4) ? pair : (quire_pair){QUIRE_CODEC_RAW, QUIRE_CODEC_RAW};
}

static bool same_form(const form *a, const form *b) {
    for (int l = 0; l < OPS_LAYERS; l++)
        if (a->pair[l].k != b->pair[l].k || a->pair[l].v != b->pair[l].v ||
            model_sinks(a, l) != model_sinks(b, l))
            return false;
    return true;
}

static void operate_change(world *w) {
    static const int SINKS[] = {0, 1, 4, 9, 64};
    form f = {{random_pair(w), random_pair(w)}, SINKS[rng_below(&w->r, 5)], w->m.now.raw};
    if (rng_below(&w->r, 3) == 0)
        f = w->m.changing ? w->m.before : w->m.now;
    const quire_policy policy = {.pair = f.pair[0], .windowed = f.pair[1], .sinks = f.sinks};
    const bool same = same_form(&f, &w->m.now), back = same_form(&f, &w->m.before);
    const quire_status status = quire_pool_requantize(w->m.f.pool, &policy);
    const quire_status wanted = same                     ? QUIRE_OK
                                : w->held.batch          ? QUIRE_E_BUSY
                                : w->m.changing && !back ? QUIRE_E_STATE
                                                         : QUIRE_OK;
    assert_int_equal(status, wanted);
    if (same || status != QUIRE_OK)
        return;
    check_errors(w);
    model_change(&w->m, &f);
    w->n_changes++;
}

static void operate_convert(world *w) {
    const int max_pages = rng_below(&w->r, 3) ? rng_below(&w->r, 6) : 1000;
    quire_requantize_stats stats;
    const bool changing = w->m.changing;
    assert_ok(quire_pool_requantize_step(w->m.f.pool, max_pages, &stats));
    if (!changing)
        return;
    w->n_converted += (int)model_step(&w->m, max_pages);
    assert_int_equal(stats.pages_done, w->m.converted);
    assert_int_equal(stats.pages_left, model_stale_pages(&w->m));
}

/* ------------------------------------------------------------------ lives */

static void open_world(world *w, uint64_t seed) {
    static const struct {
        int window, keep;
        quire_type raw;
    } kinds[N_SEEDS] = {
        {50, 70, QUIRE_F16},  {100, 3, QUIRE_F16}, {130, 0, QUIRE_F32}, {64, 4, QUIRE_BF16},
        {20, 130, QUIRE_F16}, {1, 5, QUIRE_F16},   {200, 4, QUIRE_F16}, {7, 0, QUIRE_F16},
    };
    memset(w, 0, sizeof *w);
    w->r.state = seed;
    w->m.now = (form){{random_pair(w), random_pair(w)}, 4, kinds[seed % N_SEEDS].raw};
    fixture *f = &w->m.f;
    fixture_init(f, N_LAYERS, 2, 1, D, D, "none");
    f->layer[1].window = kinds[seed % N_SEEDS].window;
    f->layer[1].keep = kinds[seed % N_SEEDS].keep;
    f->layer[2].share = 0;
    f->layer[2].n_heads = 1;
    f->options.policy.pair = w->m.now.pair[0];
    f->options.policy.windowed = w->m.now.pair[1];
    f->options.policy.sinks = w->m.now.sinks;
    f->options.raw = w->m.now.raw;
    f->options.max_tokens = OPS_MAX_TOKENS;
    f->options.max_seqs = OPS_MAX_SEQS;
    f->options.max_batch_tokens = 4 * 150;
    f->options.max_batches = 2;
    f->options.max_workers = 1;
    f->options.budget_bytes = (size_t)20 << 20;
    fixture_open(f);
    for (int i = 0; i < N_LISTS; i++)
        w->list[i].list = (quire_list){w->list[i].seq, 0, LIST_SIZE};
    w->arrival = malloc(LIST_SIZE * sizeof *w->arrival);
}

static void close_world(world *w) {
    finish_held(w);
    for (int i = 0; i < N_LISTS; i++) {
        for (int j = 0; j < w->list[i].list.n; j++)
            model_free(&w->m, w->list[i].of[j]);
        assert_ok(quire_list_clear(&w->list[i].list));
    }
    model_check_bytes(&w->m);
    while (pick(w))
        operate_free(w);
    model_check_bytes(&w->m);
    assert_null(w->m.pages);
    assert_all_free(&w->m.f);
    fixture_close(&w->m.f);
    free(w->arrival);
}

/* Further operations (a file written and read back, for one) go here; for the model such a copy
 * is a model_fork. */
static void operate(world *w) {
    const int what = rng_below(&w->r, 100);
    mlist *list = &w->list[rng_below(&w->r, N_LISTS)];
    if (what < 40)
        operate_append(w);
    else if (what < 50)
        operate_list_step(w, list);
    else if (what < 56)
        operate_create(w);
    else if (what < 61)
        operate_fork(w);
    else if (what < 69)
        operate_trim(w);
    else if (what < 70)
        operate_shift(w);
    else if (what < 79)
        operate_free(w);
    else if (what < 82)
        operate_merge(w, list);
    else if (what < 85)
        operate_extract(w, list);
    else if (what < 88)
        operate_filter(w, list);
    else if (what < 90)
        operate_extend(w);
    else if (what < 92)
        operate_change(w);
    else if (what < 97)
        operate_convert(w);
    else if (what < 98)
        operate_save(w);
    else
        finish_held(w);
}

static void live(uint64_t seed, int n_operations) {
    static world w;
    print_message("seed %llu\n", (unsigned long long)seed);
    open_world(&w, seed);
    for (int i = 0; i < n_operations; i++) {
        operate(&w);
        if (w.held.batch)
            balance(&w.m.f); /* it has pages reserved */
        else
            model_check_bytes(&w.m);
    }
    check_errors(&w);
    print_message("  %d changes of policy, %d pages converted, %d trims, %d past the window, %d "
                  "wrapped rows, %d "
                  "merges, %d loads, %d shifts\n",
                  w.n_changes, w.n_converted, w.n_trims, w.n_gone, w.n_wraps, w.n_lists, w.n_loads,
                  w.n_shifts);
    assert_true(w.n_changes > n_operations / 1000 && w.n_converted > n_operations / 100 &&
                w.n_wraps > n_operations / 10 && w.n_loads > n_operations / 1000 &&
                w.n_shifts > n_operations / 1000);
    close_world(&w);
}

static void random_operations(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    int n = 12000; /* the same lives, shorter: they take longer here */
    const uint64_t step = sweep_is_full() ? 1 : 2;
#else
    int n = sweep_is_full() ? 100000 : 20000;
    const uint64_t step = 1;
#endif
    const char *seed = getenv("QUIRE_TEST_SEED"), *wanted = getenv("QUIRE_TEST_OPS");
    if (wanted)
        n = atoi(wanted);
    if (seed)
        live(strtoull(seed, NULL, 0), n);
    else
        for (uint64_t i = 0; i < N_SEEDS; i += step)
            live(i, n / N_SEEDS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_operations)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    saved_remove_all();
    return failed;
}
