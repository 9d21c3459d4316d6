#include "rope.h"

#include <stdarg.h>
#include <stdio.h>

#include "codec/codec.h"

/* What rope_pairs.c reports becomes this library's last error. */
quire_status quire__fail(quire_status status, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return quire_cuda__fail_text(status, text);
}

quire_status quire_cuda__rope_pairs(const quire_rope *rope, int32_t dim, uint16_t *channels,
                                    double *angles) {
    quire_rope_pairs pairs;
    QUIRE_TRY(quire__rope_pairs_init(&pairs, rope, dim));
    for (int32_t j = 0; j < pairs.n; j++) {
        channels[2 * j] = pairs.first[j];
        channels[2 * j + 1] = pairs.second[j];
        angles[j] = pairs.angle[j];
    }
    return QUIRE_OK;
}
