/* schema_grammar.c: schemas of any kind -> rules. A rule has its name before its body is written,
 * so schemas may refer to themselves. */
#include "api/request.h"
#include "api/schema_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ text of grammars */

/* White space is bounded: a model could go on with it for ever. Escapes of surrogates are left out,
 * as half of a pair is no character. */
static const char JSON_RULES[] =
    "ws ::= [ ]? | \"\\n\" [ \\t]{0,20}\n"
    "value ::= object | array | string | number | boolean | null\n"
    "object ::= \"{\" ws ( member ( \",\" ws member )* )? \"}\"\n"
    "member ::= string \":\" ws value ws\n"
    "array ::= \"[\" ws ( value ws ( \",\" ws value ws )* )? \"]\"\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "char ::= [^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" escape\n"
    "escape ::= [\"\\\\/bfnrt] | \"u\" ( [0-9a-cefA-CEF] hex | [dD] [0-7] ) hex hex\n"
    "keychar ::= [^\"\\\\\\x00-\\x1F\\x7F]\n"
    "hex ::= [0-9a-fA-F]\n"
    "integer ::= \"-\"? ( \"0\" | [1-9] [0-9]{0,17} )\n"
    "number ::= integer ( \".\" [0-9]{1,17} )? ( [eE] [-+]? [0-9]{1,2} )?\n"
    "boolean ::= \"true\" | \"false\"\n"
    "null ::= \"null\"\n";

void api_grammar_begin(api_grammar *grammar) { srv_text_put(&grammar->text, JSON_RULES); }

void api_grammar_free(api_grammar *grammar) { srv_text_free(&grammar->text); }

void api_gbnf_literal(srv_text *text, const char *bytes, size_t n) {
    srv_text_put(text, "\"");
    for (size_t i = 0; i < n; i++) {
        const unsigned char byte = (unsigned char)bytes[i];
        if (byte == '"' || byte == '\\')
            srv_text_print(text, "\\%c", byte);
        else if (byte < 0x20 || byte == 0x7F)
            srv_text_print(text, "\\x%02X", byte);
        else
            srv_text_add(text, bytes + i, 1);
    }
    srv_text_put(text, "\"");
}

void schema_new_rule(schema_converter *c, char rule[API_RULE_NAME]) {
    snprintf(rule, API_RULE_NAME, "r%u", c->grammar->n_rules++);
}

bool schema_has_room(const schema_converter *c) {
    return c->grammar->n_rules < SCHEMA_RULES && c->grammar->text.n <= API_GRAMMAR_BYTES;
}

void schema_end_rule(schema_converter *c, const char *rule, srv_text *body) {
    srv_text *text = &c->grammar->text;
    srv_text_print(text, "%s ::= ", rule);
    srv_text_add(text, body->bytes ? body->bytes : "", body->n);
    srv_text_put(text, "\n");
    text->failed = text->failed || body->failed;
    srv_text_free(body);
}

/* ------------------------------------------------------------------ errors, keywords */

bool schema_refuse(schema_converter *c, const char *keyword, const char *format, ...) {
    char why[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    return api_fail(c->error, 400, c->param, "Schema %.200s%s%s: %s.",
                    c->path.bytes ? c->path.bytes : "", *keyword ? "/" : "", keyword, why);
}

bool schema_count(schema_converter *c, const json_t *schema, const char *keyword, int *value) {
    const json_t *field = json_object_get(schema, keyword);
    if (!field)
        return true;
    if (!json_is_integer(field) || json_integer_value(field) < 0)
        return schema_refuse(c, keyword, "must be an integer of at least 0");
    if (json_integer_value(field) > SCHEMA_REPEATS)
        return schema_refuse(c, keyword, "at most %d are supported", (int)SCHEMA_REPEATS);
    *value = (int)json_integer_value(field);
    return true;
}

enum {
    NULLS = 1,
    BOOLEANS = 2,
    INTEGERS = 4,
    NUMBERS = 8,
    STRINGS = 16,
    ARRAYS = 32,
    OBJECTS = 64
};
enum { NUMERIC = INTEGERS | NUMBERS, ANYTHING = 127 };

static const struct {
    const char *name;
    int type;
} TYPES[] = {{"null", NULLS},     {"boolean", BOOLEANS}, {"integer", INTEGERS}, {"number", NUMBERS},
             {"string", STRINGS}, {"array", ARRAYS},     {"object", OBJECTS}};

/* What limits values of some types. Keywords that are not here say nothing about validity. */
static const struct {
    const char *name;
    int types; /* for other types it means nothing */
    bool supported;
} KEYWORDS[] = {
    {"minLength", STRINGS, true},
    {"maxLength", STRINGS, true},
    {"pattern", STRINGS, true},
    {"minimum", NUMERIC, true},
    {"maximum", NUMERIC, true},
    {"exclusiveMinimum", NUMERIC, true},
    {"exclusiveMaximum", NUMERIC, true},
    {"multipleOf", NUMERIC, false},
    {"properties", OBJECTS, true},
    {"required", OBJECTS, true},
    {"additionalProperties", OBJECTS, true},
    {"minProperties", OBJECTS, false},
    {"maxProperties", OBJECTS, false},
    {"patternProperties", OBJECTS, false},
    {"propertyNames", OBJECTS, false},
    {"dependencies", OBJECTS, false},
    {"dependentRequired", OBJECTS, false},
    {"dependentSchemas", OBJECTS, false},
    {"unevaluatedProperties", OBJECTS, false},
    {"items", ARRAYS, true},
    {"minItems", ARRAYS, true},
    {"maxItems", ARRAYS, true},
    {"prefixItems", ARRAYS, false},
    {"additionalItems", ARRAYS, false},
    {"unevaluatedItems", ARRAYS, false},
    {"uniqueItems", ARRAYS, false},
    {"contains", ARRAYS, false},
    {"minContains", ARRAYS, false},
    {"maxContains", ARRAYS, false},
    {"not", ANYTHING, false},
    {"if", ANYTHING, false},
    {"then", ANYTHING, false},
    {"else", ANYTHING, false},
    {"$dynamicRef", ANYTHING, false},
    {"$recursiveRef", ANYTHING, false},
    {"allOf", ANYTHING, false},
};

/* Forms that decide alone what is valid. */
static const char *const WHOLE[] = {"$ref", "anyOf", "oneOf", "allOf", "const", "enum"};
enum {
    N_WHOLE = sizeof WHOLE / sizeof WHOLE[0],
    N_KEYWORDS = sizeof KEYWORDS / sizeof KEYWORDS[0]
};

/* "uniqueItems": false and "minProperties": 0 limit nothing. */
static bool limits_nothing(const json_t *value) {
    return json_is_false(value) || (json_is_integer(value) && json_integer_value(value) == 0);
}

static bool check_keywords(schema_converter *c, const json_t *schema, int types) {
    for (size_t i = 0; i < N_KEYWORDS; i++) {
        const json_t *value = json_object_get(schema, KEYWORDS[i].name);
        if (value && !KEYWORDS[i].supported && (KEYWORDS[i].types & types) &&
            !limits_nothing(value))
            return schema_refuse(c, KEYWORDS[i].name, "this keyword is not supported");
    }
    return true;
}

/* Beside one of WHOLE only `type` may stand, and that only beside values. */
static bool check_alone(schema_converter *c, const json_t *schema, const char *form, bool typed) {
    for (size_t i = 0; i < N_WHOLE; i++)
        if (strcmp(WHOLE[i], form) != 0 && json_object_get(schema, WHOLE[i]))
            return schema_refuse(c, WHOLE[i], "not supported beside '%s'", form);
    for (size_t i = 0; i < N_KEYWORDS; i++)
        if (strcmp(KEYWORDS[i].name, form) != 0 && json_object_get(schema, KEYWORDS[i].name))
            return schema_refuse(c, KEYWORDS[i].name, "not supported beside '%s'", form);
    if (!typed && json_object_get(schema, "type"))
        return schema_refuse(c, "type", "not supported beside '%s'", form);
    return true;
}

/* ------------------------------------------------------------------ types */

static int type_named(const json_t *name) {
    const char *text = json_string_value(name);
    for (size_t i = 0; text && i < sizeof TYPES / sizeof TYPES[0]; i++)
        if (strcmp(TYPES[i].name, text) == 0)
            return TYPES[i].type;
    return 0;
}

/* The types of a schema without `type`: those that its keywords speak of, or all. */
static int implied_types(const json_t *schema) {
    for (size_t i = 0; i < N_KEYWORDS; i++)
        if (KEYWORDS[i].types != ANYTHING && json_object_get(schema, KEYWORDS[i].name))
            return KEYWORDS[i].types == NUMERIC ? NUMBERS : KEYWORDS[i].types;
    return ANYTHING;
}

static bool read_types(schema_converter *c, const json_t *schema, int *types) {
    const json_t *field = json_object_get(schema, "type");
    *types = field ? type_named(field) : implied_types(schema);
    for (size_t i = 0; i < json_array_size(field); i++) {
        const int type = type_named(json_array_get(field, i));
        if (type == 0) {
            *types = 0;
            break;
        }
        *types |= type;
    }
    return *types != 0 || schema_refuse(c, "type",
                                        "must be null, boolean, integer, number, string, array, "
                                        "object, or a list of these");
}

static int type_of(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_NULL:
        return NULLS;
    case JSON_TRUE:
    case JSON_FALSE:
        return BOOLEANS;
    case JSON_INTEGER:
        return NUMERIC;
    case JSON_REAL:
        return NUMBERS;
    case JSON_STRING:
        return STRINGS;
    case JSON_ARRAY:
        return ARRAYS;
    default:
        return OBJECTS;
    }
}

/* ------------------------------------------------------------------ arrays, values */

static bool write_array(schema_converter *c, const json_t *schema, srv_text *body) {
    char item[API_RULE_NAME] = "value";
    int min = 0, max = -1;
    const json_t *items = json_object_get(schema, "items");
    if (!schema_count(c, schema, "minItems", &min) || !schema_count(c, schema, "maxItems", &max))
        return false;
    if (max >= 0 && max < min)
        return schema_refuse(c, "maxItems", "less than minItems");
    if (items && max != 0 && !schema_convert(c, items, "items", NULL, item))
        return false;
    srv_text_put(body, "\"[\" ws ");
    if (max != 0) {
        const int more = min > 0 ? min - 1 : 0;
        srv_text_print(body, "%s%s ws ", min == 0 ? "( " : "", item);
        if (max > 1)
            srv_text_print(body, "( \",\" ws %s ws ){%d,%d} ", item, more, max - 1);
        else if (max < 0)
            srv_text_print(body, "( \",\" ws %s ws ){%d,} ", item, more);
        srv_text_put(body, min == 0 ? ")? " : "");
    }
    srv_text_put(body, "\"]\"");
    return true;
}

static char *json_of(const json_t *value) {
    char number[40];
    if (!json_is_real(value))
        return json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    /* The shorter form, if it is the same number: "0.1", not "0.10000000000000001". */
    snprintf(number, sizeof number, "%.15g", json_real_value(value));
    if (strtod(number, NULL) != json_real_value(value))
        snprintf(number, sizeof number, "%.17g", json_real_value(value));
    char *copy = malloc(strlen(number) + 1);
    return copy ? strcpy(copy, number) : NULL;
}

static bool add_value(schema_converter *c, const json_t *value, int types, srv_text *body) {
    if (!(type_of(value) & types))
        return true;
    char *text = json_of(value);
    if (!text)
        return api_no_memory(c->error);
    srv_text_put(body, body->n > 0 ? " | " : "");
    api_gbnf_literal(body, text, strlen(text));
    free(text);
    return true;
}

static bool write_values(schema_converter *c, const json_t *schema, const char *form,
                         srv_text *body) {
    const json_t *values = json_object_get(schema, form);
    int types = ANYTHING;
    if (!check_alone(c, schema, form, true) ||
        (json_object_get(schema, "type") && !read_types(c, schema, &types)))
        return false;
    if (strcmp(form, "const") == 0) {
        if (!add_value(c, values, types, body))
            return false;
    } else {
        if (json_array_size(values) == 0 || json_array_size(values) > SCHEMA_ENUM)
            return schema_refuse(c, form, "must be a list of 1 to %d values", (int)SCHEMA_ENUM);
        for (size_t i = 0; i < json_array_size(values); i++)
            if (!add_value(c, json_array_get(values, i), types, body))
                return false;
    }
    return body->n > 0 || schema_refuse(c, form, "no value is of the type that 'type' names");
}

/* ------------------------------------------------------------------ other schemas */

static bool write_alternatives(schema_converter *c, const json_t *schema, const char *form,
                               srv_text *body) {
    const json_t *list = json_object_get(schema, form);
    if (!check_alone(c, schema, form, false))
        return false;
    if (json_array_size(list) == 0 || json_array_size(list) > SCHEMA_ENUM)
        return schema_refuse(c, form, "must be a list of 1 to %d schemas", (int)SCHEMA_ENUM);
    if (strcmp(form, "allOf") == 0 && json_array_size(list) > 1)
        return schema_refuse(c, form, "only one schema is supported");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char rule[API_RULE_NAME], index[24];
        snprintf(index, sizeof index, "%zu", i);
        if (!schema_convert(c, json_array_get(list, i), form, index, rule))
            return false;
        srv_text_print(body, "%s%s", i > 0 ? " | " : "", rule);
    }
    return true;
}

