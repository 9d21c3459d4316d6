/* Redis as a place of a store: what is wrong with a server makes calls fail with a clear sentence,
 * and nothing else; what it holds is not trusted. Tests of what a store is run over Redis too
 * (test_store.c). */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "redis_kit.h"
#include "saved.h"
#include "store_kit.h"
#include "store_places.h"

enum { N_TEXT = 384, PAGES = N_TEXT / 64 };

/* A sequence that is put as any text, and its pool. */
typedef struct author {
    fixture f;
    source s;
    quire_seq *seq;
    int32_t tokens[N_TEXT];
} author;

static void open_author(author *a) {
    *a = (author){.s = source_default(7)};
    open_small_pool(&a->f, "k4v4");
    assert_ok(quire_seq_create(a->f.pool, &a->seq));
    feed(&a->f, a->seq, &a->s, N_TEXT, 64, 1, 0, NULL);
}

static quire_store_text text_of(author *a, uint64_t seed, int n) {
    text_tokens(seed, n, a->tokens);
    return (quire_store_text){
        .identity = "me", .identity_bytes = 2, .tokens = a->tokens, .n_tokens = n};
}

static quire_status put(quire_store *store, author *a, uint64_t seed) {
    const quire_store_text text = text_of(a, seed, N_TEXT);
    return quire_store_put(store, a->seq, &text, NULL);
}

/* *n: tokens found. */
static quire_status look(quire_store *store, author *a, uint64_t seed, int *n) {
    const quire_store_text text = text_of(a, seed, N_TEXT);
    quire_seq *seq;
    const quire_status status = quire_store_get(store, a->f.pool, &text, 0, &seq);
    *n = status == QUIRE_OK ? quire_seq_length(seq) : -1;
    if (status == QUIRE_OK)
        assert_ok(quire_seq_free(seq));
    return status;
}

static int found(quire_store *store, author *a, uint64_t seed) {
    int n;
    assert_ok(look(store, a, seed, &n));
    return n;
}

enum { ANY_LENGTH = -1 };

/* What is found, n tokens, goes on as a sequence that was computed here. */
static void assert_exact(quire_store *store, author *a, uint64_t seed, int n) {
    const quire_store_text text = text_of(a, seed, N_TEXT);
    quire_seq *seq, *cold;
    assert_ok(quire_store_get(store, a->f.pool, &text, 0, &seq));
    if (n == ANY_LENGTH)
        n = quire_seq_length(seq);
    assert_int_equal(quire_seq_length(seq), n);
    assert_ok(quire_seq_create(a->f.pool, &cold));
    feed(&a->f, cold, &a->s, n, 64, 1, 0, NULL);
    assert_same_future(&a->f, cold, &a->f, seq, &a->s, 70);
    assert_ok(quire_seq_free(seq));
    assert_ok(quire_seq_free(cold));
}

static quire_store *open_at(const char *place) {
    quire_store *store;
    assert_ok(quire_store_open(&store, place, NULL));
    return store;
}

static quire_store *open_tiers(const char *a, const char *b, const char *c, uint64_t queue_bytes) {
    const char *const places[] = {a, b, c};
    quire_store_options o;
    quire_store *store;
    quire_store_options_default(&o);
    if (queue_bytes)
        o.queue_bytes = queue_bytes;
    assert_ok(quire_store_open_tiers(&store, places, b ? c ? 3 : 2 : 1, &o));
    return store;
}

static quire_store_tier tier_of(quire_store *store, size_t i) {
    quire_store_tier tier;
    assert_ok(quire_store_get_tier(store, i, &tier));
    return tier;
}

static quire_store_stats stats_of(quire_store *store) {
    quire_store_stats stats;
    assert_ok(quire_store_get_stats(store, &stats));
    return stats;
}

static void assert_says(const char *words) {
    if (!strstr(quire_last_error(), words))
        fail_msg("'%s' is not in: %s", words, quire_last_error());
}

static void pause_millis(int n) {
    const struct timespec t = {n / 1000, n % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* Calls until the server is used again: after a failure it is left alone for a while. */
static void put_until_taken(quire_store *store, author *a, uint64_t seed) {
    while (put(store, a, seed) != QUIRE_OK)
        pause_millis(50);
}

/* The Redis key of the page that ends a text of n tokens. */
static const char *key_of(quire_store *store, author *a, uint64_t seed, int n) {
    static char name[100];
    quire_store_key key;
    char digits[QUIRE_STORE_KEY_TEXT];
    const quire_store_text text = text_of(a, seed, n);
    assert_ok(quire_store_find(store, a->f.pool, &text, &key, NULL));
    quire_store_key_text(&key, digits);
    snprintf(name, sizeof name, "quire:1:%s", digits);
    return name;
}

/* ------------------------------------------------------------------ names */

static void test_urls(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "redis://",
        "redis://:Zwtq@",
        "redis://user:Zwtq@host:port",
        "redis://user:Zwtq@host:0",
        "redis://user:Zwtq@host:70000",
        "redis://user:Zw/tq@host",
        "redis://user:Zwtq@host/x",
        "redis://user:Zwtq@host/1?what=1",
        "redis://user:Zwtq@host?ttl",
        "redis://user:Zwtq@host?ttl=0",
        "redis://user:Zwtq@host?ttl=-1",
        "redis://user:Zwtq@host?timeout=1",
        "redis://user:Zwtq@host?prefix=a%20b",
        "redis://user:Zwtq%2@host",
        "redis://[::1:6379?ttl=5",
        "redis://user:Zwtq",
        "redis+cluster://user:Zwtq@host/1",
        "redis://user:Zwtq@host?password_file=",
        "mem:",
        "mem:x",
        "mem:12X",
        "mem:1MM",
        "mem:-1",
        "mem:1023K",
        "mem:99999999999999G",
        "mem:9223372036854775808",
    };
    quire_store *store;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const quire_status status = quire_store_open(&store, wrong[i], NULL);
        if (status != QUIRE_E_INVALID && status != QUIRE_E_IO)
            fail_msg("%s: %s", wrong[i], quire_status_text(status));
        assert_null(strstr(quire_last_error(), "Zw"));
        assert_null(strstr(quire_last_error(), "tq"));
        assert_null(store);
    }
    char text[QUIRE_STORE_PLACE_TEXT];
    quire_store_place_text("redis://user:Zwtq@host:1/2?ttl=1", text);
    assert_string_equal(text, "redis://host:1/2");
    quire_store_place_text("rediss+cluster://:a@b@[::1]:7", text);
    assert_string_equal(text, "rediss+cluster://[::1]:7");
    quire_store_place_text("some/dir", text);
    assert_string_equal(text, "some/dir");
    assert_status(quire_store_open(&store, "redis://no.such.host.invalid?timeout=60000", NULL),
                  QUIRE_E_IO);
    assert_says("Redis at no.such.host.invalid:6379 cannot be found: ");
    const char *const twice[] = {"mem:1M", "mem:1M"}, *const empty[] = {"mem:1M", ""};
    assert_status(quire_store_open_tiers(&store, twice, 2, NULL), QUIRE_E_INVALID);
    assert_status(quire_store_open_tiers(&store, empty, 2, NULL), QUIRE_E_INVALID);
    assert_status(quire_store_open_tiers(&store, twice, 0, NULL), QUIRE_E_INVALID);
}

