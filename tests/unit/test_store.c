/* A store of sealed pages: what comes out is what went in, bit for bit, and only for the same
 * text, identity and form. */
#include <string.h>
#include <sys/stat.h>

#include "quire_store.h"
#include "saved.h"
#include "store_kit.h"
#include "store_places.h"

enum { N_TEXT = 400, N_MORE = 70, CHUNK = 64 };

static const char IDENTITY[] = "a model";

static quire_store_text text_of(const int32_t *tokens, int n) {
    return (quire_store_text){.identity = IDENTITY,
                              .identity_bytes = sizeof IDENTITY - 1,
                              .tokens = tokens,
                              .n_tokens = n};
}

static quire_store *open_store(const char *name, uint64_t max_bytes) {
    quire_store_options o;
    quire_store *store;
    quire_store_options_default(&o);
    o.max_bytes = max_bytes;
    assert_ok(places_open(&store, name, &o));
    return store;
}

static quire_store_stats stats_of(quire_store *store) {
    quire_store_stats stats;
    assert_ok(quire_store_get_stats(store, &stats));
    return stats;
}

/* A sequence of n tokens, put as its pages seal. */
static quire_seq *put_text(quire_store *store, fixture *f, const source *s, const int32_t *tokens,
                           int n, int chunk) {
    const quire_store_text text = text_of(tokens, n);
    quire_seq *seq;
    assert_ok(quire_seq_create(f->pool, &seq));
    for (int done = 0; done < n; done += chunk) {
        feed(f, seq, s, n - done < chunk ? n - done : chunk, chunk, 1, 0, NULL);
        assert_ok(quire_store_put(store, seq, &text, NULL));
    }
    return seq;
}

/* What a text finds, and whether it goes on as the same prefix computed here. */
static int check_found(quire_store *store, fixture *a, fixture *b, const source *s,
                       const int32_t *tokens, int n, int leave) {
    const quire_store_text text = text_of(tokens, n);
    quire_seq *found, *cold;
    assert_ok(quire_store_get(store, b->pool, &text, leave, &found));
    const int length = quire_seq_length(found);
    assert_int_equal(length % 64, 0);
    assert_true(length <= n - leave || length == 0);
    assert_ok(quire_seq_create(a->pool, &cold));
    feed(a, cold, s, length, CHUNK, 1, 0, NULL);
    assert_same_future(a, cold, b, found, s, N_MORE);
    assert_ok(quire_seq_free(found));
    assert_ok(quire_seq_free(cold));
    return length;
}

/* ------------------------------------------------------------------ round trip */

static void check_round_trip(const char *kv, pool_kind kind, quire_type raw) {
    static const int lengths[] = {0, 1, 63, 64, 65, 128, 129, 192, 250, 320, 399, 400};
    const source s = source_default(7);
    int32_t tokens[N_TEXT], other[N_TEXT];
    text_tokens(1, N_TEXT, tokens);
    fixture a, b;
    open_pool(&a, kv, kind, raw);
    open_pool(&b, kv, kind, raw);
    quire_store *store = open_store("round-trip", 0);
    assert_ok(quire_seq_free(put_text(store, &a, &s, tokens, N_TEXT, CHUNK)));
    assert_int_equal(stats_of(store).pages, N_TEXT / 64);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const int n = lengths[i], usable = n > 0 ? n - 1 : 0;
        assert_int_equal(check_found(store, &a, &b, &s, tokens, n, 1), usable / 64 * 64);
        assert_int_equal(check_found(store, &a, &b, &s, tokens, n, 0), n / 64 * 64);
        memcpy(other, tokens, sizeof other); /* another text from here on */
        for (int t = n; t < N_TEXT; t++)
            other[t]++;
        assert_int_equal(check_found(store, &a, &b, &s, other, N_TEXT, 1),
                         n == N_TEXT ? 384 : n / 64 * 64);
    }
    quire_pool_stats stats;
    quire_pool_get_stats(b.pool, &stats);
    assert_int_equal(stats.free_bytes, stats.arena_bytes);
    quire_store_verdict verdict;
    assert_ok(quire_store_verify(store, NULL, &verdict));
    assert_int_equal(verdict.bad, 0);
    assert_int_equal(verdict.lost, 0);
    assert_ok(quire_store_remove(store, NULL, NULL));
    assert_int_equal(stats_of(store).records, 0);
    assert_int_equal(stats_of(store).pages, 0);
    assert_int_equal(stats_of(store).bytes, 0);
    quire_store_close(store);
    fixture_close(&a);
    fixture_close(&b);
}

