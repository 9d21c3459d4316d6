/* A model's calibration as a file: channel orders, error feedback and RoPE of its layers' K.
 *
 *   magic (16 bytes), u32 layers, per layer a head and its arrays, XXH3-128 of all before
 *
 * Little-endian, as everything that Quire writes. Layers without an order have no heads. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/size.h"
#include "codec/codec.h"

static const char MAGIC[16] = "quire calib 001\n";
enum { MAX_LAYERS = 4096, MAX_KV_HEADS = 4096, MAX_FILE = 1 << 30 };

typedef struct head {
    int32_t n_kv_heads, k_dim;
    int32_t has_feedback, has_rope, has_frequency, interleaved;
    int32_t rope_first, n_rot;
    float base, scale;
} head;

/* Bytes of a layer's arrays, each padded to 4. */
typedef struct spans {
    size_t order, feedback, frequency;
} spans;

static spans spans_of(const head *h) {
    const size_t heads = (size_t)h->n_kv_heads, dim = (size_t)h->k_dim;
    return (spans){.order = quire__align(heads * dim * sizeof(uint16_t), 4),
                   .feedback =
                       h->has_feedback ? heads * quire__n_feedback(h->k_dim) * sizeof(float) : 0,
                   .frequency = h->has_frequency ? (size_t)h->n_rot / 2 * sizeof(float) : 0};
}

/* ------------------------------------------------------------------ writing */

typedef struct output {
    quire_writer writer;
    quire_hash hash;
} output;

static quire_status add(output *out, const void *bytes, size_t n) {
    quire__hash_add(&out->hash, bytes, n);
    return quire__writer_add(&out->writer, bytes, n);
}

static head head_of(const quire_layer *l) {
    const quire_rope *r = l->k_rope;
    head h = {0};
    if (!l->k_order)
        return h;
    h = (head){.n_kv_heads = l->n_kv_heads, .k_dim = l->k_dim};
    h.has_feedback = l->k_feedback != NULL;
    if (r) {
        h.has_rope = 1;
        h.has_frequency = r->frequency != NULL;
        h.interleaved = r->interleaved;
        h.rope_first = r->first;
        h.n_rot = r->n_rot;
        h.base = r->base;
        h.scale = r->scale;
    }
    return h;
}

static quire_status add_layer(output *out, const quire_layer *l) {
    const head h = head_of(l);
    const spans n = spans_of(&h);
    QUIRE_TRY(add(out, &h, sizeof h));
    if (!l->k_order)
        return QUIRE_OK;
    QUIRE_TRY(add(out, l->k_order, (size_t)h.n_kv_heads * (size_t)h.k_dim * sizeof(uint16_t)));
    QUIRE_TRY(
        add(out, "\0\0\0", n.order - (size_t)h.n_kv_heads * (size_t)h.k_dim * sizeof(uint16_t)));
    if (n.feedback)
        QUIRE_TRY(add(out, l->k_feedback, n.feedback));
    return n.frequency ? add(out, l->k_rope->frequency, n.frequency) : QUIRE_OK;
}

static quire_status add_all(output *out, const quire_layer *layers, int32_t n_layers) {
    quire__hash_start(&out->hash);
    QUIRE_TRY(add(out, MAGIC, sizeof MAGIC));
    QUIRE_TRY(add(out, &n_layers, sizeof n_layers));
    for (int32_t i = 0; i < n_layers; i++)
        QUIRE_TRY(add_layer(out, &layers[i]));
    const quire_digest digest = quire__hash_end(&out->hash);
    return quire__writer_add(&out->writer, digest.byte, sizeof digest.byte);
}