/* LMDB forbids to open a directory twice, whatever it is called. */
static void test_same_directory(void **state) {
    (void)state;
    char names[4][600];
    const char *dir = store_dir("same");
    snprintf(names[0], sizeof names[0], "%s", dir);
    snprintf(names[1], sizeof names[1], "%s/", dir);
    snprintf(names[2], sizeof names[2], "%s/../same", dir);
    snprintf(names[3], sizeof names[3], "%s", store_dir("another-name"));
    assert_int_equal(symlink(names[0], names[3]), 0);
    for (int i = 1; i < 4; i++) { /* at first there is no directory */
        const char *const places[] = {"mem:1M", names[0], names[i]};
        quire_store *store;
        assert_status(quire_store_open_tiers(&store, places, 3, NULL), QUIRE_E_INVALID);
        assert_says("the same place");
    }
    snprintf(names[1], sizeof names[1], "%s", store_dir("two"));
    quire_store_close(open_tiers("mem:1M", names[0], names[1], 0));
}

static void test_password(void **state) {
    (void)state;
    static const char *const options[] = {"--requirepass", "p@ss/word", NULL};
    redis_server s = {0};
    redis_start(&s, options);
    char place[500];
    const struct {
        const char *user, *query;
        bool right;
    } cases[] = {{"", "", false},
                 {":p%40ss%2Fword@", "", true},
                 {"default:p%40ss%2Fword@", "", true},
                 {":wrong@", "", false},
                 {"nobody:p%40ss%2Fword@", "", false},
                 {"", "?password_file=", true}};
    const char *path = saved_path("password");
    file_write(path, (const uint8_t *)"p@ss/word\nmore\n", 15);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        quire_store *store;
        const char *const tiers[] = {"mem:1M", place};
        snprintf(place, sizeof place, "redis://%s127.0.0.1:%d%s%s", cases[i].user, s.port,
                 cases[i].query, cases[i].query[0] ? path : "");
        for (int as_tiers = 0; as_tiers < 2; as_tiers++) {
            const quire_status status = as_tiers ? quire_store_open_tiers(&store, tiers, 2, NULL)
                                                 : quire_store_open(&store, place, NULL);
            assert_int_equal(status, cases[i].right ? QUIRE_OK : QUIRE_E_IO);
            if (status != QUIRE_OK)
                assert_says("refuses to let this program in");
            assert_null(strstr(quire_last_error(), "p@ss"));
            quire_store_close(store);
        }
    }
    setenv("QUIRE_REDIS_PASSWORD", "p@ss/word", 1);
    snprintf(place, sizeof place, "redis://127.0.0.1:%d", s.port);
    quire_store_close(open_at(place));
    unsetenv("QUIRE_REDIS_PASSWORD");
    redis_kill(&s);
}

static bool make_certificates(const char *dir) {
    char command[1600];
    snprintf(command, sizeof command,
             "cd '%s' && openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt "
             "-subj /CN=ca -days 2 2>/dev/null && openssl req -newkey rsa:2048 -nodes -keyout "
             "s.key -out s.csr -subj /CN=server 2>/dev/null && printf "
             "'subjectAltName=IP:127.0.0.1' >ext && openssl x509 -req -in s.csr -CA ca.crt -CAkey "
             "ca.key -CAcreateserial -out s.crt -days 2 -extfile ext 2>/dev/null",
             dir);
    return system(command) == 0;
}

static void test_tls(void **state) {
    (void)state;
    quire_store *store;
    if (quire_store_open(&store, "rediss://127.0.0.1:1", NULL) == QUIRE_E_UNSUPPORTED) {
        assert_says("built without TLS");
        return;
    }
    char dir[300], cert[340], key[340], ca[340], place[1500];
    snprintf(dir, sizeof dir, "%s", store_dir("certificates"));
    assert_int_equal(mkdir(dir, 0700), 0);
    if (!make_certificates(dir)) { /* no program openssl */
        assert_null(getenv("QUIRE_REQUIRE_ALL"));
        return;
    }
    snprintf(cert, sizeof cert, "%s/s.crt", dir);
    snprintf(key, sizeof key, "%s/s.key", dir);
    snprintf(ca, sizeof ca, "%s/ca.crt", dir);
    const char *const options[] = {"--tls-cert-file",
                                   cert,
                                   "--tls-key-file",
                                   key,
                                   "--tls-ca-cert-file",
                                   ca,
                                   "--tls-auth-clients",
                                   "optional",
                                   NULL};
    redis_server s = {.tls_port = 1};
    redis_start(&s, options);
    author a;
    open_author(&a);
    snprintf(place, sizeof place, "rediss://127.0.0.1:%d?timeout=20000&cacert=%s", s.tls_port, ca);
    store = open_at(place);
    assert_ok(put(store, &a, 1));
    assert_exact(store, &a, 1, N_TEXT);
    redis_restart(&s); /* nobody notices, but its memory is gone */
    assert_int_equal(found(store, &a, 1), 0);
    assert_ok(put(store, &a, 1));
    quire_store_close(store);
    snprintf(place, sizeof place, "rediss://127.0.0.1:%d?cacert=%s&cert=%s&key=%s", s.tls_port, ca,
             cert, key);
    quire_store_close(open_at(place));
    /* Who is not trusted, or has another name, gets nothing. */
    snprintf(place, sizeof place, "rediss://127.0.0.1:%d", s.tls_port);
    assert_status(quire_store_open(&store, place, NULL), QUIRE_E_IO);
    assert_says("not trusted");
    snprintf(place, sizeof place, "rediss://localhost:%d?cacert=%s", s.tls_port, ca);
    assert_status(quire_store_open(&store, place, NULL), QUIRE_E_IO);
    snprintf(place, sizeof place, "rediss://127.0.0.1:%d?cacert=%s/none", s.tls_port, dir);
    assert_status(quire_store_open(&store, place, NULL), QUIRE_E_IO);
    snprintf(place, sizeof place, "rediss://127.0.0.1:%d?cacert=%s", s.port, ca); /* no TLS there */
    assert_status(quire_store_open(&store, place, NULL), QUIRE_E_IO);
    redis_kill(&s);
    fixture_close(&a.f);
}

