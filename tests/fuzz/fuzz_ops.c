/* libFuzzer target: bytes as a policy's name, as a foreign page, or as a life of a small pool.
 * docs/TESTING.md says how to build and run it.
 *
 * Whatever the bytes, no call may do harm, statuses are the documented ones, and the books
 * balance after every call. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition,                    \
                    quire_last_error());                                                           \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

typedef struct input {
    const uint8_t *at;
    size_t left;
} input;

static unsigned take(input *in) {
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

static unsigned take_below(input *in, unsigned n) { return take(in) % n; }

/* ------------------------------------------------------------------ names */

static void fuzz_policy(input in) {
    char text[64];
    const size_t n = in.left < sizeof text - 1 ? in.left : sizeof text - 1;
    memcpy(text, in.at, n);
    text[n] = 0;
    quire_policy policy;
    const quire_status status = quire_policy_parse(text, &policy);
    CHECK(status == QUIRE_OK || status == QUIRE_E_UNKNOWN || status == QUIRE_E_UNSUPPORTED);
    if (status != QUIRE_OK)
        return;
    CHECK(quire_codec_name(policy.pair.k) && quire_codec_name(policy.pair.v));
    CHECK(policy.sinks == 0 || policy.sinks == 4);
}

/* ------------------------------------------------------------------ one page */

static void fuzz_page(input in) {
    quire_codec_info k, v;
    const unsigned n = (unsigned)quire_codec_count();
    CHECK(quire_codec_at(take_below(&in, n), &k) == QUIRE_OK &&
          quire_codec_at(take_below(&in, n), &v) == QUIRE_OK);
    const quire_page_shape shape = {{k.codec, v.codec},
                                    16 * (int32_t)take_below(&in, 12),
                                    16 * (int32_t)take_below(&in, 12),
                                    (quire_type)take_below(&in, 4)};
    size_t bytes;
    if (quire_page_bytes(&shape, &bytes) != QUIRE_OK)
        return;
    uint8_t *page = calloc(1, bytes);
    float *rows = malloc((size_t)(64 * (shape.k_dim + shape.v_dim)) * sizeof *rows),
          *v_rows = rows + 64 * shape.k_dim;
    for (size_t i = 0; i < bytes && in.left > 0; i++)
        page[i] = in.at[i % in.left];
    CHECK(quire_page_decode(&shape, page, rows, v_rows) == QUIRE_OK);
    const quire_status status = quire_page_encode(
        &shape, rows, v_rows, (int32_t)take_below(&in, 65), page); /* whatever came out */
    CHECK(status == QUIRE_OK || status == QUIRE_E_VALUE);
    CHECK(quire_page_decode(&shape, page, rows, v_rows) == QUIRE_OK);
    for (int i = 0; i < 64 * (shape.k_dim + shape.v_dim) && status == QUIRE_OK; i++)
        CHECK(isfinite(rows[i]));
    free(page), free(rows);
}

/* ------------------------------------------------------------------ a pool's life */

enum { MAX_SEQS = 4, MAX_ROWS = 96, MAX_LAYERS = 3, DIM = 32 };

typedef struct life {
    quire_pool *pool;
    quire_layer layer[MAX_LAYERS];
    uint16_t order[MAX_LAYERS][DIM];
    int n_layers;
    quire_seq *seq[MAX_SEQS];
    int32_t length[MAX_SEQS];
    uint64_t noise;
    float rows[3][MAX_ROWS * DIM], out[MAX_ROWS * DIM];
} life;

static void balance(const life *l) {
    quire_pool_stats s;
    int64_t tokens = 0;
    int n_seqs = 0;
    quire_pool_get_stats(l->pool, &s);
    CHECK(s.arena_bytes ==
              s.free_bytes + s.sealed_bytes + s.open_bytes + s.last_raw_bytes + s.sink_bytes &&
          s.shadow_bytes == 0);
    for (int i = 0; i < MAX_SEQS; i++) {
        if (!l->seq[i])
            continue;
        n_seqs++;
        tokens += l->length[i];
        CHECK(quire_seq_length(l->seq[i]) == l->length[i]);
    }
    CHECK(s.n_seqs == n_seqs && s.tokens == tokens && s.n_batches == 0);
    CHECK(n_seqs > 0 || s.free_bytes == s.arena_bytes);
}

