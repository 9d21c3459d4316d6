/* mlx_write.c: converts a saved cache to a prompt cache of mlx-lm.
 *
 * Codes of sealed pages in a8, a4 and a2 are copied unchanged. Raw rows (sinks, the open page,
 * layers without a codec) and pages in codecs that mlx does not have are quantized as mlx would do
 * it, or written as rows. Rows have the raw type of the file, or f32 if the pages of a layer have
 * another type than its open page, so that no value changes. */
#include "mlx/mlx_cache.h"

#include "command.h"
#include "options/cache_args.h"
#include "output/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { T = QUIRE_PAGE_TOKENS, PARTS = 3, PATH_BYTES = 4096, NUMBER_BYTES = 32 };

typedef struct target { /* one layer, as mlx will have it */
    quire_layer layer;
    quire_pair pair;
    bool as_is; /* mlx has the codecs of the sealed pages: copy them unchanged */
    int32_t bits[2], group[2];
    quire_type type[2]; /* of rows, or of scales and biases */
    int32_t n_rows;     /* of its arrays */
} target;

typedef struct writing {
    quire_file *file;
    quire_file_info info;
    target *targets;
    bool scalars;
    cli_tensor_list list;
    FILE *out;
    uint8_t *record;
    uint8_t *arrays[2][PARTS]; /* 64 rows: codes, scales, biases; or rows alone */
    float *k, *v;
} writing;

static const char *const TYPES[] = {
    [QUIRE_F32] = "F32", [QUIRE_F16] = "F16", [QUIRE_BF16] = "BF16"};
static const quire_codec CODECS[] = {
    [QUIRE_F32] = QUIRE_CODEC_F32, [QUIRE_F16] = QUIRE_CODEC_F16, [QUIRE_BF16] = QUIRE_CODEC_BF16};

static int fail(const char *doing, quire_status status) {
    return cli_quire_error(doing, status, NULL);
}

/* ------------------------------------------------------------------ what each layer becomes */

static bool find_affine(quire_codec codec, int32_t *bits, int32_t *group) {
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        quire_codec_at(i, &info);
        if (info.codec != codec)
            continue;
        const bool raw = strcmp(info.family, "raw") == 0;
        *bits = raw ? 0 : info.bits;
        *group = raw ? 0 : info.group;
        return raw || strcmp(info.family, "affine") == 0;
    }
    return false;
}

/* In mlx, either both K and V are quantized or neither is. */
static bool mlx_has(target *t, quire_pair pair) {
    t->pair = pair;
    return find_affine(pair.k, &t->bits[0], &t->group[0]) &&
           find_affine(pair.v, &t->bits[1], &t->group[1]) && (t->bits[0] > 0) == (t->bits[1] > 0);
}

/* A type for the values of both the raw codec `codec` and raw rows. */
static quire_type type_of_rows(quire_codec codec, quire_type raw) {
    return codec == QUIRE_CODEC_RAW || codec == CODECS[raw] ? raw : QUIRE_F32;
}

static int choose_targets(writing *w, const cli_mlx_options *options) {
    quire_policy policy;
    if (options->kv && !cli_policy_parse(options->kv, 0, &policy))
        return CLI_USAGE;
    for (int32_t i = 0; i < w->info.n_layers; i++) {
        target *t = &w->targets[i];
        const quire_layer *l = &w->info.layers[i];
        t->layer = *l;
        t->as_is = mlx_has(t, (quire_pair){l->k, l->v});
        if (!t->as_is && !(options->kv && mlx_has(t, policy.pair))) {
            cli_error(
                "layer %d is %s:%s, which mlx-lm does not have; convert it with --kv mlx8, mlx4, "
                "a8:a4 or none",
                (int)i, quire_codec_name(l->k), quire_codec_name(l->v));
            return CLI_FAILURE;
        }
        t->type[0] = t->type[1] = w->info.raw;
        if (t->bits[0] == 0) {
            t->type[0] = t->as_is ? type_of_rows(l->k, w->info.raw) : w->info.raw;
            t->type[1] = t->as_is ? type_of_rows(l->v, w->info.raw) : w->info.raw;
            t->pair = (quire_pair){CODECS[t->type[0]], CODECS[t->type[1]]};
        }
        if (l->share >= 0) {
            cli_error("layer %d shares the cache of another layer, which mlx-lm cannot express",
                      (int)i);
            return CLI_FAILURE;
        }
        const int64_t most = l->window ? (int64_t)l->window + l->keep : w->info.length;
        t->n_rows = w->info.length < most ? w->info.length : (int32_t)most;
    }
    return CLI_OK;
}

