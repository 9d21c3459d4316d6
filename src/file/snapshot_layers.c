/* The section "layers": a pool's layers described for a file or a store, and read back. */
#include <stdlib.h>

#include "base/element.h"
#include "file/snapshot.h"

quire_status quire__file_no_memory(void) {
    return quire__fail(QUIRE_E_NOMEM, "out of memory while opening the file");
}

quire_status quire__file_invalid(const char *what) {
    return quire__fail(QUIRE_E_FORMAT, "the file has an invalid %s", what);
}

/* ------------------------------------------------------------------ of a pool */

uint64_t quire__attention_digest(const quire_layer_state *layer) {
    const quire_layer *l = &layer->config;
    const float scalars[2] = {layer->q_scale, l->softcap};
    const size_t n = (size_t)l->n_heads;
    const uint8_t has[2] = {l->alibi != NULL, l->sink_logits != NULL};
    quire_hash hash;
    quire__hash_start(&hash);
    quire__hash_add(&hash, &l->n_heads, sizeof l->n_heads);
    quire__hash_add(&hash, scalars, sizeof scalars);
    quire__hash_add(&hash, has, sizeof has);
    if (l->alibi)
        quire__hash_add(&hash, l->alibi, n * sizeof *l->alibi);
    if (l->sink_logits)
        quire__hash_add(&hash, l->sink_logits, n * sizeof *l->sink_logits);
    const quire_digest digest = quire__hash_end(&hash);
    const uint64_t word = quire__get64(digest.byte);
    return word ? word : 1;
}

bool quire__rounding_digest(const quire_pool *pool, quire_digest *digest) {
    bool any = false;
    quire_hash hash;
    quire__hash_start(&hash);
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer *l = &pool->layer[i].config;
        const quire_rope_pairs *pairs = pool->layer[i].rope_pairs;
        if (pool->layer[i].source != i || !quire__layer_has_feedback(&pool->layer[i]))
            continue;
        any = true;
        const size_t n = (size_t)pairs->n;
        quire__hash_add(&hash, &i, sizeof i);
        quire__hash_add(&hash, l->k_feedback,
                        (size_t)l->n_kv_heads * quire__n_feedback(l->k_dim) *
                            sizeof *l->k_feedback);
        quire__hash_add(&hash, pairs->first, n * sizeof *pairs->first);
        quire__hash_add(&hash, pairs->second, n * sizeof *pairs->second);
        quire__hash_add(&hash, pairs->angle, n * sizeof *pairs->angle);
    }
    *digest = quire__hash_end(&hash);
    return any;
}

size_t quire__layers_bytes(const quire_pool *pool) {
    size_t bytes = QUIRE_FILE_LAYERS_HEAD + (size_t)pool->n_layers * QUIRE_FILE_LAYER;
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer *l = &pool->layer[i].config;
        bytes += quire__file_has_order(l) ? 2 * (size_t)l->n_kv_heads * (size_t)l->k_dim : 0;
    }
    return bytes;
}

static uint8_t *describe_layer(const quire_layer_state *layer, bool any_attention, uint8_t *to) {
    const quire_layer *l = &layer->config;
    const int32_t fields[10] = {l->n_heads, l->n_kv_heads, l->k_dim,      l->v_dim, l->window,
                                l->keep,    (int32_t)l->k, (int32_t)l->v, l->share, layer->class};
    for (int f = 0; f < 10; f++)
        quire__put32(to + 4 * f, (uint32_t)fields[f]);
    quire__put64(to + 40, any_attention ? 0 : quire__attention_digest(layer));
    return to + QUIRE_FILE_LAYER;
}

/* Packed rows cannot be read without it. */
static uint8_t *describe_order(const quire_layer *l, uint8_t *to) {
    const size_t n = quire__file_has_order(l) ? (size_t)l->n_kv_heads * (size_t)l->k_dim : 0;
    for (size_t p = 0; p < n; p++)
        quire__put16(to + 2 * p, l->k_order[p]);
    return to + 2 * n;
}

void quire__layers_describe(const quire_pool *pool, bool any_attention, uint8_t *to) {
    int32_t sinks = 0;
    for (int32_t g = 0; g < pool->n_classes; g++)
        sinks = pool->class[g].raw ? sinks : pool->class[g].sinks;
    const uint32_t head[QUIRE_FILE_LAYERS_HEAD / 4] = {
        QUIRE_PAGE_FORMAT, QUIRE_ROTATION,           QUIRE_PAGE_TOKENS,         (uint32_t)pool->raw,
        (uint32_t)sinks,   (uint32_t)pool->n_layers, (uint32_t)pool->n_classes, 0};
    for (int f = 0; f < QUIRE_FILE_LAYERS_HEAD / 4; f++)
        quire__put32(to + 4 * f, head[f]);
    to += QUIRE_FILE_LAYERS_HEAD;
    for (int32_t i = 0; i < pool->n_layers; i++)
        to = describe_layer(&pool->layer[i], any_attention, to);
    for (int32_t i = 0; i < pool->n_layers; i++)
        to = describe_order(&pool->layer[i].config, to);
}

/* ------------------------------------------------------------------ read back */