static quire_status check_layer(const quire_layer *l, int32_t i) {
    if (!l->k_order)
        return QUIRE_OK;
    if (l->n_kv_heads < 1 || l->n_kv_heads > MAX_KV_HEADS)
        return quire__fail(QUIRE_E_INVALID, "layer %d has %d KV heads", (int)i, (int)l->n_kv_heads);
    quire_status status = quire__check_k_dim(l->k_dim);
    for (int32_t h = 0; h < l->n_kv_heads && status == QUIRE_OK; h++)
        if (quire__order_fault(l->k_order + (size_t)h * (size_t)l->k_dim, l->k_dim) < l->k_dim)
            status =
                quire__fail(QUIRE_E_INVALID, "KV head %d: its order is not a permutation", (int)h);
        else if (l->k_feedback)
            status = quire__check_feedback(l->k_feedback + (size_t)h * quire__n_feedback(l->k_dim),
                                           l->k_dim);
    quire_rope_pairs pairs;
    if (status == QUIRE_OK)
        status = quire__rope_pairs_init(&pairs, l->k_rope, l->k_dim);
    return status == QUIRE_OK ? QUIRE_OK : quire__fail_where(status, "layer %d", (int)i);
}

quire_status quire_calibration_file_write(const char *path, const quire_layer *layers,
                                          int32_t n_layers) {
    if (!path || !layers || n_layers < 1 || n_layers > MAX_LAYERS)
        return quire__fail(QUIRE_E_INVALID, "path or layers is NULL, or there are %d layers",
                           (int)n_layers);
    size_t bytes = sizeof MAGIC + sizeof n_layers + sizeof(quire_digest);
    for (int32_t i = 0; i < n_layers; i++) {
        QUIRE_TRY(check_layer(&layers[i], i));
        const head h = head_of(&layers[i]);
        const spans n = spans_of(&h);
        bytes += sizeof h + n.order + n.feedback + n.frequency;
    }
    if (bytes > MAX_FILE) /* no reader would take it */
        return quire__fail(QUIRE_E_TOO_BIG, "a calibration of %zu bytes: at most %d", bytes,
                           MAX_FILE);
    output out; /* not from malloc, which aligns to 16: a hash wants 64 */
    QUIRE_TRY(quire__writer_open(&out.writer, path));
    quire_status status = add_all(&out, layers, n_layers);
    if (status == QUIRE_OK)
        status = quire__writer_commit(&out.writer);
    quire__writer_abort(&out.writer);
    return status;
}

/* ------------------------------------------------------------------ reading */

