/* Writes a file of sections: first the sections, with their checksums, and last the header. */
#include <string.h>

#include "file/snapshot.h"

struct quire_snapshot {
    quire_writer writer;
    quire_hash hash;
    uint64_t start; /* of the section being written */
};

quire_status quire__snapshot_add(quire_snapshot *s, const void *bytes, size_t n_bytes) {
    if (n_bytes == 0)
        return QUIRE_OK;
    quire__hash_add(&s->hash, bytes, n_bytes);
    return quire__writer_add(&s->writer, bytes, n_bytes);
}

quire_status quire__snapshot_add_state(quire_snapshot *s, int32_t length, int32_t last_page,
                                       uint32_t history, int32_t exact) {
    uint8_t head[QUIRE_FILE_STATE_HEAD];
    quire__put32(head, (uint32_t)length);
    quire__put32(head + 4, (uint32_t)last_page);
    quire__put32(head + 8, history);
    quire__put32(head + 12, (uint32_t)exact);
    return quire__snapshot_add(s, head, sizeof head);
}

quire_status quire__snapshot_add_class(quire_snapshot *s, int32_t live_from, uint32_t held,
                                       uint64_t sink_rows, uint64_t open_rows) {
    uint8_t entry[QUIRE_FILE_CLASS];
    quire__put32(entry, (uint32_t)live_from);
    quire__put32(entry + 4, held);
    quire__put64(entry + 8, sink_rows);
    quire__put64(entry + 16, open_rows);
    return quire__snapshot_add(s, entry, sizeof entry);
}

quire_status quire__snapshot_add_rows(quire_snapshot *s, uint64_t rows) {
    uint8_t entry[QUIRE_FILE_PAGE];
    quire__put64(entry, rows);
    return quire__snapshot_add(s, entry, sizeof entry);
}

static void begin_section(quire_snapshot *s) {
    s->start = s->writer.bytes;
    quire__hash_start(&s->hash);
}

/* Pads the section, and writes its entry of the table. */
static quire_status end_section(quire_snapshot *s, int32_t index) {
    static const uint8_t zeros[QUIRE_FILE_ALIGN] = {0};
    const uint64_t bytes = s->writer.bytes - s->start;
    QUIRE_TRY(quire__snapshot_add(s, zeros, (size_t)(quire__file_align(bytes) - bytes)));
    const quire_digest digest = quire__hash_end(&s->hash);
    uint8_t entry[QUIRE_FILE_ENTRY] = {0};
    quire__put32(entry, (uint32_t)(index < QUIRE_SECTION_PAGES ? index : QUIRE_SECTION_PAGES));
    quire__put32(entry + 4,
                 (uint32_t)(index < QUIRE_SECTION_PAGES ? 0 : index - QUIRE_SECTION_PAGES));
    quire__put64(entry + 8, s->start);
    quire__put64(entry + 16, bytes);
    memcpy(entry + 24, digest.byte, sizeof digest.byte);
    return quire__writer_patch(&s->writer, QUIRE_FILE_HEADER + (uint64_t)index * QUIRE_FILE_ENTRY,
                               entry, sizeof entry);
}

static quire_status add_zeros(quire_writer *writer, size_t n_bytes) {
    static const uint8_t zeros[QUIRE_FILE_ALIGN] = {0};
    for (size_t n; n_bytes > 0; n_bytes -= n) {
        n = n_bytes < sizeof zeros ? n_bytes : sizeof zeros;
        QUIRE_TRY(quire__writer_add(writer, zeros, n));
    }
    return QUIRE_OK;
}

/* The checksum covers the header, with zeros in its own place, and the table, which is read back
 * from the file. */
static quire_status write_header(quire_snapshot *s, int32_t n_sections, size_t head_bytes) {
    uint8_t header[QUIRE_FILE_HEADER] = {0}, entry[QUIRE_FILE_ALIGN];
    memcpy(header, QUIRE_FILE_MAGIC, 8);
    quire__put32(header + 8, QUIRE_FILE_VERSION);
    quire__put32(header + 12, (uint32_t)n_sections);
    quire__put64(header + 16, s->writer.bytes);
    quire__hash_start(&s->hash);
    quire__hash_add(&s->hash, header, sizeof header);
    for (size_t at = sizeof header; at < head_bytes; at += sizeof entry) {
        QUIRE_TRY(quire__read_at(s->writer.fd, at, entry, sizeof entry));
        quire__hash_add(&s->hash, entry, sizeof entry);
    }
    const quire_digest digest = quire__hash_end(&s->hash);
    memcpy(header + 48, digest.byte, sizeof digest.byte);
    return quire__writer_patch(&s->writer, 0, header, sizeof header);
}

static quire_status write_file(quire_snapshot *s, int32_t n_classes, quire__add_section add_section,
                               void *user) {
    const int32_t n_sections = QUIRE_FILE_SECTIONS + n_classes;
    const size_t head_bytes =
        (size_t)quire__file_align(QUIRE_FILE_HEADER + (uint64_t)n_sections * QUIRE_FILE_ENTRY);
    QUIRE_TRY(add_zeros(&s->writer, head_bytes));
    for (int32_t i = 0; i < n_sections; i++) {
        begin_section(s);
        QUIRE_TRY(add_section(user, s, i));
        QUIRE_TRY(end_section(s, i));
        if (i < QUIRE_SECTION_PAGES && s->writer.bytes - head_bytes > QUIRE_FILE_SMALL_MAX)
            return quire__fail(QUIRE_E_TOO_BIG,
                               "token ids and page tables take more than the %d bytes that a file "
                               "may have for them",
                               QUIRE_FILE_SMALL_MAX);
    }
    return write_header(s, n_sections, head_bytes);
}

quire_status quire__snapshot_write(const char *path, int32_t n_classes,
                                   quire__add_section add_section, void *user) {
    quire_snapshot s;
    QUIRE_TRY(quire__writer_open(&s.writer, path));
    const quire_status status = write_file(&s, n_classes, add_section, user);
    if (status == QUIRE_OK)
        return quire__writer_commit(&s.writer);
    quire__writer_abort(&s.writer);
    return status;
}
