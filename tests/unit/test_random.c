/* Random lives of a dozen sequences in a pool that is too small for them, against a model that
 * only remembers what each sequence was fed. After every step each output must equal, bit for
 * bit, that of a fresh sequence fed the same history in one go in another pool. Only what grew
 * from a page reopened from packed values is held to a tolerance instead.
 *
 * QUIRE_TEST_SEED=n runs that seed alone. */
#include <math.h>
#include <stdio.h>

#include "ledger.h"

enum {
    MAX_SEQS = 12,
    MAX_LENGTH = 320,
    MAX_NODES = 4096,
    N_LAYERS = 3,
    N_OPERATIONS = 450,
    NEVER = 1 << 30
};

/* ------------------------------------------------------------------ the model */

/* A history: tokens from `from` on come from `source`, those before are the parent's. */
typedef struct node {
    int parent, refs, from;
    source source;
    float
        *answers; /* (n_answers, all layers' outputs): what positions from, from+1, ... must give */
    int n_answers;
} node;

typedef struct model_seq {
    quire_seq *seq; /* NULL: free slot */
    bool busy;      /* in the batch that is held */
    int node, length;
    int kept_page;    /* sealed last, or -1 */
    bool kept_raw;    /* and its raw rows are kept */
    int live_from;    /* pages below have left layer 1's window, pinned ones excepted */
    int inexact_from; /* tokens from here on grew from a reopened page */
} model_seq;

/* Tokens a sequence brings to a batch, and where its rows come from. */
typedef struct model_item {
    quire_seq *seq;
    int node, from, n_tokens;
} model_item;

typedef struct model_batch {
    quire_batch *batch;
    int n_items;
    model_seq *of[MAX_SEQS];
    model_item item[MAX_SEQS];
} model_batch;

typedef struct world {
    fixture tried, fresh;
    model_batch
        held; /* begun, while life goes on for the others; its batch is NULL if there is none */
    rng r;
    node node[MAX_NODES];
    model_seq seq[MAX_SEQS];
    uint64_t reopened;
    uint64_t next_source;
    size_t row;                      /* floats of all layers for one token */
    int n_refused, n_exact, n_close; /* what the run has seen */
} world;

static int node_new(world *w, int parent, int from) {
    for (int i = 0; i < MAX_NODES; i++) {
        node *n = &w->node[i];
        if (n->refs > 0)
            continue;
        *n = (node){
            .parent = parent, .refs = 1, .from = from, .source = source_default(w->next_source++)};
        if (parent >= 0)
            w->node[parent].refs++;
        return i;
    }
    fail_msg("out of nodes");
    return -1;
}

static void node_drop(world *w, int i) {
    while (i >= 0 && --w->node[i].refs == 0) {
        free(w->node[i].answers);
        i = w->node[i].parent;
    }
}

static void node_assign(world *w, int *place, int i) {
    if (i >= 0)
        w->node[i].refs++;
    node_drop(w, *place);
    *place = i;
}

/* The node that position belongs to in the history of node i. */
static int node_at(const world *w, int i, int position) {
    while (position < w->node[i].from)
        i = w->node[i].parent;
    return i;
}

/* ------------------------------------------------------------------ steps from histories */

/* Rows of one layer for all items, stored and (out not NULL) attended. out: (rows, row), this
 * layer's part at `at`. */
