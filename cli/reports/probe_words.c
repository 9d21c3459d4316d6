/* probe_words.c: describes conspicuous properties of a model's K and V in sentences. */
#include "output/report.h"
#include "reports/probe_report.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_BYTES = 512, SENTENCE_BYTES = 1024 };

/* A layer is mentioned from these values on. */
static const double BIAS = 20, WIDEST = 8, SINK = 0.5,
                    SHARE = 3; /* SHARE: relative to the mean layer */

typedef bool (*stands_out)(const cli_probe *probe, int32_t layer);

static const quire_layer_sensitivity *figures(const cli_probe *probe, int32_t layer) {
    return &probe->report->layers[layer];
}

static bool stores(const cli_probe *probe, int32_t layer) {
    return probe->info.layers[layer].share == -1;
}
static bool has_bias(const cli_probe *probe, int32_t layer) {
    return figures(probe, layer)->k_bias >= BIAS;
}
static bool is_wide(const cli_probe *probe, int32_t layer) {
    return figures(probe, layer)->k_outlier >= WIDEST;
}
static bool has_sink(const cli_probe *probe, int32_t layer) {
    return figures(probe, layer)->sink >= SINK;
}
static bool slides(const cli_probe *probe, int32_t layer) {
    return probe->info.layers[layer].window > 0;
}
static bool shares(const cli_probe *probe, int32_t layer) { return !stores(probe, layer); }

static bool is_sensitive(const cli_probe *probe, int32_t layer) {
    int32_t n = 0;
    for (int32_t i = 0; i < probe->info.n_layers; i++)
        n += stores(probe, i);
    return n > 1 && figures(probe, layer)->share * n >= fmin(SHARE, 0.75 * n);
}

/* "layer 3", "layers 0-2, 5"; "" if there is none. */
static void list_layers(const cli_probe *probe, stands_out question, char text[LIST_BYTES]) {
    size_t used = 0;
    int32_t n = 0;
    text[0] = '\0';
    for (int32_t i = 0, last; i < probe->info.n_layers && used < LIST_BYTES; i = last + 1) {
        last = i;
        if (!question(probe, i))
            continue;
        while (last + 1 < probe->info.n_layers && question(probe, last + 1))
            last++;
        char range[32];
        snprintf(range, sizeof range, last > i ? "%d-%d" : "%d", (int)i, (int)last);
        used += (size_t)snprintf(text + used, LIST_BYTES - used, "%s%s", n > 0 ? ", " : "", range);
        n += last - i + 1;
    }
    if (n == 0)
        return;
    char rest[LIST_BYTES];
    memcpy(rest, text, sizeof rest);
    snprintf(text, LIST_BYTES, "%s %.*s", n > 1 ? "layers" : "layer", LIST_BYTES - 16, rest);
}

static double largest(const cli_probe *probe, size_t offset) {
    double most = 0;
    for (int32_t i = 0; i < probe->info.n_layers; i++) {
        double value;
        memcpy(&value, (const char *)figures(probe, i) + offset, sizeof value);
        most = fmax(most, value);
    }
    return most;
}

static double sum_shares(const cli_probe *probe) {
    double sum = 0;
    for (int32_t i = 0; i < probe->info.n_layers; i++)
        sum += is_sensitive(probe, i) ? figures(probe, i)->share : 0;
    return sum;
}

/* Appends "layers 0-2: " and the sentence, if there are such layers. */
__attribute__((format(printf, 4, 5))) static void
say(json_t **words, const cli_probe *probe, stands_out question, const char *format, ...) {
    char layers[LIST_BYTES], sentence[SENTENCE_BYTES];
    list_layers(probe, question, layers);
    if (!layers[0])
        return;
    const size_t used = (size_t)snprintf(sentence, sizeof sentence, "%s: ", layers);
    va_list values;
    va_start(values, format);
    vsnprintf(sentence + used, sizeof sentence - used, format, values);
    va_end(values);
    cli_json_append(words, json_string(sentence));
}

json_t *cli_probe_words(const cli_probe *probe) {
    json_t *words = json_array();
    say(&words, probe, has_bias,
        "K has a large bias: the mean of a channel is up to %.0f standard deviations from 0. kc "
        "and km codecs remove it with a zero point per channel, tq with the mean of a page; tqp, "
        "a8/a4 and q8_0/q4_0 spend their range on it.",
        largest(probe, offsetof(quire_layer_sensitivity, k_bias)));
    say(&words, probe, is_wide,
        "K has channels up to %.0f times as wide as the median. kc and km codecs have a scale per "
        "channel; codecs with a scale per token lose precision here.",
        largest(probe, offsetof(quire_layer_sensitivity, k_outlier)));
    say(&words, probe, has_sink,
        "at least half of the attention goes to the first four tokens. Leave --sinks at 4.");
    say(&words, probe, is_sensitive,
        "%.0f %% of the loss comes from here. Spend more bits here first.",
        100 * sum_shares(probe));
    say(&words, probe, slides,
        "a sliding window keeps the cache small at any context: it stays raw, unless the budget is "
        "in bytes or --kv-windowed is same.");
    say(&words, probe, shares, "no cache of their own; they share that of an earlier layer.");
    return words;
}
