/* budget.c: QUIRE_KV_BYTES is taken, exceeded, or not the matter because there is no price; what
 * pages take of f16. */
#include "kv_budget.h"
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct settings settings;

static void expect(enum kv_budget want, enum kv_budget got, const char *when) {
    if (got == want)
        return;
    fprintf(stderr, "%s: %d, not %d\n", when, (int)got, (int)want);
    exit(1);
}

static quire_layer layer;

static quire_cells_options cache_of(int32_t n_cells) {
    quire_cells_options options;
    quire_layer_default(&layer);
    quire_cells_options_default(&options);
    layer.n_heads = layer.n_kv_heads = 4;
    layer.k_dim = layer.v_dim = 64;
    options.layers = &layer;
    options.n_layers = 1;
    options.n_streams = 1;
    options.n_cells = n_cells;
    return options;
}

/* A budget that holds the first of two caches in f16, but then not the second in any preset, holds
 * both in a smaller one. */
static void ask_for_two(void) {
    quire_cells_options options[2] = {cache_of(1 << 16), cache_of(1 << 16)};
    size_t f16, bytes[2];
    if (quire_cells_price(&options[0], &f16) != QUIRE_OK)
        exit(1);
    settings.automatic = true;
    settings.kv_bytes = f16 + f16 / 10;
    expect(BUDGET_TAKEN, kv_budget_take(options, 2, bytes), "two caches");
    if (bytes[0] != bytes[1] || bytes[0] + bytes[1] > settings.kv_bytes || bytes[0] < f16 / 3) {
        fprintf(stderr, "two caches of %zu bytes got %zu and %zu\n", f16, bytes[0], bytes[1]);
        exit(1);
    }
    kv_budget_return(bytes[0] + bytes[1]);
}

static void ask(int32_t n_cells, size_t kv_bytes, enum kv_budget want, const char *when) {
    quire_cells_options options = cache_of(n_cells);
    settings.kv_bytes = kv_bytes;
    for (int automatic = 0; automatic < 2; automatic++) {
        size_t bytes;
        settings.automatic = automatic;
        enum kv_budget got = kv_budget_take(&options, 1, &bytes);
        expect(want, got, when);
        if (got == BUDGET_TAKEN)
            kv_budget_return(bytes);
    }
}

/* In bits per value: the codecs' own, and a little for what a step needs. */
static void expect_share(const char *kv, double bits) {
    settings.off = strcmp(kv, "off") == 0;
    settings.automatic = strcmp(kv, "auto") == 0;
    if (!settings.off && !settings.automatic &&
        quire_policy_parse(kv, &settings.policy) != QUIRE_OK)
        exit(1);
    const double share = kv_budget_share();
    if (share >= bits / 16 && share <= bits / 16 * 1.05 && share <= 1)
        return;
    fprintf(stderr, "%s takes %g of f16, not %g\n", kv, share, bits / 16);
    exit(1);
}

int main(void) {
    settings.kv = "k8v8";
    if (quire_policy_parse(settings.kv, &settings.policy) != QUIRE_OK)
        return 1;
    ask(1 << 20, 0, BUDGET_TAKEN, "without a limit");
    ask(1 << 20, 1 << 20, BUDGET_EXCEEDED, "with a limit");
    ask(63, 0, BUDGET_NO_PRICE, "less than a page, without a limit");
    ask(63, 1 << 20, BUDGET_NO_PRICE, "less than a page, with a limit");
    ask_for_two();
    expect_share("k8v8", 8.375);
    expect_share("k8v4", 6.375);
    expect_share("k4v4", 4.375);
    expect_share("none", 16);
    expect_share("off", 16);
    expect_share("auto", 3.375);
    return 0;
}
