/* Reads pages of a file, one record at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "file/snapshot.h"

bool quire__record_valid(const quire_layer_state *layer, const uint8_t *record) {
    return quire__side_valid(&layer->format.k, record) &&
           quire__side_valid(&layer->format.v, record);
}

bool quire__raw_rows_valid(const quire_layer_state *layer, quire_type raw, const uint8_t *record,
                           int32_t n_rows, size_t v_offset) {
    const quire_side_format *sides[2] = {&layer->format.k, &layer->format.v};
    for (int v = 0; v < 2; v++) {
        const size_t n = (size_t)n_rows * (size_t)sides[v]->dim;
        const uint8_t *at = record + (v ? v_offset : 0);
        if (!quire__all_finite(raw, at, n))
            return false;
        for (size_t i = 0; raw != QUIRE_F16 && i < n; i++) /* every codec holds all f16 values */
            if (fabsf(quire__get_element(raw, at, i)) > sides[v]->max_abs)
                return false;
    }
    return true;
}

quire_status quire__page_invalid(int32_t layer, int32_t head) {
    return quire__fail(
        QUIRE_E_FORMAT,
        "layer %d, KV head %d: a value in the page is not finite or too large for its codec",
        (int)layer, (int)head);
}

quire_status quire__file_checksum(const quire_file *file, int32_t section, const quire_hash *hash) {
    const quire_file_section *s = &file->section[section];
    const quire_digest digest = quire__hash_end(hash);
    if (memcmp(digest.byte, s->checksum, sizeof digest.byte) == 0)
        return QUIRE_OK;
    return quire__fail(QUIRE_E_CORRUPT, "section '%s' of layer class %d is damaged", s->name,
                       (int)s->layer_class);
}

