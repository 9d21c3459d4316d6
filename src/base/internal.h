/* Functions of libquire that libquire_store and libquire_engine call: exported by the shared
 * library, but not part of its API. They change without notice, so the three libraries must come
 * from the same build. */
#ifndef QUIRE_BASE_INTERNAL_H
#define QUIRE_BASE_INTERNAL_H

#if defined(QUIRE_BUILD) && defined(__GNUC__)
#define QUIRE_INTERNAL __attribute__((visibility("default")))
#else
#define QUIRE_INTERNAL
#endif

#endif
