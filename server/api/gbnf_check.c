/* gbnf_check.c: see gbnf_check.h. */
#include "api/gbnf_check.h"
#include "api/gbnf_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHAIN_MAX = 3000, /* rules that begin with each other; libllama recurses */
    WORK_MAX = 20000000,
    PASSES_MAX = 64
};

/* ------------------------------------------------------------------ left recursion */

/* Whether the alternative that begins at element i may be empty. */
bool gbnf_may_be_empty(const gbnf_checker *c, int32_t i, int32_t end) {
    for (; i < end && c->elements[i].kind != ALTERNATIVE; i++)
        if (c->elements[i].kind == CHARACTER || !c->rules[c->elements[i].index].nullable)
            return false;
    return true;
}

static bool find_nullable(gbnf_checker *c, int32_t index) {
    gbnf_rule *r = &c->rules[index];
    const int32_t end = r->first + r->n;
    for (int32_t i = r->first; !r->nullable; i++) {
        if (i == r->first || c->elements[i - 1].kind == ALTERNATIVE)
            r->nullable = gbnf_may_be_empty(c, i, end);
        if (i >= end)
            break;
    }
    return r->nullable;
}

static bool find_all_nullable(gbnf_checker *c) {
    bool changed = true;
    for (int pass = 0; changed; pass++) {
        if (pass == PASSES_MAX)
            return gbnf_refuse(c, "rules depend on each other in too long chains");
        changed = false;
        for (int32_t k = 0; k < c->n_rules; k++) {
            const int32_t i = pass % 2 ? c->n_rules - 1 - k : k;
            if (!c->rules[i].nullable)
                changed = find_nullable(c, i) || changed;
        }
    }
    for (int32_t i = 0; i < c->n_rules; i++)
        if (c->rules[i].repeats &&
            gbnf_may_be_empty(c, c->rules[i].first, c->rules[i].first + c->rules[i].n))
            return gbnf_refuse(c, "something that may be empty is repeated");
    return true;
}

static bool visit(gbnf_checker *c, int32_t index, int32_t depth) {
    gbnf_rule *r = &c->rules[index];
    if (r->done)
        return depth + r->chain <= CHAIN_MAX ||
               gbnf_refuse(c, "more than %d rules begin with each other", (int)CHAIN_MAX);
    if (r->in_progress)
        return gbnf_refuse(c, "a rule begins with itself (left recursion)");
    if (depth > CHAIN_MAX)
        return gbnf_refuse(c, "more than %d rules begin with each other", (int)CHAIN_MAX);
    r->in_progress = true;
    r->work = r->weight;
    bool at_start = true;
    for (int32_t i = r->first; i < r->first + r->n; i++) {
        const gbnf_element *e = &c->elements[i];
        if (e->kind == ALTERNATIVE) {
            at_start = true;
        } else if (e->kind == CHARACTER) {
            if (at_start)
                gbnf_unite(&r->starts, &c->sets[e->index]);
            at_start = false;
        } else if (at_start) {
            const gbnf_rule *other = &c->rules[e->index];
            if (!visit(c, e->index, depth + 1))
                return false;
            at_start = other->nullable;
            gbnf_unite(&r->starts, &other->starts);
            r->work += other->work;
            r->chain = other->chain + 1 > r->chain ? other->chain + 1 : r->chain;
            if (r->work > WORK_MAX)
                return gbnf_refuse(c, "rules begin with each other in too many ways");
        }
    }
    r->in_progress = false;
    r->done = true;
    return true;
}

static bool check_rules(gbnf_checker *c) {
    for (int32_t i = 0; i < c->n_rules; i++)
        if (!c->rules[i].defined)
            return gbnf_refuse(c, "'%.*s' is not defined",
                               c->rules[i].n_name < 60 ? (int)c->rules[i].n_name : 60,
                               c->rules[i].name);
    if (!find_all_nullable(c))
        return false;
    int64_t work = 0;
    for (int32_t i = 0; i < c->n_rules; i++) {
        if (!visit(c, i, 0))
            return false;
        work += c->rules[i].work;
        if (work > WORK_MAX)
            return gbnf_refuse(c, "rules begin with each other in too many ways");
    }
    return true;
}

/* ------------------------------------------------------------------ all */

bool api_gbnf_check(const char *grammar, char *why, size_t n_why) {
    gbnf_checker c = {.start = grammar, .at = grammar, .why = why, .n_why = n_why};
    /* A byte of text makes at most one rule and three elements. */
    const size_t n = strlen(grammar);
    c.rules_max = n < GBNF_RULES ? (int32_t)n + 1 : GBNF_RULES;
    c.elements_max = n < GBNF_ELEMENTS / 4 ? 4 * (int32_t)n + 4 : GBNF_ELEMENTS;
    c.n_slots = 2 * (uint32_t)c.rules_max;
    c.rules = malloc((size_t)c.rules_max * sizeof *c.rules);
    c.slots = calloc(c.n_slots, sizeof *c.slots);
    c.elements = malloc((size_t)c.elements_max * sizeof *c.elements);
    c.open = malloc((size_t)c.elements_max * sizeof *c.open);
    c.sets_max = ASCII_SETS + (int32_t)(n < GBNF_ELEMENTS ? n : GBNF_ELEMENTS);
    c.sets = calloc((size_t)c.sets_max, sizeof *c.sets);
    bool good = false;
    if (c.rules && c.slots && c.elements && c.open && c.sets) {
        for (; c.n_sets < ASCII_SETS; c.n_sets++)
            c.sets[c.n_sets].bits[c.n_sets / 64] = (uint64_t)1 << c.n_sets % 64;
        good = gbnf_read(&c) && check_rules(&c) && gbnf_check_choices(&c);
    } else {
        snprintf(why, n_why, "the server is out of memory");
    }
    free(c.rules);
    free(c.slots);
    free(c.elements);
    free(c.open);
    free(c.sets);
    return good;
}
