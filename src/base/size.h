/* Size arithmetic with overflow checks, for every byte count that depends on a caller's number. */
#ifndef QUIRE_BASE_SIZE_H
#define QUIRE_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool quire__add(size_t a, size_t b, size_t *sum) {
    *sum = a + b;
    return *sum >= a;
}

static inline bool quire__mul(size_t a, size_t b, size_t *product) {
    if (b != 0 && a > SIZE_MAX / b)
        return false;
    *product = a * b;
    return true;
}

/* `alignment` is a power of two; the caller makes sure that x is far from SIZE_MAX. */
static inline size_t quire__align(size_t x, size_t alignment) {
    return (x + alignment - 1) & ~(alignment - 1);
}

#endif
