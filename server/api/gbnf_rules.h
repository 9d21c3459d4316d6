/* gbnf_rules.h: a grammar as libllama reads it: rules of elements. Groups and repetitions are rules
 * of their own. */
#ifndef SERVER_API_GBNF_RULES_H
#define SERVER_API_GBNF_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GBNF_RULES = 1 << 15,
    GBNF_ELEMENTS = 1 << 18,
    GBNF_EXPANDED = 1 << 20, /* elements of libllama, which writes repetitions out */
    GBNF_REPEATS = 2000,     /* libllama's own limit */
    GBNF_NESTING = 64
};

/* END comes after the last element of a rule, and is not counted among them. */
typedef enum element_kind { CHARACTER, REFERENCE, ALTERNATIVE, END } element_kind;

typedef struct gbnf_element {
    element_kind kind;
    int32_t
        index; /* of a set of characters, of the rule referred to, or of the element's own rule */
} gbnf_element;

/* Characters: a bit for each of ASCII, and one for all others together. */
typedef struct char_set {
    uint64_t bits[3];
} char_set;

enum { OTHER_CHARS = 128, ASCII_SETS = 129 /* the sets of one character come first */ };

typedef struct gbnf_rule {
    const char *name; /* (n_name) NULL: a group or a repetition */
    size_t n_name;
    int32_t first, n; /* elements */
    int64_t weight;   /* elements of libllama */
    int64_t work;     /* what libllama's search for left recursion costs from here */
    int32_t chain;
    bool defined, nullable, done, in_progress;
    bool is_repetition;       /* .. of the elements before the first ALTERNATIVE */
    bool repeats;             /* more than once */
    bool chooses;             /* how often */
    char_set starts, follows; /* characters that it may begin with, and that may come after it */
    int32_t n_callers;        /* references from rules that are not looked at yet */
    int64_t n_ways;           /* estimate of how many ways may lead here at the same time */
    int64_t n_unclear_ways;   /* those of rules that cannot decide by the next character */
} gbnf_rule;

typedef struct gbnf_checker {
    const char *start, *at;
    gbnf_rule *rules;
    int32_t n_rules, rules_max;
    int32_t *slots; /* (n_slots) index of a rule + 1, by the hash of its name */
    uint32_t n_slots;
    gbnf_element *elements; /* of finished rules */
    int32_t n_elements, elements_max;
    char_set *sets;
    int32_t n_sets, sets_max;
    gbnf_element *open; /* of rules that are being read, inner ones last */
    int32_t n_open;
    int64_t n_symbols, n_expanded; /* as libllama counts them */
    int nesting;
    int32_t n_pairs; /* that gbnf_soon_clear looked at */
    char *why;
    size_t n_why;
} gbnf_checker;

/* False: `why` says what is wrong, without a full stop. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
bool gbnf_refuse(gbnf_checker *checker, const char *format, ...);
bool gbnf_read(gbnf_checker *checker);
/* After left recursion was ruled out: whether the next character decides, where it must. */
bool gbnf_check_choices(gbnf_checker *checker);
/* Whether the alternative that begins at element i of a rule may be empty. */
bool gbnf_may_be_empty(const gbnf_checker *checker, int32_t i, int32_t end);
/* Whether the alternatives of a rule can be told apart before the rule is entered again. */
bool gbnf_soon_clear(gbnf_checker *checker, const gbnf_rule *rule);
bool gbnf_overlap(const char_set *a, const char_set *b);
void gbnf_unite(char_set *set, const char_set *other);

#endif
