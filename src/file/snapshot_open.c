/* Opens a saved sequence: reads and checks everything but the pages. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/size.h"
#include "file/snapshot.h"

static const char *const SECTION_NAMES[] = {"identity", "layers", "tokens", "state", "pages"};

/* ------------------------------------------------------------------ header and table */

static quire_status read_header(quire_file *file, uint8_t *header) {
    const uint64_t bytes = file->info.bytes;
    const size_t n = bytes < QUIRE_FILE_HEADER ? (size_t)bytes : QUIRE_FILE_HEADER;
    QUIRE_TRY(quire__read_at(file->fd, 0, header, n));
    if (memcmp(header, QUIRE_FILE_MAGIC, n < 8 ? n : 8) != 0)
        return quire__fail(QUIRE_E_FOREIGN,
                           "not a saved cache: it does not begin with the magic bytes of one");
    if (n < QUIRE_FILE_HEADER)
        return quire__fail(QUIRE_E_TRUNCATED, "the file has only %llu bytes",
                           (unsigned long long)bytes);
    file->info.version = quire__get32(header + 8);
    if (file->info.version != QUIRE_FILE_VERSION)
        return quire__fail(
            QUIRE_E_VERSION, "the file has format %u, which is %s; this program reads format %d",
            (unsigned)file->info.version,
            file->info.version > QUIRE_FILE_VERSION ? "newer" : "older than any release",
            QUIRE_FILE_VERSION);
    return QUIRE_OK;
}

static void read_table(quire_file *file, const uint8_t *table) {
    for (int32_t i = 0; i < file->info.n_sections; i++, table += QUIRE_FILE_ENTRY) {
        const int32_t kind = i < QUIRE_SECTION_PAGES ? i : QUIRE_SECTION_PAGES;
        file->section[i] = (quire_file_section){.name = SECTION_NAMES[kind],
                                                .layer_class = i - kind,
                                                .offset = quire__get64(table + 8),
                                                .bytes = quire__get64(table + 16)};
        memcpy(file->section[i].checksum, table + 24, sizeof file->section[i].checksum);
    }
}

/* Every entry must match its index in the table, and sections must fill the file without gaps. */
static quire_status check_table(const quire_file *file, const uint8_t *table, uint64_t start) {
    for (int32_t i = 0; i < file->info.n_sections; i++, table += QUIRE_FILE_ENTRY) {
        const quire_file_section *s = &file->section[i];
        const uint32_t kind = i < QUIRE_SECTION_PAGES ? (uint32_t)i : QUIRE_SECTION_PAGES;
        if (quire__get32(table) != kind || quire__get32(table + 4) != (uint32_t)s->layer_class ||
            quire__get64(table + 40) != 0 || s->offset != start ||
            s->bytes > file->info.bytes - start)
            return quire__file_invalid("table of sections");
        start = quire__file_align(start + s->bytes);
        if (start > file->info.bytes)
            return quire__file_invalid("table of sections");
    }
    return start == file->info.bytes ? QUIRE_OK : quire__file_invalid("table of sections");
}

