/* Looks at all records of a Redis server: a list of their ids is made first, and sorted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/redis_store.h"

enum { AT_ONCE = 500, WALK_AHEAD = 32 };

static quire_status no_memory(void) {
    return quire__fail(QUIRE_E_NOMEM, "out of memory while listing the keys of Redis");
}

/* ------------------------------------------------------------------ the nodes of the server */

typedef struct nodes {
    quire_store_key *key;
    size_t n, capacity;
} nodes;

static bool read_digits(const char *text, quire_store_key *key) {
    for (size_t i = 0; i < sizeof key->byte; i++) {
        unsigned value = 0;
        for (int half = 0; half < 2; half++) {
            const char c = text[2 * i + (size_t)half];
            const bool is_digit = c >= '0' && c <= '9', is_letter = c >= 'a' && c <= 'f';
            if (!is_digit && !is_letter)
                return false;
            value = value << 4 | (unsigned)(is_digit ? c - '0' : c - 'a' + 10);
        }
        key->byte[i] = (uint8_t)value;
    }
    return true;
}

static quire_status add_node(nodes *all, const quire_redis *r, const redisReply *name) {
    const size_t n_prefix = strlen(r->url.prefix);
    quire_store_key key;
    if (name->type != REDIS_REPLY_STRING ||
        (size_t)name->len != n_prefix + QUIRE_STORE_KEY_TEXT - 1 ||
        memcmp(name->str, r->url.prefix, n_prefix) != 0 || !read_digits(name->str + n_prefix, &key))
        return QUIRE_OK; /* not one of ours */
    if (all->n == all->capacity) {
        const size_t more = all->capacity ? 2 * all->capacity : 256;
        quire_store_key *larger = realloc(all->key, more * sizeof *larger);
        if (!larger)
            return no_memory();
        all->key = larger;
        all->capacity = more;
    }
    all->key[all->n++] = key;
    return QUIRE_OK;
}

/* Runs a command at one node of a cluster. */
static quire_status run_at(quire_redis *r, quire_redis_link *link, int n_words,
                           const char *const *words, redisReply **reply) {
    QUIRE_TRY(quire__redis_settle(r));
    for (int attempt = 0;; attempt++) {
        const int64_t deadline = quire__redis_deadline(r);
        link->was_stale = false;
        quire_status status = quire__link_ready(link, deadline);
        if (status == QUIRE_OK)
            status = quire__link_add(link, n_words, words, NULL);
        if (status == QUIRE_OK)
            status = quire__link_send(link, deadline);
        if (status == QUIRE_OK)
            status = quire__link_reply(link, deadline, reply);
        if (status == QUIRE_OK || !link->was_stale || attempt > 0)
            return status;
    }
}

static quire_status scan(quire_redis *r, quire_redis_link *link, nodes *all) {
    char cursor[24] = "0", pattern[QUIRE_REDIS_PREFIX + 2];
    snprintf(pattern, sizeof pattern, "%s*", r->url.prefix);
    do {
        const char *const words[] = {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"};
        redisReply *reply;
        QUIRE_TRY(run_at(r, link, 6, words, &reply));
        quire_status status = QUIRE_OK;
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
            reply->element[0]->type != REDIS_REPLY_STRING ||
            reply->element[0]->len >= (int)sizeof cursor ||
            reply->element[1]->type != REDIS_REPLY_ARRAY)
            status = quire__redis_refused(link, reply);
        else
            strcpy(cursor, reply->element[0]->str);
        for (size_t i = 0; status == QUIRE_OK && i < reply->element[1]->elements; i++)
            status = add_node(all, r, reply->element[1]->element[i]);
        freeReplyObject(reply);
        QUIRE_TRY(status);
    } while (strcmp(cursor, "0") != 0);
    return QUIRE_OK;
}

static int compare_keys(const void *a, const void *b) {
    return memcmp(a, b, sizeof(quire_store_key));
}