/* Values of all sizes; one in `rarely` is something no cache should take. */
static void fill(life *l, float *x, int n, unsigned rarely) {
    static const float odd[] = {0,    -0.0f, 1e-40f,   -1e-30f,   65504, -65504,
                                1e6f, 3e38f, INFINITY, -INFINITY, NAN,   65519};
    for (int i = 0; i < n; i++) {
        l->noise = l->noise * 6364136223846793005u + 1442695040888963407u;
        const unsigned u = (unsigned)(l->noise >> 40);
        x[i] = (float)(int)(u % 2001 - 1000) * 0.003f;
        if (rarely && u % (rarely * 64) == 0)
            x[i] = odd[u / 7 % (sizeof odd / sizeof *odd)];
    }
}

static void append(life *l, input *in) {
    quire_batch_item items[MAX_SEQS];
    int32_t n_accept[MAX_SEQS];
    int index[MAX_SEQS], n_items = 0, n_rows = 0;
    for (int i = 0; i < MAX_SEQS; i++) {
        const unsigned n = take(in);
        if (!l->seq[i] || n >= 200)
            continue;
        index[n_items] = i;
        items[n_items] = (quire_batch_item){l->seq[i], (int32_t)(n % 80)};
        n_accept[n_items++] = (int32_t)take_below(in, 80);
        n_rows += (int)(n % 80);
    }
    const unsigned how = take(in), rarely = take_below(in, 8);
    quire_batch *batch;
    quire_status status = quire_batch_begin(l->pool, items, (size_t)n_items, &batch);
    CHECK(status == QUIRE_OK || status == QUIRE_E_NO_PAGES || status == QUIRE_E_TOO_BIG ||
          status == QUIRE_E_INVALID);
    CHECK(status != QUIRE_OK || quire_batch_rows(batch) == n_rows);
    if (status != QUIRE_OK)
        return;
    for (int layer = 0; layer < l->n_layers && status == QUIRE_OK; layer++) {
        for (int i = 0; i < 3; i++)
            fill(l, l->rows[i], n_rows * DIM, rarely);
        const quire_rows k = {l->rows[0], QUIRE_F32, 0}, v = {l->rows[1], QUIRE_F32, 0};
        const quire_attend_args args = {.q = {l->rows[2], QUIRE_F32, 0}, .out = l->out};
        if (l->layer[layer].share < 0)
            status = quire_batch_append(batch, layer, k, v, 0, 1);
        CHECK(status == QUIRE_OK || (status == QUIRE_E_VALUE && rarely));
        if (status == QUIRE_OK)
            CHECK(quire_batch_attend(batch, layer, &args, 0, 1) == QUIRE_OK);
    }
    if (status != QUIRE_OK)
        CHECK(quire_batch_commit(batch, NULL) == QUIRE_E_STATE);
    if (status != QUIRE_OK || how % 4 == 0) {
        quire_batch_abort(batch);
        return;
    }
    status = quire_batch_commit(batch, how % 4 == 1 ? n_accept : NULL);
    CHECK(status == QUIRE_OK || (how % 4 == 1 && status == QUIRE_E_INVALID));
    if (status != QUIRE_OK)
        quire_batch_abort(batch);
    for (int i = 0; i < n_items && status == QUIRE_OK; i++)
        l->length[index[i]] += how % 4 == 1 ? n_accept[i] : items[i].n_tokens;
}