static void run_layer(const world *w, const fixture *f, quire_batch *batch, int layer,
                      const model_item *items, int n_items, float *out, size_t at) {
    const quire_layer *l = &f->layer[layer];
    const int cache = l->share < 0 ? layer : l->share;
    const size_t rows = (size_t)quire_batch_rows(batch), nk = (size_t)(l->n_kv_heads * l->k_dim),
                 nv = (size_t)(l->n_kv_heads * l->v_dim), nq = (size_t)(l->n_heads * l->k_dim);
    float *k = malloc(rows * nk * 4 + 1), *v = malloc(rows * nv * 4 + 1),
          *q = malloc(rows * nq * 4 + 1);
    size_t row = 0;
    for (int i = 0; i < n_items; i++)
        for (int t = items[i].from; t < items[i].from + items[i].n_tokens; t++, row++) {
            const source *s = &w->node[node_at(w, items[i].node, t)].source;
            if (l->share < 0)
                source_k(s, l, cache, t, k + row * nk);
            if (l->share < 0)
                source_v(s, l, cache, t, v + row * nv);
            if (out)
                source_q(s, l, layer, t, q + row * nq);
        }
    if (l->share < 0)
        assert_ok(quire_batch_append(batch, layer, (quire_rows){k, QUIRE_F32, 0},
                                     (quire_rows){v, QUIRE_F32, 0}, 0, 1));
    const quire_attend_args args = {.q = {q, QUIRE_F32, 0}, .out = out + at, .out_stride = w->row};
    if (out)
        assert_ok(quire_batch_attend(batch, layer, &args, 0, 1));
    free(k), free(v), free(q);
}

static quire_status begin(const fixture *f, const model_item *items, int n_items,
                          quire_batch **batch) {
    quire_batch_item list[MAX_SEQS];
    for (int i = 0; i < n_items; i++)
        list[i] = (quire_batch_item){items[i].seq, items[i].n_tokens};
    return quire_batch_begin(f->pool, list, (size_t)n_items, batch);
}

static void run_layers(const world *w, const fixture *f, quire_batch *batch,
                       const model_item *items, int n_items, float *out) {
    size_t at = 0;
    for (int layer = 0; layer < N_LAYERS; layer++) {
        run_layer(w, f, batch, layer, items, n_items, out, at);
        at += (size_t)(f->layer[layer].n_heads * f->layer[layer].v_dim);
    }
}

/* Fill in a node's answers up to `end`: its history in one go, in a pool of its own. */
static void answer(world *w, int i, int end) {
    enum { AHEAD = 12 };
    node *n = &w->node[i];
    if (n->n_answers >= end - n->from)
        return;
    end = end + AHEAD < MAX_LENGTH ? end + AHEAD : MAX_LENGTH;
    quire_seq *seq = new_seq(&w->fresh);
    quire_batch *batch;
    const model_item before = {seq, i, 0, n->from}, now = {seq, i, n->from, end - n->from};
    assert_ok(begin(&w->fresh, &before, 1, &batch));
    run_layers(w, &w->fresh, batch, &before, 1, NULL); /* others have its answers */
    assert_ok(quire_batch_commit(batch, NULL));
    n->n_answers = end - n->from;
    n->answers = realloc(n->answers, (size_t)n->n_answers * w->row * sizeof *n->answers);
    assert_ok(begin(&w->fresh, &now, 1, &batch));
    run_layers(w, &w->fresh, batch, &now, 1, n->answers);
    quire_batch_abort(batch);
    drop(seq);
}

static bool layer_packed(const world *w, int layer) {
    const int cache = w->tried.layer[layer].share < 0 ? layer : w->tried.layer[layer].share;
    return w->tried.layer[cache].k != QUIRE_CODEC_RAW;
}

/* One row of outputs against what the history demands. */
static void check_row(world *w, const model_seq *m, int position, const float *got) {
    const int i = node_at(w, m->node, position);
    answer(w, i, position + 1);
    const float *wanted = w->node[i].answers + (size_t)(position - w->node[i].from) * w->row;
    size_t at = 0;
    for (int layer = 0; layer < N_LAYERS; layer++) {
        const size_t n = (size_t)(w->tried.layer[layer].n_heads * w->tried.layer[layer].v_dim);
        if (position < m->inexact_from || !layer_packed(w, layer)) {
            w->n_exact++;
            if (memcmp(got + at, wanted + at, n * sizeof *got) != 0)
                fail_msg("position %d, layer %d differs", position, layer);
        } else {
            double error = 0, norm = 0;
            for (size_t j = at; j < at + n; j++) {
                error += pow((double)got[j] - (double)wanted[j], 2);
                norm += pow((double)wanted[j], 2);
            }
            w->n_close++;
            if (!(error <= 0.05 * 0.05 * norm))
                fail_msg("position %d, layer %d is off by %g", position, layer, sqrt(error / norm));
        }
        at += n;
    }
}

