/* Which node of a Redis cluster serves a key. Keys are spread over all slots, so that a long text
 * is read from many nodes at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/millis.h"
#include "store/redis_store.h"

enum { REDIRECTIONS = 5, MAP_MILLIS = 1000 };

/* ------------------------------------------------------------------ slots */

/* CRC16 (XMODEM), as Redis Cluster defines it. */
static uint16_t crc16(const char *bytes, size_t n) {
    uint16_t crc = 0;
    for (size_t i = 0; i < n; i++) {
        crc = (uint16_t)(crc ^ (uint16_t)((uint8_t)bytes[i] << 8));
        for (int bit = 0; bit < 8; bit++)
            crc = (uint16_t)(crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
    }
    return crc;
}

uint32_t quire__redis_slot(const char *key, size_t n) {
    const char *open = memchr(key, '{', n); /* a prefix may have a hash tag */
    const char *close = open ? memchr(open, '}', n - (size_t)(open - key)) : NULL;
    if (close && close > open + 1) {
        n = (size_t)(close - open - 1);
        key = open + 1;
    }
    return crc16(key, n) % QUIRE_REDIS_SLOTS;
}

static bool is_retired(const quire_redis_link *link) { return link->host[0] == '\0'; }

quire_status quire__redis_link_to(quire_redis *r, const char *host, const char *port,
                                  quire_redis_link **link) {
    quire_redis_link *fresh = NULL;
    for (size_t i = 0; i < r->n_links; i++) {
        *link = r->links[i];
        if (strcmp((*link)->host, host) == 0 && strcmp((*link)->port, port) == 0)
            return QUIRE_OK;
        if (is_retired(*link))
            fresh = *link;
    }
    if (!fresh) {
        if (r->n_links == QUIRE_REDIS_LINKS)
            return quire__fail(QUIRE_E_TOO_BIG, "the Redis cluster has more than %d nodes",
                               QUIRE_REDIS_LINKS);
        fresh = calloc(1, sizeof *fresh);
        if (!fresh)
            return quire__fail(QUIRE_E_NOMEM, "out of memory while opening a node of the cluster");
        r->links[r->n_links++] = fresh;
    }
    const quire_status status = quire__link_init(fresh, &r->url, host, port);
    if (status != QUIRE_OK)
        quire__link_retire(fresh);
    *link = fresh;
    return status;
}

bool quire__redis_serves(const quire_redis *r, size_t link) {
    bool is = !r->slot;
    for (size_t s = 0; r->slot && s < QUIRE_REDIS_SLOTS && !is; s++)
        is = r->slot[s] == link + 1;
    return is;
}

/* Nodes leave, and in many places come back under another address. Links to those that serve no
 * slot are given up, unless a call waits for them or the URL names them. */
static void retire_links(quire_redis *r) {
    for (size_t i = 1; i < r->n_links; i++)
        if (!quire__redis_serves(r, i) && r->links[i]->n_waiting == 0)
            quire__link_retire(r->links[i]);
}

/* ------------------------------------------------------------------ the map */

static uint16_t number_of(const quire_redis *r, const quire_redis_link *link) {
    size_t i = 0;
    while (r->links[i] != link)
        i++;
    return (uint16_t)(i + 1);
}

/* [first slot, last slot, [host, port, ..], replicas..] */
static quire_status read_range(quire_redis *r, const quire_redis_link *from,
                               const redisReply *range, uint16_t *slot) {
    const redisReply *const *e = (const redisReply *const *)range->element;
    if (range->type != REDIS_REPLY_ARRAY || range->elements < 3 ||
        e[0]->type != REDIS_REPLY_INTEGER || e[1]->type != REDIS_REPLY_INTEGER ||
        e[0]->integer < 0 || e[1]->integer >= QUIRE_REDIS_SLOTS ||
        e[2]->type != REDIS_REPLY_ARRAY || e[2]->elements < 2 ||
        e[2]->element[1]->type != REDIS_REPLY_INTEGER)
        return quire__fail(QUIRE_E_IO,
                           "Redis at %s describes its cluster in a way that this "
                           "program does not know",
                           from->name);
    const redisReply *host = e[2]->element[0]; /* empty: the node that was asked */
    char port[8];
    snprintf(port, sizeof port, "%d", (int)(e[2]->element[1]->integer & 0xffff));
    quire_redis_link *link;
    QUIRE_TRY(quire__redis_link_to(
        r, host->type == REDIS_REPLY_STRING && host->len > 0 ? host->str : from->host, port,
        &link));
    for (long long s = e[0]->integer; s <= e[1]->integer; s++)
        slot[s] = number_of(r, link);
    return QUIRE_OK;
}

static quire_status read_map_from(quire_redis *r, quire_redis_link *link, int64_t deadline) {
    static const char *const words[] = {"CLUSTER", "SLOTS"};
    redisReply *reply = NULL;
    QUIRE_TRY(quire__link_ready(link, deadline));
    if (link->n_waiting > 0) /* it has been given commands of this call */
        return quire__fail(QUIRE_E_BUSY, "Redis at %s is in use", link->name);
    QUIRE_TRY(quire__link_add(link, 2, words, NULL));
    QUIRE_TRY(quire__link_send(link, deadline));
    QUIRE_TRY(quire__link_reply(link, deadline, &reply));
    quire_status status = QUIRE_OK;
    if (reply->type == REDIS_REPLY_ERROR && strstr(reply->str, "cluster support disabled"))
        status = quire__fail(QUIRE_E_INVALID,
                             "Redis at %s is not a node of a cluster: write redis:// instead of "
                             "redis+cluster://",
                             link->name);
    else if (reply->type != REDIS_REPLY_ARRAY)
        status = quire__redis_refused(link, reply);
    uint16_t *slot = status == QUIRE_OK ? calloc(QUIRE_REDIS_SLOTS, sizeof *slot) : NULL;
    if (status == QUIRE_OK && !slot)
        status = quire__fail(QUIRE_E_NOMEM, "out of memory while reading the map of the cluster");
    for (size_t i = 0; status == QUIRE_OK && i < reply->elements; i++)
        status = read_range(r, link, reply->element[i], slot);
    freeReplyObject(reply);
    if (status == QUIRE_OK) {
        memcpy(r->slot, slot, QUIRE_REDIS_SLOTS * sizeof *slot);
        retire_links(r);
    }
    free(slot);
    return status;
}

/* Any node knows it. Those that rest answer at once that they do; each of the others may take half
 * of the time that is left, so that something is left for the call itself. */
static quire_status read_map(quire_redis *r, int64_t deadline) {
    quire_status status = QUIRE_E_IO;
    for (size_t i = 0; i < r->n_links; i++) {
        if (is_retired(r->links[i]))
            continue;
        const int64_t now = quire__millis();
        status = read_map_from(r, r->links[i], now + (deadline - now) / 2);
        if (status == QUIRE_OK || status == QUIRE_E_INVALID || status == QUIRE_E_NOMEM)
            break;
    }
    r->is_map_stale = status != QUIRE_OK;
    r->map_millis = quire__millis();
    return status;
}

quire_status quire__redis_route(quire_redis *r, const char *key, size_t n_bytes, int64_t deadline,
                                quire_redis_link **link) {
    *link = r->links[0];
    if (!r->slot)
        return QUIRE_OK;
    if (r->map_millis == 0 || (r->is_map_stale && quire__millis() - r->map_millis >= MAP_MILLIS)) {
        const bool is_first = r->map_millis == 0;
        const quire_status status = read_map(r, deadline);
        if (is_first && status != QUIRE_OK) {
            r->map_millis = 0;
            return status;
        }
    }
    const uint32_t slot = key ? quire__redis_slot(key, n_bytes) : 0;
    if (key && r->slot[slot] == 0)
        return quire__fail(QUIRE_E_BUSY,
                           "no node of the Redis cluster at %s serves slot %u. Try "
                           "again later",
                           r->links[0]->name, (unsigned)slot);
    if (key)
        *link = r->links[r->slot[slot] - 1];
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ redirections */

/* "MOVED 3999 127.0.0.1:6381" */
static bool read_redirection(const char *text, uint32_t *slot, char host[256], char port[8]) {
    unsigned number;
    int n = 0;
    if (sscanf(text, "%*s %u %n", &number, &n) != 1 || n == 0 || number >= QUIRE_REDIS_SLOTS)
        return false;
    const char *colon = strrchr(text + n, ':');
    if (!colon || colon - (text + n) >= 256 || strlen(colon + 1) >= 8)
        return false;
    memcpy(host, text + n, (size_t)(colon - (text + n)));
    host[colon - (text + n)] = '\0';
    strcpy(port, colon + 1);
    *slot = number;
    return true;
}

static quire_status run_at(quire_redis_command *c, bool asking, int64_t deadline) {
    static const char *const words[] = {"ASKING"};
    redisReply *unused = NULL;
    QUIRE_TRY(quire__link_ready(c->link, deadline));
    if (asking)
        QUIRE_TRY(quire__link_add(c->link, 1, words, NULL));
    QUIRE_TRY(quire__link_add(c->link, c->n_words, c->word, c->bytes));
    QUIRE_TRY(quire__link_send(c->link, deadline));
    if (asking) {
        QUIRE_TRY(quire__link_reply(c->link, deadline, &unused));
        freeReplyObject(unused);
    }
    return quire__link_reply(c->link, deadline, &c->reply);
}

quire_status quire__redis_follow(quire_redis *r, quire_redis_command *c, int64_t deadline) {
    for (int i = 0; i < REDIRECTIONS; i++) {
        char host[256], port[8];
        uint32_t slot;
        const bool moved = quire__reply_is(c->reply, "MOVED "),
                   asking = quire__reply_is(c->reply, "ASK ");
        if (!moved && !asking)
            return QUIRE_OK;
        if (!read_redirection(c->reply->str, &slot, host, port))
            return quire__redis_refused(c->link, c->reply);
        freeReplyObject(c->reply);
        c->reply = NULL;
        QUIRE_TRY(quire__redis_link_to(r, host[0] ? host : c->link->host, port, &c->link));
        if (moved) {
            r->slot[slot] = number_of(r, c->link);
            r->is_map_stale = true; /* other slots have moved, too */
        }
        QUIRE_TRY(run_at(c, asking, deadline));
    }
    return quire__fail(QUIRE_E_BUSY, "the Redis cluster at %s keeps moving a key. Try again later",
                       r->links[0]->name);
}
