/* Records in a Redis server. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/millis.h"
#include "store/redis_store.h"

enum { BATCH_BYTES = 8 << 20, FULL_LEAST = 1000, FULL_MOST = 15000, N_COUNTS = 5, PIECE = 12 };

static const char ROOT_FIELD[] = "r";

/* ------------------------------------------------------------------ commands */

/* Commands and the texts that they refer to. */
typedef struct batch {
    quire_redis_command *command;
    size_t n;
    char (*key)[QUIRE_REDIS_KEY];
    size_t n_keys;
    char (*piece)[PIECE];
    size_t n_pieces;
    char counts_key[QUIRE_REDIS_PREFIX + 8], count[N_COUNTS][24], ttl[16];
} batch;

static quire_status batch_init(batch *b, const quire_redis *r, size_t most) {
    *b = (batch){.command = calloc(most, sizeof *b->command),
                 .key = malloc(most * sizeof *b->key),
                 .piece = malloc(most * sizeof *b->piece)};
    snprintf(b->ttl, sizeof b->ttl, "%d", (int)r->url.ttl_seconds);
    snprintf(b->counts_key, sizeof b->counts_key, "%scounts", r->url.prefix);
    return b->command && b->key && b->piece
               ? QUIRE_OK
               : quire__fail(QUIRE_E_NOMEM, "out of memory while asking Redis");
}

static void batch_free(batch *b) {
    if (b->command)
        quire__redis_replies_free(b->command, b->n);
    free(b->command);
    free(b->key);
    free(b->piece);
}

static void add_word(quire_redis_command *c, const char *word, size_t n_bytes) {
    c->word[c->n_words] = word;
    c->bytes[c->n_words++] = n_bytes;
}

static void add_text(quire_redis_command *c, const char *word) { add_word(c, word, strlen(word)); }

static quire_redis_command *add_command(batch *b, const quire_redis *r, const char *name,
                                        const quire_store_key *key) {
    quire_redis_command *c = &b->command[b->n++];
    *c = (quire_redis_command){.key = 1};
    add_text(c, name);
    quire__redis_key(r, key, b->key[b->n_keys]);
    add_text(c, b->key[b->n_keys++]);
    return c;
}

static quire_redis_command *add_of_record(batch *b, const quire_redis *r, const char *name,
                                          const quire_record_id *id) {
    quire_redis_command *c = add_command(b, r, name, &id->key);
    char *piece = b->piece[b->n_pieces++];
    snprintf(piece, PIECE, "%u", (unsigned)id->piece);
    add_text(c, piece);
    return c;
}

static void add_use(batch *b, const quire_redis *r, const quire_store_key *key) {
    quire_redis_command *c = add_command(b, r, r->url.ttl_seconds > 0 ? "EXPIRE" : "TOUCH", key);
    if (r->url.ttl_seconds > 0)
        add_text(c, b->ttl);
}

static void add_counts(batch *b, quire_redis *r) {
    static const char *const names[N_COUNTS] = {"hit", "missed", "added", "evicted", "bad"};
    const quire_backend_counts *c = &r->counted;
    const uint64_t all[N_COUNTS] = {c->hit_pages, c->missed_pages, c->added_pages, c->evicted_pages,
                                    c->bad_records};
    for (int i = 0; i < N_COUNTS; i++) {
        if (all[i] == 0)
            continue;
        quire_redis_command *command = &b->command[b->n++];
        *command = (quire_redis_command){.key = 1};
        snprintf(b->count[i], sizeof b->count[i], "%llu", (unsigned long long)all[i]);
        add_text(command, "HINCRBY");
        add_text(command, b->counts_key);
        add_text(command, names[i]);
        add_text(command, b->count[i]);
    }
    r->counted = (quire_backend_counts){0}; /* if they are not taken, only statistics are lost */
}

/* ------------------------------------------------------------------ reading */

static quire_status redis_has(quire_backend *backend, const quire_record_id *ids, size_t n,
                              bool *present) {
    quire_redis *r = (quire_redis *)backend;
    batch b;
    if (n == 0)
        return QUIRE_OK;
    quire_status status = batch_init(&b, r, n);
    for (size_t i = 0; status == QUIRE_OK && i < n; i++)
        add_of_record(&b, r, "HEXISTS", &ids[i]);
    if (status == QUIRE_OK)
        status = quire__redis_run(r, b.command, b.n);
    for (size_t i = 0; status == QUIRE_OK && i < n; i++) {
        const redisReply *reply = b.command[i].reply;
        /* Something else under this key will be found bad when it is read, and removed. */
        present[i] = quire__reply_is(reply, "WRONGTYPE") ||
                     (reply->type == REDIS_REPLY_INTEGER && reply->integer == 1);
        if (!present[i] && reply->type != REDIS_REPLY_INTEGER)
            status = quire__redis_refused(b.command[i].link, reply);
    }
    batch_free(&b);
    return status;
}