/* Whether this pool is tried here. A directory gets all of them, under a sanitizer one in five.
 * Every other place keeps the same bytes and asks the same questions, so one in five is enough
 * there. */
static bool takes_pool(void) {
    static int turn;
    const char *place = getenv("QUIRE_TEST_STORE");
    return sweep_takes_of(&turn, place && *place ? 5 : 1, 5);
}

static void test_round_trip(void **state) {
    (void)state;
    static const struct {
        const char *kv;
        quire_type raw;
    } pairs[] = {{"k8v4", QUIRE_F16}, {"k4v4", QUIRE_BF16}, {"none", QUIRE_F16}};
    for (int kind = 0; kind < POOL_KINDS; kind++)
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            if (takes_pool())
                check_round_trip(pairs[i].kv, (pool_kind)kind, pairs[i].raw);
    if (takes_pool())
        check_round_trip("tq4", POOL_FULL, QUIRE_F16);
    if (takes_pool())
        check_round_trip("mlx4", POOL_MIXED, QUIRE_F32);
}

/* Batches longer than a window: only prefixes whose last window was still there can be found,
 * and nothing wrong is. */
static void test_windows_put_late(void **state) {
    (void)state;
    const source s = source_default(3);
    int32_t tokens[N_TEXT];
    text_tokens(2, N_TEXT, tokens);
    fixture a, b;
    open_pool(&a, "k8v4", POOL_WINDOWS, QUIRE_F16);
    open_pool(&b, "k8v4", POOL_WINDOWS, QUIRE_F16);
    quire_store *store = open_store("late", 0);
    quire_seq *seq;
    assert_ok(quire_seq_create(a.pool, &seq));
    feed(&a, seq, &s, N_TEXT, 64, 1, 0, NULL);
    const quire_store_text text = text_of(tokens, N_TEXT);
    assert_ok(quire_store_put(store, seq, &text, NULL));
    assert_ok(quire_seq_free(seq));
    assert_int_equal(check_found(store, &a, &b, &s, tokens, N_TEXT, 1), 384);
    assert_int_equal(check_found(store, &a, &b, &s, tokens, 384, 1), 0);
    assert_int_equal(check_found(store, &a, &b, &s, tokens, 200, 1), 0);
    quire_store_close(store);
    fixture_close(&a);
    fixture_close(&b);
}

static void test_put_is_cheap_when_nothing_is_new(void **state) {
    (void)state;
    const source s = source_default(7);
    int32_t tokens[N_TEXT];
    text_tokens(1, N_TEXT, tokens);
    fixture f;
    open_pool(&f, "k8v4", POOL_MIXED, QUIRE_F16);
    quire_store *store = open_store("again", 0);
    quire_seq *seq = put_text(store, &f, &s, tokens, N_TEXT, CHUNK);
    const quire_store_text text = text_of(tokens, N_TEXT);
    quire_store_added added = {1, 1};
    const quire_store_stats before = stats_of(store);
    assert_ok(quire_store_put(store, seq, &text, &added));
    assert_int_equal(added.pages, 0);
    assert_int_equal(added.bytes, 0);
    quire_store_stats after = stats_of(store);
    if (places_kind() == PLACE_REDIS || places_kind() == PLACE_CLUSTER)
        after.file_bytes = before.file_bytes; /* the memory of the whole server */
    assert_memory_equal(&before, &after, sizeof before);
    /* Not more than the text covers. */
    const quire_store_text less = text_of(tokens, 130);
    assert_ok(quire_store_remove(store, NULL, NULL));
    assert_ok(quire_store_put(store, seq, &less, &added));
    assert_int_equal(added.pages, 2);
    quire_store_close(store);
    fixture_close(&f);
}

/* ------------------------------------------------------------------ what must not be found */

static int found_by(quire_store *store, quire_pool *pool, const quire_store_text *text) {
    quire_seq *seq;
    assert_ok(quire_store_get(store, pool, text, 0, &seq));
    const int n = quire_seq_length(seq);
    assert_ok(quire_seq_free(seq));
    return n;
}