/* One step of a JSON pointer: *at is behind the '/', and then at the next one or at the end. */
static const json_t *step(const json_t *from, const char **at) {
    char name[256];
    size_t n = 0;
    for (; **at && **at != '/' && n + 1 < sizeof name; (*at)++) {
        char byte = **at;
        if (byte == '~' && ((*at)[1] == '0' || (*at)[1] == '1'))
            byte = *++*at == '0' ? '~' : '/';
        name[n++] = byte;
    }
    name[n] = '\0';
    if (json_is_array(from))
        return json_array_get(from, strtoul(name, NULL, 10));
    return json_object_get(from, name);
}

static const json_t *find_ref(const json_t *root, const char *ref) {
    if (*ref++ != '#')
        return NULL;
    while (root && *ref == '/') {
        ref++;
        root = step(root, &ref);
    }
    return *ref ? NULL : root;
}

static bool write_ref(schema_converter *c, const json_t *schema, srv_text *body) {
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (!check_alone(c, schema, "$ref", false))
        return false;
    const json_t *known = ref ? json_object_get(c->refs, ref) : NULL;
    if (known) {
        srv_text_put(body, json_string_value(known));
        return true;
    }
    const json_t *target = ref ? find_ref(c->root, ref) : NULL;
    if (!target)
        return schema_refuse(c, "$ref", "'%.80s' is not found in this schema", ref ? ref : "");
    char rule[API_RULE_NAME], inner[API_RULE_NAME];
    schema_new_rule(c, rule);
    if (json_object_set_new(c->refs, ref, json_string(rule)) != 0)
        return api_no_memory(c->error);
    if (!schema_convert(c, target, "$ref", NULL, inner))
        return false;
    srv_text_print(&c->grammar->text, "%s ::= %s\n", rule, inner);
    srv_text_put(body, rule);
    return true;
}

