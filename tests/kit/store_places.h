/* Stores at the place that QUIRE_TEST_STORE names, so that one test can run over every backend:
 * directory (the default), memory, redis, cluster, tiers. */
#ifndef QUIRE_TESTS_STORE_PLACES_H
#define QUIRE_TESTS_STORE_PLACES_H

#include "quire_store.h"

typedef enum place_kind {
    PLACE_DIRECTORY,
    PLACE_MEMORY,
    PLACE_REDIS,
    PLACE_CLUSTER,
    PLACE_TIERS
} place_kind;

place_kind places_kind(void);
/* 0, or what main returns: this machine or this build has no Redis. */
int places_missing(bool needs_redis);
/* The store `name` of this test; it exists until the test ends, except one in memory. Servers are
 * started when they are needed. options NULL: the defaults. */
quire_status places_open(quire_store **store, const char *name, const quire_store_options *options);
int places_teardown(void **state); /* as store_teardown; also ends servers */

#endif
