/* Messages are text, whatever they quote. */
#include <string.h>

#include "base/status.h"
#include "kit.h"

static void quoted(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"plain", "plain"},
        {"модель.gguf 模型 🜁", "модель.gguf 模型 🜁"},
        {"\x1b[31mred\x07\x7f\n", "?[31mred???"},
        {"\xbc\xe4 \xc3", "?? ?"},                     /* no character begins or ends so */
        {"\xc0\x80 \xe0\x80\x80", "?? ???"},           /* longer than need be */
        {"\xed\xa0\x80 \xf4\x90\x80\x80", "??? ????"}, /* surrogates, beyond Unicode */
        {"\xc2\x9b"
         "31m",
         "??31m"}, /* a control character of two bytes */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(quire__fail(QUIRE_E_MODEL, "%s", cases[i][0]), QUIRE_E_MODEL);
        assert_string_equal(quire_last_error(), cases[i][1]);
    }
}

static void cut_off(void **state) /* in the middle of a character */ {
    (void)state;
    char name[1000];
    memset(name, 0, sizeof name);
    for (int shift = 0; shift < 4; shift++) {
        memset(name, 'x', 4);
        for (size_t at = (size_t)shift; at + 3 < sizeof name - 1; at += 3)
            memcpy(name + at, "模", 3);
        quire__fail(QUIRE_E_MODEL, "%s", name);
        const char *text = quire_last_error(), *end = text + strlen(text);
        assert_true(end - text > 300 &&
                    ((unsigned char)end[-1] < 0x80 || memcmp(end - 3, "模", 3) == 0));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(quoted), cmocka_unit_test(cut_off)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
