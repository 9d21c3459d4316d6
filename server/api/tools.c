/* tools.c: see tools.h. */
#include "api/tools.h"
#include "api/request.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64, CALLS_MAX = 16 /* of one reply that must call */ };

/* ------------------------------------------------------------------ reading */

bool api_is_tool_name(const char *name, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++)
        if (!isalnum((unsigned char)name[i]) && !memchr("_-.", name[i], 3))
            return false;
    return n_bytes > 0 && n_bytes <= NAME_BYTES;
}

static const json_t *function_at(const api_tools *tools, size_t i) {
    return api_field(json_array_get(tools->list, i), "function");
}

static const char *name_at(const api_tools *tools, size_t i) {
    return json_string_value(json_object_get(function_at(tools, i), "name"));
}

static bool check_tool(const api_tools *tools, size_t i, api_error *error) {
    const json_t *tool = json_array_get(tools->list, i), *function = function_at(tools, i);
    const char *type = json_string_value(json_object_get(tool, "type"));
    char name[64];
    snprintf(name, sizeof name, "tools[%zu]", i);
    if (!type || strcmp(type, "function") != 0 || !json_is_object(function))
        return api_fail(error, 400, name,
                        "'%s' must be {\"type\": \"function\", \"function\": {..}}; other types "
                        "are not supported.",
                        name);
    const char *of_function = name_at(tools, i);
    if (!of_function || !api_is_tool_name(of_function, strlen(of_function)))
        return api_fail(error, 400, name,
                        "The name of '%s' must have 1 to %d letters, digits, '_', '-' or '.'.",
                        name, (int)NAME_BYTES);
    for (size_t k = 0; k < i; k++)
        if (strcmp(name_at(tools, k), of_function) == 0)
            return api_fail(error, 400, name, "'%s' has the name of an earlier tool, '%s'.", name,
                            of_function);
    const json_t *parameters = api_field(function, "parameters");
    if (parameters && !json_is_object(parameters))
        return api_fail(error, 400, name, "The parameters of '%s' must be a JSON schema.", name);
    return true;
}