static void fork_or_create(life *l, int at, input *in) {
    const int from = (int)take_below(in, MAX_SEQS);
    if (l->seq[at])
        return;
    if (l->seq[from])
        CHECK(quire_seq_fork(l->seq[from], &l->seq[at]) == QUIRE_OK);
    else
        CHECK(quire_seq_create(l->pool, &l->seq[at]) == QUIRE_OK);
    l->length[at] = quire_seq_length(l->seq[at]);
}

static void trim(life *l, int at, input *in) {
    const int32_t n = (int32_t)take(in) * 2 - 20;
    if (!l->seq[at])
        return;
    const quire_status status = quire_seq_trim(l->seq[at], n);
    CHECK((status == QUIRE_E_INVALID) == (n < 0 || n > l->length[at]));
    CHECK(status == QUIRE_OK || status == QUIRE_E_INVALID || status == QUIRE_E_GONE ||
          status == QUIRE_E_NO_PAGES);
    if (status == QUIRE_OK)
        l->length[at] = n;
}

/* One sequence's page into another, some of its bytes replaced. */
static void move_page(life *l, int at, input *in) {
    const int from = (int)take_below(in, MAX_SEQS), page = l->length[at] / 64,
              flaws = (int)take_below(in, 8);
    if (!l->seq[at] || !l->seq[from])
        return;
    const size_t bytes = quire_seq_page_bytes(l->pool, page);
    uint8_t *copy = calloc(1, bytes);
    const quire_status saved = quire_seq_page_save(l->seq[from], page, copy, bytes);
    CHECK(saved == QUIRE_OK || saved == QUIRE_E_INVALID || saved == QUIRE_E_GONE ||
          saved == QUIRE_E_STATE);
    for (int i = 0; i < flaws; i++) {
        const size_t where = (take(in) << 8 | take(in)) % bytes;
        copy[where] = (uint8_t)take(in);
    }
    const quire_status loaded = quire_seq_page_load(l->seq[at], copy, bytes - (flaws == 7));
    CHECK(loaded == QUIRE_OK || loaded == QUIRE_E_FORMAT || loaded == QUIRE_E_STATE ||
          loaded == QUIRE_E_NO_PAGES || loaded == QUIRE_E_TOO_BIG);
    if (loaded == QUIRE_OK)
        l->length[at] += 64;
    free(copy);
}

/* A codec that serves the side and the size, so that most pools can be made. */
static quire_codec take_codec(input *in, quire_side side) {
    const unsigned n = (unsigned)quire_codec_count();
    quire_codec_info info;
    for (unsigned i = take(in);; i++) {
        quire_codec_at(i % n, &info);
        if ((side == QUIRE_SIDE_K ? info.for_k : info.for_v) &&
            (info.group == 0 || DIM % info.group == 0))
            return info.codec;
    }
}

static quire_policy take_policy(input *in) {
    const quire_pair pair = {take_codec(in, QUIRE_SIDE_K), take_codec(in, QUIRE_SIDE_V)};
    quire_policy policy = {.pair = pair, .windowed = pair, .sinks = (int32_t)take_below(in, 65)};
    if (take_below(in, 2))
        policy.windowed = (quire_pair){take_codec(in, QUIRE_SIDE_K), take_codec(in, QUIRE_SIDE_V)};
    return policy;
}

static void requantize(life *l, input *in) {
    const int32_t n = (int32_t)take_below(in, 8);
    if (take_below(in, 2)) {
        const quire_policy policy = take_policy(in);
        const quire_status status = quire_pool_requantize(l->pool, &policy);
        CHECK(status == QUIRE_OK || status == QUIRE_E_STATE);
        balance(l);
    }
    quire_requantize_stats stats;
    const quire_status status = quire_pool_requantize_step(l->pool, n, &stats);
    CHECK(status == QUIRE_OK || status == QUIRE_E_NO_PAGES || status == QUIRE_E_VALUE);
    CHECK(stats.pages_done >= 0 && stats.pages_left >= 0);
}

