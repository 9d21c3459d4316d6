#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

/* errno's model: one message per thread, so that concurrent callers never see each other's. */
static _Thread_local char last_error[320];

quire_status quire__fail(quire_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return status;
}

const char *quire_last_error(void) { return last_error; }

const char *quire_status_name(quire_status status) {
    switch (status) {
#define CASE(name, value, text)                                                                                        \
    case QUIRE_##name:                                                                                                 \
        return "QUIRE_" #name;
        QUIRE_STATUS_MAP(CASE)
#undef CASE
    }
    return "QUIRE_E_?";
}

const char *quire_status_text(quire_status status) {
    switch (status) {
#define CASE(name, value, text)                                                                                        \
    case QUIRE_##name:                                                                                                 \
        return text;
        QUIRE_STATUS_MAP(CASE)
#undef CASE
    }
    return "unknown status";
}

#define STRING_(x) #x
#define STRING(x) STRING_(x)

const char *quire_version(void) {
    return STRING(QUIRE_VERSION_MAJOR) "." STRING(QUIRE_VERSION_MINOR) "." STRING(QUIRE_VERSION_PATCH);
}
