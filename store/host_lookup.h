/* Addresses of a host. A name is looked up by a thread of its own: getaddrinfo knows no deadline,
 * and a call of a store has one. */
#ifndef QUIRE_STORE_HOST_LOOKUP_H
#define QUIRE_STORE_HOST_LOOKUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QUIRE_HOST_ADDRESSES = 8 };

typedef struct quire_host_address {
    int family;
    unsigned int n_bytes;
    _Alignas(16) uint8_t bytes[128]; /* a sockaddr */
} quire_host_address;

typedef struct quire_host {
    int error; /* of getaddrinfo; 0 if it was found */
    size_t n_addresses;
    quire_host_address address[QUIRE_HOST_ADDRESSES];
} quire_host;

/* False: `name` is not a number such as 127.0.0.1 or ::1, and must be looked up. */
bool quire__host_of_number(const char *name, const char *port, quire_host *host);
/* Starts to look up a name. Returns what can be read when that is done, by quire__lookup_end, or -1
 * and errno. Whoever no longer waits closes it. */
int quire__lookup_start(const char *name, const char *port);
/* Reads the result, and closes `lookup`. */
void quire__lookup_end(int lookup, quire_host *host);

#endif
