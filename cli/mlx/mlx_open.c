/* mlx_open.c: opens a prompt cache of mlx-lm and checks its description. */
#include "mlx/mlx_cache.h"

#include "output/report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS_MAX = 8, LAYERS_MAX = 4096, NAME_BYTES = 64, CLASS_KINDS = 4 };

static const char *const CLASSES[CLASS_KINDS] = {"KVCache", "QuantizedKVCache", "RotatingKVCache",
                                                 "QuantizedRotatingKVCache"};
typedef enum class_kind { PLAIN, QUANTIZED, ROTATING, QUANTIZED_ROTATING } class_kind;

static bool refuse(int32_t layer, const char *what) {
    cli_error("layer %d of the prompt cache: %s", (int)layer, what);
    return false;
}

/* ------------------------------------------------------------------ numbers */

static bool parse_number(const char *text, int32_t *number) {
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    *number = (int32_t)value;
    return end != text && !*end && errno == 0 && value >= 0 && value <= INT32_MAX / 2;
}

/* Reads the numbers of a layer, in the order of the file. Returns how many; -1: one is invalid. */
static int read_numbers(const cli_mlx_cache *cache, int32_t layer, int32_t *numbers) {
    int n = 0;
    for (; n < NUMBERS_MAX; n++) {
        if (!cache->scalars) {
            const char *text = cli_safetensors_note(&cache->file, "0.%d.%d", (int)layer, n);
            if (!text)
                break;
            if (!parse_number(text, &numbers[n]))
                return -1;
            continue;
        }
        char name[NAME_BYTES];
        cli_tensor value;
        snprintf(name, sizeof name, "%d.%d", (int)layer, n + 2);
        if (!cli_safetensors_has(&cache->file, name))
            break;
        if (!cli_safetensors_get(&cache->file, name, &value) || strcmp(value.type, "I32") != 0 ||
            value.n_bytes != 4)
            return -1;
        memcpy(&numbers[n], value.data, 4);
        if (numbers[n] < 0 || numbers[n] > INT32_MAX / 2)
            return -1;
    }
    return n;
}

static void set_quantizer(cli_mlx_layer *l, const int32_t *k, const int32_t *v) {
    l->side[0].group = k[0];
    l->side[0].bits = k[1];
    l->side[1].group = v[0];
    l->side[1].bits = v[1];
}

static bool take_numbers(const cli_mlx_cache *cache, int32_t layer, class_kind kind,
                         cli_mlx_layer *l) {
    int32_t x[NUMBERS_MAX];
    const int n = read_numbers(cache, layer, x);
    bool good = n >= 0;
    const int32_t *rest = x;
    switch (kind) {
    case PLAIN:
        good = good && n == (cache->scalars ? 1 : 0);
        l->offset = good && n ? x[0] : -1; /* -1: the length of the arrays */
        return good || refuse(layer, "it does not have the numbers of its class");
    case QUANTIZED:
        good = good && (n == 3 || n == 5);
        l->offset = x[0];
        rest = x + 1;
        break;
    case ROTATING:
    case QUANTIZED_ROTATING:
        good = good && n >= 4 && (kind == ROTATING ? n == 4 : n == 6 || n == 8);
        l->rotating = true;
        l->keep = cache->scalars ? x[1] : x[0];
        l->size = cache->scalars ? x[2] : x[1];
        l->offset = cache->scalars ? x[0] : x[2];
        l->place = x[3];
        rest = x + 4;
        good = good && l->size > l->keep;
        break;
    }
    if (good && kind != ROTATING)
        set_quantizer(l, rest, n == 5 || n == 8 ? rest + 2 : rest);
    return good || refuse(layer, "it does not have the numbers of its class");
}

/* ------------------------------------------------------------------ arrays */

static bool type_of(const char *name, quire_type *type) {
    static const char *const names[] = {
        [QUIRE_F32] = "F32", [QUIRE_F16] = "F16", [QUIRE_BF16] = "BF16"};
    for (int i = 0; i < 3; i++)
        if (strcmp(names[i], name) == 0) {
            *type = (quire_type)i;
            return true;
        }
    return false;
}

static bool find_codec(cli_mlx_side *side) {
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        quire_codec_at(i, &info);
        if (strcmp(info.family, "affine") == 0 && info.bits == side->bits &&
            info.group == side->group) {
            side->codec = info.codec;
            return true;
        }
    }
    return false;
}

