/* Sends commands to Redis, many at once, and reads the replies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/millis.h"
#include "store/redis_store.h"

void quire__redis_key(const quire_redis *r, const quire_store_key *key,
                      char text[QUIRE_REDIS_KEY]) {
    const size_t n = strlen(r->url.prefix);
    memcpy(text, r->url.prefix, n);
    quire_store_key_text(key, text + n);
}

int64_t quire__redis_deadline(const quire_redis *r) {
    return quire__millis() + r->url.timeout_millis;
}

void quire__redis_replies_free(quire_redis_command *commands, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (commands[i].reply)
            freeReplyObject(commands[i].reply);
        commands[i].reply = NULL;
    }
}

void quire__redis_abandon(quire_redis *r) {
    for (size_t i = 0; i < r->n_links; i++)
        if (r->links[i]->n_waiting > 0)
            quire__link_close(r->links[i]);
}

/* ------------------------------------------------------------------ what a server refuses */

static const struct refusal {
    const char *error, *meaning;
} REFUSALS[] = {
    {"OOM", "is full: maxmemory is reached, and it evicts nothing"},
    {"READONLY", "is a read-only replica"},
    {"LOADING", "is still loading its data"},
    {"MASTERDOWN", "is a replica whose master is down"},
    {"MISCONF", "refuses to write because it cannot save its data to disk"},
    {"CLUSTERDOWN", "belongs to a cluster that is down"},
    {"TRYAGAIN", "is moving these keys to another node"},
    {"BUSY", "is busy running a script"},
    {"NOREPLICAS", "refuses to write because it has too few replicas"},
};

quire_status quire__redis_refused(quire_redis_link *link, const redisReply *reply) {
    link->is_replica = link->is_replica || quire__reply_is(reply, "READONLY") ||
                       quire__reply_is(reply, "MASTERDOWN");
    for (size_t i = 0; i < sizeof REFUSALS / sizeof REFUSALS[0]; i++)
        if (quire__reply_is(reply, REFUSALS[i].error))
            return quire__fail(QUIRE_E_BUSY, "Redis at %s %s. Try again later", link->name,
                               REFUSALS[i].meaning);
    if (reply->type == REDIS_REPLY_ERROR)
        return quire__fail(QUIRE_E_IO, "Redis at %s refuses a command: %.120s", link->name,
                           reply->str);
    return quire__fail(QUIRE_E_IO, "Redis at %s gave a reply of the wrong kind", link->name);
}

/* ------------------------------------------------------------------ what was asked for */

void quire__redis_forget_asked(quire_redis *r) {
    for (size_t i = r->first_asked; i < r->n_asked; i++)
        if (r->asked[i].reply)
            freeReplyObject(r->asked[i].reply);
    r->n_asked = r->first_asked = 0;
}

quire_status quire__redis_await(quire_redis_asked *a, int64_t deadline) {
    if (a->generation == a->link->generation)
        return quire__link_reply(a->link, deadline, &a->reply);
    return a->link->why[0]
               ? quire__fail(QUIRE_E_IO, "Redis at %s %s", a->link->name, a->link->why)
               : quire__fail(QUIRE_E_IO, "a node of the Redis cluster left before it had answered");
}

quire_status quire__redis_settle(quire_redis *r) {
    const int64_t deadline = quire__redis_deadline(r);
    for (size_t i = r->first_asked; i < r->n_asked; i++) {
        quire_redis_asked *a = &r->asked[i];
        if (a->reply)
            continue;
        const quire_status status = quire__redis_await(a, deadline);
        if (status != QUIRE_OK) {
            quire__redis_forget_asked(r);
            quire__redis_abandon(r);
            return status;
        }
    }
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ running */

static quire_status send_all(quire_redis *r, quire_redis_command *commands, size_t n,
                             int64_t deadline) {
    for (size_t i = 0; i < n; i++) {
        quire_redis_command *c = &commands[i];
        QUIRE_TRY(quire__redis_route(r, c->key < 0 ? NULL : c->word[c->key],
                                     c->key < 0 ? 0 : c->bytes[c->key], deadline, &c->link));
        QUIRE_TRY(quire__link_ready(c->link, deadline));
        QUIRE_TRY(quire__link_add(c->link, c->n_words, c->word, c->bytes));
    }
    for (size_t i = 0; i < r->n_links; i++)
        QUIRE_TRY(quire__link_send(r->links[i], deadline));
    return QUIRE_OK;
}

static quire_status run_once(quire_redis *r, quire_redis_command *commands, size_t n,
                             int64_t deadline) {
    for (size_t i = 0; i < r->n_links; i++)
        r->links[i]->was_stale = false;
    quire_status status = send_all(r, commands, n, deadline);
    for (size_t i = 0; i < n && status == QUIRE_OK; i++)
        status = quire__link_reply(commands[i].link, deadline, &commands[i].reply);
    if (status != QUIRE_OK) {
        quire__redis_replies_free(commands, n);
        quire__redis_abandon(r);
        r->is_map_stale = true;
    }
    return status;
}

static bool was_stale(const quire_redis *r) {
    bool is = false;
    for (size_t i = 0; i < r->n_links; i++)
        is = is || r->links[i]->was_stale;
    return is;
}

quire_status quire__redis_run(quire_redis *r, quire_redis_command *commands, size_t n) {
    QUIRE_TRY(quire__redis_settle(r));
    const int64_t deadline = quire__redis_deadline(r);
    quire_status status = run_once(r, commands, n, deadline);
    if (status != QUIRE_OK && was_stale(r)) /* every command may be repeated */
        status = run_once(r, commands, n, deadline);
    for (size_t i = 0; r->slot && i < n && status == QUIRE_OK; i++)
        status = quire__redis_follow(r, &commands[i], deadline);
    if (status != QUIRE_OK) {
        quire__redis_replies_free(commands, n);
        quire__redis_abandon(r); /* else the next command would get the reply to ASKING */
    }
    return status;
}