static bool needs_meta_state(const writing *w) {
    for (int32_t i = 0; i < w->info.n_layers; i++) {
        const target *t = &w->targets[i];
        if (t->bits[0] > 0 &&
            (t->layer.window > 0 || t->bits[0] != t->bits[1] || t->group[0] != t->group[1]))
            return true;
    }
    return false;
}

/* ------------------------------------------------------------------ the header */

static int numbers_of(const writing *w, const target *t, int32_t *x) {
    const int32_t length = w->info.length,
                  quantizer[4] = {t->group[0], t->bits[0], t->group[1], t->bits[1]};
    int n = 0;
    if (t->layer.window > 0) {
        const int32_t keep = t->layer.keep, size = keep + t->layer.window;
        const int32_t meta[4] = {keep, size, length, t->n_rows},
                      scalars[4] = {length, keep, size, t->n_rows};
        memcpy(x, w->scalars ? scalars : meta, sizeof meta);
        n = 4;
    } else if (w->scalars || t->bits[0] > 0) {
        x[n++] = length;
    }
    const bool split =
        t->bits[0] != t->bits[1] || t->group[0] != t->group[1] || t->layer.window > 0;
    for (int i = 0; t->bits[0] > 0 && i < (split ? 4 : 2); i++)
        x[n++] = quantizer[i];
    return n;
}

static void describe(writing *w) {
    static const char *const classes[2][2] = {{"KVCache", "QuantizedKVCache"},
                                              {"RotatingKVCache", "QuantizedRotatingKVCache"}};
    int n_scalars = 1;
    if (w->scalars)
        cli_tensor_list_note(&w->list, "", "2.0");
    cli_tensor_list_note(&w->list, quire_version(), "%d.quire", w->scalars ? 0 : 1);
    for (int32_t i = 0; i < w->info.n_layers; i++) {
        const target *t = &w->targets[i];
        const quire_layer *l = &t->layer;
        cli_tensor_list_note(&w->list, classes[l->window > 0][t->bits[0] > 0], "%d.%d",
                             w->scalars ? 1 : 2, (int)i);
        for (int side = 0; side < 2; side++) {
            const int32_t dim = side ? l->v_dim : l->k_dim;
            for (int part = 0; part < (t->bits[0] ? PARTS : 1); part++) {
                const int32_t cols = !t->bits[side] ? dim
                                     : part         ? dim / t->group[side]
                                                    : dim * t->bits[side] / 32;
                const int64_t dims[4] = {1, l->n_kv_heads, t->n_rows, cols};
                cli_tensor_list_add(&w->list,
                                    t->bits[side] && part == 0 ? "U32" : TYPES[t->type[side]], dims,
                                    4, t->bits[0] ? "%d.%d.%d" : "%d.%d", (int)i, side, part);
            }
        }
        int32_t numbers[8];
        const int n = numbers_of(w, t, numbers);
        if (!w->scalars && n == 0)
            cli_tensor_list_note(&w->list, "", "0.%d", (int)i);
        for (int j = 0; j < n; j++) {
            char text[NUMBER_BYTES];
            if (w->scalars) {
                snprintf(text, sizeof text, "%d.%d", (int)i, j + 2);
                cli_tensor_list_note(&w->list, text, "2.%d.0", n_scalars);
                cli_tensor_list_note(&w->list, "scalar", "2.%d.1", n_scalars++);
                cli_tensor_list_add(&w->list, "I32", NULL, 0, "%s", text);
            } else {
                snprintf(text, sizeof text, "%d", (int)numbers[j]);
                cli_tensor_list_note(&w->list, text, "0.%d.%d", (int)i, j);
            }
        }
    }
}

/* ------------------------------------------------------------------ rows */

static quire_page_shape shape_of(const writing *w, const target *t) {
    return (quire_page_shape){t->pair, t->layer.k_dim, t->layer.v_dim, w->info.raw};
}

/* Converts the record w->record to mlx's arrays of 64 rows. */
static quire_status export_record(writing *w, const target *t) {
    const quire_page_shape shape = shape_of(w, t);
    if (t->bits[0] == 0) { /* rows of K, then of V */
        const size_t n_k = T * (size_t)shape.k_dim * cli_tensor_type_bytes(TYPES[t->type[0]]);
        memcpy(w->arrays[0][0], w->record, n_k);
        memcpy(w->arrays[1][0], w->record + n_k,
               T * (size_t)shape.v_dim * cli_tensor_type_bytes(TYPES[t->type[1]]));
        return QUIRE_OK;
    }
    quire_status status = QUIRE_OK;
    for (int side = 0; side < 2 && status == QUIRE_OK; side++) {
        const quire_arrays arrays = {.codes = w->arrays[side][0],
                                     .scales = w->arrays[side][1],
                                     .biases = w->arrays[side][2]};
        status = quire_page_export(&shape, side ? QUIRE_SIDE_V : QUIRE_SIDE_K, w->record, &arrays);
    }
    return status;
}