static bool make_room(quire_redis *r, size_t more) {
    if (r->first_asked > 0) {
        memmove(r->asked, r->asked + r->first_asked,
                (r->n_asked - r->first_asked) * sizeof *r->asked);
        r->n_asked -= r->first_asked;
        r->first_asked = 0;
    }
    if (r->n_asked + more <= r->asked_capacity)
        return true;
    quire_redis_asked *larger = realloc(r->asked, (r->n_asked + more) * sizeof *larger);
    if (!larger)
        return false;
    r->asked = larger;
    r->asked_capacity = r->n_asked + more;
    return true;
}

static quire_status send_asked(quire_redis *r, batch *b, const quire_record_id *ids, size_t n) {
    const int64_t deadline = quire__redis_deadline(r);
    for (size_t i = 0; i < n; i++) {
        quire_redis_command *c = add_of_record(b, r, "HGET", &ids[i]);
        QUIRE_TRY(quire__redis_route(r, c->word[1], c->bytes[1], deadline, &c->link));
        QUIRE_TRY(quire__link_ready(c->link, deadline));
        QUIRE_TRY(quire__link_add(c->link, c->n_words, c->word, c->bytes));
        r->asked[r->n_asked++] = (quire_redis_asked){
            .id = ids[i], .link = c->link, .generation = c->link->generation, .is_first = i == 0};
    }
    for (size_t i = 0; i < r->n_links; i++)
        QUIRE_TRY(quire__link_send(r->links[i], deadline));
    return QUIRE_OK;
}

quire_status quire__redis_ask(quire_backend *backend, const quire_record_id *ids, size_t n) {
    quire_redis *r = (quire_redis *)backend;
    if (n == 0) {
        quire__redis_forget_asked(r);
        quire__redis_abandon(r);
        return QUIRE_OK;
    }
    batch b;
    quire_status status = batch_init(&b, r, n);
    if (status == QUIRE_OK && !make_room(r, n))
        status = quire__fail(QUIRE_E_NOMEM, "out of memory while asking Redis");
    if (status == QUIRE_OK)
        status = send_asked(r, &b, ids, n);
    if (status != QUIRE_OK) {
        quire__redis_forget_asked(r);
        quire__redis_abandon(r);
    }
    batch_free(&b);
    return status;
}

static bool was_asked_for(const quire_redis *r, const quire_record_id *id) {
    for (size_t i = r->first_asked; i < r->n_asked; i++)
        if (quire__same_id(&r->asked[i].id, id))
            return true;
    return false;
}

/* Takes the reply for a record that was asked for, and skips those before it. */
static quire_status take_asked(quire_redis *r, const quire_record_id *id, redisReply **reply,
                               quire_redis_link **link) {
    for (;;) {
        quire_redis_asked *a = &r->asked[r->first_asked];
        if (a->is_first)
            r->window_deadline = quire__redis_deadline(r);
        const quire_status status = a->reply ? QUIRE_OK : quire__redis_await(a, r->window_deadline);
        if (status != QUIRE_OK) {
            quire__redis_forget_asked(r);
            quire__redis_abandon(r);
            return status;
        }
        r->first_asked++;
        if (quire__same_id(&a->id, id)) {
            *reply = a->reply;
            *link = a->link;
            return QUIRE_OK;
        }
        freeReplyObject(a->reply);
    }
}

/* Passes a reply to the view, and frees it. */
static quire_status show(quire_redis_link *link, redisReply *reply, const quire_record_id *id,
                         quire_backend_view view, void *user, bool *found) {
    quire_status status = QUIRE_OK;
    *found = reply->type == REDIS_REPLY_STRING || quire__reply_is(reply, "WRONGTYPE");
    if (reply->type == REDIS_REPLY_STRING)
        view(user, id, (const uint8_t *)reply->str, (size_t)reply->len, 0);
    else if (*found)
        view(user, id, (const uint8_t *)"", 0, 0); /* no record: it is bad, and will be removed */
    else if (reply->type != REDIS_REPLY_NIL)
        status = quire__redis_refused(link, reply);
    freeReplyObject(reply);
    return status;
}

