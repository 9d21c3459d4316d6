/* kv_group.c: making the pages of a cache. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache_name.h"
#include "layer_calibration.h"
#include "kv_budget.h"
#include "kv_buffer.h"
#include "kv_group.h"
#include "settings.h"

static _Atomic uint64_t epoch = 1;

uint64_t kv_group_epoch(void) { return atomic_load(&epoch); }

void kv_group_changed(void) { atomic_fetch_add(&epoch, 1); }

static void make_plain(const struct kv_shape *shape, const char *why) {
    kv_side_make_plain(shape->k, why);
    kv_side_make_plain(shape->v, why);
}

static int layer_number(const struct kv_shape *shape) {
    struct cache_name name;
    return cache_name_parse(shape->k->name, &name) ? name.layer : -1;
}

static quire_layer layer_of(const struct kv_shape *shape, bool calibrated) {
    quire_layer layer;
    quire_layer_default(&layer);
    layer.n_heads = shape->n_heads;
    layer.n_kv_heads = shape->n_kv_heads;
    layer.k_dim = shape->k_dim;
    layer.v_dim = shape->v_dim;
    layer.window = shape->windowed ? 1 : 0; /* the mask decides what is seen, this only the codec */
    if (calibrated)
        calibration_apply(&layer, layer_number(shape));
    return layer;
}

static void options_of(quire_cells_options *options, const struct kv_side *side, int n_threads) {
    quire_cells_options_default(options);
    kv_side_type(side, &options->raw);
    options->n_streams = (int32_t)side->n_streams;
    options->n_cells = (int32_t)side->n_cells;
    options->max_workers = n_threads;
}

/* A program may raise its number of threads later. Until then what they would compute with takes no
 * memory, and it is not in the price. */
static int32_t most_workers(int32_t n_threads) {
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return n_threads > processors ? n_threads : (int32_t)processors;
}

/* ---------------------------------------------------------------- which groups there will be */

/* Layers in the order of their groups; options[i] has the layers of group i. */
struct plan {
    const struct kv_shape **chosen; /* (n_chosen) */
    quire_layer *layers;            /* of the same */
    quire_cells_options *options;   /* (n_groups) */
    size_t *bytes;                  /* that each group takes from the budget */
    bool *planned;                  /* (shapes) */
    int n_chosen, n_groups;
    bool calibrated; /* QUIRE_CALIBRATION is of this model */
};

/* Whether QUIRE_CALIBRATION is of the model that has these layers. If not, stderr says so. */
static bool is_calibrated(const struct kv_shape *shapes, int n_shapes) {
    int last = -1;
    bool shaped = true;
    for (int i = 0; i < n_shapes; i++) {
        const int number = layer_number(&shapes[i]);
        last = number > last ? number : last;
        shaped &= calibration_has_shape(number, shapes[i].n_kv_heads, shapes[i].k_dim);
    }
    const bool fits = shaped && calibration_fits(last);
    if (!fits)
        calibration_refuse(last);
    return fits;
}

static bool plan_begin(struct plan *p, const struct kv_shape *shapes, int n_shapes) {
    size_t n = (size_t)n_shapes;
    *p = (struct plan){.chosen = calloc(n, sizeof *p->chosen),
                       .layers = calloc(n, sizeof *p->layers),
                       .options = calloc(n, sizeof *p->options),
                       .bytes = calloc(n, sizeof *p->bytes),
                       .planned = calloc(n, sizeof *p->planned),
                       .calibrated = is_calibrated(shapes, n_shapes)};
    return p->chosen && p->layers && p->options && p->bytes && p->planned;
}

static void plan_end(struct plan *p) {
    free(p->chosen);
    free(p->layers);
    free(p->options);
    free(p->bytes);
    free(p->planned);
}

static bool same_cache(const struct kv_side *a, const struct kv_side *b) {
    return a->buffer == b->buffer && a->type == b->type && a->n_cells == b->n_cells &&
           a->n_streams == b->n_streams;
}

/* Whether the library would take this layer alone. */
static bool is_servable(const quire_layer *layer, quire_cells_options options) {
    size_t bytes;
    if (!settings.automatic)
        options.policy = settings.policy;
    options.layers = layer;
    options.n_layers = 1;
    return quire_cells_price(&options, &bytes) == QUIRE_OK;
}

