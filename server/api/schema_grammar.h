/* schema_grammar.h: JSON schemas -> GBNF.
 *
 * Every text that the grammar matches is valid JSON and valid under the schema, except for the
 * limits of numbers with fractions, which are not checked. Not every valid text can be matched:
 * properties come in the order of the schema, for example. docs/SERVER.md lists what is supported.
 */
#ifndef SERVER_API_SCHEMA_GRAMMAR_H
#define SERVER_API_SCHEMA_GRAMMAR_H

#include "api/fields.h"
#include "base/growing_text.h"

enum { API_RULE_NAME = 24 };

typedef struct api_grammar {
    srv_text text;
    unsigned n_rules; /* named r0, r1 .. */
} api_grammar;

/* Rules of plain JSON: value, object, array, string, number, integer, boolean, null, ws. */
void api_grammar_begin(api_grammar *grammar);
void api_grammar_free(api_grammar *grammar);
/* Adds the rules of a schema; `rule` gets the name of the one to start with. param, path: what an
 * error names, and where it says that the schema is. */
bool api_grammar_schema(api_grammar *grammar, const json_t *schema, const char *param,
                        const char *path, char rule[API_RULE_NAME], api_error *error);
/* A GBNF literal of these bytes, which hold no 0. */
void api_gbnf_literal(srv_text *text, const char *bytes, size_t n);

#endif