quire_status quire__redis_read(quire_backend *backend, const quire_record_id *id,
                               quire_backend_view view, void *user, bool *found) {
    quire_redis *r = (quire_redis *)backend;
    *found = false;
    if (was_asked_for(r, id)) {
        redisReply *reply;
        quire_redis_link *link;
        QUIRE_TRY(take_asked(r, id, &reply, &link));
        if (!quire__reply_is(reply, "MOVED ") && !quire__reply_is(reply, "ASK "))
            return show(link, reply, id, view, user, found);
        freeReplyObject(reply);
    }
    batch b;
    quire_status status = batch_init(&b, r, 1);
    if (status == QUIRE_OK) {
        add_of_record(&b, r, "HGET", id);
        status = quire__redis_run(r, b.command, b.n);
    }
    if (status == QUIRE_OK) {
        redisReply *reply = b.command[0].reply;
        b.command[0].reply = NULL;
        status = show(b.command[0].link, reply, id, view, user, found);
    }
    batch_free(&b);
    return status;
}

/* ------------------------------------------------------------------ writing */

static quire_status rests(const quire_redis *r) {
    const int64_t left = r->full_until - quire__millis();
    return left > 0 ? quire__fail(QUIRE_E_BUSY, "%.180s; the next attempt is in %d ms", r->full_why,
                                  (int)left)
                    : QUIRE_OK;
}

/* The server takes nothing now: do not send it megabytes for nothing. */
static quire_status rest(quire_redis *r, quire_status status) {
    snprintf(r->full_why, sizeof r->full_why, "%s", quire_last_error());
    r->full_rest = r->full_rest == 0 ? FULL_LEAST : 2 * r->full_rest;
    r->full_rest = r->full_rest > FULL_MOST ? FULL_MOST : r->full_rest;
    r->full_until = quire__millis() + r->full_rest;
    return status;
}

static quire_status count_added(quire_redis *r, const batch *b, const quire_backend_item *items,
                                size_t n, quire_store_added *added) {
    for (size_t i = 0; i < n; i++) {
        const redisReply *reply = b->command[i].reply;
        if (reply->type != REDIS_REPLY_INTEGER)
            return rest(r, quire__redis_refused(b->command[i].link, reply));
        if (reply->integer != 1)
            continue;
        added->pages += items[i].id.piece == 0 && items[i].depth > 0;
        added->bytes += items[i].n_bytes;
    }
    r->full_rest = 0;
    return QUIRE_OK;
}

static quire_status redis_write(quire_backend *backend, const quire_store_key *keys, size_t n_keys,
                                const quire_backend_item *items, size_t n,
                                quire_store_added *added) {
    quire_redis *r = (quire_redis *)backend;
    batch b;
    *added = (quire_store_added){0};
    QUIRE_TRY(rests(r));
    quire_status status = batch_init(&b, r, 2 * n + n_keys + N_COUNTS);
    if (status == QUIRE_OK) {
        for (size_t i = 0; i < n; i++) {
            quire_redis_command *c = add_of_record(&b, r, "HSETNX", &items[i].id);
            add_word(c, (const char *)items[i].bytes, items[i].n_bytes);
        }
        for (size_t i = 0; i < n; i++)
            if (items[i].depth == 0) {
                quire_redis_command *c = add_command(&b, r, "HSETNX", &items[i].id.key);
                add_text(c, ROOT_FIELD);
                add_text(c, "");
            }
        for (size_t i = 0; i < n_keys; i++)
            add_use(&b, r, &keys[i]);
        add_counts(&b, r);
        status = quire__redis_run(r, b.command, b.n);
    }
    if (status == QUIRE_OK)
        status = count_added(r, &b, items, n, added);
    r->counted.added_pages += (uint64_t)added->pages;
    batch_free(&b);
    return status;
}

static quire_status redis_remove(quire_backend *backend, const quire_record_id *ids, size_t n) {
    quire_redis *r = (quire_redis *)backend;
    batch b;
    if (n == 0)
        return QUIRE_OK;
    quire_status status = batch_init(&b, r, n);
    for (size_t i = 0; status == QUIRE_OK && i < n; i++) {
        quire_redis_command *c = add_of_record(&b, r, "HDEL", &ids[i]);
        if (ids[i].piece == 0)
            add_text(c, ROOT_FIELD);
    }
    if (status == QUIRE_OK)
        status = quire__redis_run(r, b.command, b.n);
    for (size_t i = 0; status == QUIRE_OK && i < n; i++) {
        quire_redis_command *c = &b.command[i];
        if (quire__reply_is(c->reply, "WRONGTYPE")) { /* something else under this key */
            quire__redis_replies_free(c, 1);
            c->word[0] = "DEL";
            c->bytes[0] = 3;
            c->n_words = 2;
            status = quire__redis_run(r, c, 1);
        }
        if (status == QUIRE_OK && c->reply->type != REDIS_REPLY_INTEGER)
            status = quire__redis_refused(c->link, c->reply);
    }
    batch_free(&b);
    return status;
}