/* The bytes of a row in w->arrays[side][part]. */
static size_t row_bytes(const target *t, int side, int part) {
    const size_t dim = (size_t)(side ? t->layer.v_dim : t->layer.k_dim),
                 size = cli_tensor_type_bytes(TYPES[t->type[side]]);
    if (t->bits[side] == 0)
        return part == 0 ? dim * size : 0;
    return part == 0 ? dim * (size_t)t->bits[side] / 8 : dim / (size_t)t->group[side] * size;
}

/* Encodes w->k and w->v in the codecs of the target, into w->arrays. */
static quire_status export_rows(writing *w, const target *t) {
    const quire_page_shape shape = shape_of(w, t);
    const quire_status status = quire_page_encode(&shape, w->k, w->v, 0, w->record);
    return status == QUIRE_OK ? export_record(w, t) : status;
}

/* Copies a sealed page of a layer with `as_is` into w->arrays. */
static quire_status export_sealed(writing *w, const target *t, int32_t layer, int32_t head,
                                  int32_t page) {
    quire_page_shape sealed = shape_of(w, t);
    sealed.pair = (quire_pair){t->layer.k, t->layer.v};
    size_t bytes;
    quire_status status = quire_page_bytes(&sealed, &bytes);
    if (status == QUIRE_OK)
        status = quire_file_page(w->file, layer, head, page, w->record, bytes);
    if (status != QUIRE_OK)
        return status;
    if (t->bits[0] > 0)
        return export_record(w, t);
    status = quire_page_decode(&sealed, w->record, w->k, w->v); /* rows, perhaps of another type */
    return status == QUIRE_OK ? export_rows(w, t) : status;
}

/* Converts page `page` of a head into w->arrays. Rows that the file does not have are zeros. */
static quire_status make_page(writing *w, const target *t, int32_t layer, int32_t head,
                              int32_t page) {
    int32_t n_rows;
    memset(w->k, 0, T * (size_t)t->layer.k_dim * sizeof *w->k);
    memset(w->v, 0, T * (size_t)t->layer.v_dim * sizeof *w->v);
    quire_status status = quire_file_rows(w->file, layer, head, page, w->k, w->v, &n_rows);
    if (status == QUIRE_OK || status == QUIRE_E_GONE)
        status = export_rows(w, t);
    if (status != QUIRE_OK || !t->as_is || page >= w->info.length / T)
        return status;

    /* Attention uses the sealed page except for the sinks, which are not in it. */
    uint8_t *sinks[2][PARTS];
    size_t kept[2][PARTS];
    for (int side = 0; side < 2; side++)
        for (int part = 0; part < PARTS; part++) {
            kept[side][part] = page == 0 ? row_bytes(t, side, part) * (size_t)w->info.sinks : 0;
            sinks[side][part] = malloc(kept[side][part] + 1);
            if (sinks[side][part])
                memcpy(sinks[side][part], w->arrays[side][part], kept[side][part]);
            else
                status = QUIRE_E_NOMEM;
        }
    if (status == QUIRE_OK)
        status = export_sealed(w, t, layer, head, page);
    if (status == QUIRE_E_GONE)
        status = QUIRE_OK; /* only the sinks are left */
    for (int side = 0; side < 2; side++)
        for (int part = 0; part < PARTS; part++) {
            if (status == QUIRE_OK)
                memcpy(w->arrays[side][part], sinks[side][part], kept[side][part]);
            free(sinks[side][part]);
        }
    return status;
}

/* The token of a row: the kept ones come first, then the newest. */
static int32_t token_of(const writing *w, const target *t, int32_t row) {
    return row < t->layer.keep && t->layer.window ? row : row + w->info.length - t->n_rows;
}