/* ------------------------------------------------------------------ servers in trouble */

static void test_dead_and_back(void **state) {
    (void)state;
    redis_server s = {0};
    author a;
    int n;
    redis_start(&s, NULL);
    open_author(&a);
    quire_store *store = open_at(redis_place(&s, NULL)), *never;
    assert_ok(put(store, &a, 1));
    assert_int_equal(found(store, &a, 1), N_TEXT);
    /* Restarted between two calls: nobody notices, but its memory is gone. */
    redis_restart(&s);
    assert_int_equal(found(store, &a, 1), 0);
    assert_ok(put(store, &a, 1));
    assert_int_equal(found(store, &a, 1), N_TEXT);
    redis_kill(&s);
    assert_status(look(store, &a, 1, &n), QUIRE_E_IO);
    assert_says("cannot be reached");
    assert_status(look(store, &a, 1, &n), QUIRE_E_IO);
    assert_says("the next attempt is in");
    assert_status(put(store, &a, 1), QUIRE_E_IO);
    assert_status(quire_store_open(&never, redis_place(&s, NULL), NULL), QUIRE_E_IO);
    redis_restart(&s);
    put_until_taken(store, &a, 2);
    assert_exact(store, &a, 2, N_TEXT);
    quire_store_close(store);
    redis_kill(&s);
    fixture_close(&a.f);
}

static void test_slow(void **state) {
    (void)state;
    redis_server s = {0};
    author a;
    int n;
    redis_start(&s, NULL);
    open_author(&a);
    quire_store *store = open_at(redis_place(&s, "timeout=300"));
    put_until_taken(store, &a, 1);
    redis_pause(&s, true);
    assert_status(look(store, &a, 1, &n), QUIRE_E_IO);
    assert_says("did not answer within 300 ms");
    assert_status(put(store, &a, 2), QUIRE_E_IO);
    assert_says("the next attempt is in");
    redis_pause(&s, false);
    put_until_taken(store, &a, 2);
    while (look(store, &a, 1, &n) != QUIRE_OK)
        pause_millis(50);
    assert_int_equal(n, N_TEXT);
    quire_store_close(store);
    redis_kill(&s);
    fixture_close(&a.f);
}

static void test_full(void **state) {
    (void)state;
    static const char *const options[] = {"--maxmemory", "3mb", "--maxmemory-policy", "noeviction",
                                          NULL};
    redis_server s = {0};
    author a;
    redis_start(&s, options);
    open_author(&a);
    quire_store *store = open_at(redis_place(&s, "timeout=20000"));
    uint64_t seed = 0;
    quire_status status = QUIRE_OK;
    while (status == QUIRE_OK)
        status = put(store, &a, ++seed);
    assert_status(status, QUIRE_E_BUSY);
    assert_says("is full");
    assert_status(put(store, &a, seed), QUIRE_E_BUSY);
    assert_says("the next attempt is in");
    assert_int_equal(found(store, &a, 1), N_TEXT); /* what it has can be read */
    assert_true(found(store, &a, seed) < N_TEXT);
    assert_string_equal(redis_say(&s, "CONFIG SET maxmemory 0"), "+OK");
    put_until_taken(store, &a, seed);
    assert_exact(store, &a, seed, N_TEXT);
    quire_store_close(store);
    redis_kill(&s);
    fixture_close(&a.f);
}

static void test_evicting(void **state) {
    (void)state;
    enum { TEXTS = 200 };
    static const char *const options[] = {"--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru",
                                          NULL};
    redis_server s = {0};
    author a;
    redis_start(&s, options);
    open_author(&a);
    quire_store *store = open_at(redis_place(&s, "timeout=20000"));
    for (uint64_t seed = 0; seed < TEXTS; seed++)
        assert_ok(put(store, &a, seed));
    int n_some = 0, n_less = 0;
    for (uint64_t seed = 0; seed < TEXTS; seed++) {
        const int n = found(store, &a, seed);
        n_some += n > 0;
        n_less += n < N_TEXT;
        if (seed % 20 == 0) /* the server may have evicted more since `found` */
            assert_exact(store, &a, seed, ANY_LENGTH);
    }
    assert_true(n_some > 0 && n_less > 0); /* which ones, the server decides: it samples */
    assert_true(stats_of(store).evicted_pages > 0);
    assert_int_equal(stats_of(store).bad_records, 0);
    assert_int_equal(stats_of(store).max_bytes, 3 << 20);
    assert_string_equal(redis_say(&s, "CONFIG SET maxmemory 0"), "+OK");
    for (uint64_t seed = 0; seed < TEXTS; seed += 50) { /* what is missing can be put again */
        assert_ok(put(store, &a, seed));
        assert_exact(store, &a, seed, N_TEXT);
    }
    quire_store_close(store);
    redis_kill(&s);
    fixture_close(&a.f);
}

static void test_replica(void **state) {
    (void)state;
    static const char *const options[] = {"--replicaof", "127.0.0.1 1", NULL};
    redis_server s = {0};
    author a;
    redis_start(&s, options);
    open_author(&a);
    quire_store *store = open_at(redis_place(&s, "timeout=20000"));
    assert_status(put(store, &a, 1), QUIRE_E_BUSY);
    assert_says("read-only replica");
    assert_int_equal(found(store, &a, 1), 0);
    assert_string_equal(redis_say(&s, "REPLICAOF NO ONE"), "+OK");
    put_until_taken(store, &a, 1);
    assert_int_equal(found(store, &a, 1), N_TEXT);
    quire_store_close(store);
    redis_kill(&s);
    fixture_close(&a.f);
}

/* Where "moving.test" is, and how long it takes to find out; 0: nowhere. */
static atomic_int moving_port, moving_millis;

