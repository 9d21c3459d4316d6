/* Status names, and the last error message of each thread. */
#include "base/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Like errno: one message per thread, so that concurrent callers never see each other's. */
static _Thread_local char last_error[320];

/* Bytes of the UTF-8 character at s; 0: invalid, or a control character. */
static int character_bytes(const unsigned char *s) {
    if (s[0] < 0x80)
        return s[0] >= 0x20 && s[0] != 0x7f;
    const int n = s[0] >= 0xc2 && s[0] < 0xe0   ? 2
                  : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                  : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    const unsigned second = s[1];
    const bool beyond = (s[0] == 0xc2 && second < 0xa0) || (s[0] == 0xe0 && second < 0xa0) ||
                        (s[0] == 0xed && second >= 0xa0) || (s[0] == 0xf0 && second < 0x90) ||
                        (s[0] == 0xf4 && second >= 0x90);
    return beyond ? 0 : n;
}

/* Messages quote names from untrusted files: whatever is not printable text becomes a question
 * mark. */
static void keep_text(char *message) {
    for (unsigned char *s = (unsigned char *)message; *s;) {
        const int n = character_bytes(s);
        if (n == 0)
            *s = '?';
        s += n ? n : 1;
    }
}

quire_status quire__fail(quire_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    keep_text(last_error);
    return status;
}

quire_status quire__fail_where(quire_status status, const char *format, ...) {
    char sentence[sizeof last_error];
    memcpy(sentence, last_error, sizeof sentence);
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    const size_t n = strlen(last_error);
    const int left = (int)(sizeof last_error - n);
    snprintf(last_error + n, (size_t)left, ": %.*s", left, sentence); /* cut off at the end */
    keep_text(last_error);
    return status;
}

const char *quire_last_error(void) { return last_error; }

const char *quire_status_name(quire_status status) {
    switch (status) {
#define CASE(name, value, text)                                                                    \
    case QUIRE_##name:                                                                             \
        return "QUIRE_" #name;
        QUIRE_STATUS_MAP(CASE)
#undef CASE
    }
    return "QUIRE_E_?";
}

const char *quire_status_text(quire_status status) {
    switch (status) {
#define CASE(name, value, text)                                                                    \
    case QUIRE_##name:                                                                             \
        return text;
        QUIRE_STATUS_MAP(CASE)
#undef CASE
    }
    return "unknown status";
}

#define STRING_(x) #x
#define STRING(x) STRING_(x)

const char *quire_version(void) {
    return STRING(QUIRE_VERSION_MAJOR) "." STRING(QUIRE_VERSION_MINOR) "." STRING(
        QUIRE_VERSION_PATCH);
}
