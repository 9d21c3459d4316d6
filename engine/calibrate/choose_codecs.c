/* choose_codecs.c: a report and a budget in, the codecs of every layer out.
 *
 * Bytes are counted here, and not taken from quire_pool_price, for two reasons. The budget is for
 * what one sequence holds (quire_choice_options.bytes); a price also has the pool's own structures,
 * the leaves of rows in flight, of a trim and of a shift, and a reserve for gaps. And the search
 * needs the cost of one layer on one rung, while a price exists only for all layers together:
 * sinks, open pages and the raw rows of the page sealed last are shared by a layer class. The two
 * agree where they overlap: page sizes come from the library (quire_page_bytes), and the session
 * prices its pool with the codecs chosen here. */
#include "calibrate/budget_search.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>

enum { T = QUIRE_PAGE_TOKENS };

/* What a layer loses depends on the text about as much as on the layer: measured shares are
 * pulled half way to even ones, or layers that one text happens not to need would pay for it on
 * the next. */
static const double EVEN = 0.5;

void quire_choice_options_default(quire_choice_options *options) {
    if (options)
        *options = (quire_choice_options){.struct_size = sizeof *options,
                                          .kld = INFINITY,
                                          .sinks = QUIRE__SINKS,
                                          .raw = QUIRE_F16};
}

static bool is_raw(quire_pair pair) {
    return pair.k == QUIRE_CODEC_RAW && pair.v == QUIRE_CODEC_RAW;
}

typedef struct span { /* what a layer's queries see; layers with the same span are one class */
    int64_t window, keep;
} span;

static span span_of(const quire_layer *layer, const quire_choice_options *o) {
    const bool bounded = layer->window == 0 && o->max_kv > 0;
    return bounded ? (span){o->max_kv - o->keep, o->keep} : (span){layer->window, layer->keep};
}

typedef struct kinds { /* of layers in a class */
    bool packed, raw;
} kinds;

/* The tokens of a text that a layer holds: with a window, also the page at its edge, and the pages
 * of kept tokens unless these are raw sinks in all layers. */
static int64_t held_tokens(const quire_layer *layer, kinds class, const quire_choice_options *o) {
    const span s = span_of(layer, o);
    const int64_t pinned = s.keep > (class.raw ? 0 : o->sinks) ? (s.keep + T - 1) / T * T : 0;
    return s.window > 0 && s.window + T + pinned < o->context ? s.window + T + pinned : o->context;
}

static quire_status page_bytes(const quire_layer *layer, quire_pair pair, quire_type raw,
                               double *bytes) {
    const quire_page_shape shape = {
        .pair = pair, .k_dim = layer->k_dim, .v_dim = layer->v_dim, .raw = raw};
    size_t found;
    QUIRE_TRY(quire_page_bytes(&shape, &found));
    *bytes = (double)found * layer->n_kv_heads;
    return QUIRE_OK;
}

/* The most that a sequence holds on its way to `context` tokens: packed pages, the open page, raw
 * sinks of packed layers and, for exact trims, the raw rows of the page sealed last. If one layer
 * of a class packs, the raw layers of that class have such rows too. */
static quire_status layer_bytes(const quire_layer *layer, quire_pair pair, kinds class,
                                const quire_choice_options *o, double *bytes) {
    double packed, raw;
    QUIRE_TRY(page_bytes(layer, pair, o->raw, &packed));
    QUIRE_TRY(page_bytes(layer, (quire_pair){QUIRE_CODEC_RAW, QUIRE_CODEC_RAW}, o->raw, &raw));
    *bytes = (double)((held_tokens(layer, class, o) - 1) / T) * packed + raw;
    if (!is_raw(pair))
        *bytes += raw * o->sinks / T;
    if (class.packed && o->exact_trim)
        *bytes += raw;
    return QUIRE_OK;
}

typedef struct choosing {
    const quire_model *model;
    const quire_sensitivity *report;
    const quire_choice_options *options;
    double *bytes, *loss;      /* (n_layers, n_rungs) */
    int32_t *n_allowed, *rung; /* (n_layers) */
} choosing;

static double expected_share(const choosing *c, int32_t layer) {
    int32_t n = 0;
    for (int32_t i = 0; i < c->report->n_layers; i++)
        n += c->model->cache[i].share == -1;
    return EVEN / n + (1 - EVEN) * c->report->layers[layer].share;
}

/* The kinds in the class of a layer: all that its layers may get, or those of their rungs. */
static kinds kinds_of(const choosing *c, int32_t layer, bool may) {
    const span own = span_of(&c->model->cache[layer], c->options);
    kinds found = {0};
    for (int32_t i = 0; i < c->report->n_layers; i++) {
        const span other = span_of(&c->model->cache[i], c->options);
        if (c->model->cache[i].share != -1 || other.window != own.window || other.keep != own.keep)
            continue;
        const bool raw = is_raw(c->report->rungs[c->rung[i]].pair);
        found.raw = found.raw || raw || may;
        found.packed = found.packed || !raw || (may && c->n_allowed[i] > 1);
    }
    return found;
}