/* The same 64 tokens after other ones are another page. */
static void test_chain(void **state) {
    (void)state;
    const source s = source_default(7);
    int32_t tokens[N_TEXT], other[N_TEXT];
    text_tokens(1, N_TEXT, tokens);
    fixture f;
    open_small_pool(&f, "k4v4");
    quire_store *store = open_store("chain", 0);
    put_text(store, &f, &s, tokens, 192, CHUNK);
    quire_store_text text = text_of(other, 192);
    memcpy(other, tokens, sizeof other);
    other[0]++; /* page 0 differs: pages 1 and 2 have the same tokens */
    assert_int_equal(found_by(store, f.pool, &text), 0);
    memcpy(other, tokens, sizeof other);
    other[70]++;
    assert_int_equal(found_by(store, f.pool, &text), 64);
    memcpy(other, tokens + 64, 128 * sizeof *other); /* page 1 first */
    assert_int_equal(found_by(store, f.pool, &text), 0);
    text = text_of(tokens, 192);
    assert_int_equal(found_by(store, f.pool, &text), 192);
    quire_store_close(store);
    fixture_close(&f);
}

static void test_identity_and_form(void **state) {
    (void)state;
    const source s = source_default(7);
    int32_t tokens[N_TEXT];
    text_tokens(1, N_TEXT, tokens);
    fixture f;
    open_small_pool(&f, "k4v4");
    quire_store *store = open_store("identity", 0);
    put_text(store, &f, &s, tokens, 192, CHUNK);
    quire_store_text text = text_of(tokens, 192);
    assert_int_equal(found_by(store, f.pool, &text), 192);
    text.identity = "b model";
    assert_int_equal(found_by(store, f.pool, &text), 0);
    text.identity_bytes = 6;
    text.identity = IDENTITY;
    assert_int_equal(found_by(store, f.pool, &text), 0);
    text.identity_bytes = 0;
    assert_int_equal(found_by(store, f.pool, &text), 0);
    text = text_of(tokens, 192);
    fixture_close(&f);

    /* Every one of these makes other pages, or another attention. */
    static uint16_t order[32];
    for (int i = 0; i < 32; i++)
        order[i] = (uint16_t)(31 - i);
    static const float alibi[2] = {0.5f, 0.25f};
    for (int change = 0; change < 11; change++) {
        fixture other;
        fixture_init(&other, change == 10 ? 2 : 1, 2, 1, 32, 32,
                     change == 1   ? "k8v4"
                     : change == 2 ? "kc4:vt4"
                                   : "k4v4");
        other.options.max_seqs = 4;
        quire_layer *l = &other.layer[0];
        if (change == 3)
            other.options.raw = QUIRE_BF16;
        if (change == 4)
            other.options.policy.sinks = 3;
        if (change == 5)
            l->k_order = order;
        if (change == 6)
            l->n_heads = 4;
        if (change == 7)
            l->softcap = 30;
        if (change == 8)
            l->alibi = alibi;
        if (change == 9) {
            l->window = 1000;
            l->k = QUIRE_CODEC_KM4;
            l->v = QUIRE_CODEC_VT4;
        }
        fixture_open(&other);
        assert_int_equal(found_by(store, other.pool, &text), change == 0 ? 192 : 0);
        fixture_close(&other);
    }
    quire_store_close(store);
}

/* Who does not know a salt finds nothing of its texts. */
static void test_salt(void **state) {
    (void)state;
    const source s = source_default(7);
    int32_t tokens[N_TEXT];
    text_tokens(1, N_TEXT, tokens);
    fixture f, g;
    open_small_pool(&f, "k4v4");
    open_small_pool(&g, "k4v4");
    quire_store *store = open_store("salt", 0);
    quire_seq *seq, *again;
    assert_ok(quire_seq_create(f.pool, &seq));
    feed(&f, seq, &s, 192, CHUNK, 1, 0, NULL);
    const quire_store_text plain = text_of(tokens, 192);
    quire_store_text one = plain, two = plain;
    one.salt = "tenant 1";
    two.salt = "tenant 2";
    one.salt_bytes = two.salt_bytes = 8;
    assert_ok(quire_store_put(store, seq, &one, NULL));
    assert_int_equal(found_by(store, f.pool, &plain), 0);
    assert_int_equal(found_by(store, f.pool, &two), 0);
    assert_int_equal(found_by(store, f.pool, &one), 192);
    one.salt_bytes = 7;
    assert_int_equal(found_by(store, f.pool, &one), 0);
    one.salt_bytes = 8;
    assert_ok(quire_store_put(store, seq, &two, NULL));
    assert_ok(quire_store_put(store, seq, &plain, NULL));
    assert_int_equal(stats_of(store).pages, 9);
    quire_store_verdict verdict; /* roots with a salt are as sound as others */
    assert_ok(quire_store_verify(store, NULL, &verdict));
    assert_int_equal(verdict.records, 12);
    assert_int_equal(verdict.bad, 0);
    assert_int_equal(verdict.lost, 0);
    assert_ok(quire_store_get(store, g.pool, &two, 0, &again)); /* the pages are the same */
    assert_same_future(&f, seq, &g, again, &s, N_MORE);
    quire_store_key key;
    int32_t n;
    assert_ok(quire_store_find(store, f.pool, &one, &key, &n));
    assert_ok(quire_store_export(store, &key, saved_path("salted"), NULL));
    one.salt = NULL;
    assert_status(quire_store_get(store, f.pool, &one, 0, &again), QUIRE_E_INVALID);
    quire_store_close(store);
    fixture_close(&f);
    fixture_close(&g);
}