static bool choose_one(api_tools *tools, const json_t *choice, api_error *error) {
    const char *type = json_string_value(json_object_get(choice, "type"));
    const json_t *function = api_field(choice, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    if (!type || strcmp(type, "function") != 0 || !name)
        return api_wrong_type(error, "tool_choice",
                              "'none', 'auto', 'required' or {\"type\": \"function\", "
                              "\"function\": {\"name\": ..}}");
    for (size_t i = 0; i < json_array_size(tools->list); i++)
        if (strcmp(name_at(tools, i), name) == 0) {
            tools->choice = API_TOOLS_REQUIRED;
            tools->only = name_at(tools, i);
            return true;
        }
    return api_fail(error, 400, "tool_choice", "'tool_choice' names '%.64s', which is no tool.",
                    name);
}

static bool read_choice(const json_t *body, api_tools *tools, api_error *error) {
    static const char *const names[] = {"none", "auto", "required"};
    const json_t *choice = api_field(body, "tool_choice");
    tools->choice = tools->list ? API_TOOLS_AUTO : API_TOOLS_NONE;
    if (!choice)
        return true;
    const char *name = json_string_value(choice);
    if (!name || strcmp(name, "none") != 0) {
        if (!tools->list)
            return api_fail(error, 400, "tool_choice", "'tool_choice' needs 'tools'.");
    }
    if (!name)
        return choose_one(tools, choice, error);
    for (int i = 0; i < 3; i++)
        if (strcmp(names[i], name) == 0) {
            tools->choice = (api_tool_choice)i;
            return true;
        }
    return choose_one(tools, NULL, error);
}

bool api_tools_read(const json_t *body, api_tools *tools, api_error *error) {
    *tools = (api_tools){.list = api_field(body, "tools"), .parallel = true};
    if (tools->list && !json_is_array(tools->list))
        return api_wrong_type(error, "tools", "a list");
    if (json_array_size(tools->list) > API_TOOLS)
        return api_fail(error, 400, "tools", "'tools' has %zu entries; at most %d are allowed.",
                        json_array_size(tools->list), (int)API_TOOLS);
    if (json_array_size(tools->list) == 0)
        tools->list = NULL;
    for (size_t i = 0; i < json_array_size(tools->list); i++)
        if (!check_tool(tools, i, error))
            return false;
    if (api_field(body, "functions") || api_field(body, "function_call"))
        return api_fail(error, 400, "functions",
                        "'functions' and 'function_call' are not supported; use 'tools'.");
    return api_read_bool(body, "parallel_tool_calls", &tools->parallel, error) &&
           read_choice(body, tools, error);
}

/* ------------------------------------------------------------------ prompt */

bool api_tools_describe(const api_tools *tools, srv_text *text, api_error *error) {
    srv_text_put(text, "You may call functions. These are their signatures, as JSON schemas:\n"
                       "<tools>\n");
    for (size_t i = 0; i < json_array_size(tools->list); i++) {
        char *tool = json_dumps(json_array_get(tools->list, i), 0);
        if (!tool)
            return api_no_memory(error);
        srv_text_print(text, "%s\n", tool);
        free(tool);
    }
    srv_text_put(text, "</tools>\n"
                       "To call a function, write its name and arguments as a JSON object between "
                       "tool_call tags:\n" API_CALL_OPEN
                       "\n{\"name\": \"<name>\", \"arguments\": {<arguments>}}\n" API_CALL_CLOSE);
    if (tools->only)
        srv_text_print(text, "\nCall the function %s now.", tools->only);
    else if (tools->choice == API_TOOLS_REQUIRED)
        srv_text_put(text, "\nCall at least one function now.");
    return true;
}

bool api_tools_recall(const json_t *calls, const char *param, srv_text *text, api_error *error) {
    if (!json_is_array(calls))
        return api_wrong_type(error, param, "a list");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *function = api_field(json_array_get(calls, i), "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        const char *arguments = json_string_value(json_object_get(function, "arguments"));
        if (!name || !api_is_tool_name(name, strlen(name)) || !arguments)
            return api_fail(error, 400, param,
                            "A call in '%s' must have a function with a 'name' of 1 to %d letters, "
                            "digits, '_', '-' or '.', and 'arguments', both strings.",
                            param, (int)NAME_BYTES);
        srv_text_print(
            text, "%s" API_CALL_OPEN "\n{\"name\": \"%s\", \"arguments\": %s}\n" API_CALL_CLOSE,
            text->n > 0 ? "\n" : "", name, *arguments ? arguments : "{}");
    }
    return true;
}

/* ------------------------------------------------------------------ grammar */

static bool add_call(const api_tools *tools, size_t i, api_grammar *grammar, srv_text *list,
                     api_error *error) {
    const json_t *parameters = api_field(function_at(tools, i), "parameters");
    char rule[API_RULE_NAME] = "object", path[64];
    snprintf(path, sizeof path, "tools[%zu].function.parameters", i);
    if (json_object_size(parameters) > 0 &&
        !api_grammar_schema(grammar, parameters, "tools", path, rule, error))
        return false;
    char start[NAME_BYTES + 32];
    const int n =
        snprintf(start, sizeof start, "{\"name\": \"%s\", \"arguments\": ", name_at(tools, i));
    srv_text_put(list, list->n > 0 ? " | " : "");
    api_gbnf_literal(list, start, (size_t)n);
    srv_text_print(list, " %s \"}\"", rule);
    return true;
}

bool api_tools_grammar(const api_tools *tools, api_grammar *grammar, api_error *error) {
    srv_text list = {0};
    for (size_t i = 0; i < json_array_size(tools->list); i++) {
        if (tools->only && strcmp(tools->only, name_at(tools, i)) != 0)
            continue;
        if (!add_call(tools, i, grammar, &list, error)) {
            srv_text_free(&list);
            return false;
        }
    }
    char more[40] = "";
    if (!tools->only && tools->parallel)
        snprintf(more, sizeof more, " ( \"\\n\" call ){0,%d}", (int)CALLS_MAX - 1);
    srv_text_print(&grammar->text,
                   "calls ::= call%s\n"
                   "call ::= \"" API_CALL_OPEN "\" \"\\n\"? ( %s ) \"\\n\"? \"" API_CALL_CLOSE
                   "\"\n",
                   more, list.bytes ? list.bytes : "\"\"");
    grammar->text.failed = grammar->text.failed || list.failed;
    srv_text_free(&list);
    return true;
}