static quire_status redis_touch(quire_backend *backend, const quire_store_key *keys, size_t n) {
    quire_redis *r = (quire_redis *)backend;
    batch b;
    quire_status status = batch_init(&b, r, n + N_COUNTS);
    for (size_t i = 0; status == QUIRE_OK && i < n; i++)
        add_use(&b, r, &keys[i]);
    if (status == QUIRE_OK) {
        add_counts(&b, r);
        status = quire__redis_run(r, b.command, b.n);
    }
    batch_free(&b);
    return status;
}

static void redis_count(quire_backend *backend, const quire_backend_counts *more) {
    quire__counts_add(&((quire_redis *)backend)->counted, more);
}

/* The server looks after its own structures. */
static quire_status redis_check(quire_backend *backend, const quire_record_id *id) {
    (void)backend, (void)id;
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ opening */

static void redis_close(quire_backend *backend) {
    quire_redis *r = (quire_redis *)backend;
    static const quire_backend_counts none = {0};
    batch b;
    if (r->n_links > 0 && r->links[0]->fd >= 0 && !backend->read_only &&
        memcmp(&r->counted, &none, sizeof none) != 0) {
        if (batch_init(&b, r, N_COUNTS) == QUIRE_OK) {
            add_counts(&b, r);
            quire__redis_run(r, b.command, b.n); /* if it fails, only statistics are lost */
        }
        batch_free(&b);
    }
    quire__redis_forget_asked(r);
    for (size_t i = 0; i < r->n_links; i++) {
        quire__link_free(r->links[i]);
        free(r->links[i]);
    }
    free(r->asked);
    free(r->listed);
    free(r->slot);
    memset(r->url.password, 0, sizeof r->url.password);
    free(r);
}

/* Finds out whether the server can be used. */
static quire_status greet(quire_redis *r) {
    quire_redis_command ping = {.n_words = 1, .word = {"PING"}, .bytes = {4}, .key = -1};
    const quire_status status = quire__redis_run(r, &ping, 1);
    quire__redis_replies_free(&ping, 1);
    return status;
}

static quire_status open_redis(quire_redis *r, const char *url, bool must_connect) {
    QUIRE_TRY(quire__redis_url_read(url, &r->url));
    if (r->url.has_tls && quire__tls_missing()) {
        char text[QUIRE_STORE_PLACE_TEXT];
        quire_store_place_text(url, text);
        return quire__fail(QUIRE_E_UNSUPPORTED, "'%.100s' cannot be opened: %s", text,
                           quire__tls_missing());
    }
    r->slot = r->url.is_cluster ? calloc(QUIRE_REDIS_SLOTS, sizeof *r->slot) : NULL;
    if (r->url.is_cluster && !r->slot)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while opening the store");
    quire_redis_link *link;
    QUIRE_TRY(quire__redis_link_to(r, r->url.host, r->url.port, &link));
    const quire_status status = greet(r);
    return status == QUIRE_E_IO && !must_connect && !link->was_refused ? QUIRE_OK : status;
}

quire_status quire__redis_open(quire_backend **backend, const char *url,
                               const quire_store_options *options, bool must_connect) {
    quire_redis *r = calloc(1, sizeof *r);
    if (!r)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while opening the store");
    r->backend = (quire_backend){.read_only = options->read_only,
                                 .is_far = true,
                                 .batch_bytes = BATCH_BYTES,
                                 .close = redis_close,
                                 .has = redis_has,
                                 .ask = quire__redis_ask,
                                 .read = quire__redis_read,
                                 .write = redis_write,
                                 .remove = redis_remove,
                                 .touch = redis_touch,
                                 .walk = quire__redis_walk,
                                 .check = redis_check,
                                 .count = redis_count,
                                 .room = quire__redis_room};
    const quire_status status = open_redis(r, url, must_connect);
    if (status != QUIRE_OK) {
        redis_close(&r->backend);
        return status;
    }
    *backend = &r->backend;
    return QUIRE_OK;
}