/* ------------------------------------------------------------------ what goes wrong */

static void test_arguments(void **state) {
    (void)state;
    const source s = source_default(7);
    int32_t tokens[N_TEXT];
    text_tokens(1, N_TEXT, tokens);
    fixture f;
    open_small_pool(&f, "k4v4");
    quire_store *store = open_store("arguments", 0);
    quire_store_text text = text_of(tokens, 192);
    quire_seq *seq = put_text(store, &f, &s, tokens, 192, CHUNK), *found = seq;
    quire_batch *batch;
    assert_ok(quire_batch_begin(f.pool, &(quire_batch_item){seq, 1}, 1, &batch));
    assert_status(quire_store_put(store, seq, &text, NULL), QUIRE_E_BUSY);
    quire_batch_abort(batch);
    assert_ok(quire_store_put(store, seq, &text, NULL));
    assert_status(quire_store_put(store, NULL, &text, NULL), QUIRE_E_INVALID);
    assert_status(quire_store_put(store, seq, NULL, NULL), QUIRE_E_INVALID);
    assert_status(quire_store_get(store, f.pool, &text, -1, &found), QUIRE_E_INVALID);
    text.n_tokens = -1;
    assert_status(quire_store_get(store, f.pool, &text, 0, &found), QUIRE_E_INVALID);
    text = text_of(tokens, 192);
    /* No slot, and no room: nothing happens to the pool. */
    quire_seq *more[3];
    for (int i = 0; i < 3; i++)
        assert_ok(quire_seq_create(f.pool, &more[i]));
    assert_status(quire_store_get(store, f.pool, &text, 0, &found), QUIRE_E_NO_SLOT);
    assert_null(found);
    assert_ok(quire_seq_free(more[2]));
    for (int i = 0; i < 2;
         i++) /* the second takes what is too small for the first's next page, if anything is */
        while (step(&f, &(step_item){more[i], &s, i ? 1 : 64}, 1,
                    &(step_options){.store_only = true}, NULL) == QUIRE_OK)
            ;
    quire_pool_stats before, after;
    quire_pool_get_stats(f.pool, &before);
    size_t page_bytes;
    assert_ok(quire_page_bytes(&(quire_page_shape){f.options.policy.pair, 32, 32, QUIRE_F16},
                               &page_bytes));
    assert_true(before.free_bytes < 3 * page_bytes); /* fewer than the text's pages need */
    assert_status(quire_store_get(store, f.pool, &text, 0, &found), QUIRE_E_NO_PAGES);
    assert_null(found);
    quire_pool_get_stats(f.pool, &after);
    assert_int_equal(before.free_bytes, after.free_bytes);
    assert_int_equal(before.n_seqs, after.n_seqs);
    quire_store_close(store);
    if (places_kind() == PLACE_MEMORY) { /* it is gone */
        fixture_close(&f);
        return;
    }

    quire_store_options o;
    quire_store_options_default(&o);
    o.read_only = true;
    assert_ok(places_open(&store, "arguments", &o));
    assert_status(quire_store_put(store, seq, &text, NULL), QUIRE_E_STATE);
    assert_status(quire_store_remove(store, NULL, NULL), QUIRE_E_STATE);
    quire_store_key key;
    int32_t n;
    assert_ok(quire_store_find(store, f.pool, &text, &key, &n));
    assert_int_equal(n, 192);
    quire_store_close(store);
    fixture_close(&f);
}

/* ------------------------------------------------------------------ files */