/* ------------------------------------------------------------------ what the pool should do */

static int window_start(const quire_layer *l, int i) {
    return i < l->window ? 0 : i - l->window + 1;
}

/* Whether layer 1 still has page p of a sequence. */
static bool resident(const world *w, const model_seq *m, int p) {
    const quire_layer *l = &w->tried.layer[1];
    const int sinks = layer_packed(w, 1) ? w->tried.options.policy.sinks : 0;
    return p >= m->live_from || (p * 64 < l->keep && !(p == 0 && l->keep <= sinks));
}

static void model_recycle(const world *w, model_seq *m) {
    int first = window_start(&w->tried.layer[1], m->length) / 64;
    if (m->kept_page >= 0 && first > m->kept_page)
        first = m->kept_page;
    if (first > m->live_from)
        m->live_from = first;
}

static void model_append(const world *w, model_seq *m, int n, int kept) {
    const int before = m->length, end = before + n, cut = before + kept;
    if (n == 0)
        return;
    if (cut / 64 >
        before / 64) { /* pages in the middle of a long batch never have raw rows of their own */
        m->kept_page = cut / 64 - 1;
        m->kept_raw =
            m->kept_page == end / 64 - 1 || (m->kept_page == before / 64 && before % 64 != 0);
    }
    m->length = cut;
    if (cut <= m->inexact_from)
        m->inexact_from = NEVER;
    model_recycle(w, m);
}

static bool can_trim(const world *w, const model_seq *m, int n) {
    for (int p = window_start(&w->tried.layer[1], n) / 64;
         n > 0 && p <= (n - 1) / 64 && p < m->length / 64; p++)
        if (!resident(w, m, p))
            return false;
    return true;
}

/* A trim that needs a page to reopen another into. */
static bool reopens(const model_seq *m, int n) {
    return n % 64 != 0 && n / 64 < m->length / 64 && !(m->kept_page == n / 64 && m->kept_raw);
}

static void model_trim(world *w, model_seq *m, int n) {
    const int page = n / 64;
    if (reopens(m, n) && page * 64 < m->inexact_from)
        m->inexact_from = page * 64;
    if (page < m->length / 64) {
        if (m->kept_page >= page)
            m->kept_page = -1;
        if (m->live_from > page)
            m->live_from = page;
    }
    m->length = n;
    if (n <= m->inexact_from)
        m->inexact_from = NEVER;
    node_assign(w, &m->node, node_at(w, m->node, n));
}

/* Enough for a batch in the worst case: raw and packed pages for every page it touches, and
 * sinks. */
static size_t most_needed(const world *w, const model_item *items, int n_items) {
    size_t page = 0, need = 0;
    for (int i = 0; i < N_LAYERS; i++) {
        const quire_layer *l = &w->tried.layer[i];
        if (l->share < 0)
            page += (size_t)(l->n_kv_heads * (l->k_dim + l->v_dim)) * 64 * 2;
    }
    for (int i = 0; i < n_items; i++)
        need += (size_t)(items[i].n_tokens / 64 + 2) * 3 * page;
    return need;
}

static void check_refusal(world *w, size_t need) {
    assert_true(balance(&w->tried).largest_free_bytes < need);
    w->n_refused++;
}

/* ------------------------------------------------------------------ operations */

static model_seq *pick(world *w) {
    model_seq *all[MAX_SEQS];
    int n = 0;
    for (int i = 0; i < MAX_SEQS; i++)
        if (w->seq[i].seq)
            all[n++] = &w->seq[i];
    return n ? all[rng_below(&w->r, n)] : NULL;
}

static model_seq *free_slot(world *w) {
    for (int i = 0; i < MAX_SEQS; i++)
        if (!w->seq[i].seq)
            return &w->seq[i];
    return NULL;
}

