/* schema_pattern.c: regular expressions -> GBNF of what stands between the quotes of a JSON string.
 *
 * Literals, classes, groups, alternatives and quantifiers have the same meaning in both. Characters
 * that JSON escapes are written as escapes if the pattern names them alone; a class leaves them
 * out. */
#include "api/json_utf8.h"
#include "api/schema_parts.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SET_RANGES = 128, PATTERN_DEPTH = 32, PATTERN_BYTES = 4096 };

typedef struct pattern_reader {
    const char *at;
    srv_text *out;
    int depth;
    char *why;
    size_t n_why;
} pattern_reader;

static bool refuse(pattern_reader *r, const char *what) {
    snprintf(r->why, r->n_why, "%s", what);
    return false;
}

/* ------------------------------------------------------------------ sets of characters */

typedef struct range {
    uint32_t low, high;
} range;

typedef struct set {
    range list[SET_RANGES];
    size_t n;
    bool full; /* no room for all ranges */
} set;

static void add(set *s, uint32_t low, uint32_t high) {
    if (low > high)
        return;
    if (s->n == SET_RANGES)
        s->full = true;
    else
        s->list[s->n++] = (range){low, high};
}

static int by_low(const void *a, const void *b) {
    const range *x = a, *y = b;
    return x->low < y->low ? -1 : x->low > y->low;
}

static void complement(set *s) {
    set other = {.full = s->full};
    uint32_t next = 0;
    qsort(s->list, s->n, sizeof *s->list, by_low);
    for (size_t i = 0; i < s->n; i++) {
        if (s->list[i].low > next)
            add(&other, next, s->list[i].low - 1);
        if (s->list[i].high >= next)
            next = s->list[i].high + 1;
    }
    if (next <= 0x10FFFF)
        add(&other, next, 0x10FFFF);
    *s = other;
}

static void add_spaces(set *s) {
    static const range spaces[] = {
        {9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++)
        add(s, spaces[i].low, spaces[i].high);
}

/* \d, \w, \s and their opposites; false: another letter. */
static bool add_named(set *s, char letter) {
    set named = {0};
    switch (letter | 0x20) {
    case 'w':
        add(&named, 'A', 'Z');
        add(&named, 'a', 'z');
        add(&named, '_', '_');
        add(&named, '0', '9');
        break;
    case 'd':
        add(&named, '0', '9');
        break;
    case 's':
        add_spaces(&named);
        break;
    default:
        return false;
    }
    if (letter < 'a')
        complement(&named);
    for (size_t i = 0; i < named.n; i++)
        add(s, named.list[i].low, named.list[i].high);
    return true;
}

/* The characters of the set that stand for themselves in a JSON string. */
static bool write_set(pattern_reader *r, const set *s) {
    static const range plain[] = {
        {0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7E}, {0xA0, 0xD7FF}, {0xE000, 0x10FFFF}};
    if (s->full)
        return refuse(r, "a class has too many ranges");
    bool any = false;
    srv_text_put(r->out, "[");
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < sizeof plain / sizeof plain[0]; k++) {
            const uint32_t low = s->list[i].low > plain[k].low ? s->list[i].low : plain[k].low;
            const uint32_t high = s->list[i].high < plain[k].high ? s->list[i].high : plain[k].high;
            if (low > high)
                continue;
            any = true;
            srv_text_print(r->out, "\\U%08X-\\U%08X", (unsigned)low, (unsigned)high);
        }
    srv_text_put(r->out, "]");
    return any || refuse(r, "a class allows no character that needs no escape in JSON");
}

/* ------------------------------------------------------------------ characters */

static bool read_hex(pattern_reader *r, int n, uint32_t *value) {
    *value = 0;
    for (int i = 0; i < n; i++, r->at++) {
        const char *digits = "0123456789abcdef";
        const char lower = *r->at >= 'A' && *r->at <= 'F' ? (char)(*r->at | 0x20) : *r->at;
        const char *found = lower ? strchr(digits, lower) : NULL;
        if (!found)
            return refuse(r, "an escape has too few hexadecimal digits");
        *value = *value * 16 + (uint32_t)(found - digits);
    }
    return (*value > 0 && (*value < 0xD800 || *value > 0xDFFF)) ||
           refuse(r, "an escape is no character");
}