static quire_status read_sections(quire_file *file) {
    uint8_t header[QUIRE_FILE_HEADER];
    QUIRE_TRY(read_header(file, header));
    const uint32_t n_sections = quire__get32(header + 12);
    const uint64_t bytes = quire__get64(header + 16);
    const size_t head_bytes =
        (size_t)quire__file_align(QUIRE_FILE_HEADER + (uint64_t)n_sections * QUIRE_FILE_ENTRY);
    if (n_sections < QUIRE_FILE_SECTIONS + 1 ||
        n_sections > QUIRE_FILE_SECTIONS + QUIRE_FILE_LAYERS_MAX)
        return quire__fail(QUIRE_E_CORRUPT, "the header is damaged: it has %u sections",
                           (unsigned)n_sections);
    if (head_bytes > file->info.bytes)
        return quire__fail(QUIRE_E_TRUNCATED, "the file ends in its header");
    uint8_t *head = malloc(head_bytes);
    file->section = calloc(n_sections, sizeof *file->section);
    if (!head || !file->section) {
        free(head);
        return quire__file_no_memory();
    }
    file->info.sections = file->section;
    file->info.n_sections = (int32_t)n_sections;
    quire_status status = quire__read_at(file->fd, 0, head, head_bytes);
    if (status == QUIRE_OK) {
        uint8_t checksum[16];
        memcpy(checksum, head + 48, sizeof checksum);
        memset(head + 48, 0, sizeof checksum);
        const quire_digest digest = quire__hash_of(head, head_bytes);
        if (memcmp(digest.byte, checksum, sizeof checksum) != 0)
            status = quire__fail(QUIRE_E_CORRUPT, "the header is damaged");
        else if (bytes > file->info.bytes)
            status = quire__fail(QUIRE_E_TRUNCATED, "the file has %llu of its %llu bytes",
                                 (unsigned long long)file->info.bytes, (unsigned long long)bytes);
        else if (bytes < file->info.bytes)
            status = quire__fail(QUIRE_E_CORRUPT, "the file has %llu bytes after its end",
                                 (unsigned long long)(file->info.bytes - bytes));
    }
    if (status == QUIRE_OK) {
        const size_t end = QUIRE_FILE_HEADER + (size_t)n_sections * QUIRE_FILE_ENTRY;
        read_table(file, head + QUIRE_FILE_HEADER);
        status = !quire__all_zero(head + 24, 24) || !quire__all_zero(head + end, head_bytes - end)
                     ? quire__file_invalid("header: bytes that must be zero are not")
                     : check_table(file, head + QUIRE_FILE_HEADER, head_bytes);
    }
    free(head);
    return status;
}

/* The sections before the pages, in one piece. */
static quire_status read_small(quire_file *file) {
    const uint64_t first = file->section[0].offset, end = file->section[QUIRE_SECTION_PAGES].offset;
    const quire_file_section *s = file->section;
    if (s[QUIRE_SECTION_IDENTITY].bytes > QUIRE_IDENTITY_MAX ||
        s[QUIRE_SECTION_TOKENS].bytes > 4ull * INT32_MAX || s[QUIRE_SECTION_TOKENS].bytes % 4 != 0)
        return quire__file_invalid("identity or token section");
    if (end - first > QUIRE_FILE_SMALL_MAX)
        return quire__fail(QUIRE_E_TOO_BIG,
                           "the sections before the pages take %llu bytes; at most %d are read",
                           (unsigned long long)(end - first), QUIRE_FILE_SMALL_MAX);
    file->small = malloc((size_t)(end - first));
    if (!file->small)
        return quire__file_no_memory();
    QUIRE_TRY(quire__read_at(file->fd, first, file->small, (size_t)(end - first)));
    for (int32_t i = 0; i < QUIRE_SECTION_PAGES; i++) {
        const uint8_t *at = file->small + (s[i].offset - first);
        const size_t bytes = (size_t)s[i].bytes, padded = (size_t)(s[i + 1].offset - s[i].offset);
        const quire_digest digest = quire__hash_of(at, padded);
        if (memcmp(digest.byte, s[i].checksum, sizeof digest.byte) != 0)
            return quire__fail(QUIRE_E_CORRUPT, "section '%s' is damaged", s[i].name);
        QUIRE_TRY(quire__file_padding(at + bytes, padded - bytes));
    }
    return QUIRE_OK;
}

static const uint8_t *small_section(const quire_file *file, quire_section_kind kind) {
    return file->small + (file->section[kind].offset - file->section[0].offset);
}

/* ------------------------------------------------------------------ state */