static quire_status read_layer(quire_form *form, int32_t i, const uint8_t *entry) {
    int32_t field[10];
    for (int f = 0; f < 10; f++)
        field[f] = (int32_t)quire__get32(entry + 4 * f);
    quire_layer *l = &form->config[i];
    quire_layer_default(l);
    l->n_heads = field[0];
    l->n_kv_heads = field[1];
    l->k_dim = field[2];
    l->v_dim = field[3];
    l->window = field[4];
    l->keep = field[5];
    l->k = (quire_codec)field[6];
    l->v = (quire_codec)field[7];
    l->share = field[8];
    if (l->n_heads < 1 || l->n_heads > QUIRE_FILE_HEADS_MAX || l->n_kv_heads < 1 ||
        l->n_heads % l->n_kv_heads != 0 || l->window < 0 || l->window > QUIRE_FILE_TOKENS_MAX ||
        l->keep < 0 || l->keep > QUIRE_FILE_TOKENS_MAX || l->share < -1 || l->share >= i ||
        (l->share >= 0 && form->config[l->share].share != -1))
        return quire__file_invalid("layer table");
    form->attention[i] = quire__get64(entry + 40);
    quire_layer_state *s = &form->layer[i];
    s->config = *l;
    s->source = l->share == -1 ? i : l->share;
    if (s->source != i) {
        const quire_layer *from = &form->config[s->source];
        s->class = form->layer[s->source].class;
        if (l->n_kv_heads != from->n_kv_heads || l->k_dim != from->k_dim ||
            l->v_dim != from->v_dim || l->window != from->window || l->keep != from->keep ||
            l->k != from->k || l->v != from->v || s->class != field[9])
            return quire__file_invalid("layer table");
        return QUIRE_OK;
    }
    if (quire__format_init(&s->format, (quire_pair){l->k, l->v}, l->k_dim, l->v_dim, form->raw) !=
        QUIRE_OK)
        return quire__file_invalid("layer table");
    s->class = quire__form_class(form->class, &form->n_classes, l);
    return s->class == field[9] ? QUIRE_OK : quire__file_invalid("layer class");
}

/* They follow the layers, for layers that have one: u16 (KV heads, DK). */
static quire_status read_orders(quire_form *form, const uint8_t *at, uint64_t bytes) {
    uint64_t wanted = 0; /* at most 4096 layers of 4096 heads: no overflow */
    for (int32_t i = 0; i < form->n_layers; i++) {
        const quire_layer *l = &form->config[i];
        wanted += quire__file_has_order(l) ? 2 * (uint64_t)l->n_kv_heads * (uint64_t)l->k_dim : 0;
    }
    if (bytes != wanted)
        return quire__file_invalid("channel order");
    form->orders = malloc((size_t)bytes + 1);
    if (!form->orders)
        return quire__file_no_memory();
    for (size_t p = 0; p < bytes / 2; p++)
        form->orders[p] = quire__get16(at + 2 * p);
    const uint16_t *order = form->orders;
    for (int32_t i = 0; i < form->n_layers; i++) {
        quire_layer *l = &form->config[i];
        if (quire__file_has_order(l)) {
            l->k_order = order;
            for (int32_t h = 0; h < l->n_kv_heads; h++, order += l->k_dim)
                if (quire__order_fault(order, l->k_dim) < l->k_dim)
                    return quire__file_invalid("channel order");
        } else if (l->share != -1) {
            l->k_order = form->config[l->share].k_order;
        }
        form->layer[i].config.k_order = l->k_order;
    }
    return QUIRE_OK;
}

quire_status quire__form_read(quire_form *form, const uint8_t *at, size_t bytes) {
    if (bytes < QUIRE_FILE_LAYERS_HEAD)
        return quire__file_invalid("layer table");
    const uint32_t rotation = quire__get32(at + 4), n_layers = quire__get32(at + 20),
                   n_classes = quire__get32(at + 24), sinks = quire__get32(at + 16);
    form->page_format = quire__get32(at);
    form->raw = (quire_type)quire__get32(at + 12);
    if (form->page_format != QUIRE_PAGE_FORMAT || rotation != QUIRE_ROTATION)
        return quire__fail(
            QUIRE_E_VERSION,
            "pages have format %u (rotation %u); this program reads format %d (rotation %d)",
            (unsigned)form->page_format, (unsigned)rotation, QUIRE_PAGE_FORMAT, QUIRE_ROTATION);
    if (quire__get32(at + 8) != QUIRE_PAGE_TOKENS || !quire__type_valid(form->raw) ||
        sinks > QUIRE_T || n_layers < 1 || n_layers > QUIRE_FILE_LAYERS_MAX ||
        quire__get32(at + 28) != 0 ||
        bytes < QUIRE_FILE_LAYERS_HEAD + (uint64_t)n_layers * QUIRE_FILE_LAYER)
        return quire__file_invalid("layer table");
    const size_t orders = QUIRE_FILE_LAYERS_HEAD + (size_t)n_layers * QUIRE_FILE_LAYER;
    form->sinks = (int32_t)sinks;
    form->n_layers = (int32_t)n_layers;
    form->config = calloc(n_layers, sizeof *form->config);
    form->layer = calloc(n_layers, sizeof *form->layer);
    form->class = calloc(n_layers, sizeof *form->class);
    form->attention = calloc(n_layers, sizeof *form->attention);
    if (!form->config || !form->layer || !form->class || !form->attention)
        return quire__file_no_memory();
    for (int32_t i = 0; i < (int32_t)n_layers; i++)
        QUIRE_TRY(read_layer(form, i, at + QUIRE_FILE_LAYERS_HEAD + (size_t)i * QUIRE_FILE_LAYER));
    QUIRE_TRY(read_orders(form, at + orders, bytes - orders));
    quire__form_place(form->raw, form->sinks, form->layer, form->n_layers, form->class,
                      form->n_classes);
    return form->n_classes == (int32_t)n_classes ? QUIRE_OK : quire__file_invalid("layer class");
}

void quire__form_free(quire_form *form) {
    void *const owned[] = {form->config, form->orders, form->layer, form->attention, form->class};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++)
        free(owned[i]);
    *form = (quire_form){0};
}
