/* gbnf_choices.c: grammars that would make libllama follow too many ways at once.
 *
 * libllama keeps a stack for every way in which the text so far can be read. Two ways become one
 * where they come to the same place with the same stack. In rules that are recursive they may not:
 *   root ::= "a" root "b" | "a" root "c"
 * has 2^n stacks after n letters. So wherever recursion goes, the next character must decide
 * whether something is repeated once more, and it, or those after it up to the recursion, which
 * alternative is taken. Other rules are only kept from multiplying, by an estimate. */
#include "api/gbnf_rules.h"

#include <stdlib.h>

enum { PASSES_MAX = 200, WAYS_MAX = 16 };

void gbnf_unite(char_set *set, const char_set *other) {
    for (int i = 0; i < 3; i++)
        set->bits[i] |= other->bits[i];
}

bool gbnf_overlap(const char_set *a, const char_set *b) {
    return (a->bits[0] & b->bits[0]) || (a->bits[1] & b->bits[1]) || (a->bits[2] & b->bits[2]);
}

static bool includes(const char_set *set, const char_set *other) {
    for (int i = 0; i < 3; i++)
        if (other->bits[i] & ~set->bits[i])
            return false;
    return true;
}

/* ------------------------------------------------------------------ what may come after a rule */

/* From the end of a rule to its beginning. True: something was new. */
static bool spread(gbnf_checker *c, const gbnf_rule *r) {
    bool changed = false;
    char_set end = r->follows, next;
    if (r->repeats)
        gbnf_unite(&end, &r->starts);
    next = end;
    for (int32_t i = r->first + r->n - 1; i >= r->first; i--) {
        const gbnf_element *e = &c->elements[i];
        if (e->kind == ALTERNATIVE) {
            next = end;
        } else if (e->kind == CHARACTER) {
            next = c->sets[e->index];
        } else {
            gbnf_rule *other = &c->rules[e->index];
            if (!includes(&other->follows, &next)) {
                gbnf_unite(&other->follows, &next);
                changed = true;
            }
            if (!other->nullable)
                next = (char_set){0};
            gbnf_unite(&next, &other->starts);
        }
    }
    return changed;
}

static bool find_follows(gbnf_checker *c) {
    bool changed = true;
    for (int pass = 0; changed; pass++) {
        if (pass == PASSES_MAX)
            return gbnf_refuse(c, "rules depend on each other in too long chains");
        changed = false;
        for (int32_t k = 0; k < c->n_rules; k++)
            changed = spread(c, &c->rules[pass % 2 ? k : c->n_rules - 1 - k]) || changed;
    }
    return true;
}

/* ------------------------------------------------------------------ choices */

/* The characters that one alternative may begin with, or that may follow if it is empty. */
static char_set starts_of(const gbnf_checker *c, const gbnf_rule *r, int32_t from) {
    const int32_t end = r->first + r->n;
    char_set set = {0};
    int32_t i = from;
    for (; i < end && c->elements[i].kind != ALTERNATIVE; i++) {
        const gbnf_element *e = &c->elements[i];
        if (e->kind == CHARACTER) {
            gbnf_unite(&set, &c->sets[e->index]);
            return set;
        }
        gbnf_unite(&set, &c->rules[e->index].starts);
        if (!c->rules[e->index].nullable)
            return set;
    }
    gbnf_unite(&set, &r->follows);
    return set;
}

/* Whether the next character leaves more than one way. */
static bool is_unclear(const gbnf_checker *c, const gbnf_rule *r) {
    if (r->is_repetition)
        return r->chooses && gbnf_overlap(&r->starts, &r->follows);
    char_set seen = {0};
    for (int32_t i = r->first; i <= r->first + r->n; i++) {
        if (i > r->first && c->elements[i - 1].kind != ALTERNATIVE)
            continue;
        const char_set one = starts_of(c, r, i);
        if (gbnf_overlap(&seen, &one))
            return true;
        gbnf_unite(&seen, &one);
    }
    return false;
}

/* ------------------------------------------------------------------ all rules */

static void count_callers(gbnf_checker *c) {
    for (int32_t i = 0; i < c->n_elements; i++)
        if (c->elements[i].kind == REFERENCE)
            c->rules[c->elements[i].index].n_callers++;
}

/* A rule all of whose callers were looked at. Those of its rules that are ready now are added. */
static void look_at(gbnf_checker *c, const gbnf_rule *r, int32_t *ready, int32_t *n_ready) {
    const int64_t ways = r->n_ways > r->n_unclear_ways ? r->n_ways : r->n_unclear_ways;
    const bool unclear = is_unclear(c, r);
    for (int32_t i = r->first; i < r->first + r->n; i++) {
        if (c->elements[i].kind != REFERENCE)
            continue;
        gbnf_rule *other = &c->rules[c->elements[i].index];
        if (unclear)
            other->n_unclear_ways += r->repeats ? 2 * ways : ways;
        if (ways > other->n_ways)
            other->n_ways = ways;
        if (other->n_unclear_ways > WAYS_MAX + 1) /* enough to refuse, and no overflow */
            other->n_unclear_ways = WAYS_MAX + 1;
        if (--other->n_callers == 0)
            ready[(*n_ready)++] = c->elements[i].index;
    }
}

static bool look_at_all(gbnf_checker *c, int32_t *ready) {
    int32_t n_ready = 0;
    for (int32_t i = 0; i < c->n_rules; i++) {
        c->rules[i].n_ways = 1;
        if (c->rules[i].n_callers == 0)
            ready[n_ready++] = i;
    }
    for (int32_t i = 0; i < n_ready; i++) {
        const gbnf_rule *r = &c->rules[ready[i]];
        if (r->n_ways > WAYS_MAX || r->n_unclear_ways > WAYS_MAX)
            return gbnf_refuse(c, "it can be read in too many ways at once");
        look_at(c, r, ready, &n_ready);
    }
    /* What is left is called by itself, or by rules that are. */
    for (int32_t i = 0; i < c->n_rules; i++) {
        const gbnf_rule *r = &c->rules[i];
        if (r->n_callers > 0 && is_unclear(c, r) && !gbnf_soon_clear(c, r))
            return gbnf_refuse(c,
                               "in recursive rules, and in those that they use, the next character "
                               "must decide how to go on%s%.*s%s",
                               r->name ? ", and it does not in '" : "",
                               r->n_name < 60 ? (int)r->n_name : 60, r->name ? r->name : "",
                               r->name ? "'" : "");
    }
    return true;
}

bool gbnf_check_choices(gbnf_checker *c) {
    if (!find_follows(c))
        return false;
    int32_t *ready = malloc(((size_t)c->n_rules + 1) * sizeof *ready);
    if (!ready)
        return gbnf_refuse(c, "the server is out of memory");
    count_callers(c);
    const bool good = look_at_all(c, ready);
    free(ready);
    return good;
}