static bool write_type(schema_converter *c, const json_t *schema, int type, srv_text *body) {
    switch (type) {
    case NULLS:
        srv_text_put(body, "null");
        return true;
    case BOOLEANS:
        srv_text_put(body, "boolean");
        return true;
    case INTEGERS:
        return schema_integer(c, schema, body);
    case NUMBERS:
        srv_text_put(body, "number");
        return true;
    case STRINGS:
        return schema_string(c, schema, body);
    case ARRAYS:
        return write_array(c, schema, body);
    default:
        return schema_object(c, schema, body);
    }
}

static bool write_types(schema_converter *c, const json_t *schema, srv_text *body) {
    int types;
    if (!read_types(c, schema, &types) || !check_keywords(c, schema, types))
        return false;
    if (types == ANYTHING && !json_object_get(schema, "type")) {
        srv_text_put(body, "value");
        return true;
    }
    const char *before = "";
    for (size_t i = 0; i < sizeof TYPES / sizeof TYPES[0]; i++) {
        if (!(types & TYPES[i].type))
            continue;
        srv_text_put(body, before);
        before = " | ";
        if (!write_type(c, schema, TYPES[i].type, body))
            return false;
    }
    return true;
}

static bool write_schema(schema_converter *c, const json_t *schema, srv_text *body) {
    if (json_is_true(schema)) {
        srv_text_put(body, "value");
        return true;
    }
    if (!json_is_object(schema))
        return schema_refuse(
            c, "", json_is_false(schema) ? "no value is valid here" : "must be an object or true");
    for (size_t i = 0; i < N_WHOLE; i++) {
        if (!json_object_get(schema, WHOLE[i]))
            continue;
        if (strcmp(WHOLE[i], "$ref") == 0)
            return write_ref(c, schema, body);
        if (strcmp(WHOLE[i], "const") == 0 || strcmp(WHOLE[i], "enum") == 0)
            return write_values(c, schema, WHOLE[i], body);
        return write_alternatives(c, schema, WHOLE[i], body);
    }
    return write_types(c, schema, body);
}

