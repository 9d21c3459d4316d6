#include "store_places.h"

#include <stdio.h>
#include <string.h>

#include "redis_kit.h"
#include "store_kit.h"

static redis_server server, nodes[REDIS_NODES];

place_kind places_kind(void) {
    static const char *const names[] = {"directory", "memory", "redis", "cluster", "tiers"};
    const char *wanted = getenv("QUIRE_TEST_STORE");
    for (int i = 0; wanted && i < 5; i++)
        if (strcmp(wanted, names[i]) == 0)
            return (place_kind)i;
    return PLACE_DIRECTORY;
}

int places_missing(bool needs_redis) {
    quire_store *store;
    if (!needs_redis)
        return 0;
    const bool is_built =
        quire_store_open(&store, "redis://127.0.0.1:1", NULL) != QUIRE_E_UNSUPPORTED;
    if (is_built && redis_is_installed())
        return 0;
    fprintf(stderr, "skipped: %s\n",
            is_built ? "the program redis-server is not installed"
                     : "the store was built without Redis");
    return getenv("QUIRE_REQUIRE_ALL") ? 1 : 77;
}

static const char *place_of(const char *name) {
    char query[120];
    snprintf(query, sizeof query, "timeout=20000&prefix=%s:", name);
    if (places_kind() == PLACE_CLUSTER) {
        static char url[300];
        if (!nodes[0].process)
            redis_start_cluster(nodes);
        snprintf(url, sizeof url, "redis+cluster%s", strchr(redis_place(&nodes[0], query), ':'));
        return url;
    }
    if (!server.process)
        redis_start(&server, NULL);
    return redis_place(&server, query);
}

quire_status places_open(quire_store **store, const char *name,
                         const quire_store_options *options) {
    const char *tiers[3];
    switch (places_kind()) {
    case PLACE_DIRECTORY:
        return quire_store_open(store, store_dir(name), options);
    case PLACE_MEMORY:
        return quire_store_open(store, "mem:64M", options);
    case PLACE_TIERS:
        tiers[0] = "mem:64M";
        tiers[1] = store_dir(name);
        tiers[2] = place_of(name);
        return quire_store_open_tiers(store, tiers, 3, options);
    default:
        return quire_store_open(store, place_of(name), options);
    }
}

int places_teardown(void **state) {
    redis_end_all();
    return store_teardown(state);
}