static bool take_side(cli_mlx_cache *cache, int32_t layer, int which, cli_mlx_layer *l) {
    cli_mlx_side *side = &l->side[which];
    const bool quantized = side->bits > 0;
    for (int part = 0; part < (quantized ? 3 : 1); part++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, quantized ? "%d.%d.%d" : "%d.%d", (int)layer, which, part);
        cli_tensor *t = &side->rows[part];
        if (!cli_safetensors_get(&cache->file, name, t))
            return false;
        if (t->n_dims != 4 || t->dims[0] != 1 || t->dims[1] < 1 || t->dims[1] > LAYERS_MAX ||
            t->dims[2] > INT32_MAX / 2 || t->dims[3] < 1 || t->dims[3] > QUIRE_DIM_MAX)
            return refuse(layer, "an array is not of shape (1, KV heads, tokens, size)");
        if (which == 0 && part == 0) {
            l->n_kv_heads = (int32_t)t->dims[1];
            l->n_rows = (int32_t)t->dims[2];
        }
        if (t->dims[1] != l->n_kv_heads || t->dims[2] != l->n_rows)
            return refuse(layer, "its arrays differ in KV heads or tokens");
        quire_type type;
        const bool is_codes = quantized && part == 0;
        if (is_codes ? strcmp(t->type, "U32") != 0 : !type_of(t->type, &type))
            return refuse(layer, "an array is of a type that cannot be converted");
        if (!is_codes) {
            if (cache->raw != (quire_type)-1 && cache->raw != type)
                return refuse(layer, "its type differs from that of other layers");
            cache->raw = type;
        }
    }
    side->codec = QUIRE_CODEC_RAW;
    side->dim = (int32_t)side->rows[0].dims[3];
    if (!quantized)
        return true;
    if (!find_codec(side))
        return refuse(
            layer,
            "its bits or group size are not supported (8, 4 or 2 bits; groups of 32, 64 or 128)");
    side->dim = side->dim * 32 / side->bits;
    return (side->rows[1].dims[3] * side->group == side->dim &&
            side->rows[2].dims[3] * side->group == side->dim) ||
           refuse(layer, "its scales do not fit its codes");
}

/* ------------------------------------------------------------------ layers */

static const char *class_of(const cli_mlx_cache *cache, int32_t layer) {
    return cli_safetensors_note(&cache->file, "%d.%d", cache->scalars ? 1 : 2, (int)layer);
}

static bool take_layer(cli_mlx_cache *cache, int32_t layer) {
    cli_mlx_layer *l = &cache->layers[layer];
    int kind = 0;
    while (kind < CLASS_KINDS && strcmp(CLASSES[kind], class_of(cache, layer)) != 0)
        kind++;
    if (kind == CLASS_KINDS) {
        cli_error("layer %d of the prompt cache is a %s, which cannot be converted", (int)layer,
                  class_of(cache, layer));
        return false;
    }
    if (!take_numbers(cache, layer, (class_kind)kind, l) || !take_side(cache, layer, 0, l) ||
        !take_side(cache, layer, 1, l))
        return false;
    if (l->offset < 0)
        l->offset = l->n_rows;
    if (l->rotating ? l->place > l->n_rows || l->keep > l->n_rows : l->offset > l->n_rows)
        return refuse(layer, "it claims more tokens than its arrays have");
    for (int32_t t = 0; l->rotating && t < l->offset;
         t++) /* every token in the window must be there */
        if ((t < l->keep || t > l->offset - (l->size - l->keep)) && cli_mlx_row(l, t) < 0)
            return refuse(layer, "its ring does not have all tokens of the window");
    if (layer == 0)
        cache->n_tokens = l->offset;
    return l->offset == cache->n_tokens ||
           refuse(layer, "it has another number of tokens than layer 0");
}

int32_t cli_mlx_row(const cli_mlx_layer *l, int32_t token) {
    if (!l->rotating)
        return token < l->offset ? token : -1;
    /* In order of age: kept rows, then the ring from `place` around to `place`. */
    const bool wrapped = l->place < l->n_rows && l->place < l->offset;
    const int32_t n = wrapped ? l->n_rows : l->place;
    const int32_t order = n == l->offset || token < l->keep ? token : n - (l->offset - token);
    if (token < 0 || token >= l->offset || order < 0 || order >= n ||
        (token >= l->keep && order < l->keep))
        return -1;
    if (!wrapped || order < l->keep)
        return order;
    const int32_t row = order - l->keep + l->place;
    return row < l->n_rows ? row : row - l->n_rows + l->keep;
}

bool cli_mlx_open(cli_mlx_cache *cache, const char *path) {
    *cache = (cli_mlx_cache){.raw = (quire_type)-1};
    if (!cli_safetensors_open(&cache->file, path))
        return false;
    const char *mark = cli_safetensors_note(&cache->file, "2.0");
    cache->scalars = mark && !*mark; /* in that layout the list of scalars begins with "" */
    while (cache->n_layers < LAYERS_MAX && class_of(cache, cache->n_layers))
        cache->n_layers++;
    if (!mark || cache->n_layers == 0) {
        cli_error("'%s' is not a prompt cache of mlx-lm, nor a saved cache", path);
        return false;
    }
    cache->layers = calloc((size_t)cache->n_layers, sizeof *cache->layers);
    for (int32_t i = 0; cache->layers && i < cache->n_layers; i++)
        if (!take_layer(cache, i))
            return false;
    if (!cache->layers)
        cli_error("out of memory");
    return cache->layers != NULL;
}

void cli_mlx_close(cli_mlx_cache *cache) {
    cli_safetensors_close(&cache->file);
    free(cache->layers);
    *cache = (cli_mlx_cache){0};
}