/* In place of the system's, for that name. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    int (*system_s)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    char port[12];
    *(void **)(void *)&system_s = dlsym(RTLD_NEXT, "getaddrinfo");
    if (strcmp(name, "moving.test") != 0)
        return system_s(name, service, hints, found);
    if (hints->ai_flags & AI_NUMERICHOST)
        return EAI_NONAME;
    pause_millis(moving_millis);
    snprintf(port, sizeof port, "%d", moving_port);
    return moving_port ? system_s("127.0.0.1", port, hints, found) : EAI_NONAME;
}

/* A name is looked up whenever its server has to be found again. */
static void test_moved_host(void **state) {
    (void)state;
    redis_server s[2] = {{0}, {0}};
    author a;
    redis_start(&s[0], NULL);
    redis_start(&s[1], NULL);
    open_author(&a);
    moving_port = s[0].port;
    quire_store *store = open_at("redis://moving.test?timeout=20000");
    assert_ok(put(store, &a, 1));
    assert_int_equal(found(store, &a, 1), N_TEXT);
    moving_port = s[1].port; /* nobody has a reason to look */
    assert_int_equal(found(store, &a, 1), N_TEXT);
    redis_kill(&s[0]);
    put_until_taken(store, &a, 2);
    assert_string_not_equal(redis_say(&s[1], "DBSIZE"), ":0");
    moving_port = 0; /* a name that is not found is where it was */
    redis_restart(&s[1]);
    put_until_taken(store, &a, 3);
    assert_int_equal(found(store, &a, 3), N_TEXT);
    redis_restart(&s[0]);
    moving_port = s[0].port; /* the old server goes on, as a replica */
    assert_string_equal(redis_say(&s[1], "REPLICAOF 127.0.0.1 1"), "+OK");
    put_until_taken(store, &a, 4);
    assert_string_not_equal(redis_say(&s[0], "DBSIZE"), ":0");
    quire_store_close(store);
    redis_kill(&s[0]);
    redis_kill(&s[1]);
    fixture_close(&a.f);
}

/* A name that cannot be found, or not in time, makes calls fail as a dead server does. */
static void test_host_not_found(void **state) {
    (void)state;
    redis_server s = {0};
    author a;
    quire_store *store;
    redis_start(&s, NULL);
    open_author(&a);
    moving_port = 0;
    store = open_tiers("mem:1M", "redis://moving.test?timeout=20000", NULL, 0);
    assert_ok(put(store, &a, 1));
    quire_store_drain(store);
    assert_true(tier_of(store, 1).is_failing);
    quire_store_close(store);
    moving_port = s.port;
    moving_millis = 2000;
    assert_status(quire_store_open(&store, "redis://moving.test?timeout=300", NULL), QUIRE_E_IO);
    assert_says("Redis at moving.test:6379 was not found within 300 ms");
    /* A lookup that was too slow for one call serves a later one. */
    store = open_tiers("mem:1M", "redis://moving.test?timeout=300", NULL, 0);
    for (uint64_t seed = 0; tier_of(store, 1).written_records == 0; seed++) {
        assert_ok(put(store, &a, seed));
        quire_store_drain(store);
        pause_millis(50);
    }
    moving_millis = 0;
    quire_store_close(store);
    redis_kill(&s);
    fixture_close(&a.f);
}

static void test_expiry(void **state) {
    (void)state;
    redis_server s = {0};
    author a;
    redis_start(&s, NULL);
    open_author(&a);
    quire_store *store = open_at(redis_place(&s, "timeout=20000&ttl=1000"));
    assert_ok(put(store, &a, 1));
    for (int n = 64; n <= N_TEXT; n += 64) {
        const char *key = key_of(store, &a, 1, n);
        const int left = atoi(redis_say(&s, "TTL %s", key) + 1);
        assert_true(left > 0 && left <= 1000);
        assert_string_equal(redis_say(&s, "EXPIRE %s 100", key), ":1");
    }
    assert_int_equal(found(store, &a, 1), N_TEXT); /* a use begins a new term */
    for (int n = 64; n <= N_TEXT; n += 64)
        assert_true(atoi(redis_say(&s, "TTL %s", key_of(store, &a, 1, n)) + 1) > 100);
    assert_string_equal(redis_say(&s, "DEL %s", key_of(store, &a, 1, 192)), ":1"); /* as if */
    assert_int_equal(found(store, &a, 1), 128);
    quire_store_close(store);
    redis_kill(&s);
    fixture_close(&a.f);
}

/* ------------------------------------------------------------------ nothing is trusted */

static void test_garbage(void **state) {
    (void)state;
    static const char *const damages[][2] = {
        {"HSET", "0 garbage"}, {"SET", "garbage"}, {"HSET", "0 ''"}, {"RPUSH", "a b"}};
    redis_server s = {0};
    author a;
    redis_start(&s, NULL);
    open_author(&a);
    quire_store *store = open_at(redis_place(&s, "timeout=20000"));
    for (int i = 0; i < 4; i++) {
        assert_ok(put(store, &a, 1));
        assert_int_equal(found(store, &a, 1), N_TEXT);
        const uint64_t bad = stats_of(store).bad_records;
        char key[100];
        snprintf(key, sizeof key, "%s", key_of(store, &a, 1, 192));
        if (strcmp(damages[i][0], "HSET") != 0)
            assert_string_equal(redis_say(&s, "DEL %s", key), ":1");
        assert_true(redis_say(&s, "%s %s %s", damages[i][0], key, damages[i][1])[0] != '-');
        quire_store_verdict verdict;
        assert_ok(quire_store_verify(store, NULL, &verdict));
        assert_int_equal(verdict.bad, 1);
        assert_exact(store, &a, 1, 128);
        assert_int_equal(stats_of(store).bad_records, bad + 1);
        assert_string_equal(redis_say(&s, "EXISTS %s", key), ":0");
    }
    /* One page in place of another: whole, but not the one that was asked for. */
    assert_ok(put(store, &a, 1));
    char from[100];
    snprintf(from, sizeof from, "%s", key_of(store, &a, 1, 256));
    assert_string_equal(redis_say(&s, "COPY %s %s REPLACE", from, key_of(store, &a, 1, 192)), ":1");
    assert_exact(store, &a, 1, 128);
    assert_ok(put(store, &a, 1));
    assert_exact(store, &a, 1, N_TEXT);
    quire_store_close(store);
    redis_kill(&s);
    fixture_close(&a.f);
}

/* Something that is not Redis: a server of another protocol. */
static void test_other_protocol(void **state) {
    (void)state;
    redis_server s = {0};
    redis_start(&s, NULL);
    quire_store *store;
    char place[100];
    snprintf(place, sizeof place, "redis+cluster://127.0.0.1:%d", s.port);
    assert_status(quire_store_open(&store, place, NULL), QUIRE_E_INVALID);
    assert_says("not a node of a cluster");
    redis_kill(&s);
}

/* ------------------------------------------------------------------ a server that lies */

