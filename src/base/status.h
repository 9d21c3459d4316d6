/* Reporting failure: a status for the program, a sentence for the user. */
#ifndef QUIRE_BASE_STATUS_H
#define QUIRE_BASE_STATUS_H

#include "base/internal.h"
#include "quire.h"

#if defined(__GNUC__)
#define QUIRE_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define QUIRE_PRINTF(fmt, args)
#endif

/* Stores the message for quire_last_error() in this thread and returns `status`. */
QUIRE_INTERNAL quire_status quire__fail(quire_status status, const char *format, ...)
    QUIRE_PRINTF(2, 3);

/* Prefixes the last message with where it happened, "<where>: <message>", and returns `status`. */
quire_status quire__fail_where(quire_status status, const char *format, ...) QUIRE_PRINTF(2, 3);

#define QUIRE_TRY(call)                                                                            \
    do {                                                                                           \
        const quire_status status_ = (call);                                                       \
        if (status_ != QUIRE_OK)                                                                   \
            return status_;                                                                        \
    } while (0)

#endif