static void check_export(const char *kv, pool_kind kind) {
    const source s = source_default(9);
    int32_t tokens[N_TEXT];
    text_tokens(4, N_TEXT, tokens);
    fixture a, b;
    open_pool(&a, kv, kind, QUIRE_F16);
    open_pool(&b, kv, kind, QUIRE_F16);
    quire_store *store = open_store("export", 0), *second = open_store("import", 0);
    assert_ok(quire_seq_free(put_text(store, &a, &s, tokens, N_TEXT, CHUNK)));
    for (int n = 64; n <= 384; n += 64) {
        const quire_store_text text = text_of(tokens, n);
        quire_store_key key, again;
        int32_t n_found;
        assert_ok(quire_store_find(store, a.pool, &text, &key, &n_found));
        assert_int_equal(n_found, n);
        assert_ok(quire_store_export(store, &key, saved_path("exported"), NULL));
        quire_file *file;
        quire_file_info info;
        assert_ok(quire_file_open(&file, saved_path("exported")));
        assert_ok(quire_file_check(file));
        quire_file_get_info(file, &info);
        assert_int_equal(info.length, n);
        assert_int_equal(info.n_tokens, n);
        assert_memory_equal(info.tokens, tokens, (size_t)n * sizeof *tokens);
        quire_load_options o;
        quire_load_options_default(&o);
        o.identity = IDENTITY;
        o.identity_bytes = sizeof IDENTITY - 1;
        quire_seq *loaded, *cold;
        assert_ok(quire_seq_load(b.pool, file, &o, &loaded));
        assert_ok(quire_seq_create(a.pool, &cold));
        feed(&a, cold, &s, n, CHUNK, 1, 0, NULL);
        assert_same_future(&a, cold, &b, loaded, &s, N_MORE);
        assert_ok(quire_seq_free(loaded));
        assert_ok(quire_seq_free(cold));
        /* And back, into a store that does not have it. */
        quire_store_added added;
        assert_ok(quire_store_remove(second, NULL, NULL));
        assert_ok(quire_store_import(second, file, NULL, &again, &added));
        assert_memory_equal(&key, &again, sizeof key);
        assert_int_equal(added.pages, n / 64);
        assert_int_equal(check_found(second, &a, &b, &s, tokens, n, 0), n);
        assert_ok(quire_store_export(second, &again, saved_path("twice"), NULL));
        bytes x = file_read(saved_path("exported")), y = file_read(saved_path("twice"));
        assert_int_equal(x.n, y.n);
        assert_memory_equal(x.data, y.data, x.n);
        free(x.data), free(y.data);
        quire_file_close(file);
    }
    quire_store_key none = {{1, 2, 3}};
    assert_status(quire_store_export(store, &none, saved_path("none"), NULL), QUIRE_E_UNKNOWN);
    quire_store_close(store);
    quire_store_close(second);
    fixture_close(&a);
    fixture_close(&b);
}

static void test_export_and_import(void **state) {
    (void)state;
    for (int kind = 0; kind < POOL_KINDS; kind++)
        if (takes_pool())
            check_export(kind % 2 ? "k4v4" : "k8v4", (pool_kind)kind);
    if (takes_pool())
        check_export("none", POOL_MIXED);
}

/* A saved sequence as it is, with its open page and a window that has moved on. */
static void test_import_of_saved(void **state) {
    (void)state;
    for (int kind = 0; kind < POOL_KINDS; kind++) {
        if (!takes_pool())
            continue;
        const source s = source_default(9);
        int32_t tokens[N_TEXT];
        text_tokens(4, N_TEXT, tokens);
        fixture a, b;
        open_pool(&a, "k8v4", (pool_kind)kind, QUIRE_F16);
        open_pool(&b, "k8v4", (pool_kind)kind, QUIRE_F16);
        quire_store *store = open_store("saved", 0);
        quire_seq *seq;
        assert_ok(quire_seq_create(a.pool, &seq));
        feed(&a, seq, &s, 390, 64, 1, 0, NULL); /* the windows still see all that they saw at 384 */
        quire_save_options o;
        quire_save_options_default(&o);
        assert_ok(quire_seq_save(seq, saved_path("no-tokens"), &o));
        o.identity = IDENTITY;
        o.identity_bytes = sizeof IDENTITY - 1;
        o.tokens = tokens;
        o.n_tokens = N_TEXT;
        assert_ok(quire_seq_save(seq, saved_path("saved"), &o));
        quire_file *file;
        assert_ok(quire_file_open(&file, saved_path("no-tokens")));
        assert_status(quire_store_import(store, file, NULL, NULL, NULL), QUIRE_E_FORMAT);
        quire_file_close(file);
        assert_ok(quire_file_open(&file, saved_path("saved")));
        assert_ok(quire_store_import(store, file, NULL, NULL, NULL));
        quire_file_close(file);
        assert_ok(quire_seq_free(seq));
        assert_int_equal(check_found(store, &a, &b, &s, tokens, N_TEXT, 1), 384);
        /* One bit: nothing of it is taken. */
        bytes x = file_read(saved_path("saved"));
        x.data[x.n - 100] ^= 4;
        file_write(saved_path("saved"), x.data, x.n);
        free(x.data);
        assert_ok(quire_store_remove(store, NULL, NULL));
        assert_ok(quire_file_open(&file, saved_path("saved")));
        assert_status(quire_store_import(store, file, NULL, NULL, NULL), QUIRE_E_CORRUPT);
        quire_file_close(file);
        assert_int_equal(stats_of(store).records, 0);
        quire_store_close(store);
        fixture_close(&a);
        fixture_close(&b);
    }
}

