/* byte_count.h: numbers of bytes as people write them, in options, settings and names of places. */
#ifndef QUIRE_COMMON_BYTE_COUNT_H
#define QUIRE_COMMON_BYTE_COUNT_H

#include <stdbool.h>
#include <stddef.h>

/* What messages say of the units below. */
#define QUIRE_BYTE_UNITS "K, M, G or T"

/* Digits, and behind them nothing, or K, M, G or T in either case: powers of 1024. "B" or "iB" may
 * follow the unit ("512MiB"). False, and *bytes as it was: the text is something else, with spaces,
 * a sign or a fraction for example, or more than a size_t holds. */
bool quire__byte_count_parse(const char *text, size_t *bytes);

#endif