static bool class_valid(const quire_file *file, int32_t g) {
    const quire_class *class = &file->form.class[g];
    const quire_file_class *part = &file->part[g];
    const int32_t length = file->info.length, n_pages = file->n_pages;
    const int32_t first_seen = quire__window_start(class, length) / QUIRE_T;
    if (part->live_from < 0 || part->live_from > n_pages || part->live_from > first_seen ||
        part->sink_rows & ~quire__rows_below(class->sinks) ||
        part->open_rows & ~quire__rows_below(length % QUIRE_T))
        return false;
    for (int32_t p = 0; p < n_pages; p++) {
        const bool is_there = quire__file_page_rows(part, p), pinned = quire__pinned(class, p),
                   recycled = p < part->live_from && !pinned;
        if (is_there ? recycled : p >= first_seen || pinned)
            return false;
    }
    for (int32_t p = 0; p <= n_pages; p++)
        if (quire__rows_seen(class, p, length) & ~quire__file_rows_held(file, g, p))
            return false;
    const bool may_have_sinks = n_pages > 0 && class->sinks > 0,
               needs_sinks = may_have_sinks && (first_seen == 0 || class->keep > 0);
    const bool has_sinks = part->flags & QUIRE_HELD_SINKS, has_open = part->flags & QUIRE_HELD_OPEN,
               has_last_raw = part->flags & QUIRE_HELD_LAST_RAW;
    return part->flags < 8 && (has_sinks ? may_have_sinks : !needs_sinks && !part->sink_rows) &&
           has_open == (length % QUIRE_T != 0) &&
           !(has_last_raw && (class->raw || file->last_page < 0));
}

/* Computes where the parts of a layer class lie in its section. */
static quire_status place_parts(quire_file *file, int32_t g, int32_t *rank) {
    const quire_class *class = &file->form.class[g];
    quire_file_class *part = &file->part[g];
    const size_t n_open = (size_t)(file->info.length % QUIRE_T), T = QUIRE_T;
    part->rank = rank;
    for (int32_t p = 0; p < file->n_pages; p++)
        rank[p] = quire__file_page_rows(part, p) ? part->n_held++ : -1;
    part->leaf_bytes = class->raw ? class->raw_bytes : class->sealed_bytes;
    part->last_raw = part->flags & QUIRE_HELD_SINKS ? class->sink_bytes : 0;
    part->open = part->last_raw + (part->flags & QUIRE_HELD_LAST_RAW ? class->raw_bytes : 0);
    part->pages = part->open + (part->flags & QUIRE_HELD_OPEN ? class->raw_bytes / T * n_open : 0);
    size_t bytes;
    if (!quire__mul((size_t)part->n_held, part->leaf_bytes, &bytes) ||
        !quire__add(bytes, part->pages, &part->bytes) ||
        part->bytes != file->section[QUIRE_SECTION_PAGES + g].bytes)
        return quire__file_invalid("number of pages");
    file->info.packed_bytes += bytes;
    file->info.raw_bytes += part->pages;
    return QUIRE_OK;
}

