/* Which codecs serve which layer. */
#include <string.h>

#include "kit.h"

static quire_pair pair_of(const fixture *f, int layer) {
    quire_layer_stats stats;
    assert_ok(quire_layer_get_stats(f->pool, layer, &stats));
    return stats.pair;
}

static void expect_pair(const fixture *f, int layer, quire_codec k, quire_codec v) {
    const quire_pair pair = pair_of(f, layer);
    if (pair.k != k || pair.v != v)
        fail_msg("layer %d: %s:%s instead of %s:%s", layer, quire_codec_name(pair.k),
                 quire_codec_name(pair.v), quire_codec_name(k), quire_codec_name(v));
}

static void precedence(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f, 8, 4, 2, 64, 64, "k4v4");
    assert_ok(
        quire_policy_parse("k4v4", &f.options.policy)); /* windowed layers stay raw by default */
    f.options.policy.edge = (quire_pair){QUIRE_CODEC_KC8, QUIRE_CODEC_VT8};
    f.options.policy.edge_first = 2;
    f.options.policy.edge_last = 1;
    f.layer[1].window = 100; /* a windowed layer at the edge is a windowed layer */
    f.layer[3].window = 100;
    f.layer[4].k = QUIRE_CODEC_TQ4; /* a layer's own word comes first, side by side */
    f.layer[3].v = QUIRE_CODEC_A4;
    f.layer[6].share = 4; /* a shared layer has its source's codecs, whatever it says */
    f.layer[6].k = QUIRE_CODEC_KC2;
    fixture_open(&f);
    expect_pair(&f, 0, QUIRE_CODEC_KC8, QUIRE_CODEC_VT8);
    expect_pair(&f, 1, QUIRE_CODEC_RAW, QUIRE_CODEC_RAW);
    expect_pair(&f, 2, QUIRE_CODEC_KM4, QUIRE_CODEC_VT4);
    expect_pair(&f, 3, QUIRE_CODEC_RAW, QUIRE_CODEC_A4);
    expect_pair(&f, 4, QUIRE_CODEC_TQ4, QUIRE_CODEC_VT4);
    expect_pair(&f, 5, QUIRE_CODEC_KM4, QUIRE_CODEC_VT4);
    expect_pair(&f, 6, QUIRE_CODEC_TQ4, QUIRE_CODEC_VT4);
    expect_pair(&f, 7, QUIRE_CODEC_KC8, QUIRE_CODEC_VT8);
    fixture_close(&f);
}

/* Layers of many kinds in one pool attend as each would alone, bit for bit. */
static void mixed_layers_are_independent(void **state) {
    (void)state;
    enum { N = 230, H = 4, D = 64, LAYERS = 6 };
    static float together[N * H * D], alone[N * H * D];
    const source s = source_default(31);
    fixture f;
    fixture_init(&f, LAYERS, H, 2, D, D, "k8v4");
    f.layer[1].k = QUIRE_CODEC_RAW, f.layer[1].v = QUIRE_CODEC_RAW;
    f.layer[2].window = 90, f.layer[2].keep = 5;
    f.layer[3].k = QUIRE_CODEC_TQ3, f.layer[3].v = QUIRE_CODEC_A4;
    f.layer[4].share = 3, f.layer[4].softcap = 20;
    f.layer[5].n_kv_heads = 1, f.layer[5].k_dim = 96, f.layer[5].window = 40;
    for (int layer = 0; layer < LAYERS; layer++) {
        quire_seq *seq;
        fixture_open(&f);
        assert_ok(quire_seq_create(f.pool, &seq));
        feed(&f, seq, &s, N, 150, 2, layer, together);
        fixture_close(&f);
        fixture one = f; /* the same layer as the only one that differs: others become its copies */
        for (int i = 0; i < LAYERS; i++)
            if (i != layer && i != f.layer[layer].share) {
                one.layer[i] =
                    f.layer[layer].share < 0 ? f.layer[layer] : f.layer[f.layer[layer].share];
                one.layer[i].share = -1;
            }
        fixture_open(&one);
        assert_ok(quire_seq_create(one.pool, &seq));
        feed(&one, seq, &s, N, 64, 1, layer, alone);
        fixture_close(&one);
        assert_memory_equal(together, alone, sizeof alone);
    }
}

static void unsupported_layer_is_named(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f, 3, 4, 2, 64, 64, "mlx4");
    f.layer[2].v_dim = 96;
    assert_status(fixture_try(&f), QUIRE_E_UNSUPPORTED);
    assert_non_null(strstr(quire_last_error(), "layer 2"));
    assert_non_null(strstr(quire_last_error(), "V head size"));
    assert_null(f.pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(precedence),
                                       cmocka_unit_test(mixed_layers_are_independent),
                                       cmocka_unit_test(unsupported_layer_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