/* A group of shapes[i] and all later ones that go with it. */
static void plan_group(struct plan *p, const struct kv_shape *shapes, int n_shapes, int i,
                       int n_threads) {
    quire_cells_options *options = &p->options[p->n_groups];
    options_of(options, shapes[i].k, n_threads);
    options->max_rows = QUIRE_PAGE_TOKENS;
    options->layers = p->layers + p->n_chosen;
    for (int j = i; j < n_shapes; j++) {
        if (p->planned[j] || shapes[j].k->state != SIDE_NEW ||
            !same_cache(shapes[i].k, shapes[j].k))
            continue;
        p->planned[j] = true;
        p->layers[p->n_chosen] = layer_of(&shapes[j], p->calibrated);
        if (!is_servable(&p->layers[p->n_chosen], *options)) {
            make_plain(&shapes[j], quire_last_error());
            continue;
        }
        const struct kv_side *sides[2] = {shapes[j].k, shapes[j].v};
        for (int side = 0; side < 2; side++)
            if (sides[side]->max_rows > options->max_rows)
                options->max_rows = sides[side]->max_rows;
        p->chosen[p->n_chosen++] = &shapes[j];
        options->n_layers++;
    }
    p->n_groups += options->n_layers > 0;
}

/* ---------------------------------------------------------------- making them */

static void join(struct kv_group *group, const struct kv_shape *shape, int32_t index) {
    struct kv_side *pair[2] = {shape->k, shape->v};
    for (int i = 0; i < 2; i++) {
        pair[i]->group = group;
        pair[i]->partner = pair[1 - i];
        pair[i]->index = index;
        pair[i]->which = i == 0 ? QUIRE_SIDE_K : QUIRE_SIDE_V;
        pair[i]->n_heads = shape->n_heads;
        pair[i]->n_kv_heads = shape->n_kv_heads;
        pair[i]->k_dim = shape->k_dim;
        pair[i]->v_dim = shape->v_dim;
    }
    if (!kv_side_pack(pair[0]) || !kv_side_pack(pair[1]))
        make_plain(shape, quire_last_error());
}

/* Group i of a plan, whose bytes have been taken from the budget. Without memory its layers become
 * plain; false: they would then take more than QUIRE_KV_BYTES, and stay new. */
static bool create(const struct plan *p, int i) {
    quire_cells_options *options = &p->options[i];
    const struct kv_shape **chosen = p->chosen + (options->layers - p->layers);
    struct kv_group *group = calloc(1, sizeof *group);
    options->max_workers = most_workers(options->max_workers);
    if (!group || quire_cells_create(&group->cells, options) != QUIRE_OK) {
        const char *why = group ? quire_last_error() : "out of memory";
        const bool refused = settings.kv_bytes > 0;
        fprintf(stderr, "quire: %s; %s\n", why,
                refused ? "make the context shorter" : "going on with f16 rows");
        for (int32_t j = 0; !refused && j < options->n_layers; j++)
            make_plain(chosen[j], why);
        kv_budget_return(p->bytes[i]);
        free(group);
        return !refused;
    }
    struct kv_buffer *buffer = chosen[0]->k->buffer;
    group->bytes = p->bytes[i];
    group->max_rows = options->max_rows;
    group->max_workers = options->max_workers;
    group->windowed = chosen[0]->windowed;
    group->next = buffer->groups;
    buffer->groups = group;
    for (int32_t j = 0; j < options->n_layers; j++)
        join(group, chosen[j], j);
    return true;
}

bool kv_group_pack(const struct kv_shape *shapes, int n_shapes, int n_threads) {
    struct plan p;
    bool good = plan_begin(&p, shapes, n_shapes);
    const char *why = "out of memory";
    enum kv_budget budget = BUDGET_NO_PRICE;
    for (int i = 0; good && i < n_shapes; i++)
        if (!p.planned[i] && shapes[i].k->state == SIDE_NEW)
            plan_group(&p, shapes, n_shapes, i, n_threads);
    if (good) {
        budget = kv_budget_take(p.options, p.n_groups, p.bytes);
        why = quire_last_error();
    }
    bool created = true;
    for (int i = 0; budget == BUDGET_TAKEN && i < p.n_groups; i++)
        if (created)
            created = create(&p, i);
        else
            kv_budget_return(p.bytes[i]);
    for (int i = 0; budget == BUDGET_NO_PRICE && i < n_shapes; i++)
        if (shapes[i].k->state == SIDE_NEW)
            make_plain(&shapes[i], why);
    plan_end(&p);
    kv_group_changed();
    return budget != BUDGET_EXCEEDED && created;
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
