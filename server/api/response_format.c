/* response_format.c: see response_format.h. */
#include "api/response_format.h"
#include "api/gbnf_check.h"
#include "api/schema_grammar.h"

#include <string.h>

typedef enum format { FORMAT_TEXT, FORMAT_JSON, FORMAT_SCHEMA } format;

/* *schema, *path: of FORMAT_SCHEMA. */
static bool read_schema(api_parser *p, const json_t *field, format *kind, const json_t **schema,
                        const char **path) {
    const json_t *named = api_field(field, "json_schema");
    if (!json_is_object(named))
        return api_wrong_type(p->error, "response_format.json_schema", "an object with 'schema'");
    *schema = api_field(named, "schema");
    *path = "response_format.json_schema.schema";
    *kind = FORMAT_SCHEMA;
    return *schema || api_fail(p->error, 400, *path, "'%s' is missing.", *path);
}

static bool read_kind(api_parser *p, format *kind, const json_t **schema, const char **path) {
    const json_t *field = api_field(p->body, "response_format");
    const char *type = NULL;
    *kind = FORMAT_TEXT;
    if (!field)
        return true;
    if (!json_is_object(field))
        return api_wrong_type(p->error, "response_format", "an object");
    if (!api_read_string(field, "response_format.type", &type, p->error))
        return false;
    if (type && strcmp(type, "text") == 0)
        return true;
    if (type && strcmp(type, "json_schema") == 0)
        return read_schema(p, field, kind, schema, path);
    if (!type || strcmp(type, "json_object") != 0)
        return api_fail(p->error, 400, "response_format.type",
                        "'response_format.type' must be 'text', 'json_object' or 'json_schema'.");
    *schema = api_field(field, "schema"); /* as llama.cpp's server has it */
    *path = "response_format.schema";
    *kind = *schema ? FORMAT_SCHEMA : FORMAT_JSON;
    return true;
}

/* ------------------------------------------------------------------ one grammar of all */

static bool add_format(api_parser *p, format kind, const json_t *schema, const char *path,
                       api_grammar *grammar) {
    char rule[API_RULE_NAME] = "object";
    if (kind == FORMAT_SCHEMA &&
        !api_grammar_schema(grammar, schema, "response_format", path, rule, p->error))
        return false;
    srv_text_print(&grammar->text, "format ::= %s\n", rule);
    return true;
}

static bool make_grammar(api_parser *p, format kind, const json_t *schema, const char *path,
                         const api_tools *tools, api_grammar *grammar) {
    const bool forced = tools && tools->choice == API_TOOLS_REQUIRED;
    const bool called = tools && tools->choice != API_TOOLS_NONE;
    api_grammar_begin(grammar);
    if (!forced && !add_format(p, kind, schema, path, grammar))
        return false;
    if (called && !api_tools_grammar(tools, grammar, p->error))
        return false;
    srv_text_put(&grammar->text, forced   ? "root ::= calls\n"
                                 : called ? "root ::= format | calls\n"
                                          : "root ::= format\n");
    return true;
}

static bool check(api_parser *p, const char *grammar, size_t n_bytes, const char *param) {
    char why[200];
    if (n_bytes > API_GRAMMAR_BYTES)
        return api_fail(p->error, 400, param,
                        "The grammar of '%s' has %zu bytes; at most %d are allowed.", param,
                        n_bytes, (int)API_GRAMMAR_BYTES);
    if (!api_gbnf_check(grammar, why, sizeof why))
        return api_fail(p->error, 400, param, "'%s' gives a grammar that cannot be used: %s.",
                        param, why);
    p->request->work.sampling.grammar = grammar;
    return true;
}

bool api_read_format(api_parser *p, const api_tools *tools) {
    format kind;
    const json_t *schema = NULL;
    const char *path = "", *given = NULL;
    const bool forced = tools && tools->choice == API_TOOLS_REQUIRED;
    if (!read_kind(p, &kind, &schema, &path) ||
        !api_read_string(p->body, "grammar", &given, p->error))
        return false;
    if (p->limits->no_grammar && (given || kind != FORMAT_TEXT || forced)) {
        const char *param = given ? "grammar" : forced ? "tool_choice" : "response_format";
        return api_fail(p->error, 400, param,
                        "'%s' needs a grammar, and this server uses none (--no-grammar).", param);
    }
    if (given) {
        if (kind != FORMAT_TEXT || forced)
            return api_fail(p->error, 400, "grammar", "'grammar' cannot be combined with '%s'.",
                            forced ? "tool_choice" : "response_format");
        return check(p, given, json_string_length(api_field(p->body, "grammar")), "grammar");
    }
    if (kind == FORMAT_TEXT && !forced)
        return true;
    api_grammar grammar = {0};
    const bool made = make_grammar(p, kind, schema, path, tools, &grammar);
    const size_t n_bytes = grammar.text.n;
    p->owned->grammar = srv_text_take(&grammar.text);
    api_grammar_free(&grammar);
    if (!made)
        return false;
    if (!p->owned->grammar)
        return api_no_memory(p->error);
    return check(p, p->owned->grammar, n_bytes, forced ? "tools" : "response_format");
}