static void operate_create(world *w) {
    model_seq *m = free_slot(w);
    quire_seq *seq;
    if (!m) {
        assert_status(quire_seq_create(w->tried.pool, &seq), QUIRE_E_NO_SLOT);
        return;
    }
    *m = (model_seq){.seq = new_seq(&w->tried),
                     .node = node_new(w, -1, 0),
                     .kept_page = -1,
                     .inexact_from = NEVER};
}

static void operate_fork(world *w) {
    const model_seq *m = pick(w);
    model_seq *child = free_slot(w);
    quire_seq *seq;
    if (!m)
        return;
    if (!child || m->busy) {
        assert_status(quire_seq_fork(m->seq, &seq), m->busy ? QUIRE_E_BUSY : QUIRE_E_NO_SLOT);
        return;
    }
    assert_ok(quire_seq_fork(m->seq, &seq));
    *child = *m;
    child->seq = seq;
    if (rng_below(&w->r, 3) == 0)
        w->node[m->node].refs++; /* goes on with the same tokens */
    else
        child->node = node_new(w, m->node, m->length);
}

static void operate_free(world *w) {
    model_seq *m = pick(w);
    if (!m)
        return;
    if (m->busy) {
        assert_status(quire_seq_free(m->seq), QUIRE_E_BUSY);
        return;
    }
    drop(m->seq);
    node_drop(w, m->node);
    *m = (model_seq){0};
}

static void operate_trim(world *w) {
    model_seq *m = pick(w);
    if (!m || m->length == 0)
        return;
    const int back = rng_below(&w->r, rng_below(&w->r, 4) ? 100 : m->length + 1);
    int n = m->length > back ? m->length - back : 0;
    if (rng_below(&w->r, 4) == 0)
        n = n / 64 * 64;
    const quire_status status = quire_seq_trim(m->seq, n);
    if (m->busy) {
        assert_int_equal(status, QUIRE_E_BUSY);
        return;
    }
    if (!can_trim(w, m, n)) {
        assert_int_equal(status, QUIRE_E_GONE);
        return;
    }
    if (status == QUIRE_E_NO_PAGES) {
        assert_true(reopens(m, n));
        check_refusal(w, most_needed(w, &(model_item){.n_tokens = 1}, 1));
        return;
    }
    assert_int_equal(status, QUIRE_OK);
    w->reopened += reopens(m, n);
    model_trim(w, m, n);
    if (rng_below(&w->r, 2)) {
        const int old = m->node;
        m->node = node_new(w, old, n);
        node_drop(w, old);
    }
}

/* Commit with fewer tokens than were stored: any cut between pages, in the page that was open, in
 * the last full page, or behind it. */
static void commit_part(world *w, const model_batch *b) {
    int32_t n_accept[MAX_SEQS];
    bool allowed = true;
    for (int i = 0; i < b->n_items; i++) {
        const int from = b->item[i].from, end = from + b->item[i].n_tokens;
        n_accept[i] = rng_below(&w->r, b->item[i].n_tokens + 1);
        const int cut = from + n_accept[i];
        allowed = allowed && (cut % 64 == 0 || cut / 64 >= end / 64 - 1 ||
                              (from % 64 && cut / 64 == from / 64));
    }
    if (!allowed) {
        assert_status(quire_batch_commit(b->batch, n_accept), QUIRE_E_INVALID);
        quire_batch_abort(b->batch);
        return;
    }
    assert_ok(quire_batch_commit(b->batch, n_accept));
    for (int i = 0; i < b->n_items; i++)
        model_append(w, b->of[i], b->item[i].n_tokens, n_accept[i]);
}

