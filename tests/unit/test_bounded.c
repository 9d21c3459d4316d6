/* A cache of bounded size whose first tokens stay (`max_size` and `keep` elsewhere), quantized,
 * against a model of it token by token: a list to which each token is added, and from which the
 * oldest that is not kept is struck when it is full. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ledger.h"

enum { MAX_TOKENS = 800 };

typedef struct ring {
    int n, max_size, keep;
    int token[MAX_TOKENS];
} ring;

static void ring_add(ring *r, int token) {
    if (r->n == r->max_size) {
        memmove(r->token + r->keep, r->token + r->keep + 1,
                (size_t)(r->n - r->keep - 1) * sizeof *r->token);
        r->n--;
    }
    r->token[r->n++] = token;
}

/* fp64 attention of one query over the tokens of the ring. */
static void attend_ring(const ring *r, const float *q, const double *k, const double *v, int dk,
                        int dv, double *out) {
    double logit[MAX_TOKENS], top = -INFINITY, sum = 0;
    for (int i = 0; i < r->n; i++) {
        logit[i] = 0;
        for (int d = 0; d < dk; d++)
            logit[i] += (double)q[d] * k[r->token[i] * dk + d];
        logit[i] /= sqrt(dk);
        top = logit[i] > top ? logit[i] : top;
    }
    for (int d = 0; d < dv; d++)
        out[d] = 0;
    for (int i = 0; i < r->n; i++) {
        const double e = exp(logit[i] - top);
        sum += e;
        for (int d = 0; d < dv; d++)
            out[d] += e * v[r->token[i] * dv + d];
    }
    for (int d = 0; d < dv; d++)
        out[d] /= sum;
}

/* All tokens in chunks of `chunk`, every output row against the ring; and what is resident stays
 * bounded. */
static void check(const char *kv, int max_size, int keep, int sinks, int n, int chunk) {
    fixture f;
    fixture_init(&f, 1, 2, 1, 64, 64, kv);
    f.layer[0].window = max_size - keep;
    f.layer[0].keep = keep;
    f.options.policy.sinks = sinks;
    f.options.max_tokens = MAX_TOKENS;
    f.options.max_workers = 1;
    fixture_open(&f);
    source s = source_default(31);
    s.k_channel_bias = 0;
    quire_seq *seq = new_seq(&f);
    float *out = malloc((size_t)(n * 2 * 64) * sizeof *out), q[2 * 64];
    double *wanted = malloc((size_t)(n * 2 * 64) * sizeof *wanted),
           *k = malloc((size_t)(MAX_TOKENS * 64) * sizeof *k),
           *v = malloc((size_t)(MAX_TOKENS * 64) * sizeof *v);
    feed(&f, seq, &s, n, chunk, 1, 0, out);
    ring r = {.max_size = max_size, .keep = keep};
    for (int t = 0; t < n; t++) {
        ring_add(&r, t);
        if (t % 64 == 0) /* what is packed changes with the page of the query */
            seen_values(&f, 0, &s, 0, t + 64 < MAX_TOKENS ? t + 64 : MAX_TOKENS, t / 64, k, v);
        source_q(&s, &f.layer[0], 0, t, q);
        for (int h = 0; h < 2; h++)
            attend_ring(&r, q + h * 64, k, v, 64, 64, wanted + (t * 2 + h) * 64);
    }
    const double error = relative_error(out, wanted, (size_t)(n * 2 * 64)),
                 bound = attend_bound(f.options.policy.pair, 64, 1, side_uses_fp16(&f, false),
                                      side_uses_fp16(&f, true));
    if (!(error < bound))
        fail_msg("%s, max size %d, keep %d, sinks %d, chunks of %d: off by %.2e, bound %.2e", kv,
                 max_size, keep, sinks, chunk, error, bound);
    quire_layer_stats stats;
    assert_ok(quire_layer_get_stats(f.pool, 0, &stats));
    const int most = (max_size - keep + 62) / 64 + 1 +
                     (keep + 63) / 64; /* pages that a window can touch, and kept ones */
    assert_true(stats.sealed_bytes <= (size_t)most * stats.record_bytes);
    drop(seq);
    assert_all_free(&f);
    fixture_close(&f);
    free(out), free(wanted), free(k), free(v);
}

static const int SIZES[] = {2, 5, 63, 64, 65, 100, 128, 200};

static void every_preset(void **state) {
    (void)state;
    int sweep = 0;
    for (size_t i = 0; i < quire_preset_count(); i++) {
        quire_preset_info preset;
        assert_ok(quire_preset_at(i, &preset));
        for (size_t j = 0; j < sizeof SIZES / sizeof *SIZES; j++)
            if (sweep_takes(&sweep, 5))
                check(preset.name, SIZES[j], SIZES[j] > 4 ? 4 : 1, preset.sinks, 500, 50);
    }
}

/* Kept tokens that are sinks, more than sinks, in more than one page; no sinks; windows within a
 * page. */
static void every_keep(void **state) {
    (void)state;
    static const char *const kvs[] = {"none", "k8v8", "kc4:vt2", "tq3"};
    static const int keeps[] = {0, 1, 4, 5, 64, 70, 130};
    int sweep = 0;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 7; j++)
            for (int sinks = 0; sinks <= 4; sinks += 4) {
                if (!sweep_takes(&sweep, 5))
                    continue;
                check(kvs[i], keeps[j] + 1, keeps[j], sinks, 300, 37);
                check(kvs[i], keeps[j] + 40, keeps[j], sinks, 500, 64);
                check(kvs[i], keeps[j] + 100, keeps[j], sinks, 700, 1);
            }
}

static void every_pair(void **state) {
    (void)state;
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        char kv[64];
        assert_ok(quire_codec_at(i, &info));
        if (info.group > 64)
            continue; /* larger than the heads here */
        snprintf(kv, sizeof kv, "%s:%s", info.for_k ? info.name : "kc8",
                 info.for_v ? info.name : "vt8");
        check(kv, 90, 6, 4, 400, 29);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_preset), cmocka_unit_test(every_keep),
                                       cmocka_unit_test(every_pair)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