static void shift(life *l, int at, input *in) {
    const int32_t from = (int32_t)take(in) * 2 - 4, to = from + (int32_t)take(in) - 2;
    const quire_rope rope = {.first = 2 * (int32_t)take_below(in, 4),
                             .n_rot = 2 * (int32_t)take_below(in, DIM / 2 + 1),
                             .interleaved = take_below(in, 2),
                             .base = 100};
    if (!l->seq[at])
        return;
    const quire_status status = quire_seq_shift(l->seq[at], from, to, &rope, 1);
    CHECK(status == QUIRE_OK || status == QUIRE_E_INVALID || status == QUIRE_E_GONE ||
          status == QUIRE_E_NO_PAGES || status == QUIRE_E_UNSUPPORTED);
    if (status == QUIRE_OK)
        l->length[at] -= to - from;
}

static bool open_pool(life *l, input *in) {
    quire_pool_options o;
    quire_pool_options_default(&o);
    l->n_layers = 1 + (int)take_below(in, MAX_LAYERS);
    for (int i = 0; i < l->n_layers; i++) {
        quire_layer *layer = &l->layer[i];
        quire_layer_default(layer);
        layer->n_heads = layer->n_kv_heads = 1;
        layer->k_dim = layer->v_dim = DIM;
        layer->k_order = l->order[i];
        for (unsigned p = 0, first = take(in); p < DIM; p++)
            l->order[i][p] = (uint16_t)((first + p) % DIM);
        layer->window = take_below(in, 2) ? (int32_t)take(in) : 0;
        layer->keep = take_below(in, 2) ? (int32_t)take(in) : 0;
        layer->softcap = take_below(in, 4) ? 0 : 20;
        if (take_below(in, 3) == 0) {
            layer->k = take_codec(in, QUIRE_SIDE_K);
            layer->v = take_codec(in, QUIRE_SIDE_V);
        }
        if (i == 2 && take_below(in, 2))
            *layer = l->layer[0], layer->share = 0;
    }
    o.layers = l->layer;
    o.n_layers = l->n_layers;
    o.policy = take_policy(in);
    o.raw = (quire_type)take_below(in, 3);
    o.max_seqs = MAX_SEQS;
    o.max_tokens = 1 + (int32_t)take_below(in, 6) * 64 + (int32_t)take_below(in, 64);
    o.max_batch_tokens = MAX_ROWS;
    o.max_workers = 1;
    o.budget_bytes = ((size_t)200 << 10) + ((size_t)take(in) << 11);
    const quire_status status = quire_pool_create(&l->pool, &o);
    CHECK(status == QUIRE_OK || status == QUIRE_E_BUDGET);
    return status == QUIRE_OK;
}

static void fuzz_life(input in) {
    static life l;
    memset(&l, 0, sizeof l);
    if (!open_pool(&l, &in))
        return;
    for (int steps = 0; in.left > 0 && steps < 40; steps++) {
        const unsigned what = take(&in);
        const int at = (int)(what >> 4) % MAX_SEQS;
        switch (what % 9) {
        case 0:
        case 1:
            append(&l, &in);
            break;
        case 2:
        case 3:
            fork_or_create(&l, at, &in);
            break;
        case 4:
            trim(&l, at, &in);
            break;
        case 5:
            move_page(&l, at, &in);
            break;
        case 6:
            requantize(&l, &in);
            break;
        case 7:
            shift(&l, at, &in);
            break;
        default:
            CHECK(quire_seq_free(l.seq[at]) == QUIRE_OK);
            l.seq[at] = NULL;
            l.length[at] = 0;
        }
        balance(&l);
    }
    for (int i = 0; i < MAX_SEQS; i++) {
        CHECK(quire_seq_free(l.seq[i]) == QUIRE_OK);
        l.seq[i] = NULL;
    }
    balance(&l);
    quire_pool_free(l.pool);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    switch (take_below(&in, 8)) {
    case 0:
        fuzz_policy(in);
        break;
    case 1:
        fuzz_page(in);
        break;
    default:
        fuzz_life(in);
    }
    return 0;
}
