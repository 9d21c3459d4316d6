/* schema_parts.h: what the parts of the converter share. */
#ifndef SERVER_API_SCHEMA_PARTS_H
#define SERVER_API_SCHEMA_PARTS_H

#include "api/schema_grammar.h"

enum {
    SCHEMA_DEPTH = 64,
    SCHEMA_RULES = 10000,
    SCHEMA_REPEATS = 1000, /* of minItems, maxLength .. ; libllama has a limit of 2000 rules */
    SCHEMA_ENUM = 2000
};

typedef struct schema_converter {
    api_grammar *grammar;
    const json_t *root;
    json_t *refs;  /* "#/$defs/x" -> name of its rule */
    srv_text path; /* of the schema that is being converted */
    int depth;
    const char *param;
    api_error *error;
} schema_converter;

/* Writes rules for `schema`, whose place in the parent is "/keyword" or "/keyword/name" (name NULL:
 * without). */
bool schema_convert(schema_converter *c, const json_t *schema, const char *keyword,
                    const char *name, char rule[API_RULE_NAME]);
/* 400, with the path and the keyword. Returns false. */
bool schema_refuse(schema_converter *c, const char *keyword, const char *format, ...)
    API_PRINTS(3, 4);
/* Whether more rules may be written. Asked before each one, where a schema gives very many. */
bool schema_has_room(const schema_converter *c);
void schema_new_rule(schema_converter *c, char rule[API_RULE_NAME]);
/* "rule ::= body\n"; frees the body. */
void schema_end_rule(schema_converter *c, const char *rule, srv_text *body);
/* A count such as minLength: 0 .. SCHEMA_REPEATS; *value stays if it is missing. */
bool schema_count(schema_converter *c, const json_t *schema, const char *keyword, int *value);

/* Each writes what the schema allows of its type to `body`. */
bool schema_object(schema_converter *c, const json_t *schema, srv_text *body);
bool schema_string(schema_converter *c, const json_t *schema, srv_text *body);
bool schema_integer(schema_converter *c, const json_t *schema, srv_text *body);

/* A regular expression -> GBNF of the inside of a JSON string. False: `why` is a sentence. */
bool schema_pattern(const char *pattern, srv_text *body, char *why, size_t n_why);

#endif