static quire_status list_nodes(quire_redis *r, nodes *all) {
    quire_redis_link *unused;
    r->is_map_stale = true;
    QUIRE_TRY(quire__redis_route(r, NULL, 0, quire__redis_deadline(r),
                                 &unused)); /* reads the map of a cluster */
    for (size_t i = 0; i < r->n_links; i++)
        if (quire__redis_serves(r, i))
            QUIRE_TRY(scan(r, r->links[i], all));
    if (all->n > 0)
        qsort(all->key, all->n, sizeof *all->key, compare_keys);
    size_t n = 0;
    for (size_t i = 0; i < all->n; i++) /* a scan may show a key twice */
        if (n == 0 || !quire__same_key(&all->key[n - 1], &all->key[i]))
            all->key[n++] = all->key[i];
    all->n = n;
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ their records */

static bool grow(quire_redis *r) {
    if (r->n_listed < r->listed_capacity)
        return true;
    const size_t more = r->listed_capacity ? 2 * r->listed_capacity : 256;
    quire_redis_listed *larger = realloc(r->listed, more * sizeof *larger);
    if (!larger)
        return false;
    r->listed = larger;
    r->listed_capacity = more;
    return true;
}

/* fields: what HKEYS says of a node; idle: what OBJECT IDLETIME does. */
static quire_status list_records(quire_redis *r, const quire_store_key *key, const redisReply *idle,
                                 const redisReply *fields) {
    const size_t first = r->n_listed;
    const int64_t used =
        idle->type == REDIS_REPLY_INTEGER ? (int64_t)time(NULL) - idle->integer : 0;
    bool is_root = false, is_ours = fields->type == REDIS_REPLY_ARRAY;
    if (!is_ours && !quire__reply_is(fields, "WRONGTYPE"))
        return quire__redis_refused(r->links[0], fields);
    for (size_t i = 0; i < (is_ours ? fields->elements : 1); i++) {
        if (is_ours && fields->element[i]->type != REDIS_REPLY_STRING)
            return quire__redis_refused(r->links[0], fields->element[i]);
        const char *text = is_ours ? fields->element[i]->str : "0"; /* bad, to be removed */
        char *end;
        const unsigned long piece = strtoul(text, &end, 10);
        is_root = is_root || strcmp(text, "r") == 0;
        if (*text < '0' || *text > '9' || *end || piece > UINT16_MAX)
            continue;
        if (!grow(r))
            return no_memory();
        r->listed[r->n_listed++] =
            (quire_redis_listed){.id = {.key = *key, .piece = (uint32_t)piece}, .used = used};
    }
    if (r->n_listed > first) {
        qsort(r->listed + first, r->n_listed - first, sizeof *r->listed, quire__compare_ids);
        r->listed[first].is_root = is_root;
    }
    return QUIRE_OK;
}

static quire_redis_command command_of(const char *a, const char *b, const char *c) {
    const char *const words[] = {a, b, c};
    quire_redis_command command = {.key = 1 + (strcmp(a, "OBJECT") == 0)};
    for (int i = 0; i < 3 && words[i]; i++) {
        command.word[i] = words[i];
        command.bytes[i] = strlen(words[i]);
        command.n_words = i + 1;
    }
    return command;
}

static quire_status list_some(quire_redis *r, const quire_store_key *keys, size_t n) {
    quire_redis_command *commands = calloc(2 * n, sizeof *commands);
    char(*names)[QUIRE_REDIS_KEY] = malloc(n * sizeof *names);
    quire_status status = commands && names ? QUIRE_OK : no_memory();
    for (size_t i = 0; status == QUIRE_OK && i < n; i++) {
        quire__redis_key(r, &keys[i], names[i]);
        commands[2 * i] = command_of("OBJECT", "IDLETIME", names[i]); /* before HKEYS uses it */
        commands[2 * i + 1] = command_of("HKEYS", names[i], NULL);
    }
    if (status == QUIRE_OK)
        status = quire__redis_run(r, commands, 2 * n);
    for (size_t i = 0; status == QUIRE_OK && i < n; i++)
        status = list_records(r, &keys[i], commands[2 * i].reply, commands[2 * i + 1].reply);
    if (commands)
        quire__redis_replies_free(commands, 2 * n);
    free(commands);
    free(names);
    return status;
}

static quire_status list_all(quire_redis *r) {
    nodes all = {0};
    r->n_listed = 0;
    quire_status status = list_nodes(r, &all);
    for (size_t i = 0; status == QUIRE_OK && i < all.n; i += AT_ONCE)
        status = list_some(r, all.key + i, all.n - i < AT_ONCE ? all.n - i : AT_ONCE);
    free(all.key);
    return status;
}

/* ------------------------------------------------------------------ walking */

typedef struct walk {
    quire_backend_view view;
    void *user;
    int64_t used;
    bool goes_on;
} walk;

static bool pass_on(void *user, const quire_record_id *id, const uint8_t *bytes, size_t n_bytes,
                    int64_t used) {
    (void)used;
    walk *w = user;
    w->goes_on = w->view(w->user, id, bytes, n_bytes, w->used);
    return true;
}

quire_status quire__redis_walk(quire_backend *backend, const quire_record_id *after,
                               quire_backend_view view, void *user) {
    quire_redis *r = (quire_redis *)backend;
    if (!after || r->n_listed == 0) /* else the list of the walk that this one continues */
        QUIRE_TRY(list_all(r));
    size_t i = quire__first_behind(r->listed, r->n_listed, sizeof *r->listed, after);
    walk w = {.view = view, .user = user, .goes_on = true};
    /* A view may want one record only, so few are asked for at first. */
    for (size_t ahead = 1, asked = i; i < r->n_listed && w.goes_on; i++) {
        bool found;
        quire_record_id ids[WALK_AHEAD];
        if (i == asked) {
            size_t n = 0;
            for (; n < ahead && asked < r->n_listed; n++)
                ids[n] = r->listed[asked++].id;
            QUIRE_TRY(quire__redis_ask(backend, ids, n));
            ahead = 2 * ahead < WALK_AHEAD ? 2 * ahead : WALK_AHEAD;
        }
        w.used = r->listed[i].used;
        QUIRE_TRY(quire__redis_read(backend, &r->listed[i].id, pass_on, &w, &found));
    }
    return quire__redis_ask(backend, NULL, 0);
}

/* ------------------------------------------------------------------ room */

static uint64_t number_after(const char *text, const char *name) {
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static quire_status ask_servers(quire_redis *r, quire_backend_room *room,
                                quire_backend_counts *counts) {
    for (size_t i = 0; i < r->n_links; i++) {
        if (!quire__redis_serves(r, i))
            continue;
        static const char *const words[] = {"INFO"};
        redisReply *reply;
        QUIRE_TRY(run_at(r, r->links[i], 1, words, &reply));
        quire_status status = QUIRE_OK;
        if (reply->type == REDIS_REPLY_STRING) {
            room->file_bytes += number_after(reply->str, "\nused_memory:");
            room->max_bytes += number_after(reply->str, "\nmaxmemory:");
            counts->evicted_pages += number_after(reply->str, "\nevicted_keys:");
        } else {
            status = quire__redis_refused(r->links[i], reply);
        }
        freeReplyObject(reply);
        QUIRE_TRY(status);
    }
    return QUIRE_OK;
}

static quire_status read_counts(quire_redis *r, quire_backend_counts *counts) {
    char key[QUIRE_REDIS_PREFIX + 8];
    snprintf(key, sizeof key, "%scounts", r->url.prefix);
    struct {
        const char *name;
        uint64_t *to;
    } fields[] = {{"hit", &counts->hit_pages},
                  {"missed", &counts->missed_pages},
                  {"added", &counts->added_pages},
                  {"bad", &counts->bad_records}};
    enum { N = sizeof fields / sizeof fields[0] };
    quire_redis_command commands[N];
    for (int i = 0; i < N; i++)
        commands[i] = command_of("HGET", key, fields[i].name);
    QUIRE_TRY(quire__redis_run(r, commands, N));
    for (int i = 0; i < N; i++)
        if (commands[i].reply->type == REDIS_REPLY_STRING)
            *fields[i].to = strtoull(commands[i].reply->str, NULL, 10);
    quire__redis_replies_free(commands, N);
    return QUIRE_OK;
}

static quire_status add_lengths(quire_redis *r, const quire_redis_listed *listed, size_t n,
                                uint64_t *bytes) {
    quire_redis_command *commands = calloc(n, sizeof *commands);
    char(*names)[QUIRE_REDIS_KEY] = malloc(n * sizeof *names), (*pieces)[12] = malloc(n * 12);
    quire_status status = commands && names && pieces ? QUIRE_OK : no_memory();
    for (size_t i = 0; status == QUIRE_OK && i < n; i++) {
        quire__redis_key(r, &listed[i].id.key, names[i]);
        snprintf(pieces[i], sizeof pieces[i], "%u", (unsigned)listed[i].id.piece);
        commands[i] = command_of("HSTRLEN", names[i], pieces[i]);
    }
    if (status == QUIRE_OK)
        status = quire__redis_run(r, commands, n);
    for (size_t i = 0; status == QUIRE_OK && i < n; i++)
        if (commands[i].reply->type == REDIS_REPLY_INTEGER)
            *bytes += (uint64_t)commands[i].reply->integer;
    if (commands)
        quire__redis_replies_free(commands, n);
    free(commands);
    free(names);
    free(pieces);
    return status;
}

quire_status quire__redis_room(quire_backend *backend, quire_backend_room *room,
                               quire_backend_counts *counts) {
    quire_redis *r = (quire_redis *)backend;
    *room = (quire_backend_room){0};
    *counts = (quire_backend_counts){0};
    QUIRE_TRY(list_all(r));
    room->records = (int64_t)r->n_listed;
    for (size_t i = 0; i < r->n_listed; i++) {
        room->nodes += i == 0 || !quire__same_key(&r->listed[i - 1].id.key, &r->listed[i].id.key);
        room->roots += r->listed[i].is_root;
    }
    for (size_t i = 0; i < r->n_listed; i += AT_ONCE)
        QUIRE_TRY(add_lengths(r, r->listed + i,
                              r->n_listed - i < AT_ONCE ? r->n_listed - i : AT_ONCE, &room->bytes));
    QUIRE_TRY(ask_servers(r, room, counts));
    QUIRE_TRY(read_counts(r, counts));
    quire__counts_add(counts, &r->counted);
    return QUIRE_OK;
}
