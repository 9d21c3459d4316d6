/* text_filter.h: from the bytes of tokens to text that may be sent. Tokens end inside characters
 * and inside stop texts, so a few bytes are held back until it is clear what they are. */
#ifndef SERVER_BASE_TEXT_FILTER_H
#define SERVER_BASE_TEXT_FILTER_H

#include "base/growing_text.h"

#include <stdint.h>

typedef struct srv_filter {
    const char *const *stops; /* (n_stops) borrowed; none is empty */
    int32_t n_stops;
    srv_text held;
    bool stopped; /* a stop text was found; nothing follows */
} srv_filter;

void srv_filter_init(srv_filter *filter, const char *const *stops, int32_t n_stops);
void srv_filter_free(srv_filter *filter);
/* Takes the bytes of a token and appends to `out` what is certain: whole characters that are not
 * part of a stop text. Bytes that are not UTF-8 become U+FFFD. out->failed: out of memory. */
void srv_filter_add(srv_filter *filter, const char *bytes, size_t n, srv_text *out);
/* The text ends here: appends what was held back. */
void srv_filter_end(srv_filter *filter, srv_text *out);

#endif
