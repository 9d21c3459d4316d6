/* A sequence as a file. docs/FORMAT.md, section 10, is the definition; in short:
 *
 *   | header, table of sections | identity | layers | tokens | state |
 *   | pages of layer class 0 | pages of layer class 1 | ...
 *
 * Sections follow each other and start at multiples of 64. A section's checksum also covers the
 * zero bytes up to the next section, so every byte of a file has a checksum. The pages of a layer
 * class are its leaves, as they are in a pool:
 *
 *   | sinks | last_raw | open page (raw, only rows in use) | sealed pages, oldest first |
 */
#ifndef QUIRE_FILE_SNAPSHOT_H
#define QUIRE_FILE_SNAPSHOT_H

#include "base/internal.h"
#include "base/file.h"
#include "base/hash.h"
#include "seq/seq.h"

#define QUIRE_FILE_MAGIC                                                                           \
    "\x89QUIRE\r\n" /* like PNG's: shows transfers that change line ends or drop a bit */

enum {
    /* Version 1 had no channel orders; 2 did not record which rows exist, nor the history. No
     * release wrote these. */
    QUIRE_FILE_VERSION = 3,
    QUIRE_ROTATION = 1, /* FORMAT.md, section 5 */
    QUIRE_FILE_ALIGN = 64,
    QUIRE_FILE_HEADER = 64,
    QUIRE_FILE_ENTRY = 48, /* of the table of sections */
    QUIRE_FILE_LAYERS_HEAD = 32,
    QUIRE_FILE_LAYER = 48,
    QUIRE_FILE_STATE_HEAD = 16,
    QUIRE_FILE_CLASS = 24,
    QUIRE_FILE_PAGE = 8, /* in the state, for each full page */
    QUIRE_IDENTITY_MAX = 1 << 20,
    /* Bytes of all sections before the pages, which are read in one piece. */
    QUIRE_FILE_SMALL_MAX = 1 << 30,
    QUIRE_FILE_LAYERS_MAX = 4096, /* files with more are refused */
    QUIRE_FILE_HEADS_MAX = 4096,
    QUIRE_FILE_TOKENS_MAX = 1 << 30
};

typedef enum quire_section_kind {
    QUIRE_SECTION_IDENTITY,
    QUIRE_SECTION_LAYERS,
    QUIRE_SECTION_TOKENS,
    QUIRE_SECTION_STATE,
    QUIRE_SECTION_PAGES, /* this section and all after it: one layer class each */
    QUIRE_FILE_SECTIONS = QUIRE_SECTION_PAGES
} quire_section_kind;

typedef enum quire_held {
    QUIRE_HELD_SINKS = 1,
    QUIRE_HELD_OPEN = 2,
    QUIRE_HELD_LAST_RAW = 4
} quire_held;

/* The contents of a leaf. */
typedef enum quire_part_kind {
    QUIRE_PART_SINKS,
    QUIRE_PART_RAW_ROWS,
    QUIRE_PART_SEALED
} quire_part_kind;

/* The parts of a layer class's section, in their order. */
typedef struct quire_file_class {
    int32_t live_from, n_held;
    uint32_t flags;                /* quire_held */
    uint64_t sink_rows, open_rows; /* bit t: row t exists */
    const uint8_t *rows; /* (n_pages) u64: the same for each full page; 0: not in the file */
    int32_t *rank;       /* (n_pages) index among the pages in the file; -1: not in the file */
    size_t sinks, last_raw, open, pages; /* where they start in the section */
    size_t leaf_bytes;                   /* of a sealed page: packed, or raw */
    size_t bytes;
} quire_file_class;

/* The layers of a file or of a store, with records placed as in a pool. */
typedef struct quire_form {
    quire_layer *config;      /* (n_layers) */
    uint16_t *orders;         /* channel orders of its km layers, one after the other */
    quire_layer_state *layer; /* (n_layers) */
    /* (n_layers) quire__attention_digest; 0: not recorded. */
    uint64_t *attention;
    quire_class *class; /* (n_classes) */
    int32_t n_layers, n_classes, sinks;
    quire_type raw;
    uint32_t page_format;
} quire_form;

struct quire_file {
    int fd;
    quire_file_info info;
    quire_file_section *section; /* (4 + n_classes) */
    uint8_t *small;              /* the sections before the pages, as in the file */
    quire_form form;
    quire_file_class *part; /* (n_classes) */
    int32_t *rank;          /* (n_classes, n_pages) */
    int32_t n_pages, last_page;
    uint8_t *record; /* room for any layer's packed record, raw rows or sinks ... */
    uint8_t *raw;    /* ... for its rows in any raw type ... */
    float *k, *v;    /* ... and as floats, (64, D): allocated when first used */
};

/* ---- snapshot_layers.c: the section "layers", which a store uses too */
quire_status quire__file_no_memory(void);           /* E_NOMEM */
quire_status quire__file_invalid(const char *what); /* E_FORMAT */
/* Digest of what changes a layer's attention but not its cache: query heads, scale, soft-cap,
 * ALiBi, learned sinks. Never 0. */
uint64_t quire__attention_digest(const quire_layer_state *layer);
/* Digest of the error feedback of all layers. It is not in the section "layers", because pages read
 * the same with or without it. False: no layer has feedback. */
QUIRE_INTERNAL bool quire__rounding_digest(const quire_pool *pool, quire_digest *digest);
QUIRE_INTERNAL size_t quire__layers_bytes(const quire_pool *pool);
QUIRE_INTERNAL void quire__layers_describe(const quire_pool *pool, bool any_attention, uint8_t *to);
/* Fills a zeroed form, which must be freed also on failure. E_VERSION, E_FORMAT, E_NOMEM. */
QUIRE_INTERNAL quire_status quire__form_read(quire_form *form, const uint8_t *bytes,
                                             size_t n_bytes);
