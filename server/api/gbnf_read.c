/* gbnf_read.c: the text of a grammar -> rules, as libllama reads it. */
#include "api/gbnf_rules.h"
#include "api/json_utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool gbnf_refuse(gbnf_checker *c, const char *format, ...) {
    char what[160];
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

static int32_t new_rule(gbnf_checker *c) {
    if (c->n_rules == c->rules_max)
        return -1;
    c->rules[c->n_rules] = (gbnf_rule){0};
    return c->n_rules++;
}

static bool same_name(const gbnf_rule *r, const char *name, size_t n) {
    return r->n_name == n && memcmp(r->name, name, n) == 0;
}

/* The rule of this name, which may be new. -1: too many. */
static int32_t rule_named(gbnf_checker *c, const char *name, size_t n) {
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

static bool add(gbnf_checker *c, element_kind kind, int32_t to) {
    if (c->n_open == c->elements_max)
        return gbnf_refuse(c, "the grammar is too large");
    c->open[c->n_open++] = (gbnf_element){.kind = kind, .index = to};
    return true;
}

/* The open elements from `from` on become those of a rule. */
static bool close_rule(gbnf_checker *c, int32_t index, int32_t from, int64_t weight) {
    const int32_t n = c->n_open - from;
    if (c->n_elements >= c->elements_max - n)
        return gbnf_refuse(c, "the grammar is too large");
    memcpy(c->elements + c->n_elements, c->open + from, (size_t)n * sizeof *c->open);
    for (int32_t i = c->n_elements; i < c->n_elements + n; i++)
        if (c->elements[i].kind == ALTERNATIVE)
            c->elements[i].index = index;
    c->elements[c->n_elements + n] = (gbnf_element){.kind = END, .index = index};
    gbnf_rule *r = &c->rules[index];
    r->first = c->n_elements;
    r->n = n;
    r->weight = weight;
    r->defined = true;
    c->n_elements += n + 1;
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

static void skip_space(gbnf_checker *c, bool lines) {
    while (*c->at == ' ' || *c->at == '\t' || *c->at == '#' ||
           (lines && (*c->at == '\r' || *c->at == '\n'))) {
        if (*c->at == '#')
            c->at += strcspn(c->at, "\r\n");
        else
            c->at++;
    }
}

static int hex_value(char c) { return is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10; }

/* *value: the character; OTHER_CHARS: any that is not ASCII. */
static bool read_char(gbnf_checker *c, uint32_t *value) {
    static const char escapes[] = "xuUtrn\\\"[]-", values[] = "\0\0\0\t\r\n\\\"[]-";
    if (*c->at != '\\') {
        const size_t n = api_utf8_length(c->at, strnlen(c->at, 4));
        *value = n == 1 ? (unsigned char)*c->at : OTHER_CHARS;
        c->at += n;
        return n > 0 || gbnf_refuse(c, "invalid UTF-8");
    }
    const char letter = *++c->at, *found = letter ? strchr(escapes, letter) : NULL;
    const int n_hex = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    if (!found)
        return gbnf_refuse(c, "an unknown escape");
    c->at++;
    uint32_t hex = 0;
    for (int i = 0; i < n_hex; i++, c->at++) {
        if (!is_hex(*c->at))
            return gbnf_refuse(c, "an escape has too few hexadecimal digits");
        hex = hex * 16 + (uint32_t)hex_value(*c->at);
    }
    *value = n_hex == 0 ? (unsigned char)values[found - escapes] : hex;
    if (*value > OTHER_CHARS)
        *value = OTHER_CHARS;
    return true;
}

/* *n: characters. */
static bool read_literal(gbnf_checker *c, int64_t *n) {
    c->at++;
    for (*n = 0; *c->at != '"'; ++*n) {
        uint32_t value;
        if (!*c->at)
            return gbnf_refuse(c, "a text is not closed");
        if (!read_char(c, &value) || !add(c, CHARACTER, (int32_t)value))
            return false;
    }
    c->at++;
    return true;
}

static bool add_set(gbnf_checker *c, const char_set *set) {
    if (c->n_sets == c->sets_max)
        return gbnf_refuse(c, "the grammar is too large");
    c->sets[c->n_sets] = *set;
    return add(c, CHARACTER, c->n_sets++);
}

static char_set all_chars(void) { return (char_set){{UINT64_MAX, UINT64_MAX, 1}}; }

static bool read_range(gbnf_checker *c, char_set *set, int64_t *n) {
    uint32_t low, high;
    if (!read_char(c, &low))
        return false;
    high = low;
    ++*n;
    if (c->at[0] == '-' && c->at[1] != ']') {
        c->at++;
        ++*n;
        if (!*c->at)
            return gbnf_refuse(c, "a class is not closed");
        if (!read_char(c, &high))
            return false;
    }
    for (uint32_t i = low; i <= high; i++)
        set->bits[i / 64] |= (uint64_t)1 << i % 64;
    return true;
}

static bool read_class(gbnf_checker *c, int64_t *n) {
    char_set set = {0};
    const bool negated = *++c->at == '^';
    c->at += negated;
    for (*n = 0; *c->at != ']';) {
        if (!*c->at)
            return gbnf_refuse(c, "a class is not closed");
        if (!read_range(c, &set, n))
            return false;
    }
    c->at++;
    if (*n == 0)
        return gbnf_refuse(c, "an empty class");
    if (negated)
        set = (char_set){{~set.bits[0], ~set.bits[1], 1}}; /* some others are left */
    return add_set(c, &set);
}

/* ------------------------------------------------------------------ sequences */

/* The last item of a sequence, which a quantifier refers to. */
typedef struct item {
    int32_t first;    /* of the open elements */
    int64_t weight;   /* elements of libllama */
    int64_t n_copies; /* rules that libllama would write out again */
} item;

static bool read_count(gbnf_checker *c, int64_t *count) {
    if (!is_digit(*c->at))
        return gbnf_refuse(c, "a quantifier has no number");
    for (*count = 0; is_digit(*c->at); c->at++) {
        *count = *count * 10 + (*c->at - '0');
        if (*count > GBNF_REPEATS)
            return gbnf_refuse(c, "more than %d repetitions", (int)GBNF_REPEATS);
    }
    return true;
}

/* max -1: any number. */
static bool read_quantifier(gbnf_checker *c, bool nested, int64_t *min, int64_t *max) {
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
            return gbnf_refuse(c, "a quantifier is not closed");
        c->at++;
        if (*max == 0 || (*max > 0 && *max < *min))
            return gbnf_refuse(c, "a quantifier allows no repetition");
    }
    skip_space(c, nested);
    return true;
}

static bool repeat(gbnf_checker *c, item *it, int64_t min, int64_t max) {
    if (it->first == c->n_open)
        return gbnf_refuse(c, "a quantifier has nothing before it");
    const int64_t times = max > 0 ? max : min > 0 ? min : 1;
    it->n_copies *= times;
    if (it->n_copies > GBNF_REPEATS)
        return gbnf_refuse(c, "repetitions inside repetitions exceed %d", (int)GBNF_REPEATS);
    const int64_t n_optional = max < 0 ? 1 : max - min;
    c->n_expanded += min * it->weight + n_optional * (it->weight + 3);
    c->n_symbols += n_optional;
    if (c->n_expanded > GBNF_EXPANDED)
        return gbnf_refuse(c, "the grammar is too large");
    const int32_t index = new_rule(c);
    if (index < 0)
        return gbnf_refuse(c, "more than %d rules", (int)GBNF_RULES);
    if (min == 0 && !add(c, ALTERNATIVE, 0))
        return false;
    if (!close_rule(c, index, it->first, it->weight + 3))
        return false;
    c->rules[index].is_repetition = true;
    c->rules[index].repeats = max < 0 || max > 1;
    c->rules[index].chooses = max != min;
    it->weight = min * it->weight + 1;
    return add(c, REFERENCE, index);
}

static bool read_alternatives(gbnf_checker *c, int32_t index, bool nested);

static bool read_group(gbnf_checker *c, item *it) {
    const int64_t n_before = c->n_symbols++;
    const int32_t index = new_rule(c);
    if (index < 0)
        return gbnf_refuse(c, "more than %d rules", (int)GBNF_RULES);
    if (++c->nesting > GBNF_NESTING)
        return gbnf_refuse(c, "more than %d groups inside each other", (int)GBNF_NESTING);
    c->at++;
    skip_space(c, true);
    if (!read_alternatives(c, index, true))
        return false;
    if (*c->at != ')')
        return gbnf_refuse(c, "a group is not closed");
    c->at++;
    c->nesting--;
    *it = (item){.first = c->n_open, .weight = 1, .n_copies = c->n_symbols - n_before};
    return add(c, REFERENCE, index);
}

static bool read_reference(gbnf_checker *c) {
    const char *name = c->at;
    while (is_word(*c->at))
        c->at++;
    const int32_t index = rule_named(c, name, (size_t)(c->at - name));
    return index < 0 ? gbnf_refuse(c, "more than %d rules", (int)GBNF_RULES)
                     : add(c, REFERENCE, index);
}

/* *done: nothing of a sequence is here. */
static bool read_item(gbnf_checker *c, item *it, bool *done) {
    const char_set all = all_chars();
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
        return add_set(c, &all);
    case '<':
    case '!':
        return gbnf_refuse(c, "tokens are not supported");
    default:
        if (is_word(*c->at))
            return read_reference(c);
        *done = true;
        return true;
    }
}