/* Before the choice is made, each layer counts as if its class had every kind that it may get. */
static quire_status fill(const choosing *c) {
    const int32_t n_rungs = c->report->n_rungs;
    for (int32_t i = 0; i < c->report->n_layers; i++) {
        const quire_layer *layer = &c->model->cache[i];
        const bool open = layer->share == -1 && (layer->window == 0 || c->options->windowed);
        c->n_allowed[i] = open ? n_rungs : 1;
    }
    for (int32_t i = 0; i < c->report->n_layers; i++) {
        const quire_layer *layer = &c->model->cache[i];
        const kinds class = kinds_of(c, i, true);
        for (int32_t r = 0; r < n_rungs && layer->share == -1; r++) {
            const int64_t at = (int64_t)i * n_rungs + r;
            const quire_pair pair = c->report->rungs[r].pair;
            c->loss[at] = c->report->rungs[r].kld * expected_share(c, i);
            QUIRE_TRY(layer_bytes(layer, pair, class, c->options, &c->bytes[at]));
        }
    }
    return QUIRE_OK;
}

/* The bytes of all layers on their rungs. */
static quire_status bytes_of(const choosing *c, double *sum) {
    *sum = 0;
    for (int32_t i = 0; i < c->report->n_layers; i++) {
        double bytes = 0;
        if (c->model->cache[i].share == -1)
            QUIRE_TRY(layer_bytes(&c->model->cache[i], c->report->rungs[c->rung[i]].pair,
                                  kinds_of(c, i, false), c->options, &bytes));
        *sum += bytes;
    }
    return QUIRE_OK;
}

static quire_status search(const choosing *c, quire_pair *pairs, quire_choice *choice) {
    const quire__ladders ladders = {.n_layers = c->report->n_layers,
                                    .n_rungs = c->report->n_rungs,
                                    .bytes = c->bytes,
                                    .loss = c->loss,
                                    .n_allowed = c->n_allowed};
    double raw, bytes;
    QUIRE_TRY(fill(c));
    QUIRE_TRY(bytes_of(c, &raw)); /* every layer is on its first rung, raw */
    quire__place place = {.bytes = raw};
    if (c->options->bytes == 0 || raw > (double)c->options->bytes)
        place = quire__budget_search(&ladders, (double)c->options->bytes, c->options->kld, c->rung);
    QUIRE_TRY(bytes_of(c, &bytes));
    if (c->options->bytes > 0 && place.bytes > (double)c->options->bytes)
        return quire__fail(
            QUIRE_E_BUDGET,
            "a cache of %d tokens does not fit into %zu bytes: it needs at least %.0f",
            (int)c->options->context, c->options->bytes, place.bytes);
    for (int32_t i = 0; i < c->report->n_layers; i++)
        pairs[i] = c->model->cache[i].share == -1
                       ? c->report->rungs[c->rung[i]].pair
                       : (quire_pair){QUIRE_CODEC_DEFAULT, QUIRE_CODEC_DEFAULT};
    *choice = (quire_choice){.bytes = (size_t)bytes, .raw_bytes = (size_t)raw, .kld = place.loss};
    return QUIRE_OK;
}

static quire_status check(const quire_model *model, const quire_sensitivity *report,
                          const quire_choice_options *o) {
    if (o->struct_size != sizeof *o)
        return quire__fail(QUIRE_E_INVALID, "options were not set by quire_choice_options_default");
    if (report->n_layers != model->n_layers || report->n_rungs < 1 ||
        report->n_rungs > QUIRE_RUNGS_MAX)
        return quire__fail(QUIRE_E_INVALID, "the report is of another model");
    if (o->context < 0 || o->max_kv < 0 || o->keep < 0 || o->sinks < 0 || !(o->kld >= 0))
        return quire__fail(QUIRE_E_INVALID,
                           "context %d, max_kv %d, keep %d, sinks %d or kld %g is below 0",
                           (int)o->context, (int)o->max_kv, (int)o->keep, (int)o->sinks, o->kld);
    if (o->max_kv > 0 && o->keep >= o->max_kv)
        return quire__fail(QUIRE_E_INVALID,
                           "max_kv %d leaves no window behind the %d tokens to keep",
                           (int)o->max_kv, (int)o->keep);
    return QUIRE_OK;
}

quire_status quire_choose_codecs(const quire_model *model, const quire_sensitivity *report,
                                 const quire_choice_options *options, quire_pair *pairs,
                                 quire_choice *choice) {
    if (!model || !report || !options || !pairs || !choice)
        return quire__fail(QUIRE_E_INVALID, "model, report, options, pairs or choice is NULL");
    QUIRE_TRY(check(model, report, options));
    quire_choice_options o = *options;
    o.context = o.context ? o.context : model->context;
    const size_t n = (size_t)model->n_layers, cells = n * (size_t)report->n_rungs;
    double *numbers = calloc(2 * cells, sizeof *numbers);
    int32_t *places = calloc(2 * n, sizeof *places);
    const choosing c = {.model = model,
                        .report = report,
                        .options = &o,
                        .bytes = numbers,
                        .loss = numbers + (numbers ? cells : 0),
                        .n_allowed = places,
                        .rung = places + (places ? n : 0)};
    const quire_status status =
        numbers && places ? search(&c, pairs, choice) : quire__fail(QUIRE_E_NOMEM, "out of memory");
    free(numbers);
    free(places);
    return status;
}
