/* cmocka for cross builds, where its library is not at hand: the functions behind cmocka.h that
 * the tests call. The first failure ends the program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void _fail(const char *const file, const int line) {
    fprintf(stderr, "%s:%d: failed\n", file, line);
    exit(1);
}

/* Back to the loop over tests. */
static jmp_buf skipped;

void _skip(const char *const file, const int line) {
    fprintf(stderr, "%s:%d: skipped\n", file, line);
    longjmp(skipped, 1);
}

void vprint_error(const char *const format, va_list args) { vfprintf(stderr, format, args); }

void print_error(const char *const format, ...) {
    va_list args;
    va_start(args, format);
    vprint_error(format, args);
    va_end(args);
}

void print_message(const char *const format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
}

static void check(int good, const char *what, const char *file, int line) {
    if (good)
        return;
    fprintf(stderr, "%s\n", what);
    _fail(file, line);
}

void _assert_true(const LargestIntegralType result, const char *const expression,
                  const char *const file, const int line) {
    check(result != 0, expression, file, line);
}

void _assert_int_equal(const LargestIntegralType a, const LargestIntegralType b,
                       const char *const file, const int line) {
    char what[80];
    snprintf(what, sizeof what, "%lld != %lld", (long long)a, (long long)b);
    check(a == b, what, file, line);
}

void _assert_string_equal(const char *const a, const char *const b, const char *const file,
                          const int line) {
    check(strcmp(a, b) == 0, a, file, line);
}

void _assert_string_not_equal(const char *const a, const char *const b, const char *file,
                              const int line) {
    check(strcmp(a, b) != 0, a, file, line);
}

void _assert_memory_equal(const void *const a, const void *const b, const size_t size,
                          const char *const file, const int line) {
    check(memcmp(a, b, size) == 0, "different memory", file, line);
}

void _assert_in_range(const LargestIntegralType value, const LargestIntegralType minimum,
                      const LargestIntegralType maximum, const char *const file, const int line) {
    check(value >= minimum && value <= maximum, "out of range", file, line);
}

static void run(CMUnitTestFunction test, void **state) {
    if (!setjmp(skipped))
        test(state);
}

int _cmocka_run_group_tests(const char *group_name, const struct CMUnitTest *const tests,
                            const size_t num_tests, CMFixtureFunction group_setup,
                            CMFixtureFunction group_teardown) {
    void *group = NULL;
    check(!group_setup || group_setup(&group) == 0, "group setup", group_name, 0);
    for (size_t i = 0; i < num_tests; i++) {
        void *state = group;
        printf("%s\n", tests[i].name);
        fflush(stdout);
        check(!tests[i].setup_func || tests[i].setup_func(&state) == 0, "setup", tests[i].name, 0);
        run(tests[i].test_func, &state);
        check(!tests[i].teardown_func || tests[i].teardown_func(&state) == 0, "teardown",
              tests[i].name, 0);
    }
    check(!group_teardown || group_teardown(&group) == 0, "group teardown", group_name, 0);
    printf("%zu tests passed\n", num_tests);
    return 0;
}
