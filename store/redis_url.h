/* The URL of a Redis server (quire_store.h has its form). */
#ifndef QUIRE_STORE_REDIS_URL_H
#define QUIRE_STORE_REDIS_URL_H

#include "store/store.h"

enum { QUIRE_REDIS_PREFIX = 64, QUIRE_REDIS_FILE = 256 };

typedef struct quire_redis_url {
    bool has_tls, is_cluster;
    char host[256], port[8];
    int32_t db;
    char user[128], password[512]; /* "": none */
    char prefix[QUIRE_REDIS_PREFIX];
    int32_t ttl_seconds; /* 0: pages do not expire */
    int32_t timeout_millis;
    char ca_file[QUIRE_REDIS_FILE], cert_file[QUIRE_REDIS_FILE], key_file[QUIRE_REDIS_FILE];
} quire_redis_url;

bool quire__redis_is_url(const char *place);
/* Also finds the password. Messages do not contain it. E_INVALID, E_IO: the file with the password
 * cannot be read. */
quire_status quire__redis_url_read(const char *place, quire_redis_url *url);
/* The URL without user, password and parameters. */
void quire__redis_url_text(const char *place, char *text, size_t n);

#endif
