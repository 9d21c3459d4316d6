/* gbnf_check.c: see gbnf_check.h. The grammar is read as libllama reads it, into rules of elements;
 * groups and repetitions become rules of their own. Then rules are checked for left recursion. */
#include "api/gbnf_check.h"
#include "api/json_utf8.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RULES_MAX = 1 << 15,
    ELEMENTS_MAX = 1 << 18,
    EXPANDED_MAX = 1 << 20, /* elements of libllama, which writes repetitions out */
    REPEATS_MAX = 2000,     /* libllama's own limit */
    NESTING_MAX = 64,
    CHAIN_MAX = 3000, /* rules that begin with each other; libllama recurses */
    WORK_MAX = 20000000,
    PASSES_MAX = 64
};

typedef enum element_kind { CHARACTER, REFERENCE, ALTERNATIVE } element_kind;

typedef struct element {
    element_kind kind;
    int32_t rule; /* of a reference */
} element;

typedef struct rule {
    const char *name; /* (n_name) NULL: a group or a repetition */
    size_t n_name;
    int32_t first, n; /* elements */
    int64_t weight;   /* elements of libllama */
    int64_t work;     /* what libllama's search for left recursion costs from here */
    int32_t chain;
    bool defined, repeats, nullable, done, in_progress;
} rule;

typedef struct checker {
    const char *start, *at;
    rule *rules;
    int32_t n_rules, rules_max;
    int32_t *slots; /* (n_slots) index of a rule + 1, by the hash of its name */
    uint32_t n_slots;
    element *elements; /* of finished rules */
    int32_t n_elements, elements_max;
    element *open; /* of rules that are being read, inner ones last */
    int32_t n_open;
    int64_t n_symbols, n_expanded; /* as libllama counts them */
    int nesting;
    char *why;
    size_t n_why;
} checker;

static bool refuse(checker *c, const char *format, ...) {
    char what[120];
    int line = 1;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    for (const char *at = c->start; at < c->at; at++)
        line += *at == '\n';
    snprintf(c->why, c->n_why, "line %d: %s", line, what);
    return false;
}

/* ------------------------------------------------------------------ rules */

static int32_t new_rule(checker *c) {
    if (c->n_rules == c->rules_max)
        return -1;
    c->rules[c->n_rules] = (rule){0};
    return c->n_rules++;
}

static bool same_name(const rule *r, const char *name, size_t n) {
    return r->n_name == n && memcmp(r->name, name, n) == 0;
}

/* The rule of this name, which may be new. -1: too many. */
static int32_t rule_named(checker *c, const char *name, size_t n) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    uint32_t slot = hash % c->n_slots;
    for (; c->slots[slot]; slot = (slot + 1) % c->n_slots)
        if (same_name(&c->rules[c->slots[slot] - 1], name, n))
            return c->slots[slot] - 1;
    const int32_t index = new_rule(c);
    if (index < 0)
        return -1;
    c->rules[index].name = name;
    c->rules[index].n_name = n;
    c->slots[slot] = index + 1;
    c->n_symbols++;
    return index;
}

static bool add(checker *c, element_kind kind, int32_t to) {
    if (c->n_open == c->elements_max)
        return refuse(c, "the grammar is too large");
    c->open[c->n_open++] = (element){.kind = kind, .rule = to};
    return true;
}

/* The open elements from `from` on become those of a rule. */
static bool close_rule(checker *c, int32_t index, int32_t from, int64_t weight) {
    const int32_t n = c->n_open - from;
    if (c->n_elements > c->elements_max - n)
        return refuse(c, "the grammar is too large");
    memcpy(c->elements + c->n_elements, c->open + from, (size_t)n * sizeof *c->open);
    rule *r = &c->rules[index];
    r->first = c->n_elements;
    r->n = n;
    r->weight = weight;
    r->defined = true;
    c->n_elements += n;
    c->n_open = from;
    return true;
}

/* ------------------------------------------------------------------ characters */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || is_digit(c);
}

static bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static void skip_space(checker *c, bool lines) {
    while (*c->at == ' ' || *c->at == '\t' || *c->at == '#' ||
           (lines && (*c->at == '\r' || *c->at == '\n'))) {
        if (*c->at == '#')
            c->at += strcspn(c->at, "\r\n");
        else
            c->at++;
    }
}