/* Rows, outputs, and one of the three ends a batch may come to. */
static void finish(world *w, const model_batch *b) {
    const int rows = quire_batch_rows(b->batch), end = rng_below(&w->r, 10);
    float *out = malloc((size_t)rows * w->row * sizeof *out + 1);
    run_layers(w, &w->tried, b->batch, b->item, b->n_items, out);
    size_t at = 0;
    for (int i = 0; i < b->n_items; i++)
        for (int t = 0; t < b->item[i].n_tokens; t++, at++)
            check_row(w, b->of[i], b->item[i].from + t, out + at * w->row);
    free(out);
    balance(&w->tried);
    for (int i = 0; i < b->n_items; i++)
        b->of[i]->busy = false;
    if (end == 0)
        quire_batch_abort(b->batch);
    else if (end < 4)
        commit_part(w, b);
    else {
        assert_ok(quire_batch_commit(b->batch, NULL));
        for (int i = 0; i < b->n_items; i++)
            model_append(w, b->of[i], b->item[i].n_tokens, b->item[i].n_tokens);
    }
}

static void finish_held(world *w) {
    if (w->held.batch)
        finish(w, &w->held);
    w->held.batch = NULL;
}

static void operate_append(world *w) {
    model_batch b = {0};
    for (int tries = 1 + rng_below(&w->r, 5); tries > 0; tries--) {
        model_seq *m = pick(w);
        bool out = !m || m->busy;
        for (int i = 0; i < b.n_items; i++)
            out = out || b.of[i] == m;
        if (out)
            continue;
        int n = rng_below(&w->r, 3) ? rng_below(&w->r, 9) : rng_below(&w->r, 150);
        if (n > MAX_LENGTH - m->length)
            n = MAX_LENGTH - m->length;
        b.of[b.n_items] = m;
        b.item[b.n_items++] = (model_item){m->seq, m->node, m->length, n};
    }
    if (b.n_items == 0)
        return;
    const quire_status status = begin(&w->tried, b.item, b.n_items, &b.batch);
    if (status != QUIRE_OK) {
        assert_int_equal(status, QUIRE_E_NO_PAGES);
        check_refusal(w, most_needed(w, b.item, b.n_items));
        if (rng_below(&w->r, 2))
            operate_free(w);
    } else if (!w->held.batch && rng_below(&w->r, 4) == 0) {
        w->held = b;
        for (int i = 0; i < b.n_items; i++)
            b.of[i]->busy = true;
    } else {
        finish(w, &b);
    }
}

/* A new sequence from another one's sealed pages. */
static void operate_copy_pages(world *w) {
    const model_seq *m = pick(w);
    model_seq *copy = free_slot(w);
    if (!m || !copy)
        return;
    *copy =
        (model_seq){.seq = new_seq(&w->tried), .node = -1, .kept_page = -1, .inexact_from = NEVER};
    for (int p = 0; p < m->length / 64; p++) {
        const size_t n = quire_seq_page_bytes(w->tried.pool, p);
        uint8_t *bytes = malloc(n);
        const quire_status saved = quire_seq_page_save(m->seq, p, bytes, n);
        const bool gone = !resident(w, m, p);
        assert_int_equal(saved, gone ? QUIRE_E_GONE : QUIRE_OK);
        const quire_status loaded = gone ? QUIRE_E_GONE : quire_seq_page_load(copy->seq, bytes, n);
        free(bytes);
        if (loaded != QUIRE_OK) {
            if (!gone)
                assert_int_equal(loaded, QUIRE_E_NO_PAGES);
            break;
        }
        copy->length += 64;
        model_recycle(w, copy);
    }
    copy->node = node_at(w, m->node, copy->length);
    w->node[copy->node].refs++;
    if (m->inexact_from < copy->length)
        copy->inexact_from = m->inexact_from;
}

/* Every sequence that there is room for: its next token is right, and then forgotten. */
static void probe_all(world *w) {
    for (int i = 0; i < MAX_SEQS; i++) {
        const model_seq *m = &w->seq[i];
        if (!m->seq)
            continue;
        assert_int_equal(quire_seq_length(m->seq), m->length);
        if (m->length == MAX_LENGTH || m->busy)
            continue;
        const model_item item = {m->seq, m->node, m->length, 1};
        float *out = malloc(w->row * sizeof *out);
        quire_batch *batch;
        if (begin(&w->tried, &item, 1, &batch) == QUIRE_OK) {
            run_layers(w, &w->tried, batch, &item, 1, out);
            check_row(w, m, m->length, out);
            quire_batch_abort(batch);
        }
        free(out);
    }
}

