/* gbnf_pairs.c: two alternatives of a recursive rule, side by side.
 *
 * {"op": "add", "left": .. and {"op": "num", .. begin alike, but are told apart before the
 * recursion in "left" begins. All pairs of places are visited that two alternatives can be at after
 * the same characters. A place is a stack of elements, as libllama has it, from the rule on.
 * Repetitions are taken for unlimited, which only adds pairs. */
#include "api/gbnf_rules.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH = 24, PLACES = 256, PAIRS = 4096, PAIRS_OF_ALL = 40000 };

typedef struct place {
    int32_t n; /* 0: behind the rule */
    int32_t at[DEPTH];
} place;

typedef struct pair {
    place a, b;
} pair;

typedef struct pair_search {
    gbnf_checker *c;
    const gbnf_rule *rule;
    pair *pairs; /* (n) those from n_done on are to be looked at */
    int32_t n, n_done, capacity;
    int32_t slots[2 * PAIRS]; /* index of a pair + 1, by hash */
} pair_search;

typedef struct place_list {
    place list[PLACES];
    int32_t n;
} place_list;

/* ------------------------------------------------------------------ places */

static bool push(place *p, int32_t element) {
    if (p->n == DEPTH)
        return false;
    p->at[p->n++] = element;
    return true;
}

/* Takes off what has nothing left to do, as libllama does: chains of rules stay short. */
static void drop_ended(const gbnf_checker *c, place *p) {
    while (p->n > 0) {
        const gbnf_element *e = &c->elements[p->at[p->n - 1]];
        if ((e->kind != END && e->kind != ALTERNATIVE) || c->rules[e->index].repeats)
            return;
        p->n--;
    }
}

/* Adds the places at characters that a place leads to without one. False: the rule begins
 * again, or there are too many. */
static bool settle(const pair_search *s, place from, place_list *out) {
    const gbnf_checker *c = s->c;
    if (from.n == 0 || c->elements[from.at[from.n - 1]].kind == CHARACTER) {
        if (out->n == PLACES)
            return false;
        out->list[out->n++] = from;
        return true;
    }
    const int32_t top = from.at[from.n - 1];
    const gbnf_element *e = &c->elements[top];
    const gbnf_rule *r = &c->rules[e->index];
    if (e->kind == REFERENCE) {
        if (r == s->rule)
            return false;
        from.at[from.n - 1]++;
        drop_ended(c, &from);
        for (int32_t i = r->first; i <= r->first + r->n; i++) {
            place into = from;
            if (i > r->first && c->elements[i - 1].kind != ALTERNATIVE)
                continue;
            if (!push(&into, i) || !settle(s, into, out))
                return false;
        }
        return true;
    }
    from.n--; /* the end of an alternative */
    const bool was_item =
        e->kind == ALTERNATIVE || r->n == 0 || c->elements[top - 1].kind != ALTERNATIVE;
    if (r->repeats && was_item) {
        place again = from;
        if (!push(&again, r->first) || !settle(s, again, out))
            return false;
    }
    return settle(s, from, out);
}

static const char_set *next_chars(const pair_search *s, const place *p) {
    return p->n == 0 ? &s->rule->follows : &s->c->sets[s->c->elements[p->at[p->n - 1]].index];
}

static bool same_place(const place *a, const place *b) {
    return a->n == b->n && memcmp(a->at, b->at, (size_t)a->n * sizeof *a->at) == 0;
}

/* ------------------------------------------------------------------ pairs */

static uint32_t hash_place(const place *p, uint32_t hash) {
    for (int32_t i = 0; i < p->n; i++)
        hash = (hash ^ (uint32_t)p->at[i]) * 16777619u;
    return (hash ^ (uint32_t)p->n) * 16777619u;
}

static bool has_room(pair_search *s) {
    if (s->n < s->capacity)
        return true;
    const int32_t larger = s->capacity ? 2 * s->capacity : 32;
    pair *moved = s->n < PAIRS ? realloc(s->pairs, (size_t)larger * sizeof *moved) : NULL;
    if (!moved)
        return false;
    s->pairs = moved;
    s->capacity = larger;
    return true;
}

/* False: too many. */
static bool add_pair(pair_search *s, const place *a, const place *b) {
    uint32_t slot = hash_place(b, hash_place(a, 2166136261u)) % (2 * PAIRS);
    for (; s->slots[slot]; slot = (slot + 1) % (2 * PAIRS)) {
        const pair *known = &s->pairs[s->slots[slot] - 1];
        if (same_place(&known->a, a) && same_place(&known->b, b))
            return true;
    }
    if (s->c->n_pairs == PAIRS_OF_ALL || !has_room(s))
        return false;
    s->c->n_pairs++;
    s->pairs[s->n] = (pair){*a, *b};
    s->slots[slot] = ++s->n;
    return true;
}

/* False: one is behind the rule where the other may go on with the same character. */
static bool add_pairs(pair_search *s, const place_list *as, const place_list *bs) {
    for (int32_t i = 0; i < as->n; i++)
        for (int32_t k = 0; k < bs->n; k++) {
            const place *a = &as->list[i], *b = &bs->list[k];
            if (same_place(a, b) || !gbnf_overlap(next_chars(s, a), next_chars(s, b)))
                continue;
            if (a->n == 0 || b->n == 0 || !add_pair(s, a, b))
                return false;
        }
    return true;
}

static bool advance(const pair_search *s, place p, place_list *out) {
    out->n = 0;
    p.at[p.n - 1]++;
    return settle(s, p, out);
}

static bool run(pair_search *s, place_list *as, place_list *bs) {
    const gbnf_checker *c = s->c;
    const int32_t first = s->rule->first, end = first + s->rule->n;
    for (int32_t i = first; i <= end; i++)
        for (int32_t k = i + 1; k <= end; k++) {
            if ((i > first && c->elements[i - 1].kind != ALTERNATIVE) ||
                c->elements[k - 1].kind != ALTERNATIVE)
                continue;
            as->n = bs->n = 0;
            if (!settle(s, (place){.n = 1, .at = {i}}, as) ||
                !settle(s, (place){.n = 1, .at = {k}}, bs) || !add_pairs(s, as, bs))
                return false;
        }
    for (; s->n_done < s->n; s->n_done++) {
        const pair p = s->pairs[s->n_done];
        if (!advance(s, p.a, as) || !advance(s, p.b, bs) || !add_pairs(s, as, bs))
            return false;
    }
    return true;
}

bool gbnf_soon_clear(gbnf_checker *c, const gbnf_rule *rule) {
    if (rule->is_repetition)
        return false;
    pair_search *s = calloc(1, sizeof *s);
    place_list *lists = malloc(2 * sizeof *lists);
    bool clear = false;
    if (s && lists) {
        s->c = c;
        s->rule = rule;
        clear = run(s, &lists[0], &lists[1]);
        free(s->pairs);
    }
    free(s);
    free(lists);
    return clear;
}