static bool is_quantifier(char c) { return c == '*' || c == '+' || c == '?' || c == '{'; }

static bool read_sequence(gbnf_checker *c, bool nested, int64_t *weight) {
    for (bool done = false;;) {
        item it;
        if (!read_item(c, &it, &done))
            return false;
        if (done)
            return !is_quantifier(*c->at) || gbnf_refuse(c, "a quantifier has nothing before it");
        skip_space(c, nested);
        while (is_quantifier(*c->at)) {
            int64_t min, max;
            if (!read_quantifier(c, nested, &min, &max) || !repeat(c, &it, min, max))
                return false;
        }
        *weight += it.weight;
        c->n_expanded += it.weight;
        if (c->n_expanded > GBNF_EXPANDED)
            return gbnf_refuse(c, "the grammar is too large");
    }
}

static bool read_alternatives(gbnf_checker *c, int32_t index, bool nested) {
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

static bool read_rule(gbnf_checker *c) {
    const char *name = c->at;
    while (is_word(*c->at))
        c->at++;
    const size_t n = (size_t)(c->at - name);
    if (n == 0)
        return gbnf_refuse(c, "the name of a rule is expected");
    const int32_t index = rule_named(c, name, n);
    if (index < 0)
        return gbnf_refuse(c, "more than %d rules", (int)GBNF_RULES);
    if (c->rules[index].defined)
        return gbnf_refuse(c, "'%.*s' is defined twice", n < 60 ? (int)n : 60, name);
    skip_space(c, false);
    if (strncmp(c->at, "::=", 3) != 0)
        return gbnf_refuse(c, "::= is expected behind '%.*s'", n < 60 ? (int)n : 60, name);
    c->at += 3;
    skip_space(c, true);
    if (!read_alternatives(c, index, false))
        return false;
    if (*c->at && *c->at != '\r' && *c->at != '\n')
        return gbnf_refuse(c, "'%c' is not expected",
                           *c->at >= 0x20 && *c->at < 0x7F ? *c->at : '?');
    skip_space(c, true);
    return true;
}

/* ------------------------------------------------------------------ all */

bool gbnf_read(gbnf_checker *c) {
    skip_space(c, true);
    while (*c->at)
        if (!read_rule(c))
            return false;
    const int32_t before = c->n_rules, root = rule_named(c, "root", 4);
    return (root >= 0 && root < before) || gbnf_refuse(c, "there is no rule 'root'");
}
