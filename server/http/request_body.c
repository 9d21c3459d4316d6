/* request_body.c: see request_body.h. */
#include "http/request_body.h"

#include <stdlib.h>
#include <string.h>

void srv_body_init(srv_body *body, srv_body_budget *budget) {
    *body = (srv_body){.budget = budget};
}

static bool take(srv_body_budget *budget, size_t bytes) {
    size_t used = atomic_load(&budget->used);
    do {
        if (bytes > budget->max_all - used)
            return false;
    } while (!atomic_compare_exchange_weak(&budget->used, &used, used + bytes));
    return true;
}

static srv_body_status grow(srv_body *body, size_t needed) {
    size_t capacity = body->capacity ? 2 * body->capacity : 4096;
    if (capacity < needed)
        capacity = needed;
    if (capacity > body->budget->max_body)
        capacity = body->budget->max_body;
    const size_t more = capacity - body->capacity;
    if (!take(body->budget, more))
        return SRV_BODY_NO_ROOM;
    char *bytes = realloc(body->bytes, capacity + 1);
    if (!bytes) {
        atomic_fetch_sub(&body->budget->used, more);
        return SRV_BODY_NO_ROOM;
    }
    body->bytes = bytes;
    body->capacity = capacity;
    return SRV_BODY_OK;
}

srv_body_status srv_body_add(srv_body *body, const char *bytes, size_t n) {
    if (n > body->budget->max_body - body->n)
        return SRV_BODY_TOO_LARGE;
    if (n > body->capacity - body->n) {
        const srv_body_status status = grow(body, body->n + n);
        if (status != SRV_BODY_OK)
            return status;
    }
    memcpy(body->bytes + body->n, bytes, n);
    body->n += n;
    body->bytes[body->n] = 0;
    return SRV_BODY_OK;
}

void srv_body_free(srv_body *body) {
    free(body->bytes);
    if (body->budget)
        atomic_fetch_sub(&body->budget->used, body->capacity);
    body->bytes = NULL;
    body->n = body->capacity = 0;
}