/* The next word of a command in text[*at..]; NULL: there is none. */
static char *next_word(char *text, size_t n, size_t *at) {
    char *length = memchr(text + *at, '$', n - *at);
    char *word = length ? strstr(length, "\r\n") : NULL;
    if (!word)
        return NULL;
    *at = (size_t)(word + 2 - text) + strtoul(length + 1, NULL, 10);
    text[*at] = '\0';
    return word + 2;
}

/* Sends what comes again and again, until nobody reads it. */
static void pour(int to) {
    static char letters[1 << 16];
    memset(letters, 'a', sizeof letters);
    while (write(to, letters, sizeof letters) > 0)
        pause_millis(1);
}

/* What a server may lie about. TALK: SCAN names one key, of which HKEYS says what no server says.
 * POUR: HEXISTS has an answer of 500 MB. MOVE: it is a cluster whose keys all have moved to another
 * of its addresses whenever its map is read, and whose other nodes then have other addresses. */
typedef enum lie { TALK, POUR, MOVE } lie;
enum { OTHER_NODES = 100, OTHERS_FROM = 16384 - OTHER_NODES };

static int *n_maps; /* how often a map has been read, shared by the processes that lie */

static void answer_map(int link, int port) {
    static char text[16384];
    int n =
        snprintf(text, sizeof text, "*%d\r\n*3\r\n:0\r\n:%d\r\n*2\r\n$9\r\n127.0.0.%d\r\n:%d\r\n",
                 1 + OTHER_NODES, OTHERS_FROM - 1, 2 + *n_maps, port);
    for (int i = 0; i < OTHER_NODES; i++)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      "*3\r\n:%d\r\n:%d\r\n*2\r\n$9\r\n127.0.1.%d\r\n:%d\r\n", OTHERS_FROM + i,
                      OTHERS_FROM + i, 1 + *n_maps, 1 + i);
    ++*n_maps;
    assert_int_equal(write(link, text, (size_t)n), n);
}

/* No key is there: where the map has it, it has moved to the next address. */
static void answer_moved(int link, const struct sockaddr_in *here) {
    const int address = (int)(ntohl(here->sin_addr.s_addr) & 255), now = 2 + *n_maps;
    if (address == now)
        dprintf(link, ":0\r\n");
    else
        dprintf(link, "-MOVED 0 127.0.0.%d:%d\r\n", now, (int)ntohs(here->sin_port));
}

/* Answers one connection. */
static void answer(int link, lie what) {
    static char text[1 << 16];
    struct sockaddr_in here;
    socklen_t n_here = sizeof here;
    getsockname(link, (struct sockaddr *)&here, &n_here);
    static const char *const answers[][2] = {
        {"PING", "+PONG\r\n"},
        {"HINCRBY", ":1\r\n"},
        {"HKEYS", "*2\r\n:5\r\n$-1\r\n"},
        {"OBJECT", ":0\r\n"},
        {"SCAN", "*2\r\n$1\r\n0\r\n*1\r\n$72\r\nquire:1:"
                 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\r\n"}};
    for (ssize_t n; (n = read(link, text, sizeof text - 2)) > 0;) {
        size_t at = 0;
        text[n] = '\0';
        for (const char *word; at < (size_t)n && (word = next_word(text, (size_t)n, &at)); at++) {
            if (what == POUR && strcmp(word, "HEXISTS") == 0) {
                dprintf(link, "$500000000\r\n");
                pour(link);
                return;
            }
            if (what == MOVE && strcmp(word, "SLOTS") == 0)
                answer_map(link, ntohs(here.sin_port));
            if (what == MOVE && strcmp(word, "HEXISTS") == 0)
                answer_moved(link, &here);
            for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++)
                if (strcmp(word, answers[i][0]) == 0)
                    dprintf(link, "%s", answers[i][1]);
        }
    }
}

/* A process that answers so, with a child for each connection; its port in *port. */
static pid_t start_liar(lie what, int *port) {
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(what == MOVE ? INADDR_ANY : INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int listening = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listening, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&a, &n), 0);
    assert_int_equal(listen(listening, 5), 0);
    *port = ntohs(a.sin_port);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGPIPE, SIG_IGN);
        signal(SIGCHLD, SIG_IGN);
        for (int link; (link = accept(listening, NULL, NULL)) >= 0; close(link))
            if (fork() == 0) {
                answer(link, what);
                _exit(0);
            }
        _exit(0);
    }
    close(listening);
    return child;
}

static void end_liar(pid_t liar) {
    kill(liar, SIGKILL);
    waitpid(liar, NULL, 0);
}

static void test_liar(void **state) {
    (void)state;
    author a;
    char place[100];
    int port, n;
    open_author(&a);
    pid_t liar = start_liar(TALK, &port);
    snprintf(place, sizeof place, "redis://127.0.0.1:%d?timeout=20000", port);
    quire_store *store = open_at(place);
    quire_store_stats stats;
    assert_status(quire_store_get_stats(store, &stats), QUIRE_E_IO);
    assert_says("reply of the wrong kind");
    quire_store_close(store);
    end_liar(liar);
    liar = start_liar(POUR, &port);
    snprintf(place, sizeof place, "redis://127.0.0.1:%d?timeout=300", port);
    store = open_at(place);
    assert_status(look(store, &a, 1, &n), QUIRE_E_IO); /* bytes of the answer keep coming */
    assert_says("did not answer within 300 ms");
    quire_store_close(store);
    end_liar(liar);
    fixture_close(&a.f);
}

