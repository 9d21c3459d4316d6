/* XXH3-128, over the header of xxHash. */
#include "base/hash.h"

#include <string.h>

#define XXH_INLINE_ALL /* no library to link */
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(quire_hash), "quire_hash must hold xxHash's state");

static quire_digest digest_of(XXH128_hash_t hash) {
    XXH128_canonical_t canonical;
    quire_digest digest;
    XXH128_canonicalFromHash(&canonical, hash);
    memcpy(digest.byte, canonical.digest, sizeof digest.byte);
    return digest;
}

void quire__hash_start(quire_hash *hash) {
    XXH3_128bits_reset((XXH3_state_t *)(void *)hash->state);
}

void quire__hash_add(quire_hash *hash, const void *bytes, size_t n_bytes) {
    XXH3_128bits_update((XXH3_state_t *)(void *)hash->state, bytes, n_bytes);
}

quire_digest quire__hash_end(const quire_hash *hash) {
    return digest_of(XXH3_128bits_digest((const XXH3_state_t *)(const void *)hash->state));
}

quire_digest quire__hash_of(const void *bytes, size_t n_bytes) {
    return digest_of(XXH3_128bits(bytes, n_bytes));
}

void quire__digest_text(quire_digest digest, char text[33]) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof digest.byte; i++) {
        text[2 * i] = digits[digest.byte[i] >> 4];
        text[2 * i + 1] = digits[digest.byte[i] & 15];
    }
    text[2 * sizeof digest.byte] = 0;
}
