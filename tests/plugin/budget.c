/* budget.c: QUIRE_KV_BYTES is taken, exceeded, or not the matter because there is no price. */
#include "kv_budget.h"
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>

struct settings settings;

static void expect(enum kv_budget want, enum kv_budget got, const char *when) {
    if (got == want)
        return;
    fprintf(stderr, "%s: %d, not %d\n", when, (int)got, (int)want);
    exit(1);
}

static void ask(int32_t n_cells, size_t kv_bytes, enum kv_budget want, const char *when) {
    quire_layer layer;
    quire_cells_options options;
    quire_layer_default(&layer);
    quire_cells_options_default(&options);
    layer.n_heads = layer.n_kv_heads = 4;
    layer.k_dim = layer.v_dim = 64;
    options.layers = &layer;
    options.n_layers = 1;
    options.n_streams = 1;
    options.n_cells = n_cells;
    settings.kv_bytes = kv_bytes;
    for (int automatic = 0; automatic < 2; automatic++) {
        size_t bytes;
        settings.automatic = automatic;
        enum kv_budget got = kv_budget_take(&options, &bytes);
        expect(want, got, when);
        if (got == BUDGET_TAKEN)
            kv_budget_return(bytes);
    }
}

int main(void) {
    settings.kv = "k8v8";
    if (quire_policy_parse(settings.kv, &settings.policy) != QUIRE_OK)
        return 1;
    ask(1 << 20, 0, BUDGET_TAKEN, "without a limit");
    ask(1 << 20, 1 << 20, BUDGET_EXCEEDED, "with a limit");
    ask(63, 0, BUDGET_NO_PRICE, "less than a page, without a limit");
    ask(63, 1 << 20, BUDGET_NO_PRICE, "less than a page, with a limit");
    return 0;
}