/* A long-lived process meets more addresses than it can hold at a time. */
static void test_cluster_that_moves(void **state) {
    (void)state;
#ifdef __linux__ /* all of 127.0.0.0/8 is this machine */
    enum { MAPS = 4 };
    author a;
    char place[100];
    int port, n;
    open_author(&a);
    n_maps = mmap(NULL, sizeof *n_maps, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(n_maps != MAP_FAILED);
    const pid_t liar = start_liar(MOVE, &port);
    snprintf(place, sizeof place, "redis+cluster://127.0.0.1:%d?timeout=5000", port);
    quire_store *store = open_at(place);
    for (int map = 1; map <= MAPS; map++) {
        assert_int_equal(*n_maps, map);
        assert_ok(look(store, &a, 1, &n));
        assert_int_equal(n, 0);
        pause_millis(1100); /* a map is read at most once a second */
        assert_ok(look(store, &a, 1, &n));
    }
    quire_store_close(store);
    end_liar(liar);
    munmap(n_maps, sizeof *n_maps);
    fixture_close(&a.f);
#else
    skip();
#endif
}

/* ------------------------------------------------------------------ several processes */

static void test_processes(void **state) {
    (void)state;
    enum { TEXTS = 20, PROCESSES = 3 };
    redis_server s = {0};
    author a;
    redis_start(&s, NULL);
    open_author(&a);
    pid_t children[PROCESSES];
    for (int p = 0; p < PROCESSES; p++) {
        children[p] = fork();
        if (children[p] == 0) {
            quire_store *store;
            bool good =
                quire_store_open(&store, redis_place(&s, "timeout=20000"), NULL) == QUIRE_OK;
            for (uint64_t seed = 0; good && seed < TEXTS; seed++)
                good = put(store, &a, seed) == QUIRE_OK;
            quire_store_close(store);
            _exit(good ? 0 : 1);
        }
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_int_equal(waitpid(children[p], &status, 0), children[p]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    quire_store *store = open_at(redis_place(&s, "timeout=20000"));
    for (uint64_t seed = 0; seed < TEXTS; seed++)
        assert_exact(store, &a, seed, N_TEXT);
    const quire_store_stats stats = stats_of(store);
    assert_int_equal(stats.pages, TEXTS * PAGES);
    assert_int_equal(stats.added_pages, TEXTS * PAGES); /* each page once */
    assert_int_equal(stats.hit_pages, TEXTS * PAGES);
    quire_store_close(store);
    redis_kill(&s);
    fixture_close(&a.f);
}

/* ------------------------------------------------------------------ a cluster */

static void move_slot(redis_server *from, redis_server *to, const char *key, int slot, int step) {
    char from_id[64], to_id[64];
    snprintf(from_id, sizeof from_id, "%s", redis_say(from, "CLUSTER MYID"));
    snprintf(to_id, sizeof to_id, "%s", redis_say(to, "CLUSTER MYID"));
    if (step == 0) { /* the key has moved, the slot has not: ASK */
        assert_string_equal(redis_say(to, "CLUSTER SETSLOT %d IMPORTING %s", slot, from_id), "+OK");
        assert_string_equal(redis_say(from, "CLUSTER SETSLOT %d MIGRATING %s", slot, to_id), "+OK");
        assert_string_equal(redis_say(from, "MIGRATE 127.0.0.1 %d %s 0 20000", to->port, key),
                            "+OK");
    } else { /* MOVED */
        assert_string_equal(redis_say(to, "CLUSTER SETSLOT %d NODE %s", slot, to_id), "+OK");
        assert_string_equal(redis_say(from, "CLUSTER SETSLOT %d NODE %s", slot, to_id), "+OK");
    }
}

static void test_cluster(void **state) {
    (void)state;
    redis_server nodes[REDIS_NODES] = {{0}};
    author a;
    char place[200], key[100];
    int n;
    redis_start_cluster(nodes);
    open_author(&a);
    snprintf(place, sizeof place, "redis+cluster://127.0.0.1:%d?timeout=20000", nodes[1].port);
    quire_store *store = open_at(place);
    for (uint64_t seed = 0; seed < 20; seed++)
        assert_ok(put(store, &a, seed));
    for (uint64_t seed = 0; seed < 20; seed++)
        assert_exact(store, &a, seed, N_TEXT);
    for (int i = 0; i < REDIS_NODES; i++) /* spread */
        assert_true(atoi(redis_say(&nodes[i], "DBSIZE") + 1) > 10);
    assert_int_equal(stats_of(store).pages, 20 * PAGES);
    for (int page = 1; page <= 3; page++) {
        snprintf(key, sizeof key, "%s", key_of(store, &a, 5, 64 * page));
        const int slot = atoi(redis_say(&nodes[0], "CLUSTER KEYSLOT %s", key) + 1);
        int from = 0;
        while (redis_say(&nodes[from], "EXISTS %s", key)[0] != ':')
            from++;
        redis_server *to = &nodes[(from + 1) % REDIS_NODES];
        for (int step = 0; step < 2; step++) {
            move_slot(&nodes[from], to, key, slot, step);
            assert_exact(store, &a, 5, N_TEXT);
            assert_ok(put(store, &a, 5));
        }
    }
    quire_store_close(store);
    /* A node dies: what it has is missed, with an error, and the call returns. */
    snprintf(place, sizeof place, "redis+cluster://127.0.0.1:%d?timeout=500", nodes[1].port);
    store = open_at(place);
    redis_kill(&nodes[0]);
    quire_status status = QUIRE_OK;
    for (uint64_t seed = 0; seed < 20 && status == QUIRE_OK; seed++)
        status = look(store, &a, seed, &n);
    assert_true(status == QUIRE_E_IO || status == QUIRE_E_BUSY);
    quire_store_close(store);
    for (int i = 1; i < REDIS_NODES; i++)
        redis_kill(&nodes[i]);
    fixture_close(&a.f);
}

/* ------------------------------------------------------------------ tiers */

/* The first half of a text in memory, the second in Redis. */
static void test_half_and_half(void **state) {
    (void)state;
    redis_server s = {0};
    author a;
    redis_start(&s, NULL);
    open_author(&a);
    quire_store *far = open_at(redis_place(&s, "timeout=20000"));
    assert_ok(put(far, &a, 1));
    quire_store *store = open_tiers("mem:16M", redis_place(&s, "timeout=20000"), NULL, 0);
    const quire_store_text half = text_of(&a, 1, N_TEXT / 2);
    quire_seq *seq;
    assert_ok(quire_store_get(store, a.f.pool, &half, 0, &seq));
    assert_int_equal(quire_seq_length(seq), N_TEXT / 2);
    assert_ok(quire_seq_free(seq));
    assert_int_equal(tier_of(store, 1).hit_records, PAGES / 2);
    char keys[PAGES / 2][100];
    for (int i = 0; i < PAGES / 2; i++)
        snprintf(keys[i], sizeof keys[i], "%s", key_of(far, &a, 1, 64 * (i + 1)));
    for (int i = 0; i < PAGES / 2; i++)
        assert_string_equal(redis_say(&s, "DEL %s", keys[i]), ":1");
    assert_int_equal(found(far, &a, 1), 0);
    assert_exact(store, &a, 1, N_TEXT);
    assert_int_equal(tier_of(store, 0).hit_records, PAGES / 2);
    assert_int_equal(tier_of(store, 1).hit_records, PAGES);
    redis_kill(&s); /* now all of it is in memory */
    assert_exact(store, &a, 1, N_TEXT);
    assert_int_equal(tier_of(store, 0).hit_records, PAGES / 2 + PAGES);
    quire_store_drain(store); /* a use of the text was to be told to Redis */
    assert_true(tier_of(store, 1).is_failing);
    quire_store_close(store);
    quire_store_close(far);
    fixture_close(&a.f);
}

/* Memory over a directory over Redis: what is put in one store is found in another. */
static void test_three_tiers(void **state) {
    (void)state;
    enum { TEXTS = 30 };
    redis_server s = {0};
    author a;
    char dirs[2][300];
    redis_start(&s, NULL);
    open_author(&a);
    snprintf(dirs[0], sizeof dirs[0], "%s", store_dir("three-a"));
    snprintf(dirs[1], sizeof dirs[1], "%s", store_dir("three-b"));
    quire_store *one = open_tiers("mem:1M", dirs[0], redis_place(&s, "timeout=20000"), 0);
    for (uint64_t seed = 0; seed < TEXTS; seed++)
        assert_ok(put(one, &a, seed));
    quire_store_drain(one);
    for (size_t i = 1; i < 3; i++) {
        const quire_store_tier tier = tier_of(one, i);
        assert_int_equal(tier.dropped_records, 0);
        assert_int_equal(tier.errors, 0);
        assert_int_equal(tier.queued_bytes, 0);
        assert_int_equal(tier.written_records, TEXTS * PAGES + 1); /* and a root */
    }
    quire_store_close(one);
    quire_store *two = open_tiers("mem:1M", dirs[1], redis_place(&s, "timeout=20000"), 0);
    for (uint64_t seed = 0; seed < TEXTS; seed++)
        assert_exact(two, &a, seed, N_TEXT);
    assert_int_equal(tier_of(two, 2).hit_records, TEXTS * PAGES);
    quire_store_close(two); /* promotions are written before it returns */
    redis_kill(&s);
    quire_store *three = open_at(dirs[1]);
    for (uint64_t seed = 0; seed < TEXTS; seed++)
        assert_exact(three, &a, seed, N_TEXT);
    quire_store_close(three);
    fixture_close(&a.f);
}

/* What export reads from a far place does not go to a nearer one, as another text's pages. */
static void test_export_copies_nothing(void **state) {
    (void)state;
    redis_server s = {0};
    author a;
    quire_store_key last;
    redis_start(&s, NULL);
    open_author(&a);
    const char *place = redis_place(&s, "timeout=20000");
    quire_store *store = open_at(place);
    assert_ok(put(store, &a, 1));
    const quire_store_text text = text_of(&a, 1, N_TEXT);
    assert_ok(quire_store_find(store, a.f.pool, &text, &last, NULL));
    quire_store_close(store);
    store = open_tiers("mem:16M", place, NULL, 0);
    assert_ok(put(store, &a, 2));
    quire_store_drain(store);
    const uint64_t records = stats_of(store).records;
    assert_ok(quire_store_export(store, &last, saved_path("exported"), NULL));
    assert_ok(put(store, &a, 2));
    quire_store_drain(store);
    assert_int_equal(stats_of(store).records, records);
    quire_store_close(store);
    redis_kill(&s);
    fixture_close(&a.f);
}

/* A text that is larger than a place is not written there; the place is well. */
static void test_larger_than_a_place(void **state) {
    (void)state;
    enum { N = 4096 };
    static int32_t tokens[N];
    fixture f;
    quire_seq *seq;
    const source s = source_default(7);
    const char *const places[] = {"mem:64M", store_dir("tight")};
    quire_store_options o;
    quire_store *store;
    open_pool(&f, "k4v4", POOL_FULL, QUIRE_F16);
    assert_ok(quire_seq_create(f.pool, &seq));
    feed(&f, seq, &s, N, 64, 1, 0, NULL);
    quire_store_options_default(&o);
    o.max_bytes = 1 << 20;
    assert_ok(quire_store_open_tiers(&store, places, 2, &o));
    quire_store_text text = {
        .identity = "me", .identity_bytes = 2, .tokens = tokens, .n_tokens = N};
    text_tokens(1, N, tokens);
    assert_ok(quire_store_put(store, seq, &text, NULL));
    quire_store_drain(store);
    quire_store_tier tier = tier_of(store, 1);
    assert_true(tier.dropped_records > 0);
    assert_false(tier.is_failing);
    assert_int_equal(tier.errors, 0);
    quire_store_close(store);
    fixture_close(&f);
}

/* Statistics of tiers never wait for a server, which would look at every key. */
static void test_stats_of_tiers(void **state) {
    (void)state;
    redis_server s = {0};
    author a;
    redis_start(&s, NULL);
    open_author(&a);
    const char *place = redis_place(&s, "timeout=20000");
    quire_store *alone = open_tiers(place, NULL, NULL, 0);
    quire_store *both = open_tiers(place, "mem:16M", NULL, 0);
    assert_ok(put(alone, &a, 1));
    quire_store_drain(alone);
    assert_int_equal(found(alone, &a, 1), N_TEXT);
    assert_ok(put(both, &a, 2));
    quire_store_drain(both);
    redis_kill(&s);
    const quire_store_stats far = stats_of(alone), near = stats_of(both);
    assert_int_equal(far.added_pages, PAGES);
    assert_int_equal(far.hit_pages, PAGES);
    assert_int_equal(far.pages, 0);
    assert_int_equal(far.max_bytes, 0);
    assert_int_equal(near.pages, PAGES);
    assert_int_equal(near.max_bytes, 16 << 20);
    quire_store_close(alone);
    quire_store_close(both);
    fixture_close(&a.f);
}

/* Redis alone, written behind: dead, slow and full servers cost pages, not calls. */
static void test_behind_in_trouble(void **state) {
    (void)state;
    redis_server s = {0};
    author a;
    redis_start(&s, NULL);
    open_author(&a);
    quire_store *store = open_tiers(redis_place(&s, "timeout=500"), NULL, NULL, 0);
    assert_ok(put(store, &a, 1));
    quire_store_drain(store);
    while (found(store, &a, 1) != N_TEXT) { /* a busy machine may need more than 500 ms */
        pause_millis(50);
        quire_store_close(store);
        store = open_tiers(redis_place(&s, "timeout=500"), NULL, NULL, 0);
        assert_ok(put(store, &a, 1));
        quire_store_drain(store);
    }
    const quire_store_tier before = tier_of(store, 0);
    redis_kill(&s);
    assert_ok(put(store, &a, 2));
    quire_store_drain(store);
    assert_int_equal(found(store, &a, 1), 0);
    quire_store_tier tier = tier_of(store, 0);
    assert_true(tier.is_failing && tier.errors > before.errors);
    assert_true(tier.dropped_records >= before.dropped_records + PAGES);
    assert_non_null(strstr(tier.error, "Redis at 127.0.0.1:"));
    redis_restart(&s);
    for (uint64_t seed = 3; found(store, &a, seed - 1) != N_TEXT; seed++) {
        assert_ok(put(store, &a, seed));
        quire_store_drain(store);
        pause_millis(50);
    }
    assert_false(tier_of(store, 0).is_failing);
    /* It hangs: puts go on, and the queue is bounded. */
    quire_store_close(store);
    store = open_tiers(redis_place(&s, "timeout=500"), NULL, NULL, 64 << 10);
    redis_pause(&s, true);
    for (uint64_t seed = 1000; seed < 1100; seed++) {
        put(store, &a, seed); /* E_BUSY once the queue is full */
        assert_true(tier_of(store, 0).queued_bytes <= 64 << 10);
    }
    tier = tier_of(store, 0);
    assert_true(tier.dropped_records > 0 && tier.dropped_bytes > 0);
    redis_pause(&s, false);
    quire_store_close(store);
    redis_kill(&s);
    /* A server that is not there at the start. */
    store = open_tiers("mem:4M", redis_place(&s, NULL), NULL, 0);
    assert_ok(put(store, &a, 1));
    assert_exact(store, &a, 1, N_TEXT);
    quire_store_close(store);
    fixture_close(&a.f);
}

typedef struct told {
    int n_failing, n_working;
    char error[200];
} told;

static void on_tier(void *user, const quire_store_tier *tier) {
    told *t = user;
    *(tier->is_failing ? &t->n_failing : &t->n_working) += 1;
    if (tier->is_failing)
        memcpy(t->error, tier->error, sizeof t->error);
}

static quire_store_options options_that_tell(told *t) {
    quire_store_options o;
    quire_store_options_default(&o);
    o.on_tier = on_tier;
    o.user = t;
    return o;
}

/* A full server is told of once, although it can still be read, and once more when it has room. */
static void test_told_once(void **state) {
    (void)state;
    static const char *const options[] = {"--maxmemory", "3mb", "--maxmemory-policy", "noeviction",
                                          NULL};
    redis_server s = {0};
    author a;
    redis_start(&s, options);
    open_author(&a);
    told t = {0};
    quire_store_options o = options_that_tell(&t);
    quire_store *store;
    const char *const places[] = {redis_place(&s, "timeout=20000")};
    assert_ok(quire_store_open_tiers(&store, places, 1, &o));
    uint64_t seed = 1;
    for (; !tier_of(store, 0).is_failing; seed++) {
        assert_ok(put(store, &a, seed));
        quire_store_drain(store);
    }
    for (int i = 0; i < 10; i++, seed++) {
        assert_int_equal(found(store, &a, 1), N_TEXT);
        assert_ok(put(store, &a, seed));
        quire_store_drain(store);
    }
    assert_int_equal(t.n_failing, 1);
    assert_int_equal(t.n_working, 0);
    assert_non_null(strstr(t.error, "is full"));
    assert_true(tier_of(store, 0).dropped_records >= 10 * PAGES);
    assert_string_equal(redis_say(&s, "CONFIG SET maxmemory 0"), "+OK");
    for (; tier_of(store, 0).is_failing; seed++) {
        assert_ok(put(store, &a, seed));
        quire_store_drain(store);
        pause_millis(20);
    }
    assert_int_equal(found(store, &a, seed - 1), N_TEXT);
    quire_store_close(store);
    assert_int_equal(t.n_failing, 1);
    assert_int_equal(t.n_working, 1);
    redis_kill(&s);
    fixture_close(&a.f);
}

/* A disk that takes no more is told of once, too: that it can be read does not mean that it works.
 */
static void test_full_disk_told_once(void **state) {
    (void)state;
    author a;
    struct rlimit before, none;
    open_author(&a);
    told t = {0};
    quire_store_options o = options_that_tell(&t);
    quire_store *store;
    o.touch_seconds = 0; /* every use is written */
    const char *const places[] = {store_dir("told"), "mem:1M"};
    assert_ok(quire_store_open_tiers(&store, places, 2, &o));
    assert_ok(put(store, &a, 1));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    void (*const was)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &none);
    int n[5];
    for (int i = 0; i < 5; i++)
        look(store, &a, 1, &n[i]);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, was);
    for (int i = 0; i < 5; i++)
        assert_int_equal(n[i], N_TEXT);
    assert_int_equal(t.n_failing, 1);
    assert_int_equal(t.n_working, 0);
    assert_ok(put(store, &a, 2));
    assert_int_equal(t.n_working, 1);
    quire_store_close(store);
    fixture_close(&a.f);
}

/* Killed and started again in the middle of puts and gets: no call fails, nothing wrong is found.
 */
static void test_killed_often(void **state) {
    (void)state;
    enum { ROUNDS = 6, TEXTS = 12 };
    redis_server s = {0};
    author a;
    redis_start(&s, NULL);
    open_author(&a);
    quire_store *store = open_tiers("mem:1M", redis_place(&s, "timeout=500"), NULL, 0);
    for (int round = 0; round < ROUNDS; round++) {
        for (uint64_t seed = 0; seed < TEXTS; seed++) {
            if (seed == TEXTS / 2 && round % 2)
                redis_restart(&s);
            else if (seed == TEXTS / 2)
                redis_kill(&s);
            assert_ok(put(store, &a, 100 * (uint64_t)round + seed));
            assert_exact(store, &a, 100 * (uint64_t)round + seed, N_TEXT);
        }
    }
    quire_store_close(store);
    redis_kill(&s);
    fixture_close(&a.f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_same_directory),
        cmocka_unit_test(test_password),
        cmocka_unit_test(test_tls),
        cmocka_unit_test(test_dead_and_back),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_evicting),
        cmocka_unit_test(test_replica),
        cmocka_unit_test(test_moved_host),
        cmocka_unit_test(test_host_not_found),
        cmocka_unit_test(test_expiry),
        cmocka_unit_test(test_liar),
        cmocka_unit_test(test_cluster_that_moves),
        cmocka_unit_test(test_export_copies_nothing),
        cmocka_unit_test(test_larger_than_a_place),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_other_protocol),
        cmocka_unit_test(test_processes),
        cmocka_unit_test(test_cluster),
        cmocka_unit_test(test_half_and_half),
        cmocka_unit_test(test_three_tiers),
        cmocka_unit_test(test_stats_of_tiers),
        cmocka_unit_test(test_behind_in_trouble),
        cmocka_unit_test(test_told_once),
        cmocka_unit_test(test_full_disk_told_once),
        cmocka_unit_test(test_killed_often),
    };
    const int missing = places_missing(true);
    return missing ? missing : cmocka_run_group_tests(tests, NULL, places_teardown);
}