/* The whole file: magic and checksum are right. The caller frees *bytes. */
static quire_status read_file(const char *path, uint8_t **bytes, size_t *n) {
    /* O_NONBLOCK: opening a FIFO would wait for a writer. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        const int error = errno;
        if (fd >= 0)
            close(fd);
        return quire__fail(QUIRE_E_IO, "%s cannot be read: %s", path, strerror(error));
    }
    quire_status status = QUIRE_OK;
    quire_digest digest;
    *bytes = NULL;
    if (!S_ISREG(info.st_mode))
        status = quire__fail(QUIRE_E_IO, "%s is not a regular file", path);
    else if (info.st_size < (off_t)(sizeof MAGIC + sizeof(int32_t) + sizeof digest.byte))
        status = quire__fail(QUIRE_E_TRUNCATED, "%s is too short for a calibration", path);
    else if (info.st_size > MAX_FILE)
        status = quire__fail(QUIRE_E_FOREIGN, "%s is too long for a calibration", path);
    *n = (size_t)info.st_size;
    if (status == QUIRE_OK && !(*bytes = malloc(*n)))
        status = quire__fail(QUIRE_E_NOMEM, "no memory for the %zu bytes of %s", *n, path);
    if (status == QUIRE_OK)
        status = quire__read_at(fd, 0, *bytes, *n);
    close(fd);
    if (status == QUIRE_OK && memcmp(*bytes, MAGIC, 12) != 0)
        status = quire__fail(QUIRE_E_FOREIGN, "%s is not a calibration", path);
    else if (status == QUIRE_OK && memcmp(*bytes, MAGIC, sizeof MAGIC) != 0)
        status = quire__fail(QUIRE_E_VERSION, "%s is a calibration of another version", path);
    if (status == QUIRE_OK) {
        *n -= sizeof digest.byte;
        digest = quire__hash_of(*bytes, *n);
        if (memcmp(digest.byte, *bytes + *n, sizeof digest.byte) != 0)
            status = quire__fail(QUIRE_E_CORRUPT, "%s is damaged: its checksum is wrong", path);
    }
    if (status != QUIRE_OK)
        free(*bytes);
    return status;
}

/* Walks over the layers. With `layers` it also sets them up: they point into the file's bytes. */
static bool walk(const uint8_t *bytes, size_t n, int32_t n_layers, quire_layer *layers,
                 quire_rope *ropes) {
    size_t at = sizeof MAGIC + sizeof n_layers;
    for (int32_t i = 0; i < n_layers; i++) {
        head h;
        if (n - at < sizeof h)
            return false;
        memcpy(&h, bytes + at, sizeof h);
        at += sizeof h;
        if (h.n_kv_heads < 0 || h.n_kv_heads > MAX_KV_HEADS || h.k_dim < 0 ||
            h.k_dim > QUIRE_DIM_MAX || h.n_rot < 0 || h.n_rot > QUIRE_DIM_MAX)
            return false;
        const spans s = spans_of(&h);
        if (n - at < s.order || n - at - s.order < s.feedback ||
            n - at - s.order - s.feedback < s.frequency)
            return false;
        const uint8_t *from = bytes + at;
        at += s.order + s.feedback + s.frequency;
        if (!layers)
            continue;
        quire_layer_default(&layers[i]);
        if (h.n_kv_heads == 0)
            continue;
        layers[i].n_kv_heads = layers[i].n_heads = h.n_kv_heads;
        layers[i].k_dim = layers[i].v_dim = h.k_dim;
        layers[i].k_order = (const uint16_t *)(const void *)from;
        layers[i].k_feedback =
            h.has_feedback ? (const float *)(const void *)(from + s.order) : NULL;
        if (!h.has_rope)
            continue;
        const float *frequency = (const float *)(const void *)(from + s.order + s.feedback);
        ropes[i] = (quire_rope){.first = h.rope_first,
                                .n_rot = h.n_rot,
                                .interleaved = h.interleaved != 0,
                                .base = h.base,
                                .scale = h.scale,
                                .frequency = h.has_frequency ? frequency : NULL};
        layers[i].k_rope = &ropes[i];
    }
    return at == n;
}

quire_status quire_calibration_file_read(const char *path, quire_layer **result,
                                         int32_t *n_result) {
    if (!path || !result || !n_result)
        return quire__fail(QUIRE_E_INVALID, "path, layers or n_layers is NULL");
    *result = NULL;
    uint8_t *bytes = NULL;
    size_t n = 0;
    QUIRE_TRY(read_file(path, &bytes, &n));
    int32_t n_layers;
    memcpy(&n_layers, bytes + sizeof MAGIC, sizeof n_layers);
    if (n_layers < 1 || n_layers > MAX_LAYERS || !walk(bytes, n, n_layers, NULL, NULL)) {
        free(bytes);
        return quire__fail(QUIRE_E_CORRUPT, "%s does not hold what it says", path);
    }
    const size_t count = (size_t)n_layers, ropes_at = count * sizeof **result,
                 bytes_at = ropes_at + count * sizeof(quire_rope);
    uint8_t *block = malloc(bytes_at + n);
    if (!block) {
        free(bytes);
        return quire__fail(QUIRE_E_NOMEM, "no memory for the calibration in %s", path);
    }
    memcpy(block + bytes_at, bytes, n);
    free(bytes);
    quire_layer *layers = (quire_layer *)(void *)block;
    walk(block + bytes_at, n, n_layers, layers, (quire_rope *)(void *)(block + ropes_at));
    for (int32_t i = 0; i < n_layers; i++) {
        if (check_layer(&layers[i], i) == QUIRE_OK)
            continue;
        const quire_status status = quire__fail_where(QUIRE_E_CORRUPT, "%s", path);
        free(block);
        return status;
    }
    *result = layers;
    *n_result = n_layers;
    return QUIRE_OK;
}
