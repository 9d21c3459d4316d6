/* Numbers of bytes as people write them: common/byte_count.c, for the command line's options, the
 * plug-in's QUIRE_KV_BYTES and the store's mem:SIZE. */
#include <stdint.h>
#include <stdio.h>

#include "byte_count.h"
#include "kit.h"

static void taken(const char *text, uint64_t expected) {
    size_t bytes = 0;
    if (!quire__byte_count_parse(text, &bytes) || bytes != expected)
        fail_msg("'%s' gave %zu", text, bytes);
}

static void refused(const char *text) {
    size_t bytes = 77;
    if (quire__byte_count_parse(text, &bytes))
        fail_msg("'%s' gave %zu", text, bytes);
    assert_int_equal(bytes, 77);
}

static void test_plain(void **state) {
    (void)state;
    taken("0", 0);
    taken("1", 1);
    taken("65536", 65536);
    taken("0000000000000000000000512", 512);
}

static void test_units(void **state) {
    (void)state;
    static const char units[] = "KMGTkmgt";
    static const char *const behind[] = {"", "B", "i", "iB"};
    for (int i = 0; units[i]; i++) {
        const int shift = 10 * (i % 4 + 1);
        for (size_t j = 0; j < sizeof behind / sizeof behind[0]; j++) {
            char text[16];
            snprintf(text, sizeof text, "3%c%s", units[i], behind[j]);
            if (shift < 8 * (int)sizeof(size_t))
                taken(text, UINT64_C(3) << shift);
            else
                refused(text);
            snprintf(text, sizeof text, "0%c%s", units[i], behind[j]);
            taken(text, 0);
        }
    }
    taken("512M", 512 << 20);
    taken("1025K", 1025 << 10);
}

static void test_not_numbers(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",    " ",     "many", "K",   "GB",   "-1",    "-0",   "+1",  " 1",   "1 ",  "\t1",
        "1\n", "1 K",   "1K ",  "1 0", "1,5G", "0.5G",  "1.5",  "1.",  ".5M",  "1e9", "0x10",
        "1P",  "1E",    "1X",   "1B",  "1b",   "1i",    "1iB",  "1KK", "1MG",  "1Kb", "1KIB",
        "1KI", "1KiBs", "1KBi", "1K1", "1-",   "4G,8G", "4G:1", "१",   "1\xc3"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        refused(texts[i]);
}

/* The largest number that each unit can have, and one more. */
static void test_largest(void **state) {
    (void)state;
    static const char units[] = " KMGT";
    for (int i = 0; units[i]; i++) {
        const uint64_t most = i < 4 || sizeof(size_t) > 4 ? SIZE_MAX >> 10 * i : 0;
        const char unit[] = {i ? units[i] : '\0', '\0'};
        char text[32];
        snprintf(text, sizeof text, "%llu%s", (unsigned long long)most, unit);
        taken(text, most << 10 * i);
        if (most < UINT64_MAX) {
            snprintf(text, sizeof text, "%llu%s", (unsigned long long)most + 1, unit);
            refused(text);
        }
    }
    refused("18446744073709551616"); /* 2^64 */
    refused("18446744073709551620"); /* the last digit alone is too much */
    refused("184467440737095516150");
    refused("99999999999999999999999999999999999999T");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_units),
        cmocka_unit_test(test_not_numbers),
        cmocka_unit_test(test_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