/* ------------------------------------------------------------------ walk, names, remove */

typedef struct seen {
    int n, ends;
    quire_store_key end[8];
    quire_store_entry last_end;
} seen;

static bool see(void *user, const quire_store_entry *entry) {
    seen *s = user;
    s->n++;
    assert_true(entry->whole);
    assert_int_equal(entry->identity_bytes, sizeof IDENTITY - 1);
    assert_memory_equal(entry->identity, IDENTITY, sizeof IDENTITY - 1);
    assert_int_equal(entry->n_layers, 1);
    assert_int_equal(entry->layers[0].k, QUIRE_CODEC_KM4);
    assert_true(entry->text_bytes >= entry->bytes && entry->used > 1600000000);
    if (entry->is_end) {
        s->end[s->ends++] = entry->key;
        s->last_end = *entry;
    }
    return true;
}

static void test_walk_and_remove(void **state) {
    (void)state;
    const source s = source_default(7);
    int32_t tokens[N_TEXT], other[N_TEXT];
    text_tokens(1, N_TEXT, tokens);
    memcpy(other, tokens, sizeof other);
    other[130]++; /* two pages in common */
    fixture f;
    open_small_pool(&f, "k4v4");
    quire_store *store = open_store("walk", 0);
    put_text(store, &f, &s, tokens, 384, CHUNK);
    put_text(store, &f, &s, other, 256, CHUNK);
    seen all = {0};
    assert_ok(quire_store_walk(store, see, &all));
    assert_int_equal(all.n, 6 + 2);
    assert_int_equal(all.ends, 2);

    char digits[QUIRE_STORE_KEY_TEXT];
    quire_store_key found;
    quire_store_key_text(&all.end[1], digits);
    assert_ok(quire_store_key_find(store, digits, &found));
    assert_memory_equal(&found, &all.end[1], sizeof found);
    digits[12] = 0;
    assert_ok(quire_store_key_find(store, digits, &found));
    assert_memory_equal(&found, &all.end[1], sizeof found);
    assert_status(quire_store_key_find(store, "", &found), QUIRE_E_UNKNOWN);
    assert_status(quire_store_key_find(store, "xyz", &found), QUIRE_E_UNKNOWN);

    quire_store_text text = text_of(other, 256);
    int32_t n_pages, n;
    assert_ok(quire_store_find(store, f.pool, &text, &found, &n));
    assert_ok(quire_store_remove(store, &found, &n_pages));
    assert_int_equal(n_pages, 2);
    assert_int_equal(found_by(store, f.pool, &text), 128);
    text = text_of(tokens, 384);
    assert_int_equal(found_by(store, f.pool, &text), 384);
    /* A page in the middle goes with what follows it, and with what leads nowhere else. */
    text = text_of(tokens, 192);
    assert_ok(quire_store_find(store, f.pool, &text, &found, &n));
    assert_ok(quire_store_remove(store, &found, &n_pages));
    assert_int_equal(n_pages, 6);
    assert_int_equal(stats_of(store).records, 0);
    assert_status(quire_store_remove(store, &found, &n_pages), QUIRE_E_UNKNOWN);
    quire_store_close(store);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_windows_put_late),
        cmocka_unit_test(test_put_is_cheap_when_nothing_is_new),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_identity_and_form),
        cmocka_unit_test(test_salt),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_export_and_import),
        cmocka_unit_test(test_import_of_saved),
        cmocka_unit_test(test_walk_and_remove),
    };
    const int missing = places_missing(places_kind() >= PLACE_REDIS);
    return missing ? missing : cmocka_run_group_tests(tests, NULL, places_teardown);
}