static quire_status read_state(quire_file *file) {
    const uint8_t *at = small_section(file, QUIRE_SECTION_STATE);
    const uint64_t bytes = file->section[QUIRE_SECTION_STATE].bytes;
    if (bytes < QUIRE_FILE_STATE_HEAD)
        return quire__file_invalid("state");
    file->info.length = (int32_t)quire__get32(at);
    file->last_page = (int32_t)quire__get32(at + 4);
    file->n_pages = file->info.length / QUIRE_T;
    file->info.history = quire__get32(at + 8);
    file->info.exact_tokens = (int32_t)quire__get32(at + 12);
    const size_t n_classes = (size_t)file->form.n_classes, n_pages = (size_t)file->n_pages;
    if (file->info.length < 0 || file->info.length > QUIRE_FILE_TOKENS_MAX ||
        (file->last_page != -1 && (file->last_page < 0 || file->last_page != file->n_pages - 1)) ||
        bytes != QUIRE_FILE_STATE_HEAD + n_classes * (QUIRE_FILE_CLASS + QUIRE_FILE_PAGE * n_pages))
        return quire__file_invalid("state");
    if (file->info.history > QUIRE_HISTORY_ALL || file->info.exact_tokens < 0 ||
        file->info.exact_tokens > file->info.length ||
        (file->info.history == 0) != (file->info.exact_tokens == file->info.length))
        return quire__file_invalid("history");
    if (file->info.n_tokens > 0 && file->info.n_tokens < file->info.length)
        return quire__file_invalid("number of tokens");
    file->part = calloc(n_classes, sizeof *file->part);
    /* No larger than the section, which has been read. */
    file->rank = calloc(n_classes * n_pages + 1, sizeof *file->rank);
    if (!file->part || !file->rank)
        return quire__file_no_memory();
    at += QUIRE_FILE_STATE_HEAD;
    for (int32_t g = 0; g < file->form.n_classes;
         g++, at += QUIRE_FILE_CLASS + QUIRE_FILE_PAGE * n_pages) {
        file->part[g] = (quire_file_class){.live_from = (int32_t)quire__get32(at),
                                           .flags = quire__get32(at + 4),
                                           .sink_rows = quire__get64(at + 8),
                                           .open_rows = quire__get64(at + 16),
                                           .rows = at + QUIRE_FILE_CLASS};
        if (!class_valid(file, g))
            return quire__file_invalid(
                "set of pages: required pages are missing, or it has pages that cannot exist");
        QUIRE_TRY(place_parts(file, g, file->rank + (size_t)g * n_pages));
    }
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ open and close */

static quire_status open_path(quire_file *file, const char *path) {
    /* O_NONBLOCK: opening a FIFO would wait for a writer. */
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    if (file->fd < 0 || fstat(file->fd, &info) != 0)
        return quire__fail(QUIRE_E_IO, "cannot open '%.200s': %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return quire__fail(QUIRE_E_IO, "'%.200s' is not a regular file", path);
#ifdef POSIX_FADV_SEQUENTIAL
    posix_fadvise(file->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
#endif
    file->info.bytes = (uint64_t)info.st_size;
    return QUIRE_OK;
}

static quire_status read_all(quire_file *file, const char *path) {
    QUIRE_TRY(open_path(file, path));
    QUIRE_TRY(read_sections(file));
    QUIRE_TRY(read_small(file));
    const quire_file_section *identity = &file->section[QUIRE_SECTION_IDENTITY];
    file->info.identity = small_section(file, QUIRE_SECTION_IDENTITY);
    file->info.identity_bytes = (size_t)identity->bytes;
    file->info.n_tokens = (int32_t)(file->section[QUIRE_SECTION_TOKENS].bytes / sizeof(int32_t));
    /* Aligned: sections start at multiples of 64 in a block from malloc. */
    file->info.tokens = (const int32_t *)(const void *)small_section(file, QUIRE_SECTION_TOKENS);
    const quire_form *form = &file->form;
    QUIRE_TRY(quire__form_read(&file->form, small_section(file, QUIRE_SECTION_LAYERS),
                               (size_t)file->section[QUIRE_SECTION_LAYERS].bytes));
    file->info.page_format = form->page_format;
    file->info.raw = form->raw;
    file->info.sinks = form->sinks;
    file->info.layers = form->config;
    file->info.n_layers = form->n_layers;
    if (file->info.n_sections != QUIRE_FILE_SECTIONS + form->n_classes)
        return quire__file_invalid("layer class");
    return read_state(file);
}

quire_status quire_file_open(quire_file **result, const char *path) {
    if (!result || !path)
        return quire__fail(QUIRE_E_INVALID, "file or path is NULL");
    *result = NULL;
    quire_file *file = calloc(1, sizeof *file);
    if (!file)
        return quire__file_no_memory();
    const quire_status status = read_all(file, path);
    if (status != QUIRE_OK) {
        quire_file_close(file);
        return status;
    }
    *result = file;
    return QUIRE_OK;
}

void quire_file_close(quire_file *file) {
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    quire__form_free(&file->form);
    void *const owned[] = {file->section, file->small, file->part, file->rank,
                           file->record,  file->raw,   file->k,    file->v};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++)
        free(owned[i]);
    free(file);
}

void quire_file_get_info(const quire_file *file, quire_file_info *info) { *info = file->info; }