/* Behind a backslash. */
static bool read_escape(pattern_reader *r, uint32_t *value) {
    static const char letters[] = "nrtfv", values[] = "\n\r\t\f\v";
    const char letter = *r->at;
    if (letter == 'x' || letter == 'u') {
        r->at++;
        return read_hex(r, letter == 'x' ? 2 : 4, value);
    }
    const char *found = letter ? strchr(letters, letter) : NULL;
    if (found)
        *value = (unsigned char)values[found - letters];
    else if (letter > 0 && letter < 0x7F && !((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z') &&
             !(letter >= '0' && letter <= '9') && letter >= 0x20)
        *value = (unsigned char)letter;
    else
        return refuse(r, "an escape is not supported");
    r->at++;
    return true;
}

static uint32_t read_plain(pattern_reader *r) {
    const unsigned char *b = (const unsigned char *)r->at;
    const size_t n = api_utf8_length(r->at, strlen(r->at));
    r->at += n > 0 ? n : 1;
    switch (n) {
    case 2:
        return (b[0] & 0x1Fu) << 6 | (b[1] & 0x3Fu);
    case 3:
        return (b[0] & 0x0Fu) << 12 | (b[1] & 0x3Fu) << 6 | (b[2] & 0x3Fu);
    case 4:
        return (b[0] & 0x07u) << 18 | (b[1] & 0x3Fu) << 12 | (b[2] & 0x3Fu) << 6 | (b[3] & 0x3Fu);
    default:
        return b[0];
    }
}

static void write_char(pattern_reader *r, uint32_t value) {
    static const char escaped[] = "\n\r\t\f\b\"\\", letters[] = "nrtfb\"\\";
    const char *found = value < 0x80 ? strchr(escaped, (int)value) : NULL;
    if (found) {
        const char text[] = {'\\', letters[found - escaped]};
        api_gbnf_literal(r->out, text, 2);
    } else if (value < 0x20) {
        char text[8];
        api_gbnf_literal(r->out, text, (size_t)snprintf(text, sizeof text, "\\u%04x", value));
    } else {
        srv_text_print(r->out, "\"\\U%08X\"", (unsigned)value);
    }
}

/* One character of a class, or a set such as \d: *is_set. */
static bool read_member(pattern_reader *r, set *s, uint32_t *value, bool *is_set) {
    *is_set = false;
    if (*r->at != '\\') {
        *value = read_plain(r);
        return true;
    }
    r->at++;
    if (*r->at && add_named(s, *r->at)) {
        r->at++;
        *is_set = true;
        return true;
    }
    if (*r->at == 'b') {
        r->at++;
        *value = '\b';
        return true;
    }
    return read_escape(r, value);
}

/* Behind '['. */
static bool read_class(pattern_reader *r) {
    set s = {0};
    const bool negated = *r->at == '^';
    r->at += negated;
    while (*r->at != ']') {
        uint32_t low, high;
        bool is_set;
        if (!*r->at)
            return refuse(r, "a class is not closed");
        if (!read_member(r, &s, &low, &is_set))
            return false;
        if (is_set)
            continue;
        high = low;
        if (r->at[0] == '-' && r->at[1] && r->at[1] != ']') {
            r->at++;
            if (!read_member(r, &s, &high, &is_set))
                return false;
            if (is_set || high < low)
                return refuse(r, "a range of a class is wrong");
        }
        add(&s, low, high);
    }
    r->at++;
    if (negated)
        complement(&s);
    return write_set(r, &s);
}

/* ------------------------------------------------------------------ items */

static bool read_number(pattern_reader *r, int *value) {
    if (*r->at < '0' || *r->at > '9')
        return refuse(r, "a quantifier has no number");
    for (*value = 0; *r->at >= '0' && *r->at <= '9'; r->at++) {
        *value = *value * 10 + (*r->at - '0');
        if (*value > SCHEMA_REPEATS)
            return refuse(r, "more than 1000 repetitions are not supported");
    }
    return true;
}

static bool read_quantifier(pattern_reader *r) {
    int min, max = -1;
    if (*r->at == '*' || *r->at == '+' || *r->at == '?') {
        srv_text_add(r->out, r->at++, 1);
    } else if (*r->at == '{') {
        r->at++;
        if (!read_number(r, &min))
            return false;
        srv_text_print(r->out, "{%d", min);
        if (*r->at == ',') {
            r->at++;
            srv_text_put(r->out, ",");
            if (*r->at != '}' && !read_number(r, &max))
                return false;
            if (max >= 0)
                srv_text_print(r->out, "%d", max);
        } else {
            max = min;
        }
        if (*r->at != '}' || (max >= 0 && max < min) || max == 0)
            return refuse(r, "a quantifier is wrong");
        r->at++;
        srv_text_put(r->out, "}");
    } else {
        return true;
    }
    r->at += *r->at == '?'; /* lazy: the same texts */
    return !*r->at || !strchr("*+?{", *r->at) || refuse(r, "two quantifiers follow each other");
}

static bool read_alternatives(pattern_reader *r);

static bool read_group(pattern_reader *r) {
    r->at++;
    if (*r->at == '?') {
        if (r->at[1] != ':')
            return refuse(r, "groups of the form (?..), except (?:..), are not supported");
        r->at += 2;
    }
    if (++r->depth > PATTERN_DEPTH)
        return refuse(r, "too many groups inside each other");
    srv_text_put(r->out, "( ");
    if (!read_alternatives(r))
        return false;
    if (*r->at != ')')
        return refuse(r, "a group is not closed");
    r->at++;
    r->depth--;
    srv_text_put(r->out, " )");
    return true;
}

static bool read_backslash(pattern_reader *r) {
    set s = {0};
    uint32_t value;
    r->at++;
    if (*r->at && add_named(&s, *r->at)) {
        r->at++;
        return write_set(r, &s);
    }
    if (!read_escape(r, &value))
        return false;
    write_char(r, value);
    return true;
}

static bool read_item(pattern_reader *r) {
    set s = {0};
    switch (*r->at) {
    case '(':
        return read_group(r);
    case '[':
        r->at++;
        return read_class(r);
    case '\\':
        return read_backslash(r);
    case '.':
        r->at++;
        add(&s, '\n', '\n');
        add(&s, '\r', '\r');
        add(&s, 0x2028, 0x2029);
        complement(&s);
        return write_set(r, &s);
    case '^':
    case '$':
        return refuse(r, "^ is supported at the beginning only, $ at the end only");
    case '*':
    case '+':
    case '?':
    case '{':
        return refuse(r, "a quantifier has nothing before it");
    default:
        write_char(r, read_plain(r));
        return true;
    }
}

static bool at_end(const pattern_reader *r) {
    return *r->at == '\0' || (r->depth == 0 && r->at[0] == '$' && r->at[1] == '\0');
}

static bool read_alternatives(pattern_reader *r) {
    bool empty = true;
    while (!at_end(r) && *r->at != ')') {
        if (*r->at == '|') {
            srv_text_put(r->out, empty ? "\"\" | " : " | ");
            r->at++;
            empty = true;
            continue;
        }
        if (!read_item(r) || !read_quantifier(r))
            return false;
        srv_text_put(r->out, " ");
        empty = false;
    }
    if (empty)
        srv_text_put(r->out, "\"\"");
    return true;
}

/* Whether '|' stands outside of groups and classes. */
static bool has_alternatives(const char *pattern) {
    int depth = 0;
    bool in_class = false;
    for (; *pattern; pattern++) {
        if (*pattern == '\\' && pattern[1])
            pattern++;
        else if (in_class)
            in_class = *pattern != ']';
        else if (*pattern == '[')
            in_class = true;
        else if (*pattern == '(' || *pattern == ')')
            depth += *pattern == '(' ? 1 : -1;
        else if (*pattern == '|' && depth == 0)
            return true;
    }
    return false;
}

bool schema_pattern(const char *pattern, srv_text *body, char *why, size_t n_why) {
    pattern_reader r = {.at = pattern, .out = body, .why = why, .n_why = n_why};
    if (strlen(pattern) > PATTERN_BYTES)
        return refuse(&r, "the pattern is too long");
    const bool from_start = *r.at == '^';
    r.at += from_start;
    if (!from_start)
        srv_text_put(body, "char* ");
    srv_text_put(body, "( ");
    if (!read_alternatives(&r))
        return false;
    const bool to_end = *r.at == '$';
    if (*r.at && !to_end)
        return refuse(&r, "a group is closed that was not opened");
    if ((from_start || to_end) && has_alternatives(pattern))
        return refuse(&r, "'|' beside ^ or $ needs a group: ^(a|b)$");
    srv_text_put(body, to_end ? " )" : " ) char*");
    return true;
}
