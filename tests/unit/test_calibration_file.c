/* A calibration as a file: what is written is read, and nothing else is. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "kit.h"

enum { N = 3, G = 2, DIM = 48 };

static char path[256];
static uint16_t order[G * DIM];
static float feedback[G * DIM * DIM / 2], frequency[DIM / 2];
static quire_rope rope;
static quire_layer layers[N];

static int set_up(void **state) {
    (void)state;
    rng r = {1};
    snprintf(path, sizeof path, "/tmp/quire-test-calibration-%ld", (long)getpid());
    memcpy(order, random_order(G, DIM), sizeof order);
    for (int h = 0; h < G; h++) {
        float moment[DIM * DIM] = {0};
        for (int i = 0; i < DIM; i++)
            moment[i * DIM + i] = 1 + (float)rng_uniform(&r);
        assert_ok(quire_channel_feedback(moment, NULL, DIM, feedback + h * DIM * DIM / 2));
    }
    rng_fill(&r, frequency, DIM / 2, 1);
    rope = (quire_rope){
        .first = 16, .n_rot = 32, .interleaved = true, .scale = 0.5f, .frequency = frequency};
    for (int i = 0; i < N; i++) {
        quire_layer_default(&layers[i]);
        layers[i].n_kv_heads = G;
        layers[i].k_dim = DIM;
    }
    layers[0].k_order = layers[2].k_order = order; /* layer 1 has none */
    layers[2].k_feedback = feedback;
    layers[2].k_rope = &rope;
    return 0;
}

static int clean_up(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

static void comes_back(void **state) {
    (void)state;
    quire_layer *back;
    int32_t n;
    assert_ok(quire_calibration_file_write(path, layers, N));
    assert_ok(quire_calibration_file_read(path, &back, &n));
    assert_int_equal(n, N);
    assert_int_equal(back[1].n_kv_heads, 0);
    assert_null(back[1].k_order);
    for (int i = 0; i < N; i += 2) {
        assert_int_equal(back[i].n_kv_heads, G);
        assert_int_equal(back[i].k_dim, DIM);
        assert_memory_equal(back[i].k_order, order, sizeof order);
    }
    assert_null(back[0].k_feedback);
    assert_null(back[0].k_rope);
    assert_memory_equal(back[2].k_feedback, feedback, sizeof feedback);
    const quire_rope *r = back[2].k_rope;
    assert_true(r->first == 16 && r->n_rot == 32 && r->interleaved && r->scale == 0.5f);
    assert_memory_equal(r->frequency, frequency, 16 * sizeof *frequency);
    free(back);
}

/* The file's bytes, which the caller frees. */
static uint8_t *read_bytes(size_t *size) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    *size = (size_t)info.st_size;
    uint8_t *bytes = malloc(*size);
    FILE *f = fopen(path, "rb");
    assert_int_equal(fread(bytes, 1, *size, f), *size);
    fclose(f);
    return bytes;
}

static void write_bytes(const uint8_t *bytes, size_t size) {
    FILE *f = fopen(path, "wb");
    fwrite(bytes, 1, size, f);
    fclose(f);
}

static void refuses_what_is_not_one(void **state) {
    (void)state;
    quire_layer *back;
    int32_t n;
    layers[0].k_order = order;
    const uint16_t first = order[0];
    order[0] = order[1];
    assert_status(quire_calibration_file_write(path, layers, N), QUIRE_E_INVALID);
    order[0] = first;
    assert_status(quire_calibration_file_write("/nowhere/at/all", layers, N), QUIRE_E_IO);
    assert_status(quire_calibration_file_read("/nowhere/at/all", &back, &n), QUIRE_E_IO);
    assert_ok(quire_calibration_file_write(path, layers, N));
    size_t size;
    uint8_t *bytes = read_bytes(&size);
    /* Every byte counts, and so does every length. */
    for (size_t at = 0; at < size; at += 1 + at / 64) {
        bytes[at] ^= 0x10;
        write_bytes(bytes, size);
        const quire_status status = quire_calibration_file_read(path, &back, &n);
        assert_true(status == (at < 12   ? QUIRE_E_FOREIGN
                               : at < 16 ? QUIRE_E_VERSION
                                         : QUIRE_E_CORRUPT));
        assert_null(back);
        bytes[at] ^= 0x10;
    }
    for (size_t length = 0; length < size; length += 1 + length / 16) {
        write_bytes(bytes, length);
        const quire_status status = quire_calibration_file_read(path, &back, &n);
        assert_true(status == (length < 36 ? QUIRE_E_TRUNCATED : QUIRE_E_CORRUPT));
    }
    free(bytes);
}

/* Right checksums, and contents that cannot be: nothing is written to. */
static void refuses_signed_nonsense(void **state) {
    (void)state;
    quire_layer *back;
    int32_t n = -7, wrong = 1000;
    assert_ok(quire_calibration_file_write(path, layers, N));
    size_t size;
    uint8_t *bytes = read_bytes(&size);
    memcpy(bytes + 16, &wrong, sizeof wrong);
    const quire_digest digest = quire__hash_of(bytes, size - sizeof digest.byte);
    memcpy(bytes + size - sizeof digest.byte, digest.byte, sizeof digest.byte);
    write_bytes(bytes, size);
    free(bytes);
    assert_status(quire_calibration_file_read(path, &back, &n), QUIRE_E_CORRUPT);
    assert_int_equal(n, -7);
}

/* What could not be read back is not written. */
static void refuses_what_is_too_long(void **state) {
    (void)state;
    enum { HEADS = 512, BIG = 128, LAYERS = 80 };
    static quire_layer many[LAYERS];
    const size_t n_feedback = (size_t)HEADS * BIG * BIG / 2;
    float *zeros = calloc(n_feedback, sizeof *zeros);
    uint16_t *orders = malloc((size_t)HEADS * BIG * sizeof *orders);
    for (int i = 0; i < HEADS * BIG; i++)
        orders[i] = (uint16_t)(i % BIG);
    for (int i = 0; i < LAYERS; i++) { /* they may all be one */
        quire_layer_default(&many[i]);
        many[i].n_kv_heads = HEADS;
        many[i].k_dim = BIG;
        many[i].k_order = orders;
        many[i].k_feedback = zeros;
    }
    assert_status(quire_calibration_file_write(path, many, LAYERS), QUIRE_E_TOO_BIG);
    assert_ok(quire_calibration_file_write(path, many, 1));
    free(zeros), free(orders);
}

static void waits_for_nobody(void **state) {
    (void)state;
    quire_layer *back;
    int32_t n;
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_status(quire_calibration_file_read(path, &back, &n), QUIRE_E_IO);
    assert_non_null(strstr(quire_last_error(), "is not a regular file"));
    unlink(path);
    assert_status(quire_calibration_file_read("/tmp", &back, &n), QUIRE_E_IO);
    assert_non_null(strstr(quire_last_error(), "is not a regular file"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back), cmocka_unit_test(refuses_what_is_not_one),
        cmocka_unit_test(refuses_signed_nonsense), cmocka_unit_test(refuses_what_is_too_long),
        cmocka_unit_test(waits_for_nobody)};
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
