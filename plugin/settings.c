/* settings.c: QUIRE_KV, QUIRE_KV_BYTES, QUIRE_CALIBRATION, QUIRE_STATS, QUIRE_CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quire_cells.h>

#include "byte_count.h"
#include "layer_calibration.h"
#include "settings.h"

struct settings settings;

static const char *variable(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static bool parse_switch(const char *text, bool *on) {
    *on = strcmp(text, "1") == 0 || strcmp(text, "on") == 0;
    return *on || strcmp(text, "0") == 0 || strcmp(text, "off") == 0;
}

/* The library reads QUIRE_CPU itself, with the first pages: too late to say so in one line. */
static bool check_cpu(char *why, size_t why_bytes) {
    const char *level = variable("QUIRE_CPU", NULL);
    quire_layer layer;
    quire_cells_options options;
    size_t bytes;
    quire_layer_default(&layer);
    layer.n_heads = layer.n_kv_heads = 1;
    layer.k_dim = layer.v_dim = 64;
    quire_cells_options_default(&options);
    options.layers = &layer;
    options.n_layers = 1;
    options.n_cells = QUIRE_PAGE_TOKENS;
    if (!level || quire_cells_price(&options, &bytes) == QUIRE_OK)
        return true;
    snprintf(why, why_bytes, "QUIRE_CPU=%.40s: %s", level, quire_last_error());
    return false;
}

bool settings_read(char *why, size_t why_bytes) {
    const char *bytes = variable("QUIRE_KV_BYTES", "0"), *stats = variable("QUIRE_STATS", "0");
    if (!quire__byte_count_parse(bytes, &settings.kv_bytes)) {
        snprintf(why, why_bytes,
                 "QUIRE_KV_BYTES=%.40s is not a number of bytes, such as 512M (" QUIRE_BYTE_UNITS
                 ")",
                 bytes);
        return false;
    }
    if (!parse_switch(stats, &settings.stats)) {
        snprintf(why, why_bytes, "QUIRE_STATS=%.40s is neither 1 nor 0", stats);
        return false;
    }
    settings.kv = variable("QUIRE_KV", settings.kv_bytes == 0 ? "k8v8" : "auto");
    settings.off = strcmp(settings.kv, "off") == 0;
    settings.automatic = strcmp(settings.kv, "auto") == 0;
    if (settings.automatic && settings.kv_bytes == 0) {
        snprintf(why, why_bytes,
                 "QUIRE_KV=auto needs QUIRE_KV_BYTES, the bytes that pages may take");
        return false;
    }
    if (!settings.off && !settings.automatic &&
        quire_policy_parse(settings.kv, &settings.policy) != QUIRE_OK) {
        snprintf(why, why_bytes, "QUIRE_KV=%s: %s", settings.kv, quire_last_error());
        return false;
    }
    if (!settings.off && !check_cpu(why, why_bytes))
        return false;
    const char *calibration = variable("QUIRE_CALIBRATION", NULL);
    return !calibration || settings.off || calibration_read(calibration, why, why_bytes);
}
