/* text_filter.h: from the bytes of tokens to text that may be sent. Tokens end inside characters
 * and inside stop texts, so a few bytes are held back until it is clear what they are. */
#ifndef SERVER_BASE_TEXT_FILTER_H
#define SERVER_BASE_TEXT_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that grow; terminated with a 0 once there are any. */
typedef struct srv_bytes {
    char *data;
    size_t n, capacity;
} srv_bytes;

bool srv_bytes_add(srv_bytes *bytes, const char *data, size_t n); /* false: out of memory */
void srv_bytes_free(srv_bytes *bytes);

typedef struct srv_filter {
    const char *const *stops; /* (n_stops) borrowed; none is empty */
    int32_t n_stops;
    srv_bytes held;
    bool stopped; /* a stop text was found; nothing follows */
} srv_filter;

void srv_filter_init(srv_filter *filter, const char *const *stops, int32_t n_stops);
void srv_filter_free(srv_filter *filter);
/* Takes the bytes of a token and appends to `out` what is certain: whole characters that are not
 * part of a stop text. Bytes that are not UTF-8 become U+FFFD. False: out of memory. */
bool srv_filter_add(srv_filter *filter, const char *bytes, size_t n, srv_bytes *out);
/* The text ends here: appends what was held back. False: out of memory. */
bool srv_filter_end(srv_filter *filter, srv_bytes *out);

#endif
