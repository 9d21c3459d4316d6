/* A build without hiredis. */
#include "store/store.h"

quire_status quire__redis_open(quire_backend **backend, const char *url,
                               const quire_store_options *options, bool must_connect) {
    (void)backend, (void)options, (void)must_connect;
    char text[QUIRE_STORE_PLACE_TEXT];
    quire_store_place_text(url, text);
    return quire__fail(QUIRE_E_UNSUPPORTED,
                       "'%.120s' cannot be opened: this library was built without Redis; install "
                       "hiredis (Debian: libhiredis-dev) and build it again",
                       text);
}