/* ------------------------------------------------------------------ lives */

static void init_world(world *w, uint64_t seed) {
    static const struct {
        int window, keep, sinks, raw;
    } kinds[] = {
        {50, 70, 4, 0}, {100, 3, 4, 1},   {130, 0, 0, 0},
        {64, 4, 4, 0},  {20, 130, 64, 0}, {1, 5, 1, 1},
    };
    const int kind = (int)(seed % (sizeof kinds / sizeof *kinds));
    memset(w, 0, sizeof *w);
    w->r.state = seed;
    fixture_init(&w->tried, N_LAYERS, 1, 1, 32, 32, "k8v8");
    fixture *f = &w->tried;
    f->layer[1].window = kinds[kind].window;
    f->layer[1].keep = kinds[kind].keep;
    if (kinds[kind].raw)
        f->layer[1].k = f->layer[1].v = QUIRE_CODEC_RAW;
    f->layer[2].share = 0;
    f->options.policy.sinks = kinds[kind].sinks;
    f->options.max_tokens = MAX_LENGTH;
    f->options.max_batch_tokens = 5 * 150;
    f->options.max_seqs = MAX_SEQS;
    f->options.max_batches = 2;
    f->options.max_workers = 1;
    w->fresh = w->tried;
    w->fresh.options.budget_bytes = (size_t)16 << 20;
    fixture_open(&w->fresh);
    f->options.budget_bytes = (size_t)1 << 20;
    while (fixture_try(f) == QUIRE_E_BUDGET)
        f->options.budget_bytes += 1 << 16;
    /* Some 15 open pages in all: never enough for long. */
    f->options.budget_bytes =
        f->options.budget_bytes - balance(f).arena_bytes + ((size_t)260 << 10);
    fixture_close(f);
    fixture_open(f);
    for (int i = 0; i < N_LAYERS; i++)
        w->row += (size_t)(f->layer[i].n_heads * f->layer[i].v_dim);
}

static void close_world(world *w) {
    finish_held(w);
    while (pick(w)) {
        operate_free(w);
        balance(&w->tried);
    }
    assert_all_free(&w->tried);
    assert_all_free(&w->fresh);
    for (int i = 0; i < MAX_NODES; i++)
        assert_int_equal(w->node[i].refs, 0);
    fixture_close(&w->tried);
    fixture_close(&w->fresh);
}

static void live(uint64_t seed) {
    static world w;
    print_message("seed %llu\n", (unsigned long long)seed);
    init_world(&w, seed);
    for (int i = 0; i < N_OPERATIONS; i++) {
        const int what = rng_below(&w.r, 100);
        if (what < 50)
            operate_append(&w);
        else if (what < 62)
            operate_create(&w);
        else if (what < 76)
            operate_fork(&w);
        else if (what < 88)
            operate_trim(&w);
        else if (what < 93)
            operate_free(&w);
        else if (what < 97)
            operate_copy_pages(&w);
        else
            finish_held(&w);
        assert_int_equal(balance(&w.tried).reopened_pages, w.reopened);
        if (i % 10 == 0)
            probe_all(&w);
    }
    print_message("  %d rows exact, %d close, %d refused, %d reopened\n", w.n_exact, w.n_close,
                  w.n_refused, (int)w.reopened);
    assert_true(w.n_exact > 1000 && w.n_refused > 5); /* the life was not too easy */
    close_world(&w);
}

static void random_lives(void **state) {
    (void)state;
    const char *seed = getenv("QUIRE_TEST_SEED");
    if (seed)
        live(strtoull(seed, NULL, 0));
    else
        for (uint64_t i = 0; i < 6; i++)
            live(i);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_lives)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