QUIRE_INTERNAL void quire__form_free(quire_form *form);

/* ---- snapshot_write.c: writes a file from a source of sections */
typedef struct quire_snapshot quire_snapshot; /* being written */
/* Adds the bytes of section `index`: quire_section_kind, then the pages of each layer class. */
typedef quire_status (*quire__add_section)(void *user, quire_snapshot *to, int32_t index);
QUIRE_INTERNAL quire_status quire__snapshot_write(const char *path, int32_t n_classes,
                                                  quire__add_section add_section, void *user);
QUIRE_INTERNAL quire_status quire__snapshot_add(quire_snapshot *s, const void *bytes,
                                                size_t n_bytes);
/* The section "state": its head, then for each layer class an entry and the rows of each page. */
QUIRE_INTERNAL quire_status quire__snapshot_add_state(quire_snapshot *s, int32_t length,
                                                      int32_t last_page, uint32_t history,
                                                      int32_t exact);
QUIRE_INTERNAL quire_status quire__snapshot_add_class(quire_snapshot *s, int32_t live_from,
                                                      uint32_t held /* quire_held */,
                                                      uint64_t sink_rows, uint64_t open_rows);
QUIRE_INTERNAL quire_status quire__snapshot_add_rows(quire_snapshot *s, uint64_t rows);

/* ---- snapshot_save.c */
/* Until quire__seq_in_file(seq, false), its pages and their form do not change. E_BUSY, E_STATE. */
QUIRE_INTERNAL quire_status quire__seq_hold(const quire_seq *seq);

/* ---- load_reserve.c */
/* In place of a leaf: one is to be reserved here. Anything but QUIRE_NO_LEAF. */
enum { QUIRE_RESERVE_LEAF = 0 };
static inline int32_t quire__reserve_if(bool needed) {
    return needed ? QUIRE_RESERVE_LEAF : QUIRE_NO_LEAF;
}
/* For a new sequence that nothing else refers to: replaces each RESERVE_LEAF in table, open,
 * last_raw and sinks by a leaf. E_NO_PAGES: not all could be reserved. The sequence may be freed
 * either way. The caller must hold the lock from the first RESERVE_LEAF mark. */
quire_status quire__restore_reserve(quire_seq *seq, int32_t length, int32_t last_page);
/* Whose leaves they are: a pool's or a form's. */
typedef struct quire_leaf_layers {
    const quire_layer_state *layer; /* (n_layers) */
    int32_t n_layers;
    quire_type raw;
} quire_leaf_layers;
/* Whether untrusted bytes of a leaf are safe to attend over. False: *layer and *head have invalid
 * values. n_raw: rows in use, for raw rows. */
bool quire__leaf_valid(quire_leaf_layers of, int32_t class, quire_part_kind kind, int32_t n_raw,
                       const uint8_t *leaf, int32_t *layer, int32_t *head);
/* The same for a leaf of the pool that was filled with such bytes. */
bool quire__restored_check(const quire_pool *pool, int32_t leaf, quire_part_kind kind,
                           int32_t n_raw, int32_t *layer, int32_t *head);

/* ---- snapshot_read.c */
/* Bit t: row t of a page, which may be the open one, exists. quire__rows_held does the same for a
 * sequence. */
uint64_t quire__file_rows_held(const quire_file *file, int32_t class, int32_t page);
quire_status quire__file_buffers(quire_file *file); /* E_NOMEM */
/* Whether a layer can seal and attend to raw rows of one head: K (n_rows,DK), V at v_offset. */
bool quire__raw_rows_valid(const quire_layer_state *layer, quire_type raw, const uint8_t *record,
                           int32_t n_rows, size_t v_offset);
bool quire__record_valid(const quire_layer_state *layer, const uint8_t *record);
quire_status quire__page_invalid(int32_t layer, int32_t head); /* E_FORMAT */
/* Compares with the table of sections. E_CORRUPT. */
quire_status quire__file_checksum(const quire_file *file, int32_t section, const quire_hash *hash);
bool quire__all_zero(const uint8_t *bytes, size_t n_bytes);
/* What follows a section up to the next. E_FORMAT: it is not zero. */
quire_status quire__file_padding(const uint8_t *bytes, size_t n_bytes);

/* Whether a file has the channel order of a layer. */
static inline bool quire__file_has_order(const quire_layer *layer) {
    return layer->share == -1 && quire__codec_is_mixed(layer->k);
}

static inline void quire__put16(uint8_t *at, uint16_t x) {
    at[0] = (uint8_t)x;
    at[1] = (uint8_t)(x >> 8);
}
static inline uint16_t quire__get16(const uint8_t *at) { return (uint16_t)(at[0] | at[1] << 8); }
static inline void quire__put32(uint8_t *at, uint32_t x) {
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(x >> 8 * i);
}
static inline void quire__put64(uint8_t *at, uint64_t x) {
    quire__put32(at, (uint32_t)x);
    quire__put32(at + 4, (uint32_t)(x >> 32));
}
static inline uint32_t quire__get32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}
static inline uint64_t quire__get64(const uint8_t *at) {
    return quire__get32(at) | (uint64_t)quire__get32(at + 4) << 32;
}
static inline uint64_t quire__file_page_rows(const quire_file_class *part, int32_t page) {
    return quire__get64(part->rows + (size_t)page * QUIRE_FILE_PAGE);
}
static inline uint64_t quire__file_align(uint64_t x) {
    return (x + QUIRE_FILE_ALIGN - 1) & ~(uint64_t)(QUIRE_FILE_ALIGN - 1);
}

#endif