/* One array of a layer: heads, rows. */
static int write_array(writing *w, int32_t layer, int side, int part) {
    const target *t = &w->targets[layer];
    const size_t bytes = row_bytes(t, side, part);
    for (int32_t head = 0; head < t->layer.n_kv_heads; head++)
        for (int32_t row = 0, page = -1; row < t->n_rows; row++) {
            const int32_t token = token_of(w, t, row);
            if (token / T != page) {
                page = token / T;
                const quire_status status = make_page(w, t, layer, head, page);
                if (status != QUIRE_OK)
                    return fail("cannot read a page", status);
            }
            if (fwrite(w->arrays[side][part] + (size_t)(token % T) * bytes, 1, bytes, w->out) !=
                bytes)
                return cli_quire_error("cannot write", QUIRE_E_IO, strerror(errno));
        }
    return CLI_OK;
}

static int write_layers(writing *w) {
    int status = CLI_OK;
    for (int32_t i = 0; i < w->info.n_layers; i++) {
        const target *t = &w->targets[i];
        for (int side = 0; side < 2; side++)
            for (int part = 0; part < (t->bits[0] ? PARTS : 1) && status == CLI_OK; part++)
                status = write_array(w, i, side, part);
        int32_t numbers[8];
        const int n = w->scalars ? numbers_of(w, t, numbers) : 0;
        if (n > 0 && status == CLI_OK &&
            fwrite(numbers, sizeof *numbers, (size_t)n, w->out) != (size_t)n)
            status = cli_quire_error("cannot write", QUIRE_E_IO, strerror(errno));
    }
    return status;
}

/* ------------------------------------------------------------------ all of it */

static bool make_buffers(writing *w) {
    const size_t rows = T * (size_t)QUIRE_DIM_MAX * sizeof(float);
    w->record = aligned_alloc(64, 2 * rows + 4096);
    w->k = malloc(rows);
    w->v = malloc(rows);
    bool good = w->record && w->k && w->v;
    for (int i = 0; i < 2 * PARTS; i++)
        good = (w->arrays[i / PARTS][i % PARTS] = malloc(rows)) && good;
    return good;
}

/* A new file: not the one that a link of this name leads to, nor the rest of a run that was killed.
 */
static FILE *create(const char *path) {
    unlink(path);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    FILE *file = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (!file && fd >= 0)
        close(fd);
    return file;
}

static int write_file(writing *w, const char *to, const cli_mlx_options *options) {
    quire_file_get_info(w->file, &w->info);
    w->targets = calloc((size_t)w->info.n_layers, sizeof *w->targets);
    if (!w->targets || !make_buffers(w))
        return cli_quire_error("cannot convert", QUIRE_E_NOMEM, "out of memory");
    if (w->info.length == 0) {
        cli_error("the saved cache has no tokens, so there is nothing to convert");
        return CLI_FAILURE;
    }
    int status = choose_targets(w, options);
    if (status != CLI_OK)
        return status;
    const bool meta_state = needs_meta_state(w);
    if (meta_state && options->layout == CLI_MLX_SCALARS) {
        cli_error(
            "the layout of mlx-lm 0.32 cannot express different bits for K and V, or quantized "
            "rings; give --layout meta_state");
        return CLI_USAGE;
    }
    w->scalars =
        options->layout == CLI_MLX_SCALARS || (options->layout == CLI_MLX_AUTO && !meta_state);
    if (!cli_tensor_list_start(&w->list))
        return cli_quire_error("cannot convert", QUIRE_E_NOMEM, "out of memory");
    describe(w);
    char part[PATH_BYTES];
    snprintf(part, sizeof part, "%s.part", to);
    w->out = create(part);
    if (!w->out) {
        json_decref(w->list.header);
        cli_error("cannot write '%s': %s", part, strerror(errno));
        return CLI_FAILURE;
    }
    status = cli_tensor_list_write(&w->list, w->out) ? write_layers(w) : CLI_FAILURE;
    const bool flushed = fflush(w->out) == 0 && fsync(fileno(w->out)) == 0;
    if ((fclose(w->out) != 0 || !flushed || rename(part, to) != 0) && status == CLI_OK) {
        cli_error("cannot write '%s': %s", to, strerror(errno));
        status = CLI_FAILURE;
    }
    if (status != CLI_OK)
        unlink(part);
    return status;
}

int cli_mlx_from_quire(const char *from, const char *to, const cli_mlx_options *options) {
    writing w = {0};
    quire_status opened = quire_file_open(&w.file, from);
    if (opened == QUIRE_OK)
        opened = quire_file_check(w.file);
    const int status = opened == QUIRE_OK ? write_file(&w, to, options)
                                          : fail("cannot read the saved cache", opened);
    quire_file_close(w.file);
    free(w.targets);
    free(w.record);
    free(w.k);
    free(w.v);
    for (int i = 0; i < 2 * PARTS; i++)
        free(w.arrays[i / PARTS][i % PARTS]);
    return status;
}
