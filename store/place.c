/* What the name of a place means: a directory, memory, or a Redis server. */
#include <stdio.h>
#include <string.h>

#include "byte_count.h"
#include "store/redis_url.h"
#include "store/store.h"

static const char MEMORY[] = "mem:";

quire_place_kind quire__place_kind(const char *place) {
    if (strncmp(place, MEMORY, sizeof MEMORY - 1) == 0)
        return QUIRE_PLACE_MEMORY;
    return quire__redis_is_url(place) ? QUIRE_PLACE_REDIS : QUIRE_PLACE_DIRECTORY;
}

void quire_store_place_text(const char *place, char text[QUIRE_STORE_PLACE_TEXT]) {
    if (place && quire__redis_is_url(place))
        quire__redis_url_text(place, text, QUIRE_STORE_PLACE_TEXT);
    else
        snprintf(text, QUIRE_STORE_PLACE_TEXT, "%s", place ? place : "");
}

quire_status quire__place_open(quire_backend **backend, const char *place,
                               const quire_store_options *o, bool must_connect) {
    size_t max_bytes;
    switch (quire__place_kind(place)) {
    case QUIRE_PLACE_MEMORY:
        if (!quire__byte_count_parse(place + sizeof MEMORY - 1, &max_bytes) ||
            max_bytes < 1 << 20 || max_bytes > SIZE_MAX / 2)
            return quire__fail(QUIRE_E_INVALID,
                               "'%.80s' is not a size of memory: write mem:256M, "
                               "with " QUIRE_BYTE_UNITS ", and at least mem:1M",
                               place);
        return quire__memory_open(backend, max_bytes);
    case QUIRE_PLACE_REDIS:
        return quire__redis_open(backend, place, o, must_connect);
    default:
        return quire__lmdb_open(backend, place, o);
    }
}