static bool read_char(checker *c) {
    if (*c->at != '\\') {
        const size_t n = api_utf8_length(c->at, strnlen(c->at, 4));
        c->at += n;
        return n > 0 || refuse(c, "invalid UTF-8");
    }
    const char letter = *++c->at;
    const int n_hex = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    if (!letter || !strchr("xuUtrn\\\"[]-", letter))
        return refuse(c, "an unknown escape");
    c->at++;
    for (int i = 0; i < n_hex; i++, c->at++)
        if (!is_hex(*c->at))
            return refuse(c, "an escape has too few hexadecimal digits");
    return true;
}

/* *n: characters. */
static bool read_literal(checker *c, int64_t *n) {
    c->at++;
    for (*n = 0; *c->at != '"'; ++*n) {
        if (!*c->at)
            return refuse(c, "a text is not closed");
        if (!read_char(c))
            return false;
    }
    c->at++;
    return *n == 0 || add(c, CHARACTER, 0);
}

static bool read_class(checker *c, int64_t *n) {
    c->at++;
    c->at += *c->at == '^';
    for (*n = 0; *c->at != ']'; ++*n) {
        if (!*c->at)
            return refuse(c, "a class is not closed");
        if (!read_char(c))
            return false;
        if (c->at[0] == '-' && c->at[1] != ']') {
            c->at++;
            ++*n;
            if (!*c->at)
                return refuse(c, "a class is not closed");
            if (!read_char(c))
                return false;
        }
    }
    c->at++;
    return *n > 0 ? add(c, CHARACTER, 0) : refuse(c, "an empty class");
}

/* ------------------------------------------------------------------ sequences */

/* The last item of a sequence, which a quantifier refers to. */
typedef struct item {
    int32_t first;    /* of the open elements */
    int64_t weight;   /* elements of libllama */
    int64_t n_copies; /* rules that libllama would write out again */
} item;

static bool read_count(checker *c, int64_t *count) {
    if (!is_digit(*c->at))
        return refuse(c, "a quantifier has no number");
    for (*count = 0; is_digit(*c->at); c->at++) {
        *count = *count * 10 + (*c->at - '0');
        if (*count > REPEATS_MAX)
            return refuse(c, "more than %d repetitions", (int)REPEATS_MAX);
    }
    return true;
}

/* max -1: any number. */
static bool read_quantifier(checker *c, bool nested, int64_t *min, int64_t *max) {
    const char sign = *c->at++;
    *min = sign == '+';
    *max = sign == '?' ? 1 : -1;
    if (sign == '{') {
        skip_space(c, nested);
        if (!read_count(c, min))
            return false;
        skip_space(c, nested);
        *max = *min;
        if (*c->at == ',') {
            c->at++;
            skip_space(c, nested);
            *max = -1;
            if (is_digit(*c->at) && !read_count(c, max))
                return false;
            skip_space(c, nested);
        }
        if (*c->at != '}')
            return refuse(c, "a quantifier is not closed");
        c->at++;
        if (*max == 0 || (*max > 0 && *max < *min))
            return refuse(c, "a quantifier allows no repetition");
    }
    skip_space(c, nested);
    return true;
}

static bool repeat(checker *c, item *it, int64_t min, int64_t max) {
    if (it->first == c->n_open)
        return refuse(c, "a quantifier has nothing before it");
    const int64_t times = max > 0 ? max : min > 0 ? min : 1;
    it->n_copies *= times;
    if (it->n_copies > REPEATS_MAX)
        return refuse(c, "repetitions inside repetitions exceed %d", (int)REPEATS_MAX);
    const int64_t n_optional = max < 0 ? 1 : max - min;
    c->n_expanded += min * it->weight + n_optional * (it->weight + 3);
    c->n_symbols += n_optional;
    if (c->n_expanded > EXPANDED_MAX)
        return refuse(c, "the grammar is too large");
    const int32_t index = new_rule(c);
    if (index < 0)
        return refuse(c, "more than %d rules", (int)RULES_MAX);
    if (min == 0 && !add(c, ALTERNATIVE, 0))
        return false;
    if (!close_rule(c, index, it->first, it->weight + 3))
        return false;
    c->rules[index].repeats = max < 0 || max > 1;
    it->weight = min * it->weight + 1;
    return add(c, REFERENCE, index);
}

static bool read_alternatives(checker *c, int32_t index, bool nested);

