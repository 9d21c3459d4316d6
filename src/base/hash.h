/* XXH3-128: a checksum for whole files, at memory speed. Not cryptographic: anyone can construct
 * bytes that match. */
#ifndef QUIRE_BASE_HASH_H
#define QUIRE_BASE_HASH_H

#include "base/internal.h"

#include <stddef.h>
#include <stdint.h>

typedef struct quire_digest {
    uint8_t byte[16]; /* as XXH128_canonicalFromHash writes them */
} quire_digest;

/* As large and aligned as xxHash requires; hash.c asserts it. */
typedef struct quire_hash {
    _Alignas(64) uint8_t state[640];
} quire_hash;

QUIRE_INTERNAL void quire__hash_start(quire_hash *hash);
QUIRE_INTERNAL void quire__hash_add(quire_hash *hash, const void *bytes, size_t n_bytes);
QUIRE_INTERNAL quire_digest quire__hash_end(const quire_hash *hash);
QUIRE_INTERNAL quire_digest quire__hash_of(const void *bytes, size_t n_bytes);
/* 32 hexadecimal digits and a final 0. */
QUIRE_INTERNAL void quire__digest_text(quire_digest digest, char text[33]);

#endif
