/* schema_object.c: objects. Properties come in the order of the schema, which makes the grammar
 * linear in their number:
 *
 *   some(i) ::= p(i) rest(i+1) | some(i+1)      at least one property, from p(i) on; without the
 *                                               second part if p(i) is required
 *   rest(i) ::= "," ws some(i) | ""             what follows one; without the second part if any
 *                                               from p(i) on is required
 *
 * Behind the last property come the additional ones, if they are allowed. So a comma decides
 * whether there is one more, which recursive grammars need (gbnf_choices.c). */
#include "api/json_utf8.h"
#include "api/schema_parts.h"

#include <stdlib.h>
#include <string.h>

enum { OBJECT_PROPERTIES = 1000, NAME_BYTES = 256 };

typedef struct property {
    const char *name;
    char member[API_RULE_NAME]; /* rule of "name": value */
    bool required;
} property;

typedef struct object {
    schema_converter *c;
    property *list;
    size_t n;
    bool open;                 /* additional properties are allowed */
    char other[API_RULE_NAME]; /* rule of one */
} object;

/* ------------------------------------------------------------------ names that are taken */

/* Rule of the rest of a key that begins like these names, which are sorted and agree in their first
 * `at` bytes, and that is none of them. Keys are written without escapes: each has one spelling. */
static bool write_other_key(schema_converter *c, const char *const *names, size_t n, size_t at,
                            char rule[API_RULE_NAME]) {
    srv_text body = {0}, taken = {0};
    if (!schema_has_room(c)) /* a rule for each byte of each name */
        return schema_refuse(c, "properties", "the schema is too large");
    schema_new_rule(c, rule);
    bool good = true;
    const bool is_name = n > 0 && names[0][at] == '\0'; /* it must go on */
    for (size_t i = is_name ? 1 : 0; i < n && good;) {
        const size_t length = api_utf8_length(names[i] + at, strlen(names[i] + at));
        size_t end = i + 1;
        while (end < n && strncmp(names[end] + at, names[i] + at, length) == 0)
            end++;
        char next[API_RULE_NAME];
        good = write_other_key(c, names + i, end - i, at + length, next);
        if (body.n > 0)
            srv_text_put(&body, " | ");
        api_gbnf_literal(&body, names[i] + at, length);
        srv_text_print(&body, " %s", next);
        /* These stand for themselves in a class behind a backslash only. */
        const bool special = length == 1 && strchr("[]-^", names[i][at]);
        srv_text_put(&taken, special && names[i][at] != '^' ? "\\" : "");
        if (special && names[i][at] == '^')
            srv_text_put(&taken, "\\x5E");
        else
            srv_text_add(&taken, names[i] + at, length);
        i = end;
    }
    srv_text_print(&body, "%s[^\"\\\\\\x00-\\x1F\\x7F%s] keychar*%s", body.n > 0 ? " | " : "",
                   taken.bytes ? taken.bytes : "", is_name ? "" : " | \"\"");
    body.failed = body.failed || taken.failed;
    srv_text_free(&taken);
    schema_end_rule(c, rule, &body);
    return good;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A name that a key without escapes cannot spell needs no rule against it. */
static bool is_plain(const char *name) {
    for (; *name; name++)
        if (*name == '"' || *name == '\\' || (unsigned char)*name < 0x20 || *name == 0x7F)
            return false;
    return true;
}

static bool write_other(object *o, const json_t *schema) {
    schema_converter *c = o->c;
    char value[API_RULE_NAME] = "value", key[API_RULE_NAME];
    if (json_is_object(schema) && !schema_convert(c, schema, "additionalProperties", NULL, value))
        return false;
    const char **names = malloc((o->n + 1) * sizeof *names);
    if (!names)
        return api_no_memory(c->error);
    size_t n = 0;
    for (size_t i = 0; i < o->n; i++)
        if (is_plain(o->list[i].name))
            names[n++] = o->list[i].name;
    qsort(names, n, sizeof *names, by_name);
    const bool good = write_other_key(c, names, n, 0, key);
    free(names);
    if (!good)
        return false;
    schema_new_rule(c, o->other);
    srv_text body = {0};
    srv_text_print(&body, "\"\\\"\" %s \"\\\"\" \":\" ws %s ws", key, value);
    schema_end_rule(c, o->other, &body);
    return true;
}

/* ------------------------------------------------------------------ properties */

static bool add_property(object *o, const char *name, const json_t *schema, const char *keyword) {
    schema_converter *c = o->c;
    property *p = &o->list[o->n];
    char value[API_RULE_NAME];
    *p = (property){.name = name};
    if (strlen(name) > NAME_BYTES)
        return schema_refuse(c, keyword, "a name has more than %d bytes", (int)NAME_BYTES);
    if (!schema_convert(c, schema, keyword, name, value))
        return false;
    json_t *key = json_string(name);
    char *text = key ? json_dumps(key, JSON_ENCODE_ANY) : NULL;
    json_decref(key);
    if (!text)
        return api_no_memory(c->error);
    schema_new_rule(c, p->member);
    srv_text body = {0};
    api_gbnf_literal(&body, text, strlen(text));
    srv_text_print(&body, " \":\" ws %s ws", value);
    free(text);
    schema_end_rule(c, p->member, &body);
    o->n++;
    return true;
}

static bool require(object *o, const char *name, const json_t *additional) {
    for (size_t i = 0; i < o->n; i++)
        if (strcmp(o->list[i].name, name) == 0) {
            o->list[i].required = true;
            return true;
        }
    if (json_is_false(additional))
        return schema_refuse(o->c, "required", "'%.80s' is not among the properties", name);
    json_t *any = json_true();
    if (!add_property(o, name, json_is_object(additional) ? additional : any, "required"))
        return false;
    o->list[o->n - 1].required = true;
    return true;
}

static bool read_properties(object *o, const json_t *schema) {
    json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required");
    const json_t *additional = json_object_get(schema, "additionalProperties");
    if (properties && !json_is_object(properties))
        return schema_refuse(o->c, "properties", "must be an object");
    if (required && !json_is_array(required))
        return schema_refuse(o->c, "required", "must be a list of names");
    if (additional && !json_is_object(additional) && !json_is_boolean(additional))
        return schema_refuse(o->c, "additionalProperties", "must be a schema, true or false");
    const size_t most = json_object_size(properties) + json_array_size(required);
    if (most > OBJECT_PROPERTIES)
        return schema_refuse(o->c, "properties", "more than %d", (int)OBJECT_PROPERTIES);
    o->list = malloc((most + 1) * sizeof *o->list);
    if (!o->list)
        return api_no_memory(o->c->error);
    const char *name;
    json_t *value;
    json_object_foreach(properties, name, value) {
        if (!add_property(o, name, value, "properties"))
            return false;
    }
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *one = json_string_value(json_array_get(required, i));
        if (!one)
            return schema_refuse(o->c, "required", "must be a list of names");
        if (!require(o, one, additional))
            return false;
    }
    /* Properties that nobody named are left out unless they are asked for. */
    o->open = additional ? !json_is_false(additional) : o->n == 0;
    return !o->open || write_other(o, additional);
}