static bool read_group(checker *c, item *it) {
    const int64_t n_before = c->n_symbols++;
    const int32_t index = new_rule(c);
    if (index < 0)
        return refuse(c, "more than %d rules", (int)RULES_MAX);
    if (++c->nesting > NESTING_MAX)
        return refuse(c, "more than %d groups inside each other", (int)NESTING_MAX);
    c->at++;
    skip_space(c, true);
    if (!read_alternatives(c, index, true))
        return false;
    if (*c->at != ')')
        return refuse(c, "a group is not closed");
    c->at++;
    c->nesting--;
    *it = (item){.first = c->n_open, .weight = 1, .n_copies = c->n_symbols - n_before};
    return add(c, REFERENCE, index);
}

static bool read_reference(checker *c) {
    const char *name = c->at;
    while (is_word(*c->at))
        c->at++;
    const int32_t index = rule_named(c, name, (size_t)(c->at - name));
    return index < 0 ? refuse(c, "more than %d rules", (int)RULES_MAX) : add(c, REFERENCE, index);
}

/* *done: nothing of a sequence is here. */
static bool read_item(checker *c, item *it, bool *done) {
    *it = (item){.first = c->n_open, .weight = 1, .n_copies = 1};
    switch (*c->at) {
    case '"':
        return read_literal(c, &it->weight);
    case '[':
        return read_class(c, &it->weight);
    case '(':
        return read_group(c, it);
    case '.':
        c->at++;
        return add(c, CHARACTER, 0);
    case '<':
    case '!':
        return refuse(c, "tokens are not supported");
    default:
        if (is_word(*c->at))
            return read_reference(c);
        *done = true;
        return true;
    }
}

static bool is_quantifier(char c) { return c == '*' || c == '+' || c == '?' || c == '{'; }

static bool read_sequence(checker *c, bool nested, int64_t *weight) {
    for (bool done = false;;) {
        item it;
        if (!read_item(c, &it, &done))
            return false;
        if (done)
            return !is_quantifier(*c->at) || refuse(c, "a quantifier has nothing before it");
        skip_space(c, nested);
        while (is_quantifier(*c->at)) {
            int64_t min, max;
            if (!read_quantifier(c, nested, &min, &max) || !repeat(c, &it, min, max))
                return false;
        }
        *weight += it.weight;
        c->n_expanded += it.weight;
        if (c->n_expanded > EXPANDED_MAX)
            return refuse(c, "the grammar is too large");
    }
}

static bool read_alternatives(checker *c, int32_t index, bool nested) {
    const int32_t from = c->n_open;
    int64_t weight = 1;
    if (!read_sequence(c, nested, &weight))
        return false;
    while (*c->at == '|') {
        c->at++;
        skip_space(c, true);
        weight++;
        if (!add(c, ALTERNATIVE, 0) || !read_sequence(c, nested, &weight))
            return false;
    }
    return close_rule(c, index, from, weight);
}

static bool read_rule(checker *c) {
    const char *name = c->at;
    while (is_word(*c->at))
        c->at++;
    const size_t n = (size_t)(c->at - name);
    if (n == 0)
        return refuse(c, "the name of a rule is expected");
    const int32_t index = rule_named(c, name, n);
    if (index < 0)
        return refuse(c, "more than %d rules", (int)RULES_MAX);
    if (c->rules[index].defined)
        return refuse(c, "'%.*s' is defined twice", n < 60 ? (int)n : 60, name);
    skip_space(c, false);
    if (strncmp(c->at, "::=", 3) != 0)
        return refuse(c, "::= is expected behind '%.*s'", n < 60 ? (int)n : 60, name);
    c->at += 3;
    skip_space(c, true);
    if (!read_alternatives(c, index, false))
        return false;
    if (*c->at && *c->at != '\r' && *c->at != '\n')
        return refuse(c, "'%c' is not expected", *c->at >= 0x20 && *c->at < 0x7F ? *c->at : '?');
    skip_space(c, true);
    return true;
}

/* ------------------------------------------------------------------ left recursion */

/* Whether the alternative that begins at element i may be empty. */
static bool may_be_empty(const checker *c, int32_t i, int32_t end) {
    for (; i < end && c->elements[i].kind != ALTERNATIVE; i++)
        if (c->elements[i].kind == CHARACTER || !c->rules[c->elements[i].rule].nullable)
            return false;
    return true;
}

