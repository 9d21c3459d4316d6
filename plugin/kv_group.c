/* kv_group.c: making the pages of a cache. */
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache_name.h"
#include "layer_calibration.h"
#include "kv_budget.h"
#include "kv_group.h"
#include "settings.h"

static _Atomic uint64_t epoch = 1;

uint64_t kv_group_epoch(void) { return atomic_load(&epoch); }

void kv_group_changed(void) { atomic_fetch_add(&epoch, 1); }

static void make_plain(const struct kv_shape *shape, const char *why) {
    kv_side_make_plain(shape->k, why);
    kv_side_make_plain(shape->v, why);
}

static quire_layer layer_of(const struct kv_shape *shape) {
    quire_layer layer;
    quire_layer_default(&layer);
    layer.n_heads = shape->n_heads;
    layer.n_kv_heads = shape->n_kv_heads;
    layer.k_dim = shape->k_dim;
    layer.v_dim = shape->v_dim;
    layer.window = shape->windowed ? 1 : 0; /* the mask decides what is seen, this only the codec */
    struct cache_name name;
    if (cache_name_parse(shape->k->name, &name))
        calibration_apply(&layer, name.layer);
    return layer;
}

static void options_of(quire_cells_options *options, const struct kv_side *side, int n_threads) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    quire_cells_options_default(options);
    kv_side_type(side, &options->raw);
    options->n_streams = (int32_t)side->n_streams;
    options->n_cells = (int32_t)side->n_cells;
    options->max_workers = n_threads > processors ? n_threads : (int32_t)processors;
}

static bool same_cache(const struct kv_side *a, const struct kv_side *b) {
    return a->type == b->type && a->n_cells == b->n_cells && a->n_streams == b->n_streams;
}

enum made { MADE, REFUSED, OVER_BUDGET };

/* One group of the layers chosen. REFUSED: `why` says why. */
static enum made create(struct kv_group **groups, const struct kv_shape **chosen, int n,
                        quire_cells_options *options, const char **why) {
    struct kv_group *group = calloc(1, sizeof *group);
    quire_layer *layers = calloc((size_t)n, sizeof *layers);
    bool good = group && layers;
    *why = good ? NULL : "out of memory";
    for (int i = 0; good && i < n; i++)
        layers[i] = layer_of(chosen[i]);
    options->layers = layers;
    options->n_layers = n;
    enum kv_budget budget = good ? kv_budget_take(options, &group->bytes) : BUDGET_NO_PRICE;
    good = budget == BUDGET_TAKEN && quire_cells_create(&group->cells, options) == QUIRE_OK;
    if (budget == BUDGET_TAKEN && !good)
        kv_budget_return(group->bytes);
    free(layers);
    if (!good) {
        *why = *why ? *why : quire_last_error();
        free(group);
        return budget == BUDGET_EXCEEDED ? OVER_BUDGET : REFUSED;
    }
    group->max_rows = options->max_rows;
    group->max_workers = options->max_workers;
    group->next = *groups;
    *groups = group;
    for (int i = 0; i < n; i++) {
        struct kv_side *pair[2] = {chosen[i]->k, chosen[i]->v};
        for (int j = 0; j < 2; j++) {
            pair[j]->group = group;
            pair[j]->partner = pair[1 - j];
            pair[j]->index = i;
            pair[j]->which = j == 0 ? QUIRE_SIDE_K : QUIRE_SIDE_V;
            pair[j]->n_heads = chosen[i]->n_heads;
            pair[j]->n_kv_heads = chosen[i]->n_kv_heads;
            pair[j]->k_dim = chosen[i]->k_dim;
            pair[j]->v_dim = chosen[i]->v_dim;
        }
        if (!kv_side_pack(pair[0]) || !kv_side_pack(pair[1]))
            make_plain(chosen[i], quire_last_error());
    }
    return MADE;
}

/* Whether the library would take this layer alone. */
static bool is_servable(const struct kv_shape *shape, quire_cells_options *options) {
    quire_layer layer = layer_of(shape);
    if (!settings.automatic)
        options->policy = settings.policy;
    size_t bytes;
    options->layers = &layer;
    options->n_layers = 1;
    return quire_cells_price(options, &bytes) == QUIRE_OK;
}

bool kv_group_pack(struct kv_group **groups, const struct kv_shape *shapes, int n_shapes,
                   int n_threads) {
    const struct kv_shape **chosen = calloc((size_t)n_shapes, sizeof *chosen);
    bool affordable = true;
    for (int i = 0; i < n_shapes; i++) {
        if (shapes[i].k->state != SIDE_NEW || !chosen)
            continue; /* taken by an earlier round */
        quire_cells_options options;
        options_of(&options, shapes[i].k, n_threads);
        options.max_rows = QUIRE_PAGE_TOKENS;
        int n = 0;
        for (int j = i; j < n_shapes; j++) {
            if (shapes[j].k->state != SIDE_NEW || !same_cache(shapes[i].k, shapes[j].k))
                continue;
            if (!is_servable(&shapes[j], &options)) {
                make_plain(&shapes[j], quire_last_error());
                continue;
            }
            const struct kv_side *sides[2] = {shapes[j].k, shapes[j].v};
            for (int side = 0; side < 2; side++)
                if (sides[side]->max_rows > options.max_rows)
                    options.max_rows = sides[side]->max_rows;
            chosen[n++] = &shapes[j];
        }
        const char *why;
        enum made made = n > 0 ? create(groups, chosen, n, &options, &why) : MADE;
        for (int j = 0; made == REFUSED && j < n; j++)
            make_plain(chosen[j], why);
        if (made == OVER_BUDGET) {
            affordable = false;
            break;
        }
    }
    for (int i = 0; affordable && i < n_shapes; i++)
        if (shapes[i].k->state == SIDE_NEW)
            make_plain(&shapes[i], "out of memory");
    free(chosen);
    kv_group_changed();
    return affordable;
}

quire_sight *kv_group_sight(struct kv_group *group, int i) {
    if (i >= group->n_sights) {
        quire_sight **sights = realloc(group->sights, (size_t)(i + 1) * sizeof *sights);
        if (!sights)
            return NULL;
        group->sights = sights;
        while (group->n_sights <= i)
            sights[group->n_sights++] = NULL;
    }
    if (!group->sights[i] && quire_sight_create(group->cells, &group->sights[i]) != QUIRE_OK)
        return NULL;
    return group->sights[i];
}

void kv_group_free(struct kv_group *group) {
    for (int i = 0; i < group->n_sights; i++)
        quire_sight_free(group->sights[i]);
    quire_cells_free(group->cells);
    kv_budget_return(group->bytes);
    free(group->sights);
    free(group);
}