/* ------------------------------------------------------------------ all */

/* Rules from the last property to the first. */
static void write_rules(object *o, srv_text *body) {
    char some[API_RULE_NAME] = "", rest[API_RULE_NAME], next_some[API_RULE_NAME];
    schema_converter *c = o->c;
    bool required = false;
    srv_text end = {0};
    schema_new_rule(c, rest);
    if (o->open) {
        srv_text other = {0};
        schema_new_rule(c, some);
        srv_text_print(&other, "%s %s", o->other, rest);
        schema_end_rule(c, some, &other);
        srv_text_print(&end, "( \",\" ws %s )*", o->other);
    } else {
        srv_text_put(&end, "\"\"");
    }
    schema_end_rule(c, rest, &end);
    for (size_t i = o->n; i-- > 0;) {
        const property *p = &o->list[i];
        srv_text begins = {0}, goes_on = {0};
        memcpy(next_some, some, sizeof some);
        schema_new_rule(c, some);
        srv_text_print(&begins, "%s %s", p->member, rest);
        if (!p->required && *next_some)
            srv_text_print(&begins, " | %s", next_some);
        schema_end_rule(c, some, &begins);
        required = required || p->required;
        schema_new_rule(c, rest);
        srv_text_print(&goes_on, "\",\" ws %s%s", some, required ? "" : " | \"\"");
        schema_end_rule(c, rest, &goes_on);
    }
    if (!*some)
        srv_text_put(body, "\"{\" ws \"}\"");
    else
        srv_text_print(body, "\"{\" ws %s%s \"}\"", some, required ? "" : "?");
}

bool schema_object(schema_converter *c, const json_t *schema, srv_text *body) {
    object o = {.c = c};
    const bool good = read_properties(&o, schema);
    if (good)
        write_rules(&o, body);
    free(o.list);
    return good;
}