static bool find_nullable(checker *c, int32_t index) {
    rule *r = &c->rules[index];
    const int32_t end = r->first + r->n;
    for (int32_t i = r->first; !r->nullable; i++) {
        if (i == r->first || c->elements[i - 1].kind == ALTERNATIVE)
            r->nullable = may_be_empty(c, i, end);
        if (i >= end)
            break;
    }
    return r->nullable;
}

static bool find_all_nullable(checker *c) {
    bool changed = true;
    for (int pass = 0; changed; pass++) {
        if (pass == PASSES_MAX)
            return refuse(c, "rules depend on each other in too long chains");
        changed = false;
        for (int32_t k = 0; k < c->n_rules; k++) {
            const int32_t i = pass % 2 ? c->n_rules - 1 - k : k;
            if (!c->rules[i].nullable)
                changed = find_nullable(c, i) || changed;
        }
    }
    for (int32_t i = 0; i < c->n_rules; i++)
        if (c->rules[i].repeats &&
            may_be_empty(c, c->rules[i].first, c->rules[i].first + c->rules[i].n))
            return refuse(c, "something that may be empty is repeated");
    return true;
}

static bool visit(checker *c, int32_t index, int32_t depth) {
    rule *r = &c->rules[index];
    if (r->done)
        return depth + r->chain <= CHAIN_MAX ||
               refuse(c, "more than %d rules begin with each other", (int)CHAIN_MAX);
    if (r->in_progress)
        return refuse(c, "a rule begins with itself (left recursion)");
    if (depth > CHAIN_MAX)
        return refuse(c, "more than %d rules begin with each other", (int)CHAIN_MAX);
    r->in_progress = true;
    r->work = r->weight;
    bool at_start = true;
    for (int32_t i = r->first; i < r->first + r->n; i++) {
        const element *e = &c->elements[i];
        if (e->kind == ALTERNATIVE) {
            at_start = true;
        } else if (e->kind == CHARACTER) {
            at_start = false;
        } else if (at_start) {
            const rule *other = &c->rules[e->rule];
            if (!visit(c, e->rule, depth + 1))
                return false;
            at_start = other->nullable;
            r->work += other->work;
            r->chain = other->chain + 1 > r->chain ? other->chain + 1 : r->chain;
            if (r->work > WORK_MAX)
                return refuse(c, "rules begin with each other in too many ways");
        }
    }
    r->in_progress = false;
    r->done = true;
    return true;
}

static bool check_rules(checker *c) {
    for (int32_t i = 0; i < c->n_rules; i++)
        if (!c->rules[i].defined)
            return refuse(c, "'%.*s' is not defined",
                          c->rules[i].n_name < 60 ? (int)c->rules[i].n_name : 60, c->rules[i].name);
    if (!find_all_nullable(c))
        return false;
    int64_t work = 0;
    for (int32_t i = 0; i < c->n_rules; i++) {
        if (!visit(c, i, 0))
            return false;
        work += c->rules[i].work;
        if (work > WORK_MAX)
            return refuse(c, "rules begin with each other in too many ways");
    }
    return true;
}

/* ------------------------------------------------------------------ all */

static bool read_grammar(checker *c) {
    skip_space(c, true);
    while (*c->at)
        if (!read_rule(c))
            return false;
    const int32_t before = c->n_rules, root = rule_named(c, "root", 4);
    if (root < 0 || root >= before)
        return refuse(c, "there is no rule 'root'");
    return check_rules(c);
}

bool api_gbnf_check(const char *grammar, char *why, size_t n_why) {
    checker c = {.start = grammar, .at = grammar, .why = why, .n_why = n_why};
    /* A byte of text makes at most one rule and three elements. */
    const size_t n = strlen(grammar);
    c.rules_max = n < RULES_MAX ? (int32_t)n + 1 : RULES_MAX;
    c.elements_max = n < ELEMENTS_MAX / 4 ? 4 * (int32_t)n + 4 : ELEMENTS_MAX;
    c.n_slots = 2 * (uint32_t)c.rules_max;
    c.rules = malloc((size_t)c.rules_max * sizeof *c.rules);
    c.slots = calloc(c.n_slots, sizeof *c.slots);
    c.elements = malloc((size_t)c.elements_max * sizeof *c.elements);
    c.open = malloc((size_t)c.elements_max * sizeof *c.open);
    bool good = false;
    if (c.rules && c.slots && c.elements && c.open)
        good = read_grammar(&c);
    else
        snprintf(why, n_why, "the server is out of memory");
    free(c.rules);
    free(c.slots);
    free(c.elements);
    free(c.open);
    return good;
}