bool quire__all_zero(const uint8_t *bytes, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

quire_status quire__file_padding(const uint8_t *bytes, size_t n_bytes) {
    return quire__all_zero(bytes, n_bytes)
               ? QUIRE_OK
               : quire__file_invalid("padding after a section: it must be zero");
}

quire_status quire__file_buffers(quire_file *file) {
    if (file->record)
        return QUIRE_OK;
    size_t bytes = QUIRE_FILE_ALIGN, k_dim = 0, v_dim = 0;
    for (int32_t i = 0; i < file->info.n_layers; i++) {
        const quire_layer_state *l = &file->form.layer[i];
        const size_t sizes[3] = {l->format.bytes, l->raw_record_bytes, l->sink_record_bytes};
        for (int j = 0; j < 3; j++)
            bytes = sizes[j] > bytes ? sizes[j] : bytes;
        k_dim = (size_t)l->config.k_dim > k_dim ? (size_t)l->config.k_dim : k_dim;
        v_dim = (size_t)l->config.v_dim > v_dim ? (size_t)l->config.v_dim : v_dim;
    }
    file->k = malloc(QUIRE_T * k_dim * sizeof *file->k);
    file->v = malloc(QUIRE_T * v_dim * sizeof *file->v);
    file->raw = malloc(QUIRE_T * (k_dim + v_dim) * sizeof(float));
    void *record = NULL;
    if (!file->k || !file->v || !file->raw ||
        posix_memalign(&record, QUIRE_SECTION_ALIGN, bytes) != 0) {
        free(file->k);
        free(file->v);
        free(file->raw);
        file->k = file->v = NULL;
        file->raw = NULL;
        return quire__fail(QUIRE_E_NOMEM, "out of memory while reading pages");
    }
    file->record = record;
    return QUIRE_OK;
}

uint64_t quire__file_rows_held(const quire_file *file, int32_t g, int32_t page) {
    const quire_file_class *part = &file->part[g];
    if (page == file->n_pages)
        return part->open_rows;
    const uint64_t rows = quire__file_page_rows(part, page),
                   sinks = quire__rows_below(file->form.class[g].sinks);
    const bool by_sinks =
        page == 0 && part->flags & QUIRE_HELD_SINKS && !file->form.class[g].raw_side;
    return by_sinks ? (rows & ~sinks) | part->sink_rows : rows;
}

/* ------------------------------------------------------------------ checking all of it */

typedef struct walk {
    quire_file *file;
    uint64_t at;
    quire_hash hash;
} walk;

static quire_status next(walk *w, size_t n_bytes) {
    QUIRE_TRY(quire__read_at(w->file->fd, w->at, w->file->record, n_bytes));
    quire__hash_add(&w->hash, w->file->record, n_bytes);
    w->at += n_bytes;
    return QUIRE_OK;
}

/* Reads one leaf of a class, record by record. *valid: every value is valid. The caller reports
 * this after the checksum, which is the better explanation. */
static quire_status walk_leaf(walk *w, int32_t g, quire_part_kind kind, int32_t n_raw,
                              bool *valid) {
    const quire_file *file = w->file;
    const quire_type raw = file->info.raw;
    for (int32_t i = 0; i < file->info.n_layers; i++) {
        const quire_layer_state *l = &file->form.layer[i];
        if (l->class != g || l->source != i)
            continue;
        const int32_t n_rows = kind == QUIRE_PART_SINKS ? l->sinks : n_raw;
        const size_t row = quire__type_bytes(raw) * (size_t)n_rows,
                     v_offset = row * (size_t)l->config.k_dim;
        const size_t bytes = kind == QUIRE_PART_SINKS    ? l->sink_record_bytes
                             : kind == QUIRE_PART_SEALED ? l->format.bytes
                                                         : v_offset + row * (size_t)l->config.v_dim;
        for (int32_t head = 0; head < l->config.n_kv_heads; head++) {
            QUIRE_TRY(next(w, bytes));
            const bool good = kind == QUIRE_PART_SEALED
                                  ? quire__record_valid(l, file->record)
                                  : quire__raw_rows_valid(l, raw, file->record, n_rows, v_offset);
            if (!good && *valid)
                quire__page_invalid(i, head);
            *valid = *valid && good;
        }
    }
    return QUIRE_OK;
}

static quire_status check_class(quire_file *file, int32_t g) {
    const quire_file_section *s = &file->section[QUIRE_SECTION_PAGES + g];
    const quire_file_class *part = &file->part[g];
    walk w = {.file = file, .at = s->offset};
    bool valid = true;
    quire__hash_start(&w.hash);
    if (part->flags & QUIRE_HELD_SINKS)
        QUIRE_TRY(walk_leaf(&w, g, QUIRE_PART_SINKS, 0, &valid));
    if (part->flags & QUIRE_HELD_LAST_RAW)
        QUIRE_TRY(walk_leaf(&w, g, QUIRE_PART_RAW_ROWS, QUIRE_T, &valid));
    if (part->flags & QUIRE_HELD_OPEN)
        QUIRE_TRY(walk_leaf(&w, g, QUIRE_PART_RAW_ROWS, file->info.length % QUIRE_T, &valid));
    for (int32_t i = 0; i < part->n_held; i++)
        QUIRE_TRY(walk_leaf(&w, g, QUIRE_PART_SEALED, QUIRE_T, &valid));
    const size_t padding = (size_t)(quire__file_align(s->bytes) - s->bytes);
    QUIRE_TRY(next(&w, padding));
    QUIRE_TRY(quire__file_checksum(file, QUIRE_SECTION_PAGES + g, &w.hash));
    /* walk_leaf has said which value is not. */
    return valid ? quire__file_padding(file->record, padding) : QUIRE_E_FORMAT;
}

quire_status quire_file_check(quire_file *file) {
    if (!file)
        return quire__fail(QUIRE_E_INVALID, "file is NULL");
    QUIRE_TRY(quire__file_buffers(file));
    for (int32_t g = 0; g < file->form.n_classes; g++)
        QUIRE_TRY(check_class(file, g));
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ one page */

static quire_status check_place(const quire_file *file, int32_t layer, int32_t head, int32_t page) {
    if (!file)
        return quire__fail(QUIRE_E_INVALID, "file is NULL");
    if (layer < 0 || layer >= file->info.n_layers || head < 0 ||
        head >= file->form.config[layer].n_kv_heads)
        return quire__fail(QUIRE_E_INVALID, "there is no layer %d with KV head %d", (int)layer,
                           (int)head);
    if (page < 0 || (int64_t)page * QUIRE_T >= file->info.length)
        return quire__fail(QUIRE_E_INVALID, "there is no page %d: the sequence has %d tokens",
                           (int)page, (int)file->info.length);
    return QUIRE_OK;
}

/* For the layer that owns the cache. */
static const quire_layer_state *source_of(const quire_file *file, int32_t layer) {
    return &file->form.layer[file->form.layer[layer].source];
}

static quire_status read_sealed(const quire_file *file, const quire_layer_state *l, int32_t head,
                                int32_t page, void *record) {
    const quire_file_class *part = &file->part[l->class];
    const uint64_t at = file->section[QUIRE_SECTION_PAGES + l->class].offset + part->pages +
                        (uint64_t)part->rank[page] * part->leaf_bytes + l->sealed_offset +
                        (uint64_t)head * l->format.bytes;
    return quire__read_at(file->fd, at, record, l->format.bytes);
}

quire_status quire_file_page(quire_file *file, int32_t layer, int32_t head, int32_t page,
                             void *record, size_t n_bytes) {
    QUIRE_TRY(check_place(file, layer, head, page));
    const quire_layer_state *l = source_of(file, layer);
    if (!record || n_bytes != l->format.bytes)
        return quire__fail(QUIRE_E_INVALID, "record is NULL, or not %zu bytes long",
                           l->format.bytes);
    if (page >= file->n_pages)
        return quire__fail(QUIRE_E_INVALID, "page %d is open: only sealed pages have a record",
                           (int)page);
    if (file->part[l->class].rank[page] < 0)
        return quire__fail(QUIRE_E_GONE,
                           "page %d is not in the file: it had left the window of %d tokens",
                           (int)page, (int)l->config.window);
    QUIRE_TRY(read_sealed(file, l, head, page, record));
    return quire__record_valid(l, record) ? QUIRE_OK : quire__page_invalid(layer, head);
}

/* Reads n_rows raw rows from `at` bytes into the section of the class: K, then V. */
static quire_status read_raw(const quire_file *file, const quire_layer_state *l, uint64_t at,
                             int32_t n_rows, size_t v_offset, float *k, float *v) {
    const quire_type raw = file->info.raw;
    const size_t n_k = (size_t)n_rows * (size_t)l->config.k_dim,
                 n_v = (size_t)n_rows * (size_t)l->config.v_dim;
    const size_t bytes = v_offset + n_v * quire__type_bytes(raw);
    QUIRE_TRY(quire__read_at(file->fd, file->section[QUIRE_SECTION_PAGES + l->class].offset + at,
                             file->record, bytes));
    if (!quire__raw_rows_valid(l, raw, file->record, n_rows, v_offset))
        return quire__fail(QUIRE_E_FORMAT,
                           "a value in a raw row is not finite or too large for its codec");
    quire__row_from_raw(raw, file->record, n_k, k);
    quire__row_from_raw(raw, file->record + v_offset, n_v, v);
    return QUIRE_OK;
}

static quire_status known_rows(quire_file *file, int32_t layer, int32_t head, int32_t page,
                               float *k, float *v, int32_t *n_rows) {
    const quire_layer_state *l = source_of(file, layer);
    const quire_class *class = &file->form.class[l->class];
    const quire_file_class *part = &file->part[l->class];
    const size_t h = (size_t)head;
    *n_rows = QUIRE_T;
    if (page == file->n_pages) {
        const int32_t n = *n_rows = file->info.length % QUIRE_T;
        const size_t share = (size_t)n * quire__type_bytes(file->info.raw);
        const size_t record = l->raw_record_bytes / QUIRE_T * (size_t)n;
        return read_raw(file, l, part->open + l->raw_offset / QUIRE_T * (size_t)n + h * record, n,
                        share * (size_t)l->config.k_dim, k, v);
    }
    if (page == file->last_page && part->flags & QUIRE_HELD_LAST_RAW)
        return read_raw(file, l, part->last_raw + l->raw_offset + h * l->raw_record_bytes, QUIRE_T,
                        l->raw_v_offset, k, v);
    if (part->rank[page] >= 0) {
        QUIRE_TRY(read_sealed(file, l, head, page, file->record));
        if (!quire__record_valid(l, file->record))
            return quire__page_invalid(layer, head);
        quire__record_rows(l, head, false, file->record, k);
        quire__record_rows(l, head, true, file->record, v);
    } else {
        *n_rows = page == 0 && part->flags & QUIRE_HELD_SINKS ? l->sinks : 0;
        if (*n_rows == 0)
            return quire__fail(QUIRE_E_GONE,
                               "page %d is not in the file: it had left the window of %d tokens",
                               (int)page, (int)class->window);
    }
    if (page > 0 || !(part->flags & QUIRE_HELD_SINKS) || l->sinks == 0)
        return QUIRE_OK;
    return read_raw(file, l, part->sinks + l->sink_offset + h * l->sink_record_bytes, l->sinks,
                    l->sink_v_offset, k, v);
}

quire_status quire_file_rows(quire_file *file, int32_t layer, int32_t head, int32_t page, float *k,
                             float *v, int32_t *n_rows) {
    QUIRE_TRY(check_place(file, layer, head, page));
    if (!k || !v || !n_rows)
        return quire__fail(QUIRE_E_INVALID, "k, v or n_rows is NULL");
    QUIRE_TRY(quire__file_buffers(file));
    QUIRE_TRY(known_rows(file, layer, head, page, k, v, n_rows));
    const quire_layer_state *l = source_of(file, layer);
    const size_t dk = (size_t)l->config.k_dim, dv = (size_t)l->config.v_dim;
    const uint64_t held = quire__file_rows_held(file, l->class, page);
    for (int32_t t = 0; t < *n_rows; t++) {
        if (held >> t & 1)
            continue;
        memset(k + (size_t)t * dk, 0, dk * sizeof *k);
        memset(v + (size_t)t * dv, 0, dv * sizeof *v);
    }
    return QUIRE_OK;
}
