/* What the tests of the page layer share: an allocator that counts and can refuse, books that
 * must balance, and probes that show what a sequence would answer without changing it. */
#ifndef QUIRE_TESTS_LEDGER_H
#define QUIRE_TESTS_LEDGER_H

#include <string.h>

#include "kit.h"

/* ---- memory */

typedef struct ledger {
    struct {
        void *at;
        size_t bytes;
    } block[8];
    int n_live, n_calls;
    size_t live_bytes, peak_bytes;
    int refuse_call;     /* the call that gets NULL, counted from 1; 0: none */
    size_t refuse_above; /* larger requests get NULL; 0: none do */
    int fill;            /* what fresh memory is full of: nobody may rely on zeros */
} ledger;

static inline void *ledger_alloc(void *user, size_t bytes, size_t alignment) {
    ledger *l = user;
    void *memory;
    l->n_calls++;
    if (l->n_calls == l->refuse_call || (l->refuse_above && bytes > l->refuse_above))
        return NULL;
    if (posix_memalign(&memory, alignment, bytes) != 0)
        return NULL;
    memset(memory, l->fill, bytes);
    assert_in_range(l->n_live, 0, 7);
    l->block[l->n_live].at = memory;
    l->block[l->n_live++].bytes = bytes;
    l->live_bytes += bytes;
    if (l->live_bytes > l->peak_bytes)
        l->peak_bytes = l->live_bytes;
    return memory;
}

static inline void ledger_free(void *user, void *memory) {
    ledger *l = user;
    for (int i = 0; i < l->n_live; i++)
        if (l->block[i].at == memory) {
            l->live_bytes -= l->block[i].bytes;
            l->block[i] = l->block[--l->n_live];
            free(memory);
            return;
        }
    fail_msg("freed memory that was not allocated, or twice");
}

static inline quire_allocator ledger_allocator(ledger *l) {
    return (quire_allocator){ledger_alloc, ledger_free, l};
}

/* ---- books: every byte of the arena is accounted for, in the pool and layer by layer */

static inline quire_pool_stats balance(const fixture *f) {
    quire_pool_stats s;
    size_t sealed = 0, raw = 0;
    quire_pool_get_stats(f->pool, &s);
    assert_int_equal(s.arena_bytes, s.free_bytes + s.sealed_bytes + s.open_bytes +
                                        s.last_raw_bytes + s.sink_bytes);
    assert_int_equal(s.shadow_bytes, 0);
    assert_true(s.largest_free_bytes <= s.free_bytes && s.arena_bytes <= s.total_bytes &&
                s.total_bytes <= s.budget_bytes);
    for (int32_t i = 0; i < f->options.n_layers; i++) {
        quire_layer_stats layer;
        assert_ok(quire_layer_get_stats(f->pool, i, &layer));
        assert_int_equal(layer.fallbacks, 0);
        sealed += layer.sealed_bytes;
        raw += layer.raw_bytes;
    }
    assert_int_equal(sealed, s.sealed_bytes);
    assert_int_equal(raw, s.open_bytes + s.last_raw_bytes + s.sink_bytes);
    return s;
}

/* Nothing is in use: no leaf, no sequence, no batch. */
static inline void assert_all_free(const fixture *f) {
    const quire_pool_stats s = balance(f);
    assert_int_equal(s.free_bytes, s.arena_bytes);
    assert_int_equal(s.largest_free_bytes, s.arena_bytes);
    assert_int_equal(s.n_seqs, 0);
    assert_int_equal(s.n_batches, 0);
    assert_int_equal(s.tokens, 0);
}

/* What is resident is the same; counters of things done may differ. */
static inline void assert_same_residents(quire_pool_stats a, quire_pool_stats b) {
    a.sealed_pages = b.sealed_pages = a.reopened_pages = b.reopened_pages = 0;
    assert_memory_equal(&a, &b, sizeof a);
}

/* ---- probes */

static inline size_t answer_floats(const fixture *f, int rows) {
    size_t n = 0;
    for (int32_t i = 0; i < f->options.n_layers; i++)
        n += (size_t)(f->layer[i].n_heads * f->layer[i].v_dim);
    return n * (size_t)rows;
}

/* Outputs (layers, n, H, DV) of the next n tokens of `s`, which are then forgotten. The caller
 * frees them. */
static inline float *probe(fixture *f, quire_seq *seq, const source *s, int n) {
    float *out = malloc(answer_floats(f, n) * sizeof *out + 1);
    const step_item item = {seq, s, n};
    assert_ok(step(f, &item, 1, &(step_options){.abort = true}, out));
    return out;
}

static inline void assert_answers(fixture *f, quire_seq *seq, const source *s, int n,
                                  const float *wanted) {
    float *out = probe(f, seq, s, n);
    assert_memory_equal(out, wanted, answer_floats(f, n) * sizeof *out);
    free(out);
}

static inline quire_seq *new_seq(fixture *f) {
    quire_seq *seq;
    assert_ok(quire_seq_create(f->pool, &seq));
    return seq;
}

/* A sequence of n tokens of `s`, fed in one go where a batch can hold them. */
static inline quire_seq *fed_seq(fixture *f, const source *s, int n) {
    quire_seq *seq = new_seq(f);
    feed(f, seq, s, n, f->options.max_batch_tokens, 1, 0, NULL);
    return seq;
}

static inline void drop(quire_seq *seq) { assert_ok(quire_seq_free(seq)); }

/* The last failure says `words`. */
static inline void assert_reason(const char *words) {
    if (!strstr(quire_last_error(), words))
        fail_msg("\"%s\" does not say \"%s\"", quire_last_error(), words);
}

#endif