bool schema_convert(schema_converter *c, const json_t *schema, const char *keyword,
                    const char *name, char rule[API_RULE_NAME]) {
    const size_t n_path = c->path.n;
    if (*keyword)
        srv_text_print(&c->path, "/%s%s%s", keyword, name ? "/" : "", name ? name : "");
    if (c->depth >= SCHEMA_DEPTH)
        return schema_refuse(c, "", "more than %d levels", (int)SCHEMA_DEPTH);
    if (!schema_has_room(c))
        return schema_refuse(c, "", "the schema is too large");
    schema_new_rule(c, rule);
    srv_text body = {0};
    c->depth++;
    const bool good = write_schema(c, schema, &body);
    c->depth--;
    if (!good) {
        srv_text_free(&body);
        return false;
    }
    schema_end_rule(c, rule, &body);
    if (!c->path.failed && c->path.bytes) {
        c->path.n = n_path;
        c->path.bytes[n_path] = '\0';
    }
    return true;
}

bool api_grammar_schema(api_grammar *grammar, const json_t *schema, const char *param,
                        const char *path, char rule[API_RULE_NAME], api_error *error) {
    schema_converter c = {
        .grammar = grammar, .root = schema, .refs = json_object(), .param = param, .error = error};
    if (!c.refs)
        return api_no_memory(error);
    srv_text_put(&c.path, path);
    bool good = schema_convert(&c, schema, "", NULL, rule);
    if (good && (c.path.failed || grammar->text.failed))
        good = api_no_memory(error);
    json_decref(c.refs);
    srv_text_free(&c.path);
    return good;
}
